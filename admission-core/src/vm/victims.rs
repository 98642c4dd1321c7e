//! Requests of one pool and lane that a VM could evict.

use std::collections::BTreeMap;

use super::LeaseId;
use crate::ledger::{Evictable, LaneKey};
use crate::units::{Blocks, Time};

/// Requests of one pool and lane that a VM could evict; some may be on their way out.
#[derive(Debug, Default)]
pub(super) struct Victims {
    /// Blocks of each when it started, the newest last.
    by_start: BTreeMap<(Time, LeaseId), Blocks>,
    /// Blocks of all.
    blocks: u64,
}

impl Victims {
    pub(super) fn add(&mut self, started: Time, id: LeaseId, blocks: Blocks) {
        self.by_start.insert((started, id), blocks);
        self.blocks = self.blocks.saturating_add(blocks.0);
    }

    /// Takes a request out; false where it was not in.
    pub(super) fn remove(&mut self, started: Time, id: LeaseId) -> bool {
        let removed = self.by_start.remove(&(started, id));
        self.blocks = self.blocks.saturating_sub(removed.map_or(0, |blocks| blocks.0));
        removed.is_some()
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
