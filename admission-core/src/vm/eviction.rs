//! Requests in flight that give way: of a preemptible lane, while their answer has not begun.
//!
//! A VM whose waiter finds the pool at its cap asks, in the pool's record, the VM that holds the newest request of the
//! lowest lane. What has been asked and has not ended yet stands in the record, so no more is ever asked than waits.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::lease::{Evicted, Lease};
use super::{LeaseId, Vm, Wake};
use crate::forecast;
use crate::gather::gather;
use crate::ledger::{Evictable, Ledger};
use crate::members::{Holder, Members};
use crate::outcome::{Detail, Place, Reason, Refusal, Retry};
use crate::policy::{Lane, Lanes};
use crate::queue::Share;
use crate::store::{self, Store};
use crate::units::{Millis, Time};

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
    pub fn take_evictions(&mut self) -> Vec<LeaseId> {
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
        let share = self.queues.get(&pool_key).map_or_else(Share::default, |queue| queue.share(lane, &flow));
        let Place { position, wait } = forecast::place((&seen, &self.members), &lanes, lane, share, weight, now);
        let wait = wait.or_else(|| seen.time_to_free(position, &self.members)).unwrap_or_default();
        Some(self.promise(&seen, (pool_key, lane), wait, now))
    }

    /// Looks in every record that may ask this VM to evict: the message that says so may be lost.
    pub(super) fn evict_as_asked(&mut self, store: &impl Store) {
        let pools: BTreeSet<Rc<str>> = gather(self.evictable.keys().map(|(pool, _)| Rc::clone(pool)));
        pools.iter().for_each(|pool| self.evict(store, pool));
    }

    /// Chooses what this VM evicts, having been asked to in a pool's record, as long as somebody waits for it still.
    pub(super) fn evict(&mut self, store: &impl Store, pool_key: &Rc<str>) {
        let Some(holder) = self.holder else { return };
        let Ok((ledger, _)) = store::read::<Ledger>(store, pool_key) else { return };
        let evicting =
            self.evicting.iter().filter(|id| self.leases.get(id).is_some_and(|lease| lease.pool_key == *pool_key));
        let evicting = evicting.count() as u64;
        let wanted = ledger.asked_of(holder).saturating_sub(evicting);
        let of_pool = self.evictable.iter().filter(|((key, _), _)| key == pool_key).flat_map(|(_, ids)| ids);
        let others = of_pool.filter(|(_, id)| !self.evicting.contains(id));
        let position = |id| self.leases.get(id).map_or(0, |lease: &Lease| lease.lanes.position_of(lease.lane));
        let mut others: Vec<(usize, Time, LeaseId)> = others.map(|(at, id)| (position(id), *at, *id)).collect();
        // The lowest lane first, and of a lane the newest.
        others.sort_unstable();
        let is_wanted = |id: LeaseId, before: u64| {
            self.leases.get(&id).is_some_and(|lease| waiting_above(&ledger, &self.members, lease) > before)
        };
        let in_turn = others.into_iter().rev().zip(evicting..evicting.saturating_add(wanted));
        let chosen = in_turn.take_while(|((.., id), before)| is_wanted(*id, *before));
        let chosen: Vec<LeaseId> = chosen.map(|((.., id), _)| id).collect();
        let missing = wanted.saturating_sub(chosen.len() as u64);
        self.evicting.extend(chosen.iter().copied());
        self.evictions.extend(chosen);
        if missing > 0 {
            let evicted = Evicted { lanes: self.evictable_in(pool_key), ended: missing };
            self.publish_evicted(store, pool_key, &evicted);
        }
    }

    /// Asks for one eviction on behalf of a waiter of a lane that finds the pool at its cap, unless as many have been asked
    /// for as are in line.
    pub(super) fn ask_to_evict(&mut self, store: &impl Store, pool_key: &Rc<str>, lane: &Lane, lanes: &Lanes) {
        let members = &self.members;
        let asked = store::update(store, pool_key, |ledger: &mut Ledger| {
            let lower = ledger.evictable(members).filter(|(_, lower)| lanes.position_of(lower.lane) > lane.position);
            let (holder, _) = lower
                .filter(|(holder, lower)| {
                    lower.requests > 0 && ledger.asked_of(*holder) < evictable_of(ledger, members, *holder)
                })
                .max_by_key(|(_, lower)| (lanes.position_of(lower.lane), lower.newest))
                .ok_or(())?;
            let waiting = ledger.waiting(members).filter(|(other, _)| lanes.position_of(*other) <= lane.position);
            let demand = waiting.fold(0_u64, |sum, (_, backlog)| sum.saturating_add(backlog.in_line()));
            if ledger.asked_to_evict(members) >= demand {
                return Err(());
            }
            let asked = ledger.asked_of(holder).saturating_add(1);
            ledger.ask_of(members, holder, asked);
            Ok(holder)
        });
        if let Ok(Ok(holder)) = asked {
            self.wakes.push(Wake::evict(holder.slot, pool_key));
        }
    }

    pub(super) fn note_evictable(&mut self, lease: &Lease, id: LeaseId, now: Time) {
        if lease.preemptible {
            self.evictable.entry((Rc::clone(&lease.pool_key), lease.lane)).or_default().insert((now, id));
        }
    }

    /// What the record is to say once a request cannot be evicted any more; `None` for one that never could.
    pub(super) fn forget_evictable(&mut self, lease: &Lease, id: LeaseId) -> Option<Evicted> {
        let ids = self.evictable.get_mut(&(Rc::clone(&lease.pool_key), lease.lane))?;
        let before = ids.len();
        ids.retain(|(_, other)| *other != id);
        let ended = u64::from(self.evicting.remove(&id));
        let was_listed = ids.len() < before;
        self.evictable.retain(|_, ids| !ids.is_empty());
        was_listed.then(|| Evicted { lanes: self.evictable_in(&lease.pool_key), ended })
    }

    /// What this VM could evict once a request has started.
    pub(super) fn evictable_with(&self, lease: &Lease, now: Time) -> Vec<Evictable> {
        let mut lanes = self.evictable_in(&lease.pool_key);
        match lanes.iter_mut().find(|other| other.lane == lease.lane) {
            Some(other) => {
                (other.requests, other.newest) = (other.requests.saturating_add(1), other.newest.max(now));
            }
            None => lanes.push(Evictable { lane: lease.lane, requests: 1, newest: now }),
        }
        lanes
    }

    pub(super) fn evictable_in(&self, pool_key: &Rc<str>) -> Vec<Evictable> {
        let of_pool = self.evictable.iter().filter(|((key, _), _)| key == pool_key);
        let lanes = of_pool.filter_map(|((_, lane), ids)| {
            let (newest, _) = *ids.last()?;
            Some(Evictable { lane: *lane, requests: ids.len() as u64, newest })
        });
        lanes.collect()
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

/// Requests that wait in lanes above that of one in flight.
fn waiting_above(ledger: &Ledger, members: &Members, lease: &Lease) -> u64 {
    let position = |lane| lease.lanes.position_of(lane);
    let above = ledger.waiting(members).filter(|(lane, _)| position(*lane) < position(lease.lane));
    above.fold(0, |sum, (_, backlog)| sum.saturating_add(backlog.in_line()))
}

fn evictable_of(ledger: &Ledger, members: &Members, holder: Holder) -> u64 {
    let own = ledger.evictable(members).filter(|(other, _)| *other == holder);
    own.fold(0, |sum, (_, lane)| sum.saturating_add(lane.requests))
}
