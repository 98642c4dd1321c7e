//! Bounds of a queue: whether one more has room, and how much is too much where it has none.

use std::sync::Arc;

use super::rate_wait::RateWait;
use crate::decide::flow_of;
use crate::ledger::{Backlog, Counted, LaneKey, Ledger, Report};
use crate::members::{Holder, Members};
use crate::outcome::{Detail, Limit, Reason, Refusal, Retry};
use crate::policy::{Cap, PoolQueue, QueueLimits};
use crate::queue::Waiter;
use crate::units::{Millis, Tokens};

/// A queue without room for one more.
pub(super) struct Full {
    pub(super) refusal: Refusal,
    /// Amount for which other waiters may give way.
    pub(super) excess: Option<Backlog>,
    /// The rate that the newcomer is to wait for, where what waits for rates has its half of the queue.
    pub(super) by_rate: Option<RateWait>,
}

impl Full {
    fn boxed(refusal: Refusal, excess: Option<Backlog>) -> Box<Self> {
        Box::new(Self { refusal, excess, by_rate: None })
    }
}

/// Amount beyond what may wait of a lane.
pub(super) fn beyond(all: Backlog, limits: &QueueLimits) -> Backlog {
    let excess = |amount: u64, cap: Option<&Cap>| cap.map_or(0, |cap| amount.saturating_sub(cap.limit));
    Backlog {
        requests: excess(all.requests, Some(&limits.max_requests)),
        tokens: Tokens(excess(all.tokens.0, limits.max_tokens.as_ref())),
        bytes: excess(all.bytes, limits.max_bytes.as_ref()),
        oldest: all.oldest,
        aside: 0,
    }
}

/// Amount beyond what may wait for a pool.
pub(super) fn beyond_pool(all: Backlog, limits: &PoolQueue) -> Backlog {
    let requests = limits.max_requests.as_ref().map_or(0, |cap| all.requests.saturating_sub(cap.limit));
    let bytes = all.bytes.saturating_sub(limits.max_bytes.limit);
    Backlog { requests, bytes, ..Backlog::default() }
}

/// Room that a newcomer finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// There is room.
    Free,
    /// Waiters of lower lanes are to give way for it.
    OfLower,
}

/// Room of a newcomer that `mine` and `bytes`, those of its tenant here, count already.
///
/// # Errors
/// The queue is full, and how much is too much.
pub(super) fn has_room(
    Counted { ledger, members }: Counted<'_>,
    holder: Holder,
    waiter: &Waiter,
    mine: &Report,
    bytes: u64,
    limits: &QueueLimits,
) -> Result<Room, Box<Full>> {
    let lane = waiter.lane.key;
    let waiting = all_waiting(ledger, members, holder, mine);
    let sum_of = |is_it: &dyn Fn(LaneKey) -> bool| {
        let some: Vec<(LaneKey, Backlog)> = waiting.iter().copied().filter(|(other, _)| is_it(*other)).collect();
        sum(&some)
    };
    let of_lane = sum_of(&|other| other == lane);
    let bounds = [
        (Some(&limits.max_requests), of_lane.requests, "requests waiting"),
        (limits.max_tokens.as_ref(), of_lane.tokens.0, "tokens waiting"),
        (limits.max_bytes.as_ref(), of_lane.bytes, "bytes waiting"),
    ];
    if let Some(full) = full_of(&bounds) {
        return Err(Full::boxed(full, Some(beyond(of_lane, limits))));
    }
    let of_pool = &waiter.pool.queue;
    let elsewhere = ledger.large(members).filter(|(other, _)| *other != holder);
    let elsewhere = elsewhere.filter(|(_, large)| large.flow == flow_of(&waiter.tenant_key));
    let of_tenant = elsewhere.fold(bytes, |sum, (_, large)| sum.saturating_add(large.bytes));
    // Why the first is let in: one body may be larger than a quarter of a small bound.
    if of_tenant > of_pool.bytes_of_a_tenant() && of_tenant > waiter.kept_bytes {
        let cap = Cap { limit: of_pool.bytes_of_a_tenant(), knob: Arc::clone(&of_pool.max_bytes.knob) };
        let full = refusal(&cap, of_tenant, "bytes waiting of one tenant, which may have a quarter");
        return Err(Full::boxed(full, None));
    }
    let all = sum(&waiting);
    let Some(full) = full_of_pool(of_pool, all) else { return Ok(Room::Free) };
    let excess = beyond_pool(all, of_pool);
    let is_lower = |other| waiter.lanes.at(waiter.lanes.position_of(other)).priority < waiter.lane.priority;
    let lower = sum_of(&is_lower);
    if lower.requests >= excess.requests && lower.bytes >= excess.bytes && lower.requests > 0 {
        return Ok(Room::OfLower);
    }
    Err(Full::boxed(full, Some(excess)))
}

/// Waiters of other VMs by their word, and of this one as it will be.
pub(super) fn all_waiting(
    ledger: &Ledger,
    members: &Members,
    holder: Holder,
    mine: &Report,
) -> Vec<(LaneKey, Backlog)> {
    let elsewhere = ledger.waiting_by_vm(members).filter(|(other, ..)| *other != holder);
    elsewhere.map(|(_, lane, backlog)| (lane, backlog)).chain(mine.waiting.iter().copied()).collect()
}

pub(super) fn sum(waiting: &[(LaneKey, Backlog)]) -> Backlog {
    waiting.iter().fold(Backlog::default(), |sum, (_, backlog)| sum.plus(*backlog))
}

pub(super) fn full_of_pool(limits: &PoolQueue, all: Backlog) -> Option<Refusal> {
    let requests = (limits.max_requests.as_ref(), all.requests, "requests waiting for the pool");
    full_of(&[requests, (Some(&limits.max_bytes), all.bytes, "bytes waiting for the pool")])
}

pub(super) fn full_of(bounds: &[(Option<&Cap>, u64, &'static str)]) -> Option<Refusal> {
    let (cap, measured, unit) =
        bounds.iter().find(|(cap, measured, _)| cap.is_some_and(|cap| *measured > cap.limit))?;
    Some(refusal((*cap)?, *measured, unit))
}

fn refusal(cap: &Cap, measured: u64, unit: &'static str) -> Refusal {
    let limit = Some(Limit { knob: Arc::clone(&cap.knob), measured, allowed: cap.limit, unit });
    Refusal { reason: Reason::QueueFull, limit, detail: Detail::None, retry: Retry::After(Millis(0)), place: None }
}
