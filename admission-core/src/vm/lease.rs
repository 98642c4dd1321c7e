//! What requests hold, and the changes to records that follow from it.

use std::rc::Rc;
use std::sync::Arc;

use super::reading::{Read, Reading};
use crate::ask::MOST_TOKENS;
use crate::budget::{Rates, Spent};
use crate::ledger::{Amount, Begun, Cost, Evictable, Flow, FlowKey, LaneKey, Ledger, SubFlow, TallyKey};
use crate::members::{Holder, Members};
use crate::policy::{BudgetUnit, Lane, Lanes, Pool};
use crate::stream::StreamId;
use crate::units::{Blocks, Millis, Time, Tokens};
use crate::usage::Served;

/// Divisor of what a lease holds: a change by no more than that part of it is not worth two updates of shared records before its end.
pub(super) const LITTLE: u64 = 8;

/// A token in thousandths.
pub(super) const WHOLE_TOKEN: u32 = 1_000;

/// What one request holds: the same amount in its tenant's record and in its pool's.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) owner: StreamId,
    pub(super) tenant_key: Rc<str>,
    pub(super) pool_key: Rc<str>,
    pub(super) pool: Arc<Pool>,
    pub(super) lanes: Arc<Lanes>,
    pub(super) lane: LaneKey,
    /// The lane it counted as when it started.
    pub(super) band: LaneKey,
    pub(super) started: Time,
    /// Of what it holds, expected of its prompt and of its answer.
    pub(super) prompt: Tokens,
    pub(super) output: Tokens,
    pub(super) amount: Amount,
    /// Tokens in a block of its amount.
    pub(super) block_size: u32,
    /// Of its pool, that it is counted in.
    pub(super) classes: Vec<TallyKey>,
    /// Worker that it was steered to.
    pub(super) worker: Option<TallyKey>,
    /// The count of the last answer to a view before it began.
    pub(super) since: u64,
    /// Of its body; 0 where its lane does not count them.
    pub(super) bytes: u64,
    /// Prompt, until its answer begins; `None` where neither a lane's goal nor a threshold asks for it.
    pub(super) reading: Option<Reading>,
    /// Time that its prompt was read in, and tokens that its worker has read in it, once its answer has begun.
    pub(super) sample: Option<(Tokens, Millis)>,
    /// True until its answer begins, where it may be evicted.
    pub(super) preemptible: bool,
    /// Part of its tenant's requests that it is charged to, where a header names one.
    pub(super) sub: Option<SubFlow>,
    pub(super) weight: u32,
    /// Thousandths of a token that a cached prompt token costs.
    pub(super) cached_cost: u32,
    /// Of its tenant and of its pool, as they were when it was admitted.
    pub(super) tenant_rates: Arc<Rates>,
    pub(super) pool_rates: Arc<Rates>,
    /// What was spent from them.
    pub(super) cost: Cost,
    /// Instants up to which the tenant's and the pool's budgets were spent with that.
    pub(super) charged_to: [(Spent, Spent); 2],
}

impl Lease {
    pub(super) fn flow(&self) -> Flow {
        let key = FlowKey::of(&self.pool_key, self.level_key());
        Flow { key, sub: self.sub, weight: self.weight }
    }

    /// Key of the level of the lane it counted as when it started, see [`Lane::level`](crate::policy::Lane::level).
    pub(super) fn level_key(&self) -> LaneKey {
        self.lanes.at(self.lanes.position_of(self.band)).level_key
    }

    /// What it costs with an answer that shows this.
    pub(super) fn cost_of(&self, served: &Served) -> Cost {
        let prompt = served.prompt.unwrap_or(self.prompt).0;
        let cached = served.cached.0.min(prompt);
        let of_cached = cached.saturating_mul(u64::from(self.cached_cost)).div_ceil(u64::from(WHOLE_TOKEN));
        let prompt = Tokens(prompt.saturating_sub(cached).saturating_add(of_cached));
        Cost { tokens: prompt.plus(served.output.unwrap_or(self.output)).min(MOST_TOKENS), ..self.cost }
    }

    /// Row of the lease in its pool's record; its tenant's has none.
    pub(super) fn begun_in(&self, record: &Rc<str>) -> Option<Begun> {
        (*record == self.pool_key).then(|| self.begun(self.amount, self.bytes))
    }

    pub(super) fn begun(&self, amount: Amount, bytes: u64) -> Begun {
        let Amount { tokens, blocks, .. } = amount;
        Begun { since: self.since, blocks, tokens, bytes, worker: self.worker }
    }

    /// What it is tallied under in a record: only its pool's has tallies.
    pub(super) fn tallied_in(&self, record: &Rc<str>) -> impl Iterator<Item = (TallyKey, u64)> {
        let here = *record == self.pool_key;
        self.tallies().filter(move |_| here)
    }

    pub(super) fn tallies(&self) -> impl Iterator<Item = (TallyKey, u64)> {
        self.tallies_at(self.worker)
    }

    /// The same where it is steered to that worker.
    pub(super) fn tallies_at(&self, worker: Option<TallyKey>) -> impl Iterator<Item = (TallyKey, u64)> {
        let bytes = (self.bytes > 0).then(|| (TallyKey::bytes_of(self.lane), self.bytes));
        let prompt = self.reading.into_iter().flat_map(move |reading| reading.tallies(worker));
        // Why not always: what a lease needs more or less is no further request at its worker.
        let worker = worker.filter(|_| self.amount.requests > 0);
        self.classes.iter().copied().chain(worker).map(|key| (key, 1)).chain(bytes).chain(prompt)
    }
}

/// Bytes of a body that a lane counts.
pub(super) fn counted_bytes(lane: &Lane, bytes: u64) -> u64 {
    let counts = lane.dispatch_budget.as_ref().is_some_and(|budget| budget.unit == BudgetUnit::Bytes);
    if counts { bytes } else { 0 }
}

/// A change to one record that must happen, however often other writers are faster.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) key: Rc<str>,
    pub(super) holder: Holder,
    pub(super) lane: LaneKey,
    pub(super) amount: Amount,
    /// Amounts by what they are tallied under.
    pub(super) tallies: Vec<(TallyKey, u64)>,
    /// Blocks by when their leases began; of a pool.
    pub(super) begun: Vec<Begun>,
    pub(super) kind: Kind,
    /// Prompt of a pool's record that has been read.
    pub(super) read: Option<Read>,
    pub(super) budget: Option<Settlement>,
    /// Who may have waited for what it gives back.
    pub(super) frees: Frees,
    /// Of a pool, what could be evicted from then on, if that changes.
    pub(super) evicted: Option<Evicted>,
}

/// A change of what a VM could evict, or is about to.
#[derive(Clone, Debug)]
pub(super) struct Evicted {
    /// What it could evict from then on.
    pub(super) lanes: Vec<Evictable>,
    /// The part of what it was asked for that `given` replaces.
    pub(super) asked: Amount,
    /// What it is still to evict of that.
    pub(super) given: Amount,
    /// The count of the last answer to a view before the lease began, and its blocks; of a request that has ended since it was evicted.
    pub(super) gone: Option<(u64, Blocks)>,
}

impl Evicted {
    pub(super) fn apply(&self, ledger: &mut Ledger, members: &Members, holder: Holder) {
        ledger.publish_evictable(members, holder, &self.lanes);
        let before = ledger.asked_of(holder);
        // Why nothing then: there is nothing left that it could give.
        let after = if self.lanes.is_empty() { Amount::default() } else { before.plus(self.given).minus(self.asked) };
        if after != before {
            ledger.ask_of(members, holder, after);
        }
        if let Some((began, blocks)) = self.gone {
            ledger.note_evicted(began, blocks);
        }
    }
}

/// For whom a change frees something.
#[derive(Clone, Debug)]
pub(super) enum Frees {
    /// For nobody.
    Nothing,
    /// For those that wait for the pool.
    Pool(Arc<Pool>, Arc<Lanes>),
    /// For those that wait for the tenant's own caps.
    Tenant(Arc<Lanes>),
}

/// What a change does to budgets and to the fair tag, beside what it does to holdings.
#[derive(Clone, Debug)]
pub(super) struct Settlement {
    pub(super) rates: Arc<Rates>,
    /// Flow of the tenant; a pool has none.
    pub(super) flow: Option<Flow>,
    /// Cost that was charged when the request started.
    pub(super) charged: Cost,
    /// Instants up to which the budgets were spent then.
    pub(super) charged_to: (Spent, Spent),
    /// Cost that should have been.
    pub(super) right: Cost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The request has ended, after this time.
    Release(Millis),
    /// It never started, was evicted, or needs less than was thought.
    Refund,
    /// It was charged under an epoch that others took for dead.
    Recharge,
    /// Its answer is longer than was thought.
    Overdraft,
}

impl Kind {
    /// True for a change that adds to a record.
    pub(super) const fn charges(self) -> bool {
        matches!(self, Self::Recharge | Self::Overdraft)
    }
}
