//! A request that waits, and the lane it counts as.

use std::rc::Rc;
use std::sync::Arc;

use super::conduct::Fit;
use super::flow::Entry;
use super::{FlowId, Ticket};
use crate::ask::Ask;
use crate::decide::{Turn, flow_of, urgency};
use crate::ledger::{Amount, Backlog, Flow, FlowKey, Part, SubFlow};
use crate::members::Holder;
use crate::policy::{Class, Lane, Lanes, Limits, Pool};
use crate::stream::StreamId;
use crate::units::{Millis, Time};

/// A request that waits, with all that it takes to decide on it again.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// Stream of the request.
    pub owner: StreamId,
    /// The tokens and answers asked for.
    pub ask: Ask,
    /// Limits of its tenant.
    pub limits: Arc<Limits>,
    /// The pool that it waits for.
    pub pool: Arc<Pool>,
    /// Classes of the pool that it belongs to.
    pub classes: Vec<Arc<Class>>,
    /// The lane it came for.
    pub lane: Arc<Lane>,
    /// All lanes of its policy.
    pub lanes: Arc<Lanes>,
    /// Name of its tenant's record.
    pub tenant_key: Rc<str>,
    /// True while its headers can still tell the proxy which worker to take.
    pub can_be_steered: bool,
    /// Size of its body, as far as it is known.
    pub bytes: u64,
    /// Bytes of its body that the proxy may hold while it waits.
    pub kept_bytes: u64,
    /// Time within which the caller wants the first token.
    pub deadline: Option<Millis>,
    /// Part of its tenant's requests that it belongs to, where a header names one.
    pub sub: Option<SubFlow>,
    /// Time of its arrival.
    pub arrived: Time,
}

impl Waiter {
    /// Time that it may wait for its turn.
    #[must_use]
    pub fn patience(&self) -> Millis {
        let longest = self.lane.queue.as_ref().map_or(Millis(0), |queue| queue.max_wait);
        self.deadline.map_or(longest, |deadline| deadline.min(longest))
    }

    pub(super) fn urgency(&self) -> u64 {
        urgency(&self.lane, &self.ask, self.deadline, self.arrived)
    }

    pub(super) fn amount(&self) -> Amount {
        self.ask.amount(self.pool.block_size)
    }

    pub(crate) fn backlog(&self) -> Backlog {
        Backlog { requests: 1, tokens: self.amount().tokens, bytes: self.kept_bytes, oldest: self.arrived, aside: 0 }
    }

    /// Position of the lane that it has climbed to, and when it climbs next.
    pub(super) fn climbed(&self, now: Time) -> (usize, Option<Time>) {
        let Some(aging) = &self.lane.aging else { return (self.lane.position, None) };
        let steps = now.since(self.arrived).0.checked_div(aging.after.0).unwrap_or(0);
        let climbed = usize::try_from(steps).map_or(aging.path.len(), |steps| steps.min(aging.path.len()));
        let band = climbed.checked_sub(1).and_then(|last| aging.path.get(last)).copied().unwrap_or(self.lane.position);
        let next = self.arrived.0.saturating_add(aging.after.0.saturating_mul(steps.saturating_add(1)));
        (band, (climbed < aging.path.len()).then_some(Time(next)))
    }
}

/// A lane that a waiter has climbed to, and the one that it counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Climb {
    /// Position of the lane that it has climbed to.
    pub(super) to: usize,
    /// Position of the lane that it counts as.
    pub(super) band: usize,
    /// True where the lane is above the default one and above its own.
    pub(super) is_far: bool,
}

impl Climb {
    /// The climb of a waiter to a position, while so many of the last starts were of waiters that had climbed far.
    pub(super) fn of(waiter: &Waiter, to: usize, bound: Option<u32>) -> Self {
        let free = waiter.lanes.freely_climbed(waiter.lane.position, to);
        let most = waiter.lane.aging.as_ref().map_or(0, |aging| aging.most_of_last_starts);
        let is_bound = bound.is_some_and(|starts| starts >= most);
        Self { to, band: if is_bound { free } else { to }, is_far: to < free }
    }
}

/// A waiter in its place.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) waiter: Waiter,
    pub(super) climb: Climb,
    pub(crate) flow: FlowId,
    pub(super) urgency: u64,
    pub(super) climbs: Option<Time>,
    pub(super) until: Time,
    pub(super) fit: Fit,
    /// True for one that joined to wait for a rate.
    pub(crate) is_rated: bool,
}

impl Waiting {
    /// The lane that it counts as in the records.
    pub(crate) fn band_lane(&self) -> &Lane {
        self.waiter.lanes.at(self.climb.band)
    }

    pub(crate) fn flow_key(&self) -> FlowKey {
        FlowKey::of(&self.waiter.pool.key, self.band_lane().level_key)
    }

    /// The flow that it is charged to.
    pub(crate) fn charged(&self) -> Flow {
        Flow { key: self.flow_key(), sub: self.waiter.sub, weight: self.waiter.limits.weight }
    }

    pub(super) fn part(&self) -> Option<Part> {
        self.waiter.sub.map(|sub| Part { flow: self.flow_key(), sub })
    }

    pub(super) fn entry(&self, ticket: Ticket) -> Entry {
        Entry { sub: self.waiter.sub, urgency: self.urgency, ticket }
    }

    /// The place in line.
    pub(crate) fn turn(&self, holder: Holder) -> Turn<'_> {
        let (flow, urgency, bytes) = (flow_of(&self.flow.0), self.urgency, self.waiter.bytes);
        let (band, has_climbed_far, sub) = (self.band_lane(), self.climb.is_far, self.waiter.sub);
        Turn { band, has_climbed_far, flow, sub, urgency, bytes, waits_in: Some(holder), behind_its_like: None }
    }
}
