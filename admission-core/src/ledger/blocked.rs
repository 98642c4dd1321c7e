//! Who waits for a tenant's own caps, over all VMs.

use super::LaneKey;
use super::per_vm::Row;
use crate::record::{Reader, Writer};

/// The first of a tenant's waiters in one VM that wait for the tenant's own caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The lane it counts as.
    pub band: LaneKey,
    /// Lower goes first.
    pub urgency: u64,
}

impl Row for Blocked {
    fn write(&self, out: &mut Writer) {
        out.u32(self.band.0);
        out.u64(self.urgency);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { band: LaneKey(reader.u32()?), urgency: reader.u64()? })
    }
}
