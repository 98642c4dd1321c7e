//! What may be believed about a pool at one moment.

use std::sync::Arc;

use super::advice;
use crate::config::StalePolicy;
use crate::ledger::TallyKey;
use crate::ledger::{Amount, Head, Ledger};
use crate::members::Members;
use crate::outcome::{Detail, Limit, Reason, Refusal};
use crate::policy::{BudgetUnit, Cap, Lane, Lanes, Pool};
use crate::units::{Millis, Time};
use crate::view::{Freshness, ViewSummary};

/// All of a saturation, a budget or a share.
const WHOLE_PPM: u64 = 1_000_000;

/// What may be believed about the workers.
#[derive(Clone, Copy)]
pub(super) enum Sight<'a> {
    /// A view that is young enough.
    Fresh(&'a ViewSummary),
    /// An old view and its age, or none, under this policy.
    Stale(StalePolicy, Option<(&'a ViewSummary, Millis)>),
}

impl<'a> Sight<'a> {
    pub(super) fn of(view: Option<&'a ViewSummary>, pool: &Pool, now: Time) -> Self {
        let Some(view) = view else { return Self::Stale(pool.stale.then, None) };
        match view.freshness(now, pool.stale.hold) {
            Freshness::Fresh => Self::Fresh(view),
            Freshness::Stale(age) => Self::Stale(pool.stale.then, Some((view, age))),
        }
    }
}

/// A pool at one moment: what is configured, what is known of its workers, and what is held and waits.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) pool: &'a Pool,
    pub(super) lanes: &'a Lanes,
    pub(super) sight: Sight<'a>,
    pub(super) ledger: &'a Ledger,
    pub(super) members: &'a Members,
}

impl Scene<'_> {
    /// The caps on requests in flight that hold now, and what they count.
    pub(super) fn caps(&self) -> impl Iterator<Item = (Cap, &'static str)> {
        let pool = self.pool;
        let workers = match self.sight {
            Sight::Fresh(view) => Some(view.live_workers),
            // How many there were last is believed only where nothing better is configured.
            Sight::Stale(StalePolicy::LocalCaps, Some((view, _))) if pool.max_in_flight.is_none() => {
                Some(view.live_workers)
            }
            Sight::Stale(..) => None,
        };
        let per_worker = pool.max_in_flight_per_worker.as_ref().zip(workers).map(|(cap, workers)| {
            let limit = cap.limit.saturating_mul(u64::from(workers));
            (Cap { limit, knob: Arc::clone(&cap.knob) }, "requests on all workers")
        });
        pool.max_in_flight.clone().map(|cap| (cap, "requests")).into_iter().chain(per_worker)
    }

    /// Most requests in flight, where that is known now.
    pub(super) fn capacity(&self) -> Option<u64> {
        self.caps().map(|(cap, _)| cap.limit).min()
    }

    /// A lane holds less than its share of the pool.
    pub(super) fn is_below_reserve(&self, lane: &Lane) -> bool {
        let (Some(share), Some(capacity)) = (lane.reserve, self.capacity()) else { return false };
        let reserved = (capacity as f64 * share).ceil() as u64;
        self.ledger.held_by(lane.key, self.members).requests < reserved
    }

    /// No limit of its own lane keeps a waiter from starting.
    pub(super) fn is_open_for(&self, head: &Head) -> bool {
        let lane = self.lanes.at(self.lanes.position_of(head.lane));
        let amount = Amount { requests: 1, tokens: head.tokens, ..Amount::default() };
        self.below_ceiling(lane).is_ok() && self.within_dispatch_budget(lane, amount, head.bytes).is_ok()
    }

    pub(super) fn below_ceiling(&self, lane: &Lane) -> Result<(), Refusal> {
        let (Sight::Fresh(view), Some(ceiling)) = (self.sight, &lane.ceiling) else { return Ok(()) };
        let Some(saturation) = self.saturation(view).filter(|saturation| *saturation >= ceiling.saturation) else {
            return Ok(());
        };
        let per_mille = |saturation: f64| (saturation * 1_000.0).round() as u64;
        let limit = Limit {
            knob: Arc::clone(&ceiling.knob),
            measured: per_mille(saturation),
            allowed: per_mille(ceiling.saturation).saturating_sub(1),
            unit: "‰ of saturation",
        };
        let retry = advice(Some((self.ledger, self.members)), 1);
        Err(Refusal { reason: Reason::Saturated, limit: Some(limit), detail: Detail::None, retry, place: None })
    }

    /// Saturation with what the workers cannot have shown yet: `S + U / full`, where U is what this proxy has
    /// started since the scrape less what has ended, in what the saturation counts. Never below 0.
    fn saturation(&self, view: &ViewSummary) -> Option<f64> {
        let unseen = self.ledger.unseen(view.credit, self.members);
        let by_requests = view.full_requests.map(|full| unseen.requests as f64 / full as f64);
        let by_blocks = view.full_blocks.map(|full| unseen.blocks.0 as f64 / full as f64);
        // Why the larger: a detector that counts both is as full as the worse of the two.
        let more = by_requests.into_iter().chain(by_blocks).reduce(f64::max).unwrap_or(0.0);
        view.saturation.map(|saturation| (saturation + more).max(0.0))
    }

    /// A lane with a dispatch budget holds no more than that: `max × (D − baseline)`, and one request in any case as long as
    /// D is above the baseline. Without a fresh word on how full the pool is, and after a worker has refused, there is nothing
    /// to spare.
    pub(super) fn within_dispatch_budget(&self, lane: &Lane, amount: Amount, bytes: u64) -> Result<(), Refusal> {
        let Some(budget) = &lane.dispatch_budget else { return Ok(()) };
        let held = self.ledger.held_by(lane.key, self.members);
        let max = budget.max.or_else(|| self.capacity()).unwrap_or(0);
        let allowed = dispatch_budget(max, self.spare_ppm(), budget.baseline_ppm);
        let (with_this, unit) = match budget.unit {
            BudgetUnit::Requests => (held.requests.saturating_add(amount.requests), "requests"),
            BudgetUnit::Tokens => (held.tokens.plus(amount.tokens).0, "tokens"),
            BudgetUnit::Bytes => {
                let held = self.ledger.tallied(TallyKey::bytes_of(lane.key), self.members);
                (held.saturating_add(bytes), "bytes")
            }
        };
        if allowed.is_some_and(|allowed| with_this <= allowed || held.requests == 0) {
            return Ok(());
        }
        let allowed = allowed.unwrap_or(0);
        let limit = Limit { knob: Arc::clone(&budget.knob), measured: with_this, allowed, unit };
        let retry = advice(Some((self.ledger, self.members)), 1);
        Err(Refusal { reason: Reason::DispatchBudget, limit: Some(limit), detail: Detail::None, retry, place: None })
    }

    /// D, in millionths: what the pool has to spare.
    fn spare_ppm(&self) -> u64 {
        let Sight::Fresh(view) = self.sight else { return 0 };
        if self.ledger.refused_under(view.stamp()) {
            return 0;
        }
        let ppm = |share: f64| (share * WHOLE_PPM as f64).round() as u64;
        match (view.dispatch_budget, view.saturation) {
            (Some(budget), _) => ppm(budget).min(WHOLE_PPM),
            (None, Some(saturation)) => WHOLE_PPM.saturating_sub(ppm(saturation)),
            (None, None) => 0,
        }
    }
}

/// What a lane may hold of `max` when D is `spare_ppm`; `None` when the gate is shut.
///
/// N = `max` × (D − baseline), rounded down.
fn dispatch_budget(max: u64, spare_ppm: u64, baseline_ppm: u64) -> Option<u64> {
    let share = spare_ppm.checked_sub(baseline_ppm).filter(|share| *share > 0)?;
    let allowed = u128::from(max).saturating_mul(u128::from(share)) / u128::from(WHOLE_PPM);
    Some(u64::try_from(allowed).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As published for llm-d's asynchronous processor.
    #[test]
    fn the_dispatch_budget_is_as_published() {
        let (d, b) = (700_000, 100_000);
        assert_eq!(dispatch_budget(5 * 10, d, b), Some(30), "five pods of ten, 0.3 in use, baseline 0.1");
        let bytes = dispatch_budget(1024 << 10, d, b).unwrap();
        assert!(((600 << 10)..(700 << 10)).contains(&bytes), "614.4 KiB: 600 go, 100 more are held");
        assert_eq!(bytes, (1024 << 10) * 6 / 10);
        assert_eq!(dispatch_budget(50, b, b), None, "D = B");
        assert_eq!(dispatch_budget(50, 0, b), None, "metrics are missing");
        assert_eq!(dispatch_budget(1, 100_001, b), Some(0), "D > B: the one request in any case is granted apart");
        assert_eq!(dispatch_budget(u64::MAX, WHOLE_PPM, 0), Some(u64::MAX));
    }
}
