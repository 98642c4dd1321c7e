//! A request's life, from its client's side and its worker's.

use super::{Event, World};
use crate::answer;
use crate::ask::Ask;
use crate::ledger::Amount;
use crate::outcome::Refusal;
use crate::queue::Ticket;
use crate::request::Api;
use crate::sim::clients::{Load, RequestId, Returns};
use crate::sim::clock::Instant;
use crate::sim::proxy::{self, Call, Waiter};
use crate::sim::reference::{Change, Facts, Health};
use crate::sim::sidecar::Sidecar;
use crate::sim::workers::Came;
use crate::units::{Time, Tokens};
use crate::usage::Served;
use crate::view::WorkerKey;
use crate::vm::{Admission, LeaseId, Usage};

/// A caller that is refused without advice, or by nobody, waits so long.
const PAUSE_MS: u64 = 1_000;

/// From a worker to its VM, in microseconds.
const HOP_US: u64 = 300;

/// A request that has not ended.
pub(super) struct Asking {
    pub(super) stream: usize,
    vm: usize,
    attempt: u32,
    /// This attempt: when it was sent, and when its VM took it.
    sent: Instant,
    taken: Time,
    /// Which of the policies it is held to.
    policy: usize,
    /// Under which this attempt has waited.
    ticket: Option<Ticket>,
    prompt: u64,
    output: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Refused, or not sent yet.
    Away,
    Sent,
    Waiting(Ticket),
    Running {
        lease: LeaseId,
        worker: Option<usize>,
        begun: bool,
    },
}

impl World<'_> {
    pub(super) fn plan_streams(&mut self) {
        for (number, stream) in self.scenario.streams.iter().enumerate() {
            match stream.load {
                Load::Callers(callers, _) => {
                    for _ in 0..callers {
                        self.agenda.plan(Instant(self.rng.u64(..1_000_000)), Event::Next(number));
                    }
                }
                Load::PerSecond(_) => self.plan_next(number),
            }
        }
    }

    pub(super) fn next_of(&mut self, number: usize) {
        let stream = &self.scenario.streams[number];
        if let Load::Callers(_, until) = stream.load
            && self.now.ms() >= until
        {
            return;
        }
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let (prompt, output) =
            (self.rng.u64(stream.prompt.0..=stream.prompt.1), self.rng.u64(stream.output.0..=stream.output.1));
        self.figures.streams[number].offered += 1;
        let (sent, taken, policy, ticket, state) = (self.now, self.time(), 0, None, State::Away);
        let asking = Asking { stream: number, vm: 0, attempt: 0, sent, taken, policy, ticket, prompt, output, state };
        self.asking.insert(id, asking);
        self.plan_next(number);
        self.comes(id);
    }

    fn plan_next(&mut self, number: usize) {
        let load = &self.scenario.streams[number].load;
        let next = load.next(self.now.0 as f64 / 1_000.0, &mut self.rng);
        if let Some(at) = next.filter(|at| *at < self.scenario.lasts as f64) {
            self.agenda.plan(Instant((at * 1_000.0) as u64).max(self.now), Event::Next(number));
        }
    }

    /// The request reaches one of the proxy's threads, or none where none lives.
    pub(super) fn comes(&mut self, id: RequestId) {
        let alive: Vec<usize> = (0..self.seats.len()).filter(|vm| self.seats[*vm].health != Health::Dead).collect();
        let Some(asking) = self.asking.get_mut(&id) else { return };
        let stream = &self.scenario.streams[asking.stream];
        if alive.is_empty() {
            return self.lost(id);
        }
        let vm = alive[self.rng.usize(..alive.len())];
        (asking.vm, asking.sent, asking.state) = (vm, self.now, State::Sent);
        asking.attempt += 1;
        if let Some(patience) = stream.patience {
            self.agenda.plan(self.now.plus_ms(patience), Event::Tires(id, asking.attempt));
        }
        (asking.policy, asking.ticket) = (self.seats[vm].policy, None);
        let Some(waiter) = self.waiter(id) else { return };
        self.hop(vm, Call::Arrives(id, Box::new(waiter)));
    }

    /// The request under the policy that it is held to.
    fn waiter(&self, id: RequestId) -> Option<Waiter> {
        let asking = self.asking.get(&id)?;
        let stream = &self.scenario.streams[asking.stream];
        let claim = Tokens(stream.claimed());
        let ask = Ask {
            prompt: Tokens(asking.prompt),
            longest_prompt: Tokens(asking.prompt),
            output: claim,
            output_limit: Some(claim),
            prompt_read: true,
            sequences: 1,
        };
        proxy::waiter(&self.policies[asking.policy], stream, ask, asking.taken)
    }

    /// Those that wait in a VM are held to the policy that it has now.
    pub(super) fn reloads(&mut self, vm: usize, changes: &mut Vec<Change>) -> Vec<(Ticket, Waiter)> {
        let next = self.seats[vm].policy;
        let waiting = self.tickets.range((vm, Ticket(0))..(vm + 1, Ticket(0)));
        let waiting: Vec<(Ticket, RequestId)> = waiting.map(|((_, ticket), id)| (*ticket, *id)).collect();
        let mut renewed = Vec::new();
        for (ticket, id) in waiting {
            if let Some(asking) = self.asking.get_mut(&id) {
                asking.policy = next;
            }
            renewed.extend(self.waiter(id).map(|waiter| (ticket, waiter)));
            changes.extend(self.facts(id).map(|facts| Change::Renews(id, facts)));
        }
        renewed
    }

    /// What the VM is about to decide on reaches it now.
    pub(super) fn taken(&mut self, id: RequestId) {
        let now = self.time();
        if let Some(asking) = self.asking.get_mut(&id) {
            asking.taken = now;
        }
    }

    pub(super) fn waits(&mut self, vm: usize, id: RequestId, ticket: Ticket, changes: &mut Vec<Change>) {
        let Some(facts) = self.facts(id) else { return };
        if let Some(asking) = self.asking.get_mut(&id) {
            (asking.ticket, asking.state) = (Some(ticket), State::Waiting(ticket));
        }
        self.tickets.insert((vm, ticket), id);
        changes.push(Change::Joins(id, facts));
    }

    pub(super) fn started(&mut self, vm: usize, id: RequestId, admission: Admission, changes: &mut Vec<Change>) {
        if let Some(facts) = self.facts(id) {
            let worker = admission.endpoint.as_ref().map(|endpoint| WorkerKey(endpoint.worker.0));
            changes.push(Change::Starts(id, Facts { worker, ..facts }));
        }
        let worker = self.worker_for(&admission);
        let contested = self.all_wait();
        let Some(asking) = self.asking.get_mut(&id) else {
            return self.breaks(format!("request {} has started and is not asked for", id.0));
        };
        let figures = &mut self.figures.streams[asking.stream];
        if asking.attempt == 2 && self.scenario.streams[asking.stream].returns == Returns::AsAdvised {
            figures.honoured += 1;
        }
        if contested {
            figures.contested.0 += 1;
            figures.contested.1 += asking.prompt + asking.output;
        }
        figures.waits.push(self.now.ms_since(asking.sent));
        asking.state = State::Running { lease: admission.lease, worker, begun: false };
        self.leases.insert((vm, admission.lease), id);
        match worker {
            Some(worker) => {
                let (prompt, output) = (asking.prompt, asking.output);
                self.workers[worker].add(id, prompt, output);
                self.kick(worker);
            }
            None => self.fails(id),
        }
    }

    /// Of every stream some wait; asked only where all have callers who always ask.
    fn all_wait(&self) -> bool {
        let streams = &self.scenario.streams;
        let waits = |one: &Asking| matches!(one.state, State::Waiting(_));
        streams.iter().all(|stream| matches!(stream.load, Load::Callers(..)))
            && (0..streams.len()).all(|number| self.asking.values().any(|one| one.stream == number && waits(one)))
    }

    pub(super) fn refused(&mut self, id: RequestId, refusal: &Refusal) {
        let Some(asking) = self.asking.get_mut(&id) else { return };
        asking.state = State::Away;
        let (number, attempt) = (asking.stream, asking.attempt);
        *self.figures.streams[number].refused.entry(refusal.reason.label()).or_default() += 1;
        self.note(|| format!("request {} is refused: {refusal}", id.0));
        self.comes_back(id, number, attempt, Some(refusal));
    }

    /// The caller does what it does when it is refused.
    fn comes_back(&mut self, id: RequestId, number: usize, attempt: u32, refusal: Option<&Refusal>) {
        let stream = &self.scenario.streams[number];
        let dice = self.rng.u32(..);
        let advised = refusal.and_then(|refusal| self.advice(refusal, dice));
        let after = match (stream.returns, &stream.load) {
            (Returns::AsAdvised, _) if attempt == 1 && advised.is_some() => {
                self.figures.streams[number].came_back += 1;
                advised
            }
            (Returns::Regardless { times, after }, _) if attempt <= times => Some(after),
            _ => None,
        };
        match after {
            Some(after) => self.agenda.plan(self.now.plus_ms(after), Event::Comes(id)),
            None => {
                self.asking.remove(&id);
                self.asks_anew(number, advised.unwrap_or(PAUSE_MS));
            }
        }
    }

    /// What the answer tells the client.
    fn advice(&self, refusal: &Refusal, dice: u32) -> Option<u64> {
        let answer = answer::refusal(refusal, Api::Chat, &self.any_policy().reject, dice);
        let header = answer.headers.iter().find(|(name, _)| *name == "retry-after-ms");
        header.and_then(|(_, value)| value.parse().ok())
    }

    /// The client leaves unless its answer has begun.
    pub(super) fn tires(&mut self, id: RequestId, attempt: u32) {
        let Some(asking) = self.asking.get(&id).filter(|asking| asking.attempt == attempt) else { return };
        let (vm, number) = (asking.vm, asking.stream);
        let life = self.seats[vm].life;
        match asking.state {
            State::Waiting(ticket) => {
                self.figures.streams[number].left += 1;
                self.call(vm, life, Call::Leaves(id, ticket));
            }
            State::Running { begun: false, .. } => {
                self.figures.streams[number].left += 1;
                self.ends(id, Usage::AsEstimated);
                self.asks_anew(number, PAUSE_MS);
            }
            State::Away | State::Sent | State::Running { .. } => {}
        }
    }

    /// Its VM knows that the client is gone; by then it may have started, where the VM was late, or been refused and come again.
    pub(super) fn has_left(&mut self, id: RequestId, ticket: Ticket, changes: &mut Vec<Change>) {
        let asking = self.asking.get(&id).filter(|asking| asking.ticket == Some(ticket));
        match asking.map(|asking| (asking.vm, asking.state)) {
            Some((_, State::Running { .. })) => self.ends(id, Usage::AsEstimated),
            Some((vm, State::Waiting(ticket))) => {
                changes.push(Change::Quits(id));
                self.tickets.remove(&(vm, ticket));
                self.forget(id);
            }
            _ => {}
        }
    }

    fn forget(&mut self, id: RequestId) {
        if let Some(asking) = self.asking.remove(&id) {
            self.asks_anew(asking.stream, PAUSE_MS);
        }
    }

    pub(super) fn step_ends(&mut self, worker: usize, life: u32) {
        if self.workers[worker].life != life {
            return;
        }
        for came in self.workers[worker].end() {
            match came {
                Came::First(id) => self.begins(id),
                Came::Last(id) => self.served(id),
            }
        }
        self.kick(worker);
    }

    fn begins(&mut self, id: RequestId) {
        let Some(asking) = self.asking.get_mut(&id) else { return };
        let State::Running { lease, begun, .. } = &mut asking.state else { return };
        *begun = true;
        let (vm, lease) = (asking.vm, *lease);
        self.figures.streams[asking.stream].ttft.push(self.now.ms_since(asking.sent));
        self.hop(vm, Call::AnswerBegins(lease));
    }

    fn served(&mut self, id: RequestId) {
        let Some(asking) = self.asking.get(&id) else { return };
        let served = Served::whole(Tokens(asking.prompt), Tokens(asking.output));
        let (number, tokens) = (asking.stream, asking.prompt + asking.output);
        let figures = &mut self.figures.streams[number];
        figures.served += 1;
        figures.tokens += tokens;
        self.ends(id, Usage::Served(served));
        self.asks_anew(number, 1);
    }

    /// A running request is over, at its worker now and at its VM a little later.
    pub(super) fn ends(&mut self, id: RequestId, usage: Usage) {
        let Some(asking) = self.asking.get(&id) else { return };
        let State::Running { lease, worker, .. } = asking.state else { return };
        let vm = asking.vm;
        if let Some(worker) = worker {
            self.workers[worker].abort(id);
        }
        self.asking.remove(&id);
        self.leases.remove(&(vm, lease));
        self.hop(vm, Call::Ends(id, lease, usage));
    }

    /// The core takes a lease away again.
    pub(super) fn evicted(&mut self, vm: usize, lease: LeaseId, refusal: &Refusal) {
        let Some(id) = self.leases.get(&(vm, lease)).copied() else { return };
        let Some(asking) = self.asking.get(&id) else { return };
        let (number, attempt) = (asking.stream, asking.attempt);
        let kept = asking.again();
        self.figures.streams[number].evicted += 1;
        self.ends(id, Usage::Refused);
        // Its lease ends under its old name, perhaps after it has come back.
        let again = RequestId(self.next_request);
        self.next_request += 1;
        self.asking.insert(again, kept);
        self.comes_back(again, number, attempt, Some(refusal));
    }

    /// A VM is gone: so are its clients' connections and those to workers.
    pub(super) fn lose_all_of(&mut self, vm: usize) {
        let lost: Vec<RequestId> =
            self.asking.iter().filter(|(_, one)| one.vm == vm && one.state != State::Away).map(|(id, _)| *id).collect();
        for id in lost {
            let worker = self.asking.get(&id).and_then(Asking::worker);
            if let Some(worker) = worker {
                self.workers[worker].abort(id);
            }
            self.lost(id);
        }
        self.tickets.retain(|(of, _), _| *of != vm);
        self.leases.retain(|(of, _), _| *of != vm);
    }

    /// Its worker is gone, or was never there; its VM is told.
    pub(super) fn fails(&mut self, id: RequestId) {
        let Some(number) = self.asking.get(&id).map(|asking| asking.stream) else { return };
        self.figures.streams[number].lost += 1;
        self.ends(id, Usage::Nothing);
        self.asks_anew(number, PAUSE_MS);
    }

    /// Nobody is told.
    fn lost(&mut self, id: RequestId) {
        if let Some(asking) = self.asking.remove(&id) {
            self.figures.streams[asking.stream].lost += 1;
            self.asks_anew(asking.stream, PAUSE_MS);
        }
    }

    /// A caller of those that always ask, has done with one request.
    fn asks_anew(&mut self, number: usize, after_ms: u64) {
        if matches!(self.scenario.streams[number].load, Load::Callers(..)) {
            self.agenda.plan(self.now.plus_ms(after_ms), Event::Next(number));
        }
    }

    fn kick(&mut self, worker: usize) {
        let life = self.workers[worker].life;
        if let Some(us) = self.workers[worker].begin() {
            self.agenda.plan(self.now.plus_us(us), Event::StepEnds { worker, life });
        }
    }

    fn hop(&mut self, vm: usize, call: Call) {
        let (at, life) = (self.now.plus_us(HOP_US), self.seats[vm].life);
        self.agenda.plan(at, Event::Call { vm, life, call });
    }

    /// Where Sluice sends it, else the least loaded of two that the proxy knows.
    fn worker_for(&mut self, admission: &Admission) -> Option<usize> {
        if let Some(endpoint) = &admission.endpoint {
            let first = endpoint.header.split(',').next().unwrap_or_default();
            let told = (0..self.workers.len()).find(|number| Sidecar::address(*number) == first);
            return told.filter(|worker| self.workers[*worker].up);
        }
        let up: Vec<usize> = (0..self.workers.len()).filter(|worker| self.workers[*worker].up).collect();
        let some = |rng: &mut fastrand::Rng| (!up.is_empty()).then(|| up[rng.usize(..up.len())]);
        let (one, other) = (some(&mut self.rng)?, some(&mut self.rng)?);
        Some(if self.workers[other].load() < self.workers[one].load() { other } else { one })
    }

    fn facts(&self, id: RequestId) -> Option<Facts> {
        let asking = self.asking.get(&id)?;
        let stream = &self.scenario.streams[asking.stream];
        let tokens = Tokens(asking.prompt + stream.claimed());
        let block_size = self.any_policy().pools().next().map_or(16, |pool| pool.block_size);
        Some(Facts {
            vm: asking.vm,
            policy: asking.policy,
            tenant: stream.tenant,
            key: stream.key,
            lane: self.reference.lane(stream.lane).unwrap_or(0),
            amount: Amount { requests: 1, tokens, blocks: tokens.blocks_of(block_size) },
            can_be_steered: stream.can_be_steered,
            worker: None,
            arrived: asking.taken,
            deadline: stream.ttft.map(|ttft| Time(asking.taken.0 + ttft)),
        })
    }
}

impl Asking {
    /// As it is before its next attempt.
    fn again(&self) -> Self {
        Self { state: State::Away, ..*self }
    }

    fn worker(&self) -> Option<usize> {
        match self.state {
            State::Running { worker, .. } => worker,
            State::Away | State::Sent | State::Waiting(_) => None,
        }
    }
}
