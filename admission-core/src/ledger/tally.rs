//! What a pool's record counts beside its lanes: requests of a class, requests at a worker.

use super::LaneKey;
use super::per_vm::{PerVm, Row};
use crate::hash;
use crate::members::{Holder, Members};
use crate::record::{Reader, Writer};
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
}
