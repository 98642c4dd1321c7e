//! Fit of requests into the free KV blocks of the workers.

use std::sync::Arc;

use super::sight::{Scene, Sight};
use super::{Known, advice};
use crate::ledger::{Head, Ledger, TallyKey, Yielding};
use crate::members::{Holder, Members};
use crate::outcome::{Detail, Limit, Reason, Refusal, Retry};
use crate::policy::{BlockShare, Lane, Lanes, Pool};
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
pub fn rooms((pool, lanes): (&Pool, &Lanes), known: Known<'_>, counted: (&Ledger, &Members), now: Time) -> Vec<Rooms> {
    let scene = Scene::of((pool, lanes), known, counted, now);
    let of_lane = |lane: &Lane| {
        let room = |can_be_steered| scene.free_for(can_be_steered).map(|free| free.room(&scene, lane));
        Rooms { steered: room(true), unsteered: room(false) }
    };
    lanes.iter().map(|lane| of_lane(lane)).collect()
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
        let kept = scene.kept_blocks(lane, self.usable).free;
        Blocks(self.all.0.saturating_sub(kept.0)).min(self.one)
    }

    /// Room for the requests of a lane.
    fn room(&self, scene: &Scene<'_>, lane: &Lane) -> Room {
        let kept = scene.kept_blocks(lane, self.usable);
        let most = Blocks(self.usable.0.saturating_sub(kept.most.0)).min(self.most);
        Room { most, free: self.of_lane(scene, lane), block_size: self.block_size }
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
            let lane = self.lanes.at(self.lanes.position_of(one.head.band));
            let free = if one.steered { steered } else { unsteered };
            free.is_none_or(|free| one.blocks <= free.of_lane(self, lane))
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
        let Room { most, free: for_lane, .. } = free.room(self, lane);
        let reserve = self.kept_blocks(lane, free.usable).knob;
        let refuse = |reason, knob, measured, allowed, retry| {
            let limit = Limit { knob: Arc::clone(knob), measured, allowed, unit: "KV blocks" };
            Err(Refusal { reason, limit: Some(limit), detail: Detail::None, retry, place: None })
        };
        if let Some(Blocks(whole)) = whole
            && whole > most.0
        {
            let max_share = &self.pool.max_share.as_ref().unwrap_or(free.headroom).knob;
            let knob = if whole > free.most.0 { max_share } else { reserve.unwrap_or(max_share) };
            return refuse(Reason::Oversize, knob, whole, most.0, Retry::Never);
        }
        let needed_here = needed.min(most);
        if needed_here <= for_lane {
            return Ok(());
        }
        let is_kept = needed_here <= free.one.min(free.all);
        let knob = reserve.filter(|_| is_kept).unwrap_or(&free.headroom.knob);
        refuse(Reason::KvBlocks, knob, needed.0, for_lane.0, advice(Some((self.ledger, self.members)), 1))
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
