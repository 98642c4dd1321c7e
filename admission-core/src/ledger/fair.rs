//! Weighted fair queueing: how much of a lane each tenant has had.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1996). A request starts at `start = max(finish, virtual time)` and moves its
//! tenant's `finish` to `start + cost / weight`; the request with the smallest start goes first, and the virtual time is
//! that of the last one. So a tenant that comes back finds its turn at once but cannot save up the turns it did not take.
//! Costs are estimates: what an answer proves to have cost too little is added to `finish`, what it proves too much is
//! taken off. That may bring a start behind the virtual time, by what was taken off for requests that were served (`credit`): without
//! it a tenant whose requests are estimated too high would lose its place with each answer. Since a claim is the caller's, credit
//! is at most one request's charge, and what the lane moves on beyond it takes as much of it away: a tenant that does not ask for its turn loses it.

use crate::hash;
use crate::ledger::LaneKey;
use crate::record::{Reader, Writer};
use crate::units::Tokens;

/// A tag is tokens by weight, in parts this small.
const SCALE: u64 = 1_024;

/// Names one tenant's part of one lane of one pool, as records know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey(pub u64);

impl FlowKey {
    /// Of a lane in the pool whose record has this name.
    #[must_use]
    pub fn of(pool_key: &str, lane: LaneKey) -> Self {
        Self(hash::stable(pool_key.as_bytes()) ^ u64::from(lane.0))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag {
    key: FlowKey,
    finish: u64,
    credit: u64,
}

impl Tag {
    /// Credit at a virtual time: all of it until the lane is that far beyond `finish`, none of it twice as far.
    fn credit_at(&self, virtual_time: u64) -> u64 {
        let behind = virtual_time.saturating_sub(self.finish);
        self.credit.saturating_sub(behind.saturating_sub(self.credit))
    }
}

/// Tags of some flows, the one served last at the end. Of more than `MOST`, the one that was served longest ago is forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tags<const MOST: usize>(Vec<Tag>);

impl<const MOST: usize> Tags<MOST> {
    /// Where the tenant's next request starts.
    pub(super) fn start(&self, key: FlowKey, virtual_time: u64) -> u64 {
        let flow = self.0.iter().find(|flow| flow.key == key);
        flow.map_or(virtual_time, |flow| flow.finish.max(virtual_time.saturating_sub(flow.credit_at(virtual_time))))
    }

    pub(super) fn finish(&self, key: FlowKey) -> u64 {
        self.0.iter().find(|flow| flow.key == key).map_or(0, |flow| flow.finish)
    }

    /// Charges a request that starts now.
    pub(super) fn serve(&mut self, key: FlowKey, virtual_time: u64, weight: u32, cost: Tokens) {
        let start = self.start(key, virtual_time);
        let mut flow = self.take(key);
        flow.finish = start.saturating_add(share(weight, cost));
        // What is left of it is what keeps the tenant behind still; the rest has been used.
        flow.credit = flow.credit.min(virtual_time.saturating_sub(flow.finish));
        self.put(flow);
    }

    /// Moves a tag on to a place, without charging anything.
    pub(super) fn advance(&mut self, key: FlowKey, to: u64) {
        let flow = self.take(key);
        self.put(Tag { finish: flow.finish.max(to), ..flow });
    }

    /// True when no flow has been served.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Moves the tag from what a request was charged to what it should have been; for one that was `served`, what was too much is credit.
    pub(super) fn settle(&mut self, key: FlowKey, weight: u32, charged: Tokens, right: Tokens, served: bool) {
        if let Some(flow) = self.0.iter_mut().find(|flow| flow.key == key) {
            let (charged, right) = (share(weight, charged), share(weight, right));
            flow.finish = flow.finish.saturating_add(right).saturating_sub(charged);
            // Why nothing else: the caller's claim alone would be worth a place in line.
            if served && right > 0 {
                let earned = flow.credit.saturating_add(charged.saturating_sub(right));
                flow.credit = flow.credit.max(earned.min(charged));
            }
        }
    }

    fn take(&mut self, key: FlowKey) -> Tag {
        match self.0.iter().position(|flow| flow.key == key) {
            Some(place) => self.0.remove(place),
            None => Tag { key, finish: 0, credit: 0 },
        }
    }

    fn put(&mut self, flow: Tag) {
        self.0.push(flow);
        let surplus = self.0.len().saturating_sub(MOST);
        self.0.drain(..surplus);
    }

    pub(super) fn write(&self, out: &mut Writer) {
        for flow in &self.0 {
            out.u64(flow.key.0);
            out.u64(flow.finish);
            out.u64(flow.credit);
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut flows = Self::default();
        while !reader.is_empty() {
            flows.0.push(Tag { key: FlowKey(reader.u64()?), finish: reader.u64()?, credit: reader.u64()? });
        }
        Some(flows)
    }
}

/// Difference of two fair tags that so many tokens make, at a weight of 1.
pub(super) fn span(tokens: Tokens) -> u64 {
    share(1, tokens)
}

fn share(weight: u32, tokens: Tokens) -> u64 {
    tokens.0.saturating_mul(SCALE) / u64::from(weight.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: FlowKey = FlowKey(1);
    const MOST: usize = 64;

    type Flows = Tags<MOST>;

    /// Serves whoever starts first, `rounds` times; every cost is an estimate that is settled `lag` starts later. Returns
    /// the tokens really used by each.
    fn contest(weights: [u32; 2], sizes: [u64; 2], estimates: [u64; 2], rounds: usize, lag: usize) -> [u64; 2] {
        let (mut flows, mut virtual_time) = ([Flows::default(), Flows::default()], 0);
        let (mut used, mut open) = ([0; 2], std::collections::VecDeque::new());
        for _ in 0..rounds {
            let starts = [flows[0].start(KEY, virtual_time), flows[1].start(KEY, virtual_time)];
            let who = usize::from(starts[1] < starts[0]);
            flows[who].serve(KEY, virtual_time, weights[who], Tokens(estimates[who]));
            virtual_time = virtual_time.max(starts[who]);
            used[who] += sizes[who];
            open.push_back(who);
            if open.len() > lag {
                let done = open.pop_front().unwrap();
                flows[done].settle(KEY, weights[done], Tokens(estimates[done]), Tokens(sizes[done]), true);
            }
        }
        used
    }

    fn assert_ratio(used: [u64; 2], right: f64) {
        let ratio = used[0] as f64 / used[1] as f64;
        assert!((ratio / right - 1.0).abs() < 0.05, "{ratio} is not {right}: {used:?}");
    }

    #[test]
    fn tokens_follow_weights_whatever_the_sizes() {
        for sizes in [[100, 100], [1_000, 10], [10, 1_000], [37, 411]] {
            assert_ratio(contest([4, 1], sizes, sizes, 4_000, 0), 4.0);
            assert_ratio(contest([1, 1], sizes, sizes, 4_000, 0), 1.0);
        }
    }

    #[test]
    fn wrong_estimates_are_made_good() {
        for estimates in [[400, 100], [100, 400], [25, 100], [100, 25]] {
            assert_ratio(contest([4, 1], [100, 100], estimates, 4_000, 8), 4.0);
        }
    }

    #[test]
    fn a_tenant_that_comes_back_saves_up_nothing() {
        let mut flows = Flows::default();
        flows.serve(KEY, 0, 1, Tokens(10));
        assert_eq!(flows.start(KEY, 1_000 * SCALE), 1_000 * SCALE, "its turns of the meantime are gone");
    }

    #[test]
    fn what_was_charged_too_much_is_credit_while_the_tenant_asks_for_its_turns() {
        let mut flows = Flows::default();
        flows.serve(KEY, 0, 1, Tokens(10));
        flows.settle(KEY, 1, Tokens(10), Tokens(4), true);
        let start = |flows: &Flows, at: u64| flows.start(KEY, at * SCALE) / SCALE;
        assert_eq!([4, 8, 10].map(|at| start(&flows, at)), [4, 4, 4], "as if it had been charged four");
        assert_eq!([12, 14, 16, 1_000].map(|at| start(&flows, at)), [8, 12, 16, 1_000], "what it does not use fades");
        flows.serve(KEY, 10 * SCALE, 1, Tokens(3));
        assert_eq!(start(&flows, 10), 7, "credit lasts while it is behind");
        flows.serve(KEY, 10 * SCALE, 1, Tokens(60));
        assert_eq!((start(&flows, 60), start(&flows, 90)), (67, 90), "and is gone once it was used");
    }

    /// Many large claims that are served with next to nothing, or with nothing at all.
    #[test]
    fn claims_alone_are_worth_no_turn() {
        for (right, most) in [(0, 0), (100, 16_000)] {
            let (mut flows, mut virtual_time) = (Flows::default(), 0);
            for _ in 0..64 {
                let start = flows.start(KEY, virtual_time);
                flows.serve(KEY, virtual_time, 1, Tokens(16_000));
                virtual_time = virtual_time.max(start);
            }
            for _ in 0..64 {
                flows.settle(KEY, 1, Tokens(16_000), Tokens(right), true);
            }
            let at = |since: u64| virtual_time + since * SCALE;
            let ahead = |since: u64| at(since) - flows.start(KEY, at(since));
            assert_eq!(ahead(0), 0, "what its own claims have moved the lane on is no turn that it missed");
            assert_eq!(ahead(1_000_000), 0);
            // The same, one after the other, so that the lane does not move.
            let mut flows = Flows::default();
            for _ in 0..64 {
                flows.serve(KEY, 0, 1, Tokens(16_000));
                flows.settle(KEY, 1, Tokens(16_000), Tokens(right), true);
            }
            let ahead = |since: u64| (since * SCALE).saturating_sub(flows.start(KEY, since * SCALE));
            assert!((1..60).map(|thousand| ahead(thousand * 1_000)).max().unwrap() <= most * SCALE, "{right}");
            assert_eq!(ahead(60_000), 0, "it fades");
        }
    }

    #[test]
    fn what_a_request_proves_to_need_before_it_is_served_earns_nothing() {
        let mut flows = Flows::default();
        flows.serve(KEY, 0, 1, Tokens(16_000));
        flows.settle(KEY, 1, Tokens(16_000), Tokens(3), false);
        flows.settle(KEY, 1, Tokens(3), Tokens(0), true);
        assert_eq!(flows.start(KEY, 16_000 * SCALE), 16_000 * SCALE);
    }

    #[test]
    fn flows_are_bounded_and_survive_their_encoding() {
        let mut flows = Flows::default();
        for key in 0..1_000 {
            flows.serve(FlowKey(key), 5, 1, Tokens(1));
        }
        assert_eq!(flows.0.len(), MOST);
        assert_eq!(flows.start(FlowKey(999), 0), 5 + SCALE);
        let mut out = Writer::default();
        flows.write(&mut out);
        let bytes = out.finish(&Default::default());
        assert_eq!(Flows::read(&mut Reader::of(&bytes)), Some(flows));
    }
}
