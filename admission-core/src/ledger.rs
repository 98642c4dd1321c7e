//! What is held: one record for each pool and each tenant.
//!
//! A ledger is a list of columns, one for each VM and lane. A column whose VM is dead counts zero from the moment the
//! membership says so and is dropped by whoever writes the record next; no journal of single requests is kept.

use crate::budget::{Rate, Rates, Spent};
use crate::hash;
use crate::members::{Holder, Members};
use crate::record::Sections;
use crate::units::{Blocks, Millis, Time, Tokens};
use crate::view::{Admitted, Stamp};

mod bands;
mod begun;
mod blocked;
mod charged_under;
mod drain;
mod fair;
mod hold;
mod last_starts;
mod line;
mod marks;
mod pace;
mod per_vm;
mod prefill;
mod queued;
mod sections;
mod sub_flows;
mod tally;
#[cfg(test)]
mod tests;
mod tier_budgets;
mod unnamed;
mod victims;

pub use begun::{Begun, BegunAt, Unseen};
pub use blocked::{Blocked, Order, Part, Place};
pub use drain::Drain;
pub use fair::FlowKey;
pub use last_starts::LAST_STARTS;
pub use line::{Backlog, Head, Kept, Large, Report, Yielding};
pub use marks::RefusedKey;
pub use queued::Queued;
pub use sub_flows::{Flow, SUB_FLOWS, Starts, SubFlow};
pub use tally::TallyKey;
pub use victims::Evictable;

use bands::Bands;
use begun::Acknowledged;
use charged_under::ChargedUnder;
use fair::Tags;
use hold::Hold;
use last_starts::LastStarts;
use line::Line;
use marks::{Marks, RefusedTenants};
use pace::Pace;
use per_vm::PerVm;
use prefill::Reading;
use sub_flows::SubFlows;
use tally::Tally;
use tier_budgets::TierBudgets;
use victims::{Asked, Gone};

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
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { requests: self.requests.saturating_add(other.requests), tokens: self.tokens.plus(other.tokens) }
    }

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
    /// The lane.
    pub lane: LaneKey,
    /// How much.
    pub held: Amount,
}

/// Flows of one tenant.
const MOST_FLOWS: usize = 64;

/// The record of a pool or a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    columns: PerVm<Column>,
    admitted: Admitted,
    drain: Drain,
    requests_spent: Spent,
    tokens_spent: Spent,
    tier_budgets: TierBudgets,
    charged_under: ChargedUnder,
    tallies: PerVm<Tally>,
    marks: Marks,
    refused_tenants: RefusedTenants,
    flows: Tags<MOST_FLOWS>,
    sub_flows: SubFlows,
    blocked: PerVm<Blocked>,
    queued: PerVm<Queued>,
    line: Line,
    bands: Bands,
    /// The view under which a worker last refused what it was sent.
    refused_under: Option<Stamp>,
    evictable: PerVm<Evictable>,
    asked: PerVm<Asked>,
    gone: Gone,
    /// Requests that were ever evicted.
    evicted: u64,
    acknowledged: Acknowledged,
    begun: PerVm<Begun>,
    begun_at: PerVm<BegunAt>,
    hold: Hold,
    last_starts: LastStarts,
    reading: Reading,
    /// Amount that the same tenant holds in another ledger; not part of the record.
    elsewhere: Amount,
    unknown: Sections,
}

/// A record, and the VMs whose holdings in it count.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    /// The record.
    pub ledger: &'a Ledger,
    /// The VMs.
    pub members: &'a Members,
}

impl Ledger {
    /// The record as these VMs count it.
    #[must_use]
    pub fn counted<'a>(&'a self, members: &'a Members) -> Counted<'a> {
        Counted { ledger: self, members }
    }

    /// All that live VMs hold.
    #[must_use]
    pub fn held(&self, members: &Members) -> Amount {
        self.live(members).fold(self.elsewhere, |sum, (_, column)| sum.plus(column.held))
    }

    /// What live VMs hold for one lane.
    #[must_use]
    pub fn held_by(&self, lane: LaneKey, members: &Members) -> Amount {
        let of_lane = self.live(members).filter(|(_, column)| column.lane == lane);
        of_lane.fold(Amount::default(), |sum, (_, column)| sum.plus(column.held))
    }

    /// The columns that count.
    pub fn live<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, &'a Column)> {
        self.columns.live(members)
    }

    /// All that was ever admitted, in order to tell what came after a scrape.
    #[must_use]
    pub fn admitted(&self) -> Admitted {
        self.admitted
    }

    /// The count of admissions that answers to views carry, in which an eviction counts as one more.
    // Why: a view is to say whether its scrapes began after an eviction too, and without one more its count would stay the same.
    fn events(&self) -> Admitted {
        Admitted { requests: self.admitted.requests.saturating_add(self.evicted), ..self.admitted }
    }

    /// How long until so many of the requests in flight have ended; `None` before one has.
    #[must_use]
    pub fn time_to_free(&self, requests: u64, members: &Members) -> Option<Millis> {
        self.drain.time_for(requests, self.held(members).requests)
    }

    /// Adds to what a VM holds and counts it as admitted.
    pub fn admit(&mut self, members: &Members, holder: Holder, lane: LaneKey, amount: Amount) {
        self.admitted.requests = self.admitted.requests.saturating_add(amount.requests);
        self.admitted.blocks = self.admitted.blocks.saturating_add(amount.blocks.0);
        self.charge(members, holder, lane, amount);
    }

    /// Adds to what a VM holds, without asking whether it may.
    pub fn charge(&mut self, members: &Members, holder: Holder, lane: LaneKey, amount: Amount) {
        let none = Column { lane, held: Amount::default() };
        if let Some(column) = self.columns.entry(members, holder, |column| column.lane == lane, none) {
            column.held = column.held.plus(amount);
        }
    }

    /// Takes back what was charged to the same holder and lane. Nothing happens when that holder is no longer counted:
    /// its column went with it.
    pub fn refund(&mut self, members: &Members, holder: Holder, lane: LaneKey, amount: Amount) {
        self.columns.change(members, holder, |column| {
            if column.lane == lane {
                column.held = column.held.minus(amount);
            }
            !column.held.is_zero()
        });
    }

    /// Takes back what a request held that has ended after a time, which is what the pace of draining is measured by.
    pub fn release(&mut self, members: &Members, holder: Holder, lane: LaneKey, amount: Amount, held_for: Millis) {
        self.refund(members, holder, lane, amount);
        self.drain.note(held_for);
    }

    /// Until when the budgets of requests and of tokens are spent; the default where one does not exist.
    #[must_use]
    pub fn spent(&self, rates: &Rates) -> (Spent, Spent) {
        let spent =
            |rate: &Option<Rate>, own| rate.as_ref().map(|rate| self.tier_budgets.spent(rate, own)).unwrap_or_default();
        (spent(&rates.requests, self.requests_spent), spent(&rates.tokens, self.tokens_spent))
    }

    /// Spends what a request costs from the budgets there are.
    pub fn spend(&mut self, rates: &Rates, cost: Cost, now: Time) {
        if let Some(rate) = &rates.requests {
            let spend = |spent| rate.spend(spent, cost.requests, now);
            self.tier_budgets.change(rate, &mut self.requests_spent, now, spend);
        }
        if let Some(rate) = &rates.tokens {
            let spend = |spent| rate.spend(spent, cost.tokens.0, now);
            self.tier_budgets.change(rate, &mut self.tokens_spent, now, spend);
        }
    }

    /// Gives a cost back to the budgets there are, which were spent up to these instants when it was charged.
    pub fn give_back(&mut self, rates: &Rates, cost: Cost, (requests, tokens): (Spent, Spent), now: Time) {
        if let Some(rate) = &rates.requests {
            let give_back = |spent| rate.give_back(spent, cost.requests, requests, now);
            self.tier_budgets.change(rate, &mut self.requests_spent, now, give_back);
        }
        if let Some(rate) = &rates.tokens {
            let give_back = |spent| rate.give_back(spent, cost.tokens.0, tokens, now);
            self.tier_budgets.change(rate, &mut self.tokens_spent, now, give_back);
        }
    }

    /// Requests that live VMs hold under a key.
    #[must_use]
    pub fn tallied(&self, key: TallyKey, members: &Members) -> u64 {
        self.tallies.held(key, members)
    }

    /// Requests that each live VM holds under each key.
    pub fn tallies<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (TallyKey, u64)> + 'a {
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

    /// Where a tenant's next request of a flow starts, by the virtual time of its pool.
    #[must_use]
    pub fn start_tag(&self, flow: FlowKey, virtual_time: u64) -> u64 {
        self.flows.start(flow, virtual_time)
    }

    /// Fair tags at which a tenant's next requests of a flow start, by the virtual time of its pool.
    #[must_use]
    pub fn starts(&self, flow: FlowKey, virtual_time: u64) -> Starts {
        self.sub_flows.starts(flow, self.start_tag(flow, virtual_time))
    }

    /// Tag at which the next request of a sub-flow starts among those of its tenant.
    #[must_use]
    pub fn tag_within(&self, flow: FlowKey, sub: SubFlow) -> u64 {
        self.sub_flows.start(flow, sub)
    }

    /// Where a tenant's last request of a flow has left it; 0 for one that had none.
    #[must_use]
    pub fn finish_tag(&self, flow: FlowKey) -> u64 {
        self.flows.finish(flow)
    }

    /// Charges a flow of a tenant with a request that starts.
    pub fn serve_flow(&mut self, flow: Flow, virtual_time: u64, cost: Tokens) {
        self.flows.serve(flow.key, virtual_time, flow.weight, cost);
        if let Some(sub) = flow.sub {
            self.sub_flows.serve(flow.key, sub, cost);
        }
    }

    /// Moves a flow's tag from what a request was charged to what it should have been; what was too much is credit once it was `served`.
    pub fn settle_flow(&mut self, flow: Flow, charged: Tokens, right: Tokens, served: bool) {
        self.flows.settle(flow.key, flow.weight, charged, right, served);
        if let Some(sub) = flow.sub {
            self.sub_flows.settle(flow.key, sub, (charged, right), served);
        }
    }

    /// Requests that wait for nothing but the pool, in lanes without a dispatch budget.
    #[must_use]
    pub fn demand(&self, members: &Members) -> u64 {
        self.line.demand.live(members).fold(0, |sum, (_, demand)| sum.saturating_add(demand.0))
    }

    /// Nobody waits for the pool.
    #[must_use]
    pub fn nobody_waits(&self) -> bool {
        self.line.waiting.is_empty()
    }

    /// Who waits for the pool, by the lane they came for; a lane may come more than once.
    pub fn waiting<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (LaneKey, Backlog)> {
        self.line.waiting(members).map(|(_, lane, backlog)| (lane, backlog))
    }

    /// Waiters of the pool, by VM and the lane they came for.
    pub fn waiting_by_vm<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, LaneKey, Backlog)> {
        self.line.waiting(members)
    }

    /// Tenants with much waiting, by VM.
    pub fn large<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, Large)> {
        self.line.large.live(members).map(|(holder, large)| (holder, *large))
    }

    /// The lack of each lane's waiters, as each VM says it.
    pub fn kept<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = Kept> {
        self.line.kept.live(members).map(|(_, kept)| *kept)
    }

    /// What waits for one lane of the pool.
    #[must_use]
    pub fn backlog(&self, lane: LaneKey, members: &Members) -> Backlog {
        let of_lane = self.waiting(members).filter(|(other, _)| *other == lane);
        of_lane.fold(Backlog::default(), |sum, (_, backlog)| sum.plus(backlog))
    }

    /// Difference of fair tags that the mean request makes of those that wait in a lane, while more than so many do; else 0.
    #[must_use]
    pub fn span_beyond(&self, lane: LaneKey, requests: u64, members: &Members) -> u64 {
        let waiting = self.backlog(lane, members);
        if waiting.in_line() <= requests {
            return 0;
        }
        fair::span(Tokens(waiting.tokens.0.checked_div(waiting.requests).unwrap_or(0)))
    }

    /// The first waiters of each VM that wait for nothing but the pool.
    pub fn heads<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, &'a Head)> {
        self.line.heads.live(members)
    }

    /// VMs in which somebody waits for a class of the pool alone.
    pub fn waiting_for_a_class<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = Holder> {
        self.line.for_a_class.live(members).map(|(holder, _)| holder)
    }

    /// Says who waits in a VM.
    pub fn publish(&mut self, members: &Members, holder: Holder, report: &Report) {
        self.line.publish(members, holder, report);
        let Self { line, bands, .. } = self;
        bands
            .forget_idle(|lane| line.waiting(members).any(|(_, other, backlog)| other == lane && backlog.requests > 0));
    }

    /// The virtual time of a lane.
    #[must_use]
    pub fn virtual_time(&self, band: LaneKey) -> u64 {
        self.bands.virtual_time(band)
    }

    /// How long until a request starts that has a place among those that wait for a lane and a position in the whole line:
    /// by how fast the lane moves while somebody waits for it, and until enough of that has been seen, by how fast requests in
    /// flight end. `None` when neither was.
    #[must_use]
    pub fn time_to_start(
        &self,
        lane: LaneKey,
        place: u64,
        position: u64,
        members: &Members,
        now: Time,
    ) -> Option<Millis> {
        let guess = self.time_to_free(position, members).map(|all| all.0.saturating_mul(1_000) / place.max(1));
        self.pace_of(lane, members, now).time_for(place, guess)
    }

    /// Time of the last start of a request that came for a lane.
    #[must_use]
    pub fn last_start(&self, lane: LaneKey) -> Time {
        self.bands.pace(lane).1
    }

    /// Mean time between starts in a lane while somebody waits for it; until enough of them have been seen, between ends of
    /// requests in flight. `None` when neither was.
    #[must_use]
    pub fn time_between_starts(&self, lane: LaneKey, members: &Members, now: Time) -> Option<Millis> {
        let guess = self.time_to_free(1, members).map(|gap| gap.0.saturating_mul(1_000));
        self.pace_of(lane, members, now).mean_us(guess).map(|micros| Millis(micros.div_ceil(1_000)))
    }

    /// How a lane has moved until now; that it has not while somebody was in line counts too.
    fn pace_of(&self, lane: LaneKey, members: &Members, now: Time) -> Pace {
        let (pace, last_start) = self.bands.pace(lane);
        let is_in_line = self.firsts(members).any(|(_, head)| head.lane == lane);
        let since = last_start.max(self.backlog(lane, members).oldest);
        if is_in_line { pace.after(now.since(since)) } else { pace }
    }

    /// Notes that a request starts: of which lane, under which band, from which tag. To be called when what waits from now
    /// on has been published.
    pub fn note_start(&mut self, members: &Members, lane: LaneKey, band: LaneKey, tag: u64, now: Time) {
        self.bands.serve(band, tag);
        self.bands.note_start(lane, self.is_backlogged(lane, members), now);
    }

    /// Notes of a start whether its waiter had climbed above the default lane.
    pub fn note_climbed(&mut self, had_climbed: bool) {
        self.last_starts.note(had_climbed);
    }

    /// Starts of waiters that had climbed above the default lane, of the last [`LAST_STARTS`].
    #[must_use]
    pub fn climbed_starts(&self) -> u32 {
        self.last_starts.climbed()
    }
}
