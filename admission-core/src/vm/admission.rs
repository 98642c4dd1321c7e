//! Requests that start, are corrected and end.

use std::rc::Rc;
use std::sync::Arc;

use super::claim::{Claim, Denied, Granted, Rest, Starts, contention};
use super::lease::{Change, Evicted, Frees, Kind, LITTLE, Lease, Settlement, WHOLE_TOKEN, counted_bytes};
use super::reading::Reading;
use super::waiting::newcomer;
use super::{Admission, LeaseId, Request, Spending, Usage, Vm};
use crate::ask::Ask;
use crate::budget::{Budgets, Rates, Spent};
use crate::decide::{Held, Known, Rules, Turn, decide, may_grow};
use crate::ledger::{Amount, Cost, LaneKey, Ledger, TallyKey};
use crate::members::Holder;
use crate::outcome::Refusal;
use crate::policy::{Class, Lane};
use crate::store::{self, Store};
use crate::units::{Time, Tokens};
use crate::unnamed::ledger_at;
use crate::usage::Served;

impl Vm {
    /// The standings of a tenant's budgets; none where its record cannot be read.
    #[must_use]
    pub fn budgets(&self, store: &impl Store, tenant_key: &str, rates: &Rates, now: Time) -> Budgets {
        if *rates == Rates::default() {
            return Budgets::default();
        }
        let place = self.place_of_ledger(store, tenant_key, now);
        let ledger = place.and_then(|place| ledger_at(store, &place));
        ledger.map_or_else(|_| Budgets::default(), |ledger| Budgets::of(rates, ledger.spent(rates), now))
    }

    /// Decides on a request and, if it may start, charges it to its tenant and its pool. One that has just come stands behind
    /// whoever waits and comes first.
    ///
    /// A refusal leaves nothing behind. The two records are charged one after the other; when the pool turns out to be
    /// full only then, the tenant gets its share back.
    ///
    /// # Errors
    /// The refusal.
    pub fn admit(&mut self, store: &impl Store, request: &Request<'_>, now: Time) -> Result<Admission, Refusal> {
        let holder = self.ready(store, now).map_err(|error| contention(&error))?;
        let place = self.place_of_ledger(store, request.tenant_key, now).map_err(|error| contention(&error))?;
        let request = &Request { tenant_key: &place, ..*request };
        let turn = newcomer(self.room.queues.get(&*request.rules.pool.key), request, now);
        self.start(store, request, &turn, holder, None, now).map_err(|refusal| self.pace(store, request, refusal, now))
    }

    /// Starts a request in its turn; `rest` is who waits here from then on, if it has waited itself.
    pub(super) fn start(
        &mut self,
        store: &impl Store,
        request: &Request<'_>,
        turn: &Turn<'_>,
        holder: Holder,
        rest: Option<Rest<'_>>,
        now: Time,
    ) -> Result<Admission, Refusal> {
        let Request { ask, rules, .. } = *request;
        let picture = self.picture(store, rules.pool);
        let known = picture.known(request.can_be_steered);
        let mut lease = lease_of(request, turn.band, known, now);
        let seen = store::read::<Ledger>(store, &rules.pool.key).map_err(|error| contention(&error))?;
        let judge = |held: Held<'_>| decide(&ask, rules, turn, known, held, now);
        let evictable = lease.preemptible.then(|| self.evictions.rows_with(&lease));
        let starts = Starts::Request { evictable: evictable.as_deref(), has_climbed_far: turn.has_climbed_far };
        match Claim::of(&lease, rest).charge(store, (&self.membership.members, holder), seen, &starts, judge, now) {
            Ok(Granted { spent, endpoint, since, prompts }) => {
                lease.reading = lease.reading.map(|reading| reading.behind(prompts, known.readers()));
                lease.worker = endpoint.as_ref().map(|endpoint| endpoint.worker);
                lease.since = since;
                lease.charged_to = spent;
                self.note_place(&lease.tenant_key);
                let spending = Spending { rates: Arc::clone(&lease.tenant_rates), spent: spent[0] };
                Ok(Admission { lease: self.keep(lease), endpoint, spending })
            }
            Err(denied) => {
                self.undo(store, &denied, &lease, holder, now);
                Err(*denied.refusal)
            }
        }
    }

    /// Sets what a lease holds to what is known now. Where it holds more than it should, the rest is given back, or kept to its
    /// end if it is little; where it needs more, that is charged if there is room for it. A lease that has ended is left alone.
    /// Gives what its tenant has spent from then on, where that was changed.
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
    ) -> Result<Option<Spending>, Refusal> {
        let Some(lease) = self.leases.get(id).cloned() else { return Ok(None) };
        let mut spent = None;
        let (before, after) = (lease.amount, ask.amount(lease.block_size));
        let cost = Cost { tokens: after.tokens, ..lease.cost };
        let classes: Vec<TallyKey> = rules.classes.iter().map(|class| class.key).collect();
        let joined = rules.classes.iter().filter(|class| !lease.classes.contains(&class.key));
        let joined: Vec<Arc<Class>> = joined.cloned().collect();
        let grows = after.tokens > before.tokens || !joined.is_empty();
        if grows {
            let more = Lease {
                amount: after.minus(before),
                cost: cost.beyond(lease.cost),
                classes: joined.iter().map(|class| class.key).collect(),
                bytes: 0,
                reading: None,
                ..lease.clone()
            };
            spent = Some(self.grow(store, &more, after, Rules { classes: &joined, ..rules }, now)?);
        }
        let left: Vec<TallyKey> = lease.classes.iter().filter(|key| !classes.contains(key)).copied().collect();
        // One that is overdrawn holds more than it was charged for.
        let overdrawn = before.tokens != lease.cost.tokens;
        let spare = before.tokens.0.saturating_sub(after.tokens.0);
        self.correct_prompt(store, id, ask.prompt, now);
        if !grows && !overdrawn && left.is_empty() && spare <= before.tokens.0 / LITTLE {
            if let Some(lease) = self.leases.get_mut(id) {
                (lease.prompt, lease.output) = (ask.prompt, ask.output);
            }
            return Ok(None);
        }
        let settles = !grows && cost != lease.cost;
        if after.tokens < before.tokens || !left.is_empty() || settles {
            let less = Lease { amount: before.minus(after), classes: left, bytes: 0, reading: None, ..lease.clone() };
            // What growing has charged is paid already; only what was charged too much comes back.
            let tokens = if grows { cost.tokens.min(lease.cost.tokens) } else { cost.tokens };
            let right = Cost { tokens, ..lease.cost };
            spent = self.change_both(store, &less, Kind::Refund, right, None, now).or(spent);
        }
        if let Some(lease) = self.leases.get_mut(id) {
            let [tenant, pool] = lease.charged_to;
            let moved = |rates: &Rates, charged_to| rates.moved(charged_to, lease.cost.tokens, cost.tokens, now);
            lease.charged_to = [moved(&lease.tenant_rates, tenant), moved(&lease.pool_rates, pool)];
            (lease.amount, lease.cost, lease.classes) = (after, cost, classes);
            (lease.prompt, lease.output) = (ask.prompt, ask.output);
            let lease = lease.clone();
            self.evictions.note(&lease, id);
        }
        Ok(spent.map(|spent| Spending { rates: Arc::clone(&lease.tenant_rates), spent }))
    }

    /// Charges what a lease needs beyond what it holds; what its tenant has spent with it.
    fn grow(
        &mut self,
        store: &impl Store,
        more: &Lease,
        whole: Amount,
        rules: Rules<'_>,
        now: Time,
    ) -> Result<(Spent, Spent), Refusal> {
        let holder = self.ready(store, now).map_err(|error| contention(&error))?;
        let picture = self.picture(store, rules.pool);
        let known = picture.known(more.worker.is_some());
        let seen = store::read::<Ledger>(store, &rules.pool.key).map_err(|error| contention(&error))?;
        let judge = |held: Held<'_>| {
            may_grow(more.amount, (whole.blocks, more.worker, more.band), rules, known, held, now).map(|()| None)
        };
        let granted =
            Claim::of(more, None).charge(store, (&self.membership.members, holder), seen, &Starts::Nothing, judge, now);
        granted.map(|granted| granted.spent[0]).map_err(|denied| {
            self.undo(store, &denied, more, holder, now);
            *denied.refusal
        })
    }

    fn undo(&mut self, store: &impl Store, denied: &Denied, lease: &Lease, holder: Holder, now: Time) {
        if denied.tenant_charged {
            let Lease { tenant_key: key, lane, amount, tenant_rates, cost, lanes, .. } = lease.clone();
            let flow = Some(lease.flow());
            // Why without a bound: it was charged a moment ago.
            let charged_to = (Spent(u64::MAX), Spent(u64::MAX));
            let budget =
                Some(Settlement { rates: tenant_rates, flow, charged: cost, charged_to, right: Cost::default() });
            let (kind, frees) = (Kind::Refund, Frees::Tenant(lanes));
            let (tallies, begun) = (Vec::new(), Vec::new());
            let read = None;
            let change = Change { key, holder, lane, amount, tallies, begun, kind, read, budget, frees, evicted: None };
            self.change(store, change, now);
        }
    }

    /// Gives back what a lease holds and settles its budgets, once; a second call does nothing.
    pub fn release(&mut self, store: &impl Store, id: LeaseId, usage: Usage, now: Time) {
        let Some(mut lease) = self.leases.remove(id) else { return };
        lease.forget_what_teaches_nothing(usage);
        let cost = match usage {
            Usage::AsEstimated => lease.cost_of(&Served::default()),
            Usage::Served(served) => lease.cost_of(&served),
            Usage::Nothing => Cost { tokens: Tokens(0), ..lease.cost },
            Usage::Refused => Cost::default(),
        };
        let is_evicted = self.evictions.is_evicting(id);
        let evicted = self.evictions.forget(&lease, id).map(|evicted| {
            let gone = is_evicted.then_some((lease.since, lease.amount.blocks));
            Evicted { gone, ..evicted }
        });
        // Why no release of one that was evicted: how short it was says nothing of how long requests are served.
        let kind = if is_evicted { Kind::Refund } else { Kind::Release(now.since(lease.started)) };
        self.change_both(store, &lease, kind, cost, evicted, now);
    }

    fn keep(&mut self, lease: Lease) -> LeaseId {
        let id = self.leases.new_id();
        self.evictions.note(&lease, id);
        self.leases.keep(id, lease);
        id
    }

    /// Takes what a lease says from both records, and sets what it has cost to `cost`; what its tenant has spent then.
    fn change_both(
        &mut self,
        store: &impl Store,
        lease: &Lease,
        kind: Kind,
        cost: Cost,
        evicted: Option<Evicted>,
        now: Time,
    ) -> Option<(Spent, Spent)> {
        let (holder, amount, lane) = (self.membership.holder?, lease.amount, lease.lane);
        let change = |key: &Rc<str>, (rates, charged_to): (&Arc<Rates>, _), flow, frees, evicted| {
            let (rates, charged, right) = (Arc::clone(rates), lease.cost, cost);
            let budget = Some(Settlement { rates, flow, charged, charged_to, right });
            let (tallies, begun) = (lease.tallied_in(key).collect(), lease.begun_in(key).into_iter().collect());
            let read = lease.read_in(key, kind);
            Change { key: Rc::clone(key), holder, lane, amount, tallies, begun, kind, read, budget, frees, evicted }
        };
        let for_pool = Frees::Pool(Arc::clone(&lease.pool), Arc::clone(&lease.lanes));
        let for_tenant = Frees::Tenant(Arc::clone(&lease.lanes));
        let flow = Some(lease.flow());
        let [to_tenant, to_pool] = lease.charged_to;
        let of_pool = change(&lease.pool_key, (&lease.pool_rates, to_pool), None, for_pool, evicted);
        let of_tenant = change(&lease.tenant_key, (&lease.tenant_rates, to_tenant), flow, for_tenant, None);
        // The tenant first: whoever is woken for the pool finds what its tenant has got back.
        let spent = self.change(store, of_tenant, now);
        self.room.look_at_tenant(store, &lease.tenant_key);
        self.change(store, of_pool, now);
        spent
    }
}

fn lease_of(request: &Request<'_>, band: &Lane, known: Known<'_>, now: Time) -> Lease {
    let Request { owner, ask, rules, tenant_key, bytes, sub, .. } = *request;
    let block_size = known.block_size(rules.pool);
    // Why only there: to count prompts costs changes of the pool's record, and nothing else reads them.
    let by_worker = known.view.is_some_and(|view| view.prefill_limit.is_some());
    let lane: LaneKey = rules.lane.key;
    Lease {
        owner,
        tenant_key: tenant_key.into(),
        pool_key: Rc::from(&*rules.pool.key),
        pool: Arc::clone(rules.pool),
        lanes: Arc::clone(rules.lanes),
        lane,
        band: band.key,
        started: now,
        prompt: ask.prompt,
        output: ask.output,
        amount: ask.amount(block_size),
        block_size,
        classes: rules.classes.iter().map(|class| class.key).collect(),
        worker: None,
        since: 0,
        bytes: counted_bytes(rules.lane, bytes),
        reading: (by_worker || rules.lanes.have_goals())
            .then(|| Reading::of(&ask, rules.lane, by_worker, now))
            .flatten(),
        sample: None,
        // Why not one that has climbed: it would come back, age and be evicted again for as long as higher lanes flood.
        preemptible: rules.lane.preemptible && band.level >= rules.lane.level,
        sub,
        weight: rules.tenant.weight,
        cached_cost: rules.tenant.cached_cost.unwrap_or(WHOLE_TOKEN),
        tenant_rates: Arc::clone(&rules.tenant.rates),
        pool_rates: Arc::clone(&rules.pool.rates),
        cost: ask.cost(),
        charged_to: <[_; 2]>::default(),
    }
}
