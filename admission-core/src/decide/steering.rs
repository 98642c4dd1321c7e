//! Workers that requests are steered to, with what they were given since their numbers were read.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::sight::{Scene, Sight, Steering};
use super::{advice, within};
use crate::endpoint::{self, Choice, Endpoint, Open};
use crate::gather::gather;
use crate::ledger::TallyKey;
use crate::outcome::{Detail, Limit, Reason, Refusal};
use crate::units::Blocks;
use crate::view::{Seen, Takes, ViewSummary, Workers};

/// A worker, and what it holds by our own count.
struct Given<'a> {
    key: TallyKey,
    seen: &'a Seen,
    /// Requests that its numbers show, of those that this proxy has admitted since it started.
    since: u64,
    /// Requests.
    held: u64,
    /// Blocks of requests begun since its numbers were read.
    unseen: Blocks,
    /// Prompt tokens that it has been sent, of requests whose answers have not begun.
    prompts: u64,
}

/// The worker with a key, in a list by keys.
fn find<'list, 'a>(all: &'list mut [Given<'a>], key: TallyKey) -> Option<&'list mut Given<'a>> {
    let place = all.binary_search_by_key(&key, |given| given.key).ok()?;
    all.get_mut(place)
}

/// Looks at every worker that the view lists. One is as good as busy that has refused since the view came, that holds as many
/// blocks of requests begun since its numbers were read as make it busy, or that has more prompts to read than its threshold allows.
fn steering<'a>(scene: &Scene<'a>, view: &ViewSummary, workers: &'a Workers) -> Steering<'a> {
    let (given, shown) = given_to(scene, view, workers);
    let marked: Vec<_> = scene.ledger.marked(view.stamp(), scene.now).collect();
    let (mut open, mut has_address, mut has_name) = (Vec::new(), false, false);
    for Given { seen, held, unseen, prompts, .. } in
        given.into_iter().filter(|given| endpoint::looks_free(given.seen, &marked))
    {
        has_address |= seen.is_ip_and_port;
        has_name |= !seen.is_ip_and_port;
        let is_busy = seen.takes.until_busy.is_some_and(|until_busy| unseen.0 >= until_busy)
            || scene.prefill_limit(view).is_some_and(|limit| prompts > limit);
        if seen.is_ip_and_port && !is_busy {
            open.push(Open { seen, held, blocks: scene.free_at(view, seen.takes, unseen) });
        }
    }
    let is_proxys = open.is_empty() && (has_name || !has_address);
    // Why not a later list's: the numbers of the view do not show as much.
    let shown = if workers.stamp() == view.stamp() { shown } else { Blocks(0) };
    Steering { open: (!is_proxys).then_some(open), shown }
}

/// Every worker with what it holds, in the order of their keys; and the blocks that are in the numbers of their own worker, but not in
/// the oldest numbers of the view.
fn given_to<'a>(scene: &Scene<'a>, view: &ViewSummary, workers: &'a Workers) -> (Vec<Given<'a>>, Blocks) {
    let (ledger, members) = (scene.ledger, scene.members);
    let mut all: Vec<_> = gather(workers.list.iter().map(|seen| Given {
        key: TallyKey::worker(seen.key),
        seen,
        since: ledger.seen_at_worker(view.credit, seen.takes.admitted),
        held: 0,
        unseen: Blocks(0),
        prompts: 0,
    }));
    // Why free ones first: of one that is listed twice the first stays.
    all.sort_by_key(|given| (given.key, !given.seen.free));
    all.dedup_by_key(|given| given.key);
    for (key, requests) in ledger.tallies(members) {
        if let Some(given) = find(&mut all, key) {
            given.held = given.held.saturating_add(requests);
        }
    }
    if view.prefill_limit.is_some() {
        let mut prompts: BTreeMap<TallyKey, u64> = BTreeMap::new();
        for (key, tokens) in ledger.tallies(members) {
            let sum = prompts.entry(key).or_default();
            *sum = sum.saturating_add(tokens);
        }
        for given in &mut all {
            given.prompts = prompts.get(&TallyKey::prompts_at(given.key)).copied().unwrap_or(0);
        }
    }
    let (oldest, mut shown) = (ledger.seen_at_worker(view.credit, None), Blocks(0));
    for begun in ledger.begun_at_workers(members) {
        let Some(given) = find(&mut all, begun.worker) else { continue };
        if begun.since >= given.since {
            given.unseen = Blocks(given.unseen.0.saturating_add(begun.blocks.0));
        } else if begun.since >= oldest {
            shown = Blocks(shown.0.saturating_add(begun.blocks.0));
        }
    }
    (all, shown)
}

impl<'a> Scene<'a> {
    /// Workers that requests are steered to; `None` where they are not, and without a fresh view.
    fn steering(&self) -> Option<&Steering<'a>> {
        let (Sight::Fresh(view), Some(workers), true) = (self.sight, self.workers, self.pool.pick_endpoint) else {
            return None;
        };
        Some(self.steering.get_or_init(|| steering(self, view, workers)))
    }

    /// Free workers that the request can be steered to; `None` where the choice is the proxy's: where it is not steered, and where
    /// all that are free are listed by a name, which the proxy resolves.
    fn open_workers(&self) -> Option<&[Open<'a>]> {
        self.steering().filter(|_| self.can_be_steered)?.open.as_deref()
    }

    /// KV blocks of leases begun since the numbers of a view were read. Those of a steered lease count while its worker's numbers do not
    /// show them, the others while the oldest numbers of the view may not.
    pub(super) fn unseen_blocks(&self, view: &ViewSummary) -> u64 {
        let unseen = self.ledger.unseen(view.credit, self.members).blocks.0;
        unseen.saturating_sub(self.steering().map_or(0, |steering| steering.shown.0))
    }

    /// Blocks that one request may take at a worker; without bound where blocks are not counted, or its engine never reports them.
    fn free_at(&self, view: &ViewSummary, takes: Takes, unseen: Blocks) -> Blocks {
        let (Some(headroom), Some(_), Some((all, freest))) = (&self.pool.headroom, view.kv, takes.kv) else {
            return Blocks(u64::MAX);
        };
        let of_all = all.less(headroom.share).free.0.saturating_sub(unseen.0);
        Blocks(freest.less(headroom.share).free.0.min(of_all))
    }

    /// Blocks that a request which can be steered may take at the worker with most room below its cap; `None` where the choice is the
    /// proxy's.
    pub(super) fn free_at_open_workers(&self) -> Option<Blocks> {
        let open = self.steering()?.open.as_deref()?;
        let cap = self.pool.max_in_flight_per_worker.as_ref().map_or(u64::MAX, |cap| cap.limit);
        let below_cap = open.iter().filter(|open| open.held < cap).map(|open| open.blocks).max();
        // Why then all: that every worker is at its cap is for the cap to say.
        below_cap.or_else(|| open.iter().map(|open| open.blocks).max())
    }

    /// Blocks that a lease may grow by at the worker that it was steered to; `None` of one that is no longer listed.
    pub(super) fn free_at_worker(&self, worker: TallyKey) -> Option<Blocks> {
        let (Sight::Fresh(view), Some(workers)) = (self.sight, self.workers) else { return None };
        let seen = workers.list.iter().find(|seen| TallyKey::worker(seen.key) == worker)?;
        let since = self.ledger.seen_at_worker(view.credit, seen.takes.admitted);
        Some(self.free_at(view, seen.takes, self.ledger.unseen_at_worker(worker, since, self.members)))
    }

    /// Prompt tokens that this proxy may have sent to a worker which has not read them; several proxies share what it may have.
    fn prefill_limit(&self, view: &ViewSummary) -> Option<u64> {
        view.prefill_limit.map(|limit| limit.checked_div(self.proxies).unwrap_or(limit))
    }

    /// The prompts that have been sent to the pool, shared out evenly, are more than a worker may have to read.
    fn are_busy_by_prompts(&self, view: &ViewSummary) -> bool {
        let queued = self.ledger.tallied(TallyKey::prompts_sent(), self.members);
        self.prefill_limit(view).is_some_and(|limit| queued > limit.saturating_mul(self.readers))
    }

    /// Some worker is not busy.
    pub(super) fn some_worker_is_free(&self) -> Result<(), Refusal> {
        let Sight::Fresh(view) = self.sight else { return Ok(()) };
        let refusing = self.ledger.marked(view.stamp(), self.now).count() as u64;
        let detail = if u64::from(view.free_workers) <= refusing {
            if refusing > 0 { Detail::Fixed("those that looked free have just refused") } else { Detail::None }
        } else if self.open_workers().is_some_and(<[_]>::is_empty) {
            Detail::Fixed("those that looked free have been given as much since as makes them busy")
        } else if self.open_workers().is_none() && self.are_busy_by_prompts(view) {
            Detail::Fixed("those that look free have as many prompts to read as makes them busy")
        } else {
            return Ok(());
        };
        let busy = u64::from(view.live_workers);
        let knob = Arc::clone(&self.pool.busy_knob);
        let limit = Limit { knob, measured: busy, allowed: busy.saturating_sub(1), unit: "busy workers" };
        let retry = advice(Some(self.ledger.counted(self.members)), 1);
        Err(Refusal { reason: Reason::AllBusy, limit: Some(limit), detail, retry, place: None })
    }

    /// The least loaded worker below its own cap that has room for the blocks.
    pub(super) fn at_a_worker(&self, blocks: Blocks) -> Result<Option<Endpoint>, Refusal> {
        let Some(open) = self.open_workers() else { return Ok(None) };
        // Why the least of both: a guess needs no more than there could be.
        let blocks = self.most_of_one().map_or(blocks, |most| blocks.min(most));
        let open = open.iter().filter(|open| blocks <= open.blocks);
        let cap = self.pool.max_in_flight_per_worker.as_ref();
        match (endpoint::choose(open, cap.map(|cap| cap.limit)), cap) {
            (Choice::Chosen { first, second }, _) => Ok(Some(Endpoint::of(first, second))),
            (Choice::AllAtCap { fewest }, Some(cap)) => {
                let (unit, counted) = ("requests on the freest worker", self.ledger.counted(self.members));
                within(cap, fewest.saturating_add(1), unit, Reason::PoolRequests, counted).map(|()| None)
            }
            (Choice::AllAtCap { .. } | Choice::Nobody, _) => Ok(None),
        }
    }
}
