//! What may be believed about a pool at one moment.

use std::cell::OnceCell;
use std::sync::Arc;

use super::{Known, advice};
use crate::config::StalePolicy;
use crate::endpoint::Open;
use crate::ledger::{Amount, Counted, Head, Ledger, Unseen};
use crate::members::Members;
use crate::outcome::{Detail, Limit, Reason, Refusal};
use crate::policy::{BudgetUnit, Cap, DispatchBudget, Lane, Lanes, Pool};
use crate::units::{Blocks, Millis, Time, Tokens};
use crate::view::{Freshness, ViewSummary, Workers};

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

/// Allowance of a lane with a dispatch budget.
pub(super) struct Allowance {
    /// N, in the budget's unit; `None` when the gate is shut.
    pub(super) allowed: Option<u64>,
    /// U, which counts against it.
    pub(super) unseen: Unseen,
}

/// Workers of a pool whose requests are steered, as they are now.
pub(super) struct Steering<'a> {
    /// Workers that may take a request; `None` where the choice is the proxy's.
    pub(super) open: Option<Vec<Open<'a>>>,
    /// Blocks of leases that the oldest numbers of the view may not show and those of their own worker do.
    pub(super) shown: Blocks,
}

/// A pool at one moment: what is configured, what is known of its workers, and what is held and waits.
pub(super) struct Scene<'a> {
    pub(super) pool: &'a Pool,
    pub(super) lanes: &'a Lanes,
    pub(super) sight: Sight<'a>,
    /// Each worker, in a pool whose requests are steered.
    pub(super) workers: Option<&'a Workers>,
    /// The request is one that can be.
    pub(super) can_be_steered: bool,
    /// Workers that read prompts, at least 1.
    pub(super) readers: u64,
    /// Proxies that share the pool, at least 1.
    pub(super) proxies: u64,
    pub(super) ledger: &'a Ledger,
    pub(super) members: &'a Members,
    pub(super) now: Time,
    /// Made once, when it is first needed.
    pub(super) steering: OnceCell<Steering<'a>>,
}

impl<'a> Scene<'a> {
    pub(super) fn of(
        pool: &'a Pool,
        lanes: &'a Lanes,
        known: Known<'a>,
        Counted { ledger, members }: Counted<'a>,
        now: Time,
    ) -> Self {
        let sight = Sight::of(known.view, pool, now);
        let Known { workers, can_be_steered, .. } = known;
        let (readers, proxies) = (known.readers(), known.proxies());
        Self {
            pool,
            lanes,
            sight,
            workers,
            can_be_steered,
            readers,
            proxies,
            ledger,
            members,
            now,
            steering: OnceCell::new(),
        }
    }

    /// The caps on requests in flight that hold now, and what they count.
    pub(super) fn caps(&self) -> impl Iterator<Item = (Cap, &'static str)> {
        let pool = self.pool;
        let per_worker = pool
            .max_in_flight_per_worker
            .as_ref()
            .zip(self.of_workers())
            .map(|(cap, limit)| (Cap { limit, knob: Arc::clone(&cap.knob) }, "requests on all workers"));
        pool.max_in_flight.clone().map(|cap| (cap, "requests")).into_iter().chain(per_worker)
    }

    /// Requests in flight that the workers may have by the cap of each.
    pub(super) fn of_workers(&self) -> Option<u64> {
        let pool = self.pool;
        let workers = match self.sight {
            Sight::Fresh(view) => Some(view.live_workers),
            // How many there were last is believed only where nothing better is configured.
            Sight::Stale(StalePolicy::LocalCaps, Some((view, _))) if pool.max_in_flight.is_none() => {
                Some(view.live_workers)
            }
            Sight::Stale(..) => None,
        };
        let cap = pool.max_in_flight_per_worker.as_ref();
        cap.zip(workers).map(|(cap, workers)| cap.limit.saturating_mul(u64::from(workers)))
    }

    /// C, the most requests in flight: the least of the pool's caps, else what the engines of the live workers run concurrently.
    pub(super) fn capacity(&self) -> Option<u64> {
        self.caps().map(|(cap, _)| cap.limit).min().or_else(|| self.last_known_capacity())
    }

    /// Requests that the workers of the last view take, of whatever age it is.
    fn last_known_capacity(&self) -> Option<u64> {
        let (Sight::Fresh(view) | Sight::Stale(_, Some((view, _)))) = self.sight else { return None };
        let cap = self.pool.max_in_flight_per_worker.as_ref();
        cap.map(|cap| cap.limit.saturating_mul(u64::from(view.live_workers))).or(view.batch)
    }

    /// No limit of the lane that it counts as keeps a waiter from starting.
    pub(super) fn is_open_for(&self, head: &Head) -> bool {
        let lane = self.lanes.at(self.lanes.position_of(head.band));
        let amount = Amount { requests: 1, tokens: head.tokens, ..Amount::default() };
        self.below_ceiling(lane).is_ok()
            && self.within_dispatch_budget(lane, amount, head.bytes).is_ok()
            // Why without its own prompt: those behind it are not to pass it for being shorter.
            && self.reads_prompts_in_time(lane, Tokens(0)).is_ok()
            && self.leaves_reserved(self.keeps_as(head)).is_ok()
    }

    /// The lane whose higher ones a waiter leaves free what is kept for them.
    pub(super) fn keeps_as(&self, head: &Head) -> &'a Lane {
        self.lanes.keeps_as(self.lanes.position_of(head.lane), self.lanes.position_of(head.band))
    }

    pub(super) fn below_ceiling(&self, lane: &Lane) -> Result<(), Refusal> {
        let (Sight::Fresh(view), Some(ceiling)) = (self.sight, &lane.ceiling) else { return Ok(()) };
        // Why in millionths: sums of shares end a little below the number that they are meant to reach.
        let is_at = |saturation: &f64| ppm(*saturation) >= ppm(ceiling.saturation);
        let Some(saturation) = self.saturation(view).filter(is_at) else {
            return Ok(());
        };
        let per_mille = |saturation: f64| (saturation * 1_000.0).round() as u64;
        let limit = Limit {
            knob: Arc::clone(&ceiling.knob),
            measured: per_mille(saturation),
            allowed: per_mille(ceiling.saturation).saturating_sub(1),
            unit: "‰ of saturation",
        };
        let retry = advice(Some(self.ledger.counted(self.members)), 1);
        Err(Refusal { reason: Reason::Saturated, limit: Some(limit), detail: Detail::None, retry, place: None })
    }

    /// Saturation with what the workers cannot have shown yet: `S + U / full`, where U is what this proxy has
    /// started since the scrape less what has ended, in what the saturation counts. At least `held / full` in requests, and 0.
    fn saturation(&self, view: &ViewSummary) -> Option<f64> {
        let unseen = self.ledger.unseen(view.credit, self.members);
        let by_requests = view.full_requests.map(|full| unseen.requests as f64 / full as f64);
        let by_blocks = view.full_blocks.map(|full| self.unseen_blocks(view) as f64 / full as f64);
        // Why the larger: a detector that counts both is as full as the worse of the two.
        let more = by_requests.into_iter().chain(by_blocks).reduce(f64::max).unwrap_or(0.0);
        // Why at least what is held: a worker shows the end of a request before the proxy does, and then it is missing in S and in U.
        let held = || self.ledger.held(self.members).requests;
        let at_least = view.full_requests.map_or(0.0, |full| held() as f64 / full as f64);
        view.saturation.map(|saturation| (saturation + more).max(at_least))
    }

    /// A lane with a dispatch budget starts a request of size r while `U + r ≤ N`, N = `max × (D − baseline) ÷ proxies`, and
    /// `r ≤ max × (1 − held ÷ C − baseline)`; and one in any case while D is above the baseline and the lane holds nothing.
    pub(super) fn within_dispatch_budget(&self, lane: &Lane, amount: Amount, bytes: u64) -> Result<(), Refusal> {
        let Some(budget) = &lane.dispatch_budget else { return Ok(()) };
        let Allowance { allowed, unseen } = self.allowance(budget);
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let (unseen, size, unit) = match budget.unit {
            BudgetUnit::Requests => (unseen.requests, amount.requests, "requests"),
            BudgetUnit::Tokens => (signed(unseen.tokens.0), amount.tokens.0, "tokens"),
            BudgetUnit::Bytes => (signed(unseen.bytes), bytes, "bytes"),
        };
        // Why beside it what is held: a worker shows the end of a request before the proxy does, and then it is missing in D and
        // in U.
        let by_held = dispatch_budget(self.most(budget), self.spare_of_held(), budget.baseline_ppm, 1);
        let with_this = unseen.saturating_add(signed(size));
        let holds_nothing = || self.ledger.held_by(lane.key, self.members).requests == 0;
        let fits = |allowed| with_this <= signed(allowed) && by_held.is_some_and(|by_held| size <= by_held);
        if allowed.is_some_and(|allowed| fits(allowed) || holds_nothing()) {
            return Ok(());
        }
        let (measured, allowed) = (u64::try_from(with_this).unwrap_or(0), allowed.unwrap_or(0));
        let limit = Limit { knob: Arc::clone(&budget.knob), measured, allowed, unit };
        let retry = advice(Some(self.ledger.counted(self.members)), 1);
        let detail = if self.tells_nothing() { Detail::Fixed(TELLS_NOTHING) } else { Detail::None };
        Err(Refusal { reason: Reason::DispatchBudget, limit: Some(limit), detail, retry, place: None })
    }

    /// N of a budget, and what is to be counted against it.
    pub(super) fn allowance(&self, budget: &DispatchBudget) -> Allowance {
        let (unseen, proxies) = match self.sight {
            Sight::Fresh(view) => {
                // Why nothing unseen where nothing was measured: D is then 1 − held ÷ C, of this moment.
                let unseen = if self.is_measured(view) {
                    self.ledger.unseen(view.credit, self.members)
                } else {
                    Unseen::default()
                };
                (unseen, u64::from(view.other_proxies).saturating_add(1))
            }
            // Why nothing unseen: D is then measured by what is held now.
            Sight::Stale(_, last) => {
                (Unseen::default(), last.map_or(1, |(view, _)| u64::from(view.other_proxies).saturating_add(1)))
            }
        };
        let allowed = dispatch_budget(self.most(budget), self.spare_ppm(), budget.baseline_ppm, proxies);
        Allowance { allowed, unseen }
    }

    /// U of a budget, at least 0, and N, 0 while the gate is shut; in the budget's unit.
    pub(super) fn budget_in_use(&self, budget: &DispatchBudget) -> (u64, u64) {
        let Allowance { allowed, unseen } = self.allowance(budget);
        let used = match budget.unit {
            BudgetUnit::Requests => u64::try_from(unseen.requests).unwrap_or(0),
            BudgetUnit::Tokens => unseen.tokens.0,
            BudgetUnit::Bytes => unseen.bytes,
        };
        (used, allowed.unwrap_or(0))
    }

    fn most(&self, budget: &DispatchBudget) -> u64 {
        let is_open = matches!(self.sight, Sight::Stale(StalePolicy::Admit, _));
        budget.max.or_else(|| self.capacity()).unwrap_or(if is_open { u64::MAX } else { 0 })
    }

    /// D, in millionths: the share of the pool that is left for work that can wait.
    fn spare_ppm(&self) -> u64 {
        match self.sight {
            Sight::Fresh(view) if self.ledger.refused_under(view.stamp()) => 0,
            Sight::Fresh(view) => match view.dispatch_budget {
                Some(budget) => ppm(budget).min(WHOLE_PPM),
                None => self.least_spare_ppm(view),
            },
            Sight::Stale(StalePolicy::Reject, _) => 0,
            Sight::Stale(StalePolicy::Admit, _) => self.spare_of_held(),
            Sight::Stale(StalePolicy::LocalCaps, _) => self.capacity().map_or(0, |_| self.spare_of_held()),
        }
    }

    /// Share of the pool, in millionths, that this proxy does not hold itself; all of it where the capacity is not known.
    fn spare_of_held(&self) -> u64 {
        let held = self.ledger.held(self.members).requests;
        self.capacity().map_or(WHOLE_PPM, |capacity| spare_of(held, capacity))
    }

    /// The least that is left by what is known: by the saturation, by the requests in the workers, and by those that wait in
    /// proxies.
    fn least_spare_ppm(&self, view: &ViewSummary) -> u64 {
        let by_saturation = view.saturation.map(|saturation| WHOLE_PPM.saturating_sub(ppm(saturation)));
        let capacity = self.capacity();
        let by_workers = view.in_hand.zip(capacity).map(|(in_hand, capacity)| spare_of(in_hand, capacity));
        let demand = self.ledger.demand(self.members).saturating_add(view.demand_elsewhere);
        let by_demand = capacity.map(|capacity| spare_of(demand, capacity));
        // Why what is held, where workers tell nothing: their caps bound a pool whose metrics pages have changed, as they do one without
        // a view. An empty line is no word on how full the workers are.
        let known =
            by_saturation.into_iter().chain(by_workers).min().or_else(|| capacity.map(|_| self.spare_of_held()));
        known.map_or(0, |known| by_demand.map_or(known, |demand| known.min(demand)))
    }

    /// True where the view says how full the workers are, or the sidecar has measured D itself.
    fn is_measured(&self, view: &ViewSummary) -> bool {
        let by_workers = || view.in_hand.is_some() && self.capacity().is_some();
        view.dispatch_budget.is_some() || view.saturation.is_some() || by_workers()
    }

    /// True where the view is fresh and says of the pool neither how full it is nor how much it can run.
    fn tells_nothing(&self) -> bool {
        matches!(self.sight, Sight::Fresh(view) if !self.is_measured(view)) && self.capacity().is_none()
    }
}

/// Why a lane with a dispatch budget starts nothing that is no fault of the load.
const TELLS_NOTHING: &str =
    "no worker's metrics tell how full it is, and the pool has neither max_in_flight nor max_in_flight_per_worker";

/// A share in millionths.
fn ppm(share: f64) -> u64 {
    (share * WHOLE_PPM as f64).round() as u64
}

/// 1 − `count ÷ capacity` in millionths, at least 0.
fn spare_of(count: u64, capacity: u64) -> u64 {
    let used = u128::from(count).saturating_mul(u128::from(WHOLE_PPM)).checked_div(u128::from(capacity));
    let used = used.and_then(|used| u64::try_from(used).ok()).unwrap_or(WHOLE_PPM);
    WHOLE_PPM.saturating_sub(used)
}

/// N, what all proxies together may start of `max` when D is `spare_ppm`, shared among `proxies` and rounded down; `None` when
/// the gate is shut.
fn dispatch_budget(max: u64, spare_ppm: u64, baseline_ppm: u64, proxies: u64) -> Option<u64> {
    let share = spare_ppm.checked_sub(baseline_ppm).filter(|share| *share > 0)?;
    let whole = u128::from(WHOLE_PPM).saturating_mul(u128::from(proxies.max(1)));
    // Why a thousandth more: D is rounded, and what is exactly one place must be one.
    let allowed =
        u128::from(max).saturating_mul(u128::from(share)).saturating_add(u128::from(WHOLE_PPM / 1_000)) / whole;
    Some(u64::try_from(allowed).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As published for llm-d's asynchronous processor.
    #[test]
    fn the_dispatch_budget_is_as_published() {
        let (d, b) = (700_000, 100_000);
        assert_eq!(dispatch_budget(5 * 10, d, b, 1), Some(30), "five pods of ten, 0.3 in use, baseline 0.1");
        let bytes = dispatch_budget(1024 << 10, d, b, 1).unwrap();
        assert!(((600 << 10)..(700 << 10)).contains(&bytes), "614.4 KiB: 600 go, 100 more are held");
        assert_eq!(bytes, (1024 << 10) * 6 / 10);
        assert_eq!(dispatch_budget(50, b, b, 1), None, "D = B");
        assert_eq!(dispatch_budget(50, 0, b, 1), None, "metrics are missing");
        assert_eq!(dispatch_budget(1, 100_001, b, 1), Some(0), "D > B: the one request in any case is granted apart");
        assert_eq!(dispatch_budget(u64::MAX, WHOLE_PPM, 0, 1), Some(u64::MAX));
    }
}
