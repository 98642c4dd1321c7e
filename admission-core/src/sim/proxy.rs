//! One VM of the proxy: what can be asked of it, and what comes of it. All of the core that the simulation calls is here.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::ask::Ask;
use crate::directory::{Directory, Held};
use crate::ledger::SubFlow;
use crate::outcome::Refusal;
use crate::policy::Policy;
use crate::queue::Ticket;
use crate::store::Store;
use crate::stream::StreamId;
use crate::units::{Millis, Time};
use crate::vm::{Admission, Eviction, Joined, LeaseId, Note, Progress, Usage, Vm, Wake};

use super::clients::{RequestId, Stream};

pub(super) use crate::queue::Waiter;

/// Something that happens in one VM.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Arrives(RequestId, Box<Waiter>),
    AnswerBegins(LeaseId),
    Ends(RequestId, LeaseId, Usage),
    Leaves(RequestId, Ticket),
    Woken(Note),
    Poll,
    Tick,
    /// It gets the next policy.
    Reload,
    /// Those that wait are held to another policy.
    Renews(Vec<(Ticket, Waiter)>),
}

/// What came of a call, in order.
#[derive(Debug)]
pub(super) enum Effect {
    Admitted(RequestId, Admission),
    Waits(RequestId, Ticket),
    Refused(RequestId, Refusal),
    Started(Ticket, Admission),
    GivenUp(Ticket, Refusal),
    Left(RequestId, Ticket),
    Ended(RequestId),
    Wakes(Wake),
    Evicts(LeaseId, Refusal),
}

pub(super) type Shared = Rc<RefCell<Vm>>;

pub(super) fn new(policy: &Policy) -> Shared {
    let mut vm = Vm::new(policy.keys.clone());
    vm.announce(&Directory::of(policy), Held::of(policy));
    Rc::new(RefCell::new(vm))
}

/// Lets a VM do something, and asks it afterwards for what others are to be told.
pub(super) fn perform(vm: &Shared, store: &impl Store, call: Call, now: Time) -> Vec<Effect> {
    let vm = &mut *vm.borrow_mut();
    let mut effects = Vec::new();
    match call {
        Call::Arrives(id, waiter) => effects.push(arrives(vm, store, id, Waiter { arrived: now, ..*waiter }, now)),
        Call::AnswerBegins(lease) => vm.first_byte(store, lease),
        Call::Ends(id, lease, usage) => {
            vm.release(store, lease, usage, now);
            effects.push(Effect::Ended(id));
        }
        Call::Leaves(id, ticket) => {
            vm.leave(store, ticket, now);
            effects.push(Effect::Left(id, ticket));
        }
        Call::Woken(note) => went_on(vm.woken(store, &note, now), &mut effects),
        Call::Poll => went_on(vm.poll(store, now), &mut effects),
        Call::Renews(waiters) => {
            for (ticket, waiter) in waiters {
                vm.renew(store, ticket, waiter, now);
            }
            // What makes room is known to all who wait at once.
            went_on(vm.poll(store, now), &mut effects);
        }
        Call::Reload => {}
        // A tick that loses to other writers is an ordinary thing; the next one makes up for it.
        Call::Tick => drop(vm.tick(store, now)),
    }
    effects.extend(vm.take_wakes().into_iter().map(Effect::Wakes));
    let evicted = vm.take_evictions();
    effects
        .extend(evicted.into_iter().map(|Eviction { lease, .. }| Effect::Evicts(lease, vm.evicted(store, lease, now))));
    effects
}

fn arrives(vm: &mut Vm, store: &impl Store, id: RequestId, waiter: Waiter, now: Time) -> Effect {
    let refused = match vm.admit(store, &waiter.request(), now) {
        Ok(admission) => return Effect::Admitted(id, admission),
        Err(refused) => refused,
    };
    match vm.enqueue(store, waiter, refused, now) {
        Ok(Joined::Started(admission)) => Effect::Admitted(id, admission),
        Ok(Joined::Waiting(ticket)) => Effect::Waits(id, ticket),
        Err(refusal) => Effect::Refused(id, refusal),
    }
}

fn went_on(progress: Progress, effects: &mut Vec<Effect>) {
    let Progress { started, refused } = progress;
    effects.extend(started.into_iter().map(|started| Effect::Started(started.ticket, started.admission)));
    effects.extend(refused.into_iter().map(|given_up| Effect::GivenUp(given_up.ticket, given_up.refusal)));
}

pub(super) fn waiting(vm: &Shared) -> usize {
    vm.borrow().waiting()
}

pub(super) fn slot(vm: &Shared) -> Option<u16> {
    vm.borrow().slot()
}

/// Under which what it holds is counted, as far as it knows.
pub(super) fn epoch(vm: &Shared) -> Option<u64> {
    vm.borrow().holder().map(|holder| holder.epoch)
}

/// A request of a stream, with the rules that it is held to.
pub(super) fn waiter(policy: &Policy, stream: &Stream, ask: Ask, now: Time) -> Option<Waiter> {
    Some(Waiter {
        owner: StreamId::default(),
        ask,
        limits: Arc::clone(policy.limits(stream.tenant)),
        pool: Arc::clone(policy.only_pool()?),
        classes: Vec::new(),
        lane: Arc::clone(policy.lane_at(policy.lane_named(stream.lane), 0)),
        lanes: Arc::clone(policy.line_up()),
        tenant_key: policy.tenant_key(stream.tenant).into(),
        can_be_steered: stream.can_be_steered,
        bytes: ask.prompt.0 * 4,
        kept_bytes: ask.prompt.0 * 4,
        deadline: stream.ttft.map(Millis),
        sub: stream.key.map(|key| SubFlow::of(key.as_bytes())),
        arrived: now,
    })
}
