//! Waiters that wait for rates.
//!
//! A rate is spent when a request starts. So one that comes starts, by a rate, when it is earned for all who come before, and the records say
//! how much that is: a tenant's what its own waiters will cost it, a pool's which of its waiters wait for no more than a rate.

use super::per_vm::Row;
use super::{Backlog, Blocked, Cost, LaneKey, Ledger};
use crate::members::{Holder, Members};
use crate::record::{Reader, Writer};
use crate::units::Tokens;

/// Cost to a tenant of its waiters of one lane in one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// The lane that they came for.
    pub lane: LaneKey,
    /// Budgets that they will be charged.
    pub cost: Cost,
}

impl Ledger {
    /// Costs of a tenant's waiters whose budgets may be waited for, by VM and lane.
    pub fn queued<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, Queued)> {
        self.queued.live(members).map(|(holder, queued)| (holder, *queued))
    }

    /// Says what a tenant's waiters in a VM will cost its budgets.
    pub fn publish_queued(&mut self, members: &Members, holder: Holder, queued: &[Queued]) {
        self.queued.publish(members, holder, queued.iter().copied());
    }

    /// True where a tenant's record says of a VM that this is its first waiter that waits for the tenant itself, and this what its waiters will cost.
    #[must_use]
    pub fn says(&self, members: &Members, holder: Holder, first: Option<Blocked>, queued: &[Queued]) -> bool {
        let own = self.queued(members).filter(|(other, _)| *other == holder).map(|(_, queued)| queued);
        let said = self.blocked(members).find(|(other, _)| *other == holder).map(|(_, first)| first);
        said == first && own.eq(queued.iter().copied())
    }

    /// Waiters of the pool that joined to wait for a rate, by VM and lane.
    pub fn rated<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, LaneKey, Backlog)> {
        self.line.rated.live(members).map(|(holder, (lane, backlog))| (holder, *lane, *backlog))
    }

    /// True while requests wait for a lane, unless all that keeps them is a rate: the time to the next start says nothing of the pool then.
    pub(super) fn is_backlogged(&self, lane: LaneKey, members: &Members) -> bool {
        if self.backlog(lane, members).requests == 0 {
            return false;
        }
        let mut reasons = self.kept(members).filter(|kept| kept.lane == lane).filter_map(|kept| kept.reason).peekable();
        reasons.peek().is_none() || reasons.any(|reason| !reason.is_of_rate())
    }
}

impl Row for Queued {
    fn write(&self, out: &mut Writer) {
        out.u32(self.lane.0);
        out.u64(self.cost.requests);
        out.u64(self.cost.tokens.0);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let lane = LaneKey(reader.u32()?);
        Some(Self { lane, cost: Cost { requests: reader.u64()?, tokens: Tokens(reader.u64()?) } })
    }
}
