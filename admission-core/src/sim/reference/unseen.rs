//! Requests that the workers' numbers in a view cannot show yet.

use crate::units::Time;
use crate::view::ViewSummary;

use super::{Facts, Reference, RequestId, Sight};

/// Rounding of a saturation in the record of a view, and of a sum of shares.
const TINY: f64 = 1e-5;

impl Reference {
    /// Blocks of what has started since the scrapes of a view began and still runs.
    pub(super) fn unseen_blocks(&self, view: &ViewSummary, is_excused: &dyn Fn(&RequestId) -> bool) -> u64 {
        let seen = self.seen(view).0;
        let unseen = self.running.iter().filter(|(id, _)| {
            let at = self.admitted_at.get(id).copied().unwrap_or(0);
            at > seen && !is_excused(id)
        });
        unseen.map(|(_, facts)| facts.amount.blocks.0).sum()
    }

    /// Saturation by a view, and by what it cannot show.
    pub(super) fn saturation(&self, view: &ViewSummary, is_excused: &dyn Fn(&RequestId) -> bool) -> Option<f64> {
        let runs = self.running.keys().filter(|id| !is_excused(id)).count() as f64;
        let by_requests = view.full_requests.map(|full| (runs - self.seen(view).1 as f64) / full as f64);
        let by_blocks = view.full_blocks.map(|full| self.unseen_blocks(view, is_excused) as f64 / full as f64);
        let more = match (by_requests, by_blocks) {
            (Some(requests), Some(blocks)) => requests.max(blocks),
            (one, other) => one.or(other).unwrap_or(0.0),
        };
        view.saturation.map(|saturation| (saturation + more).max(0.0))
    }

    /// Requests that had been admitted, and those that ran, when the scrapes of a view began. A view that has seen more than was ever admitted has
    /// seen nothing of what runs.
    fn seen(&self, view: &ViewSummary) -> (u64, u64) {
        let admitted = view.credit.admitted.requests;
        if admitted > self.admitted { (0, 0) } else { (admitted, view.credit.held.unwrap_or(0)) }
    }

    /// A lane starts nothing at its ceiling, whatever has started since the scrape: all that started in one step, less the
    /// last of it, was below.
    pub(super) fn ceiling_holds(
        &self,
        started: &Facts,
        starts: &[(RequestId, &Facts)],
        sight: &Sight,
        now: Time,
    ) -> Result<(), String> {
        let rules = &self.rules[started.policy];
        let Some(ceiling) = rules.lane(started.lane).ceiling else { return Ok(()) };
        let is_excused = |id: &RequestId| self.excused.contains(id) || starts.iter().any(|(other, _)| other == id);
        let is_below = |view: &Option<ViewSummary>| {
            let fresh = view.as_ref().filter(|view| now.since(view.received).0 <= rules.hold_ms);
            fresh.and_then(|view| self.saturation(view, &is_excused)).is_none_or(|full| full < ceiling + TINY)
        };
        if is_below(&sight.view) || is_below(&self.view_before) {
            return Ok(());
        }
        Err(format!("the pool was at the ceiling of lane {}", started.lane))
    }
}
