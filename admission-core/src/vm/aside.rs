//! Waiters that stand aside for their own tenant: its caps, or its budgets.
//!
//! They step back in line one flow after the other, in the order in which the tenant's waiters start, whichever lane, class or pool they
//! wait for: what the first cannot have is not for those behind it.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::Vm;
use super::elsewhere::tenant_at;
use crate::decide::tenant_refuses;
use crate::outcome::{Reason, Refusal};
use crate::queue::{Queue, Ticket, Waiter};
use crate::store::Store;
use crate::units::Time;

/// A waiter that has stepped back in line, with its flow.
pub(super) struct SteppedBack {
    pub(super) pool_key: Rc<str>,
    pub(super) tenant: Rc<str>,
    pub(super) ticket: Ticket,
}

impl Vm {
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
            if let Some(queue) = self.room.queues.get_mut(&pool_key) {
                queue.step_back(ticket);
                back.push(SteppedBack { pool_key, tenant: Rc::clone(tenant), ticket });
            }
        }
        back
    }

    /// The first waiter of a tenant that has stepped aside here, and its pool, if the tenant's limits let it start.
    fn next_of_tenant(&mut self, store: &impl Store, tenant: &Rc<str>, now: Time) -> Option<(Rc<str>, Ticket)> {
        let ledger = tenant_at(store, tenant, &self.membership.members).ok()?;
        let (ticket, _, waiter) = Queue::blocked(self.room.queues.values(), tenant, |_| true)?;
        let refusal = tenant_refuses(&waiter.ask, waiter.rules(), ledger.counted(&self.membership.members), now);
        // One that its route's budget refuses is to be refused, which is done where it would start.
        match refusal.filter(|refusal| !is_of_a_route(waiter, refusal)) {
            None => Some((waiter.key(), ticket)),
            Some(refusal) => {
                self.room.note_due(tenant, &refusal, now);
                None
            }
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
