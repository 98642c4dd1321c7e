//! Requests in flight that may be evicted for a higher lane, over all VMs: those of preemptible lanes whose answer has
//! not begun.

use super::per_vm::Row;
use super::{Amount, LaneKey, Ledger};
use crate::members::{Holder, Members};
use crate::record::{Reader, Writer};
use crate::units::{Blocks, Time};
use crate::view::Credit;

/// Requests of one lane that one VM could evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evictable {
    /// The lane.
    pub lane: LaneKey,
    /// So many requests, those among them that are being evicted already.
    pub requests: u64,
    /// KV blocks that they hold.
    pub blocks: Blocks,
    /// Start of the newest.
    pub newest: Time,
}

/// Requests and KV blocks that one VM has been asked to evict and still holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    requests: u64,
    blocks: Blocks,
}

impl Asked {
    fn amount(self) -> Amount {
        Amount { requests: self.requests, blocks: self.blocks, ..Amount::default() }
    }
}

/// Requests that were evicted, while views may still show them. They are gone whatever became of their VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gone(Vec<GoneBetween>);

/// Requests that began, and were evicted, between the same answers to views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GoneBetween {
    /// Count of the last answer to a view before their leases began.
    began: u64,
    /// Count of the last answer to a view before their leases ended.
    ended: u64,
    requests: u64,
    /// Blocks that they held.
    blocks: Blocks,
}

impl Ledger {
    /// Rows of what each VM could evict.
    pub fn evictable<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, Evictable)> {
        self.evictable.live(members).map(|(holder, lane)| (holder, *lane))
    }

    /// Publishes what a VM could evict.
    pub fn publish_evictable(&mut self, members: &Members, holder: Holder, evictable: &[Evictable]) {
        self.evictable.publish(members, holder, evictable.iter().copied());
    }

    /// Requests and blocks that all VMs have been asked to evict and still hold.
    #[must_use]
    pub fn asked_to_evict(&self, members: &Members) -> Amount {
        self.asked.live(members).fold(Amount::default(), |sum, (_, asked)| sum.plus(asked.amount()))
    }

    /// Requests and blocks that a VM has been asked to evict and still holds.
    #[must_use]
    pub fn asked_of(&self, holder: Holder) -> Amount {
        self.asked.of(holder).fold(Amount::default(), |sum, asked| sum.plus(asked.amount()))
    }

    /// Sets how many requests, and how many blocks, a VM is asked to evict.
    pub fn ask_of(&mut self, members: &Members, holder: Holder, Amount { requests, blocks, .. }: Amount) {
        let asks = requests > 0 || blocks.0 > 0;
        self.asked.publish(members, holder, asks.then_some(Asked { requests, blocks }));
    }

    /// Notes that a request has ended because it was evicted. `began` is the count of the last answer to a view before it began.
    pub fn note_evicted(&mut self, began: u64, blocks: Blocks) {
        self.gone.add(began, self.acknowledged(), blocks);
        self.evicted = self.evicted.saturating_add(1);
    }

    /// Requests that were ever evicted.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Requests evicted since the scrapes behind a credit began, and the blocks among theirs that those scrapes have seen: the others
    /// are free already.
    #[must_use]
    pub fn evicted_unseen(&self, credit: Credit) -> Amount {
        let since = self.seen_by(credit).0;
        let unseen = self.gone.0.iter().filter(|gone| gone.ended >= since);
        unseen.fold(Amount::default(), |sum, gone| {
            let blocks = if gone.began < since { gone.blocks } else { Blocks(0) };
            sum.plus(Amount { requests: gone.requests, blocks, ..Amount::default() })
        })
    }
}

impl Gone {
    // Why added up: where no views come, nothing is ever forgotten.
    fn add(&mut self, began: u64, ended: u64, blocks: Blocks) {
        match self.0.iter_mut().find(|gone| (gone.began, gone.ended) == (began, ended)) {
            Some(gone) => {
                gone.requests = gone.requests.saturating_add(1);
                gone.blocks = Blocks(gone.blocks.0.saturating_add(blocks.0));
            }
            None => self.0.push(GoneBetween { began, ended, requests: 1, blocks }),
        }
    }

    /// Drops what ended before an answer with a count, which the scrapes of every later view have seen.
    pub(super) fn forget_before(&mut self, count: u64) {
        self.0.retain(|gone| gone.ended >= count);
    }

    pub(super) fn write(&self, out: &mut Writer) {
        for gone in &self.0 {
            [gone.began, gone.ended, gone.requests, gone.blocks.0].into_iter().for_each(|number| out.u64(number));
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut all = Self::default();
        while !reader.is_empty() {
            let (began, ended, requests) = (reader.u64()?, reader.u64()?, reader.u64()?);
            all.0.push(GoneBetween { began, ended, requests, blocks: Blocks(reader.u64()?) });
        }
        Some(all)
    }
}

impl Row for Evictable {
    fn write(&self, out: &mut Writer) {
        out.u32(self.lane.0);
        out.u64(self.requests);
        out.u64(self.blocks.0);
        out.u64(self.newest.0);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (lane, requests) = (LaneKey(reader.u32()?), reader.u64()?);
        Some(Self { lane, requests, blocks: Blocks(reader.u64()?), newest: Time(reader.u64()?) })
    }
}

impl Row for Asked {
    fn write(&self, out: &mut Writer) {
        out.u64(self.requests);
        out.u64(self.blocks.0);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { requests: reader.u64()?, blocks: Blocks(reader.u64()?) })
    }
}
