//! Fit of requests into the free KV blocks of the workers.

use std::sync::Arc;

use super::reserve::KeptBlocks;
use super::sight::{Scene, Sight};
use super::{Known, advice};
use crate::ledger::{Counted, Head, TallyKey, Yielding};
use crate::members::Holder;
use crate::outcome::{Detail, Limit, Reason, Refusal, Retry};
use crate::policy::{BlockShare, Lane, Lanes, Pool};
use crate::units::{Blocks, Time};
use crate::view::{KvBlocks, PoolKv, ViewSummary};

/// KV blocks that requests may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Blocks that one request could have if nothing else were held.
    pub most: Blocks,
    /// The same for requests of its lane, which leave others what is kept for them.
    pub most_of_lane: Blocks,
    /// Blocks that are free now for one request.
    pub free: Blocks,
    /// Blocks that are free now in all caches.
    pub idle: Blocks,
    /// Tokens in a block.
    pub block_size: u32,
}

impl Room {
    /// Blocks that a request needs of this room: a guess needs no more than there could be.
    #[must_use]
    pub fn need(self, blocks: Blocks, is_guess: bool) -> Blocks {
        if is_guess { blocks.min(self.most_of_lane) } else { blocks }
    }
}

/// KV blocks that requests of a lane may take; `None` where blocks are not counted or not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rooms {
    /// Room for requests that can be steered to a worker.
    pub steered: Option<Room>,
    /// Room for requests whose worker the proxy chooses.
    pub unsteered: Option<Room>,
}

/// The rooms of each lane of a pool now, highest first.
#[must_use]
pub fn rooms(pool: &Pool, lanes: &Lanes, known: Known<'_>, counted: Counted<'_>, now: Time) -> Vec<Rooms> {
    let scene = Scene::of(pool, lanes, known, counted, now);
    // Why here: what is free takes a look at all workers and all that began lately.
    let [steered, unsteered] = [true, false].map(|can_be_steered| scene.free_for(can_be_steered));
    let room = |free: Option<Free<'_>>, lane: &Lane| free.map(|free| free.room(&scene.kept_blocks(lane, free.usable)));
    lanes.iter().map(|lane| Rooms { steered: room(steered, lane), unsteered: room(unsteered, lane) }).collect()
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

/// KV blocks that are free, before what is kept for lanes.
#[derive(Clone, Copy)]
pub(super) struct Free<'a> {
    /// Blocks that one request could have if nothing else were held.
    most: Blocks,
    /// Blocks that are free for one request.
    one: Blocks,
    /// Blocks that are free in all caches.
    all: Blocks,
    /// Blocks of all caches, held or free.
    usable: Blocks,
    /// Tokens in a block.
    block_size: u32,
    /// The share that is never given out.
    headroom: &'a BlockShare,
}

impl Free<'_> {
    /// Blocks that are free for a request of a lane.
    pub(super) fn of_lane(&self, scene: &Scene<'_>, lane: &Lane) -> Blocks {
        self.room(&scene.kept_blocks(lane, self.usable)).free
    }

    /// Room for the requests of a lane, from which so much is kept.
    fn room(&self, kept: &KeptBlocks<'_>) -> Room {
        let less = |blocks: Blocks, kept: Blocks| Blocks(blocks.0.saturating_sub(kept.0));
        // Why only then: while a worker tells nothing, its cache may be larger than all the others.
        let most_of_lane = match (self.most, kept.most) {
            (Blocks(u64::MAX), _) | (_, Blocks(0)) => self.most,
            (most, kept) => less(self.usable, kept).min(most),
        };
        let idle = less(self.all, kept.free);
        Room { most: self.most, most_of_lane, free: idle.min(self.one), idle, block_size: self.block_size }
    }
}

impl<'a> Scene<'a> {
    /// First waiters of each VM, but for those that let others pass until their blocks are free.
    pub(super) fn heads(&self) -> impl Iterator<Item = (Holder, &Head)> {
        let (ledger, members) = (self.ledger, self.members);
        let mut yielding = ledger.yielding(members).peekable();
        // Why only then: most pools have none, and what is free takes a sum over all that began lately.
        let free = yielding.peek().map(|_| [false, true].map(|steered| self.free_for(steered)));
        let fits = move |one: &Yielding| {
            let [unsteered, steered] = free.unwrap_or_default();
            let free = if one.steered { steered } else { unsteered };
            free.is_none_or(|free| one.blocks <= free.of_lane(self, self.keeps_as(&one.head)))
        };
        let fitting = yielding.filter(move |(_, one)| fits(one));
        ledger.heads(members).chain(fitting.map(|(holder, one)| (holder, &one.head)))
    }

    /// Fit of a request of a lane into the free blocks. `whole` is all that the request needs, where that is certain.
    pub(super) fn fits_free_blocks(
        &self,
        needed: Blocks,
        whole: Option<Blocks>,
        lane: &Lane,
        free: Option<Free<'a>>,
    ) -> Result<(), Refusal> {
        let Some(free) = free else { return Ok(()) };
        let kept = self.kept_blocks(lane, free.usable);
        let room = free.room(&kept);
        let refuse = |reason, knob, measured, allowed, retry| {
            let limit = Limit { knob: Arc::clone(knob), measured, allowed, unit: "KV blocks" };
            Err(Refusal { reason, limit: Some(limit), detail: Detail::None, retry, place: None })
        };
        if let Some(Blocks(whole)) = whole
            && whole > room.most.0
        {
            let knob = &self.pool.max_share.as_ref().unwrap_or(free.headroom).knob;
            return refuse(Reason::Oversize, knob, whole, room.most.0, Retry::Never);
        }
        let need = room.need(needed, whole.is_none());
        if need <= room.free {
            return Ok(());
        }
        let is_kept = need <= free.one.min(free.all);
        let knob = kept.knob.filter(|_| is_kept).unwrap_or(&free.headroom.knob);
        refuse(Reason::KvBlocks, knob, needed.0, room.free.0, advice(Some(self.ledger.counted(self.members)), 1))
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
    /// what leases hold that were steered to it since. `None` where blocks are not counted or not known.
    pub(super) fn free(&self) -> Option<Free<'a>> {
        self.free_for(self.can_be_steered)
    }

    /// The same for a request that can be steered, or cannot.
    fn free_for(&self, can_be_steered: bool) -> Option<Free<'a>> {
        self.free_of(if can_be_steered { self.free_at_open_workers() } else { None })
    }

    /// The same for what a lease grows by, which was steered to a worker; of one that was not, no one knows where it is.
    pub(super) fn free_beside(&self, worker: Option<TallyKey>) -> Option<Free<'a>> {
        self.free_of(worker.and_then(|worker| self.free_at_worker(worker)))
    }

    /// The same where one request may take so much; `None` for what the freest cache has.
    fn free_of(&self, of_one: Option<Blocks>) -> Option<Free<'a>> {
        let (Sight::Fresh(view), Some(headroom)) = (self.sight, &self.pool.headroom) else { return None };
        let kv = view.kv?;
        let (all, freest) = (kv.all.less(headroom.share), kv.freest.map(|cache| cache.less(headroom.share)));
        let of_all = Blocks(all.free.0.saturating_sub(self.unseen_blocks(view)));
        let one = of_one.or(freest.map(|cache| cache.free)).unwrap_or(of_all);
        let block_size = view.block_size.unwrap_or(self.pool.block_size);
        Some(Free { most: self.most_of_one()?, one, all: of_all, usable: all.total, block_size, headroom })
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
