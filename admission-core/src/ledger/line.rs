//! Who waits for a pool, over all VMs.
//!
//! A VM keeps its waiters to itself and says in the pool's record how many they are and which of them would go first. What
//! it says is always the whole truth of the moment, put in place of what it said before; so nothing can be counted twice,
//! and what a dead VM said is void with its epoch.

use super::per_vm::{PerVm, Row};
use super::{LaneKey, SubFlow};
use crate::members::{Holder, Members};
use crate::outcome::Reason;
use crate::record::{Reader, Writer};
use crate::units::{Blocks, Time, Tokens};

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
    /// The lane that it counts as after what it has climbed, whose limits it is held to.
    pub band: LaneKey,
    /// The lane that it came for.
    pub lane: LaneKey,
    /// Names its tenant.
    pub flow: u64,
    /// Where its tenant starts in that band.
    pub tag: u64,
    /// Among its tenant's; lower goes first.
    pub urgency: u64,
    /// Tokens that it would hold, which the lane's dispatch budget may not have left.
    pub tokens: Tokens,
    /// Of its body, as far as it is known.
    pub bytes: u64,
    /// Part of its tenant's requests that it belongs to, and the tag of that, which goes before urgency; `None` where no header names one.
    pub within: Option<(SubFlow, u64)>,
}

/// Waiter whose KV blocks are not free and who lets those behind it pass: of its VM, band and lane the first, or the one that
/// needs least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Yielding {
    /// Place in line that it has again when so many blocks are free.
    pub head: Head,
    /// Blocks that it needs.
    pub blocks: Blocks,
    /// True for a waiter that can be steered to a worker, so one must have them free.
    pub steered: bool,
}

/// A tenant whose waiters' bodies are so large together that a VM says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Large {
    /// Names the tenant, as the heads do.
    pub flow: u64,
    /// Bytes of the bodies.
    pub bytes: u64,
}

/// The lack of a lane's waiters in one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The lane that they came for.
    pub lane: LaneKey,
    /// The reason for which the last that was looked at could not start; `None` for one of a later build.
    pub reason: Option<Reason>,
}

/// What one VM says of its waiters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// By the lane they came for.
    pub waiting: Vec<(LaneKey, Backlog)>,
    /// Of those that wait for nothing but the pool.
    pub heads: Vec<Head>,
    /// Waiters that let others pass: of each band and lane the first and the one that needs least.
    pub yielding: Vec<Yielding>,
    /// Tenants with much waiting.
    pub large: Vec<Large>,
    /// Some wait for a class of the pool alone.
    pub for_a_class: bool,
    /// Requests that wait for nothing but the pool, in lanes without a dispatch budget.
    pub demand: u64,
    /// The lack of each lane's waiters.
    pub kept: Vec<Kept>,
    /// Waiters that joined to wait for a rate, by the lane they came for.
    pub rated: Vec<(LaneKey, Backlog)>,
}

/// What all VMs say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) waiting: PerVm<(LaneKey, Backlog)>,
    pub(super) heads: PerVm<Head>,
    pub(super) yielding: PerVm<Yielding>,
    pub(super) for_a_class: PerVm<ForAClass>,
    pub(super) demand: PerVm<Demand>,
    pub(super) large: PerVm<Large>,
    pub(super) kept: PerVm<Kept>,
    pub(super) rated: PerVm<(LaneKey, Backlog)>,
}

/// Requests of one VM that wait for nothing but the pool, in lanes without a dispatch budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Demand(pub(super) u64);

/// A VM in which a request waits for a class of the pool alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ForAClass;

/// Sub-flow of a head, in a section of its own: builds that know nothing of sub-flows read the rows of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartOf {
    band: LaneKey,
    lane: LaneKey,
    urgency: u64,
    sub: SubFlow,
    tag: u64,
}

impl PartOf {
    fn new(head: &Head) -> Option<Self> {
        let Head { band, lane, urgency, within, .. } = *head;
        within.map(|(sub, tag)| Self { band, lane, urgency, sub, tag })
    }

    fn within(&self) -> Option<(SubFlow, u64)> {
        Some((self.sub, self.tag))
    }

    fn is_of(&self, head: &Head) -> bool {
        (self.band, self.lane, self.urgency) == (head.band, head.lane, head.urgency)
    }
}

impl Line {
    /// Puts what a VM says in place of what its slot has said before.
    pub(super) fn publish(&mut self, members: &Members, holder: Holder, report: &Report) {
        self.waiting.publish(members, holder, report.waiting.iter().copied());
        self.heads.publish(members, holder, report.heads.iter().copied());
        self.yielding.publish(members, holder, report.yielding.iter().copied());
        self.for_a_class.publish(members, holder, report.for_a_class.then_some(ForAClass));
        self.demand.publish(members, holder, (report.demand > 0).then_some(Demand(report.demand)));
        self.large.publish(members, holder, report.large.iter().copied());
        self.kept.publish(members, holder, report.kept.iter().copied());
        self.rated.publish(members, holder, report.rated.iter().copied());
    }

    /// Parts that the heads, and the waiters that let others pass, belong to.
    pub(super) fn parts(&self) -> PerVm<PartOf> {
        let mut parts = self.heads.filter_map(PartOf::new);
        parts.append(self.yielding.filter_map(|yielding| PartOf::new(&yielding.head)));
        parts
    }

    pub(super) fn set_parts(&mut self, parts: &PerVm<PartOf>) {
        self.heads.zip(parts, |head, part| part.is_of(head), |head, part| head.within = part.within());
        let of_head = |yielding: &Yielding, part: &PartOf| part.is_of(&yielding.head);
        self.yielding.zip(parts, of_head, |yielding, part| yielding.head.within = part.within());
    }

    pub(super) fn waiting<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, LaneKey, Backlog)> {
        self.waiting.live(members).map(|(holder, (lane, backlog))| (holder, *lane, *backlog))
    }
}

impl Row for (LaneKey, Backlog) {
    fn write(&self, out: &mut Writer) {
        let (lane, backlog) = self;
        out.u32(lane.0);
        out.u64(backlog.requests);
        out.u64(backlog.tokens.0);
        out.u64(backlog.bytes);
        out.u64(backlog.oldest.0);
        out.u64(backlog.aside);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let lane = LaneKey(reader.u32()?);
        let backlog = Backlog {
            requests: reader.u64()?,
            tokens: Tokens(reader.u64()?),
            bytes: reader.u64()?,
            oldest: Time(reader.u64()?),
            aside: reader.u64()?,
        };
        Some((lane, backlog))
    }
}

impl Row for Head {
    fn write(&self, out: &mut Writer) {
        out.u32(self.band.0);
        out.u32(self.lane.0);
        out.u64(self.flow);
        out.u64(self.tag);
        out.u64(self.urgency);
        out.u64(self.tokens.0);
        out.u64(self.bytes);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            band: LaneKey(reader.u32()?),
            lane: LaneKey(reader.u32()?),
            flow: reader.u64()?,
            tag: reader.u64()?,
            urgency: reader.u64()?,
            tokens: Tokens(reader.u64()?),
            bytes: reader.u64()?,
            within: None,
        })
    }
}

impl Row for PartOf {
    fn write(&self, out: &mut Writer) {
        out.u32(self.band.0);
        out.u32(self.lane.0);
        out.u64(self.urgency);
        out.bytes(&[self.sub.number()]);
        out.u64(self.tag);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (band, lane) = (LaneKey(reader.u32()?), LaneKey(reader.u32()?));
        let (urgency, sub) = (reader.u64()?, SubFlow::numbered(reader.u8()?));
        Some(Self { band, lane, urgency, sub, tag: reader.u64()? })
    }
}

impl Row for Yielding {
    fn write(&self, out: &mut Writer) {
        self.head.write(out);
        out.u64(self.blocks.0);
        out.bytes(&[u8::from(self.steered)]);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { head: Head::read(reader)?, blocks: Blocks(reader.u64()?), steered: reader.u8()? != 0 })
    }
}

impl Row for Large {
    fn write(&self, out: &mut Writer) {
        out.u64(self.flow);
        out.u64(self.bytes);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { flow: reader.u64()?, bytes: reader.u64()? })
    }
}

// Why its label and not a number: reasons come and go, and builds that differ share the record.
impl Row for Kept {
    fn write(&self, out: &mut Writer) {
        out.u32(self.lane.0);
        let label = self.reason.map_or("", Reason::label).as_bytes();
        out.bytes(&[u8::try_from(label.len()).unwrap_or(0)]);
        out.bytes(label);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (lane, length) = (LaneKey(reader.u32()?), reader.u8()?);
        let label = std::str::from_utf8(reader.bytes(usize::from(length))?).ok()?;
        Some(Self { lane, reason: Reason::of_label(label) })
    }
}

impl Row for Demand {
    fn write(&self, out: &mut Writer) {
        out.u64(self.0);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.u64().map(Self)
    }
}

impl Row for ForAClass {
    fn write(&self, _: &mut Writer) {}

    fn read(_: &mut Reader<'_>) -> Option<Self> {
        Some(Self)
    }
}
