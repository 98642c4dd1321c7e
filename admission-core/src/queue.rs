//! Those that wait for one pool in one VM.
//!
//! A waiter stands in a band: the lane it came for, or one that it has climbed to. In a band each tenant has a flow; the
//! flow with the lowest fair tag goes first, and in a flow the most urgent. A flow whose tenant holds all that it may, or
//! whose class does, steps aside until that changes, so that it keeps back nobody else.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use crate::decide::flow_of;
use crate::gather::gather;
use crate::ledger::{Backlog, Blocked, Head, LaneKey, Order, Report, Starts, TallyKey};
use crate::policy::{Lane, Lanes, Pool};
use crate::units::Time;

mod band;
mod conduct;
mod fit;
mod flow;
mod kept;
mod rated;
mod shares;
#[cfg(test)]
mod tests;
mod waiter;

use band::Band;
use conduct::Fit;
pub(crate) use conduct::Hold;
use fit::RoomsByLane;
pub(crate) use flow::Aside;
use flow::Place;
use kept::Reasons;
use rated::Rated;
use shares::TenantBytes;
pub(crate) use shares::{Share, Shares};
use waiter::Climb;
pub use waiter::Waiter;
pub(crate) use waiter::Waiting;

/// Names a waiter within its VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Tenant and classes of those that wait in one order: what keeps one of them keeps all.
pub(crate) type FlowId = (Rc<str>, Rc<[TallyKey]>);

/// The first of a band and lane of those that do not let others pass.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) ticket: Ticket,
    pub(crate) head: Head,
}

/// All that wait for one pool in one VM.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: BTreeMap<Ticket, Waiting>,
    /// By position, and by the lane that those in it came for.
    bands: BTreeMap<(usize, LaneKey), Band>,
    backlog: BTreeMap<LaneKey, Backlog>,
    arrivals: BTreeSet<(LaneKey, Time, Ticket)>,
    bytes: TenantBytes,
    rated: Rated,
    climbing: BTreeSet<(Time, Ticket)>,
    /// Waiters that have climbed above the default lane.
    far: BTreeSet<Ticket>,
    /// Starts of such waiters among the pool's last ones, where they bind.
    bound: Option<u32>,
    ending: BTreeSet<(Time, Ticket)>,
    /// Reasons for which waiters could not start.
    pub(crate) reasons: Reasons,
    /// The last flow that has been looked at; the next ones are those behind it.
    pub(crate) looked_at: Option<FlowId>,
    /// KV blocks that requests may take, as last seen.
    pub(crate) rooms: RoomsByLane,
    /// The waiter that keeps the line until its blocks are free.
    holding: Option<Ticket>,
    /// What the pool's record says of this queue.
    pub(crate) published: Report,
    /// Since when the pool has had no worker, as far as it was noticed.
    pub(crate) empty_since: Option<Time>,
    /// When a worker was first seen after that.
    pub(crate) filled: Time,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&Waiting> {
        self.waiting.get(&ticket)
    }

    /// One of those that wait. All wait for the same pool.
    pub(crate) fn some_waiter(&self) -> Option<&Waiter> {
        self.tickets().next().and_then(|ticket| self.get(ticket)).map(|waiting| &waiting.waiter)
    }

    /// The pool that all wait for, and its lanes.
    pub(crate) fn pool_and_lanes(&self) -> Option<(Arc<Pool>, Arc<Lanes>)> {
        self.some_waiter().map(|waiter| (Arc::clone(&waiter.pool), Arc::clone(&waiter.lanes)))
    }

    pub(crate) fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.waiting.keys().copied()
    }

    /// Adds a waiter, given where its tenant starts in its band; one that opens a flow that has to step aside does so.
    pub(crate) fn push(&mut self, ticket: Ticket, waiter: Waiter, starts: Starts, aside: Option<Aside>, now: Time) {
        let (to, climbs) = waiter.climbed(now);
        let climb = Climb::of(&waiter, to, self.bound);
        let classes: Rc<[TallyKey]> = waiter.classes.iter().map(|class| class.key).collect();
        let until = Time(waiter.arrived.0.saturating_add(waiter.patience().0));
        let (urgency, flow) = (waiter.urgency(), (Rc::clone(&waiter.tenant_key), classes));
        let waiting = Waiting { waiter, climb, flow, urgency, climbs, until, fit: Fit::default(), is_rated: false };
        self.put_back(ticket, waiting, starts, aside);
    }

    /// Puts a waiter into its place.
    pub(crate) fn put_back(&mut self, ticket: Ticket, waiting: Waiting, starts: Starts, aside: Option<Aside>) {
        let lane = waiting.waiter.lane.key;
        let band = self.bands.entry((waiting.climb.band, lane)).or_default();
        band.push(&waiting.flow, waiting.entry(ticket), waiting.waiter.limits.weight, starts, aside);
        let backlog = self.backlog.entry(lane).or_default();
        *backlog = backlog.plus(waiting.waiter.backlog());
        self.arrivals.insert((lane, waiting.waiter.arrived, ticket));
        self.bytes.add(&waiting.waiter);
        self.rated.add(&waiting);
        self.climbing.extend(waiting.climbs.map(|at| (at, ticket)));
        self.far.extend(waiting.climb.is_far.then_some(ticket));
        self.ending.insert((waiting.until, ticket));
        self.waiting.insert(ticket, waiting);
    }

    /// Puts a waiter back whose flow has stayed as it was.
    pub(crate) fn restore(&mut self, ticket: Ticket, waiting: Waiting) {
        let band = self.bands.get(&(waiting.climb.band, waiting.waiter.lane.key));
        let starts = band.and_then(|band| band.starts_of(&waiting.flow)).unwrap_or_default();
        self.put_back(ticket, waiting, starts, None);
    }

    /// Takes a waiter out.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ticket)?;
        let (lane, leaving) = (waiting.waiter.lane.key, waiting.waiter.backlog());
        self.far.remove(&ticket);
        if let Some(band) = self.bands.get_mut(&(waiting.climb.band, lane)) {
            band.take(&waiting.flow, waiting.entry(ticket));
            if band.is_empty() {
                self.bands.remove(&(waiting.climb.band, lane));
            }
        }
        if let Some(backlog) = self.backlog.get_mut(&lane) {
            backlog.requests = backlog.requests.saturating_sub(leaving.requests);
            backlog.tokens.0 = backlog.tokens.0.saturating_sub(leaving.tokens.0);
            backlog.bytes = backlog.bytes.saturating_sub(leaving.bytes);
            if backlog.requests == 0 {
                self.forget_reasons(lane);
            }
        }
        self.arrivals.remove(&(lane, waiting.waiter.arrived, ticket));
        self.bytes.take(&waiting.waiter);
        self.rated.take(&waiting);
        if let Some(at) = waiting.climbs {
            self.climbing.remove(&(at, ticket));
        }
        self.ending.remove(&(waiting.until, ticket));
        Some(waiting)
    }

    /// Lets those climb whose time has come; `starts` is where a tenant starts in a band. They are in line then, so of the tenants
    /// that it returns others stand aside than before, or none.
    pub(crate) fn climb(&mut self, now: Time, mut starts: impl FnMut(&Waiting) -> Starts) -> BTreeSet<Rc<str>> {
        let mut stood_aside = BTreeSet::new();
        while let Some((at, ticket)) = self.climbing.first().copied()
            && at <= now
            && let was_aside = self.stands_aside_for_its_tenant(ticket)
            && let Some(mut waiting) = self.take(ticket)
        {
            if was_aside {
                stood_aside.insert(Rc::clone(&waiting.waiter.tenant_key));
            }
            let (to, climbs) = waiting.waiter.climbed(now);
            (waiting.climb, waiting.climbs) = (Climb::of(&waiting.waiter, to, self.bound), climbs);
            let starts = starts(&waiting);
            self.put_back(ticket, waiting, starts, None);
        }
        stood_aside
    }

    /// Some have climbed above the default lane.
    pub(crate) fn has_climbed_far(&self) -> bool {
        !self.far.is_empty()
    }

    /// Puts those that have climbed above the default lane where they count while so many of the last starts were of such; `starts` is where a
    /// tenant starts in a band.
    pub(crate) fn bind(&mut self, bound: Option<u32>, mut starts: impl FnMut(&Waiting) -> Starts) {
        if std::mem::replace(&mut self.bound, bound) == bound {
            return;
        }
        for ticket in self.far.clone() {
            let Some(waiting) = self.waiting.get(&ticket) else { continue };
            let climb = Climb::of(&waiting.waiter, waiting.climb.to, bound);
            let band = self.bands.get(&(waiting.climb.band, waiting.waiter.lane.key));
            let aside = band.and_then(|band| band.aside_of(&waiting.flow));
            if climb != waiting.climb
                && let Some(mut waiting) = self.take(ticket)
            {
                waiting.climb = climb;
                let starts = starts(&waiting);
                self.put_back(ticket, waiting, starts, aside);
            }
        }
    }

    fn stands_aside_for_its_tenant(&self, ticket: Ticket) -> bool {
        let waiting = self.waiting.get(&ticket);
        let band = waiting.and_then(|waiting| self.bands.get(&(waiting.climb.band, waiting.waiter.lane.key)));
        waiting.zip(band).is_some_and(|(waiting, band)| band.stands_aside_for_its_tenant(&waiting.flow))
    }

    /// Lets the shortest of a lane go first among tenants whose tags differ by less than its span.
    pub(crate) fn look_across_tenants(&mut self, lanes: &Lanes, span: impl Fn(&Lane) -> u64) {
        for lane in lanes.iter() {
            if let Some(band) = self.bands.get_mut(&(lane.position, lane.key)) {
                band.span = span(lane);
            }
        }
    }

    /// The first of every band and lane of those that neither stand aside nor let others pass.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = Candidate> {
        self.firsts(|waiting| !waiting.yields(&self.rooms))
    }

    /// The first of every band and lane that does not stand aside, among those chosen.
    fn firsts(&self, chosen: impl Fn(&Waiting) -> bool) -> impl Iterator<Item = Candidate> {
        self.bands.values().filter_map(move |band| {
            self.candidate(band.first(|ticket| self.waiting.get(&ticket).is_some_and(&chosen))?)
        })
    }

    fn candidate(&self, place: Place) -> Option<Candidate> {
        let Place { tag, urgency, ticket, .. } = place;
        let waiting = self.waiting.get(&ticket)?;
        let (band, flow) = (waiting.band_lane().key, flow_of(&waiting.flow.0));
        let (tokens, bytes) = (waiting.waiter.amount().tokens, waiting.waiter.bytes);
        let (lane, within) = (waiting.waiter.lane.key, waiting.waiter.sub.map(|sub| (sub, place.within)));
        Some(Candidate { ticket, head: Head { band, lane, flow, tag, urgency, tokens, bytes, within } })
    }

    /// Sets where the flow of a waiter starts.
    pub(crate) fn retag(&mut self, ticket: Ticket, starts: Starts) {
        self.change_flow(ticket, |band, flow| band.retag(flow, starts));
    }

    /// The first waiters of the next flows of every band, by tenant behind one.
    pub(crate) fn flows_behind(&self, last: Option<&FlowId>, most: usize) -> Vec<(FlowId, Ticket)> {
        let mut flows: Vec<(&FlowId, Ticket)> =
            self.bands.values().flat_map(|band| band.flows_behind(last, most)).collect();
        flows.sort_unstable();
        // Those of one name in several bands are not parted: the next look begins behind all of them.
        let last = most.checked_sub(1).and_then(|place| flows.get(place)).map(|(id, _)| (*id).clone());
        let looked_at = flows.into_iter().take_while(|(id, _)| last.as_ref().is_none_or(|last| *id <= last));
        looked_at.map(|(id, ticket)| (id.clone(), ticket)).collect()
    }

    /// The first waiters of a tenant's flows.
    pub(crate) fn flows_of(&self, tenant: &str) -> Vec<Ticket> {
        self.bands.values().flat_map(|band| band.flows_of(tenant)).collect()
    }

    /// Position of the highest lane that a waiter counts as.
    pub(crate) fn highest_band(&self) -> Option<usize> {
        self.bands.keys().next().map(|(position, _)| *position)
    }

    /// The last waiter of the flow that has most waiting for its weight, if one more of a newcomer's flow would have less.
    pub(crate) fn last_beyond_its_share(&self, newcomer: &Waiter) -> Option<Ticket> {
        let band = self.bands.get(&(newcomer.lane.position, newcomer.lane.key))?;
        let classes = newcomer.classes.iter().map(|class| class.key).collect();
        let own = band.waiting_in(&(Rc::clone(&newcomer.tenant_key), classes)).saturating_add(1);
        band.last_beyond(own, newcomer.limits.weight)
    }

    /// Makes the flow of a waiter step aside.
    pub(crate) fn step_aside(&mut self, ticket: Ticket, aside: Aside) {
        self.change_flow(ticket, |band, flow| band.step_aside(flow, aside));
    }

    fn change_flow(&mut self, ticket: Ticket, change: impl FnOnce(&mut Band, &FlowId)) {
        if let Some(waiting) = self.waiting.get(&ticket)
            && let Some(band) = self.bands.get_mut(&(waiting.climb.band, waiting.waiter.lane.key))
        {
            change(band, &waiting.flow);
        }
    }

    /// Lets the flow of a waiter step back in line.
    pub(crate) fn step_back(&mut self, ticket: Ticket) {
        self.change_flow(ticket, Band::step_back);
    }

    /// Lets the first flow of each kind of class step back in line.
    pub(crate) fn step_back_by_class(&mut self) {
        self.bands.values_mut().for_each(Band::step_back_by_class);
    }

    /// The next tenants, by name from one on, whose flows stand aside for their own caps.
    pub(crate) fn tenants_aside(&self, from: Option<&Rc<str>>, most: usize) -> BTreeSet<Rc<str>> {
        let tenants: BTreeSet<&Rc<str>> = gather(self.bands.values().flat_map(|band| band.tenants_aside(from, most)));
        gather(tenants.into_iter().take(most).cloned())
    }

    /// The first waiters of a tenant's flows that stand aside for its own caps.
    pub(crate) fn firsts_aside(&self, tenant: &str) -> Vec<&Waiter> {
        let firsts = self.bands.values().flat_map(|band| band.firsts_aside(tenant));
        firsts.filter_map(|first| Some(&self.waiting.get(&first.ticket)?.waiter)).collect()
    }

    /// The first of a tenant's waiters that stand aside for the tenant itself, over some queues, of those that are asked for: by lane, then by
    /// sub-flow and urgency.
    // Why by lane first: what is urgent in one lane, such as few tokens, is no time in another.
    pub(crate) fn blocked<'a>(
        queues: impl Iterator<Item = &'a Self>,
        tenant: &str,
        is_asked_for: impl Fn(&Waiter) -> bool,
    ) -> Option<(Ticket, Blocked, &'a Waiter)> {
        let mut firsts = Vec::new();
        for queue in queues {
            for first in queue.bands.values().flat_map(|band| band.firsts_aside(tenant)) {
                if let Some(waiting) = queue.waiting.get(&first.ticket).filter(|waiting| is_asked_for(&waiting.waiter))
                {
                    let (band, part) = (waiting.band_lane(), waiting.part());
                    let blocked = Blocked { band: band.key, urgency: first.urgency, part };
                    firsts.push((band.level, first.within, (first.ticket, blocked, &waiting.waiter)));
                }
            }
        }
        let order = Order::of(firsts.iter().map(|(.., (_, first, _))| *first));
        let place =
            |(level, tag, (_, first, _)): &(usize, u64, (_, Blocked, _))| (*level, order.place(first, |_| *tag));
        firsts.into_iter().min_by_key(place).map(|(.., first)| first)
    }

    /// Those whose time is up.
    pub(crate) fn due(&self, now: Time) -> Vec<Ticket> {
        self.ending.iter().take_while(|(until, _)| *until <= now).map(|(_, ticket)| *ticket).collect()
    }

    /// Lets a waiter stay longer.
    pub(crate) fn extend(&mut self, ticket: Ticket, until: Time) {
        if let Some(waiting) = self.waiting.get_mut(&ticket) {
            self.ending.remove(&(waiting.until, ticket));
            waiting.until = until;
            self.ending.insert((until, ticket));
        }
    }

    /// What the pool's record is to say.
    pub(crate) fn report(&self) -> Report {
        let oldest = |lane: LaneKey| {
            let first = (lane, Time(0), Ticket(0));
            self.arrivals.range(first..).next().filter(|(other, ..)| *other == lane).map_or(Time(0), |(_, at, _)| *at)
        };
        let aside = |lane: LaneKey| {
            let bands = self.bands.iter().filter(|((_, other), _)| *other == lane);
            bands.fold(0_u64, |sum, (_, band)| sum.saturating_add(band.aside()))
        };
        let waiting = self.backlog.iter().filter(|(_, backlog)| backlog.requests > 0);
        let told = |lane: LaneKey, own: Backlog| Backlog { oldest: oldest(lane), aside: aside(lane), ..own };
        let waiting: Vec<(LaneKey, Backlog)> = waiting.map(|(lane, backlog)| (*lane, told(*lane, *backlog))).collect();
        let has_budget = |lane: LaneKey| {
            let first = self.arrivals.range((lane, Time(0), Ticket(0))..).next();
            let waiter = first.and_then(|(_, _, ticket)| self.waiting.get(ticket)).map(|waiting| &waiting.waiter);
            waiter.is_some_and(|waiter| waiter.lane.key == lane && waiter.lane.dispatch_budget.is_some())
        };
        let waits_for_the_pool = |lane| !has_budget(lane) && !self.waits_for_a_rate(lane);
        let in_line =
            waiting.iter().filter(|(lane, _)| waits_for_the_pool(*lane)).map(|(_, backlog)| backlog.in_line());
        let demand = in_line.fold(0, u64::saturating_add);
        Report {
            kept: self.kept(&waiting),
            waiting,
            demand,
            heads: self.candidates().map(|candidate| candidate.head).collect(),
            yielding: self.yielding(),
            large: self.bytes.large(),
            rated: self.rated.joined(),
            for_a_class: self.bands.values().any(Band::waits_for_a_class),
        }
    }
}
