//! One VM's part in the shared count: joining, charging, releasing, being fenced.
//!
//! Everything goes through a [`Store`], so the simulation runs this very code with many VMs over one memory.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::budget::{Rates, Standing};
use crate::decide::{Ask, Held, Rules, decide, may_grow};
use crate::directory::Directory;
use crate::keys::Keys;
use crate::ledger::{Amount, Cost, LaneKey, Ledger};
use crate::members::{Holder, Members, Observer};
use crate::outcome::Refusal;
use crate::policy::Pool;
use crate::store::{self, Store, StoreError};
use crate::units::{Millis, Time, Tokens};
use crate::view::ViewSummary;

mod claim;
#[cfg(test)]
mod tests;

use claim::{Claim, Denied, contention};

/// Between ticks of one VM.
pub const TICK: Millis = Millis(100);

/// Every root of a VM ticks it; calls that follow each other faster than this are one tick.
const TICK_AT_LEAST: Millis = Millis(90);

/// A VM whose last heartbeat is older than this asks whether it still counts before it admits. Half of what it takes
/// others to declare it dead, so nothing is admitted under an epoch that is void.
const HEARTBEAT_VALID: Millis = Millis(500);

/// Names a lease within its VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseId(u64);

/// A request that wants to start.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What it asks for.
    pub ask: Ask,
    /// What it is measured against.
    pub rules: Rules<'a>,
    /// Name of its tenant's record.
    pub tenant_key: &'a str,
    /// The lane it goes under.
    pub lane: LaneKey,
}

/// What one request holds: the same amount in its tenant's record and in its pool's.
#[derive(Clone, Debug)]
struct Lease {
    tenant_key: Rc<str>,
    pool_key: Rc<str>,
    lane: LaneKey,
    amount: Amount,
    block_size: u32,
    /// Of its tenant and of its pool, as they were when it was admitted.
    tenant_rates: Arc<Rates>,
    pool_rates: Arc<Rates>,
    /// What was spent from them.
    cost: Cost,
}

/// A change to one record that must happen, however often other writers are faster.
#[derive(Clone, Debug)]
struct Change {
    key: Rc<str>,
    holder: Holder,
    lane: LaneKey,
    amount: Amount,
    kind: Kind,
    budget: Option<Settlement>,
}

/// What a change does to budgets, beside what it does to holdings.
#[derive(Clone, Debug)]
struct Settlement {
    rates: Arc<Rates>,
    spend: Cost,
    give_back: Cost,
}

impl Settlement {
    /// From what was spent to what should have been.
    fn between(rates: &Arc<Rates>, spent: Cost, right: Cost) -> Self {
        Self { rates: Arc::clone(rates), spend: right.beyond(spent), give_back: spent.beyond(right) }
    }
}

/// What a request has cost, once it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Nobody said, so what was estimated.
    AsEstimated,
    /// So many prompt and output tokens.
    Reported(Tokens),
    /// No tokens: its worker did not serve it.
    Nothing,
    /// It was refused after all, which burns nothing.
    Refused,
}

/// A request that was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// What it holds.
    pub lease: LeaseId,
    /// How its tenant's budgets stand after it.
    pub budgets: Budgets,
}

/// How a tenant's budgets stand; absent where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    /// Requests for each minute.
    pub requests: Option<Standing>,
    /// Tokens for each minute.
    pub tokens: Option<Standing>,
}

impl Budgets {
    fn of(ledger: &Ledger, rates: &Rates, now: Time) -> Self {
        let (requests, tokens) = ledger.spent();
        Self {
            requests: rates.requests.as_ref().map(|rate| rate.standing(requests, now)),
            tokens: rates.tokens.as_ref().map(|rate| rate.standing(tokens, now)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The request has ended.
    Release,
    /// It never started, or needs less than was thought.
    Refund,
    /// It was charged under an epoch that others took for dead.
    Recharge,
}

/// One VM's state; lives as long as the VM, whatever configurations come and go.
pub struct Vm {
    keys: Keys,
    holder: Option<Holder>,
    members: Members,
    observer: Observer,
    leases: BTreeMap<LeaseId, Lease>,
    next_lease: u64,
    pending: Vec<Change>,
    beaten: Option<Time>,
    ticked: Option<Time>,
    unlisted: Directory,
}

impl Vm {
    /// A VM that has joined nothing yet.
    #[must_use]
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            holder: None,
            members: Members::default(),
            observer: Observer::default(),
            leases: BTreeMap::new(),
            next_lease: 0,
            pending: Vec::new(),
            beaten: None,
            ticked: None,
            unlisted: Directory::default(),
        }
    }

    /// Names that the state page is to show; written with the next request, not before, since configurations are also
    /// read by VMs that are thrown away.
    pub fn announce(&mut self, names: &Directory) {
        self.unlisted.add(names);
    }

    /// Whose holdings count, as of the last tick.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// Decides on a request and, if it may start, charges it to its tenant and its pool.
    ///
    /// A refusal leaves nothing behind. The two records are charged one after the other; when the pool turns out to be
    /// full only then, the tenant gets its share back.
    ///
    /// # Errors
    /// The refusal.
    pub fn admit(&mut self, store: &impl Store, request: &Request<'_>, now: Time) -> Result<Admission, Refusal> {
        let holder = self.ready(store, now).map_err(|error| contention(&error))?;
        let Request { ask, rules, tenant_key, lane } = *request;
        let (amount, cost) = (ask.amount(rules.pool.block_size), ask.cost());
        let claim = Claim { tenant_key, tenant_rates: &rules.tenant.rates, pool: rules.pool, lane, amount, cost };
        let view = view_of(store, rules.pool);
        let judge = |held: Held<'_>| decide(&ask, rules, view.as_ref(), held, now);
        let lease = Lease {
            tenant_key: tenant_key.into(),
            pool_key: Rc::from(&*rules.pool.key),
            lane,
            amount,
            block_size: rules.pool.block_size,
            tenant_rates: Arc::clone(&rules.tenant.rates),
            pool_rates: Arc::clone(&rules.pool.rates),
            cost,
        };
        match claim.charge(store, &self.members, holder, judge, now) {
            Ok(budgets) => Ok(Admission { lease: self.keep(lease), budgets }),
            Err(denied) => {
                self.undo(store, &denied, &lease, holder, now);
                Err(denied.refusal)
            }
        }
    }

    /// Sets what a lease holds to what is known now. Where it holds more than it should, the rest is given back; where it
    /// needs more, that is charged if there is room for it. A lease that has ended is left alone.
    ///
    /// # Errors
    /// There is no room; the lease is as it was.
    pub fn correct(
        &mut self,
        store: &impl Store,
        id: LeaseId,
        ask: &Ask,
        rules: Rules<'_>,
        now: Time,
    ) -> Result<(), Refusal> {
        let Some(mut lease) = self.leases.get(&id).cloned() else { return Ok(()) };
        let (before, after) = (lease.amount, ask.amount(lease.block_size));
        let cost = Cost { tokens: after.tokens, ..lease.cost };
        if after.tokens < before.tokens {
            self.change_both(store, &lease, (Kind::Refund, before.minus(after)), cost, now);
        } else if after.tokens > before.tokens {
            lease.amount = after.minus(before);
            lease.cost = cost.beyond(lease.cost);
            self.grow(store, &lease, after, rules, now)?;
        }
        if let Some(lease) = self.leases.get_mut(&id) {
            (lease.amount, lease.cost) = (after, cost);
        }
        Ok(())
    }

    /// Charges what a lease needs beyond what it holds.
    fn grow(
        &mut self,
        store: &impl Store,
        more: &Lease,
        whole: Amount,
        rules: Rules<'_>,
        now: Time,
    ) -> Result<(), Refusal> {
        let holder = self.ready(store, now).map_err(|error| contention(&error))?;
        let Lease { tenant_key, lane, amount, cost, .. } = more;
        let (lane, amount, cost) = (*lane, *amount, *cost);
        let claim = Claim { tenant_key, tenant_rates: &more.tenant_rates, pool: rules.pool, lane, amount, cost };
        let view = view_of(store, rules.pool);
        let judge = |held: Held<'_>| may_grow(amount, whole.blocks, rules, view.as_ref(), held, now);
        claim.charge(store, &self.members, holder, judge, now).map(|_| ()).map_err(|denied| {
            self.undo(store, &denied, more, holder, now);
            denied.refusal
        })
    }

    fn undo(&mut self, store: &impl Store, denied: &Denied, lease: &Lease, holder: Holder, now: Time) {
        if denied.tenant_charged {
            let Lease { tenant_key, lane, amount, tenant_rates, cost, .. } = lease.clone();
            let budget = Some(Settlement::between(&tenant_rates, cost, Cost::default()));
            self.change(store, Change { key: tenant_key, holder, lane, amount, kind: Kind::Refund, budget }, now);
        }
    }

    /// Gives back what a lease holds and settles its budgets, once; a second call does nothing.
    pub fn release(&mut self, store: &impl Store, id: LeaseId, usage: Usage, now: Time) {
        let Some(lease) = self.leases.remove(&id) else { return };
        let cost = match usage {
            Usage::AsEstimated => lease.cost,
            Usage::Reported(tokens) => Cost { tokens, ..lease.cost },
            Usage::Nothing => Cost { tokens: Tokens(0), ..lease.cost },
            Usage::Refused => Cost::default(),
        };
        self.change_both(store, &lease, (Kind::Release, lease.amount), cost, now);
    }

    /// Says that this VM lives, declares dead who has been silent too long, and tries again what others were faster at.
    ///
    /// # Errors
    /// The first record that could not be read or changed; the next tick tries again.
    pub fn tick(&mut self, store: &impl Store, now: Time) -> Result<(), StoreError> {
        if self.ticked.is_some_and(|ticked| now.since(ticked) < TICK_AT_LEAST) {
            return Ok(());
        }
        self.ticked = Some(now);
        let observed = self.observe(store, now);
        for change in std::mem::take(&mut self.pending) {
            self.change(store, change, now);
        }
        observed
    }

    fn observe(&mut self, store: &impl Store, now: Time) -> Result<(), StoreError> {
        if self.holder.is_some() {
            self.beat(store, now)?;
        } else {
            self.members = store::read(store, &self.keys.members())?.0;
        }
        let silent = self.observer.tick(&self.members);
        if !silent.is_empty() {
            let fence = |members: &mut Members| {
                members.fence(&silent);
                Some(())
            };
            if let Some(((), members)) = changed(store, &self.keys.members(), fence)? {
                self.members = members;
            }
        }
        Ok(())
    }

    /// Joins, or makes sure that this VM still counts; refuses while something charged before a fencing is not yet
    /// charged again.
    fn ready(&mut self, store: &impl Store, now: Time) -> Result<Holder, StoreError> {
        if self.beaten.is_none_or(|beaten| now.since(beaten) > HEARTBEAT_VALID) {
            self.beat(store, now)?;
        }
        self.list(store);
        let uncharged = self.pending.iter().find(|change| change.kind == Kind::Recharge);
        match (self.holder, uncharged) {
            (Some(holder), None) => Ok(holder),
            (None, _) => Err(StoreError::Contention { key: self.keys.members() }),
            (Some(_), Some(change)) => Err(StoreError::Contention { key: change.key.to_string() }),
        }
    }

    /// Adds the names to the directory, which only the state page reads: no request waits for it.
    fn list(&mut self, store: &impl Store) {
        if self.unlisted == Directory::default() {
            return;
        }
        let names = std::mem::take(&mut self.unlisted);
        let add = |all: &mut Directory| all.add(&names).then_some(()).ok_or(());
        if store::update(store, &self.keys.directory(), add).is_err() {
            self.unlisted = names;
        }
    }

    fn beat(&mut self, store: &impl Store, now: Time) -> Result<(), StoreError> {
        let key = self.keys.members();
        if let Some(holder) = self.holder
            && let Some(((), members)) =
                changed(store, &key, |members: &mut Members| members.beat(holder).then_some(()))?
        {
            self.members = members;
            self.beaten = Some(now);
            return Ok(());
        }
        let Some((holder, members)) = changed(store, &key, Members::join)? else {
            return Err(StoreError::Contention { key });
        };
        self.holder = Some(holder);
        self.members = members;
        self.beaten = Some(now);
        self.charge_again(store, holder, now);
        Ok(())
    }

    /// After a fencing nothing of what this VM holds is counted any more: charges all of it under the new epoch.
    fn charge_again(&mut self, store: &impl Store, holder: Holder, now: Time) {
        self.pending.retain(|change| change.kind != Kind::Recharge);
        let mut sums: BTreeMap<(Rc<str>, LaneKey), Amount> = BTreeMap::new();
        for lease in self.leases.values() {
            for key in [&lease.tenant_key, &lease.pool_key] {
                let sum = sums.entry((Rc::clone(key), lease.lane)).or_default();
                *sum = sum.plus(lease.amount);
            }
        }
        for ((key, lane), amount) in sums {
            self.change(store, Change { key, holder, lane, amount, kind: Kind::Recharge, budget: None }, now);
        }
    }

    fn keep(&mut self, lease: Lease) -> LeaseId {
        let id = LeaseId(self.next_lease);
        self.next_lease = self.next_lease.wrapping_add(1);
        self.leases.insert(id, lease);
        id
    }

    /// Changes what a lease holds in both records, and what it has cost to `cost`.
    fn change_both(&mut self, store: &impl Store, lease: &Lease, change: (Kind, Amount), cost: Cost, now: Time) {
        let (Some(holder), (kind, amount), lane) = (self.holder, change, lease.lane) else { return };
        // The pool first: what it frees is what others wait for.
        for (key, rates) in [(&lease.pool_key, &lease.pool_rates), (&lease.tenant_key, &lease.tenant_rates)] {
            let budget = Some(Settlement::between(rates, lease.cost, cost));
            self.change(store, Change { key: Rc::clone(key), holder, lane, amount, kind, budget }, now);
        }
    }

    /// Applies a change now, or keeps it for the next tick. Changes to one record stay in order, so that nothing is
    /// released before it has been charged.
    fn change(&mut self, store: &impl Store, change: Change, now: Time) {
        let behind = self.pending.iter().any(|earlier| earlier.key == change.key);
        if behind || self.apply(store, &change, now).is_err() {
            self.pending.push(change);
        }
    }

    fn apply(&self, store: &impl Store, change: &Change, now: Time) -> Result<(), StoreError> {
        let Change { key, holder, lane, amount, kind, budget } = change;
        let members = &self.members;
        store::update(store, key, |ledger: &mut Ledger| {
            match kind {
                Kind::Release => ledger.release(members, *holder, *lane, *amount, now),
                Kind::Refund => ledger.refund(members, *holder, *lane, *amount),
                Kind::Recharge => ledger.charge(members, *holder, *lane, *amount),
            }
            if let Some(Settlement { rates, spend, give_back }) = budget {
                ledger.spend(rates, *spend, now);
                ledger.give_back(rates, *give_back);
            }
            Ok::<(), std::convert::Infallible>(())
        })
        .map(|_| ())
    }
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
