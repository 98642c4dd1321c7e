//! Requests in flight that may be evicted for a higher lane, over all VMs: those of preemptible lanes whose answer has
//! not begun.

use crate::ledger::LaneKey;
use crate::members::{Holder, Members};
use crate::record::{Reader, Writer};
use crate::units::Time;

/// What one VM could evict from one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evictable {
    /// The lane.
    pub lane: LaneKey,
    /// So many requests, those among them that are being evicted already.
    pub requests: u64,
    /// When the newest of them started.
    pub newest: Time,
}

/// What all VMs could evict, and what they have been asked to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Victims {
    evictable: Vec<(Holder, Evictable)>,
    asked: Vec<(Holder, u64)>,
}

impl Victims {
    /// Puts what a VM says in place of what its slot has said before.
    pub(super) fn publish(&mut self, members: &Members, holder: Holder, evictable: &[Evictable]) {
        let stays = |other: &Holder| other.slot != holder.slot && members.counts(other.epoch);
        self.evictable.retain(|(other, _)| stays(other));
        self.evictable.extend(evictable.iter().map(|lane| (holder, *lane)));
    }

    pub(super) fn iter<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, Evictable)> {
        self.evictable.iter().filter(|(holder, _)| members.counts(holder.epoch)).copied()
    }

    /// Requests that a VM has been asked to evict and still holds.
    pub(super) fn asked_of(&self, holder: Holder) -> u64 {
        self.asked.iter().find(|(other, _)| *other == holder).map_or(0, |(_, asked)| *asked)
    }

    /// Requests that are about to be evicted.
    pub(super) fn asked(&self, members: &Members) -> u64 {
        let live = self.asked.iter().filter(|(holder, _)| members.counts(holder.epoch));
        live.fold(0, |sum, (_, asked)| sum.saturating_add(*asked))
    }

    pub(super) fn set_asked(&mut self, members: &Members, holder: Holder, asked: u64) {
        self.asked.retain(|(other, _)| *other != holder && members.counts(other.epoch));
        if asked > 0 {
            self.asked.push((holder, asked));
        }
    }

    pub(super) fn write_evictable(&self, out: &mut Writer) {
        for (holder, Evictable { lane, requests, newest }) in &self.evictable {
            out.u16(holder.slot);
            out.u64(holder.epoch);
            out.u32(lane.0);
            out.u64(*requests);
            out.u64(newest.0);
        }
    }

    pub(super) fn read_evictable(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        while !reader.is_empty() {
            let holder = Holder { slot: reader.u16()?, epoch: reader.u64()? };
            let lane = LaneKey(reader.u32()?);
            self.evictable.push((holder, Evictable { lane, requests: reader.u64()?, newest: Time(reader.u64()?) }));
        }
        Some(())
    }

    pub(super) fn write_asked(&self, out: &mut Writer) {
        for (holder, asked) in &self.asked {
            out.u16(holder.slot);
            out.u64(holder.epoch);
            out.u64(*asked);
        }
    }

    pub(super) fn read_asked(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        while !reader.is_empty() {
            self.asked.push((Holder { slot: reader.u16()?, epoch: reader.u64()? }, reader.u64()?));
        }
        Some(())
    }
}
