//! One VM's part in the shared count: joining, charging, releasing, being fenced.
//!
//! Everything goes through a [`Store`], so the simulation runs this very code with many VMs over one memory.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::ask::Ask;
use crate::budget::{Budgets, Rates, Spent};
use crate::decide::Rules;
use crate::directory::{Directory, Held};
use crate::endpoint::Endpoint;
use crate::keys::Keys;
use crate::ledger::{Amount, Begun, LaneKey, SubFlow, TallyKey};
use crate::members::{Holder, Members};
use crate::policy::Pool;
use crate::store::{self, Store, StoreError};
use crate::stream::StreamId;
use crate::units::{Millis, Time};
use crate::unnamed::update_at;
use crate::usage::Served;
use crate::view::ViewSummary;

mod admission;
mod aside;
mod bound;
mod claim;
mod dispatch;
mod elsewhere;
mod eviction;
mod full;
mod giving_way;
mod hold;
mod learning;
mod lease;
mod leases;
mod membership;
mod outbox;
mod overdraft;
mod picture;
mod prefill;
mod rate_wait;
mod rates;
mod reading;
mod refusals;
#[cfg(test)]
mod tests;
mod victims;
mod waiting;
mod waiting_room;
mod wake;

pub use dispatch::{GivenUp, Progress, Started};
pub use eviction::Eviction;
pub use learning::Lesson;
pub use overdraft::Overdraft;
pub use refusals::{Sent, Unserved};
pub use waiting::Joined;
pub use wake::{Note, Wake};

use learning::Learning;
use lease::{Change, Frees, Kind, Settlement};
use leases::Leases;
use membership::Membership;
use outbox::Outbox;
use picture::LastRead;
use victims::Evictions;
use waiting_room::WaitingRoom;

/// Between ticks of one VM.
pub const TICK: Millis = Millis(100);

/// Between polls of a VM in which somebody waits.
pub const POLL: Millis = Millis(5);

/// Every root of a VM ticks it; calls no further apart than this are one tick.
const SAME_TICK: Millis = Millis(89);

/// A VM whose last heartbeat is older than this asks whether it still counts before it admits. Half of what it takes
/// others to declare it dead, so nothing is admitted under an epoch that is void.
const HEARTBEAT_VALID: Millis = Millis(500);

/// Names a lease within its VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseId(u64);

/// A request that wants to start.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Stream of the request.
    pub owner: StreamId,
    /// Tokens and answers asked for.
    pub ask: Ask,
    /// What it is measured against.
    pub rules: Rules<'a>,
    /// Place of its tenant's ledger.
    pub tenant_key: &'a str,
    /// Its headers can still tell the proxy which worker to take.
    pub can_be_steered: bool,
    /// Size of its body, as far as it is known.
    pub bytes: u64,
    /// Within which the caller wants the first token.
    pub deadline: Option<Millis>,
    /// Part of its tenant's requests that it belongs to, where a header names one.
    pub sub: Option<SubFlow>,
}

/// What a request has cost, once it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Nobody said, so what was estimated.
    AsEstimated,
    /// As its answer shows; what that does not show is as estimated.
    Served(Served),
    /// No tokens: its worker did not serve it.
    Nothing,
    /// It was refused after all, which burns nothing.
    Refused,
}

impl Usage {
    /// Usage of a request whose answer is an error, given the detail that the proxy has for the cause.
    ///
    /// A worker that says no has computed nothing. One that the proxy has waited for in vain, by a timeout of its own, may have computed all
    /// of it, so that what was estimated is kept; a timeout of the request itself means that the worker never had it.
    ///
    /// ```
    /// use admission_core::vm::Usage;
    ///
    /// assert_eq!(Usage::of_error("via_upstream"), Usage::Nothing);
    /// assert_eq!(Usage::of_error("response_timeout"), Usage::AsEstimated);
    /// assert_eq!(Usage::of_error("request_overall_timeout"), Usage::Nothing);
    /// ```
    #[must_use]
    pub fn of_error(detail: &str) -> Self {
        let waited = detail.contains("timeout") && !detail.starts_with("request_");
        if waited { Self::AsEstimated } else { Self::Nothing }
    }
}

/// A request that was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// What it holds.
    pub lease: LeaseId,
    /// Where it is to go, if that is ours to say.
    pub endpoint: Option<Endpoint>,
    /// What its tenant has spent with it.
    pub spending: Spending,
}

/// What a tenant had spent of its budgets at some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spending {
    rates: Arc<Rates>,
    spent: (Spent, Spent),
}

impl Spending {
    /// How the budgets stand at a later time, if nothing else was spent.
    #[must_use]
    pub fn at(&self, now: Time) -> Budgets {
        Budgets::of(&self.rates, self.spent, now)
    }

    /// The rates of the budgets.
    #[must_use]
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Whether tokens are among the budgets.
    #[must_use]
    pub fn counts_tokens(&self) -> bool {
        self.rates.tokens.is_some()
    }
}

/// Holdings of one VM in one record under one lane: the whole, amounts by what they are tallied under, and blocks by when
/// their leases began.
type Sum = (Amount, BTreeMap<TallyKey, u64>, Vec<Begun>);

/// One VM's state; lives as long as the VM, whatever configurations come and go.
pub struct Vm {
    /// Place of the VM among those that share the count.
    membership: Membership,
    leases: Leases,
    evictions: Evictions,
    /// All that wait here.
    room: WaitingRoom,
    learning: Learning,
    outbox: Outbox,
    /// Changes of records that others were faster at, to be tried again.
    pending: Vec<Change>,
    ticked: Option<Time>,
    /// By the name of each list, as last read.
    workers: LastRead,
    served: refusals::Served,
    /// Requests that were counted in records which their tenants share, since that was last asked.
    counted_together: u64,
}

impl Vm {
    /// A VM that has joined nothing yet.
    #[must_use]
    pub fn new(keys: Keys) -> Self {
        Self {
            membership: Membership::new(keys),
            leases: Leases::default(),
            evictions: Evictions::default(),
            room: WaitingRoom::default(),
            learning: Learning::default(),
            outbox: Outbox::default(),
            pending: Vec::new(),
            ticked: None,
            workers: LastRead::default(),
            served: refusals::Served::default(),
            counted_together: 0,
        }
    }

    /// Names that the state page is to show, and the policy that this VM decides by from now on; written with the next request, not
    /// before, since configurations are also read by VMs that are thrown away.
    pub fn announce(&mut self, names: &Directory, held: Held) {
        self.membership.announce(names, held);
    }

    /// Whose holdings count, as of the last tick.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.membership.members
    }

    /// Says that this VM lives, declares dead who has been silent too long, and tries again what others were faster at.
    ///
    /// # Errors
    /// The first record that could not be read or changed; the next tick tries again.
    pub fn tick(&mut self, store: &impl Store, now: Time) -> Result<(), StoreError> {
        if self.ticked.is_some_and(|ticked| is_within(SAME_TICK, ticked, now)) {
            return Ok(());
        }
        self.ticked = Some(now);
        let observed = self.observe(store, now);
        for change in std::mem::take(&mut self.pending) {
            self.change(store, change, now);
        }
        self.count_read(store, now);
        self.room.publish_the_rest(store, &self.membership);
        self.evict_as_asked(store, now);
        self.learning.share(store);
        self.served.tick(now);
        // Why here too: a VM that gets no request has taken over a policy all the same.
        self.membership.list(store);
        observed
    }

    fn observe(&mut self, store: &impl Store, now: Time) -> Result<(), StoreError> {
        if self.membership.holder.is_some() {
            self.beat(store, now)?;
        } else {
            self.membership.look(store)?;
        }
        self.membership.fence_silent(store)
    }

    /// Joins, or makes sure that this VM still counts; refuses while something charged before a fencing is not yet
    /// charged again.
    fn ready(&mut self, store: &impl Store, now: Time) -> Result<Holder, StoreError> {
        if !self.membership.is_valid(now) {
            self.beat(store, now)?;
        }
        self.membership.list(store);
        let uncharged = self.pending.iter().find(|change| change.kind == Kind::Recharge);
        match (self.membership.holder, uncharged) {
            (Some(holder), None) => Ok(holder),
            (None, _) => Err(StoreError::Contention { key: self.membership.keys.members() }),
            (Some(_), Some(change)) => Err(StoreError::Contention { key: change.key.to_string() }),
        }
    }

    fn beat(&mut self, store: &impl Store, now: Time) -> Result<(), StoreError> {
        if let Some(holder) = self.membership.beat(store, now)? {
            self.charge_again(store, holder, now);
        }
        Ok(())
    }

    /// After a fencing nothing of what this VM holds is counted any more: charges all of it under the new epoch.
    fn charge_again(&mut self, store: &impl Store, holder: Holder, now: Time) {
        // What leases have grown by is in what they hold.
        self.pending.retain(|change| !matches!(change.kind, Kind::Recharge | Kind::Overdraft));
        let mut sums: BTreeMap<(Rc<str>, LaneKey), Sum> = BTreeMap::new();
        for (_, lease) in self.leases.iter() {
            for key in [&lease.tenant_key, &lease.pool_key] {
                let (sum, tallies, begun) = sums.entry((Rc::clone(key), lease.lane)).or_default();
                *sum = sum.plus(lease.amount);
                begun.extend(lease.begun_in(key));
                for (key, amount) in lease.tallied_in(key) {
                    let tallied = tallies.entry(key).or_default();
                    *tallied = tallied.saturating_add(amount);
                }
            }
        }
        for ((key, lane), (amount, tallies, begun)) in sums {
            let (tallies, kind, frees) = (tallies.into_iter().collect(), Kind::Recharge, Frees::Nothing);
            self.change(
                store,
                Change {
                    key,
                    holder,
                    lane,
                    amount,
                    tallies,
                    begun,
                    kind,
                    read: None,
                    budget: None,
                    frees,
                    evicted: None,
                },
                now,
            );
        }
        self.room.say_again(store, &self.membership);
    }

    /// Applies a change now, or keeps it for the next tick. Changes to one record stay in order, so that nothing is
    /// released before it has been charged. Gives how the record's budgets stand after it, if it was applied.
    fn change(&mut self, store: &impl Store, change: Change, now: Time) -> Option<(Spent, Spent)> {
        let behind = self.pending.iter().any(|earlier| earlier.key == change.key);
        let applied = if behind { None } else { self.apply(store, &change, now).ok() };
        if applied.is_none() {
            self.pending.push(change);
        }
        applied
    }

    fn apply(&mut self, store: &impl Store, change: &Change, now: Time) -> Result<(Spent, Spent), StoreError> {
        let Change { key, holder, lane, amount, tallies, begun, kind, read, budget, evicted, .. } = change;
        let members = &self.membership.members;
        let after = update_at(store, key, |ledger| {
            match *kind {
                Kind::Release(held_for) => ledger.release(members, *holder, *lane, *amount, held_for),
                Kind::Refund => ledger.refund(members, *holder, *lane, *amount),
                Kind::Recharge => ledger.charge(members, *holder, *lane, *amount),
                Kind::Overdraft => ledger.admit(members, *holder, *lane, *amount),
            }
            for (tally, amount) in tallies {
                if kind.charges() {
                    ledger.tally(members, *holder, *tally, *amount);
                } else {
                    ledger.untally(members, *holder, *tally, *amount);
                }
            }
            for begun in begun {
                if kind.charges() {
                    ledger.begin(members, *holder, *begun);
                } else {
                    ledger.unbegin(members, *holder, *begun);
                }
            }
            if let Some(read) = read {
                read.note(ledger);
            }
            if let Some(Settlement { rates, flow, charged, charged_to, right }) = budget {
                ledger.spend(rates, right.beyond(*charged), now);
                ledger.give_back(rates, charged.beyond(*right), *charged_to, now);
                if let Some(flow) = flow {
                    // Why not before it ends: what it proves to need says nothing of what it is served.
                    let served = matches!(kind, Kind::Release(_));
                    ledger.settle_flow(*flow, charged.tokens, right.tokens, served);
                }
            }
            if let Some(evicted) = evicted {
                evicted.apply(ledger, members, *holder);
            }
            let somebody_waits = !ledger.nobody_waits() || ledger.blocked(members).next().is_some();
            let spent = budget.as_ref().map(|it| ledger.spent(&it.rates)).unwrap_or_default();
            // Why in a box: a ledger is large, and the place for one would be moved with every result, mostly empty.
            Ok::<_, std::convert::Infallible>((spent, somebody_waits.then(|| Box::new(ledger.clone()))))
        })?;
        let Ok((spent, waited_for)) = after;
        if let Some(ledger) = waited_for {
            self.wake_for(store, change, &ledger, now);
        }
        Ok(spent)
    }
}

/// Whether it is so long at most since `then`. Where the clock has stepped back, nobody knows, and it counts as longer: a VM
/// that went on to wait for the time of its last heartbeat would be taken for dead by those that joined since.
fn is_within(most: Millis, then: Time, now: Time) -> bool {
    then <= now && now.since(then) <= most
}

/// Updates a record and returns what the step gave together with the record it left; `None` when the step refused.
fn changed<R: crate::record::Record + Clone, T>(
    store: &impl Store,
    key: &str,
    mut step: impl FnMut(&mut R) -> Option<T>,
) -> Result<Option<(T, R)>, StoreError> {
    let updated = store::update(store, key, |record: &mut R| match step(record) {
        Some(value) => Ok((value, record.clone())),
        None => Err(()),
    })?;
    Ok(updated.ok())
}

/// What is known of a pool's workers.
fn view_of(store: &impl Store, pool: &Pool) -> Option<ViewSummary> {
    store.read(&pool.view_key).0.and_then(|bytes| ViewSummary::decode(&bytes))
}
