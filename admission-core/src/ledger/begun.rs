//! Leases that began lately: the part of the holdings that the workers' numbers cannot show yet.
//!
//! An answer to a view carries the number of requests that a proxy has admitted so far, and evicted again, and the sidecar puts that count into
//! the first view whose scrapes all began later, and beside the numbers of a worker once its own did. Each lease therefore keeps the count of the last answer before it began, and
//! the record keeps the blocks that are still held by that count. The blocks of leases begun since an answer are then a sum
//! over rows, exact for every answer.

use super::per_vm::{PerVm, Row};
use super::{Ledger, TallyKey};
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
    /// Worker that the leases were steered to, as it is tallied.
    pub worker: Option<TallyKey>,
}

/// Blocks that one VM holds at one worker, of leases that were steered to it between two answers to views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BegunAt {
    /// The worker, as it is tallied.
    pub worker: TallyKey,
    /// Requests admitted so far by the last answer before these leases began.
    pub since: u64,
    /// Blocks held.
    pub blocks: Blocks,
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

impl Ledger {
    /// Count of the last answer to a view. No scrape before that answer has seen a lease that begins now.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.admitted.requests
    }

    /// The counts of the last answer to a view.
    #[must_use]
    pub fn last_acknowledged(&self) -> Credit {
        self.acknowledged.credit()
    }

    /// The counts for an answer to a view: those of this moment, or of the last answer where that was just sent. Every view from
    /// now on has seen the leases that began before the answer with the count `seen`.
    ///
    /// # Errors
    /// The same, where the record stays as it is.
    pub fn acknowledge(&mut self, members: &Members, seen: u64, now: Time) -> Result<Credit, Credit> {
        let next = Acknowledged { admitted: self.events(), held: self.held(members).requests, at: now, seen };
        let is_news = (next.admitted, next.held) != (self.acknowledged.admitted, self.acknowledged.held);
        if !is_news || !self.acknowledged.is_due(now) {
            return Err(self.acknowledged.credit());
        }
        self.acknowledged = next;
        self.begun.forget_before(seen);
        self.begun_at.forget_before(seen);
        self.gone.forget_before(seen);
        Ok(next.credit())
    }

    /// Notes amounts of a lease by when it began.
    pub fn begin(&mut self, members: &Members, holder: Holder, begun: Begun) {
        // Why not those: a lease that grows or is charged again after that would leave a row that never counts.
        if begun.since >= self.acknowledged.seen {
            self.begun.grow(members, holder, begun);
            if let Some(worker) = begun.worker.filter(|_| begun.blocks.0 > 0) {
                self.begun_at.grow(members, holder, worker, begun);
            }
        }
    }

    /// Takes back what was noted of a lease.
    pub fn unbegin(&mut self, members: &Members, holder: Holder, begun: Begun) {
        self.begun.shrink(members, holder, begun);
        if let Some(worker) = begun.worker {
            self.begun_at.shrink(members, holder, worker, begun);
        }
    }

    /// Holdings of live VMs beyond those that a view with this credit has seen. A credit above our own count is that of a proxy that
    /// has restarted since, so the view has seen nothing of what is held now.
    #[must_use]
    pub fn unseen(&self, credit: Credit, members: &Members) -> Unseen {
        let (since, seen) = self.seen_by(credit);
        let held = self.held(members).requests;
        let requests = seen.map_or(0, |seen| signed(held).saturating_sub(signed(seen)));
        Unseen { requests, ..self.begun.after(since, members) }
    }

    /// Blocks of the leases of live VMs that were steered to a worker, and that the next view may not have seen.
    pub fn begun_at_workers<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = BegunAt> + 'a {
        self.begun_at.live(members).map(|(_, row)| *row)
    }

    /// Blocks of those leases that were steered to one worker, and of which its numbers show nothing: it has [seen](Self::seen_at_worker) so many requests.
    #[must_use]
    pub fn unseen_at_worker(&self, worker: TallyKey, seen: u64, members: &Members) -> Blocks {
        let unseen = self.begun_at_workers(members).filter(|begun| begun.worker == worker && begun.since >= seen);
        unseen.fold(Blocks(0), |sum, begun| Blocks(sum.0.saturating_add(begun.blocks.0)))
    }

    /// Requests of this proxy that the numbers of a worker show: as many as it had admitted when they were read, at least those that all of the
    /// view shows. Rows of [`Self::begun_at_workers`] since that count are not in the numbers yet.
    #[must_use]
    pub fn seen_at_worker(&self, credit: Credit, admitted: Option<u64>) -> u64 {
        let by_all = self.seen_by(credit).0;
        // Why not above our own: that is the count of a proxy that has restarted since.
        admitted.filter(|own| *own <= self.events().requests).map_or(by_all, |own| own.max(by_all))
    }

    /// Requests admitted, and requests held, when the scrapes behind a credit began.
    pub(super) fn seen_by(&self, credit: Credit) -> (u64, Option<u64>) {
        let is_ours = credit.admitted.requests <= self.events().requests;
        if is_ours { (credit.admitted.requests, credit.held) } else { (0, Some(0)) }
    }
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
        Some(Self { since, blocks, tokens, bytes: reader.u64()?, worker: None })
    }
}

impl Row for BegunAt {
    fn write(&self, out: &mut Writer) {
        out.u64(self.worker.0);
        out.u64(self.since);
        out.u64(self.blocks.0);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { worker: TallyKey(reader.u64()?), since: reader.u64()?, blocks: Blocks(reader.u64()?) })
    }
}

impl PerVm<Begun> {
    /// Adds amounts to a row.
    pub(super) fn grow(&mut self, members: &Members, holder: Holder, more: Begun) {
        let is_it = |row: &Begun| row.since == more.since;
        if let Some(row) = self.entry(members, holder, is_it, Begun { since: more.since, ..Begun::default() }) {
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

impl PerVm<BegunAt> {
    /// Adds the blocks of a steered lease to the row of its worker.
    pub(super) fn grow(&mut self, members: &Members, holder: Holder, worker: TallyKey, more: Begun) {
        let is_it = |row: &BegunAt| (row.worker, row.since) == (worker, more.since);
        if let Some(row) = self.entry(members, holder, is_it, BegunAt { worker, since: more.since, blocks: Blocks(0) })
        {
            row.blocks = Blocks(row.blocks.0.saturating_add(more.blocks.0));
        }
    }

    /// Takes the blocks of a steered lease from the row of its worker.
    pub(super) fn shrink(&mut self, members: &Members, holder: Holder, worker: TallyKey, less: Begun) {
        self.change(members, holder, |row| {
            if (row.worker, row.since) == (worker, less.since) {
                row.blocks = Blocks(row.blocks.0.saturating_sub(less.blocks.0));
            }
            row.blocks.0 > 0
        });
    }

    /// Drops the rows of leases that began before an answer, which the scrapes of every later view have seen.
    pub(super) fn forget_before(&mut self, count: u64) {
        self.keep(|row| row.since >= count);
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
