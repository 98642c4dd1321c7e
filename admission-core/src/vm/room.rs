//! Room for one more waiter, and which waiters give way to it.

use std::rc::Rc;
use std::sync::Arc;

use super::bound::kept_from_starting;
use super::hold::end_hold;
use super::rates::RateWait;
use super::waiting::NotJoined;
use super::{GivenUp, Vm, Wake};
use crate::decide::flow_of;
use crate::ledger::{Backlog, Counted, LaneKey, Ledger, Report};
use crate::members::{Holder, Members};
use crate::outcome::{Detail, Limit, Place, Reason, Refusal, Retry};
use crate::policy::{Cap, PoolQueue, QueueLimits};
use crate::queue::{Queue, Ticket, Waiter, Waiting};
use crate::store::{self, Store};
use crate::units::{Millis, Time, Tokens};

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

/// A queue without room for one more.
pub(super) struct Full {
    pub(super) refusal: Refusal,
    /// Amount for which other waiters may give way.
    pub(super) excess: Option<Backlog>,
    /// The rate that the newcomer is to wait for, where what waits for rates has its half of the queue.
    pub(super) by_rate: Option<RateWait>,
}

impl Full {
    pub(super) fn not_joined(refusal: Refusal, excess: Option<Backlog>) -> NotJoined {
        NotJoined::Full(Box::new(Self { refusal, excess, by_rate: None }))
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
pub(super) fn has_room(
    Counted { ledger, members }: Counted<'_>,
    holder: Holder,
    waiter: &Waiter,
    mine: &Report,
    bytes: u64,
    limits: &QueueLimits,
) -> Result<Room, NotJoined> {
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
        return Err(Full::not_joined(full, Some(beyond(of_lane, limits))));
    }
    let of_pool = &waiter.pool.queue;
    let elsewhere = ledger.large(members).filter(|(other, _)| *other != holder);
    let elsewhere = elsewhere.filter(|(_, large)| large.flow == flow_of(&waiter.tenant_key));
    let of_tenant = elsewhere.fold(bytes, |sum, (_, large)| sum.saturating_add(large.bytes));
    // Why the first is let in: one body may be larger than a quarter of a small bound.
    if of_tenant > of_pool.bytes_of_a_tenant() && of_tenant > waiter.kept_bytes {
        let cap = Cap { limit: of_pool.bytes_of_a_tenant(), knob: Arc::clone(&of_pool.max_bytes.knob) };
        let full = refusal(&cap, of_tenant, "bytes waiting of one tenant, which may have a quarter");
        return Err(Full::not_joined(full, None));
    }
    let all = sum(&waiting);
    let Some(full) = full_of_pool(of_pool, all) else { return Ok(Room::Free) };
    let excess = beyond_pool(all, of_pool);
    let is_lower = |other| waiter.lanes.at(waiter.lanes.position_of(other)).priority < waiter.lane.priority;
    let lower = sum_of(&is_lower);
    if lower.requests >= excess.requests && lower.bytes >= excess.bytes && lower.requests > 0 {
        return Ok(Room::OfLower);
    }
    Err(Full::not_joined(full, Some(excess)))
}

/// Waiters of other VMs by their word, and of this one as it will be.
fn all_waiting(ledger: &Ledger, members: &Members, holder: Holder, mine: &Report) -> Vec<(LaneKey, Backlog)> {
    let elsewhere = ledger.waiting_by_vm(members).filter(|(other, ..)| *other != holder);
    elsewhere.map(|(_, lane, backlog)| (lane, backlog)).chain(mine.waiting.iter().copied()).collect()
}

fn sum(waiting: &[(LaneKey, Backlog)]) -> Backlog {
    waiting.iter().fold(Backlog::default(), |sum, (_, backlog)| sum.plus(*backlog))
}

fn full_of_pool(limits: &PoolQueue, all: Backlog) -> Option<Refusal> {
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
