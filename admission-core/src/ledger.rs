//! What is held: one record for each pool and each tenant.
//!
//! A ledger is a list of columns, one for each VM and lane. A column whose VM is dead counts zero from the moment the
//! membership says so and is dropped by whoever writes the record next; no journal of single requests is kept.

use std::collections::BTreeMap;

use crate::budget::{Rates, Spent};
use crate::hash;
use crate::members::{Holder, Members};
use crate::record::{Reader, Record, Sections, Writer};
use crate::units::{Blocks, Millis, Time, Tokens};
use crate::view::{Admitted, WorkerKey};

mod tally;

pub use tally::{Stamp, TallyKey};

use tally::{Marks, Tallies};

const SECTION_COLUMNS: u8 = 1;
const SECTION_ADMITTED: u8 = 2;
const SECTION_DRAIN: u8 = 3;
const SECTION_SPENT: u8 = 4;
const SECTION_TALLIES: u8 = 5;
const SECTION_MARKS: u8 = 6;
const SECTION_FAIR_TAG: u8 = 7;

/// An amount held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Requests in flight.
    pub requests: u64,
    /// Prompt and expected output tokens of those requests.
    pub tokens: Tokens,
    /// KV blocks for those tokens.
    pub blocks: Blocks,
}

impl Amount {
    /// The sum, or the most there is.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            tokens: self.tokens.plus(other.tokens),
            blocks: Blocks(self.blocks.0.saturating_add(other.blocks.0)),
        }
    }

    pub(crate) const fn minus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            tokens: Tokens(self.tokens.0.saturating_sub(other.tokens.0)),
            blocks: Blocks(self.blocks.0.saturating_sub(other.blocks.0)),
        }
    }

    /// Nothing at all.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.requests == 0 && self.tokens.0 == 0 && self.blocks.0 == 0
    }
}

/// What a request costs its budgets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Requests.
    pub requests: u64,
    /// Prompt and output tokens.
    pub tokens: Tokens,
}

impl Cost {
    /// What this is more than another.
    #[must_use]
    pub const fn beyond(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            tokens: Tokens(self.tokens.0.saturating_sub(other.tokens.0)),
        }
    }
}

/// A lane's name as records know it: stable over builds, and four bytes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneKey(pub u32);

impl LaneKey {
    /// The configuration refuses two lanes whose keys are equal.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let hash = hash::stable(name.as_bytes());
        Self((hash >> 32) as u32 ^ hash as u32)
    }
}

/// What one VM holds for one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The VM.
    pub holder: Holder,
    /// The lane.
    pub lane: LaneKey,
    /// How much.
    pub held: Amount,
}

/// The record of a pool or a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    columns: Vec<Column>,
    admitted: Admitted,
    drain: Drain,
    requests_spent: Spent,
    tokens_spent: Spent,
    tallies: Tallies,
    marks: Marks,
    fair_tag: u64,
    unknown: Sections,
}

impl Ledger {
    /// All that live VMs hold.
    #[must_use]
    pub fn held(&self, members: &Members) -> Amount {
        self.live(members).fold(Amount::default(), |sum, column| sum.plus(column.held))
    }

    /// The columns that count.
    pub fn live<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = &'a Column> {
        self.columns.iter().filter(|column| members.counts(column.holder.epoch))
    }

    /// All that was ever admitted, in order to tell what came after a scrape.
    #[must_use]
    pub fn admitted(&self) -> Admitted {
        self.admitted
    }

    /// How fast what is held comes back.
    #[must_use]
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Adds to what a VM holds and counts it as admitted.
    pub fn admit(&mut self, members: &Members, holder: Holder, lane: LaneKey, amount: Amount) {
        self.admitted.requests = self.admitted.requests.saturating_add(amount.requests);
        self.admitted.blocks = self.admitted.blocks.saturating_add(amount.blocks.0);
        self.charge(members, holder, lane, amount);
    }

    /// Adds to what a VM holds, without asking whether it may.
    pub fn charge(&mut self, members: &Members, holder: Holder, lane: LaneKey, amount: Amount) {
        self.columns.retain(|column| members.counts(column.holder.epoch));
        match self.column(holder, lane) {
            Some(column) => column.held = column.held.plus(amount),
            None => self.columns.push(Column { holder, lane, held: amount }),
        }
    }

    /// Takes back what was charged to the same holder and lane. Nothing happens when that holder is no longer counted:
    /// its column went with it.
    pub fn refund(&mut self, members: &Members, holder: Holder, lane: LaneKey, amount: Amount) {
        self.columns.retain(|column| members.counts(column.holder.epoch));
        if let Some(column) = self.column(holder, lane) {
            column.held = column.held.minus(amount);
            self.columns.retain(|column| !column.held.is_zero());
        }
    }

    /// Takes back what a request held that has ended, which is what the pace of draining is measured by.
    pub fn release(&mut self, members: &Members, holder: Holder, lane: LaneKey, amount: Amount, now: Time) {
        self.refund(members, holder, lane, amount);
        self.drain.note(now);
    }

    /// Until when the budgets of requests and of tokens are spent.
    #[must_use]
    pub fn spent(&self) -> (Spent, Spent) {
        (self.requests_spent, self.tokens_spent)
    }

    /// Spends what a request costs from the budgets there are.
    pub fn spend(&mut self, rates: &Rates, cost: Cost, now: Time) {
        if let Some(rate) = &rates.requests {
            self.requests_spent = rate.spend(self.requests_spent, cost.requests, now);
        }
        if let Some(rate) = &rates.tokens {
            self.tokens_spent = rate.spend(self.tokens_spent, cost.tokens.0, now);
        }
    }

    /// Gives a cost back to the budgets there are.
    pub fn give_back(&mut self, rates: &Rates, cost: Cost) {
        if let Some(rate) = &rates.requests {
            self.requests_spent = rate.give_back(self.requests_spent, cost.requests);
        }
        if let Some(rate) = &rates.tokens {
            self.tokens_spent = rate.give_back(self.tokens_spent, cost.tokens.0);
        }
    }

    /// Requests that live VMs hold under a key.
    #[must_use]
    pub fn tallied(&self, key: TallyKey, members: &Members) -> u64 {
        self.tallies.held(key, members)
    }

    /// Requests that live VMs hold, by key.
    #[must_use]
    pub fn tallies(&self, members: &Members) -> BTreeMap<TallyKey, u64> {
        self.tallies.all(members)
    }

    /// Counts requests of a VM under a key, beside what it holds.
    pub fn tally(&mut self, members: &Members, holder: Holder, key: TallyKey, requests: u64) {
        self.tallies.add(members, holder, key, requests);
    }

    /// Takes back what was tallied.
    pub fn untally(&mut self, members: &Members, holder: Holder, key: TallyKey, requests: u64) {
        self.tallies.take(members, holder, key, requests);
    }

    /// Notes that a worker has refused what it was sent, which the view that stands does not know yet.
    pub fn mark(&mut self, worker: WorkerKey, view: Stamp, now: Time) {
        self.marks.set(worker, view, now);
    }

    /// The workers that have refused since that view came, and lately.
    pub fn marked(&self, view: Stamp, now: Time) -> impl Iterator<Item = WorkerKey> {
        self.marks.holding(view, now)
    }

    /// Tokens served by weight: tenants that are served alike have tags that rise alike.
    #[must_use]
    pub fn fair_tag(&self) -> u64 {
        self.fair_tag
    }

    /// Moves the fair tag from what a request was charged to what it should be.
    pub fn weigh(&mut self, weight: u32, charged: Tokens, right: Tokens) {
        let share = |tokens: Tokens| tokens.0.div_ceil(u64::from(weight.max(1)));
        self.fair_tag = self.fair_tag.saturating_add(share(right)).saturating_sub(share(charged));
    }

    fn column(&mut self, holder: Holder, lane: LaneKey) -> Option<&mut Column> {
        self.columns.iter_mut().find(|column| column.holder == holder && column.lane == lane)
    }
}

/// Time between releases, as a moving mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drain {
    last: Option<Time>,
    mean_us: u64,
}

impl Drain {
    /// A pause longer than this says that nobody came, not that work is slow.
    const LONGEST_MS: u64 = 30_000;
    /// One release moves the mean by this part of its distance.
    const WEIGHT: u64 = 8;

    /// How long until `count` more are released at the measured pace; `None` before two releases.
    #[must_use]
    pub fn time_for(&self, count: u64) -> Option<Millis> {
        (self.mean_us > 0).then(|| Millis(self.mean_us.saturating_mul(count).div_ceil(1_000)))
    }

    fn note(&mut self, now: Time) {
        if let Some(last) = self.last {
            let gap_us = now.since(last).0.min(Self::LONGEST_MS).saturating_mul(1_000).max(1);
            self.mean_us = match self.mean_us {
                0 => gap_us,
                mean => mean.saturating_sub(mean / Self::WEIGHT).saturating_add(gap_us / Self::WEIGHT).max(1),
            };
        }
        self.last = Some(now);
    }
}

impl Record for Ledger {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.section(SECTION_COLUMNS, |out| {
            for column in &self.columns {
                out.u16(column.holder.slot);
                out.u64(column.holder.epoch);
                out.u32(column.lane.0);
                out.u64(column.held.requests);
                out.u64(column.held.tokens.0);
                out.u64(column.held.blocks.0);
            }
        });
        if self.admitted != Admitted::default() {
            writer.section(SECTION_ADMITTED, |out| {
                out.u64(self.admitted.requests);
                out.u64(self.admitted.blocks);
            });
        }
        if let Some(last) = self.drain.last {
            writer.section(SECTION_DRAIN, |out| {
                out.u64(last.0);
                out.u64(self.drain.mean_us);
            });
        }
        if (self.requests_spent, self.tokens_spent) != Default::default() {
            writer.section(SECTION_SPENT, |out| {
                out.u64(self.requests_spent.0);
                out.u64(self.tokens_spent.0);
            });
        }
        writer.section(SECTION_TALLIES, |out| self.tallies.write(out));
        writer.section(SECTION_MARKS, |out| self.marks.write(out));
        if self.fair_tag > 0 {
            writer.section(SECTION_FAIR_TAG, |out| out.u64(self.fair_tag));
        }
        writer.finish(&self.unknown)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut record = Self::default();
        record.unknown = Sections::read(bytes, |tag, mut reader| {
            match tag {
                SECTION_COLUMNS => {
                    while !reader.is_empty() {
                        record.columns.push(column(&mut reader)?);
                    }
                }
                SECTION_ADMITTED => record.admitted = Admitted { requests: reader.u64()?, blocks: reader.u64()? },
                SECTION_DRAIN => record.drain = Drain { last: Some(Time(reader.u64()?)), mean_us: reader.u64()? },
                SECTION_SPENT => {
                    (record.requests_spent, record.tokens_spent) = (Spent(reader.u64()?), Spent(reader.u64()?));
                }
                SECTION_TALLIES => record.tallies = Tallies::read(&mut reader)?,
                SECTION_MARKS => record.marks = Marks::read(&mut reader)?,
                SECTION_FAIR_TAG => record.fair_tag = reader.u64()?,
                _ => return Some(false),
            }
            Some(true)
        })?;
        Some(record)
    }
}

fn column(reader: &mut Reader<'_>) -> Option<Column> {
    Some(Column {
        holder: Holder { slot: reader.u16()?, epoch: reader.u64()? },
        lane: LaneKey(reader.u32()?),
        held: Amount { requests: reader.u64()?, tokens: Tokens(reader.u64()?), blocks: Blocks(reader.u64()?) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Member;
    #[cfg(target_family = "wasm")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const LANE: LaneKey = LaneKey(7);

    fn amount(requests: u64, tokens: u64) -> Amount {
        Amount { requests, tokens: Tokens(tokens), blocks: Tokens(tokens).blocks_of(16) }
    }

    fn two_members() -> (Members, Holder, Holder) {
        let mut members = Members::default();
        let (a, b) = (members.join().unwrap(), members.join().unwrap());
        (members, a, b)
    }

    #[test]
    fn release_restores() {
        let (members, a, b) = two_members();
        let mut ledger = Ledger::default();
        ledger.charge(&members, b, LANE, amount(1, 50));
        let before = ledger.held(&members);
        ledger.charge(&members, a, LANE, amount(1, 100));
        ledger.charge(&members, a, LaneKey(8), amount(2, 10));
        ledger.release(&members, a, LANE, amount(1, 100), Time(5));
        ledger.release(&members, a, LaneKey(8), amount(2, 10), Time(6));
        assert_eq!(ledger.held(&members), before);
    }

    #[test]
    fn a_dead_epoch_counts_zero_and_its_column_goes_with_the_next_write() {
        let (mut members, a, b) = two_members();
        let mut ledger = Ledger::default();
        ledger.charge(&members, a, LANE, amount(3, 300));
        ledger.charge(&members, b, LANE, amount(1, 10));
        members.fence(&[Member { holder: a, heartbeat: 0 }]);
        assert_eq!(ledger.held(&members), amount(1, 10));
        ledger.charge(&members, b, LANE, amount(1, 6));
        assert_eq!(ledger.columns.len(), 1);
    }

    #[test]
    fn a_release_under_a_fenced_epoch_takes_from_nobody() {
        let (mut members, a, b) = two_members();
        let mut ledger = Ledger::default();
        ledger.charge(&members, a, LANE, amount(1, 16));
        ledger.charge(&members, b, LANE, amount(1, 16));
        members.fence(&[Member { holder: a, heartbeat: 0 }]);
        let again = members.join().unwrap();
        assert_eq!(again.slot, a.slot);
        ledger.charge(&members, again, LANE, amount(1, 16));
        ledger.release(&members, a, LANE, amount(1, 16), Time(1));
        assert_eq!(ledger.held(&members), amount(2, 32));
    }

    #[test]
    fn survives_its_own_encoding_and_keeps_what_it_does_not_know() {
        let (members, a, b) = two_members();
        let mut ledger = Ledger::default();
        ledger.admit(&members, a, LANE, amount(1, 100));
        ledger.admit(&members, b, LaneKey(u32::MAX), amount(2, u64::MAX));
        ledger.release(&members, b, LaneKey(u32::MAX), amount(1, 5), Time(10));
        ledger.tally(&members, a, TallyKey::class("long"), 1);
        ledger.mark(WorkerKey::of("10.0.0.1:80"), (1, 2), Time(3));
        ledger.weigh(4, Tokens(0), Tokens(100));
        let mut bytes = ledger.encode();
        assert_eq!(Ledger::decode(&bytes), Some(ledger.clone()));
        bytes.extend_from_slice(&[77, 2, 0, 0, 0, 1, 2]);
        assert_eq!(Ledger::decode(&bytes).unwrap().encode(), bytes);
    }

    #[test]
    fn drain_follows_the_pace_of_releases() {
        let mut drain = Drain::default();
        assert_eq!(drain.time_for(1), None);
        for step in 0..50 {
            drain.note(Time(step * 200));
        }
        assert_eq!(drain.time_for(3), Some(Millis(600)));
        drain.note(Time(10_000_000));
        let after_pause = drain.time_for(1).unwrap();
        assert!(after_pause < Millis(5_000), "a pause counts as at most 30 s: {after_pause}");
    }
}
