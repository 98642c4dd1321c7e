//! Use of the bounds of a pool and its lanes, for those who set them.

use super::Known;
use super::sight::Scene;
use crate::ledger::{Backlog, Counted};
use crate::policy::{Lanes, Pool};
use crate::units::Time;
use crate::view::ViewSummary;

/// The bound of a lane whose limit is N, 0 while its gate is shut.
pub const DISPATCH_BUDGET: &str = "dispatch_budget";

/// One bound and what there is of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Position of the lane that it bounds; `None` for one of the pool.
    pub lane: Option<usize>,
    /// Name of its field in the configuration.
    pub bound: &'static str,
    /// Amount that counts against the bound now.
    pub used: u64,
    /// The most that is allowed.
    pub limit: u64,
}

impl Used {
    /// The part of the bound that is used, in thousandths: 1000 and more is all of it.
    #[must_use]
    pub fn permille(&self) -> u64 {
        self.used.saturating_mul(1_000).checked_div(self.limit).unwrap_or(1_000)
    }
}

/// Every bound of a pool and of the lanes in front of it.
#[must_use]
pub fn bounds(pool: &Pool, lanes: &Lanes, view: Option<&ViewSummary>, counted: Counted<'_>, now: Time) -> Vec<Used> {
    let Counted { ledger, members } = counted;
    let scene = Scene::of(pool, lanes, Known { view, ..Known::default() }, counted, now);
    let held = ledger.held(members).requests;
    let is_of_pool = |bound: &'static str| move |limit: u64| Used { lane: None, bound, used: held, limit };
    let of_all = pool.max_in_flight.as_ref().map(|cap| cap.limit).map(is_of_pool("max_in_flight"));
    let of_workers = scene.of_workers().map(is_of_pool("max_in_flight_per_worker"));
    let mut all: Vec<Used> = of_all.into_iter().chain(of_workers).collect();
    let waiting = ledger.waiting(members).fold(Backlog::default(), |sum, (_, backlog)| sum.plus(backlog));
    let of_queue = |bound, used, limit| Used { lane: None, bound, used, limit };
    let requests = pool.queue.max_requests.as_ref();
    all.extend(requests.map(|cap| of_queue("queue.max_requests", waiting.requests, cap.limit)));
    all.push(of_queue("queue.max_bytes", waiting.bytes, pool.queue.max_bytes.limit));
    for (lane, _, limit) in scene.reserves() {
        let used = ledger.held_by(lane.key, members).requests;
        all.push(Used { lane: Some(lane.position), bound: "reserve", used, limit });
    }
    for lane in lanes.iter() {
        let of_lane = |bound, used, limit| Used { lane: Some(lane.position), bound, used, limit };
        if let Some(queue) = &lane.queue {
            let waiting = ledger.backlog(lane.key, members);
            all.push(of_lane("queue.max_requests", waiting.requests, queue.max_requests.limit));
            let tokens = queue.max_tokens.as_ref().map(|cap| ("queue.max_tokens", waiting.tokens.0, cap.limit));
            let bytes = queue.max_bytes.as_ref().map(|cap| ("queue.max_bytes", waiting.bytes, cap.limit));
            all.extend(tokens.into_iter().chain(bytes).map(|(bound, used, limit)| of_lane(bound, used, limit)));
        }
        if let Some(budget) = &lane.dispatch_budget {
            let (used, limit) = scene.budget_in_use(budget);
            all.push(of_lane(DISPATCH_BUDGET, used, limit));
        }
    }
    all
}
