//! Requests that wait for a rate.
//!
//! Each starts when the rate is earned for all who wait for it and come before: those of its tenant for a tenant's, of every tenant
//! for a pool's, each in its lane or a higher one. So a request knows when it joins how long it will wait, and joins only if it has the patience.

use std::rc::Rc;
use std::sync::Arc;

use super::Vm;
use crate::decide::{Held, Known, Turn, lacks_more_than_rates};
use crate::ledger::{Backlog, LaneKey, Ledger, Queued, Report};
use crate::members::{Holder, Members};
use crate::outcome::{Detail, Limit, Reason, Refusal, Retry};
use crate::policy::{Cap, QueueLimits};
use crate::queue::{Queue, Waiter};
use crate::store::Store;
use crate::units::{Millis, Time};

/// Promises that are kept in mind; of more, those that have come due are forgotten.
const MOST_PROMISES: usize = 1_024;

/// A wait for a rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateWait {
    /// The rate that is spent.
    reason: Reason,
    /// True where the request lacks nothing else, so the rates alone say how long it waits.
    is_all: bool,
}

impl Vm {
    /// The wait for a rate that a refused request is in for; `None` where it is in for another, or for none.
    pub(super) fn rate_wait(
        &self,
        store: &impl Store,
        waiter: &Waiter,
        refused: &Refusal,
        (turn, known, held): (&Turn<'_>, Known<'_>, Held<'_>),
        now: Time,
    ) -> Option<RateWait> {
        let rules = waiter.rules();
        if !rules.tenant.rates.may_be_waited_for() && !rules.pool.rates.may_be_waited_for() {
            return None;
        }
        let bound = self.behind_others(store, waiter, Some(refused.clone()), now)?;
        let reason = Some(bound.reason).filter(|reason| reason.is_of_rate() && rules.may_be_waited_for(*reason))?;
        let is_all = lacks_more_than_rates(&waiter.ask, rules, turn, known, held, now).is_none();
        Some(RateWait { reason, is_all })
    }

    /// Time until the rates let a request start that joins now.
    pub(super) fn time_by_rates(&self, waiter: &Waiter, (tenant, pool): (&Ledger, &Ledger), now: Time) -> Millis {
        let Some(holder) = self.holder else { return Millis(0) };
        let own = Queue::queued(self.queues.values(), &waiter.tenant_key);
        let queue = self.queues.get(&*waiter.pool.key);
        let in_line = queue.map(|queue| queue.report().waiting).unwrap_or_default();
        let by_tenant = by_tenant(waiter, tenant, (&self.members, holder, &own), now);
        by_tenant.max(by_pool(waiter, pool, (&self.members, holder, &in_line), now))
    }

    /// Advice for a caller that would have waited so long for a rate: the time at which its request would have started, and later than the
    /// last advice by the time in which the rate earns a request.
    pub(super) fn promise_by_rate(&mut self, waiter: &Waiter, by: RateWait, wait: Millis, now: Time) -> Millis {
        let cost = waiter.ask.cost();
        let (of_tenant, of_pool) = (&waiter.limits.rates, &waiter.pool.rates);
        let (name, rate, amount) = match by.reason {
            Reason::TenantRequestRate => (Rc::clone(&waiter.tenant_key), &of_tenant.requests, cost.requests),
            Reason::TenantTokenRate => (Rc::clone(&waiter.tenant_key), &of_tenant.tokens, cost.tokens.0),
            _ => (waiter.key(), &of_pool.requests, cost.requests),
        };
        // Each VM spaces its own callers, so that those of all come as fast as the rate is earned.
        let vms = self.members.iter().count() as u64;
        let each = rate.as_ref().map_or(Millis(0), |rate| rate.time_to_earn(amount));
        if self.promises.len() > MOST_PROMISES {
            self.promises.retain(|_, promises| promises.are_ahead(now));
        }
        let gap = Millis(each.0.saturating_mul(vms.max(1)));
        self.promises.entry((name, waiter.lane.key)).or_default().next(wait, gap, now)
    }
}

impl RateWait {
    /// The time until a request starts by its place in line and by the rates.
    pub(super) fn longer(self, by_place: Option<Millis>, by_rates: Millis) -> Millis {
        if self.is_all { by_rates } else { by_place.unwrap_or_default().max(by_rates) }
    }
}

/// Time until a request starts by its tenant's budgets, behind what waits of the tenant: in other VMs by their word, and here.
fn by_tenant(
    waiter: &Waiter,
    tenant: &Ledger,
    (members, holder, own): (&Members, Holder, &[Queued]),
    now: Time,
) -> Millis {
    let rates = &waiter.limits.rates;
    let elsewhere = tenant.queued(members).filter(|(other, _)| *other != holder).map(|(_, queued)| queued);
    let all = elsewhere.chain(own.iter().copied());
    let before = all
        .filter(|queued| comes_before(waiter, queued.lane))
        .fold(waiter.ask.cost(), |sum, queued| sum.plus(queued.cost));
    let (before, cost) = (before.beyond(waiter.ask.cost()), waiter.ask.cost());
    let (requests, tokens) = tenant.spent(rates);
    let each = [
        (&rates.requests, requests, before.requests, cost.requests),
        (&rates.tokens, tokens, before.tokens.0, cost.tokens.0),
    ];
    let waits = each.into_iter().filter_map(|(rate, spent, before, amount)| {
        let rate = rate.as_ref().filter(|rate| rate.waits)?;
        Some(rate.wait_behind(spent, before, amount, now))
    });
    waits.max().unwrap_or_default()
}

/// Time until a request starts by its pool's rate, behind who is in line.
pub(super) fn by_pool(
    waiter: &Waiter,
    pool: &Ledger,
    (members, holder, own): (&Members, Holder, &[(LaneKey, Backlog)]),
    now: Time,
) -> Millis {
    let rates = &waiter.pool.rates;
    let Some(rate) = rates.requests.as_ref().filter(|rate| rate.waits) else { return Millis(0) };
    let elsewhere = pool.waiting_by_vm(members).filter(|(other, ..)| *other != holder);
    let all = elsewhere.map(|(_, lane, backlog)| (lane, backlog)).chain(own.iter().copied());
    let before = all.filter(|(lane, _)| comes_before(waiter, *lane)).map(|(_, backlog)| backlog.in_line());
    rate.wait_behind(pool.spent(rates).0, before.fold(0, u64::saturating_add), 1, now)
}

/// True for a lane whose waiters come before a request, or may: its own, and those of as high a priority or a higher one.
fn comes_before(waiter: &Waiter, lane: LaneKey) -> bool {
    waiter.lanes.level_of(lane) <= waiter.lane.level
}

/// Lets those who wait for rates take half of each bound, with a newcomer among them that `mine` counts already; the first has a place in any case.
///
/// # Errors
/// The queue is full for those who wait for rates.
// Why: a rate keeps its waiters for as long as it takes, and is no reason to turn away who lacks no more than a place for a moment.
pub(super) fn within_half(
    (ledger, members): (&Ledger, &Members),
    holder: Holder,
    waiter: &Waiter,
    mine: &Report,
    limits: &QueueLimits,
) -> Result<(), Refusal> {
    let elsewhere = ledger.rated(members).filter(|(other, ..)| *other != holder);
    let rated: Vec<_> = elsewhere.map(|(_, lane, rated)| (lane, rated)).chain(mine.rated.iter().copied()).collect();
    let sum = |chosen: &dyn Fn(LaneKey) -> bool| {
        let chosen = rated.iter().filter(|(lane, _)| chosen(*lane));
        chosen.fold(Backlog::default(), |sum, (_, rated)| sum.plus(*rated))
    };
    let (of_lane, of_pool) = (sum(&|lane| lane == waiter.lane.key), sum(&|_| true));
    let queue = &waiter.pool.queue;
    let bounds = [
        (
            Some(&limits.max_requests),
            of_lane.requests,
            of_lane.requests,
            "requests waiting for rates, which may be half",
        ),
        (limits.max_tokens.as_ref(), of_lane.tokens.0, of_lane.requests, "tokens waiting for rates, which may be half"),
        (limits.max_bytes.as_ref(), of_lane.bytes, of_lane.requests, "bytes waiting for rates, which may be half"),
        (
            queue.max_requests.as_ref(),
            of_pool.requests,
            of_pool.requests,
            "requests waiting for rates, which may be half",
        ),
        (Some(&queue.max_bytes), of_pool.bytes, of_pool.requests, "bytes waiting for rates, which may be half"),
    ];
    for (cap, measured, requests, unit) in bounds {
        if let Some(Cap { limit, knob }) = cap
            && measured > *limit / 2
            && requests > 1
        {
            let limit = Some(Limit { knob: Arc::clone(knob), measured, allowed: *limit / 2, unit });
            let (detail, retry) = (Detail::None, Retry::After(Millis(0)));
            return Err(Refusal { reason: Reason::QueueFull, limit, detail, retry, place: None });
        }
    }
    Ok(())
}
