//! Requests of one pool and lane that a VM could evict.

use std::collections::BTreeMap;

use super::LeaseId;
use crate::ledger::{Evictable, LaneKey};
use crate::units::{Blocks, Time};

/// Requests of one pool and lane that a VM could evict; some may be on their way out.
#[derive(Debug, Default)]
pub(super) struct Victims {
    /// Blocks of each, the newest last.
    by_start: BTreeMap<(Time, LeaseId), Blocks>,
    /// Blocks of all.
    blocks: u64,
}

impl Victims {
    /// Puts a request in, or sets the blocks of one that is in.
    pub(super) fn set(&mut self, started: Time, id: LeaseId, blocks: Blocks) {
        let before = self.by_start.insert((started, id), blocks).unwrap_or_default();
        self.blocks = self.blocks.saturating_sub(before.0).saturating_add(blocks.0);
    }

    /// Takes a request out, and gives its blocks; `None` where it was not in.
    pub(super) fn remove(&mut self, started: Time, id: LeaseId) -> Option<Blocks> {
        let blocks = self.by_start.remove(&(started, id))?;
        self.blocks = self.blocks.saturating_sub(blocks.0);
        Some(blocks)
    }

    /// Blocks of a request that is in.
    pub(super) fn blocks_of(&self, started: Time, id: LeaseId) -> Option<Blocks> {
        self.by_start.get(&(started, id)).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Start and lease of each.
    pub(super) fn ids(&self) -> impl Iterator<Item = (Time, LeaseId)> {
        self.by_start.keys().copied()
    }

    /// The row for the pool's record; `None` without requests.
    pub(super) fn row(&self, lane: LaneKey) -> Option<Evictable> {
        let ((newest, _), _) = self.by_start.last_key_value()?;
        let (requests, blocks) = (self.by_start.len() as u64, Blocks(self.blocks));
        Some(Evictable { lane, requests, blocks, newest: *newest })
    }
}
