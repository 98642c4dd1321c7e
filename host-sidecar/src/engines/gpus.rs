//! GPUs as a page tells of them, one number a line.

use std::collections::BTreeMap;

use super::PageError;
use super::sheet::{Cells, MAX_RANKS, Order, as_share};
use crate::reading::Gpu;

/// No GPU has a pebibyte of memory; exporters mark what they do not know by numbers such as 2⁶³ − 14.
const BEYOND_REASON: f64 = (1_u64 << 50) as f64;

/// Number in the machine, UUID and MIG instance: what tells GPUs apart, the number first so that they come in its order.
pub type Name = (Option<u32>, Option<String>, Option<u32>);

/// What can be told of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Share of time in which it computed, 0 to 1.
    Utilization,
    /// The same, measured in another way; counts where the first is not told, as of a MIG instance.
    EngineActive,
    /// Memory in use, in bytes.
    UsedBytes,
    /// Memory not in use, in bytes.
    FreeBytes,
    /// Memory that the driver keeps for itself, in bytes.
    ReservedBytes,
    /// Memory there is, in bytes; the sum of the three where it is not told.
    TotalBytes,
}

/// All that a page tells, by the rule of [`super::sheet::Sheet`] for what is told twice.
#[derive(Debug, Default)]
pub struct Gpus(BTreeMap<Name, Cells<Fact>>);

impl Gpus {
    /// Notes what one series says.
    ///
    /// # Errors
    /// There are more GPUs than a machine can have.
    pub fn note(&mut self, name: Name, fact: Fact, value: f64) -> Result<(), PageError> {
        if self.0.len() >= MAX_RANKS && !self.0.contains_key(&name) {
            return Err(PageError::TooManyRanks);
        }
        self.0.entry(name).or_default().note(fact, value, Order::default());
        Ok(())
    }

    /// All of them, by rising number.
    pub fn list(self) -> Vec<Gpu> {
        self.0.into_iter().map(|(name, facts)| gpu(name, &facts)).collect()
    }
}

fn gpu((index, uuid, mig_instance): Name, facts: &Cells<Fact>) -> Gpu {
    let share = |fact| facts.get(fact).and_then(as_share);
    let bytes = |fact| facts.get(fact).filter(|bytes| *bytes < BEYOND_REASON).map(|bytes| bytes.round() as u64);
    let used = bytes(Fact::UsedBytes);
    let sum = || Some(used? + bytes(Fact::FreeBytes)? + bytes(Fact::ReservedBytes).unwrap_or(0));
    Gpu {
        index,
        uuid,
        mig_instance,
        utilization: share(Fact::Utilization).or_else(|| share(Fact::EngineActive)),
        memory_used_bytes: used,
        memory_total_bytes: bytes(Fact::TotalBytes).or_else(sum).filter(|total| *total > 0),
    }
}
