//! Fair queueing among the requests of one tenant, by a key that the platform puts into a header.
//!
//! The keys are hashed into [`SUB_FLOWS`] sub-flows, so that a caller who makes up keys gets no more than all of these. They order
//! only the tenant's own requests: against other tenants it has one fair tag whatever its keys are. Each sub-flow has a tag
//! as a tenant has one, and the virtual time among them is that of the tenant's last start, kept in the tenant's record.

use super::fair::{FlowKey, Tags};
use crate::hash;
use crate::record::{Reader, Writer};
use crate::units::Tokens;

/// Parts that the requests of a tenant may be put into.
pub const SUB_FLOWS: u8 = 16;

/// Tags of one tenant: of its sub-flows and their virtual time, for eight lanes of pools.
const MOST_TAGS: usize = 8 * (SUB_FLOWS as usize + 1);

/// The part of a tenant's requests that have a key, or one of those with the same hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubFlow(u8);

impl SubFlow {
    /// The sub-flow of a key; requests without one share that of the empty key.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        Self((hash::stable(key) % u64::from(SUB_FLOWS)) as u8)
    }

    /// The sub-flow of a number that a record has; any other counts as one of those there are.
    pub(super) const fn numbered(number: u8) -> Self {
        Self(number % SUB_FLOWS)
    }

    pub(super) const fn number(self) -> u8 {
        self.0
    }
}

/// A part of a lane as a request is charged to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The tenant's part.
    pub key: FlowKey,
    /// The part of that which the request belongs to, where a header names it.
    pub sub: Option<SubFlow>,
    /// The tenant's weight.
    pub weight: u32,
}

/// Fair tags at which the next requests of a tenant start: among tenants, and among its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Starts {
    /// Tag among tenants.
    pub tag: u64,
    own: [u64; SUB_FLOWS as usize],
}

impl Starts {
    /// A tag of a tenant whose requests no header parts.
    #[must_use]
    pub const fn at(tag: u64) -> Self {
        Self { tag, own: [0; SUB_FLOWS as usize] }
    }

    /// Tag of a sub-flow among those of its tenant; 0 for requests that belong to none.
    #[must_use]
    pub fn within(&self, sub: Option<SubFlow>) -> u64 {
        sub.and_then(|sub| self.own.get(usize::from(sub.0))).copied().unwrap_or(0)
    }
}

/// Tags of a tenant's sub-flows, and their virtual times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SubFlows(Tags<MOST_TAGS>);

impl SubFlows {
    /// Fills in where each sub-flow of a flow starts.
    pub(super) fn starts(&self, flow: FlowKey, tag: u64) -> Starts {
        let mut starts = Starts::at(tag);
        if !self.0.is_empty() {
            let virtual_time = self.0.finish(clock(flow));
            for (own, sub) in starts.own.iter_mut().zip(0..) {
                *own = self.0.start(key(flow, SubFlow(sub)), virtual_time);
            }
        }
        starts
    }

    /// Tag at which a sub-flow's next request starts.
    pub(super) fn start(&self, flow: FlowKey, sub: SubFlow) -> u64 {
        self.0.start(key(flow, sub), self.0.finish(clock(flow)))
    }

    /// Charges a request that starts now.
    pub(super) fn serve(&mut self, flow: FlowKey, sub: SubFlow, cost: Tokens) {
        let virtual_time = self.0.finish(clock(flow));
        let start = self.start(flow, sub);
        self.0.serve(key(flow, sub), virtual_time, 1, cost);
        self.0.advance(clock(flow), start);
    }

    /// Moves a tag from what a request was charged to what it should have been.
    pub(super) fn settle(&mut self, flow: FlowKey, sub: SubFlow, (charged, right): (Tokens, Tokens), served: bool) {
        self.0.settle(key(flow, sub), 1, charged, right, served);
    }

    pub(super) fn write(&self, out: &mut Writer) {
        self.0.write(out);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Tags::read(reader).map(Self)
    }
}

fn key(flow: FlowKey, sub: SubFlow) -> FlowKey {
    part(flow, sub.0)
}

/// Name of the virtual time among a flow's sub-flows.
fn clock(flow: FlowKey) -> FlowKey {
    part(flow, u8::MAX)
}

fn part(flow: FlowKey, number: u8) -> FlowKey {
    let [a, b, c, d, e, f, g, h] = flow.0.to_le_bytes();
    FlowKey(hash::stable(&[a, b, c, d, e, f, g, h, number]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: FlowKey = FlowKey(7);

    /// Serves sub-flow 0 alone, then both as long as each has waiters: those that come later have missed nothing and owe nothing.
    #[test]
    fn sub_flows_take_turns_by_tokens() {
        let (many, few) = (SubFlow(0), SubFlow(1));
        let mut flows = SubFlows::default();
        (0..10).for_each(|_| flows.serve(FLOW, many, Tokens(100)));
        let mut served = [0_u64; 2];
        for _ in 0..60 {
            let starts = flows.starts(FLOW, 0);
            let (sub, cost, who) =
                if starts.within(Some(few)) <= starts.within(Some(many)) { (few, 50, 1) } else { (many, 100, 0) };
            flows.serve(FLOW, sub, Tokens(cost));
            served[who] += cost;
        }
        assert!(served[0].abs_diff(served[1]) <= 150, "{served:?}");
    }

    #[test]
    fn a_tenant_without_keys_has_no_tags() {
        let flows = SubFlows::default();
        assert_eq!(flows.starts(FLOW, 5), Starts::at(5));
        let mut out = Writer::default();
        flows.write(&mut out);
        assert!(out.finish(&Default::default()).is_empty());
    }

    #[test]
    fn pools_and_lanes_have_their_own_tags_and_the_oldest_are_forgotten() {
        let mut flows = SubFlows::default();
        for number in 0..1_000 {
            for sub in 0..SUB_FLOWS {
                flows.serve(FlowKey(number), SubFlow(sub), Tokens(1));
            }
        }
        let starts = |flow| (0..SUB_FLOWS).map(|sub| flows.starts(flow, 0).within(Some(SubFlow(sub)))).max();
        assert!(starts(FlowKey(999)) > Some(0) && starts(FlowKey(992)) > Some(0));
        assert_eq!(starts(FlowKey(991)), Some(0));
        let mut out = Writer::default();
        flows.write(&mut out);
        let bytes = out.finish(&Default::default());
        assert_eq!(SubFlows::read(&mut Reader::of(&bytes)), Some(flows));
    }

    #[test]
    fn keys_are_spread_over_all_sub_flows() {
        let used: std::collections::BTreeSet<_> =
            (0..200).map(|key| SubFlow::of(format!("user-{key}").as_bytes())).collect();
        assert_eq!(used.len(), usize::from(SUB_FLOWS));
    }
}
