//! Waiters that wait for rates.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::{Queue, Ticket, Waiter, Waiting};
use crate::budget::Rate;
use crate::ledger::{Backlog, Cost, LaneKey, Queued};
use crate::units::{Time, Tokens};

/// Costs of the waiters of a queue to their tenants' rates, and the waiters among these that joined to wait for a rate.
#[derive(Debug, Default)]
pub(super) struct Rated {
    /// Costs to the tenants whose budgets may be waited for, by the lane that their waiters came for.
    costs: BTreeMap<(Rc<str>, LaneKey), Cost>,
    /// Waiters that joined to wait for a rate.
    joined: Vec<(LaneKey, Backlog)>,
}

impl Rated {
    pub(super) fn add(&mut self, waiting: &Waiting) {
        let waiter = &waiting.waiter;
        let cost = waiter.cost_of_waiting();
        if cost != Cost::default() {
            let costs = self.costs.entry((Rc::clone(&waiter.tenant_key), waiter.lane.key)).or_default();
            *costs = costs.plus(cost);
        }
        if waiting.is_rated {
            match self.joined.iter_mut().find(|(lane, _)| *lane == waiter.lane.key) {
                Some((_, joined)) => *joined = joined.plus(of_one(waiter)),
                None => self.joined.push((waiter.lane.key, of_one(waiter))),
            }
        }
    }

    pub(super) fn take(&mut self, waiting: &Waiting) {
        let waiter = &waiting.waiter;
        let key = (Rc::clone(&waiter.tenant_key), waiter.lane.key);
        if let Some(costs) = self.costs.get_mut(&key) {
            *costs = costs.beyond(waiter.cost_of_waiting());
            if *costs == Cost::default() {
                self.costs.remove(&key);
            }
        }
        if waiting.is_rated {
            for (_, joined) in self.joined.iter_mut().filter(|(lane, _)| *lane == waiter.lane.key) {
                *joined = joined.minus(of_one(waiter));
            }
            self.joined.retain(|(_, joined)| joined.requests > 0);
        }
    }

    pub(super) fn joined(&self) -> Vec<(LaneKey, Backlog)> {
        self.joined.clone()
    }
}

impl Waiter {
    /// Cost to those of its tenant's budgets that may be waited for.
    fn cost_of_waiting(&self) -> Cost {
        let (rates, cost) = (&self.limits.rates, self.ask.cost());
        let waits = |rate: &Option<Rate>| rate.as_ref().is_some_and(|rate| rate.waits);
        Cost {
            requests: if waits(&rates.requests) { cost.requests } else { 0 },
            tokens: if waits(&rates.tokens) { cost.tokens } else { Tokens(0) },
        }
    }
}

/// A waiter without its age, which the sums of several do not keep.
fn of_one(waiter: &Waiter) -> Backlog {
    Backlog { oldest: Time(0), ..waiter.backlog() }
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
        let mut sums: Vec<Queued> = Vec::new();
        let first = (Rc::<str>::from(tenant), LaneKey(0));
        for queue in queues {
            let own = queue.rated.costs.range(&first..).take_while(|((other, _), _)| **other == *tenant);
            for ((_, lane), cost) in own {
                match sums.iter_mut().find(|sum| sum.lane == *lane) {
                    Some(sum) => sum.cost = sum.cost.plus(*cost),
                    None => sums.push(Queued { lane: *lane, cost: *cost }),
                }
            }
        }
        sums
    }
}
