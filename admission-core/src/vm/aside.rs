//! Waiters that stand aside for their own tenant: its caps, or its budgets.
//!
//! They step back in line one flow after the other, in the order in which the tenant's waiters start, whichever lane, class or pool they
//! wait for: what the first cannot have is not for those behind it.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::Vm;
use super::elsewhere::tenant_at;
use crate::decide::tenant_refuses;
use crate::gather::gather;
use crate::outcome::{Reason, Refusal, Retry};
use crate::queue::{Queue, Ticket, Waiter};
use crate::store::Store;
use crate::units::Time;
use crate::unnamed::update_at;

/// Tenants that are asked in one poll, in turn, whether they still hold all that they may.
const TENANTS_ASKED: usize = 32;

/// Tenants that are asked in one poll since their budgets are due to let a waiter start.
const MOST_DUE: usize = 256;

/// A waiter that has stepped back in line, with its flow.
pub(super) struct SteppedBack {
    pub(super) pool_key: Rc<str>,
    pub(super) tenant: Rc<str>,
    pub(super) ticket: Ticket,
}

impl Vm {
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

    /// Lets the first of each tenant's waiters here step back in line, with its flow, where the tenant's own limits let it start. The
    /// record of the tenant is to be published when the waiter has had its turn.
    // Why then: a newcomer in another VM is to find it in the record until it has started, or waits for nothing but its pool.
    pub(super) fn ask_tenants(
        &mut self,
        store: &impl Store,
        tenants: &BTreeSet<Rc<str>>,
        now: Time,
    ) -> Vec<SteppedBack> {
        let mut back = Vec::new();
        for tenant in tenants {
            let Some((pool_key, ticket)) = self.next_of_tenant(store, tenant, now) else { continue };
            if let Some(queue) = self.queues.get_mut(&pool_key) {
                queue.step_back(ticket);
                back.push(SteppedBack { pool_key, tenant: Rc::clone(tenant), ticket });
            }
        }
        back
    }

    /// The first waiter of a tenant that has stepped aside here, and its pool, if the tenant's limits let it start.
    fn next_of_tenant(&mut self, store: &impl Store, tenant: &Rc<str>, now: Time) -> Option<(Rc<str>, Ticket)> {
        let ledger = tenant_at(store, tenant, &self.members).ok()?;
        let (ticket, _, waiter) = Queue::blocked(self.queues.values(), tenant, |_| true)?;
        let refusal = tenant_refuses(&waiter.ask, waiter.rules(), (&ledger, &self.members), now);
        // One that its route's budget refuses is to be refused, which is done where it would start.
        match refusal.filter(|refusal| !is_of_a_route(waiter, refusal)) {
            None => Some((waiter.key(), ticket)),
            Some(refusal) => {
                self.note_due(tenant, &refusal, now);
                None
            }
        }
    }

    /// Names the first of a tenant's waiters again where a header parts them: which one that is changes with each start of another VM.
    pub(super) fn name_firsts_again(&mut self, store: &impl Store, tenants: &BTreeSet<Rc<str>>) {
        for tenant in tenants {
            if Queue::blocked(self.queues.values(), tenant, |waiter| waiter.sub.is_some()).is_some() {
                self.look_at_tenant(store, tenant);
                self.publish_blocked(store, tenant);
            }
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

    /// Says in a tenant's record which of its waiters here is the first that waits for the tenant itself, and what its waiters will cost it.
    pub(super) fn publish_blocked(&mut self, store: &impl Store, tenant: &Rc<str>) {
        let Some(holder) = self.holder else { return };
        let first = Queue::blocked(self.queues.values(), tenant, |_| true).map(|(_, first, _)| first);
        let (queued, members) = (Queue::queued(self.queues.values(), tenant), &self.members);
        let said = update_at(store, tenant, |ledger| {
            if ledger.says(members, holder, (first, &queued)) {
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
}

/// True where a budget refuses a waiter that only its route has, and that nothing waits for.
// Why it matters: a tenant's waiters are one line, so one that waited for it would keep back those of all other routes.
pub(super) fn is_of_a_route(waiter: &Waiter, refusal: &Refusal) -> bool {
    let rate = match refusal.reason {
        Reason::TenantRequestRate => &waiter.limits.rates.requests,
        Reason::TenantTokenRate => &waiter.limits.rates.tokens,
        _ => return false,
    };
    rate.as_ref().is_some_and(|rate| rate.key.is_some())
}
