//! Waiters of one tenant in one band, by sub-flow.

use std::collections::BTreeSet;

use super::{Aside, Ticket};
use crate::ledger::{Starts, SubFlow};

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
        let place = |sub: Option<SubFlow>, (urgency, ticket)| Place {
            tag: self.starts.tag,
            within: self.starts.within(sub),
            urgency,
            ticket,
        };
        self.subs.iter().flat_map(move |sub| sub.waiters.iter().map(move |waiter| place(sub.id, *waiter)))
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
            subs.sort_unstable_by_key(|sub| (starts.within(sub.id), sub.waiters.first().copied()));
        }
    }

    /// Waiters, if they stand aside.
    pub(super) fn count_aside(&self) -> u64 {
        self.aside.map_or(0, |_| self.len() as u64)
    }
}
