//! Waiters of one tenant in one band, by sub-flow.

use std::collections::BTreeSet;

use super::Ticket;
use crate::ledger::{Starts, SubFlow};

/// Why a flow stands aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aside {
    /// The tenant of the flow holds all that it may.
    Tenant,
    /// A class of the flow's requests holds all that it may.
    Class,
}

/// Waiter as its flow keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Sub-flow of its tenant that it belongs to.
    pub(super) sub: Option<SubFlow>,
    /// Lower goes first.
    pub(super) urgency: u64,
    pub(super) ticket: Ticket,
}

/// Place of a waiter in its band.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Tag of its flow.
    pub(super) tag: u64,
    /// Tag of its sub-flow, which says nothing to other flows.
    pub(super) within: u64,
    pub(super) urgency: u64,
    pub(super) ticket: Ticket,
}

/// Requests of one tenant, and of the same classes.
#[derive(Debug)]
pub(super) struct Flow {
    /// Sub-flows that have waiters, in order.
    subs: Vec<Sub>,
    pub(super) weight: u32,
    starts: Starts,
    pub(super) aside: Option<Aside>,
}

#[derive(Debug)]
struct Sub {
    id: Option<SubFlow>,
    waiters: BTreeSet<(u64, Ticket)>,
}

impl Flow {
    pub(super) const fn new(aside: Option<Aside>) -> Self {
        Self { subs: Vec::new(), weight: 1, starts: Starts::at(0), aside }
    }

    pub(super) const fn tag(&self) -> u64 {
        self.starts.tag
    }

    pub(super) const fn starts(&self) -> &Starts {
        &self.starts
    }

    /// True where a header parts the tenant's requests.
    pub(super) fn is_parted(&self) -> bool {
        self.subs.iter().any(|sub| sub.id.is_some())
    }

    pub(super) fn len(&self) -> usize {
        self.subs.iter().map(|sub| sub.waiters.len()).sum()
    }

    /// Waiters in order: those of the sub-flow with the lowest tag, then those of the next.
    pub(super) fn waiters(&self) -> impl DoubleEndedIterator<Item = Place> {
        self.subs.iter().flat_map(|sub| self.places(sub))
    }

    /// The first `most` waiters, of each sub-flow as many.
    // Why: waiters of one sub-flow that cannot start are to hide no other's.
    pub(super) fn first_of_each(&self, most: usize) -> impl Iterator<Item = Place> {
        let of_each = most.div_ceil(self.subs.len().max(1));
        self.subs.iter().flat_map(move |sub| self.places(sub).take(of_each))
    }

    fn places(&self, sub: &Sub) -> impl DoubleEndedIterator<Item = Place> {
        let (tag, within) = (self.starts.tag, self.within(sub.id).unwrap_or(0));
        sub.waiters.iter().map(move |(urgency, ticket)| Place { tag, within, urgency: *urgency, ticket: *ticket })
    }

    /// Tag of a sub-flow among those of the waiters; `None` where tags say nothing, since some of these requests came under a policy that
    /// parts them and others under one that does not. Urgency alone decides then.
    pub(super) fn within(&self, sub: Option<SubFlow>) -> Option<u64> {
        let all_are_parted = sub.is_some() && self.subs.iter().all(|other| other.id.is_some());
        all_are_parted.then(|| self.starts.within(sub))
    }

    pub(super) fn first(&self) -> Option<Place> {
        self.waiters().next()
    }

    pub(super) fn add(&mut self, entry: Entry, starts: Starts) {
        let Entry { sub: id, urgency, ticket } = entry;
        if !self.subs.iter().any(|sub| sub.id == id) {
            self.subs.push(Sub { id, waiters: BTreeSet::new() });
        }
        if let Some(sub) = self.subs.iter_mut().find(|sub| sub.id == id) {
            sub.waiters.insert((urgency, ticket));
        }
        self.start_at(starts);
    }

    pub(super) fn remove(&mut self, entry: Entry) {
        for sub in self.subs.iter_mut().filter(|sub| sub.id == entry.sub) {
            sub.waiters.remove(&(entry.urgency, entry.ticket));
        }
        self.subs.retain(|sub| !sub.waiters.is_empty());
        self.sort();
    }

    pub(super) fn start_at(&mut self, starts: Starts) {
        self.starts = starts;
        self.sort();
    }

    fn sort(&mut self) {
        let Self { subs, starts, .. } = self;
        // Why not unless there are several: it is done with every change, and few tenants are parted.
        if subs.len() > 1 {
            let all_are_parted = subs.iter().all(|sub| sub.id.is_some());
            let tag = |sub: &Sub| if all_are_parted { starts.within(sub.id) } else { 0 };
            subs.sort_unstable_by_key(|sub| (tag(sub), sub.waiters.first().copied()));
        }
    }

    /// Waiters, if they stand aside.
    pub(super) fn count_aside(&self) -> u64 {
        self.aside.map_or(0, |_| self.len() as u64)
    }
}
