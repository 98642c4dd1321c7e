//! Workers that a request can be steered to, with what they were given since their numbers were read.

use std::sync::Arc;

use super::sight::{Scene, Sight};
use super::{advice, within};
use crate::endpoint::{self, Choice, Endpoint, Open};
use crate::gather::gather;
use crate::ledger::TallyKey;
use crate::outcome::{Detail, Limit, Reason, Refusal};
use crate::units::Blocks;
use crate::view::{Takes, ViewSummary};

impl<'a> Scene<'a> {
    /// Free workers that a request can be steered to; `None` where the choice is the proxy's: without a fresh view, and where
    /// no worker that looks free has an address that a proxy can use.
    ///
    /// A worker is as good as busy that has refused since the view came, or that holds as many blocks of requests begun since
    /// its numbers were read as make it busy.
    fn open_workers(&self) -> Option<Vec<Open<'a>>> {
        let (Sight::Fresh(view), Some(workers), true) = (self.sight, self.workers, self.pool.pick_endpoint) else {
            return None;
        };
        let marked: Vec<_> = self.ledger.marked(view.stamp(), self.now).collect();
        let tallies = self.ledger.tallies(self.members);
        let unseen = self.ledger.unseen_at_workers(view.credit, self.members);
        let look_free = endpoint::look_free(workers, &marked);
        if look_free.is_empty() {
            return None;
        }
        let open = look_free.into_iter().filter_map(|seen| {
            let key = TallyKey::worker(seen.key);
            let unseen = unseen.get(&key).copied().unwrap_or_default();
            if seen.takes.until_busy.is_some_and(|until_busy| unseen.0 >= until_busy) {
                return None;
            }
            let blocks = self.free_at(view, seen.takes, unseen);
            Some(Open { seen, held: tallies.get(&key).copied().unwrap_or(0), blocks })
        });
        Some(gather(open))
    }

    /// Blocks that one request may take at a worker; without bound where blocks are not counted, or its engine never reports them.
    fn free_at(&self, view: &ViewSummary, takes: Takes, unseen: Blocks) -> Blocks {
        let (Some(headroom), Some(_), Some((all, freest))) = (&self.pool.headroom, view.kv, takes.kv) else {
            return Blocks(u64::MAX);
        };
        let of_all = all.less(headroom.share).free.0.saturating_sub(unseen.0);
        Blocks(freest.less(headroom.share).free.0.min(of_all))
    }

    /// Blocks that one request may take at the worker with most room below its cap; `None` where the choice is the proxy's.
    pub(super) fn free_where_steered(&self) -> Option<Blocks> {
        let open = self.open_workers()?;
        let cap = self.pool.max_in_flight_per_worker.as_ref().map_or(u64::MAX, |cap| cap.limit);
        let below_cap = open.iter().filter(|open| open.held < cap).map(|open| open.blocks).max();
        // Why then all: that every worker is at its cap is for the cap to say.
        below_cap.or_else(|| open.iter().map(|open| open.blocks).max())
    }

    /// Fit of what a steered lease grows by into the free blocks of its worker. A worker that is no longer listed holds back nothing.
    pub(super) fn fits_at_worker(&self, worker: TallyKey, by: Blocks) -> Result<(), Refusal> {
        let (Sight::Fresh(view), Some(workers), Some(headroom)) = (self.sight, self.workers, &self.pool.headroom)
        else {
            return Ok(());
        };
        let Some(seen) = workers.list.iter().find(|seen| TallyKey::worker(seen.key) == worker) else { return Ok(()) };
        let unseen = self.ledger.unseen_at_workers(view.credit, self.members).get(&worker).copied().unwrap_or_default();
        let free = self.free_at(view, seen.takes, unseen);
        if by <= free {
            return Ok(());
        }
        let knob = Arc::clone(&headroom.knob);
        let limit = Limit { knob, measured: by.0, allowed: free.0, unit: "KV blocks of its worker" };
        let retry = advice(Some((self.ledger, self.members)), 1);
        Err(Refusal { reason: Reason::KvBlocks, limit: Some(limit), detail: Detail::None, retry, place: None })
    }

    /// Some worker is not busy.
    pub(super) fn some_worker_is_free(&self) -> Result<(), Refusal> {
        let Sight::Fresh(view) = self.sight else { return Ok(()) };
        let refusing = self.ledger.marked(view.stamp(), self.now).count() as u64;
        let detail = if u64::from(view.free_workers) <= refusing {
            if refusing > 0 { Detail::Fixed("those that looked free have just refused") } else { Detail::None }
        } else if self.open_workers().is_some_and(|open| open.is_empty()) {
            Detail::Fixed("those that looked free have been given as much since as makes them busy")
        } else {
            return Ok(());
        };
        let busy = u64::from(view.live_workers);
        let knob = Arc::clone(&self.pool.busy_knob);
        let limit = Limit { knob, measured: busy, allowed: busy.saturating_sub(1), unit: "busy workers" };
        let retry = advice(Some((self.ledger, self.members)), 1);
        Err(Refusal { reason: Reason::AllBusy, limit: Some(limit), detail, retry, place: None })
    }

    /// The least loaded worker below its own cap that has room for the blocks.
    pub(super) fn at_a_worker(&self, blocks: Blocks) -> Result<Option<Endpoint>, Refusal> {
        let Some(mut open) = self.open_workers() else { return Ok(None) };
        // Why the least of both: a guess needs no more than there could be.
        let blocks = self.most_of_one().map_or(blocks, |most| blocks.min(most));
        open.retain(|open| blocks <= open.blocks);
        let cap = self.pool.max_in_flight_per_worker.as_ref();
        match (endpoint::choose(&open, cap.map(|cap| cap.limit)), cap) {
            (Choice::Chosen { first, second }, _) => Ok(Some(Endpoint::of(first, second))),
            (Choice::AllAtCap { fewest }, Some(cap)) => {
                let (unit, counted) = ("requests on the freest worker", (self.ledger, self.members));
                within(cap, fewest.saturating_add(1), unit, Reason::PoolRequests, counted).map(|()| None)
            }
            (Choice::AllAtCap { .. } | Choice::Nobody, _) => Ok(None),
        }
    }
}
