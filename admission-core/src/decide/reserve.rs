//! Parts of a pool that are kept for lanes.
//!
//! A reserve is a number of requests and, where it is a share, as large a share of the usable KV blocks. While its lane holds
//! less, the lane's waiters go first. Where it is not lent, lanes of a lower priority leave it free besides: such a lane starts a request
//! while `held + 1 + Σ max(0, R − held of the lane) ≤ C`, over the lanes above it.

use std::sync::Arc;

use super::advice;
use super::sight::Scene;
use crate::ledger::Amount;
use crate::outcome::{Detail, Limit, Reason, Refusal};
use crate::policy::{Lane, Reserve};
use crate::units::Blocks;

impl<'a> Scene<'a> {
    /// Every lane with a reserve, highest first, and what is reserved for it of the capacity.
    pub(super) fn reserves(&self) -> impl Iterator<Item = (&'a Lane, &'a Reserve, u64)> {
        // Why asked first: most policies have none, and what there is takes a look at the workers.
        let has_some = self.lanes.iter().any(|lane| lane.reserve.is_some());
        self.lanes.reserves(if has_some { self.capacity().unwrap_or(0) } else { 0 })
    }

    /// Requests, tokens and blocks of a lane in the pool, counted by the lane that requests came in.
    fn held_by(&self, lane: &Lane) -> Amount {
        self.ledger.held_by(lane.key, self.members)
    }

    /// Lanes that hold less requests than are reserved for them.
    pub(super) fn below_reserve(&self) -> impl Iterator<Item = &'a Lane> {
        let below = self.reserves().filter(|(lane, _, reserved)| self.held_by(lane).requests < *reserved);
        below.map(|(lane, ..)| lane)
    }

    /// A lane starts no request in the places that are kept for those of a higher priority.
    pub(super) fn leaves_reserved(&self, lane: &Lane) -> Result<(), Refusal> {
        let (mut all_kept, mut knob) = (0_u64, None);
        for (other, reserve, reserved) in self.reserves() {
            if reserve.lend || other.priority <= lane.priority {
                continue;
            }
            let kept = reserved.saturating_sub(self.held_by(other).requests);
            all_kept = all_kept.saturating_add(kept);
            knob = knob.or((kept > 0).then_some(&reserve.knob));
        }
        let (Some(knob), Some(capacity)) = (knob, self.capacity()) else { return Ok(()) };
        let with_this = self.ledger.held(self.members).requests.saturating_add(1);
        let allowed = capacity.saturating_sub(all_kept);
        if with_this <= allowed {
            return Ok(());
        }
        let limit = Limit { knob: Arc::clone(knob), measured: with_this, allowed, unit: "requests" };
        let retry = advice(Some(self.ledger.counted(self.members)), with_this.saturating_sub(allowed));
        Err(Refusal { reason: Reason::Reserved, limit: Some(limit), detail: Detail::None, retry, place: None })
    }

    /// KV blocks that are kept from a lane, of so many usable ones: `free` of those are kept now, and `most` while the lanes above it hold none.
    pub(super) fn kept_blocks(&self, lane: &Lane, usable: Blocks) -> KeptBlocks<'a> {
        let mut kept = KeptBlocks { free: Blocks(0), most: Blocks(0), knob: None };
        for other in self.lanes.iter().filter(|other| other.priority > lane.priority) {
            let Some(reserve) = other.reserve.as_ref().filter(|reserve| !reserve.lend) else { continue };
            let most = reserve.share_of(usable.0);
            let free = most.saturating_sub(self.held_by(other).blocks.0);
            kept.most.0 = kept.most.0.saturating_add(most);
            kept.free.0 = kept.free.0.saturating_add(free);
            kept.knob = kept.knob.or((most > 0).then_some(&reserve.knob));
        }
        kept
    }
}

/// KV blocks that are kept from a lane.
pub(super) struct KeptBlocks<'a> {
    /// Blocks that are to stay free now.
    pub(super) free: Blocks,
    /// Blocks that are kept while the lanes above hold none.
    pub(super) most: Blocks,
    /// Place in the configuration.
    pub(super) knob: Option<&'a Arc<str>>,
}
