//! The reference: two lists, who runs and who waits, and what must be true of them after every step.
//!
//! It knows nothing of tickets, wake-ups or fair tags. What "could start" means it works out by itself from the numbers in the
//! configuration; how much is held where that matters to a decision it reads from the shared records, whose truth is an
//! invariant of its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use serde_json::Value;

use crate::ledger::Amount;
use crate::units::Time;
use crate::view::{ViewSummary, WorkerKey, Workers};
use crate::vm::{POLL, TICK};

use super::clients::RequestId;

pub(super) mod books;
mod bounds;
mod order;
mod reserve;
mod rules;
mod steering;
mod unseen;

use books::Sight;
use rules::Rules;

/// Milliseconds between two polls of a VM in which somebody waits.
const POLL_MS: u64 = POLL.0;

/// Milliseconds within which what a dead VM held is void: ten ticks of another, each at most 100 ms and a bit after the one
/// before, and two in which the fencing may lose to other writers.
const VOID_WITHIN_MS: u64 = 1_300;

/// What is known of a request.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) vm: usize,
    /// Which of the policies it is held to.
    pub(super) policy: usize,
    pub(super) tenant: &'static str,
    /// Key that parts its tenant's requests, where there is one.
    pub(super) key: Option<&'static str>,
    /// Position of its lane, the highest being 0.
    pub(super) lane: usize,
    pub(super) amount: Amount,
    pub(super) can_be_steered: bool,
    /// Worker that it was steered to.
    pub(super) worker: Option<WorkerKey>,
    pub(super) arrived: Time,
    /// The client's own deadline for the first token.
    pub(super) deadline: Option<Time>,
}

/// What a step did, in order.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Joins(RequestId, Facts),
    Starts(RequestId, Facts),
    /// It goes on waiting, held to another policy.
    Renews(RequestId, Facts),
    /// Out of the queue without having started.
    Quits(RequestId),
    Ends(RequestId),
}

/// How a VM is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Able,
    Stalled,
    Dead,
}

/// The model.
pub(super) struct Reference {
    /// Of each policy.
    rules: Vec<Rules>,
    /// The policy that all who wait are held to.
    policy: usize,
    running: BTreeMap<RequestId, Facts>,
    waiting: BTreeMap<RequestId, Facts>,
    health: Vec<Health>,
    /// Held by a VM when others took it for dead: by so much a cap may be exceeded.
    excused: BTreeSet<RequestId>,
    /// Others take this VM for dead in the middle of the call that is taken note of.
    fenced_within: Option<usize>,
    /// As of the step before: what was decided in the middle of a step may go by it.
    view_before: Option<ViewSummary>,
    workers_before: Option<Rc<Workers>>,
    demand_before: u64,
    /// Blocks ever admitted.
    admitted_blocks: u64,
    /// Requests ever evicted, by the record.
    evicted: u64,
    /// So many may wait, as they did when a VM last did not run.
    may_wait: usize,
    /// Start of the time in which more wait than the pool allows.
    too_many_since: Option<Time>,
    /// Requests that have ended.
    ended: u64,
    /// Requests ever admitted, and evicted again; and each running request with what that was once it had started.
    admitted: u64,
    admitted_at: BTreeMap<RequestId, u64>,
    /// When some waiter of a tenant was last held up by the tenant's caps.
    held_up_at: BTreeMap<&'static str, Time>,
    /// Until when records may lag behind what happened, because something went wrong.
    troubled_until: Time,
    /// Until when a VM may be late, because its writes were made to fail.
    hindered_until: Time,
    /// Until when some may be held to another policy than others.
    mixed_until: Time,
    /// Since when somebody could start and nobody has.
    idle_since: Option<Time>,
    /// When a VM last fell silent or came back.
    able_since: Time,
    /// When the holdings and the places in line of the VM that died last are void.
    void_by: Time,
    /// Whose holdings count, and until when VMs may still think otherwise.
    epochs: Vec<u64>,
    disagree_until: Time,
    /// As of the step before.
    asked_to_evict: Amount,
    /// The last hundred starts, the newest first; true for a request that had climbed above the default lane.
    last_starts: VecDeque<bool>,
    /// Starts that have passed an older request of their own tenant and lane in another VM.
    pub(super) overtakings: u64,
}

impl Reference {
    pub(super) fn new(policy: &Value, next: Option<&Value>, vms: usize) -> Self {
        Self {
            rules: [Some(policy), next].into_iter().flatten().map(Rules::of).collect(),
            policy: 0,
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            health: vec![Health::Able; vms],
            excused: BTreeSet::new(),
            fenced_within: None,
            view_before: None,
            workers_before: None,
            demand_before: 0,
            admitted_blocks: 0,
            admitted: 0,
            evicted: 0,
            ended: 0,
            may_wait: 0,
            too_many_since: None,
            admitted_at: BTreeMap::new(),
            held_up_at: BTreeMap::new(),
            troubled_until: Time(0),
            hindered_until: Time(0),
            mixed_until: Time(0),
            idle_since: None,
            able_since: Time(0),
            void_by: Time(0),
            epochs: Vec::new(),
            disagree_until: Time(0),
            asked_to_evict: Amount::default(),
            last_starts: VecDeque::new(),
            overtakings: 0,
        }
    }

    pub(super) fn lane(&self, name: &str) -> Option<usize> {
        self.rules().lanes.iter().position(|lane| lane.name == name)
    }

    /// Of the policy that all who wait are held to.
    fn rules(&self) -> &Rules {
        &self.rules[self.policy]
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// A VM falls silent, comes back, or is gone with all its requests.
    pub(super) fn health(&mut self, vm: usize, health: Health, now: Time) {
        // Who is silent declares nobody dead, and who comes back begins to watch.
        let watched = now > self.void_by && self.health.contains(&Health::Able);
        if health == Health::Dead || !watched {
            self.void_by = Time(now.0 + VOID_WITHIN_MS);
        }
        if health == Health::Dead {
            self.running.retain(|_, facts| facts.vm != vm);
            self.waiting.retain(|_, facts| facts.vm != vm);
        }
        self.health[vm] = health;
        self.able_since = now;
        self.troubled_until = Time(now.0 + VOID_WITHIN_MS);
        self.idle_since = None;
    }

    /// Writes are made to fail until somebody gives up: what they would have said is said again with the next tick.
    pub(super) fn hinder(&mut self, now: Time) {
        self.hindered_until = self.hindered_until.max(Time(now.0 + 2 * TICK.0 + 10));
        self.troubled_until = self.troubled_until.max(self.hindered_until);
        self.disagree_until = self.disagree_until.max(self.hindered_until);
    }

    /// Others take a VM for dead that lives: what it holds counts again only once it has found out.
    pub(super) fn fenced(&mut self, vm: usize, now: Time) {
        self.excused.extend(self.running.iter().filter(|(_, facts)| facts.vm == vm).map(|(id, _)| *id));
        self.troubled_until = self.troubled_until.max(Time(now.0 + VOID_WITHIN_MS));
    }

    /// In a call whose effects come next others take the VM for dead: what it starts in that call is what it held then.
    pub(super) fn fenced_within(&mut self, vm: usize) {
        self.fenced_within = Some(vm);
    }

    pub(super) fn fenced_within_no_more(&mut self) {
        self.fenced_within = None;
    }

    /// A VM has died in the middle of a call: only the books know whether it had let somebody in.
    pub(super) fn has_died_within(&mut self, sight: &Sight) {
        (self.admitted, self.evicted) = (sight.admitted.requests + sight.evicted, sight.evicted);
        self.admitted_blocks = sight.admitted.blocks;
        self.last_starts.clear();
    }

    /// The clock that all VMs read steps. What is measured here in their ticks goes on as before.
    pub(super) fn clock_steps(&mut self, ms: i64, now: Time) {
        let own = [&mut self.troubled_until, &mut self.hindered_until, &mut self.void_by, &mut self.disagree_until];
        for at in own.into_iter().chain(&mut self.idle_since).chain(self.held_up_at.values_mut()) {
            at.0 = at.0.saturating_add_signed(ms);
        }
        // Whose time is up at once, or who climbs at once, is told so and put into its place with the next poll; who had climbed
        // by a time that is still to come stays there.
        self.able_since = now;
        self.disagree_until = self.disagree_until.max(Time(now.0 + POLL_MS + 1 + ms.min(0).unsigned_abs()));
    }

    /// Whether all who wait, and all who start, are held to one policy; from then on to the rules of that one. Until then, and
    /// until every VM has looked again, nothing is asked of their order: each policy has another.
    fn one_policy(&mut self, changes: &[Change], now: Time) {
        let changed = changes.iter().filter_map(|change| match change {
            Change::Joins(_, facts) | Change::Starts(_, facts) | Change::Renews(_, facts) => Some(facts.policy),
            Change::Quits(_) | Change::Ends(_) => None,
        });
        let mut policies: BTreeSet<usize> = changed.chain(self.waiting.values().map(|facts| facts.policy)).collect();
        let Some(newest) = policies.pop_last() else { return };
        if newest != self.policy || !policies.is_empty() {
            self.policy = newest;
            self.disagree_until = self.disagree_until.max(Time(now.0 + 2 * TICK.0 + 10));
            self.mixed_until = Time(now.0 + 2 * POLL_MS);
            self.held_up_at.extend(self.waiting.values().map(|facts| (facts.tenant, now)));
        }
    }

    /// Takes a step and checks what must be true after it. `alone` says that no other VM did anything in the middle of it.
    ///
    /// # Errors
    /// What is not true, in words.
    pub(super) fn step(&mut self, now: Time, changes: &[Change], sight: &Sight, alone: bool) -> Result<(), String> {
        let mut entitled = self.entitled_to_evict();
        self.one_policy(changes, now);
        self.count_evictions(changes, sight)?;
        for change in changes {
            self.take(change, now)?;
        }
        let joined = changes.iter().filter_map(|change| match change {
            Change::Joins(_, facts) => Some(facts.amount),
            _ => None,
        });
        entitled.extend(joined);
        self.evictions_have_a_cause(&entitled, sight, now)?;
        let epochs: Vec<u64> = sight.members.iter().map(|member| member.holder.epoch).collect();
        if epochs != self.epochs {
            (self.epochs, self.disagree_until) = (epochs, self.disagree_until.max(Time(now.0 + 2 * TICK.0 + 10)));
        }
        let starts = || {
            changes.iter().filter_map(|change| match change {
                Change::Starts(id, facts) => Some((*id, facts)),
                _ => None,
            })
        };
        self.overtakings += starts().filter(|start| self.overtakes(start, sight, now)).count() as u64;
        for (id, facts) in starts() {
            // One that starts in the middle of the same step may be held to wider limits.
            let beside = starts().filter(|(_, other)| other.policy != facts.policy).map(|(id, _)| id).collect();
            let error = |error| format!("I1: {error}, after {} started", id.0);
            self.caps_hold(facts, &beside, sight, now).map_err(error)?;
            let all: Vec<_> = starts().collect();
            self.ceiling_holds(facts, &all, sight, now).map_err(error)?;
            self.budget_holds(facts, &all, sight, now).map_err(error)?;
            self.reserves_hold(facts, &all, sight, now).map_err(error)?;
            self.worker_has_room(facts, &all, sight, now).map_err(error)?;
        }
        if self.admitted_blocks != sight.admitted.blocks {
            let (own, books) = (self.admitted_blocks, sight.admitted.blocks);
            return Err(format!("I2: {own} blocks were admitted, {books} by the books"));
        }
        if alone {
            let starts: Vec<_> = starts().collect();
            self.order_holds(&starts, sight, now)?;
            self.aging_share_holds(&starts, sight, now)?;
        }
        if starts().next().is_some() {
            self.idle_since = None;
        }
        for (_, facts) in starts() {
            self.last_starts.push_front(self.rules[facts.policy].has_climbed_far(facts.lane, facts.arrived, now));
            self.last_starts.truncate(100);
        }
        self.view_before.clone_from(&sight.view);
        self.workers_before.clone_from(&sight.workers);
        self.demand_before = sight.demand;
        self.note_held_up(sight, alone, now);
        self.books_are_true(sight, now)?;
        self.queue_bound_holds(now)?;
        self.everybody_ends(now)?;
        self.nothing_lies_idle(sight, now)
    }

    /// # Errors
    /// I2: something is still held after the last request has ended.
    pub(super) fn all_is_over(&self, sight: &Sight) -> Result<(), String> {
        if !self.running.is_empty() || !self.waiting.is_empty() {
            return Err(format!("I6: {} run and {} wait for ever", self.running.len(), self.waiting.len()));
        }
        let tenants = sight.tenants.iter().map(|(name, held)| (*name, *held));
        match tenants.chain([("the pool", sight.pool)]).find(|(_, held)| !held.is_zero()) {
            Some((name, held)) => Err(format!("I2: all is over and {name} holds {held:?}")),
            None => Ok(()),
        }
    }

    fn take(&mut self, change: &Change, now: Time) -> Result<(), String> {
        match change {
            Change::Joins(id, facts) => {
                self.waiting.insert(*id, facts.clone());
            }
            Change::Starts(id, facts) => {
                self.waiting.remove(id);
                if self.running.insert(*id, facts.clone()).is_some() {
                    return Err(format!("I2: request {} has started twice", id.0));
                }
                if self.fenced_within == Some(facts.vm) {
                    self.excused.insert(*id);
                }
                self.admitted_blocks += facts.amount.blocks.0;
                self.admitted += 1;
                self.admitted_at.insert(*id, self.admitted);
            }
            Change::Renews(id, facts) => {
                if let Some(waiting) = self.waiting.get_mut(id) {
                    *waiting = facts.clone();
                }
                self.able_since = now;
            }
            Change::Quits(id) => {
                self.waiting.remove(id);
            }
            Change::Ends(id) => {
                self.running.remove(id);
                self.admitted_at.remove(id);
                self.excused.remove(id);
            }
        }
        Ok(())
    }

    /// Requests that wait, for which somebody may be evicted.
    fn entitled_to_evict(&self) -> Vec<Amount> {
        let lowest = self.rules().lanes.iter().rfind(|lane| lane.preemptible).map(|lane| lane.priority);
        let priority = |facts: &Facts| self.rules().lane(facts.lane).priority;
        let above = self.waiting.values().filter(|facts| lowest.is_some_and(|lowest| priority(facts) > lowest));
        above.map(|facts| facts.amount).collect()
    }

    /// Nobody is asked to evict more than those that wait in higher lanes at that time lack: a place each, or the blocks of one of
    /// them, where the last that is evicted may hold more than is lacking.
    fn evictions_have_a_cause(&mut self, waiters: &[Amount], sight: &Sight, now: Time) -> Result<(), String> {
        let before = std::mem::replace(&mut self.asked_to_evict, sight.asked_to_evict);
        let Amount { requests, blocks, .. } = sight.asked_to_evict;
        let most = |all: &mut dyn Iterator<Item = Amount>| all.map(|amount| amount.blocks.0).max().unwrap_or(0);
        let needed = most(&mut waiters.iter().copied());
        let largest = most(&mut self.running.values().map(|facts| facts.amount));
        let is_for_places = requests <= before.requests.max(waiters.len() as u64);
        let is_for_blocks = needed > 0 && blocks.0 < before.blocks.0.max(needed + largest);
        if is_for_places || is_for_blocks || now <= self.troubled_until.max(self.disagree_until) {
            return Ok(());
        }
        let waiting = waiters.len();
        Err(format!(
            "I5: {requests} requests of {} blocks are to be evicted for {waiting} that wait in higher lanes, of which one needs {needed}",
            blocks.0
        ))
    }

    /// Counts the evictions that the record shows: of requests that have ended, in this step or before, since a VM may write later what others
    /// were faster at.
    fn count_evictions(&mut self, changes: &[Change], sight: &Sight) -> Result<(), String> {
        self.ended += changes.iter().filter(|change| matches!(change, Change::Ends(_))).count() as u64;
        let evicted = sight.evicted.saturating_sub(self.evicted);
        (self.admitted, self.evicted) = (self.admitted + evicted, sight.evicted);
        let (all, ended) = (self.evicted, self.ended);
        if all <= ended { Ok(()) } else { Err(format!("I2: {all} were evicted by the books and {ended} have ended")) }
    }

    /// I1: no cap is exceeded by what live VMs hold, beyond what a fenced one charges again.
    fn caps_hold(&self, started: &Facts, beside: &BTreeSet<RequestId>, sight: &Sight, now: Time) -> Result<(), String> {
        let is_excused = |id: &RequestId| self.excused.contains(id) || beside.contains(id);
        let counted = || self.running.iter().filter(|(id, _)| !is_excused(id)).map(|(_, facts)| facts);
        let of_tenant = || counted().filter(|facts| facts.tenant == started.tenant);
        let rules = &self.rules[started.policy];
        let tenant = rules.tenant(started.tenant);
        let tokens = of_tenant().map(|facts| facts.amount.tokens.0).sum();
        within(started.tenant, "requests", of_tenant().count() as u64, tenant.requests)?;
        within(started.tenant, "tokens", tokens, tenant.tokens)?;
        let requests = counted().count() as u64;
        within("the pool", "requests", requests, rules.max_in_flight)?;
        let views = [(&sight.view, &sight.workers), (&self.view_before, &self.workers_before)];
        let by_views = views.map(|view| self.view_allows(view, rules, requests, &is_excused, now));
        by_views.into_iter().reduce(Result::or).unwrap_or(Ok(()))
    }

    /// No more runs than a view has room for.
    fn view_allows(
        &self,
        (view, workers): (&Option<ViewSummary>, &Option<Rc<Workers>>),
        rules: &Rules,
        requests: u64,
        is_excused: &dyn Fn(&RequestId) -> bool,
        now: Time,
    ) -> Result<(), String> {
        let Some(view) = view.as_ref().filter(|view| now.since(view.received).0 <= rules.hold_ms) else {
            return Ok(());
        };
        let per_worker = rules.per_worker.map(|cap| cap * u64::from(view.live_workers));
        within("the pool", "requests on its workers", requests, per_worker)?;
        let (Some(headroom), Some(kv)) = (rules.headroom, view.kv) else { return Ok(()) };
        let unseen = self.unseen_blocks(view, self.listed(view, workers), is_excused);
        let most = kv.all.total.0 - (kv.all.total.0 as f64 * headroom).ceil() as u64;
        let used = kv.all.total.0 - kv.all.free.0;
        // What the workers use is not ours to bound; only what is admitted on top of it.
        within("what was admitted since the scrape", "blocks", unseen, Some(most.saturating_sub(used)))
    }

    /// I2 and I3: what the records say is what runs, whenever nothing has gone wrong for a while.
    fn books_are_true(&self, sight: &Sight, now: Time) -> Result<(), String> {
        if now <= self.troubled_until || self.health.contains(&Health::Stalled) {
            return Ok(());
        }
        let sum = |facts: &dyn Fn(&Facts) -> bool| {
            let counted = self.running.values().filter(|one| facts(one));
            counted.fold(Amount::default(), |sum, facts| sum.plus(facts.amount))
        };
        for (name, held) in &sight.tenants {
            let real = sum(&|facts| facts.tenant == *name);
            if real != *held {
                return Err(format!("I2: {name} holds {held:?} by the books and {real:?} in truth"));
            }
        }
        let real = sum(&|_| true);
        if real != sight.pool {
            return Err(format!("I2: the pool holds {:?} by the books and {real:?} in truth", sight.pool));
        }
        Ok(())
    }

    /// I6: nobody waits beyond its time and one poll. Who waits in a VM that has just come back is told at its next poll.
    fn everybody_ends(&self, now: Time) -> Result<(), String> {
        for (id, facts) in &self.waiting {
            // While there is no worker the pool's patience counts, and the lane's begins again with the first one.
            let rules = &self.rules[facts.policy];
            let longest = rules.lane(facts.lane).max_wait_ms.map(|wait| wait + rules.holds_when_empty_ms.unwrap_or(0));
            let longest = longest.map(|wait| Time(facts.arrived.0 + wait));
            let Some(end) = longest.into_iter().chain(facts.deadline).min() else { continue };
            let told = end.max(self.able_since).max(self.hindered_until);
            if self.health[facts.vm] == Health::Able && now.0 > told.0 + POLL_MS + 1 {
                return Err(format!("I6: {} was to wait until {} and still does", id.0, end.0));
            }
        }
        Ok(())
    }
}

fn within(who: &str, what: &str, held: u64, cap: Option<u64>) -> Result<(), String> {
    match cap {
        Some(cap) if held > cap => Err(format!("{who}: {held} {what}, {cap} allowed")),
        _ => Ok(()),
    }
}
