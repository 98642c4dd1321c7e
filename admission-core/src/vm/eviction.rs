//! Requests in flight that give way: of a preemptible lane, while their answer has not begun.
//!
//! A VM whose waiter lacks what they hold asks, in the pool's record, the VM that holds the newest request of the lowest
//! lane. What has been asked for and has not ended yet is in the record, and so is what has ended and no view shows yet: no
//! more is ever asked for than those that wait lack.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::lease::{Evicted, Lease};
use super::{LeaseId, StreamId, Vm, Wake, view_of};
use crate::forecast;
use crate::gather::gather;
use crate::ledger::{Amount, Evictable, Ledger};
use crate::members::{Holder, Members};
use crate::outcome::{Detail, Lack, Place, Reason, Refusal, Retry};
use crate::policy::{Lane, Lanes};
use crate::queue::{Shares, Waiter};
use crate::store::{self, Store};
use crate::units::{Blocks, Millis, Time};
use crate::view::ViewSummary;

/// A request that is to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Stream of the request.
    pub owner: StreamId,
    /// Lease that it holds.
    pub lease: LeaseId,
}

impl Vm {
    /// The answer of a request has begun: it is not evicted any more.
    pub fn first_byte(&mut self, store: &impl Store, id: LeaseId) {
        let Some(lease) = self.leases.get(&id).filter(|lease| lease.preemptible).cloned() else { return };
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.preemptible = false;
        }
        if let Some(evicted) = self.forget_evictable(&lease, id) {
            self.publish_evicted(store, &lease.pool_key, &evicted);
        }
    }

    /// Requests that are to be evicted now: each is to be answered with [`crate::outcome::Reason::Evicted`] and released.
    pub fn take_evictions(&mut self) -> Vec<Eviction> {
        std::mem::take(&mut self.evictions)
    }

    /// The refusal of a request that gives way: its caller may come back when those that go before it now have been served, at the pace
    /// measured.
    pub fn evicted(&mut self, store: &impl Store, id: LeaseId, now: Time) -> Refusal {
        let wait = self.wait_after_eviction(store, id, now).unwrap_or_default();
        let (limit, detail) = (None, Detail::None);
        Refusal { reason: Reason::Evicted, limit, detail, retry: Retry::After(wait), place: None }
    }

    fn wait_after_eviction(&mut self, store: &impl Store, id: LeaseId, now: Time) -> Option<Millis> {
        let Lease { pool_key, lanes, lane, tenant_key, classes, weight, .. } = self.leases.get(&id)?.clone();
        let (seen, _) = store::read::<Ledger>(store, &pool_key).ok()?;
        let lane = lanes.at(lanes.position_of(lane));
        let flow = (tenant_key, classes.into());
        let shares = self.queues.get(&pool_key).map_or_else(Shares::default, |queue| queue.shares(&lanes, lane, &flow));
        let Place { position, wait } = forecast::place((&seen, &self.members), &lanes, lane, shares, weight, now);
        let wait = wait.or_else(|| seen.time_to_free(position, &self.members)).unwrap_or_default();
        Some(self.promise(&seen, (pool_key, lane), wait, now))
    }

    /// Looks in every record that may ask this VM to evict: the message that says so may be lost.
    pub(super) fn evict_as_asked(&mut self, store: &impl Store, now: Time) {
        let mut pools: BTreeSet<Rc<str>> = gather(self.evictable.keys().map(|(pool, _)| Rc::clone(pool)));
        // Why those too: a VM that holds nothing any more takes back what is still asked of it.
        pools.extend(self.asked_in.iter().cloned());
        pools.iter().for_each(|pool| self.evict(store, pool, now));
    }

    /// Chooses what this VM evicts, having been asked to in a pool's record, as long as somebody waits for it still.
    pub(super) fn evict(&mut self, store: &impl Store, pool_key: &Rc<str>, now: Time) {
        let Some(holder) = self.holder else { return };
        let Ok((ledger, _)) = store::read::<Ledger>(store, pool_key) else { return };
        let of_pool = self.evictable.iter().filter(|((key, _), _)| key == pool_key);
        let others = of_pool.flat_map(|(_, victims)| victims.ids()).filter(|(_, id)| !self.evicting.contains(id));
        let level = |id| self.leases.get(&id).map_or(0, |lease| lease.lanes.level_of(lease.lane));
        let mut others: Vec<(usize, Time, LeaseId)> = others.map(|(at, id)| (level(id), at, id)).collect();
        // The lowest lane first, and of a lane the newest.
        others.sort_unstable();
        let (asked, mut given) = (ledger.asked_of(holder), self.being_evicted(pool_key));
        if asked.is_zero() {
            self.asked_in.remove(pool_key);
        } else {
            self.asked_in.insert(Rc::clone(pool_key));
        }
        // Why not beyond that: the waiter that lacked them has started or left, and they would be free for no request.
        let blocks = if ledger.line_kept_for(now).0 > 0 { asked.blocks } else { Blocks(0) };
        for (.., id) in others.into_iter().rev() {
            let Some(lease) = self.leases.get(&id) else { continue };
            let waiting = waiting_above(&ledger, &self.members, lease);
            if given.requests >= asked.requests.min(waiting) && (waiting == 0 || given.blocks >= blocks) {
                break;
            }
            given = given.plus(self.evicted_amount(lease, id));
            self.evicting.insert(id);
            self.evictions.push(Eviction { owner: lease.owner, lease: id });
        }
        // Why what is given and not what was asked: the last one may hold more blocks than were asked for, and others count on them.
        if given != asked {
            let lanes = self.evictable_in(pool_key);
            self.publish_evicted(store, pool_key, &Evicted { lanes, asked, given, gone: None });
        }
    }

    /// Amount that is held by requests that are being evicted.
    fn being_evicted(&self, pool_key: &Rc<str>) -> Amount {
        let leases = self.evicting.iter().filter_map(|id| Some((*id, self.leases.get(id)?)));
        let of_pool = leases.filter(|(_, lease)| lease.pool_key == *pool_key);
        of_pool.fold(Amount::default(), |sum, (id, lease)| sum.plus(self.evicted_amount(lease, id)))
    }

    /// Amount that the eviction of a request brings, as it was counted when that began.
    fn evicted_amount(&self, lease: &Lease, id: LeaseId) -> Amount {
        let victims = self.evictable.get(&(Rc::clone(&lease.pool_key), lease.lane));
        victims.and_then(|victims| victims.blocks_of(lease.started, id)).map_or_else(Amount::default, one_with)
    }

    /// Asks for evictions on behalf of a waiter that was refused, where they would bring what it lacks. No more is asked for than
    /// those in line lack.
    pub(super) fn ask_to_evict(&mut self, store: &impl Store, waiter: &Waiter, refused: &Refusal) {
        let Some(lack) = refused.reason.lack() else { return };
        let (lanes, level) = (&waiter.lanes, waiter.lane.level);
        let view = view_of(store, &waiter.pool);
        let more = |ledger: &Ledger, members: &Members| {
            let asked = ledger.asked_to_evict(members).requests;
            let unseen = || unseen(ledger, view.as_ref()).requests;
            // Places that have come free since the waiter was refused.
            let held = ledger.held(members).requests.saturating_add(1);
            let freed = refused.limit.as_ref().map_or(0, |limit| limit.measured.saturating_sub(held));
            let met = match lack {
                Lack::Place => asked.saturating_add(freed),
                Lack::Saturation => asked.saturating_add(unseen()),
            };
            let in_line = in_line((ledger, members), lanes, |other| other.level <= level);
            Amount { requests: u64::from(met < in_line), ..Amount::default() }
        };
        self.ask_for(store, waiter, more);
    }

    /// Asks for evictions on behalf of a waiter that keeps the line and lacks so many blocks, by a view.
    // Why only then: what comes free is for that waiter, and those that pass another would be evicted in turn.
    pub(super) fn ask_for_blocks(
        &mut self,
        store: &impl Store,
        waiter: &Waiter,
        lacking: Blocks,
        view: Option<&ViewSummary>,
    ) {
        let more = |ledger: &Ledger, members: &Members| {
            let met = blocks_to_come(ledger, view, members);
            Amount { blocks: Blocks(lacking.0.saturating_sub(met)), ..Amount::default() }
        };
        self.ask_for(store, waiter, more);
    }

    fn ask_for(&mut self, store: &impl Store, waiter: &Waiter, more: impl Fn(&Ledger, &Members) -> Amount) {
        let key = waiter.key();
        let members = &self.members;
        let asked = store::update(store, &key, |ledger: &mut Ledger| {
            let more = more(ledger, members);
            let holder = victim(ledger, members, waiter).filter(|_| !more.is_zero()).ok_or(())?;
            ledger.ask_of(members, holder, ledger.asked_of(holder).plus(more));
            Ok::<_, ()>(holder)
        });
        if let Ok(Ok(holder)) = asked {
            self.wakes.push(Wake::evict(holder.slot, &key));
        }
    }

    /// Notes what a request holds that can be evicted; the record says so with the next request of the lane that starts or ends.
    pub(super) fn note_evictable(&mut self, lease: &Lease, id: LeaseId) {
        // Why not one on its way out: its blocks are counted against what was asked for.
        if lease.preemptible && !self.evicting.contains(&id) {
            let victims = self.evictable.entry((Rc::clone(&lease.pool_key), lease.lane)).or_default();
            victims.set(lease.started, id, lease.amount.blocks);
        }
    }

    /// Change of the record when a request cannot be evicted any more; `None` for one that never could.
    pub(super) fn forget_evictable(&mut self, lease: &Lease, id: LeaseId) -> Option<Evicted> {
        let of_lane = (Rc::clone(&lease.pool_key), lease.lane);
        let victims = self.evictable.get_mut(&of_lane)?;
        let blocks = victims.remove(lease.started, id);
        if victims.is_empty() {
            self.evictable.remove(&of_lane);
        }
        let is_evicted = self.evicting.remove(&id);
        let blocks = blocks?;
        let asked = if is_evicted { one_with(blocks) } else { Amount::default() };
        Some(Evicted { lanes: self.evictable_in(&lease.pool_key), asked, given: Amount::default(), gone: None })
    }

    /// Rows of what this VM could evict once a request has started.
    pub(super) fn evictable_with(&self, lease: &Lease) -> Vec<Evictable> {
        let mut lanes = self.evictable_in(&lease.pool_key);
        let Lease { lane, started, amount, .. } = *lease;
        match lanes.iter_mut().find(|other| other.lane == lane) {
            Some(other) => {
                let blocks = Blocks(other.blocks.0.saturating_add(amount.blocks.0));
                let requests = other.requests.saturating_add(1);
                *other = Evictable { lane, requests, blocks, newest: other.newest.max(started) };
            }
            None => lanes.push(Evictable { lane, requests: 1, blocks: amount.blocks, newest: started }),
        }
        lanes
    }

    pub(super) fn evictable_in(&self, pool_key: &Rc<str>) -> Vec<Evictable> {
        let of_pool = self.evictable.iter().filter(|((key, _), _)| key == pool_key);
        of_pool.filter_map(|((_, lane), victims)| victims.row(*lane)).collect()
    }

    /// Says what this VM could evict. What others are faster at is said with the next request of the lane.
    fn publish_evicted(&self, store: &impl Store, pool_key: &str, evicted: &Evicted) {
        let Some(holder) = self.holder else { return };
        let members = &self.members;
        let published = store::update(store, pool_key, |ledger: &mut Ledger| {
            evicted.apply(ledger, members, holder);
            Ok::<(), std::convert::Infallible>(())
        });
        drop(published);
    }
}

fn one_with(blocks: Blocks) -> Amount {
    Amount { requests: 1, blocks, ..Amount::default() }
}

/// Requests that wait in lanes above that of one in flight.
fn waiting_above(ledger: &Ledger, members: &Members, lease: &Lease) -> u64 {
    let own = lease.lanes.level_of(lease.lane);
    in_line((ledger, members), &lease.lanes, |lane| lane.level < own)
}

/// Requests that wait for the pool, of the lanes that `counts` is true for; of a lane with a dispatch budget one.
// Why one: its budget may let no more start, and with each start it is counted again.
fn in_line((ledger, members): (&Ledger, &Members), lanes: &Lanes, counts: impl Fn(&Lane) -> bool) -> u64 {
    let of_lane = |lane: &Lane| {
        let in_line = ledger.backlog(lane.key, members).in_line();
        if lane.dispatch_budget.is_some() { in_line.min(1) } else { in_line }
    };
    lanes.iter().filter(|lane| counts(lane)).fold(0, |sum, lane| sum.saturating_add(of_lane(lane)))
}

/// True when evictions would bring a waiter the blocks that it lacks, with those that no view shows to be free.
pub(super) fn would_free(
    (ledger, members): (&Ledger, &Members),
    view: Option<&ViewSummary>,
    waiter: &Waiter,
    lacking: Blocks,
) -> bool {
    let lower = || lower_than(ledger, members, waiter);
    let all = lower().fold(0_u64, |sum, (_, row)| sum.saturating_add(row.blocks.0));
    // Why not what was asked for beside it: those that are being evicted are among the rows until they have ended.
    lower().next().is_some() && lacking.0 <= all.saturating_add(unseen(ledger, view).blocks.0)
}

/// Blocks that evictions are about to free: those asked for, and those that no view shows to be free.
fn blocks_to_come(ledger: &Ledger, view: Option<&ViewSummary>, members: &Members) -> u64 {
    ledger.asked_to_evict(members).blocks.0.saturating_add(unseen(ledger, view).blocks.0)
}

fn unseen(ledger: &Ledger, view: Option<&ViewSummary>) -> Amount {
    view.map_or_else(Amount::default, |view| ledger.evicted_unseen(view.credit))
}

/// Requests that could be evicted for a waiter.
fn lower_than<'a>(
    ledger: &'a Ledger,
    members: &'a Members,
    waiter: &'a Waiter,
) -> impl Iterator<Item = (Holder, Evictable)> {
    ledger.evictable(members).filter(|(_, row)| waiter.lanes.level_of(row.lane) > waiter.lane.level)
}

/// The VM that holds the newest request of the lowest lane below that of a waiter, among those that were not yet asked for all.
fn victim(ledger: &Ledger, members: &Members, waiter: &Waiter) -> Option<Holder> {
    let lower = || lower_than(ledger, members, waiter);
    let all_of = |holder: Holder| {
        let own = lower().filter(|(other, _)| *other == holder);
        own.fold(0_u64, |sum, (_, row)| sum.saturating_add(row.requests))
    };
    let candidates =
        lower().filter(|(holder, row)| row.requests > 0 && ledger.asked_of(*holder).requests < all_of(*holder));
    candidates.max_by_key(|(_, row)| (waiter.lanes.level_of(row.lane), row.newest)).map(|(holder, _)| holder)
}
