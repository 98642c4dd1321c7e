//! What requests hold, and the changes to records that follow from it.

use std::rc::Rc;
use std::sync::Arc;

use super::claim::Claim;
use crate::budget::Rates;
use crate::ledger::{Amount, Cost, LaneKey, TallyKey};
use crate::members::Holder;
use crate::policy::Pool;

/// What one request holds: the same amount in its tenant's record and in its pool's.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) tenant_key: Rc<str>,
    pub(super) pool_key: Rc<str>,
    pub(super) lane: LaneKey,
    pub(super) amount: Amount,
    pub(super) block_size: u32,
    /// Of its pool, that it is counted in.
    pub(super) classes: Vec<TallyKey>,
    /// That it was steered to.
    pub(super) worker: Option<TallyKey>,
    pub(super) weight: u32,
    /// Of its tenant and of its pool, as they were when it was admitted.
    pub(super) tenant_rates: Arc<Rates>,
    pub(super) pool_rates: Arc<Rates>,
    /// What was spent from them.
    pub(super) cost: Cost,
}

impl Lease {
    pub(super) fn claim<'a>(&'a self, pool: &'a Pool) -> Claim<'a> {
        Claim {
            tenant_key: &self.tenant_key,
            tenant_rates: &self.tenant_rates,
            weight: self.weight,
            pool,
            lane: self.lane,
            amount: self.amount,
            cost: self.cost,
            classes: &self.classes,
        }
    }

    /// What it is tallied under in a record: only its pool's has tallies.
    pub(super) fn tallied_in(&self, record: &Rc<str>) -> impl Iterator<Item = TallyKey> {
        let here = *record == self.pool_key;
        self.classes.iter().copied().chain(self.worker).filter(move |_| here)
    }
}

/// A change to one record that must happen, however often other writers are faster.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) key: Rc<str>,
    pub(super) holder: Holder,
    pub(super) lane: LaneKey,
    pub(super) amount: Amount,
    /// Requests by what they are tallied under.
    pub(super) tallies: Vec<(TallyKey, u64)>,
    pub(super) kind: Kind,
    pub(super) budget: Option<Settlement>,
}

/// What a change does to budgets and to the fair tag, beside what it does to holdings.
#[derive(Clone, Debug)]
pub(super) struct Settlement {
    pub(super) rates: Arc<Rates>,
    /// Of the tenant; a pool has none.
    pub(super) weight: Option<u32>,
    pub(super) spend: Cost,
    pub(super) give_back: Cost,
}

impl Settlement {
    /// From what was spent to what should have been.
    pub(super) fn between(rates: &Arc<Rates>, weight: Option<u32>, spent: Cost, right: Cost) -> Self {
        Self { rates: Arc::clone(rates), weight, spend: right.beyond(spent), give_back: spent.beyond(right) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The request has ended.
    Release,
    /// It never started, or needs less than was thought.
    Refund,
    /// It was charged under an epoch that others took for dead.
    Recharge,
}
