//! Waiters that wait for rates.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::{Queue, Ticket, Waiter, Waiting};
use crate::ledger::{Backlog, Cost, LaneKey, Queued};

/// Costs of the waiters of a queue to their tenants' rates, and the waiters among these that joined to wait for a rate.
#[derive(Debug, Default)]
pub(super) struct Rated {
    /// Costs to the tenants whose budgets may be waited for, by the lane that their waiters came for.
    costs: BTreeMap<(Rc<str>, LaneKey), Cost>,
    /// Waiters that joined to wait for a rate.
    joined: BTreeMap<LaneKey, Backlog>,
}

impl Rated {
    pub(super) fn add(&mut self, waiting: &Waiting) {
        let Waiter { tenant_key, lane, limits, ask, .. } = &waiting.waiter;
        if limits.rates.may_be_waited_for() {
            let costs = self.costs.entry((Rc::clone(tenant_key), lane.key)).or_default();
            *costs = costs.plus(ask.cost());
        }
        if waiting.is_rated {
            let joined = self.joined.entry(lane.key).or_default();
            *joined = joined.plus(of_one(&waiting.waiter));
        }
    }

    pub(super) fn take(&mut self, waiting: &Waiting) {
        let Waiter { tenant_key, lane, ask, .. } = &waiting.waiter;
        let key = (Rc::clone(tenant_key), lane.key);
        if let Some(costs) = self.costs.get_mut(&key) {
            *costs = costs.beyond(ask.cost());
            if costs.requests == 0 {
                self.costs.remove(&key);
            }
        }
        if waiting.is_rated
            && let Some(joined) = self.joined.get_mut(&lane.key)
        {
            *joined = joined.minus(of_one(&waiting.waiter));
            if joined.requests == 0 {
                self.joined.remove(&lane.key);
            }
        }
    }

    pub(super) fn joined(&self) -> Vec<(LaneKey, Backlog)> {
        self.joined.iter().map(|(lane, joined)| (*lane, *joined)).collect()
    }
}

/// A waiter without its age, which the sums of several do not keep.
fn of_one(waiter: &Waiter) -> Backlog {
    Backlog { oldest: crate::units::Time(0), ..waiter.backlog() }
}

impl Queue {
    /// Notes that a waiter joined to wait for a rate.
    pub(crate) fn note_rated(&mut self, ticket: Ticket) {
        if let Some(waiting) = self.waiting.get_mut(&ticket) {
            self.rated.take(waiting);
            waiting.is_rated = true;
            self.rated.add(waiting);
        }
    }

    /// Tenants whose budgets may be waited for.
    pub(crate) fn tenants_queued(&self) -> impl Iterator<Item = &Rc<str>> {
        self.rated.costs.keys().map(|(tenant, _)| tenant)
    }

    /// Costs of a tenant's waiters over some queues, by lane, if its budgets may be waited for.
    pub(crate) fn queued<'a>(queues: impl Iterator<Item = &'a Self>, tenant: &str) -> Vec<Queued> {
        let mut sums: BTreeMap<LaneKey, Cost> = BTreeMap::new();
        let first = (Rc::<str>::from(tenant), LaneKey(0));
        for queue in queues {
            let own = queue.rated.costs.range(&first..).take_while(|((other, _), _)| **other == *tenant);
            for ((_, lane), cost) in own {
                let sum = sums.entry(*lane).or_default();
                *sum = sum.plus(*cost);
            }
        }
        sums.into_iter().map(|(lane, cost)| Queued { lane, cost }).collect()
    }
}
