//! Charging two records as one.

use crate::budget::{Rates, Spent};
use crate::decide::Held;
use crate::endpoint::Endpoint;
use crate::ledger::{Amount, Cost, LaneKey, Ledger, TallyKey};
use crate::members::{Holder, Members};
use crate::outcome::{Detail, Reason, Refusal, Retry};
use crate::policy::Pool;
use crate::store::{self, Store, StoreError};
use crate::units::{Millis, Time, Tokens};

/// What a request is to be charged.
pub(super) struct Claim<'a> {
    pub(super) tenant_key: &'a str,
    pub(super) tenant_rates: &'a Rates,
    pub(super) weight: u32,
    pub(super) pool: &'a Pool,
    pub(super) lane: LaneKey,
    pub(super) amount: Amount,
    pub(super) cost: Cost,
    pub(super) classes: &'a [TallyKey],
}

/// A claim that was granted.
pub(super) struct Granted {
    pub(super) spent: (Spent, Spent),
    pub(super) endpoint: Option<Endpoint>,
}

/// A claim that was not granted.
pub(super) struct Denied {
    pub(super) refusal: Refusal,
    /// The tenant's record was charged before the pool's turned out not to allow it.
    pub(super) tenant_charged: bool,
}

impl Denied {
    fn before_charging(refusal: Refusal) -> Self {
        Self { refusal, tenant_charged: false }
    }
}

impl Claim<'_> {
    /// Charges the tenant and then the pool, each only if `judge` lets it on the newest of both. Both are read first, so
    /// that what is refused, which under overload is most, writes nothing.
    pub(super) fn charge(
        &self,
        store: &impl Store,
        members: &Members,
        holder: Holder,
        judge: impl Fn(Held<'_>) -> Result<Option<Endpoint>, Refusal>,
        now: Time,
    ) -> Result<Granted, Denied> {
        let Self { tenant_key, tenant_rates, weight, pool, lane, amount, cost, classes } = *self;
        let failed = |error: StoreError| Denied::before_charging(contention(&error));
        let (pool_seen, version) = store::read::<Ledger>(store, &pool.key).map_err(failed)?;
        let (tenant_before, spent) = store::update(store, tenant_key, |tenant: &mut Ledger| {
            judge(Held { tenant, pool: &pool_seen, members })?;
            let before = tenant.clone();
            tenant.charge(members, holder, lane, amount);
            tenant.spend(tenant_rates, cost, now);
            tenant.weigh(weight, Tokens(0), cost.tokens);
            Ok((before, tenant.spent()))
        })
        .map_err(failed)?
        .map_err(Denied::before_charging)?;
        let charged = store::update_from(store, &pool.key, (pool_seen, version), |pool_now: &mut Ledger| {
            let endpoint = judge(Held { tenant: &tenant_before, pool: pool_now, members })?;
            pool_now.admit(members, holder, lane, amount);
            pool_now.spend(&pool.rates, cost, now);
            for key in classes.iter().copied().chain(endpoint.as_ref().map(|endpoint| endpoint.worker)) {
                pool_now.tally(members, holder, key, 1);
            }
            Ok(endpoint)
        });
        match charged {
            Ok(Ok(endpoint)) => Ok(Granted { spent, endpoint }),
            Ok(Err(refusal)) => Err(Denied { refusal, tenant_charged: true }),
            Err(error) => Err(Denied { refusal: contention(&error), tenant_charged: true }),
        }
    }
}

/// The refusal of a request that could not be counted.
pub(super) fn contention(error: &StoreError) -> Refusal {
    Refusal {
        reason: Reason::Contention,
        limit: None,
        detail: Detail::Text(error.to_string()),
        retry: Retry::After(Millis(0)),
    }
}
