//! Requests in flight that may be evicted for a higher lane, over all VMs: those of preemptible lanes whose answer has
//! not begun.

use super::LaneKey;
use super::per_vm::Row;
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

/// Requests that one VM has been asked to evict and still holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked(pub(super) u64);

impl Row for Evictable {
    fn write(&self, out: &mut Writer) {
        out.u32(self.lane.0);
        out.u64(self.requests);
        out.u64(self.newest.0);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { lane: LaneKey(reader.u32()?), requests: reader.u64()?, newest: Time(reader.u64()?) })
    }
}

impl Row for Asked {
    fn write(&self, out: &mut Writer) {
        out.u64(self.0);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.u64().map(Self)
    }
}
