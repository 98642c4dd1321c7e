//! One VM's part in the shared count: joining, charging, releasing, being fenced.
//!
//! Everything goes through a [`Store`], so the simulation runs this very code with many VMs over one memory.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::budget::{Rates, Spent, Standing};
use crate::decide::{Ask, Held, Known, Rules, decide, may_grow};
use crate::directory::Directory;
use crate::endpoint::Endpoint;
use crate::keys::Keys;
use crate::ledger::{Amount, Cost, LaneKey, Ledger, TallyKey};
use crate::members::{Holder, Members, Observer};
use crate::outcome::Refusal;
use crate::policy::{Class, Pool};
use crate::store::{self, Store, StoreError};
use crate::units::{Millis, Time, Tokens};
use crate::view::{ViewSummary, WorkerKey, Workers};

mod claim;
mod lease;
#[cfg(test)]
mod tests;

use claim::{Denied, Granted, contention};
use lease::{Change, Kind, Lease, Settlement};

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
    /// Its headers can still tell the proxy which worker to take.
    pub can_be_steered: bool,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// What it holds.
    pub lease: LeaseId,
    /// Where it is to go, if that is ours to say.
    pub endpoint: Option<Endpoint>,
    /// What its tenant has spent with it.
    pub spending: Spending,
}

/// How a tenant's budgets stand; absent where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    /// Requests for each minute.
    pub requests: Option<Standing>,
    /// Tokens for each minute.
    pub tokens: Option<Standing>,
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
        let (requests, tokens) = self.spent;
        Budgets {
            requests: self.rates.requests.as_ref().map(|rate| rate.standing(requests, now)),
            tokens: self.rates.tokens.as_ref().map(|rate| rate.standing(tokens, now)),
        }
    }

    /// Whether tokens are among the budgets.
    #[must_use]
    pub fn counts_tokens(&self) -> bool {
        self.rates.tokens.is_some()
    }
}

/// Of what one VM holds in one record under one lane: all of it, and requests by what they are tallied under.
type Sum = (Amount, BTreeMap<TallyKey, u64>);

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
    /// By the name of each list, as last read.
    workers: BTreeMap<Arc<str>, Rc<Workers>>,
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
            workers: BTreeMap::new(),
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
        let Request { ask, rules, tenant_key, can_be_steered } = *request;
        let view = view_of(store, rules.pool);
        let workers = view.as_ref().filter(|_| rules.pool.pick_endpoint && can_be_steered);
        let workers = workers.and_then(|view| self.workers(store, rules.pool, view));
        let known = Known { view: view.as_ref(), workers: workers.as_deref() };
        let mut lease = Lease {
            tenant_key: tenant_key.into(),
            pool_key: Rc::from(&*rules.pool.key),
            lane: rules.lane.key,
            amount: ask.amount(rules.pool.block_size),
            block_size: rules.pool.block_size,
            classes: rules.classes.iter().map(|class| class.key).collect(),
            worker: None,
            weight: rules.tenant.weight,
            tenant_rates: Arc::clone(&rules.tenant.rates),
            pool_rates: Arc::clone(&rules.pool.rates),
            cost: ask.cost(),
        };
        let judge = |held: Held<'_>| decide(&ask, rules, known, held, now);
        match lease.claim(rules.pool).charge(store, &self.members, holder, judge, now) {
            Ok(Granted { spent, endpoint }) => {
                lease.worker = endpoint.as_ref().map(|endpoint| endpoint.worker);
                let spending = Spending { rates: Arc::clone(&lease.tenant_rates), spent };
                Ok(Admission { lease: self.keep(lease), endpoint, spending })
            }
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
        let Some(lease) = self.leases.get(&id).cloned() else { return Ok(()) };
        let (before, after) = (lease.amount, ask.amount(lease.block_size));
        let cost = Cost { tokens: after.tokens, ..lease.cost };
        let classes: Vec<TallyKey> = rules.classes.iter().map(|class| class.key).collect();
        let joined = rules.classes.iter().filter(|class| !lease.classes.contains(&class.key));
        let joined: Vec<Arc<Class>> = joined.cloned().collect();
        if after.tokens > before.tokens || !joined.is_empty() {
            let more = Lease {
                amount: after.minus(before),
                cost: cost.beyond(lease.cost),
                classes: joined.iter().map(|class| class.key).collect(),
                ..lease.clone()
            };
            self.grow(store, &more, after, Rules { classes: &joined, ..rules }, now)?;
        }
        let left: Vec<TallyKey> = lease.classes.iter().filter(|key| !classes.contains(key)).copied().collect();
        if after.tokens < before.tokens || !left.is_empty() {
            let less = Lease { amount: before.minus(after), classes: left, worker: None, ..lease.clone() };
            // What growing has charged is paid already; only what was charged too much comes back.
            let right = Cost { tokens: cost.tokens.min(lease.cost.tokens), ..lease.cost };
            self.change_both(store, &less, Kind::Refund, right, now);
        }
        if let Some(lease) = self.leases.get_mut(&id) {
            (lease.amount, lease.cost, lease.classes) = (after, cost, classes);
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
        let view = view_of(store, rules.pool);
        let known = Known { view: view.as_ref(), workers: None };
        let judge = |held: Held<'_>| may_grow(more.amount, whole.blocks, rules, known, held, now).map(|()| None);
        let granted = more.claim(rules.pool).charge(store, &self.members, holder, judge, now);
        granted.map(|_| ()).map_err(|denied| {
            self.undo(store, &denied, more, holder, now);
            denied.refusal
        })
    }

    fn undo(&mut self, store: &impl Store, denied: &Denied, lease: &Lease, holder: Holder, now: Time) {
        if denied.tenant_charged {
            let Lease { tenant_key: key, lane, amount, tenant_rates, weight, cost, .. } = lease.clone();
            let budget = Some(Settlement::between(&tenant_rates, Some(weight), cost, Cost::default()));
            let tallies = Vec::new();
            self.change(store, Change { key, holder, lane, amount, tallies, kind: Kind::Refund, budget }, now);
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
        self.change_both(store, &lease, Kind::Release, cost, now);
    }

    /// Notes that a worker has refused what it was sent: it counts as busy until the next view, or for a second. One
    /// that the view does not call free is left as it is; so is the record when others are faster, since the next refusal
    /// says it again.
    pub fn mark(&mut self, store: &impl Store, pool: &Pool, address: &str, now: Time) {
        let Some(view) = view_of(store, pool) else { return };
        if self.workers(store, pool, &view).is_some_and(|workers| workers.is_free(address)) {
            let marked = store::update(store, &pool.key, |ledger: &mut Ledger| {
                ledger.mark(WorkerKey::of(address), view.stamp(), now);
                Ok::<(), std::convert::Infallible>(())
            });
            drop(marked);
        }
    }

    /// The pool's workers as that view lists them, or a later one of the same sidecar, whose summary is about to follow.
    fn workers(&mut self, store: &impl Store, pool: &Pool, view: &ViewSummary) -> Option<Rc<Workers>> {
        let current = self.workers.get(&pool.workers_key).filter(|workers| workers.stamp() == view.stamp());
        if current.is_none() {
            let read = Workers::decode(&store.read(&pool.workers_key).0?)?;
            self.workers.insert(Arc::clone(&pool.workers_key), Rc::new(read));
        }
        let usable = |workers: &&Rc<Workers>| workers.epoch == view.epoch && workers.generation >= view.generation;
        self.workers.get(&pool.workers_key).filter(usable).cloned()
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
        let mut sums: BTreeMap<(Rc<str>, LaneKey), Sum> = BTreeMap::new();
        for lease in self.leases.values() {
            for key in [&lease.tenant_key, &lease.pool_key] {
                let (sum, tallies) = sums.entry((Rc::clone(key), lease.lane)).or_default();
                *sum = sum.plus(lease.amount);
                for key in lease.tallied_in(key) {
                    let requests = tallies.entry(key).or_default();
                    *requests = requests.saturating_add(1);
                }
            }
        }
        for ((key, lane), (amount, tallies)) in sums {
            let (tallies, kind) = (tallies.into_iter().collect(), Kind::Recharge);
            self.change(store, Change { key, holder, lane, amount, tallies, kind, budget: None }, now);
        }
    }

    fn keep(&mut self, lease: Lease) -> LeaseId {
        let id = LeaseId(self.next_lease);
        self.next_lease = self.next_lease.wrapping_add(1);
        self.leases.insert(id, lease);
        id
    }

    /// Takes what a lease says from both records, and sets what it has cost to `cost`.
    fn change_both(&mut self, store: &impl Store, lease: &Lease, kind: Kind, cost: Cost, now: Time) {
        let (Some(holder), amount, lane) = (self.holder, lease.amount, lease.lane) else { return };
        // The pool first: what it frees is what others wait for.
        let pool = (&lease.pool_key, &lease.pool_rates, None);
        for (key, rates, weight) in [pool, (&lease.tenant_key, &lease.tenant_rates, Some(lease.weight))] {
            let budget = Some(Settlement::between(rates, weight, lease.cost, cost));
            let tallies = lease.tallied_in(key).map(|key| (key, 1)).collect();
            self.change(store, Change { key: Rc::clone(key), holder, lane, amount, tallies, kind, budget }, now);
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
        let Change { key, holder, lane, amount, tallies, kind, budget } = change;
        let members = &self.members;
        store::update(store, key, |ledger: &mut Ledger| {
            match kind {
                Kind::Release => ledger.release(members, *holder, *lane, *amount, now),
                Kind::Refund => ledger.refund(members, *holder, *lane, *amount),
                Kind::Recharge => ledger.charge(members, *holder, *lane, *amount),
            }
            for (tally, requests) in tallies {
                match kind {
                    Kind::Release | Kind::Refund => ledger.untally(members, *holder, *tally, *requests),
                    Kind::Recharge => ledger.tally(members, *holder, *tally, *requests),
                }
            }
            if let Some(Settlement { rates, weight, spend, give_back }) = budget {
                ledger.spend(rates, *spend, now);
                ledger.give_back(rates, *give_back);
                if let Some(weight) = weight {
                    ledger.weigh(*weight, give_back.tokens, spend.tokens);
                }
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
