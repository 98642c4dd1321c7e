//! Requests that a VM could evict, and those that it has been asked to.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::lease::{Evicted, Lease};
use super::leases::Leases;
use super::{Eviction, LeaseId};
use crate::gather::gather;
use crate::ledger::{Amount, Evictable, LaneKey};
use crate::units::{Blocks, Time};

/// Requests of a VM that may be evicted, and those that are on their way out.
#[derive(Default)]
pub(super) struct Evictions {
    /// Requests that may be evicted, by pool and lane.
    evictable: BTreeMap<(Rc<str>, LaneKey), Victims>,
    /// Requests that are to be evicted and have not ended yet.
    evicting: BTreeSet<LeaseId>,
    /// Evictions that are still to be carried out.
    chosen: Vec<Eviction>,
    /// Pools whose record said, when last read, that this VM is asked to evict.
    asked_in: BTreeSet<Rc<str>>,
}

impl Evictions {
    /// Evictions to be carried out now.
    pub(super) fn take(&mut self) -> Vec<Eviction> {
        std::mem::take(&mut self.chosen)
    }

    /// True for a request on its way out.
    pub(super) fn is_evicting(&self, id: LeaseId) -> bool {
        self.evicting.contains(&id)
    }

    /// Marks a request as one that is to be evicted.
    pub(super) fn choose(&mut self, lease: &Lease, id: LeaseId) {
        self.evicting.insert(id);
        self.chosen.push(Eviction { owner: lease.owner, lease: id });
    }

    /// Pools in whose records this VM may be asked to evict.
    // Why those too in which it was asked: a VM that holds nothing any more takes back what is still asked of it.
    pub(super) fn pools(&self) -> BTreeSet<Rc<str>> {
        let of_victims = self.evictable.keys().map(|(pool, _)| Rc::clone(pool));
        gather(of_victims.chain(self.asked_in.iter().cloned()))
    }

    /// Notes whether the record of a pool asks this VM to evict.
    pub(super) fn note_asked(&mut self, pool_key: &Rc<str>, is_asked: bool) {
        if is_asked {
            self.asked_in.insert(Rc::clone(pool_key));
        } else {
            self.asked_in.remove(pool_key);
        }
    }

    /// Requests of a pool that may be evicted and are not on their way out, in the order in which they are: the lowest lane first, and of a lane
    /// the newest.
    pub(super) fn candidates(&self, pool_key: &Rc<str>, leases: &Leases) -> Vec<LeaseId> {
        let of_pool = self.evictable.iter().filter(|((key, _), _)| key == pool_key);
        let others = of_pool.flat_map(|(_, victims)| victims.ids()).filter(|(_, id)| !self.is_evicting(*id));
        let level = |id| leases.get(id).map_or(0, |lease| lease.lanes.level_of(lease.lane));
        let mut others: Vec<(usize, Time, LeaseId)> = others.map(|(at, id)| (level(id), at, id)).collect();
        others.sort_unstable();
        others.into_iter().rev().map(|(.., id)| id).collect()
    }

    /// Amount that is held by requests that are being evicted.
    pub(super) fn amount_being_evicted(&self, pool_key: &Rc<str>, leases: &Leases) -> Amount {
        let evicted = self.evicting.iter().filter_map(|id| Some((*id, leases.get(*id)?)));
        let of_pool = evicted.filter(|(_, lease)| lease.pool_key == *pool_key);
        of_pool.fold(Amount::default(), |sum, (id, lease)| sum.plus(self.amount_of(lease, id)))
    }

    /// Amount that the eviction of a request brings, as it was counted when that began.
    pub(super) fn amount_of(&self, lease: &Lease, id: LeaseId) -> Amount {
        let victims = self.evictable.get(&(Rc::clone(&lease.pool_key), lease.lane));
        victims.and_then(|victims| victims.blocks_of(lease.started, id)).map_or_else(Amount::default, one_with)
    }

    /// Notes what a request holds that can be evicted; the record says so with the next request of the lane that starts or ends.
    pub(super) fn note(&mut self, lease: &Lease, id: LeaseId) {
        // Why not one on its way out: its blocks are counted against what was asked for.
        if lease.preemptible && !self.is_evicting(id) {
            let victims = self.evictable.entry((Rc::clone(&lease.pool_key), lease.lane)).or_default();
            victims.set(lease.started, id, lease.amount.blocks);
        }
    }

    /// Change of the record when a request cannot be evicted any more; `None` for one that never could.
    pub(super) fn forget(&mut self, lease: &Lease, id: LeaseId) -> Option<Evicted> {
        let of_lane = (Rc::clone(&lease.pool_key), lease.lane);
        let victims = self.evictable.get_mut(&of_lane)?;
        let blocks = victims.remove(lease.started, id);
        if victims.is_empty() {
            self.evictable.remove(&of_lane);
        }
        let is_evicted = self.evicting.remove(&id);
        let blocks = blocks?;
        let asked = if is_evicted { one_with(blocks) } else { Amount::default() };
        Some(Evicted { lanes: self.rows(&lease.pool_key), asked, given: Amount::default(), gone: None })
    }

    /// Rows for a pool's record.
    pub(super) fn rows(&self, pool_key: &Rc<str>) -> Vec<Evictable> {
        let of_pool = self.evictable.iter().filter(|((key, _), _)| key == pool_key);
        of_pool.filter_map(|((_, lane), victims)| victims.row(*lane)).collect()
    }

    /// Rows for the pool's record once a request has started.
    pub(super) fn rows_with(&self, lease: &Lease) -> Vec<Evictable> {
        let mut lanes = self.rows(&lease.pool_key);
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
}

fn one_with(blocks: Blocks) -> Amount {
    Amount { requests: 1, blocks, ..Amount::default() }
}

/// Requests of one pool and lane that a VM could evict; some may be on their way out.
#[derive(Debug, Default)]
struct Victims {
    /// Blocks of each, the newest last.
    by_start: BTreeMap<(Time, LeaseId), Blocks>,
    /// Blocks of all.
    blocks: u64,
}

impl Victims {
    /// Puts a request in, or sets the blocks of one that is in.
    fn set(&mut self, started: Time, id: LeaseId, blocks: Blocks) {
        let before = self.by_start.insert((started, id), blocks).unwrap_or_default();
        self.blocks = self.blocks.saturating_sub(before.0).saturating_add(blocks.0);
    }

    /// Takes a request out, and gives its blocks; `None` where it was not in.
    fn remove(&mut self, started: Time, id: LeaseId) -> Option<Blocks> {
        let blocks = self.by_start.remove(&(started, id))?;
        self.blocks = self.blocks.saturating_sub(blocks.0);
        Some(blocks)
    }

    /// Blocks of a request that is in.
    fn blocks_of(&self, started: Time, id: LeaseId) -> Option<Blocks> {
        self.by_start.get(&(started, id)).copied()
    }

    fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Start and lease of each.
    fn ids(&self) -> impl Iterator<Item = (Time, LeaseId)> {
        self.by_start.keys().copied()
    }

    /// The row for the pool's record; `None` without requests.
    fn row(&self, lane: LaneKey) -> Option<Evictable> {
        let ((newest, _), _) = self.by_start.last_key_value()?;
        let (requests, blocks) = (self.by_start.len() as u64, Blocks(self.blocks));
        Some(Evictable { lane, requests, blocks, newest: *newest })
    }
}
