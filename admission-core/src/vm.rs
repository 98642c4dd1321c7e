//! One VM's part in the shared count: joining, charging, releasing, being fenced.
//!
//! Everything goes through a [`Store`], so the simulation runs this very code with many VMs over one memory.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::budget::{Rates, Standing};
use crate::decide::{Ask, Held, Rules, decide};
use crate::directory::Directory;
use crate::keys::Keys;
use crate::ledger::{Amount, Cost, LaneKey, Ledger};
use crate::members::{Holder, Members, Observer};
use crate::outcome::{Detail, Reason, Refusal, Retry};
use crate::store::{self, Store, StoreError};
use crate::units::{Millis, Time, Tokens};
use crate::view::ViewSummary;

#[cfg(test)]
mod tests;

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
    /// Of its tenant, as they were when it was admitted.
    rates: Arc<Rates>,
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
    /// Nothing: its worker did not serve it.
    Nothing,
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
    /// It needs more than was thought.
    Grow,
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
        let charged = self.ready(store, now).and_then(|holder| self.charge(store, holder, request, now));
        charged.unwrap_or_else(|error| Err(contention(&error)))
    }

    /// Sets what a lease holds to what is known now, over a cap if it must be. A lease that has ended is left alone.
    pub fn correct(&mut self, store: &impl Store, id: LeaseId, ask: &Ask, now: Time) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        let (before, after) = (lease.amount, ask.amount(lease.block_size));
        lease.amount = after;
        let (kind, amount) = match after.tokens.cmp(&before.tokens) {
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Greater => (Kind::Grow, after.minus(before)),
            std::cmp::Ordering::Less => (Kind::Refund, before.minus(after)),
        };
        let cost = Cost { tokens: after.tokens, ..lease.cost };
        let budget = Settlement::between(&lease.rates, lease.cost, cost);
        lease.cost = cost;
        let lease = lease.clone();
        self.change_both(store, &lease, (kind, amount), budget, now);
    }

    /// Gives back what a lease holds and settles its budgets, once; a second call does nothing.
    pub fn release(&mut self, store: &impl Store, id: LeaseId, usage: Usage, now: Time) {
        let Some(lease) = self.leases.remove(&id) else { return };
        let tokens = match usage {
            Usage::AsEstimated => lease.cost.tokens,
            Usage::Reported(tokens) => tokens,
            Usage::Nothing => Tokens(0),
        };
        let budget = Settlement::between(&lease.rates, lease.cost, Cost { tokens, ..lease.cost });
        self.change_both(store, &lease, (Kind::Release, lease.amount), budget, now);
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
        if self.holder.is_some() {
            self.beat(store, now)?;
        } else {
            self.members = store::read(store, &self.keys.members())?.0;
        }
        let silent = self.observer.tick(&self.members);
        if !silent.is_empty() {
            self.members = changed(store, &self.keys.members(), |members: &mut Members| {
                members.fence(&silent);
                Some(())
            })?
            .map_or_else(Members::default, |((), members)| members);
        }
        for change in std::mem::take(&mut self.pending) {
            self.change(store, change, now);
        }
        Ok(())
    }

    /// Joins, or makes sure that this VM still counts; refuses while something charged before a fencing is not yet
    /// charged again.
    fn ready(&mut self, store: &impl Store, now: Time) -> Result<Holder, StoreError> {
        if self.beaten.is_none_or(|beaten| now.since(beaten) > HEARTBEAT_VALID) {
            self.beat(store, now)?;
        }
        if self.unlisted != Directory::default() {
            let names = std::mem::take(&mut self.unlisted);
            let listed = store::update(store, &self.keys.directory(), |all: &mut Directory| {
                all.add(&names).then_some(()).ok_or(())
            });
            if let Err(error) = listed {
                self.unlisted = names;
                return Err(error);
            }
        }
        let uncharged = self.pending.iter().find(|change| change.kind == Kind::Recharge);
        match (self.holder, uncharged) {
            (Some(holder), None) => Ok(holder),
            (None, _) => Err(StoreError::Contention { key: self.keys.members() }),
            (Some(_), Some(change)) => Err(StoreError::Contention { key: change.key.to_string() }),
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

    fn charge(
        &mut self,
        store: &impl Store,
        holder: Holder,
        request: &Request<'_>,
        now: Time,
    ) -> Result<Result<Admission, Refusal>, StoreError> {
        let Request { ask, rules, tenant_key, lane } = *request;
        let (amount, cost) = (ask.amount(rules.pool.block_size), ask.cost());
        let members = &self.members;
        let view = store.read(&rules.pool.view_key).0.and_then(|bytes| ViewSummary::decode(&bytes));
        let judge =
            |tenant: &Ledger, pool: &Ledger| decide(&ask, rules, view.as_ref(), Held { tenant, pool, members }, now);

        let (pool_seen, version) = store::read::<Ledger>(store, &rules.pool.key)?;
        let charged = store::update(store, tenant_key, |tenant: &mut Ledger| {
            judge(tenant, &pool_seen)?;
            let before = tenant.clone();
            tenant.charge(members, holder, lane, amount);
            tenant.spend(&rules.tenant.rates, cost, now);
            Ok((before, Budgets::of(tenant, &rules.tenant.rates, now)))
        })?;
        let (tenant_before, budgets) = match charged {
            Ok(charged) => charged,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let charged = store::update_from(store, &rules.pool.key, (pool_seen, version), |pool: &mut Ledger| {
            judge(&tenant_before, pool)?;
            pool.admit(members, holder, lane, amount);
            pool.spend(&rules.pool.rates, cost, now);
            Ok(())
        });
        let (tenant_key, rates): (Rc<str>, _) = (tenant_key.into(), Arc::clone(&rules.tenant.rates));
        let refused = match charged {
            Ok(Ok(())) => {
                let pool_key = Rc::from(&*rules.pool.key);
                let block_size = rules.pool.block_size;
                let lease = self.keep(Lease { tenant_key, pool_key, lane, amount, block_size, rates, cost });
                return Ok(Ok(Admission { lease, budgets }));
            }
            Ok(Err(refusal)) => Ok(Err(refusal)),
            Err(error) => Err(error),
        };
        let budget = Some(Settlement::between(&rates, cost, Cost::default()));
        self.change(store, Change { key: tenant_key, holder, lane, amount, kind: Kind::Refund, budget }, now);
        refused
    }

    fn keep(&mut self, lease: Lease) -> LeaseId {
        let id = LeaseId(self.next_lease);
        self.next_lease = self.next_lease.wrapping_add(1);
        self.leases.insert(id, lease);
        id
    }

    fn change_both(
        &mut self,
        store: &impl Store,
        lease: &Lease,
        (kind, amount): (Kind, Amount),
        budget: Settlement,
        now: Time,
    ) {
        let Some(holder) = self.holder else { return };
        // The pool first: what it frees is what others wait for.
        for (key, budget) in [(&lease.pool_key, None), (&lease.tenant_key, Some(budget))] {
            self.change(store, Change { key: Rc::clone(key), holder, lane: lease.lane, amount, kind, budget }, now);
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
                Kind::Grow => ledger.admit(members, *holder, *lane, *amount),
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

fn contention(error: &StoreError) -> Refusal {
    Refusal {
        reason: Reason::Contention,
        limit: None,
        detail: Detail::Text(error.to_string()),
        retry: Retry::After(Millis(0)),
    }
}
