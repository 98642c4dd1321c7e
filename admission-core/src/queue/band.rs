//! One band of a queue: flows by fair tag.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use super::flow::{Aside, Entry, Flow, Place};
use super::{FlowId, Ticket};
use crate::ledger::{Starts, SubFlow, TallyKey};

/// Waiters of one flow among these, of each of its sub-flows as many.
// Why so few: a flow of waiters that do not fit is to hide no other flow.
const MOST_OF_A_FLOW: usize = 64;

/// Waiters of a band that are looked at, at most, for one that fits.
const MOST_LOOKED_AT: usize = 256;

/// Flows by tag and by the urgency of their first.
type InOrder = BTreeSet<(u64, u64, FlowId)>;

/// Flows that came for one lane and count as one.
#[derive(Debug, Default)]
pub(super) struct Band {
    flows: BTreeMap<FlowId, Flow>,
    /// Those in line.
    ready: InOrder,
    for_tenant: BTreeSet<FlowId>,
    for_class: BTreeMap<Rc<[TallyKey]>, InOrder>,
    weights: u64,
    /// Waiters of flows that stand aside.
    aside: u64,
    /// Difference of tags within which the most urgent goes first, whichever flow's it is; 0 where flows take turns.
    pub(super) span: u64,
}

impl Band {
    pub(super) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Adds a waiter whose tenant has a weight and starts at a tag; one that opens a flow that has to step aside does so.
    pub(super) fn push(&mut self, id: &FlowId, waiter: Entry, weight: u32, starts: Starts, aside: Option<Aside>) {
        let mut flow = self.lift(id).unwrap_or_else(|| Flow::new(aside));
        flow.weight = weight;
        flow.add(waiter, starts);
        self.lay(id, flow);
    }

    pub(super) fn take(&mut self, id: &FlowId, waiter: Entry) {
        self.change(id, |flow| flow.remove(waiter));
    }

    pub(super) fn retag(&mut self, id: &FlowId, starts: Starts) {
        self.change(id, |flow| flow.start_at(starts));
    }

    pub(super) fn step_aside(&mut self, id: &FlowId, aside: Aside) {
        self.change(id, |flow| flow.aside = Some(aside));
    }

    /// The first of those that go on, among the first [`MOST_LOOKED_AT`].
    pub(super) fn first(&self, goes: impl Fn(Ticket) -> bool) -> Option<Place> {
        let mut best: Option<(Place, &FlowId)> = None;
        let mut lowest = None;
        let mut left = MOST_LOOKED_AT;
        for (tag, urgency, id) in &self.ready {
            let is_near = lowest.is_some_and(|lowest: u64| tag.saturating_sub(lowest) < self.span);
            if left == 0 || !is_near && best.is_some_and(|(best, _)| (best.tag, best.urgency) <= (*tag, *urgency)) {
                break;
            }
            let Some(flow) = self.flows.get(id) else { continue };
            let mut looked_at =
                flow.first_of_each(MOST_OF_A_FLOW).take(left).inspect(|_| left = left.saturating_sub(1));
            let first = looked_at.find(|place| goes(place.ticket)).map(|place| (place, id));
            lowest = lowest.or(first.map(|_| *tag));
            best = best
                .into_iter()
                .chain(first)
                .min_by_key(|(one, _)| (if is_near { 0 } else { one.tag }, one.urgency, one.ticket));
        }
        let (best, id) = best?;
        Some(self.first_within(best, id, goes))
    }

    /// The first of a tenant's waiters in line that go on, given the one that goes first by its flow.
    // Why asked: its flows by class start at one tag, and its sub-flows take turns over all of these.
    fn first_within(&self, best: Place, (tenant, _): &FlowId, goes: impl Fn(Ticket) -> bool) -> Place {
        let in_line = self.flows_from(tenant).filter(|flow| flow.aside.is_none() && flow.is_parted());
        let firsts = in_line.filter_map(|flow| flow.first_of_each(MOST_OF_A_FLOW).find(|place| goes(place.ticket)));
        let first = firsts.chain([best]).min_by_key(|place| (place.within, place.urgency, place.ticket));
        first.unwrap_or(best)
    }

    /// Waiters in line, in order, as far as [`MOST_LOOKED_AT`].
    pub(super) fn in_line(&self) -> impl Iterator<Item = Place> {
        let flows = self.ready.iter().filter_map(|(.., id)| self.flows.get(id));
        flows.flat_map(|flow| flow.first_of_each(MOST_OF_A_FLOW)).take(MOST_LOOKED_AT)
    }

    /// Waiters of a flow, in order, as far as [`MOST_LOOKED_AT`]; none when it stands aside.
    pub(super) fn in_line_of(&self, id: &FlowId) -> impl Iterator<Item = Place> {
        let flow = self.flows.get(id).filter(|flow| flow.aside.is_none());
        flow.into_iter().flat_map(|flow| flow.first_of_each(MOST_LOOKED_AT))
    }

    pub(super) fn step_back(&mut self, id: &FlowId) {
        self.change(id, |flow| flow.aside = None);
    }

    pub(super) fn step_back_by_class(&mut self) {
        let first = |flows: &InOrder| flows.first().map(|(.., id)| id.clone());
        let ids: Vec<FlowId> = self.for_class.values().filter_map(first).collect();
        for id in &ids {
            self.change(id, |flow| flow.aside = None);
        }
    }

    /// The first waiters of a tenant's flows that stand aside for its own caps.
    pub(super) fn firsts_aside<'a>(&'a self, tenant: &'a str) -> impl Iterator<Item = Place> {
        self.of_tenant_aside(tenant).filter_map(|id| self.flows.get(id)?.first())
    }

    pub(super) fn tenants_aside<'a>(
        &'a self,
        from: Option<&Rc<str>>,
        most: usize,
    ) -> impl Iterator<Item = &'a Rc<str>> {
        let start: FlowId = (from.cloned().unwrap_or_else(|| "".into()), Rc::default());
        self.for_tenant.range(start..).map(|(tenant, _)| tenant).take(most)
    }

    pub(super) fn stands_aside_for_its_tenant(&self, id: &FlowId) -> bool {
        self.for_tenant.contains(id)
    }

    pub(super) fn flows_behind<'a>(
        &'a self,
        last: Option<&FlowId>,
        most: usize,
    ) -> impl Iterator<Item = (&'a FlowId, Ticket)> {
        let start = last.map_or(Bound::Unbounded, |last| Bound::Excluded(last.clone()));
        let behind = self.flows.range((start, Bound::Unbounded));
        behind.filter_map(|(id, flow)| Some((id, flow.first()?.ticket))).take(most)
    }

    pub(super) fn flows_of<'a>(&'a self, tenant: &'a str) -> impl Iterator<Item = Ticket> {
        self.flows_from(tenant).filter_map(|flow| Some(flow.first()?.ticket))
    }

    fn flows_from<'a>(&'a self, tenant: &'a str) -> impl Iterator<Item = &'a Flow> {
        let start: FlowId = (tenant.into(), Rc::default());
        let own = self.flows.range(start..).take_while(move |((other, _), _)| **other == *tenant);
        own.map(|(_, flow)| flow)
    }

    pub(super) fn starts_of(&self, id: &FlowId) -> Option<Starts> {
        self.flows.get(id).map(|flow| *flow.starts())
    }

    /// Tag of a sub-flow of a flow; `None` where tags say nothing of its waiters, see [`Flow::within`].
    pub(super) fn within(&self, id: &FlowId, sub: Option<SubFlow>) -> Option<u64> {
        self.flows.get(id)?.within(sub)
    }

    pub(super) fn aside_of(&self, id: &FlowId) -> Option<Aside> {
        self.flows.get(id)?.aside
    }

    pub(super) fn waits_for_a_class(&self) -> bool {
        !self.for_class.is_empty()
    }

    pub(super) fn waiting_in(&self, id: &FlowId) -> u64 {
        self.flows.get(id).map_or(0, |flow| flow.len() as u64)
    }

    /// The last waiter of the flow that has most waiting for its weight, if that is more than these are for theirs. A flow
    /// keeps one in any case.
    pub(super) fn last_beyond(&self, waiting: u64, weight: u32) -> Option<Ticket> {
        let load = |flow: &Flow, weight: u32| (flow.len() as u64).saturating_mul(u64::from(weight));
        let several = self.flows.values().filter(|flow| flow.len() > 1);
        let flow = several.max_by(|one, other| load(one, other.weight).cmp(&load(other, one.weight)))?;
        let is_more = load(flow, weight) > waiting.saturating_mul(u64::from(flow.weight));
        flow.waiters().next_back().filter(|_| is_more).map(|place| place.ticket)
    }

    /// Waiters that stand aside.
    pub(super) fn aside(&self) -> u64 {
        self.aside
    }

    /// Of all flows.
    pub(super) fn weights(&self) -> u64 {
        self.weights
    }

    /// Every flow, and its weight.
    pub(super) fn flow_weights(&self) -> impl Iterator<Item = (&FlowId, u32)> {
        self.flows.iter().map(|(id, flow)| (id, flow.weight))
    }

    fn of_tenant_aside<'a>(&'a self, tenant: &'a str) -> impl Iterator<Item = &'a FlowId> {
        let start: FlowId = (tenant.into(), Rc::default());
        self.for_tenant.range(start..).take_while(move |(other, _)| **other == *tenant)
    }

    fn change(&mut self, id: &FlowId, change: impl FnOnce(&mut Flow)) {
        if let Some(mut flow) = self.lift(id) {
            change(&mut flow);
            self.lay(id, flow);
        }
    }

    /// Takes a flow out of every order.
    fn lift(&mut self, id: &FlowId) -> Option<Flow> {
        let flow = self.flows.remove(id)?;
        self.weights = self.weights.saturating_sub(u64::from(flow.weight));
        self.aside = self.aside.saturating_sub(flow.count_aside());
        let urgency = flow.first().map_or(0, |first| first.urgency);
        let key = (flow.tag(), urgency, id.clone());
        match flow.aside {
            None => {
                self.ready.remove(&key);
            }
            Some(Aside::Tenant) => {
                self.for_tenant.remove(id);
            }
            Some(Aside::Class) => {
                if let Some(flows) = self.for_class.get_mut(&id.1) {
                    flows.remove(&key);
                    if flows.is_empty() {
                        self.for_class.remove(&id.1);
                    }
                }
            }
        }
        Some(flow)
    }

    /// Puts a flow into the order it belongs to; an empty one is gone.
    fn lay(&mut self, id: &FlowId, flow: Flow) {
        let Some(first) = flow.first() else { return };
        let key = (first.tag, first.urgency, id.clone());
        match flow.aside {
            None => {
                self.ready.insert(key);
            }
            Some(Aside::Tenant) => {
                self.for_tenant.insert(id.clone());
            }
            Some(Aside::Class) => {
                self.for_class.entry(Rc::clone(&id.1)).or_default().insert(key);
            }
        }
        self.weights = self.weights.saturating_add(u64::from(flow.weight));
        self.aside = self.aside.saturating_add(flow.count_aside());
        self.flows.insert(id.clone(), flow);
    }
}
