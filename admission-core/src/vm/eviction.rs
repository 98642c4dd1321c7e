//! Requests in flight that give way: of a preemptible lane, while their answer has not begun.
//!
//! A VM whose waiter lacks what they hold asks, in the pool's record, the VM that holds the newest request of the lowest
//! lane. What has been asked for and has not ended yet is in the record, and so is what has ended and no view shows yet: no
//! more is ever asked for than those that wait lack.

use std::rc::Rc;

use super::lease::{Evicted, Lease};
use super::{LeaseId, Vm, Wake, view_of};
use crate::forecast;
use crate::ledger::{Amount, Counted, Evictable, Ledger};
use crate::members::{Holder, Members};
use crate::outcome::{Detail, Lack, Place, Reason, Refusal, Retry};
use crate::policy::{Lane, Lanes};
use crate::queue::{Shares, Waiter};
use crate::store::{self, Store};
use crate::stream::StreamId;
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
        let Some(lease) = self.leases.get(id).filter(|lease| lease.preemptible).cloned() else { return };
        if let Some(lease) = self.leases.get_mut(id) {
            lease.preemptible = false;
        }
        if let Some(evicted) = self.evictions.forget(&lease, id) {
            self.publish_evicted(store, &lease.pool_key, &evicted);
        }
    }

    /// Requests that are to be evicted now: each is to be answered with [`crate::outcome::Reason::Evicted`] and released.
    pub fn take_evictions(&mut self) -> Vec<Eviction> {
        self.evictions.take()
    }

    /// The refusal of a request that gives way: its caller may come back when those that go before it now have been served, at the pace
    /// measured.
    pub fn evicted(&mut self, store: &impl Store, id: LeaseId, now: Time) -> Refusal {
        let wait = self.wait_after_eviction(store, id, now).unwrap_or_default();
        let (limit, detail) = (None, Detail::None);
        Refusal { reason: Reason::Evicted, limit, detail, retry: Retry::After(wait), place: None }
    }

    fn wait_after_eviction(&mut self, store: &impl Store, id: LeaseId, now: Time) -> Option<Millis> {
        let Lease { pool_key, lanes, lane, tenant_key, classes, weight, .. } = self.leases.get(id)?.clone();
        let (seen, _) = store::read::<Ledger>(store, &pool_key).ok()?;
        let lane = lanes.at(lanes.position_of(lane));
        let flow = (tenant_key, classes.into());
        let shares =
            self.room.queues.get(&pool_key).map_or_else(Shares::default, |queue| queue.shares(&lanes, lane, &flow));
        let Place { position, wait } =
            forecast::place(seen.counted(&self.membership.members), &lanes, lane, shares, weight, now);
        let wait = wait.or_else(|| seen.time_to_free(position, &self.membership.members)).unwrap_or_default();
        Some(self.room.promise(&seen, &self.membership, pool_key, lane, wait, now))
    }

    /// Looks in every record that may ask this VM to evict: the message that says so may be lost.
    pub(super) fn evict_as_asked(&mut self, store: &impl Store, now: Time) {
        self.evictions.pools().iter().for_each(|pool| self.evict(store, pool, now));
    }

    /// Chooses what this VM evicts, having been asked to in a pool's record, as long as somebody waits for it still.
    pub(super) fn evict(&mut self, store: &impl Store, pool_key: &Rc<str>, now: Time) {
        let Some(holder) = self.membership.holder else { return };
        let Ok((ledger, _)) = store::read::<Ledger>(store, pool_key) else { return };
        let Self { evictions, leases, membership, .. } = self;
        let (asked, mut given) = (ledger.asked_of(holder), evictions.amount_being_evicted(pool_key, leases));
        evictions.note_asked(pool_key, !asked.is_zero());
        // Why not beyond that: the waiter that lacked them has started or left, and they would be free for no request.
        let blocks = if ledger.line_kept_for(now).0 > 0 { asked.blocks } else { Blocks(0) };
        for id in evictions.candidates(pool_key, leases) {
            let Some(lease) = leases.get(id) else { continue };
            let waiting = waiting_above(&ledger, &membership.members, lease);
            if given.requests >= asked.requests.min(waiting) && (waiting == 0 || given.blocks >= blocks) {
                break;
            }
            given = given.plus(evictions.amount_of(lease, id));
            evictions.choose(lease, id);
        }
        // Why what is given and not what was asked: the last one may hold more blocks than were asked for, and others count on them.
        if given != asked {
            let lanes = evictions.rows(pool_key);
            self.publish_evicted(store, pool_key, &Evicted { lanes, asked, given, gone: None });
        }
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
            let in_line = in_line(ledger.counted(members), lanes, |other| other.level <= level);
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
        let members = &self.membership.members;
        let asked = store::update(store, &key, |ledger: &mut Ledger| {
            let more = more(ledger, members);
            let holder = victim(ledger, members, waiter).filter(|_| !more.is_zero()).ok_or(())?;
            ledger.ask_of(members, holder, ledger.asked_of(holder).plus(more));
            Ok::<_, ()>(holder)
        });
        if let Ok(Ok(holder)) = asked {
            self.outbox.send([Wake::evict(holder.slot, &key)]);
        }
    }

    /// Says what this VM could evict. What others are faster at is said with the next request of the lane.
    fn publish_evicted(&self, store: &impl Store, pool_key: &str, evicted: &Evicted) {
        let Some(holder) = self.membership.holder else { return };
        let members = &self.membership.members;
        let published = store::update(store, pool_key, |ledger: &mut Ledger| {
            evicted.apply(ledger, members, holder);
            Ok::<(), std::convert::Infallible>(())
        });
        drop(published);
    }
}

/// Requests that wait in lanes above that of one in flight.
fn waiting_above(ledger: &Ledger, members: &Members, lease: &Lease) -> u64 {
    let own = lease.lanes.level_of(lease.lane);
    in_line(ledger.counted(members), &lease.lanes, |lane| lane.level < own)
}

/// Requests that wait for the pool, of the lanes that `counts` is true for; of a lane with a dispatch budget one.
// Why one: its budget may let no more start, and with each start it is counted again.
fn in_line(Counted { ledger, members }: Counted<'_>, lanes: &Lanes, counts: impl Fn(&Lane) -> bool) -> u64 {
    let of_lane = |lane: &Lane| {
        let in_line = ledger.backlog(lane.key, members).in_line();
        if lane.dispatch_budget.is_some() { in_line.min(1) } else { in_line }
    };
    lanes.iter().filter(|lane| counts(lane)).fold(0, |sum, lane| sum.saturating_add(of_lane(lane)))
}

/// True when evictions would bring a waiter the blocks that it lacks, with those that no view shows to be free.
pub(super) fn would_free(
    Counted { ledger, members }: Counted<'_>,
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
