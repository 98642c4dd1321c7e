//! Waiters that start, and those whose time is up.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use super::aside::{SteppedBack, is_of_a_route};
use super::bound::kept_from_starting;
use super::claim::Rest;
use super::hold::end_hold;
use super::{Admission, Note, Vm, Wake};
use crate::decide::{Line, span_across_tenants};
use crate::gather::gather;
use crate::ledger::{LaneKey, Ledger, Starts};
use crate::members::Holder;
use crate::outcome::{Detail, Limit, Obstacle, Place, Reason, Refusal, Retry};
use crate::queue::{Aside, Candidate, Queue, Ticket, Waiter, Waiting};
use crate::store::{self, Store};
use crate::stream::StreamId;
use crate::units::{Millis, Time};
use crate::unnamed::ledger_at;

/// Most waiters that start in one go; the rest are next.
const MOST_STARTS: usize = 64;

/// What has become of those that waited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Waiters that may go on, in this order.
    pub started: Vec<Started>,
    /// Waiters that may not.
    pub refused: Vec<GivenUp>,
}

/// A waiter that has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Stream of the request.
    pub owner: StreamId,
    /// Ticket under which it has waited.
    pub ticket: Ticket,
    /// Admission that it has got.
    pub admission: Admission,
    /// Time that it has waited.
    pub waited: Millis,
}

/// A waiter that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Stream of the request.
    pub owner: StreamId,
    /// Ticket under which it has waited.
    pub ticket: Ticket,
    /// Refusal that its caller gets.
    pub refusal: Refusal,
}

/// One go through a queue.
#[derive(Default)]
struct Round {
    progress: Progress,
    /// Lanes whose own limits let nothing start.
    closed: BTreeSet<LaneKey>,
    /// Who comes first in another VM.
    ahead: Option<Holder>,
    /// True once a waiter has been met that only its own prompt keeps back.
    waits_for_prompts: bool,
}

/// The first in line, which may not start.
struct KeptBack<'a> {
    ticket: Ticket,
    waiting: &'a Waiting,
    refusal: Refusal,
}

enum Go {
    On,
    Stop,
}

impl Vm {
    /// Carries out what another VM, or this one, has been told.
    pub fn woken(&mut self, store: &impl Store, note: &Note, now: Time) -> Progress {
        let mut progress = Progress::default();
        match note {
            Note::Evict(pool_key) => self.evict(store, pool_key, now),
            Note::GiveWay(pool_key) => self.let_lowest_give_way(store, pool_key, now),
            Note::Start(key) if self.room.queues.contains_key(key) => {
                progress.add(self.dispatch(store, key, true, now));
            }
            Note::Start(tenant_key) => progress.add(self.start_of_tenant(store, tenant_key, now)),
        }
        progress.refused.append(&mut self.room.displaced);
        progress
    }

    /// Starts the waiters of a tenant that its limits let start, one flow after the other.
    fn start_of_tenant(&mut self, store: &impl Store, tenant: &Rc<str>, now: Time) -> Progress {
        let (mut progress, mut seen) = (Progress::default(), Vec::new());
        while seen.len() < MOST_STARTS {
            let back = self.ask_tenants(store, &BTreeSet::from([Rc::clone(tenant)]), now);
            let Some(SteppedBack { pool_key, ticket, .. }) = back.first() else { break };
            // One that has stepped aside again: another VM's waiter of the tenant comes first.
            if seen.contains(ticket) {
                break;
            }
            seen.push(*ticket);
            progress.add(self.dispatch(store, pool_key, true, now));
        }
        if !seen.is_empty() {
            self.room.publish_blocked(store, &self.membership, tenant);
        }
        progress
    }

    /// What nobody has told: starts whoever may start, and ends the wait of those whose time is up. To be called every
    /// [`super::POLL`] while somebody waits here.
    pub fn poll(&mut self, store: &impl Store, now: Time) -> Progress {
        let mut progress = Progress::default();
        self.outbox.note_progress();
        self.count_read(store, now);
        let aside = self.room.next_tenants_aside(now);
        self.room.name_firsts_again(store, &self.membership, &aside);
        let back = self.ask_tenants(store, &aside, now);
        let keys: BTreeSet<_> =
            gather(self.room.queues.iter().map(|(key, queue)| (queue.highest_band(), Rc::clone(key))));
        for (_, key) in &keys {
            self.room.look_at_some(store, key);
            progress.add(self.dispatch(store, key, false, now));
        }
        for SteppedBack { tenant, .. } in &back {
            self.room.publish_blocked(store, &self.membership, tenant);
            self.room.ask_again(tenant, now);
        }
        // Why behind those that start: who has waited until the very instant at which a rate lets it start is to start.
        progress.refused.extend(self.expire(store, now));
        for (_, key) in &keys {
            // Why with every poll: the note that asks for it may be lost, and the record too busy to be written.
            self.let_lowest_give_way(store, key, now);
        }
        progress.refused.append(&mut self.room.displaced);
        progress
    }

    /// Starts those of one queue that may start now; with `pass_on`, wakes the VM of whoever comes next.
    // Why: some 26 KB of the module for each of its callers.
    #[inline(never)]
    fn dispatch(&mut self, store: &impl Store, key: &Rc<str>, pass_on: bool, now: Time) -> Progress {
        let Ok(holder) = self.ready(store, now) else { return Progress::default() };
        let Some(queue) = self.room.queues.get_mut(key) else { return Progress::default() };
        queue.step_back_by_class();
        for tenant in climb(store, queue, key, now) {
            self.room.publish_blocked(store, &self.membership, &tenant);
        }
        self.hold_line(store, key, now);
        let mut round = Round::default();
        let mut stopped = false;
        while !stopped && round.progress.started.len() < MOST_STARTS {
            stopped = matches!(self.start_first(store, key, &mut round, holder, now), Go::Stop);
        }
        if !round.progress.started.is_empty() {
            self.outbox.note_progress();
        }
        let full = !stopped;
        self.room.publish(store, &self.membership, key);
        if full {
            self.outbox.send([Wake::start(holder.slot, key)]);
        } else if pass_on {
            self.outbox.pass_on(round.ahead, key);
        }
        round.progress
    }

    /// Starts the first that may, if the pool lets it.
    fn start_first(&mut self, store: &impl Store, key: &Rc<str>, round: &mut Round, holder: Holder, now: Time) -> Go {
        let Ok((seen, _)) = store::read::<Ledger>(store, key) else { return Go::Stop };
        self.bind_climbers(store, key, &seen, now);
        self.look_across_tenants(key, &seen);
        let Some((ticket, waiting)) = self.first(store, key, &seen, &round.closed, now) else {
            // Why no other VM then: its first comes behind the one here that only its own prompt keeps back.
            round.ahead = if round.waits_for_prompts { None } else { self.ahead(store, key, &seen, holder, now) };
            return Go::Stop;
        };
        // The tag of the last look may be old: others of the tenant may have started or ended elsewhere.
        let Ok(tenant) = ledger_at(store, &waiting.waiter.tenant_key) else { return Go::Stop };
        let starts = tenant.starts(waiting.flow_key(), seen.virtual_time(waiting.band_lane().level_key));
        let Some(queue) = self.room.queues.get_mut(key) else { return Go::Stop };
        queue.retag(ticket, starts);
        if self.first(store, key, &seen, &round.closed, now).is_some_and(|(first, _)| first != ticket) {
            return Go::On;
        }
        let Some(queue) = self.room.queues.get_mut(key) else { return Go::Stop };
        let Some(waiting) = queue.take(ticket) else { return Go::Stop };
        let report = queue.report();
        let queued = Queue::queued(self.room.queues.values(), &waiting.waiter.tenant_key);
        let rest = Some(Rest { report: &report, queued: &queued });
        let started = self.start(store, &waiting.waiter.request(), &waiting.turn(holder), holder, rest, now);
        match started {
            Ok(admission) => {
                end_hold(store, key, &waiting, now);
                if let Some(queue) = self.room.queues.get_mut(key) {
                    queue.published = report;
                    (queue.empty_since, queue.filled) =
                        (None, if queue.empty_since.is_some() { now } else { queue.filled });
                }
                let waited = now.since(waiting.waiter.arrived);
                let owner = waiting.waiter.owner;
                round.progress.started.push(Started { owner, ticket, admission, waited });
                Go::On
            }
            Err(refusal) => {
                let queue = self.room.queues.entry(Rc::clone(key)).or_default();
                queue.put_back(ticket, waiting.clone(), starts, None);
                if waiting.waiter.limits.rates.may_be_waited_for() {
                    // Its tenant may have been charged without it, and given that back, when its pool turned out to be full.
                    self.room.publish_blocked(store, &self.membership, &waiting.waiter.tenant_key);
                }
                self.stays(store, key, KeptBack { ticket, waiting: &waiting, refusal }, round, now)
            }
        }
    }

    /// What follows when the first may not start.
    fn stays(
        &mut self,
        store: &impl Store,
        key: &Rc<str>,
        kept_back: KeptBack<'_>,
        round: &mut Round,
        now: Time,
    ) -> Go {
        let KeptBack { ticket, waiting, ref refusal } = kept_back;
        let waiter = &waiting.waiter;
        let Some(holder) = self.membership.holder else { return Go::Stop };
        self.ask_to_evict(store, waiter, refusal);
        let Some(queue) = self.room.queues.get_mut(key) else { return Go::Stop };
        note_emptiness(queue, refusal.reason, now);
        queue.keep(waiter.lane.key, refusal.reason);
        let obstacle = if is_of_a_route(waiter, refusal) { Obstacle::Lasting } else { refusal.reason.obstacle() };
        match obstacle {
            Obstacle::Tenant => {
                queue.step_aside(ticket, Aside::Tenant);
                self.room.note_due(&waiter.tenant_key, refusal, now);
                self.room.publish_blocked(store, &self.membership, &waiter.tenant_key);
                Go::On
            }
            Obstacle::Class => {
                queue.step_aside(ticket, Aside::Class);
                Go::On
            }
            Obstacle::Lane => {
                self.close(store, key, &kept_back, round, now);
                Go::On
            }
            Obstacle::Line => {
                if let Ok((seen, _)) = store::read::<Ledger>(store, key) {
                    round.ahead = self.ahead(store, key, &seen, holder, now);
                }
                Go::Stop
            }
            Obstacle::Pool if refusal.reason == Reason::KvBlocks => {
                let block_size = self.picture(store, &waiter.pool).known(true).block_size(&waiter.pool);
                let queue = self.room.queues.get_mut(key);
                let lets_pass = queue.is_some_and(|queue| queue.lets_pass(waiting, refusal, block_size));
                if lets_pass { Go::On } else { Go::Stop }
            }
            Obstacle::Pool => Go::Stop,
            Obstacle::Lasting => {
                queue.take(ticket);
                end_hold(store, key, waiting, now);
                self.room.publish_blocked(store, &self.membership, &waiter.tenant_key);
                round.progress.refused.push(GivenUp { owner: waiter.owner, ticket, refusal: kept_back.refusal });
                Go::On
            }
        }
    }

    /// Closes the lane of a waiter for the rest of a round.
    fn close(
        &self,
        store: &impl Store,
        key: &str,
        KeptBack { ticket, waiting, refusal }: &KeptBack<'_>,
        round: &mut Round,
        now: Time,
    ) {
        if refusal.reason == Reason::PrefillBacklog && self.is_open(store, key, *ticket, now) {
            // Why it keeps back all that are bound so: shorter prompts of the lanes below would fill what it waits for, again and again.
            let bound = waiting.waiter.lanes.iter().filter(|lane| lane.prompts.is_some());
            round.closed.extend(bound.map(|lane| lane.key));
            round.waits_for_prompts = true;
        } else {
            round.closed.insert(waiting.band_lane().key);
        }
    }

    /// The first in line of one queue, those left out whose lane is closed.
    fn first(
        &self,
        store: &impl Store,
        key: &str,
        seen: &Ledger,
        closed: &BTreeSet<LaneKey>,
        now: Time,
    ) -> Option<(Ticket, Waiting)> {
        let queue = self.room.queues.get(key)?;
        let open = queue.candidates().filter(|candidate| !closed.contains(&candidate.head.band));
        let candidates: Vec<Candidate> = open.collect();
        let Waiter { pool, lanes, .. } = &queue.get(candidates.first()?.ticket)?.waiter;
        let picture = self.picture(store, pool);
        let line = Line::of(pool, lanes, picture.known(true), seen.counted(&self.membership.members), now);
        let first = candidates.iter().min_by_key(|candidate| line.rank(&candidate.head))?;
        Some((first.ticket, queue.get(first.ticket)?.clone()))
    }

    /// True where no limit of the lane that a waiter counts as keeps all of that lane back.
    fn is_open(&self, store: &impl Store, key: &str, ticket: Ticket, now: Time) -> bool {
        let Some(queue) = self.room.queues.get(key) else { return false };
        let Some(Waiter { pool, lanes, .. }) = queue.get(ticket).map(|waiting| &waiting.waiter) else { return false };
        let Ok((seen, _)) = store::read::<Ledger>(store, key) else { return false };
        let picture = self.picture(store, pool);
        let line = Line::of(pool, lanes, picture.known(true), seen.counted(&self.membership.members), now);
        queue.candidates().any(|candidate| candidate.ticket == ticket && line.is_open_for(&candidate.head))
    }

    /// Puts those that have climbed above the default lane where they count by the pool's last starts.
    fn bind_climbers(&mut self, store: &impl Store, key: &str, seen: &Ledger, now: Time) {
        let Some(queue) = self.room.queues.get(key).filter(|queue| queue.has_climbed_far()) else { return };
        let Some(Waiter { pool, lanes, .. }) = queue.some_waiter() else { return };
        let picture = self.picture(store, pool);
        let bound =
            Line::of(pool, lanes, picture.known(true), seen.counted(&self.membership.members), now).climbers_bound();
        let Some(queue) = self.room.queues.get_mut(key) else { return };
        queue.bind(bound, |waiting| starts_in(store, seen, waiting));
    }

    /// Lets short requests pass those of other tenants in the lanes that say so, while enough wait.
    fn look_across_tenants(&mut self, key: &str, seen: &Ledger) {
        let members = &self.membership.members;
        let Some(queue) = self.room.queues.get_mut(key) else { return };
        let Some(lanes) = queue.some_waiter().map(|waiter| Arc::clone(&waiter.lanes)) else { return };
        queue.look_across_tenants(&lanes, |lane| span_across_tenants(lane, seen.counted(members)));
    }

    /// Whoever of another VM comes next.
    fn ahead(&self, store: &impl Store, key: &str, seen: &Ledger, holder: Holder, now: Time) -> Option<Holder> {
        let Waiter { pool, lanes, .. } = self.room.queues.get(key)?.some_waiter()?;
        let picture = self.picture(store, pool);
        Line::of(pool, lanes, picture.known(true), seen.counted(&self.membership.members), now).next(Some(holder))
    }

    /// Ends the wait of those whose time is up.
    fn expire(&mut self, store: &impl Store, now: Time) -> Vec<GivenUp> {
        let mut refused = Vec::new();
        let keys: Vec<Rc<str>> = self.room.queues.keys().cloned().collect();
        for key in keys {
            // Before any of these leaves: one may have kept another.
            let due = self.due(store, &key, now);
            let Some(queue) = self.room.queues.get_mut(&key) else { continue };
            let mut tenants = BTreeSet::new();
            let mut ended = Vec::new();
            for (ticket, bound) in due {
                if let Some(until) = queue.get(ticket).and_then(|waiting| stays_until(queue, &waiting.waiter, now)) {
                    queue.extend(ticket, until);
                } else if let Some(waiting) = queue.take(ticket) {
                    end_hold(store, &key, &waiting, now);
                    tenants.insert(Rc::clone(&waiting.waiter.tenant_key));
                    ended.push((ticket, waiting.waiter, queue.empty_since.is_some(), bound));
                }
            }
            if !tenants.is_empty() {
                tenants.iter().for_each(|tenant| self.room.publish_blocked(store, &self.membership, tenant));
                self.room.publish(store, &self.membership, &key);
            }
            for (ticket, waiter, is_empty, bound) in ended {
                let refusal = self.too_late(store, &waiter, is_empty, bound, now);
                refused.push(GivenUp { owner: waiter.owner, ticket, refusal });
            }
        }
        refused
    }

    fn too_late(
        &mut self,
        store: &impl Store,
        waiter: &Waiter,
        is_empty: bool,
        bound: Option<Refusal>,
        now: Time,
    ) -> Refusal {
        let seen = store::read::<Ledger>(store, &waiter.pool.key).map(|(seen, _)| seen).unwrap_or_default();
        let waited = now.since(waiter.arrived);
        let place = self.room.place(seen.counted(&self.membership.members), waiter, now);
        // Why as long again: the pool's pace says nothing of a lane that has not moved.
        let moved = seen.last_start(waiter.lane.key) > waiter.arrived;
        let wait = place.wait.unwrap_or_default().max(if moved { Millis(0) } else { waited });
        let place = Place { wait: place.wait.map(|_| wait), ..place };
        let retry = Retry::After(self.room.promise(&seen, &self.membership, waiter.key(), &waiter.lane, wait, now));
        let waited = waited.0;
        if is_empty {
            let detail = Detail::Text(format!("none has come up in {waited} ms"));
            return Refusal { reason: Reason::NoWorkers, limit: None, detail, retry, place: Some(place) };
        }
        let knob = waiter.lane.queue.as_ref().map_or_else(|| "".into(), |queue| queue.max_wait_knob.clone());
        let knob = if waiter.deadline.is_some_and(|own| own == waiter.patience()) {
            "the request's own deadline".into()
        } else {
            knob
        };
        let limit = Limit { knob, measured: waited, allowed: waiter.patience().0, unit: "ms of waiting" };
        let detail = kept_from_starting(bound);
        Refusal { reason: Reason::QueueTimeout, limit: Some(limit), detail, retry, place: Some(place) }
    }
}

impl Progress {
    fn add(&mut self, other: Self) {
        self.started.extend(other.started);
        self.refused.extend(other.refused);
    }
}

/// Lets those climb whose time has come; returns the tenants of those among them that stood aside for these.
fn climb(store: &impl Store, queue: &mut Queue, key: &Rc<str>, now: Time) -> BTreeSet<Rc<str>> {
    let seen = store::read::<Ledger>(store, key).map(|(seen, _)| seen).unwrap_or_default();
    queue.climb(now, |waiting| starts_in(store, &seen, waiting))
}

/// The tags at which the tenant of a waiter starts in the lane that this counts as.
fn starts_in(store: &impl Store, pool: &Ledger, waiting: &Waiting) -> Starts {
    let tenant = ledger_at(store, &waiting.waiter.tenant_key);
    tenant.unwrap_or_default().starts(waiting.flow_key(), pool.virtual_time(waiting.band_lane().level_key))
}

/// Notes whether the pool has a worker: the time that its waiters may wait depends on it.
pub(super) fn note_emptiness(queue: &mut Queue, reason: Reason, now: Time) {
    if reason == Reason::NoWorkers {
        queue.empty_since = queue.empty_since.or(Some(now));
    } else if queue.empty_since.take().is_some() {
        queue.filled = now;
    }
}

/// Until when a waiter stays whose time seems to be up, if it is not: while its pool has no worker as long as the pool
/// holds its requests then, and its lane's whole wait from when a worker appears; where the pool holds none, neither. Its own
/// deadline always counts.
pub(super) fn stays_until(queue: &Queue, waiter: &Waiter, now: Time) -> Option<Time> {
    let longest = waiter.lane.queue.as_ref().map_or(Millis(0), |queue| queue.max_wait);
    let until = match (queue.empty_since, waiter.pool.hold_when_empty) {
        (Some(_), Some(hold)) => waiter.arrived.0.saturating_add(hold.0),
        // Workers that come and go make nobody wait for ever.
        (None, Some(hold)) => {
            let held = queue.filled.0.min(waiter.arrived.0.saturating_add(hold.0));
            waiter.arrived.0.max(held).saturating_add(longest.0)
        }
        (_, None) => waiter.arrived.0.saturating_add(longest.0),
    };
    let until = waiter.deadline.map_or(until, |own| until.min(waiter.arrived.0.saturating_add(own.0)));
    (until > now.0).then_some(Time(until))
}
