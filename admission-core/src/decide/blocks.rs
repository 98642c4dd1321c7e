//! Fit of requests into the free KV blocks of the workers.

use std::sync::Arc;

use super::sight::{Scene, Sight};
use super::{Known, advice};
use crate::ledger::{Head, Ledger, TallyKey, Yielding};
use crate::members::{Holder, Members};
use crate::outcome::{Detail, Limit, Reason, Refusal, Retry};
use crate::policy::{BlockShare, Lanes, Pool};
use crate::units::{Blocks, Time};
use crate::view::{KvBlocks, PoolKv, ViewSummary};

/// KV blocks that requests may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Blocks that one request could have if nothing else were held.
    pub most: Blocks,
    /// Blocks that are free now.
    pub free: Blocks,
    /// Tokens in a block.
    pub block_size: u32,
}

impl Room {
    /// Blocks that a request needs of this room: a guess needs no more than there could be.
    #[must_use]
    pub fn need(self, blocks: Blocks, is_guess: bool) -> Blocks {
        if is_guess { blocks.min(self.most) } else { blocks }
    }
}

/// KV blocks that requests to a pool may take now; `None` where blocks are not counted or not known.
#[must_use]
pub fn room((pool, lanes): (&Pool, &Lanes), known: Known<'_>, counted: (&Ledger, &Members), now: Time) -> Option<Room> {
    Scene::of((pool, lanes), known, counted, now).room().map(|(room, _)| room)
}

/// Sentence for the log where the blocks of a pool with `kv` are counted otherwise than its configuration says, or not at all.
#[must_use]
pub fn kv_notice(pool: &Pool, view: &ViewSummary) -> Option<String> {
    let (name, headroom) = (&pool.name, pool.headroom.as_ref()?);
    if view.kv.is_none() {
        return Some(format!(
            "{}: no live worker of pool {name} reports its KV blocks, so nothing is measured against them",
            headroom.knob
        ));
    }
    let (engine, configured) = (view.block_size?, pool.block_size);
    (engine != configured).then(|| {
        format!(
            "pool {name}: kv.block_size is {configured}, its workers report {engine} tokens in a block, which counts"
        )
    })
}

impl Scene<'_> {
    /// KV blocks that a request may take now; `None` where blocks are not counted or not known.
    pub(super) fn free_blocks(&self) -> Option<Blocks> {
        self.room().map(|(room, _)| room.free)
    }

    /// The same for a request that can be steered, or cannot.
    fn free_blocks_for(&self, can_be_steered: bool) -> Option<Blocks> {
        self.room_of(if can_be_steered { self.free_at_open_workers() } else { None }).map(|(room, _)| room.free)
    }

    /// First waiters of each VM, but for those that let others pass until their blocks are free.
    pub(super) fn heads(&self) -> impl Iterator<Item = (Holder, &Head)> {
        let (ledger, members) = (self.ledger, self.members);
        let mut yielding = ledger.yielding(members).peekable();
        // Why only then: most pools have none, and what is free takes a sum over all that began lately.
        let free = yielding.peek().map(|_| [false, true].map(|steered| self.free_blocks_for(steered)));
        let fits = move |one: &Yielding| {
            let [unsteered, steered] = free.unwrap_or_default();
            (if one.steered { steered } else { unsteered }).is_none_or(|free| one.blocks <= free)
        };
        let fitting = yielding.filter(move |(_, one)| fits(one));
        ledger.heads(members).chain(fitting.map(|(holder, one)| (holder, &one.head)))
    }

    /// Fit of a request into the free blocks of some room. `whole` is all that the request needs, where that is certain.
    pub(super) fn fits_free_blocks(
        &self,
        needed: Blocks,
        whole: Option<Blocks>,
        room: Option<(Room, &BlockShare)>,
    ) -> Result<(), Refusal> {
        let Some((Room { most, free, .. }, headroom)) = room else { return Ok(()) };
        let max_share = self.pool.max_share.as_ref().unwrap_or(headroom);
        let refuse = |reason, measured, allowed, retry| {
            let share = if reason == Reason::Oversize { max_share } else { headroom };
            let limit = Limit { knob: Arc::clone(&share.knob), measured, allowed, unit: "KV blocks" };
            Err(Refusal { reason, limit: Some(limit), detail: Detail::None, retry, place: None })
        };
        if let Some(Blocks(whole)) = whole
            && whole > most.0
        {
            return refuse(Reason::Oversize, whole, most.0, Retry::Never);
        }
        if needed.min(most) <= free {
            return Ok(());
        }
        refuse(Reason::KvBlocks, needed.0, free.0, advice(Some((self.ledger, self.members)), 1))
    }

    /// Blocks that one request could have if nothing else were held; `None` where blocks are not counted or not known.
    pub(super) fn most_of_one(&self) -> Option<Blocks> {
        let (Sight::Fresh(view), Some(headroom)) = (self.sight, &self.pool.headroom) else { return None };
        let kv = view.kv?;
        // Why no bound while one is unknown: that cache may be the largest.
        Some(Blocks(if view.kv_unknown > 0 { u64::MAX } else { self.usable_by_one(kv, headroom) }))
    }

    /// Blocks that one request may take: those free in the freest cache, and those free in all less what leases hold that began
    /// after the scrape; each less the headroom. Where requests are steered, the first is that of the worker with most room, less
    /// what leases hold that were steered to it since.
    pub(super) fn room(&self) -> Option<(Room, &BlockShare)> {
        self.room_of(self.free_where_steered())
    }

    /// The same for what a lease grows by, which was steered to a worker; of one that was not, no one knows where it is.
    pub(super) fn room_at(&self, worker: Option<TallyKey>) -> Option<(Room, &BlockShare)> {
        self.room_of(worker.and_then(|worker| self.free_at_worker(worker)))
    }

    /// The same where one request may take so much; `None` for what the freest cache has.
    fn room_of(&self, of_one: Option<Blocks>) -> Option<(Room, &BlockShare)> {
        let (Sight::Fresh(view), Some(headroom)) = (self.sight, &self.pool.headroom) else { return None };
        let kv = view.kv?;
        let (all, freest) = (kv.all.less(headroom.share), kv.freest.map(|cache| cache.less(headroom.share)));
        let of_all = all.free.0.saturating_sub(self.unseen_blocks(view));
        let free = of_one.or(freest.map(|cache| cache.free)).map_or(of_all, |one| one.0.min(of_all));
        let block_size = view.block_size.unwrap_or(self.pool.block_size);
        Some((Room { most: self.most_of_one()?, free: Blocks(free), block_size }, headroom))
    }

    /// Blocks of the largest cache that one request may need at most.
    fn usable_by_one(&self, kv: PoolKv, headroom: &BlockShare) -> u64 {
        // Why the sum: a summary of an older version does not name the caches.
        if kv.freest.is_none() {
            return kv.all.less(headroom.share).total.0;
        }
        let usable = KvBlocks { total: kv.largest, free: kv.largest }.less(headroom.share).total.0;
        // Why a little more: 0.29 of 100 comes to less than 29.
        let by_share = |max: &BlockShare| (kv.largest.0 as f64 * max.share + 1e-6).floor() as u64;
        self.pool.max_share.as_ref().map_or(usable, |max| by_share(max).min(usable))
    }
}
