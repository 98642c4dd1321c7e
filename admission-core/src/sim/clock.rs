//! Virtual time: what is to happen, in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::units::Time;

/// The proxy's monotonic clock at the beginning; only differences mean anything, so it does not begin at nothing.
const START_MS: u64 = 1_000_000;

/// Microseconds since the simulation began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instant(pub(super) u64);

impl Instant {
    pub(super) const fn of_ms(ms: u64) -> Self {
        Self(ms * 1_000)
    }

    pub(super) const fn plus_us(self, us: u64) -> Self {
        Self(self.0 + us)
    }

    pub(super) const fn plus_ms(self, ms: u64) -> Self {
        self.plus_us(ms * 1_000)
    }

    pub(super) const fn ms(self) -> u64 {
        self.0 / 1_000
    }

    pub(super) const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0) / 1_000
    }

    /// As the core is told.
    pub(super) const fn time(self) -> Time {
        Time(START_MS + self.ms())
    }
}

/// What is still to happen. Things of one instant happen in the order in which they were planned.
pub(super) struct Agenda<E> {
    entries: BinaryHeap<Reverse<Entry<E>>>,
    planned: u64,
}

struct Entry<E> {
    at: Instant,
    number: u64,
    event: E,
}

impl<E> Agenda<E> {
    pub(super) fn new() -> Self {
        Self { entries: BinaryHeap::new(), planned: 0 }
    }

    pub(super) fn plan(&mut self, at: Instant, event: E) {
        self.entries.push(Reverse(Entry { at, number: self.planned, event }));
        self.planned += 1;
    }

    pub(super) fn next(&mut self) -> Option<(Instant, E)> {
        self.entries.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }

    /// The next one, if it comes by then and is such.
    pub(super) fn next_if(&mut self, by: Instant, such: impl Fn(&E) -> bool) -> Option<E> {
        let Reverse(entry) = self.entries.peek()?;
        if entry.at > by || !such(&entry.event) {
            return None;
        }
        self.next().map(|(_, event)| event)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
