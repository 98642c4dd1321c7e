//! Leases that began lately: the part of the holdings that the workers' numbers cannot show yet.
//!
//! An answer to a view carries the number of requests that a proxy has admitted so far, and the sidecar puts that count into
//! the first view whose scrapes all began later. Each lease therefore keeps the count of the last answer before it began, and
//! the record keeps the blocks that are still held by that count. The blocks of leases begun since an answer are then a sum
//! over rows, exact for every answer.

use super::per_vm::{PerVm, Row};
use crate::members::{Holder, Members};
use crate::record::{Reader, Writer};
use crate::units::{Blocks, Millis, Time, Tokens};
use crate::view::{Admitted, Credit};

/// Least time between two counts in answers, so that few rows are kept however often views come.
const TOLD_EVERY: Millis = Millis(20);

/// Counts of the last answer to a view, and when it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Acknowledged {
    pub(super) admitted: Admitted,
    pub(super) held: u64,
    pub(super) at: Time,
    /// Count of the answer that every view from now on has seen the effects of.
    pub(super) seen: u64,
}

/// Amounts that one VM holds of leases that began between two answers to views.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Begun {
    /// Requests admitted so far by the last answer before these leases began.
    pub since: u64,
    /// Blocks held.
    pub blocks: Blocks,
    /// Prompt and output tokens held.
    pub tokens: Tokens,
    /// Bytes of bodies, of lanes whose dispatch budget counts them.
    pub bytes: u64,
}

/// Holdings beyond those that a view has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// Requests held now less those held when the scrape began; below zero when more have ended since than started.
    pub requests: i64,
    /// Blocks of leases that began after the scrape and are still held.
    pub blocks: Blocks,
    /// Tokens of those leases.
    pub tokens: Tokens,
    /// Bytes of their bodies, of lanes whose dispatch budget counts them.
    pub bytes: u64,
}

impl Begun {
    fn is_zero(&self) -> bool {
        self.blocks.0 == 0 && self.tokens.0 == 0 && self.bytes == 0
    }
}

impl Acknowledged {
    /// True when the next answer may carry new counts.
    pub(super) fn is_due(&self, now: Time) -> bool {
        *self == Self::default() || now < self.at || now.since(self.at) >= TOLD_EVERY
    }

    pub(super) fn credit(&self) -> Credit {
        Credit { admitted: self.admitted, held: Some(self.held) }
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.u64(self.admitted.requests);
        out.u64(self.admitted.blocks);
        out.u64(self.held);
        out.u64(self.at.0);
        out.u64(self.seen);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let admitted = Admitted { requests: reader.u64()?, blocks: reader.u64()? };
        Some(Self { admitted, held: reader.u64()?, at: Time(reader.u64()?), seen: reader.u64()? })
    }
}

impl Row for Begun {
    fn write(&self, out: &mut Writer) {
        out.u64(self.since);
        out.u64(self.blocks.0);
        out.u64(self.tokens.0);
        out.u64(self.bytes);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let since = reader.u64()?;
        let (blocks, tokens) = (Blocks(reader.u64()?), Tokens(reader.u64()?));
        Some(Self { since, blocks, tokens, bytes: reader.u64()? })
    }
}

impl PerVm<Begun> {
    /// Adds amounts to a row.
    pub(super) fn grow(&mut self, members: &Members, holder: Holder, more: Begun) {
        let is_it = |row: &Begun| row.since == more.since;
        if let Some(row) =
            self.entry(members, holder, is_it, Begun { blocks: Blocks(0), tokens: Tokens(0), bytes: 0, ..more })
        {
            row.blocks = Blocks(row.blocks.0.saturating_add(more.blocks.0));
            row.tokens = row.tokens.plus(more.tokens);
            row.bytes = row.bytes.saturating_add(more.bytes);
        }
    }

    /// Takes amounts from a row; a row that was forgotten since takes nothing from any other.
    pub(super) fn shrink(&mut self, members: &Members, holder: Holder, less: Begun) {
        self.change(members, holder, |row| {
            if row.since == less.since {
                row.blocks = Blocks(row.blocks.0.saturating_sub(less.blocks.0));
                row.tokens = Tokens(row.tokens.0.saturating_sub(less.tokens.0));
                row.bytes = row.bytes.saturating_sub(less.bytes);
            }
            !row.is_zero()
        });
    }

    /// Drops the rows of leases that began before an answer, which the scrapes of every later view have seen.
    pub(super) fn forget_before(&mut self, count: u64) {
        self.keep(|row| row.since >= count);
    }

    /// Amounts of leases begun since the answer with a count; requests are not counted here.
    pub(super) fn after(&self, count: u64, members: &Members) -> Unseen {
        let rows = self.live(members).filter(|(_, row)| row.since >= count);
        rows.fold(Unseen::default(), |sum, (_, row)| Unseen {
            requests: 0,
            blocks: Blocks(sum.blocks.0.saturating_add(row.blocks.0)),
            tokens: sum.tokens.plus(row.tokens),
            bytes: sum.bytes.saturating_add(row.bytes),
        })
    }
}
