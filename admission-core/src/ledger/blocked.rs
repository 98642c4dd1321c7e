//! Who waits for a tenant's own caps, over all VMs.

use std::collections::BTreeMap;

use super::per_vm::Row;
use super::{FlowKey, LaneKey, Ledger, SubFlow};
use crate::members::{Holder, Members};
use crate::record::{Reader, Writer};

/// The first of a tenant's waiters in one VM that wait for the tenant's own caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The lane it counts as.
    pub band: LaneKey,
    /// Lower goes first.
    pub urgency: u64,
    /// Part of its tenant's requests that it belongs to, where a header names one.
    pub part: Option<Part>,
}

/// A sub-flow of a tenant in one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The flow.
    pub flow: FlowKey,
    /// The sub-flow.
    pub sub: SubFlow,
}

impl Blocked {
    pub(super) fn part(&self) -> Option<Part> {
        self.part
    }

    pub(super) fn set_part(&mut self, part: &Part) {
        self.part = Some(*part);
    }
}

/// Order of some of a tenant's waiters that stand in one band.
// Why by the most urgent of a flow first: tags of two flows say nothing of each other. The flows take turns by arrival, and a turn is
// for the sub-flow with the lowest tag.
pub struct Order(BTreeMap<FlowKey, u64>);

impl Order {
    /// The order of these.
    #[must_use]
    pub fn of(all: impl Iterator<Item = Blocked>) -> Self {
        let mut most_urgent = BTreeMap::new();
        for Blocked { urgency, part, .. } in all {
            if let Some(Part { flow, .. }) = part {
                let first = most_urgent.entry(flow).or_insert(urgency);
                *first = urgency.min(*first);
            }
        }
        Self(most_urgent)
    }

    /// Place of one, given the tag of its sub-flow: lower goes first.
    #[must_use]
    pub fn place(&self, Blocked { urgency, part, .. }: &Blocked, tag: impl FnOnce(Part) -> u64) -> Place {
        let first = part.and_then(|part| self.0.get(&part.flow)).map_or(*urgency, |first| *urgency.min(first));
        Place { first, within: part.map(|part| (part.flow, tag(part))), urgency: *urgency }
    }
}

/// Place of one of a tenant's waiters among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    first: u64,
    within: Option<(FlowKey, u64)>,
    urgency: u64,
}

impl Ledger {
    /// The first of a tenant's waiters in each VM that wait for the tenant itself.
    pub fn blocked<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, Blocked)> {
        self.blocked.live(members).map(|(holder, first)| (holder, *first))
    }

    /// Says which of a tenant's waiters in a VM is the first that waits for the tenant itself.
    pub fn publish_blocked(&mut self, members: &Members, holder: Holder, first: Option<Blocked>) {
        self.blocked.publish(members, holder, first);
    }
}

impl Row for Blocked {
    fn write(&self, out: &mut Writer) {
        out.u32(self.band.0);
        out.u64(self.urgency);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { band: LaneKey(reader.u32()?), urgency: reader.u64()?, part: None })
    }
}

impl Row for Part {
    fn write(&self, out: &mut Writer) {
        out.u64(self.flow.0);
        out.bytes(&[self.sub.number()]);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { flow: FlowKey(reader.u64()?), sub: SubFlow::numbered(reader.u8()?) })
    }
}
