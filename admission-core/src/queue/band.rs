//! One band of a queue: flows by fair tag.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use super::{FlowId, Ticket};
use crate::ledger::TallyKey;

/// Why a flow stands aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aside {
    /// Its tenant holds all that it may.
    Tenant,
    /// A class of its requests does.
    Class,
}

/// Waiters of one flow among these.
// Why so few: a flow of waiters that do not fit is to hide no other flow.
const MOST_OF_A_FLOW: usize = 64;

/// Waiters of a band that are looked at, at most, for one that fits.
const MOST_LOOKED_AT: usize = 256;

/// Requests of one tenant, and of the same classes.
#[derive(Debug)]
struct Flow {
    waiters: BTreeSet<(u64, Ticket)>,
    weight: u32,
    tag: u64,
    aside: Option<Aside>,
}

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

impl Flow {
    fn aside(&self) -> u64 {
        self.aside.map_or(0, |_| self.waiters.len() as u64)
    }
}

impl Band {
    pub(super) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Adds a waiter whose tenant has a weight and starts at a tag; one that opens a flow that has to step aside does so.
    pub(super) fn push(&mut self, id: &FlowId, waiter: (u64, Ticket), weight: u32, tag: u64, aside: Option<Aside>) {
        let flow = self.lift(id).unwrap_or(Flow { waiters: BTreeSet::new(), weight, tag, aside });
        let mut flow = Flow { weight, tag, ..flow };
        flow.waiters.insert(waiter);
        self.lay(id, flow);
    }

    pub(super) fn take(&mut self, id: &FlowId, waiter: (u64, Ticket)) {
        self.change(id, |flow| {
            flow.waiters.remove(&waiter);
        });
    }

    pub(super) fn retag(&mut self, id: &FlowId, tag: u64) {
        self.change(id, |flow| flow.tag = tag);
    }

    pub(super) fn step_aside(&mut self, id: &FlowId, aside: Aside) {
        self.change(id, |flow| flow.aside = Some(aside));
    }

    /// The tag, the urgency and the ticket of the first of those that go on, among the first [`MOST_LOOKED_AT`].
    pub(super) fn first(&self, goes: impl Fn(Ticket) -> bool) -> Option<(u64, u64, Ticket)> {
        let mut best: Option<(u64, u64, Ticket)> = None;
        let mut lowest = None;
        let mut left = MOST_LOOKED_AT;
        for (tag, urgency, id) in &self.ready {
            let is_near = lowest.is_some_and(|lowest: u64| tag.saturating_sub(lowest) < self.span);
            if left == 0 || !is_near && best.is_some_and(|best| (best.0, best.1) <= (*tag, *urgency)) {
                break;
            }
            let Some(flow) = self.flows.get(id) else { continue };
            let mut looked_at =
                flow.waiters.iter().take(left.min(MOST_OF_A_FLOW)).inspect(|_| left = left.saturating_sub(1));
            let first = looked_at.find(|(_, ticket)| goes(*ticket)).map(|(urgency, ticket)| (*tag, *urgency, *ticket));
            lowest = lowest.or(first.map(|_| *tag));
            best = best.into_iter().chain(first).min_by_key(|one| (if is_near { 0 } else { one.0 }, one.1, one.2));
        }
        best
    }

    /// Waiters in line, in order, as far as [`MOST_LOOKED_AT`]: tag, urgency and ticket.
    pub(super) fn in_line(&self) -> impl Iterator<Item = (u64, u64, Ticket)> {
        let flows = self.ready.iter().filter_map(|(tag, _, id)| Some((*tag, self.flows.get(id)?)));
        let waiters = flows.flat_map(|(tag, flow)| {
            flow.waiters.iter().take(MOST_OF_A_FLOW).map(move |(urgency, ticket)| (tag, *urgency, *ticket))
        });
        waiters.take(MOST_LOOKED_AT)
    }

    /// Waiters of a flow, in order, as far as [`MOST_LOOKED_AT`]; none when it stands aside.
    pub(super) fn in_line_of(&self, id: &FlowId) -> impl Iterator<Item = (u64, Ticket)> {
        let flow = self.flows.get(id).filter(|flow| flow.aside.is_none());
        flow.into_iter().flat_map(|flow| flow.waiters.iter().copied()).take(MOST_LOOKED_AT)
    }

    pub(super) fn step_back(&mut self, tenant: &str) -> bool {
        let ids: Vec<FlowId> = self.of_tenant_aside(tenant).cloned().collect();
        for id in &ids {
            self.change(id, |flow| flow.aside = None);
        }
        !ids.is_empty()
    }

    pub(super) fn step_back_by_class(&mut self) {
        let first = |flows: &InOrder| flows.first().map(|(.., id)| id.clone());
        let ids: Vec<FlowId> = self.for_class.values().filter_map(first).collect();
        for id in &ids {
            self.change(id, |flow| flow.aside = None);
        }
    }

    /// The first waiters of a tenant's flows that stand aside for its own caps.
    pub(super) fn firsts_aside<'a>(&'a self, tenant: &'a str) -> impl Iterator<Item = (u64, Ticket)> {
        self.of_tenant_aside(tenant).filter_map(|id| self.flows.get(id)?.waiters.first().copied())
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
        behind.filter_map(|(id, flow)| Some((id, flow.waiters.first()?.1))).take(most)
    }

    pub(super) fn flows_of<'a>(&'a self, tenant: &'a str) -> impl Iterator<Item = Ticket> {
        let start: FlowId = (tenant.into(), Rc::default());
        let own = self.flows.range(start..).take_while(move |((other, _), _)| **other == *tenant);
        own.filter_map(|(_, flow)| Some(flow.waiters.first()?.1))
    }

    pub(super) fn tag_of(&self, id: &FlowId) -> Option<u64> {
        self.flows.get(id).map(|flow| flow.tag)
    }

    pub(super) fn aside_of(&self, id: &FlowId) -> Option<Aside> {
        self.flows.get(id)?.aside
    }

    pub(super) fn waits_for_a_class(&self) -> bool {
        !self.for_class.is_empty()
    }

    pub(super) fn waiting_in(&self, id: &FlowId) -> u64 {
        self.flows.get(id).map_or(0, |flow| flow.waiters.len() as u64)
    }

    /// The last waiter of the flow that has most waiting for its weight, if that is more than these are for theirs. A flow
    /// keeps one in any case.
    pub(super) fn last_beyond(&self, waiting: u64, weight: u32) -> Option<Ticket> {
        let load = |flow: &Flow, weight: u32| (flow.waiters.len() as u64).saturating_mul(u64::from(weight));
        let several = self.flows.values().filter(|flow| flow.waiters.len() > 1);
        let flow = several.max_by(|one, other| load(one, other.weight).cmp(&load(other, one.weight)))?;
        let is_more = load(flow, weight) > waiting.saturating_mul(u64::from(flow.weight));
        flow.waiters.last().filter(|_| is_more).map(|(_, ticket)| *ticket)
    }

    /// Waiters that stand aside.
    pub(super) fn aside(&self) -> u64 {
        self.aside
    }

    /// Of all flows.
    pub(super) fn weights(&self) -> u64 {
        self.weights
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
        self.aside = self.aside.saturating_sub(flow.aside());
        let urgency = flow.waiters.first().map_or(0, |(urgency, _)| *urgency);
        let key = (flow.tag, urgency, id.clone());
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
        let Some((urgency, _)) = flow.waiters.first() else { return };
        let key = (flow.tag, *urgency, id.clone());
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
        self.aside = self.aside.saturating_add(flow.aside());
        self.flows.insert(id.clone(), flow);
    }
}
