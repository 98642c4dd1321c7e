//! What a pool's record counts beside its lanes: requests of a class, requests at a worker, workers that refused.

use super::LaneKey;
use super::per_vm::{PerVm, Row};
use crate::hash;
use crate::members::{Holder, Members};
use crate::record::{Reader, Writer};
use crate::units::{Millis, Time};
use crate::view::WorkerKey;

/// What is tallied, as records know it: stable over builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TallyKey(pub u64);

impl TallyKey {
    /// A class of the pool, by its name.
    #[must_use]
    pub fn class(name: &str) -> Self {
        Self(hash::stable(format!("class/{name}").as_bytes()))
    }

    /// Bytes of bodies, of a lane whose dispatch budget counts them.
    #[must_use]
    pub fn bytes_of(lane: LaneKey) -> Self {
        Self(hash::stable(format!("bytes/{}", lane.0).as_bytes()))
    }

    /// A worker of the pool.
    #[must_use]
    pub const fn worker(worker: WorkerKey) -> Self {
        Self(worker.0)
    }
}

/// Requests that one VM holds under one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    key: TallyKey,
    requests: u64,
}

impl Row for Tally {
    fn write(&self, out: &mut Writer) {
        out.u64(self.key.0);
        out.u64(self.requests);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { key: TallyKey(reader.u64()?), requests: reader.u64()? })
    }
}

impl PerVm<Tally> {
    /// Requests that live VMs hold under a key.
    pub(super) fn held(&self, key: TallyKey, members: &Members) -> u64 {
        let of_key = self.live(members).filter(|(_, tally)| tally.key == key);
        of_key.fold(0, |sum, (_, tally)| sum.saturating_add(tally.requests))
    }

    /// Requests that each live VM holds under each key.
    pub(super) fn all<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (TallyKey, u64)> + 'a {
        self.live(members).map(|(_, tally)| (tally.key, tally.requests))
    }

    /// Counts requests of a VM under a key.
    pub(super) fn add(&mut self, members: &Members, holder: Holder, key: TallyKey, requests: u64) {
        let none = Tally { key, requests: 0 };
        if let Some(tally) = self.entry(members, holder, |tally| tally.key == key, none) {
            tally.requests = tally.requests.saturating_add(requests);
        }
    }

    /// Takes requests of a VM from a key.
    pub(super) fn take(&mut self, members: &Members, holder: Holder, key: TallyKey, requests: u64) {
        self.change(members, holder, |tally| {
            if tally.key == key {
                tally.requests = tally.requests.saturating_sub(requests);
            }
            tally.requests > 0
        });
    }
}

/// Names a view: the epoch and the generation of its document.
pub type Stamp = (u64, u64);

/// How long a worker counts as busy that has refused, if no view comes sooner.
const MARK_HOLDS: Millis = Millis(1_000);

/// How long it does whatever view comes: a usual interval of scrapes, so that the view rests on one that began later.
const MARK_HOLDS_AT_LEAST: Millis = Millis(100);

/// A worker that has refused what it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    worker: WorkerKey,
    /// The view that did not know of it yet.
    view: Stamp,
    at: Time,
}

/// The workers of a pool that have refused lately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(Vec<Mark>);

impl Marks {
    pub(super) fn set(&mut self, worker: WorkerKey, view: Stamp, now: Time) {
        self.0.retain(|mark| mark.worker != worker && mark.holds(view, now));
        self.0.push(Mark { worker, view, at: now });
    }

    pub(super) fn holding(&self, view: Stamp, now: Time) -> impl Iterator<Item = WorkerKey> {
        self.0.iter().filter(move |mark| mark.holds(view, now)).map(|mark| mark.worker)
    }

    pub(super) fn write(&self, out: &mut Writer) {
        for mark in &self.0 {
            out.u64(mark.worker.0);
            out.u64(mark.view.0);
            out.u64(mark.view.1);
            out.u64(mark.at.0);
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut marks = Self::default();
        while !reader.is_empty() {
            let (worker, view) = (WorkerKey(reader.u64()?), (reader.u64()?, reader.u64()?));
            marks.0.push(Mark { worker, view, at: Time(reader.u64()?) });
        }
        Some(marks)
    }
}

impl Mark {
    /// A view that is another one, and not just after, has seen what the worker has been like since.
    fn holds(&self, view: Stamp, now: Time) -> bool {
        let age = now.since(self.at);
        age < MARK_HOLDS_AT_LEAST || self.view == view && age < MARK_HOLDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Member;

    #[test]
    fn tallies_count_live_holders_and_go_with_the_dead() {
        let mut members = Members::default();
        let (a, b) = (members.join().unwrap(), members.join().unwrap());
        let (long, other) = (TallyKey::class("long"), TallyKey::worker(WorkerKey::of("long")));
        let mut tallies = PerVm::default();
        tallies.add(&members, a, long, 2);
        tallies.add(&members, b, long, 1);
        tallies.add(&members, b, other, 5);
        assert_eq!((tallies.held(long, &members), tallies.held(other, &members)), (3, 5));
        members.fence(&[Member { holder: a, heartbeat: 0 }]);
        assert_eq!(tallies.held(long, &members), 1);
        tallies.take(&members, a, long, 1);
        tallies.take(&members, b, long, 9);
        assert_eq!(
            (tallies.held(long, &members), tallies.live(&members).count()),
            (0, 1),
            "what is zero or dead is gone"
        );
    }

    #[test]
    fn a_mark_holds_for_a_second_or_until_the_next_view_but_one_just_after() {
        let (a, b) = (WorkerKey::of("a"), WorkerKey::of("b"));
        let mut marks = Marks::default();
        marks.set(a, (1, 7), Time(10_000));
        marks.set(a, (1, 7), Time(10_500));
        marks.set(b, (1, 7), Time(10_600));
        let holding = |view, now| marks.holding(view, Time(now)).collect::<Vec<_>>();
        assert_eq!(holding((1, 7), 11_499), [a, b]);
        assert_eq!(holding((1, 7), 11_500), [b]);
        assert_eq!(holding((1, 8), 10_699), [b], "what it was scraped like before is news of nothing");
        assert!(holding((1, 8), 10_700).is_empty() && holding((2, 7), 10_700).is_empty());
        marks.set(b, (1, 8), Time(10_800));
        assert_eq!(marks.0.len(), 1, "those of other views are dropped");
    }
}
