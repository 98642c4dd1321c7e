//! Waiting amounts of each tenant and lane.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::band::Band;
use super::{Aside, FlowId, Queue, Ticket, Waiter};
use crate::decide::flow_of;
use crate::gather::gather;
use crate::ledger::{LaneKey, Large, Starts};
use crate::policy::{Lane, Lanes};
use crate::units::Time;

/// A tenant's waiting bytes are published from this part of its pool's bound on; so a VM publishes few tenants, and a quarter is kept to
/// within a 256th of it for each other VM.
const LARGE: u64 = 1_024;

/// Shares of a flow in what waits for a lane, and for all lanes of that one's priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) lane: Share,
    pub(crate) level: Share,
}

/// Share of a flow in what waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// Waiting requests of the flow.
    pub(crate) own: u64,
    /// Requests of anybody.
    pub(crate) all: u64,
    /// Weights of all flows that have some.
    pub(crate) weights: u64,
}

/// Bytes that wait of each tenant.
#[derive(Debug, Default)]
pub(super) struct TenantBytes {
    all: BTreeMap<Rc<str>, u64>,
    /// Tenants with so many that other VMs are to know.
    large: BTreeSet<Rc<str>>,
}

impl TenantBytes {
    pub(super) fn add(&mut self, waiter: &Waiter) {
        self.set(waiter, self.of(&waiter.tenant_key).saturating_add(waiter.kept_bytes));
    }

    pub(super) fn take(&mut self, waiter: &Waiter) {
        self.set(waiter, self.of(&waiter.tenant_key).saturating_sub(waiter.kept_bytes));
    }

    fn set(&mut self, waiter: &Waiter, bytes: u64) {
        let tenant = &waiter.tenant_key;
        match bytes {
            0 => self.all.remove(tenant),
            _ => self.all.insert(Rc::clone(tenant), bytes),
        };
        if bytes > waiter.pool.queue.max_bytes.limit / LARGE {
            self.large.insert(Rc::clone(tenant));
        } else {
            self.large.remove(tenant);
        }
    }

    fn of(&self, tenant: &str) -> u64 {
        self.all.get(tenant).copied().unwrap_or_default()
    }

    pub(super) fn large(&self) -> Vec<Large> {
        self.large.iter().map(|tenant| Large { flow: flow_of(tenant), bytes: self.of(tenant) }).collect()
    }
}

/// Weights of the flows of some bands, of each once.
fn weights_of_all(bands: &[&Band]) -> u64 {
    let weights: BTreeMap<&FlowId, u32> = gather(bands.iter().flat_map(|band| band.flow_weights()));
    weights.values().fold(0, |sum, weight| sum.saturating_add(u64::from(*weight)))
}

impl Queue {
    /// Bytes that wait of a tenant.
    pub(crate) fn bytes_of(&self, tenant: &str) -> u64 {
        self.bytes.of(tenant)
    }

    /// The tag of a waiter's flow, and why it has stepped aside, if it has.
    pub(crate) fn place_of(&self, ticket: Ticket) -> (Starts, Option<Aside>) {
        let waiting = self.waiting.get(&ticket);
        let band = waiting.and_then(|waiting| self.bands.get(&(waiting.climb.band, waiting.waiter.lane.key)));
        let place =
            waiting.zip(band).map(|(waiting, band)| (band.starts_of(&waiting.flow), band.aside_of(&waiting.flow)));
        place.map_or_else(Default::default, |(starts, aside)| (starts.unwrap_or_default(), aside))
    }

    /// The newest waiter of those that came for one of these lanes.
    pub(crate) fn newest_of(&self, lanes: impl Iterator<Item = LaneKey>) -> Option<Ticket> {
        let last = |lane| {
            let all = (lane, Time(0), Ticket(0))..=(lane, Time(u64::MAX), Ticket(u64::MAX));
            self.arrivals.range(all).next_back()
        };
        lanes.filter_map(last).max_by_key(|(_, at, ticket)| (*at, *ticket)).map(|(.., ticket)| *ticket)
    }

    /// Shares of a flow in what waits for a lane and for its priority.
    pub(crate) fn shares(&self, lanes: &Lanes, lane: &Lane, flow: &FlowId) -> Shares {
        let of_level: Vec<&Lane> =
            lanes.iter().map(|other| &**other).filter(|other| other.level == lane.level).collect();
        Shares { lane: self.share(&[lane], flow), level: self.share(&of_level, flow) }
    }

    fn share(&self, lanes: &[&Lane], flow: &FlowId) -> Share {
        let bands: Vec<&Band> = lanes.iter().filter_map(|lane| self.bands.get(&(lane.position, lane.key))).collect();
        // Why not their sum: a tenant that waits for several of these lanes takes one turn.
        let weights = match bands[..] {
            [band] => band.weights(),
            _ => weights_of_all(&bands),
        };
        let waiting = lanes.iter().filter_map(|lane| self.backlog.get(&lane.key));
        Share {
            own: bands.iter().map(|band| band.waiting_in(flow)).fold(0, u64::saturating_add),
            all: waiting.map(|backlog| backlog.requests).fold(0, u64::saturating_add),
            weights,
        }
    }
}
