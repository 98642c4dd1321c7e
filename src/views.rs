//! What becomes of views, pushed or pulled: counted, and said in the log.

use std::cell::RefCell;
use std::collections::BTreeMap;

use admission_core::control::NotTaken;
use admission_core::metrics::Metrics;
use admission_core::units::{Millis, Time};

use crate::metrics::Meters;

/// The same is said again no sooner than this: whoever causes it must not fill the log.
const QUIET: Millis = Millis(60_000);

/// A view that was taken.
pub const TAKEN: &str = "taken";
/// One that came with another token, or a question that did.
pub const UNAUTHORIZED: &str = "unauthorized";
/// One above `max_view`.
pub const TOO_LARGE: &str = "too_large";
/// A question without an answer that is a view.
pub const FAILED: &str = "failed";

/// Counts views, and says what keeps one from being taken.
#[derive(Default)]
pub struct Views {
    metrics: RefCell<(Metrics, Meters)>,
    said: RefCell<BTreeMap<&'static str, Time>>,
}

impl Views {
    /// One was taken.
    pub fn taken(&self) {
        self.count(TAKEN);
    }

    /// One was not, for this reason.
    pub fn not_taken(&self, outcome: &'static str, why: &str, now: Time) {
        self.count(outcome);
        let mut said = self.said.borrow_mut();
        if said.get(outcome).is_none_or(|last| now.since(*last) >= QUIET) {
            said.insert(outcome, now);
            log::warn!("a view was not taken ({outcome}): {why}");
        }
    }

    fn count(&self, outcome: &str) {
        let (metrics, meters) = &mut *self.metrics.borrow_mut();
        metrics.count_view(outcome);
        // Why immediately: the control listener's plugin has no ticks.
        meters.flush(metrics);
    }
}

/// Outcome of a view that was not taken, and why.
pub fn outcome_of(not_taken: &NotTaken) -> (&'static str, String) {
    match not_taken {
        NotTaken::Malformed(error) => ("malformed", format!("not a view: {error}")),
        NotTaken::Older(refusal) => ("older", refusal.error.clone()),
        NotTaken::Baseless(refusal) => ("baseless", refusal.error.clone()),
        NotTaken::Store(error) => ("unavailable", error.to_string()),
    }
}
