//! Waiters that give way to a newcomer for which a full queue has no room.

use std::rc::Rc;
use std::sync::Arc;

use super::bound::kept_from_starting;
use super::full::{Full, all_waiting, full_of_pool, sum};
use super::hold::end_hold;
use super::{GivenUp, Vm, Wake};
use crate::ledger::{LaneKey, Ledger};
use crate::members::Holder;
use crate::outcome::{Place, Refusal, Retry};
use crate::queue::{Queue, Ticket, Waiter, Waiting};
use crate::store::{self, Store};
use crate::units::Time;

/// Most waiters that give way to one newcomer.
const MOST_GIVE_WAY: usize = 3;

impl Vm {
    /// Makes room in a full queue for a tenant that has less waiting in this VM, for its weight, than another: the last of
    /// the one that has most gives way, or the last few. Otherwise one tenant that floods would keep all others out of a queue
    /// in which their turn comes soon. False, and no waiter gives way, when no tenant has more or that would still not be room enough.
    pub(super) fn displace(&mut self, store: &impl Store, newcomer: &Waiter, full: &Full, now: Time) -> bool {
        let (key, refusal) = (newcomer.key(), &full.refusal);
        let Some(last) = self.room.queues.get_mut(&key).and_then(|queue| give_way(queue, newcomer, full)) else {
            return false;
        };
        for (ticket, waiting) in last {
            end_hold(store, &key, &waiting, now);
            self.room.publish_blocked(store, &self.membership, &waiting.waiter.tenant_key);
            let bound = self.bound_of(store, &waiting, now);
            let refusal = self.full(store, &waiting.waiter, refusal.clone(), bound, now);
            self.room.displaced.push(GivenUp { owner: waiting.waiter.owner, ticket, refusal });
        }
        self.outbox.send(self.slot().map(|slot| Wake::start(slot, &key)));
        true
    }

    /// Lets the newest waiters of the lowest lane give way here while more waits for a pool than may and one of a higher lane is among
    /// them; what is left to do after that is another VM's.
    // Why across VMs and not before the newcomer joins: its own VM may hold no waiter of a lower lane. For that moment the bound is exceeded.
    pub(super) fn let_lowest_give_way(&mut self, store: &impl Store, key: &Rc<str>, now: Time) {
        let Some(holder) = self.membership.holder else { return };
        loop {
            match self.give_lowest(store, key, holder) {
                Given::Way(ticket, waiting, refusal) => {
                    end_hold(store, key, &waiting, now);
                    self.room.publish_blocked(store, &self.membership, &waiting.waiter.tenant_key);
                    let bound = self.bound_of(store, &waiting, now);
                    let refusal = self.full(store, &waiting.waiter, refusal, bound, now);
                    self.room.displaced.push(GivenUp { owner: waiting.waiter.owner, ticket, refusal });
                    self.outbox.send([Wake::start(holder.slot, key)]);
                }
                Given::Elsewhere(other) => {
                    self.outbox.send([Wake::give_way(other.slot, key)]);
                    return;
                }
                Given::Nothing => return,
            }
        }
    }

    fn give_lowest(&mut self, store: &impl Store, key: &Rc<str>, holder: Holder) -> Given {
        let (queues, members) = (&mut self.room.queues, &self.membership.members);
        let Some(queue) = queues.get_mut(key) else { return Given::Nothing };
        let Some(first) = queue.some_waiter() else { return Given::Nothing };
        let (lanes, limits) = (Arc::clone(&first.lanes), first.pool.queue.clone());
        let Ok((seen, _)) = store::read::<Ledger>(store, key) else { return Given::Nothing };
        let before = queue.report();
        let priority = |lane: LaneKey| lanes.at(lanes.position_of(lane)).priority;
        let waiting = all_waiting(&seen, members, holder, &before);
        let priorities = waiting.iter().map(|(lane, _)| priority(*lane));
        let lowest = priorities.clone().min().filter(|lowest| priorities.max() > Some(*lowest));
        let (Some(lowest), Some(_)) = (lowest, full_of_pool(&limits, sum(&waiting))) else { return Given::Nothing };
        let of_lowest = lanes.iter().filter(|lane| lane.priority == lowest).map(|lane| lane.key);
        let Some(ticket) = queue.newest_of(of_lowest) else {
            let elsewhere = seen.waiting_by_vm(members).filter(|(other, ..)| *other != holder);
            let elsewhere = elsewhere.filter(|(_, lane, _)| priority(*lane) == lowest);
            let most = elsewhere.max_by_key(|(_, _, backlog)| backlog.requests);
            return most.map_or(Given::Nothing, |(other, ..)| Given::Elsewhere(other));
        };
        let (starts, aside) = queue.place_of(ticket);
        let Some(taken) = queue.take(ticket) else { return Given::Nothing };
        let after = queue.report();
        let given = store::update(store, key, |ledger: &mut Ledger| {
            let full = full_of_pool(&limits, sum(&all_waiting(ledger, members, holder, &before))).ok_or(())?;
            ledger.publish(members, holder, &after);
            Ok::<_, ()>(full)
        });
        let Ok(Ok(full)) = given else {
            queue.put_back(ticket, taken, starts, aside);
            return Given::Nothing;
        };
        queue.published = after;
        if queue.is_empty() {
            queues.remove(key);
        }
        Given::Way(ticket, Box::new(taken), full)
    }

    /// Completes the refusal of a request that finds the queue full, given what refused it before.
    pub(super) fn full_for(
        &mut self,
        store: &impl Store,
        waiter: &Waiter,
        Full { refusal, by_rate, .. }: Full,
        refused: Refusal,
        now: Time,
    ) -> Refusal {
        let bound = self.behind_others(store, waiter, Some(refused), now);
        let full = self.full(store, waiter, refusal, bound, now);
        let Some(by_rate) = by_rate else { return full };
        let wait = by_rate.longer(full.place.and_then(|place| place.wait));
        let place = full.place.map(|place| Place { wait: Some(wait), ..place });
        Refusal {
            retry: Retry::After(self.room.promise_by_rate(&self.membership, waiter, by_rate, wait, now)),
            place,
            ..full
        }
    }

    /// Completes the refusal of a full queue, given what keeps the waiter from starting.
    pub(super) fn full(
        &mut self,
        store: &impl Store,
        waiter: &Waiter,
        refusal: Refusal,
        bound: Option<Refusal>,
        now: Time,
    ) -> Refusal {
        let seen = store::read::<Ledger>(store, &waiter.pool.key).map(|(seen, _)| seen).unwrap_or_default();
        let place = self.room.place(seen.counted(&self.membership.members), waiter, now);
        let wait = place.wait.unwrap_or_default();
        let retry = Retry::After(self.room.promise(&seen, &self.membership, waiter.key(), &waiter.lane, wait, now));
        Refusal { retry, place: Some(place), detail: kept_from_starting(bound), ..refusal }
    }
}

/// Waiter that the lowest lane of a pool gives up.
enum Given {
    /// A waiter, with its refusal.
    Way(Ticket, Box<Waiting>, Refusal),
    /// One of another VM.
    Elsewhere(Holder),
    Nothing,
}

/// Takes out the waiters that give way to a newcomer; none when that makes no room for it.
fn give_way(queue: &mut Queue, newcomer: &Waiter, full: &Full) -> Option<Vec<(Ticket, Waiting)>> {
    let (mut excess, mut last) = (full.excess?, Vec::new());
    while !excess.is_nothing() && last.len() < MOST_GIVE_WAY {
        let Some(ticket) = queue.last_beyond_its_share(newcomer) else { break };
        if full.by_rate.is_some() && queue.get(ticket).is_none_or(|waiting| !waiting.is_rated) {
            break;
        }
        let waiting = queue.take(ticket)?;
        excess = excess.minus(waiting.waiter.backlog());
        last.push((ticket, waiting));
    }
    if excess.is_nothing() {
        return Some(last);
    }
    for (ticket, waiting) in last {
        queue.restore(ticket, waiting);
    }
    None
}
