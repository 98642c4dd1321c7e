//! All that wait in one VM, and what the records are to say about it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::membership::Membership;
use super::rate_wait::RateWait;
use super::{GivenUp, Request};
use crate::forecast::{self, Promises};
use crate::gather::gather;
use crate::ledger::{Counted, LaneKey, Ledger, Report};
use crate::outcome::{Place, Reason, Refusal, Retry};
use crate::policy::Lane;
use crate::queue::{Queue, Shares, Ticket, Waiter};
use crate::store::{self, Store};
use crate::units::{Millis, Time};
use crate::unnamed::{ledger_at, update_at};

/// Tenants that are asked in one poll, in turn, whether they still hold all that they may.
const TENANTS_ASKED: usize = 32;

/// Tenants that are asked in one poll since their budgets are due to let a waiter start.
const MOST_DUE: usize = 256;

/// Flows that one poll looks at in each queue.
const FLOWS_LOOKED_AT: usize = 8;

/// Promises that are kept in mind; of more, those that have come due are forgotten.
const MOST_PROMISES: usize = 1_024;

/// The queues of a VM.
#[derive(Default)]
pub(super) struct WaitingRoom {
    /// Queues by the pool's record.
    // Why no queue ever leaves its place to be worked on: a look through all queues would miss it, and an early return lose it.
    pub(super) queues: BTreeMap<Rc<str>, Queue>,
    next_ticket: u64,
    /// Waiters that have given way to others, whose callers do not know it yet.
    pub(super) displaced: Vec<GivenUp>,
    /// Pools' records that do not say yet who waits here.
    unpublished: BTreeSet<Rc<str>>,
    /// Tenants' records that do not say yet who waits here for the tenant itself.
    unblocked: BTreeSet<Rc<str>>,
    /// The tenant that is asked next whether it still holds all that it may.
    next_aside: Option<Rc<str>>,
    /// Tenants whose budgets keep waiters back, and when they are asked again.
    rates_due: BTreeSet<(Time, Rc<str>)>,
    /// Times that refused callers were advised to come back at, by a record and a lane.
    promises: BTreeMap<(Rc<str>, LaneKey), Promises>,
}

impl WaitingRoom {
    /// Number of those that wait, those among them that have given way included.
    pub(super) fn len(&self) -> usize {
        self.queues.values().map(Queue::len).sum::<usize>().saturating_add(self.displaced.len())
    }

    /// A ticket that no other waiter of the VM has had.
    pub(super) fn new_ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket = self.next_ticket.wrapping_add(1);
        ticket
    }

    /// The record of the pool that a ticket waits for.
    pub(super) fn queue_of(&self, ticket: Ticket) -> Option<Rc<str>> {
        self.queues.iter().find(|(_, queue)| queue.get(ticket).is_some()).map(|(key, _)| Rc::clone(key))
    }

    /// Looks where the tenants of some flows start now, others with every poll: what their answers gave back elsewhere
    /// brings them forward.
    pub(super) fn look_at_some(&mut self, store: &impl Store, key: &Rc<str>) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        let mut flows = queue.flows_behind(queue.looked_at.as_ref(), FLOWS_LOOKED_AT);
        flows.extend(queue.flows_behind(None, FLOWS_LOOKED_AT.saturating_sub(flows.len())));
        let tickets: Vec<Ticket> = flows.iter().map(|(_, ticket)| *ticket).collect();
        queue.looked_at = flows.pop().map(|(flow, _)| flow);
        look_at(store, queue, &tickets);
    }

    /// Looks where a tenant starts now.
    pub(super) fn look_at_tenant(&mut self, store: &impl Store, tenant_key: &str) {
        for queue in self.queues.values_mut() {
            let tickets = queue.flows_of(tenant_key);
            look_at(store, queue, &tickets);
        }
    }

    /// The tenants that are asked in this poll: those whose budgets are due, and of all that have waiters aside the next ones by name over all
    /// queues, and round again.
    pub(super) fn next_tenants_aside(&mut self, now: Time) -> BTreeSet<Rc<str>> {
        let next = |from, most| {
            let all = self.queues.values().flat_map(|queue| queue.tenants_aside(from, most));
            gather::<BTreeSet<Rc<str>>, _>(all).into_iter().take(most)
        };
        let mut in_turn: Vec<Rc<str>> = next(self.next_aside.as_ref(), TENANTS_ASKED).collect();
        in_turn.extend(next(None, TENANTS_ASKED.saturating_sub(in_turn.len())));
        self.next_aside = in_turn.last().map(|tenant| format!("{tenant}\0").into());
        let mut aside: BTreeSet<Rc<str>> = gather(in_turn);
        for _ in 0..MOST_DUE {
            let Some((due, tenant)) = self.rates_due.pop_first() else { break };
            if due > now {
                self.rates_due.insert((due, tenant));
                break;
            }
            aside.insert(tenant);
        }
        aside
    }

    /// Notes when a tenant is to be asked again whose budget keeps its waiters back.
    pub(super) fn note_due(&mut self, tenant: &Rc<str>, refusal: &Refusal, now: Time) {
        if let (Reason::TenantRequestRate | Reason::TenantTokenRate, Retry::After(wait)) =
            (refusal.reason, refusal.retry)
        {
            self.rates_due.insert((Time(now.0.saturating_add(wait.0)), Rc::clone(tenant)));
        }
    }

    /// Has the tenants asked again in the next poll that have more waiters aside and a budget that these may wait for: the one that stepped back
    /// may have been the last of its flow, or behind another VM's.
    pub(super) fn ask_again(&mut self, tenant: &Rc<str>, now: Time) {
        let may_wait = |waiter: &Waiter| waiter.limits.rates.may_be_waited_for();
        if Queue::blocked(self.queues.values(), tenant, may_wait).is_some() {
            self.rates_due.insert((now, Rc::clone(tenant)));
        }
    }

    /// Names the first of a tenant's waiters again where a header parts them: which one that is changes with each start of another VM.
    pub(super) fn name_firsts_again(
        &mut self,
        store: &impl Store,
        membership: &Membership,
        tenants: &BTreeSet<Rc<str>>,
    ) {
        for tenant in tenants {
            if Queue::blocked(self.queues.values(), tenant, |waiter| waiter.sub.is_some()).is_some() {
                self.look_at_tenant(store, tenant);
                self.publish_blocked(store, membership, tenant);
            }
        }
    }

    /// The place that a waiter has in line, or would have.
    pub(super) fn place(&self, counted: Counted<'_>, waiter: &Waiter, now: Time) -> Place {
        let classes = waiter.classes.iter().map(|class| class.key).collect();
        let flow = (Rc::clone(&waiter.tenant_key), classes);
        let queue = self.queues.get(&*waiter.pool.key);
        let (lanes, lane, weight) = (&waiter.lanes, &waiter.lane, waiter.limits.weight);
        let shares = queue.map_or_else(Shares::default, |queue| queue.shares(lanes, lane, &flow));
        forecast::place(counted, lanes, lane, shares, weight, now)
    }

    /// Advice for a caller that would have waited for `wait`: when those before it have started, and later than the last advice by the time
    /// in which a place comes free. Sooner it would find a line that newcomers have kept as long.
    pub(super) fn promise(
        &mut self,
        seen: &Ledger,
        membership: &Membership,
        key: Rc<str>,
        lane: &Lane,
        wait: Millis,
        now: Time,
    ) -> Millis {
        let gap = seen.time_between_starts(lane.key, &membership.members, now).unwrap_or_default();
        self.spread((key, lane.key), wait, gap, membership, now)
    }

    /// Advice for a caller whose request would have waited for a rate: the time at which it would have started, and later than the last
    /// advice by the time in which the rate earns a request.
    pub(super) fn promise_by_rate(
        &mut self,
        membership: &Membership,
        waiter: &Waiter,
        by: RateWait,
        wait: Millis,
        now: Time,
    ) -> Millis {
        let (name, each) = by.earned(waiter);
        let key = (name, waiter.lane.key);
        if self.promises.len() >= MOST_PROMISES && !self.promises.contains_key(&key) {
            self.promises.retain(|_, promises| promises.are_ahead(now));
            if self.promises.len() >= MOST_PROMISES {
                return wait;
            }
        }
        self.spread(key, wait, each, membership, now)
    }

    /// Advice for a request that only the work of others keeps from starting: later than the last by the time in which a place comes free.
    pub(super) fn spread_refused(
        &mut self,
        seen: &Ledger,
        membership: &Membership,
        request: &Request<'_>,
        wait: Millis,
        now: Time,
    ) -> Millis {
        let gap = seen.time_to_free(1, &membership.members).unwrap_or_default();
        let key = (Rc::from(&*request.rules.pool.key), request.rules.lane.key);
        self.spread(key, wait, gap, membership, now)
    }

    /// Advice to come back in `wait`, and later than the last of this record and lane by `gap`.
    // Why times the VMs: each spaces its own callers, so that those of all come as fast as places are freed.
    fn spread(
        &mut self,
        key: (Rc<str>, LaneKey),
        wait: Millis,
        gap: Millis,
        membership: &Membership,
        now: Time,
    ) -> Millis {
        let gap = Millis(gap.0.saturating_mul(membership.vms()));
        self.promises.entry(key).or_default().next(wait, gap, now)
    }

    /// Says in a pool's record who waits here, if that has changed; what others are faster at is said later.
    pub(super) fn publish(&mut self, store: &impl Store, membership: &Membership, key: &Rc<str>) {
        let Some(holder) = membership.holder else { return };
        let report = self.queues.get(key).map(Queue::report).unwrap_or_default();
        if self.queues.get(key).is_none_or(|queue| queue.published != report) {
            let said = store::update(store, key, |ledger: &mut Ledger| {
                ledger.publish(&membership.members, holder, &report);
                Ok::<(), std::convert::Infallible>(())
            });
            if said.is_err() {
                self.unpublished.insert(Rc::clone(key));
                return;
            }
        }
        if let Some(queue) = self.queues.get_mut(key) {
            queue.published = report;
            if queue.is_empty() {
                self.queues.remove(key);
            }
        }
    }

    /// Says in a tenant's record which of its waiters here is the first that waits for the tenant itself, and what its waiters will cost it.
    pub(super) fn publish_blocked(&mut self, store: &impl Store, membership: &Membership, tenant: &Rc<str>) {
        let Some(holder) = membership.holder else { return };
        let first = Queue::blocked(self.queues.values(), tenant, |_| true).map(|(_, first, _)| first);
        let (queued, members) = (Queue::queued(self.queues.values(), tenant), &membership.members);
        let said = update_at(store, tenant, |ledger| {
            if ledger.says(members, holder, first, &queued) {
                return Err(());
            }
            ledger.publish_blocked(members, holder, first);
            ledger.publish_queued(members, holder, &queued);
            Ok(())
        });
        if said.is_err() {
            self.unblocked.insert(Rc::clone(tenant));
        }
    }

    /// Says what could not be said before.
    pub(super) fn publish_the_rest(&mut self, store: &impl Store, membership: &Membership) {
        for key in std::mem::take(&mut self.unpublished) {
            self.publish(store, membership, &key);
        }
        for key in std::mem::take(&mut self.unblocked) {
            self.publish_blocked(store, membership, &key);
        }
    }

    /// Says again who waits here: after a fencing no record does.
    pub(super) fn say_again(&mut self, store: &impl Store, membership: &Membership) {
        let keys: Vec<Rc<str>> = self.queues.keys().cloned().collect();
        for key in keys {
            if let Some(queue) = self.queues.get_mut(&key) {
                queue.published = Report::default();
                self.unblocked.extend(queue.tenants_aside(None, usize::MAX));
                self.unblocked.extend(queue.tenants_queued().cloned());
            }
            self.publish(store, membership, &key);
        }
        self.publish_the_rest(store, membership);
    }
}

/// Sets the flows of waiters to where their tenants start now.
fn look_at(store: &impl Store, queue: &mut Queue, tickets: &[Ticket]) {
    for ticket in tickets {
        let Some(waiting) = queue.get(*ticket) else { continue };
        let (Ok(tenant), Ok(pool)) =
            (ledger_at(store, &waiting.waiter.tenant_key), ledger_at(store, &waiting.waiter.pool.key))
        else {
            return;
        };
        let starts = tenant.starts(waiting.flow_key(), pool.virtual_time(waiting.band_lane().level_key));
        queue.retag(*ticket, starts);
    }
}
