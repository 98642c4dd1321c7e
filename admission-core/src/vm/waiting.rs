//! Requests that wait: how they join and leave, and what the records say of them.

use std::rc::Rc;
use std::sync::Arc;

use super::bound::kept_from_starting;
use super::claim::contention;
use super::dispatch::{note_emptiness, stays_until};
use super::elsewhere::tenant_at;
use super::full::{Full, Room, has_room};
use super::hold::end_hold;
use super::rate_wait::RateWait;
use super::rates::{time_by_pool, within_half};
use super::{Admission, Request, Vm, Wake};
use crate::decide::{Held, Line, Rules, Turn, decide, flow_of, urgency};
use crate::ledger::{FlowKey, Ledger, Starts};
use crate::members::Holder;
use crate::outcome::{Limit, Obstacle, Reason, Refusal, Retry};
use crate::policy::QueueLimits;
use crate::queue::{Aside, Queue, Ticket, Waiter};
use crate::store::{self, Store, StoreError};
use crate::units::Time;
use crate::unnamed::ledger_at;

/// How a request has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It could start after all.
    Started(Admission),
    /// It waits.
    Waiting(Ticket),
}

/// Times a request that finds at the last moment that it may start is tried again, before it waits all the same.
const TRIES: u32 = 3;

/// A request that is about to join a queue.
#[derive(Clone, Copy)]
struct Newcomer<'a> {
    waiter: &'a Waiter,
    /// Limits of the queue of its lane.
    limits: &'a QueueLimits,
    /// Refusal that it waits to see pass.
    refused: &'a Refusal,
    /// The rate that it waits for, if any.
    by_rate: Option<RateWait>,
}

/// Why a request does not join.
pub(super) enum NotJoined {
    /// The records have changed since they were read: it may start, or would have to wait longer.
    Again,
    Full(Box<Full>),
    Refused(Refusal),
}

impl Waiter {
    pub(super) fn rules(&self) -> Rules<'_> {
        let Self { limits, pool, lane, lanes, classes, .. } = self;
        Rules { tenant: limits, pool, lane, lanes, classes }
    }

    pub(crate) fn request(&self) -> Request<'_> {
        Request {
            owner: self.owner,
            ask: self.ask,
            rules: self.rules(),
            tenant_key: &self.tenant_key,
            can_be_steered: self.can_be_steered,
            bytes: self.bytes,
            deadline: self.deadline,
            sub: self.sub,
        }
    }

    pub(super) fn key(&self) -> Rc<str> {
        Rc::from(&*self.pool.key)
    }
}

impl Vm {
    /// Requests that wait here, those among them that have given way and are to be told so.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.room.len()
    }

    /// The slot under which other VMs reach this one.
    #[must_use]
    pub fn slot(&self) -> Option<u16> {
        self.membership.holder.map(|holder| holder.slot)
    }

    /// Under which what it holds is counted, as far as it knows.
    #[must_use]
    pub fn holder(&self) -> Option<Holder> {
        self.membership.holder
    }

    /// Messages to be sent; to be asked after every call.
    pub fn take_wakes(&mut self) -> Vec<Wake> {
        self.outbox.take()
    }

    /// Lets a request wait that was refused just now.
    ///
    /// # Errors
    /// That refusal, when its lane has no queue or there is nothing to wait for; or that there is no room, or that the wait
    /// would be too long.
    pub fn enqueue(
        &mut self,
        store: &impl Store,
        waiter: Waiter,
        refused: Refusal,
        now: Time,
    ) -> Result<Joined, Refusal> {
        let Some(queue) = waiter.lane.queue.clone() else { return Err(refused) };
        if !waiter.rules().may_be_waited_for(refused.reason) {
            return Err(refused);
        }
        let mut waiter = self.placed(store, waiter, now);
        let mut refused = refused;
        for _ in 0..TRIES {
            match self.join(store, waiter.clone(), &queue, &refused, true, now) {
                Ok(ticket) => return Ok(Joined::Waiting(ticket)),
                Err(NotJoined::Full(full)) if self.displace(store, &waiter, &full, now) => {}
                Err(NotJoined::Full(full)) => return Err(self.full_for(store, &waiter, *full, refused, now)),
                Err(NotJoined::Refused(refusal)) => return Err(refusal),
                Err(NotJoined::Again) => {}
            }
            match self.admit(store, &waiter.request(), now) {
                Ok(admission) => return Ok(Joined::Started(admission)),
                Err(again) => refused = again,
            }
            waiter.arrived = waiter.arrived.min(now);
        }
        match self.join(store, waiter.clone(), &queue, &refused, false, now) {
            Ok(ticket) => Ok(Joined::Waiting(ticket)),
            Err(NotJoined::Full(full)) => Err(self.full_for(store, &waiter, *full, refused, now)),
            Err(NotJoined::Refused(refusal)) => Err(refusal),
            Err(NotJoined::Again) => Err(refused),
        }
    }

    fn join(
        &mut self,
        store: &impl Store,
        waiter: Waiter,
        limits: &QueueLimits,
        refused: &Refusal,
        unless_it_may_start: bool,
        now: Time,
    ) -> Result<Ticket, NotJoined> {
        let failed = |error: StoreError| NotJoined::Refused(contention(&error));
        let holder = self.ready(store, now).map_err(failed)?;
        let key = waiter.key();
        let (seen, _) = store::read::<Ledger>(store, &key).map_err(failed)?;
        let tenant = tenant_at(store, &waiter.tenant_key, &self.membership.members).map_err(failed)?;
        let picture = self.picture(store, &waiter.pool);
        let known = picture.known(waiter.can_be_steered);
        let turn = newcomer(self.room.queues.get(&key), &waiter.request(), waiter.arrived);
        let by_rate = {
            let held = Held { tenant: &tenant, pool: &seen, members: &self.membership.members };
            self.rate_wait(store, &waiter, refused, (&turn, known, held), now)
        };
        let newcomer = Newcomer { waiter: &waiter, limits, refused, by_rate };
        self.fits_its_patience(store, &seen, newcomer, now).map_err(NotJoined::Refused)?;
        let ticket = self.room.new_ticket();
        let aside = match refused.reason.obstacle() {
            Obstacle::Tenant => Some(Aside::Tenant),
            Obstacle::Class => Some(Aside::Class),
            _ => None,
        };
        let band = waiter.lane.level_key;
        let starts = tenant.starts(FlowKey::of(&key, band), seen.virtual_time(band));
        let queue = self.room.queues.entry(Rc::clone(&key)).or_default();
        note_emptiness(queue, refused.reason, now);
        if refused.reason == Reason::KvBlocks {
            queue.note_room(&waiter, waiter.lane.position, refused, known.block_size(&waiter.pool));
        }
        let in_line = queue.report().waiting;
        queue.push(ticket, waiter.clone(), starts, aside, now);
        if by_rate.is_some() {
            queue.note_rated(ticket);
        }
        if let Some(until) = stays_until(queue, &waiter, now).filter(|_| queue.empty_since.is_some()) {
            queue.extend(ticket, until);
        }
        let reasons = queue.reasons.clone();
        queue.keep(waiter.lane.key, refused.reason);
        let (report, bytes) = (queue.report(), queue.bytes_of(&waiter.tenant_key));
        let members = &self.membership.members;
        let published = store::update(store, &key, |ledger: &mut Ledger| {
            let held = Held { tenant: &tenant, pool: ledger, members };
            if unless_it_may_start && decide(&waiter.ask, waiter.rules(), &turn, known, held, now).is_ok() {
                return Err(NotJoined::Again);
            }
            if let Some(by_rate) = by_rate {
                let by_pool = || time_by_pool(&waiter.request(), ledger, members, holder, &in_line, now);
                if unless_it_may_start && by_rate.is_of_pool() && by_pool() > waiter.patience() {
                    return Err(NotJoined::Again);
                }
                within_half(ledger.counted(members), holder, &waiter, by_rate, &report, limits)
                    .map_err(NotJoined::Full)?;
            }
            let room =
                has_room(ledger.counted(members), holder, &waiter, &report, bytes, limits).map_err(NotJoined::Full)?;
            ledger.publish(members, holder, &report);
            Ok(room)
        });
        match published.map_err(failed).and_then(|joined| joined) {
            Ok(room) => {
                queue.published = report;
                self.after_joining(store, &key, &waiter, refused);
                if room == Room::OfLower {
                    self.let_lowest_give_way(store, &key, now);
                }
                Ok(ticket)
            }
            Err(not_joined) => {
                queue.take(ticket);
                queue.reasons = reasons;
                if queue.is_empty() {
                    self.room.queues.remove(&key);
                }
                Err(not_joined)
            }
        }
    }

    /// Says in the tenant's record that somebody waits for it, or will cost its budgets, and asks for an eviction where that may help.
    fn after_joining(&mut self, store: &impl Store, key: &Rc<str>, waiter: &Waiter, refused: &Refusal) {
        let tenant_key = &waiter.tenant_key;
        if refused.reason.obstacle() == Obstacle::Tenant || waiter.limits.rates.may_be_waited_for() {
            self.room.publish_blocked(store, &self.membership, tenant_key);
        }
        match refused.reason.obstacle() {
            Obstacle::Tenant => {
                // What the tenant has got back in the meantime has woken nobody.
                self.outbox.send(self.slot().map(|slot| Wake::start(slot, tenant_key)));
            }
            // The first of its like here may start now, brought forward by what its tenant has got back, which woke nobody.
            Obstacle::Line => self.outbox.send(self.slot().map(|slot| Wake::start(slot, key))),
            _ => self.ask_to_evict(store, waiter, refused),
        }
    }

    /// The place that a waiter would have, if it is one that it would have the patience for.
    fn fits_its_patience(
        &mut self,
        store: &impl Store,
        seen: &Ledger,
        Newcomer { waiter, limits, refused, by_rate }: Newcomer<'_>,
        now: Time,
    ) -> Result<(), Refusal> {
        if refused.reason == Reason::NoWorkers {
            return Ok(());
        }
        let mut place = self.room.place(seen.counted(&self.membership.members), waiter, now);
        if let Some(by_rate) = by_rate {
            place.wait = Some(by_rate.longer(place.wait));
        }
        let patience = waiter.patience();
        let Some(wait) = place.wait.filter(|wait| *wait > patience) else { return Ok(()) };
        let own = waiter.deadline.filter(|deadline| *deadline < limits.max_wait);
        let knob = own.map_or_else(|| Arc::clone(&limits.max_wait_knob), |_| "the request's own deadline".into());
        let limit = Some(Limit { knob, measured: wait.0, allowed: patience.0, unit: "ms of waiting" });
        let retry = Retry::After(match by_rate {
            Some(by_rate) => self.room.promise_by_rate(&self.membership, waiter, by_rate, wait, now),
            None => self.room.promise(seen, &self.membership, waiter.key(), &waiter.lane, wait, now),
        });
        let detail = kept_from_starting(self.behind_others(store, waiter, Some(refused.clone()), now));
        Err(Refusal { reason: Reason::WaitTooLong, limit, detail, retry, place: Some(place) })
    }

    /// Spreads the advice of refusals that come one after the other, where nothing but others' work stands in the way. That of a rate
    /// that may be waited for lies behind those that do.
    pub(super) fn pace(&mut self, store: &impl Store, request: &Request<'_>, refusal: Refusal, now: Time) -> Refusal {
        let refusal = self.behind_waiters(store, request, refusal, now);
        let waits = request.rules.lane.queue.is_some() && request.rules.may_be_waited_for(refusal.reason);
        let (Obstacle::Pool | Obstacle::Lane | Obstacle::Class | Obstacle::Line, Retry::After(wait), false) =
            (refusal.reason.obstacle(), refusal.retry, waits)
        else {
            return refusal;
        };
        let Ok((seen, _)) = store::read::<Ledger>(store, &request.rules.pool.key) else { return refusal };
        let wait = self.room.spread_refused(&seen, &self.membership, request, wait, now);
        Refusal { retry: Retry::After(wait), ..refusal }
    }

    /// A waiter has left before its turn.
    pub fn leave(&mut self, store: &impl Store, ticket: Ticket, now: Time) {
        self.room.displaced.retain(|given_up| given_up.ticket != ticket);
        let Some(key) = self.room.queue_of(ticket) else { return };
        let Some(queue) = self.room.queues.get_mut(&key) else { return };
        let Some(waiting) = queue.take(ticket) else { return };
        end_hold(store, &key, &waiting, now);
        self.room.publish_blocked(store, &self.membership, &waiting.waiter.tenant_key);
        let was_first = self.room.queues.get(&key).is_some_and(|queue| queue.published.heads != queue.report().heads);
        self.room.publish(store, &self.membership, &key);
        if was_first {
            // Those behind it may fit where it did not.
            let picture = self.picture(store, &waiting.waiter.pool);
            if let Ok((ledger, _)) = store::read::<Ledger>(store, &key) {
                let Waiter { pool, lanes, .. } = &waiting.waiter;
                let next = Line::of(pool, lanes, picture.known(true), ledger.counted(&self.membership.members), now)
                    .next(None);
                self.outbox.send(next.map(|holder| Wake::start(holder.slot, &key)));
            }
        }
    }

    /// Holds a waiter to other rules from now on, in the line where they put it; it keeps its ticket and its arrival.
    pub fn renew(&mut self, store: &impl Store, ticket: Ticket, waiter: Waiter, now: Time) {
        let Some(from) = self.room.queue_of(ticket) else { return };
        let Some(before) = self.room.queues.get_mut(&from).and_then(|queue| queue.take(ticket)) else { return };
        end_hold(store, &from, &before, now);
        let waiter = self.placed(store, waiter, now);
        let into = waiter.key();
        let starts = self.starts(store, &waiter);
        let tenants = [Rc::clone(&before.waiter.tenant_key), Rc::clone(&waiter.tenant_key)];
        let is_rated = before.is_rated && waiter.rules().has_rates_that_wait();
        let queue = self.room.queues.entry(Rc::clone(&into)).or_default();
        queue.push(ticket, waiter, starts, None, now);
        if is_rated {
            queue.note_rated(ticket);
        }
        tenants.iter().for_each(|tenant| self.room.publish_blocked(store, &self.membership, tenant));
        self.room.publish(store, &self.membership, &from);
        self.room.publish(store, &self.membership, &into);
    }

    fn starts(&self, store: &impl Store, waiter: &Waiter) -> Starts {
        let ledger = |place: &str| ledger_at(store, place).unwrap_or_default();
        let band = waiter.lane.level_key;
        let flow = FlowKey::of(&waiter.pool.key, band);
        ledger(&waiter.tenant_key).starts(flow, ledger(&waiter.pool.key).virtual_time(band))
    }
}

/// Where a request stands that has just come and finds these waiting in its VM.
pub(super) fn newcomer<'a>(queue: Option<&Queue>, request: &Request<'a>, arrived: Time) -> Turn<'a> {
    let Request { ask, rules, tenant_key, bytes, deadline, sub, .. } = request;
    let urgency = urgency(rules.lane, ask, *deadline, arrived);
    let classes = rules.classes.iter().map(|class| class.key).collect();
    let alike = (Rc::from(*tenant_key), classes);
    let behind_its_like = queue.and_then(|queue| queue.least_before(rules.lane, &alike, *sub, urgency));
    Turn {
        band: rules.lane,
        has_climbed_far: false,
        flow: flow_of(tenant_key),
        sub: *sub,
        urgency,
        bytes: *bytes,
        waits_in: None,
        behind_its_like,
    }
}
