//! Requests that wait for a rate.
//!
//! Each starts when the rate is earned for all who wait for it and come before: those of its tenant for a tenant's, of every tenant
//! for a pool's, each in its lane or a higher one. So a request knows when it joins how long it will wait, and joins only if it has the patience.

use std::sync::Arc;

use super::elsewhere::tenant_at;
use super::full::{Full, beyond, beyond_pool, full_of};
use super::rate_wait::RateWait;
use super::{Request, Vm};
use crate::decide::{Held, Known, Rules, Turn, lacks_more_than_rates};
use crate::ledger::{Backlog, Cost, Counted, LaneKey, Ledger, Queued, Report};
use crate::members::{Holder, Members};
use crate::outcome::{Reason, Refusal, Retry};
use crate::policy::{Cap, PoolQueue, QueueLimits};
use crate::queue::{Queue, Waiter};
use crate::store::{self, Store};
use crate::units::{Millis, Time};

/// Amounts of which those that wait for rates may have half of a queue's bound.
const HALVES: [&str; 3] = [
    "requests waiting for rates, which may be half",
    "tokens waiting for rates, which may be half",
    "bytes waiting for rates, which may be half",
];

impl Vm {
    /// The wait for a rate that a refused request is in for, whatever refused it; `None` where no rate keeps it.
    pub(super) fn rate_wait(
        &self,
        store: &impl Store,
        waiter: &Waiter,
        refused: &Refusal,
        (turn, known, held): (&Turn<'_>, Known<'_>, Held<'_>),
        now: Time,
    ) -> Option<RateWait> {
        let request = waiter.request();
        if !request.rules.has_rates_that_wait() {
            return None;
        }
        // Why not the pool's in any case: those in line may wait for a place, and this request go before most of these when it has its turn.
        let by_pool = match refused.reason {
            Reason::PoolRequestRate => true,
            Reason::OthersFirst => {
                let bound = self.behind_others(store, waiter, Some(refused.clone()), now);
                bound.is_some_and(|bound| bound.reason == Reason::PoolRequestRate)
            }
            // What refused it comes before the pool's rate in a decision, and says nothing of that.
            _ => {
                let rate = request.rules.pool.rates.requests.as_ref().filter(|rate| rate.waits);
                rate.is_some_and(|rate| rate.allows(held.pool.spent(&request.rules.pool.rates).0, 1, now).is_err())
            }
        };
        let (reason, time) = self.time_by_rates(&request, held, by_pool, now)?;
        let is_all = lacks_more_than_rates(&waiter.ask, request.rules, turn, known, held, now).is_none();
        Some(RateWait { reason, time, is_all })
    }

    /// The rate that lets a request start last which joins now, and the time until it does, of its tenant's and, with `by_pool`, its pool's.
    fn time_by_rates(
        &self,
        request: &Request<'_>,
        held: Held<'_>,
        by_pool: bool,
        now: Time,
    ) -> Option<(Reason, Millis)> {
        let holder = self.membership.holder?;
        let own = Queue::queued(self.room.queues.values(), request.tenant_key);
        let of_tenant = by_tenant(request, held.tenant, &self.membership.members, holder, &own, now);
        let of_pool = by_pool.then(|| {
            let queue = self.room.queues.get(&*request.rules.pool.key);
            let in_line = queue.map(|queue| queue.report().waiting).unwrap_or_default();
            (Reason::PoolRequestRate, time_by_pool(request, held.pool, &self.membership.members, holder, &in_line, now))
        });
        let all = of_tenant.into_iter().chain(of_pool).filter(|(_, time)| *time > Millis(0));
        all.max_by_key(|(_, time)| *time)
    }

    /// The refusal of a request by a rate that may be waited for, with the time at which the rate allows it behind those that wait.
    pub(super) fn behind_waiters(
        &self,
        store: &impl Store,
        request: &Request<'_>,
        refusal: Refusal,
        now: Time,
    ) -> Refusal {
        if !refusal.reason.is_of_rate() || !request.rules.may_be_waited_for(refusal.reason) {
            return refusal;
        }
        let tenant = tenant_at(store, request.tenant_key, &self.membership.members);
        let (Ok(tenant), Ok((pool, _))) = (tenant, store::read::<Ledger>(store, &request.rules.pool.key)) else {
            return refusal;
        };
        let held = Held { tenant: &tenant, pool: &pool, members: &self.membership.members };
        let by_pool = refusal.reason == Reason::PoolRequestRate;
        match self.time_by_rates(request, held, by_pool, now) {
            Some((_, time)) => Refusal { retry: Retry::After(time), ..refusal },
            None => refusal,
        }
    }
}

/// Time until each of a tenant's budgets lets a request start, behind what waits of the tenant: in other VMs by their word, and here.
fn by_tenant(
    request: &Request<'_>,
    tenant: &Ledger,
    members: &Members,
    holder: Holder,
    own: &[Queued],
    now: Time,
) -> Vec<(Reason, Millis)> {
    let (rates, cost) = (&request.rules.tenant.rates, request.ask.cost());
    let elsewhere = tenant.queued(members).filter(|(other, _)| *other != holder).map(|(_, queued)| queued);
    let before = elsewhere.chain(own.iter().copied()).filter(|queued| comes_before(request.rules, queued.lane));
    let before = before.fold(Cost::default(), |sum, queued| sum.plus(queued.cost));
    let (requests, tokens) = tenant.spent(rates);
    let each = [
        (Reason::TenantRequestRate, &rates.requests, requests, before.requests, cost.requests),
        (Reason::TenantTokenRate, &rates.tokens, tokens, before.tokens.0, cost.tokens.0),
    ];
    let waits = each.into_iter().filter_map(|(reason, rate, spent, before, amount)| {
        let rate = rate.as_ref().filter(|rate| rate.waits)?;
        Some((reason, rate.wait_behind(spent, before, amount, now)))
    });
    waits.collect()
}

/// Time until a pool's rate lets a request start, behind what is in line.
pub(super) fn time_by_pool(
    request: &Request<'_>,
    pool: &Ledger,
    members: &Members,
    holder: Holder,
    own: &[(LaneKey, Backlog)],
    now: Time,
) -> Millis {
    let rates = &request.rules.pool.rates;
    let Some(rate) = rates.requests.as_ref().filter(|rate| rate.waits) else { return Millis(0) };
    let elsewhere = pool.waiting_by_vm(members).filter(|(other, ..)| *other != holder);
    let all = elsewhere.map(|(_, lane, backlog)| (lane, backlog)).chain(own.iter().copied());
    let before = all.filter(|(lane, _)| comes_before(request.rules, *lane)).map(|(_, backlog)| backlog.in_line());
    rate.wait_behind(pool.spent(rates).0, before.fold(0, u64::saturating_add), 1, now)
}

/// True for a lane whose waiters come before a request, or may: its own, and those of as high a priority or a higher one.
fn comes_before(rules: Rules<'_>, lane: LaneKey) -> bool {
    rules.lanes.level_of(lane) <= rules.lane.level
}

/// Lets those that wait for rates take half of each bound, with a newcomer among them that `mine` counts already; the first has a place in any
/// case. Of the pool's bounds, those of lower lanes leave it their places.
///
/// # Errors
/// The queue is full for those that wait for rates, and how much is too much.
// Why: a rate keeps its waiters for as long as it takes, and is no reason to turn a request away that lacks no more than a place for a moment.
pub(super) fn within_half(
    Counted { ledger, members }: Counted<'_>,
    holder: Holder,
    waiter: &Waiter,
    by_rate: RateWait,
    mine: &Report,
    limits: &QueueLimits,
) -> Result<(), Box<Full>> {
    let elsewhere = ledger.rated(members).filter(|(other, ..)| *other != holder);
    let rated: Vec<_> = elsewhere.map(|(_, lane, rated)| (lane, rated)).chain(mine.rated.iter().copied()).collect();
    let sum = |chosen: &dyn Fn(LaneKey) -> bool| {
        let chosen = rated.iter().filter(|(lane, _)| chosen(*lane));
        chosen.fold(Backlog::default(), |sum, (_, rated)| sum.plus(*rated))
    };
    let (of_lane, of_pool) = (sum(&|lane| lane == waiter.lane.key), sum(&|lane| comes_before(waiter.rules(), lane)));
    let half = |cap: &Cap| Cap { limit: cap.limit / 2, knob: Arc::clone(&cap.knob) };
    let limits = QueueLimits {
        max_requests: half(&limits.max_requests),
        max_tokens: limits.max_tokens.as_ref().map(half),
        max_bytes: limits.max_bytes.as_ref().map(half),
        ..limits.clone()
    };
    let queue = &waiter.pool.queue;
    let queue = PoolQueue { max_requests: queue.max_requests.as_ref().map(half), max_bytes: half(&queue.max_bytes) };
    let [requests, tokens, bytes] = HALVES;
    let in_lane = [
        (Some(&limits.max_requests), of_lane.requests, requests),
        (limits.max_tokens.as_ref(), of_lane.tokens.0, tokens),
        (limits.max_bytes.as_ref(), of_lane.bytes, bytes),
    ];
    let in_pool =
        [(queue.max_requests.as_ref(), of_pool.requests, requests), (Some(&queue.max_bytes), of_pool.bytes, bytes)];
    let of_lane = (full_of(&in_lane), beyond(of_lane, &limits), of_lane.requests);
    let of_pool = (full_of(&in_pool), beyond_pool(of_pool, &queue), of_pool.requests);
    for (full, excess, requests) in [of_lane, of_pool] {
        if let Some(refusal) = full.filter(|_| requests > 1) {
            return Err(Box::new(Full { refusal, excess: Some(excess), by_rate: Some(by_rate) }));
        }
    }
    Ok(())
}
