//! Counters and gauges.
//!
//! A name carries its labels as `label=.=value;.;` before the metric; the proxy's `stats_tags` take them off. Label
//! values come from the configuration alone.

use std::cell::RefCell;
use std::collections::BTreeMap;

use admission_core::ledger::Ledger;
use admission_core::members::Members;
use admission_core::policy::Policy;
use admission_core::store::{self, Store};
use admission_core::units::Time;
use admission_core::view::ViewSummary;
use once_cell::unsync::OnceCell;

use crate::host;
use crate::store::SharedData;

/// Outcome of a request that was let in; the others are the reasons of refusals.
pub const ADMITTED: &str = "admitted";

/// Label value where a request was refused before its pool was known.
pub const NONE: &str = "none";

/// Requests decided, by pool, lane and outcome. One that is let in by a guess counts once its body has been read.
const REQUESTS: &str = "sluice_requests_total";
/// Requests in flight, by pool.
const IN_FLIGHT: &str = "sluice_in_flight_requests";
/// Tokens in flight, by pool.
const TOKENS_IN_FLIGHT: &str = "sluice_in_flight_tokens";
/// Age of the view, by pool.
const VIEW_AGE: &str = "sluice_view_age_ms";

/// A metric that is defined when it is first used: every definition costs the host an entry that stays.
#[derive(Default)]
struct Id(OnceCell<Option<u32>>);

/// The metrics of one plugin.
#[derive(Default)]
pub struct Metrics {
    ids: RefCell<BTreeMap<String, Id>>,
}

impl Metrics {
    /// Counts a decision.
    pub fn count(&self, pool: &str, lane: &str, outcome: &str) {
        let name = format!("pool=.={pool};.;lane=.={lane};.;outcome=.={outcome};.;{REQUESTS}");
        self.with(name, host::define_counter, host::increment);
    }

    /// Sets the gauges of every pool from the records, which is the truth whatever VM died.
    pub fn record_pools(&self, policy: &Policy, members: &Members, now: Time) {
        for pool in policy.pools() {
            let gauge = |metric: &str, value: u64| {
                let name = format!("pool=.={};.;{metric}", pool.name);
                self.with(name, host::define_gauge, |id| host::record(id, value));
            };
            if let Ok((ledger, _)) = store::read::<Ledger>(&SharedData, &pool.key) {
                let held = ledger.held(members);
                gauge(IN_FLIGHT, held.requests);
                gauge(TOKENS_IN_FLIGHT, held.tokens.0);
            }
            if let Some(view) = SharedData.read(&pool.view_key).0.and_then(|bytes| ViewSummary::decode(&bytes)) {
                gauge(VIEW_AGE, now.since(view.received).0);
            }
        }
    }

    fn with(&self, name: String, define: impl FnOnce(&str) -> Option<u32>, apply: impl FnOnce(u32)) {
        let mut ids = self.ids.borrow_mut();
        let entry = ids.entry(name);
        let defined = entry.key().clone();
        if let Some(id) = entry.or_default().0.get_or_init(|| define(&defined)) {
            apply(*id);
        }
    }
}
