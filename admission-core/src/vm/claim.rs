//! Charging two records as one.

use super::POLL;
use super::elsewhere::Elsewhere;
use super::lease::Lease;
use crate::budget::Spent;
use crate::decide::Held;
use crate::endpoint::Endpoint;
use crate::ledger::{Begun, Evictable, Flow, Ledger, Queued, Report};
use crate::members::{Holder, Members};
use crate::outcome::{Detail, Reason, Refusal, Retry};
use crate::store::{self, Store, StoreError, Version};
use crate::units::{Millis, Time, Tokens};
use crate::unnamed::update_at;

/// Charge that a lease asks for.
pub(super) struct Claim<'a> {
    lease: &'a Lease,
    flow: Flow,
    /// Waiters left in this VM after it; `None` for a request that did not wait.
    rest: Option<Rest<'a>>,
}

/// Waiters of a VM that are left when one has started.
#[derive(Clone, Copy)]
pub(super) struct Rest<'a> {
    /// All that wait for the pool.
    pub(super) report: &'a Report,
    /// Costs of those of the same tenant.
    pub(super) queued: &'a [Queued],
}

/// Time by which a waiter may start later than its rate allows and cost no more: two polls.
// Why: it cannot start at the very instant, and what each of a line is late would add up to fewer starts than the rate has.
const LATE: Millis = Millis(2 * POLL.0);

/// What starts with a claim, beside what is charged.
pub(super) enum Starts<'a> {
    /// A request.
    Request {
        /// Requests that the VM could evict after it.
        evictable: Option<&'a [Evictable]>,
        /// True for a waiter that had climbed above the default lane.
        has_climbed_far: bool,
    },
    /// Nothing: a request that has started needs more.
    Nothing,
}

/// A claim that was granted.
pub(super) struct Granted {
    /// Instants up to which the tenant's and the pool's budgets are spent with it.
    pub(super) spent: [(Spent, Spent); 2],
    pub(super) endpoint: Option<Endpoint>,
    /// The count of the last answer to a view.
    pub(super) since: u64,
    /// Prompt tokens that the pool's workers were reading already, and those that they had ever read.
    pub(super) prompts: (Tokens, u64),
}

/// A claim that was not granted.
pub(super) struct Denied {
    pub(super) refusal: Box<Refusal>,
    /// The tenant's record was charged before the pool's turned out not to allow it.
    pub(super) tenant_charged: bool,
}

impl Denied {
    fn before_charging(refusal: Refusal) -> Self {
        Self { refusal: Box::new(refusal), tenant_charged: false }
    }
}

impl<'a> Claim<'a> {
    /// Claim for all that a lease holds.
    pub(super) fn of(lease: &'a Lease, rest: Option<Rest<'a>>) -> Self {
        Self { lease, flow: lease.flow(), rest }
    }

    /// Charges the tenant and then the pool, each only if `judge` lets it on the newest of both. Both have been read before,
    /// so that what is refused, which under overload is most, writes nothing.
    pub(super) fn charge(
        &self,
        store: &impl Store,
        (members, holder): (&Members, Holder),
        (pool_seen, version): (Ledger, Version),
        starts: &Starts<'_>,
        judge: impl Fn(Held<'_>) -> Result<Option<Endpoint>, Refusal>,
        now: Time,
    ) -> Result<Granted, Denied> {
        let Lease { tenant_key, tenant_rates, pool_rates, pool_key, lane, amount, cost, .. } = self.lease;
        let failed = |error: StoreError| Denied::before_charging(contention(&error));
        let denied = |error: &StoreError| Denied { refusal: Box::new(contention(error)), tenant_charged: true };
        let late = if self.rest.is_some() { LATE } else { Millis(0) };
        let spent_at = Time(now.0.saturating_sub(late.0));
        let virtual_time = pool_seen.virtual_time(self.lease.level_key());
        let also = Elsewhere::read(store, tenant_key).map_err(failed)?;
        let (tenant_before, spent) = update_at(store, tenant_key, |tenant: &mut Ledger| {
            also.count_in(tenant, members);
            judge(Held { tenant, pool: &pool_seen, members })?;
            // Why in a box: a ledger is large, and would be moved with every result.
            let before = Box::new(tenant.clone());
            tenant.charge(members, holder, *lane, *amount);
            tenant.spend(tenant_rates, *cost, spent_at);
            if let Some(rest) = self.rest {
                tenant.publish_queued(members, holder, rest.queued);
            }
            tenant.note_rates(tenant_rates);
            match starts {
                Starts::Request { .. } => tenant.serve_flow(self.flow, virtual_time, cost.tokens),
                Starts::Nothing => tenant.settle_flow(self.flow, Tokens(0), cost.tokens, false),
            }
            Ok((before, tenant.spent(tenant_rates)))
        })
        .map_err(failed)?
        .map_err(Denied::before_charging)?;
        // Why again: another VM may have charged the other ledger since, having read this one before it was changed. The VM that reads last
        // sees both, and takes back what it has charged.
        let tenant_before = also.counted_again(store, tenant_before, members).map_err(|error| denied(&error))?;
        let tag = tenant_before.start_tag(self.flow.key, virtual_time);
        let charged = store::update_from(store, pool_key, (pool_seen, version), |pool_now: &mut Ledger| {
            let endpoint = judge(Held { tenant: &tenant_before, pool: pool_now, members })?;
            pool_now.admit(members, holder, *lane, *amount);
            pool_now.spend(pool_rates, *cost, spent_at);
            pool_now.note_rates(pool_rates);
            let prompts = self.lease.reading.map(|_| (pool_now.prompts_being_read(members), pool_now.prompts_read()));
            let begun = self.lease.begun(*amount, self.lease.bytes);
            let begun = match starts {
                Starts::Request { .. } => {
                    let worker = endpoint.as_ref().map(|endpoint| endpoint.worker);
                    Begun { since: pool_now.acknowledged(), worker, ..begun }
                }
                Starts::Nothing => begun,
            };
            pool_now.begin(members, holder, begun);
            let worker = endpoint.as_ref().map(|endpoint| endpoint.worker).or(self.lease.worker);
            for (key, amount) in self.lease.tallies_at(worker) {
                pool_now.tally(members, holder, key, amount);
            }
            if let Some(rest) = self.rest {
                pool_now.publish(members, holder, rest.report);
            }
            if let Starts::Request { evictable, has_climbed_far } = starts {
                pool_now.note_start(members, *lane, self.lease.level_key(), tag, now);
                pool_now.note_climbed(*has_climbed_far);
                if let Some(evictable) = evictable {
                    pool_now.publish_evictable(members, holder, evictable);
                }
            }
            Ok(Granted {
                spent: [spent, pool_now.spent(pool_rates)],
                endpoint,
                since: begun.since,
                prompts: prompts.unwrap_or_default(),
            })
        });
        match charged {
            Ok(Ok(granted)) => Ok(granted),
            Ok(Err(refusal)) => Err(Denied { refusal: Box::new(refusal), tenant_charged: true }),
            Err(error) => Err(denied(&error)),
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
        place: None,
    }
}
