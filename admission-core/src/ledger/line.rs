//! Who waits for a pool, over all VMs.
//!
//! A VM keeps its waiters to itself and says in the pool's record how many they are and which of them would go first. What
//! it says is always the whole truth of the moment, put in place of what it said before; so nothing can be counted twice,
//! and what a dead VM said is void with its epoch.

use crate::ledger::LaneKey;
use crate::members::{Holder, Members};
use crate::record::{Reader, Writer};
use crate::units::{Time, Tokens};

/// An amount that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Requests.
    pub requests: u64,
    /// Their prompt and expected output tokens.
    pub tokens: Tokens,
    /// Their bodies.
    pub bytes: u64,
    /// When the one that has waited longest arrived.
    pub oldest: Time,
    /// Of the requests, those that stand aside for their tenant's own caps or a class: what comes free is not for them.
    pub aside: u64,
}

impl Backlog {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let oldest = match (self.requests, other.requests) {
            (0, _) => other.oldest,
            (_, 0) => self.oldest,
            _ => self.oldest.min(other.oldest),
        };
        Self {
            requests: self.requests.saturating_add(other.requests),
            tokens: self.tokens.plus(other.tokens),
            bytes: self.bytes.saturating_add(other.bytes),
            oldest,
            aside: self.aside.saturating_add(other.aside),
        }
    }

    /// What is left when some of it is gone; the age stays.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            tokens: Tokens(self.tokens.0.saturating_sub(other.tokens.0)),
            bytes: self.bytes.saturating_sub(other.bytes),
            oldest: self.oldest,
            aside: self.aside.saturating_sub(other.aside),
        }
    }

    /// Requests in line.
    #[must_use]
    pub const fn in_line(self) -> u64 {
        self.requests.saturating_sub(self.aside)
    }

    /// Nothing at all.
    #[must_use]
    pub const fn is_nothing(self) -> bool {
        self.requests == 0 && self.tokens.0 == 0 && self.bytes == 0
    }
}

/// The first of those that wait in one VM in one band and came for one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The lane it counts as, after what it has climbed.
    pub band: LaneKey,
    /// The lane it came for, whose limits it is held to.
    pub lane: LaneKey,
    /// Names its tenant.
    pub flow: u64,
    /// Where its tenant starts in that band.
    pub tag: u64,
    /// Among its tenant's; lower goes first.
    pub urgency: u64,
    /// It would hold so many, which its lane's dispatch budget may not have left.
    pub tokens: Tokens,
    /// Of its body, as far as it is known.
    pub bytes: u64,
}

/// What one VM says of its waiters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// By the lane they came for.
    pub waiting: Vec<(LaneKey, Backlog)>,
    /// Of those that wait for nothing but the pool.
    pub heads: Vec<Head>,
    /// Some wait for a class of the pool alone.
    pub for_a_class: bool,
}

/// What all VMs say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    waiting: Vec<(Holder, LaneKey, Backlog)>,
    heads: Vec<(Holder, Head)>,
    for_a_class: Vec<Holder>,
}

impl Line {
    /// Puts what a VM says in place of what its slot has said before.
    pub(super) fn publish(&mut self, members: &Members, holder: Holder, report: &Report) {
        let stays = |other: &Holder| other.slot != holder.slot && members.counts(other.epoch);
        self.waiting.retain(|(other, ..)| stays(other));
        self.heads.retain(|(other, _)| stays(other));
        self.for_a_class.retain(stays);
        self.waiting.extend(report.waiting.iter().map(|(lane, backlog)| (holder, *lane, *backlog)));
        self.heads.extend(report.heads.iter().map(|head| (holder, *head)));
        self.for_a_class.extend(report.for_a_class.then_some(holder));
    }

    pub(super) fn waiting<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (LaneKey, Backlog)> {
        let live = self.waiting.iter().filter(|(holder, ..)| members.counts(holder.epoch));
        live.map(|(_, lane, backlog)| (*lane, *backlog))
    }

    pub(super) fn waiting_elsewhere<'a>(
        &'a self,
        members: &'a Members,
        here: Holder,
    ) -> impl Iterator<Item = (LaneKey, Backlog)> {
        let live = self.waiting.iter().filter(move |(holder, ..)| *holder != here && members.counts(holder.epoch));
        live.map(|(_, lane, backlog)| (*lane, *backlog))
    }

    pub(super) fn heads<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, &'a Head)> {
        let live = self.heads.iter().filter(|(holder, _)| members.counts(holder.epoch));
        live.map(|(holder, head)| (*holder, head))
    }

    pub(super) fn for_a_class<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = Holder> {
        self.for_a_class.iter().filter(|holder| members.counts(holder.epoch)).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn write_waiting(&self, out: &mut Writer) {
        for (holder, lane, backlog) in &self.waiting {
            out.u16(holder.slot);
            out.u64(holder.epoch);
            out.u32(lane.0);
            out.u64(backlog.requests);
            out.u64(backlog.tokens.0);
            out.u64(backlog.bytes);
            out.u64(backlog.oldest.0);
            out.u64(backlog.aside);
        }
    }

    pub(super) fn read_waiting(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        while !reader.is_empty() {
            let holder = Holder { slot: reader.u16()?, epoch: reader.u64()? };
            let lane = LaneKey(reader.u32()?);
            let backlog = Backlog {
                requests: reader.u64()?,
                tokens: Tokens(reader.u64()?),
                bytes: reader.u64()?,
                oldest: Time(reader.u64()?),
                aside: reader.u64()?,
            };
            self.waiting.push((holder, lane, backlog));
        }
        Some(())
    }

    pub(super) fn write_heads(&self, out: &mut Writer) {
        for (holder, head) in &self.heads {
            out.u16(holder.slot);
            out.u64(holder.epoch);
            out.u32(head.band.0);
            out.u32(head.lane.0);
            out.u64(head.flow);
            out.u64(head.tag);
            out.u64(head.urgency);
            out.u64(head.tokens.0);
            out.u64(head.bytes);
        }
    }

    pub(super) fn read_heads(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        while !reader.is_empty() {
            let holder = Holder { slot: reader.u16()?, epoch: reader.u64()? };
            let (band, lane) = (LaneKey(reader.u32()?), LaneKey(reader.u32()?));
            let (flow, tag, urgency) = (reader.u64()?, reader.u64()?, reader.u64()?);
            let (tokens, bytes) = (Tokens(reader.u64()?), reader.u64()?);
            self.heads.push((holder, Head { band, lane, flow, tag, urgency, tokens, bytes }));
        }
        Some(())
    }

    pub(super) fn write_for_a_class(&self, out: &mut Writer) {
        for holder in &self.for_a_class {
            out.u16(holder.slot);
            out.u64(holder.epoch);
        }
    }

    pub(super) fn read_for_a_class(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        while !reader.is_empty() {
            self.for_a_class.push(Holder { slot: reader.u16()?, epoch: reader.u64()? });
        }
        Some(())
    }
}
