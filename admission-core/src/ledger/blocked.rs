//! Who waits for a tenant's own caps, over all VMs.

use crate::ledger::LaneKey;
use crate::members::{Holder, Members};
use crate::record::{Reader, Writer};

/// The first of a tenant's waiters in one VM that wait for the tenant's own caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The lane it counts as.
    pub band: LaneKey,
    /// Lower goes first.
    pub urgency: u64,
}

/// One for each VM that has such waiters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockedHeads(Vec<(Holder, Blocked)>);

impl BlockedHeads {
    /// Puts what a VM says in place of what its slot has said before; `None` when nothing of it waits any more.
    pub(super) fn publish(&mut self, members: &Members, holder: Holder, first: Option<Blocked>) {
        self.0.retain(|(other, _)| other.slot != holder.slot && members.counts(other.epoch));
        self.0.extend(first.map(|first| (holder, first)));
    }

    pub(super) fn iter<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, Blocked)> {
        self.0.iter().filter(|(holder, _)| members.counts(holder.epoch)).copied()
    }

    pub(super) fn write(&self, out: &mut Writer) {
        for (holder, first) in &self.0 {
            out.u16(holder.slot);
            out.u64(holder.epoch);
            out.u32(first.band.0);
            out.u64(first.urgency);
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut all = Self::default();
        while !reader.is_empty() {
            let holder = Holder { slot: reader.u16()?, epoch: reader.u64()? };
            all.0.push((holder, Blocked { band: LaneKey(reader.u32()?), urgency: reader.u64()? }));
        }
        Some(all)
    }
}
