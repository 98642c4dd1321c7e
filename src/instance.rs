//! State that outlives configurations.
//!
//! A new configuration makes a new root in the same VM, beside the old one and its streams; a second plugin of the same
//! code shares the VM. So a VM's part in the count hangs on neither, but on the pair of namespace and plugin name.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use admission_core::directory::{Directory, Held};
use admission_core::gather::gather;
use admission_core::keys::Keys;
use admission_core::metrics::Metrics;
use admission_core::policy::Policy;
use admission_core::routes::Routes;
use admission_core::stream::StreamId;
use admission_core::units::Time;
use admission_core::vm::{Eviction, GivenUp, Note, POLL, Progress, Started, TICK, Usage, Vm, Wake};

use crate::effect::{Effect, Names};
use crate::env::Env;
use crate::host;
use crate::metrics::Meters;
use crate::notices::Notices;
use crate::shared::{Seeds, Shared};
use crate::store::SharedData;
use crate::stream::{self, Stream};
use crate::wakes::Wakes;

/// One plugin in this VM.
pub struct Instance {
    vm: RefCell<Vm>,
    metrics: RefCell<Metrics>,
    meters: RefCell<Meters>,
    keys: Keys,
    wakes: Wakes,
    /// All streams that have not ended.
    streams: RefCell<BTreeMap<StreamId, Rc<RefCell<Stream>>>>,
    /// The root of the newest configuration.
    newest: Cell<u32>,
    /// The root and the slot that messages come to.
    registered: Cell<Option<(u32, u16)>>,
    /// Root that is called more often than the others, because requests wait.
    poller: Cell<Option<u32>>,
    last_trouble: RefCell<String>,
    notices: Notices,
    /// No other VM has this number.
    pub id: u64,
    /// Names for what its streams ask of the proxy.
    pub names: Names,
    /// Those that roots and streams are held to.
    policies: RefCell<Vec<Weak<Policy>>>,
    /// One of them has gone, and what only it needed is not yet forgotten.
    policy_gone: Cell<bool>,
    seeds: RefCell<Seeds>,
    /// Room for the acts that one event asks of the proxy.
    effects: Cell<Vec<Effect>>,
    /// Acts of the root callback under way that end streams or let them go on, in their order.
    // Why at its end: an answer makes the proxy stop whatever passes this VM until the callback has returned. A body that is put back may
    // prove too large for the proxy, whose own answer to that would pass meanwhile and never reach its client.
    deferred: RefCell<Vec<(StreamId, Effect)>>,
}

type Name = (String, String);

thread_local! {
    static INSTANCES: RefCell<BTreeMap<Name, Rc<Instance>>> = const { RefCell::new(BTreeMap::new()) };
}

impl Instance {
    /// The instance of a namespace and plugin name, told about the names in the policy and the root that brings it.
    pub fn of(policy: &Rc<Policy>, root_id: String, context_id: u32) -> Rc<Self> {
        let instance = INSTANCES.with_borrow_mut(|instances| {
            let name = (policy.namespace.clone(), root_id);
            let names = Names { namespace: name.0.clone(), decisions: stream::decisions_of(&name.1) };
            Rc::clone(instances.entry(name).or_insert_with(|| Rc::new(Self::new(policy, names))))
        });
        instance.vm.borrow_mut().announce(&Directory::of(policy), Held::of(policy));
        instance.newest.set(context_id);
        instance.policies.borrow_mut().push(Rc::downgrade(policy));
        instance
    }

    fn new(policy: &Policy, names: Names) -> Self {
        Self {
            vm: RefCell::new(Vm::new(policy.keys.clone())),
            metrics: RefCell::default(),
            meters: RefCell::default(),
            keys: policy.keys.clone(),
            wakes: Wakes::default(),
            streams: RefCell::default(),
            newest: Cell::new(0),
            registered: Cell::new(None),
            poller: Cell::new(None),
            last_trouble: RefCell::default(),
            notices: Notices::default(),
            id: host::random(),
            names,
            policies: RefCell::default(),
            policy_gone: Cell::new(false),
            seeds: RefCell::default(),
            effects: Cell::default(),
            deferred: RefCell::default(),
        }
    }

    /// Handles an event of the stream that the proxy acts on, then has the proxy do what it asks. Only [`Stream::renew`] is called while the proxy
    /// acts on a root: it asks for nothing but lines in the log.
    pub fn event<T>(&self, handle: impl FnOnce(&mut Shared<'_>) -> T) -> T {
        self.event_then(handle, |effect| effect.carry_out(&self.names))
    }

    /// Handles an event of a stream in a root callback, which ends with [`Instance::finish`]. Says whether the proxy still has the stream.
    fn event_of(&self, id: StreamId, handle: impl FnOnce(&mut Stream, &mut Shared<'_>)) -> bool {
        let stream = self.streams.borrow().get(&id).cloned();
        let Some(stream) = stream.filter(|_| host::act_on(id.0)) else { return false };
        let hold_back = |effect: Effect| match effect {
            Effect::Respond(_) | Effect::Resume => self.deferred.borrow_mut().push((id, effect)),
            other => other.carry_out(&self.names),
        };
        self.event_then(|shared| handle(&mut stream.borrow_mut(), shared), hold_back);
        true
    }

    /// Ends a root callback: streams that it has decided end or go on.
    pub fn finish(&self) {
        for (id, effect) in self.deferred.take() {
            if host::act_on(id.0) {
                effect.carry_out(&self.names);
            }
        }
    }

    fn event_then<T>(&self, handle: impl FnOnce(&mut Shared<'_>) -> T, carry_out: impl FnMut(Effect)) -> T {
        let mut effects = self.effects.take();
        let mut poller = self.poller.get();
        let done = {
            let (vm, metrics, seeds) =
                (&mut self.vm.borrow_mut(), &mut self.metrics.borrow_mut(), &mut self.seeds.borrow_mut());
            let mut shared =
                Shared { vm, metrics, env: &Env::default(), effects: &mut effects, poller: &mut poller, seeds };
            let done = handle(&mut shared);
            let wakes = shared.vm.take_wakes();
            self.meters.borrow_mut().take(shared.metrics);
            self.wakes.send(&self.keys, &wakes);
            done
        };
        self.poller.set(poller);
        effects.drain(..).for_each(carry_out);
        self.effects.set(effects);
        done
    }

    /// Asks or changes this VM's part in the count, and sends what others are to be told.
    pub fn vm<T>(&self, act: impl FnOnce(&mut Vm) -> T) -> T {
        let mut vm = self.vm.borrow_mut();
        let done = act(&mut vm);
        let wakes = vm.take_wakes();
        drop(vm);
        self.wakes.send(&self.keys, &wakes);
        done
    }

    /// Keeps a stream where root callbacks find it, until it has ended.
    pub fn begins(&self, id: StreamId, stream: &Rc<RefCell<Stream>>) {
        self.streams.borrow_mut().insert(id, Rc::clone(stream));
    }

    /// Forgets a stream that the proxy has ended.
    pub fn has_ended(&self, id: StreamId) {
        self.streams.borrow_mut().remove(&id);
    }

    /// Has a root that has just ticked called as often as those that wait need.
    pub fn pace(&self, root: u32) {
        let waits = self.vm.borrow().waiting() > 0;
        let (poller, period) = match self.poller.get() {
            None if waits => (Some(root), POLL),
            Some(poller) if poller == root && !waits => (None, TICK),
            _ => return,
        };
        if host::act_on(root) {
            self.poller.set(poller);
            host::set_tick_period(period);
        }
    }

    /// Notes that the proxy has dropped a root. If it was the one that polls, the next that ticks will be.
    pub fn root_is_gone(&self, root: u32) {
        if self.poller.get() == Some(root) {
            self.poller.set(None);
        }
    }

    /// Whether this root is that of the newest configuration.
    pub fn is_newest(&self, root: u32) -> bool {
        self.newest.get() == root
    }

    /// Tells VMs that those who wait in them may start.
    pub fn wake(&self, wakes: &[Wake]) {
        self.wakes.send(&self.keys, wakes);
    }

    /// What is due ten times a second, however many roots ask for it, and more often while somebody waits. `gauged` is when the
    /// root that asks last showed its own pools.
    pub fn tick(&self, root: u32, policy: &Policy, gauged: &Cell<Time>) {
        let now = host::now();
        let result = self.vm(|vm| vm.tick(&SharedData, now));
        self.evict();
        self.forget();
        self.report(result.err().map(|error| error.to_string()).unwrap_or_default());
        if now.since(gauged.get()) >= TICK {
            gauged.set(now);
            let (vm, mut metrics) = (self.vm.borrow(), self.metrics.borrow_mut());
            metrics.record_pools(policy, &SharedData, vm.members(), now);
            let slot = vm.slot();
            if let Some(slot) = slot {
                metrics.record_memory(slot, host::memory_bytes());
            }
            self.meters.borrow_mut().take(&mut metrics);
            // Why one VM alone: all see the same views.
            let first = vm.members().iter().map(|member| member.holder.slot).min();
            if slot.is_some() && slot == first {
                self.notices.look(policy, now);
            }
        }
        self.listen(root);
        if self.vm.borrow().waiting() > 0 {
            let progress = self.vm(|vm| vm.poll(&SharedData, now));
            self.carry_out(progress);
        }
        let together = self.vm(Vm::take_counted_together);
        self.metrics.borrow_mut().count_together(together);
        self.flush();
    }

    /// Adds what has been counted to the proxy's counters.
    pub fn flush(&self) {
        self.meters.borrow_mut().flush(&mut self.metrics.borrow_mut());
    }

    /// Messages have come.
    pub fn woken(&self, queue: u32) {
        let now = host::now();
        let messages = std::iter::from_fn(|| host::dequeue(queue));
        // Many may say the same.
        let messages: BTreeSet<Vec<u8>> = gather(messages);
        for note in messages.iter().filter_map(|message| Note::decode(message)) {
            let progress = self.vm(|vm| vm.woken(&SharedData, &note, now));
            self.carry_out(progress);
            self.evict();
        }
    }

    /// Holds those that wait to a policy that has come.
    pub fn renew(&self, policy: &Rc<Policy>, routes: &Rc<Routes>) {
        let streams: Vec<(StreamId, Rc<RefCell<Stream>>)> =
            self.streams.borrow().iter().map(|(id, stream)| (*id, Rc::clone(stream))).collect();
        for (id, stream) in streams {
            let renewed = self.event(|shared| stream.borrow_mut().renew(policy, routes, shared));
            match renewed {
                Some((ticket, Ok(waiter))) => self.vm(|vm| vm.renew(&SharedData, ticket, *waiter, host::now())),
                Some((ticket, Err(refused))) => {
                    self.vm(|vm| vm.leave(&SharedData, ticket, host::now()));
                    self.event_of(id, |stream, shared| stream.give_up(&refused, shared));
                }
                None => {}
            }
        }
    }

    fn carry_out(&self, progress: Progress) {
        for GivenUp { owner, refusal, .. } in progress.refused {
            self.event_of(owner, |stream, shared| stream.give_up(&refusal, shared));
        }
        for Started { owner, admission, waited, .. } in progress.started {
            let lease = admission.lease;
            if !self.event_of(owner, |stream, shared| stream.start(admission, waited, shared)) {
                // A stream that the proxy has ended without telling gives back what it gets.
                self.vm(|vm| vm.release(&SharedData, lease, Usage::Refused, host::now()));
            }
        }
    }

    /// Ends what this VM has been asked to evict.
    fn evict(&self) {
        let evictions = self.vm.borrow_mut().take_evictions();
        for Eviction { owner, .. } in evictions {
            self.event_of(owner, Stream::evict);
        }
    }

    /// Forgets the models that only policies name whose last stream has ended.
    fn forget(&self) {
        let mut policies = self.policies.borrow_mut();
        let before = policies.len();
        policies.retain(|policy| policy.strong_count() > 0);
        if policies.len() < before {
            self.policy_gone.set(true);
        }
        if self.policy_gone.get() {
            let in_force: Vec<Rc<Policy>> = policies.iter().filter_map(Weak::upgrade).collect();
            let names = |policy: &Rc<Policy>, pool: &str, pattern: &str| {
                policy.pool(pool).is_some_and(|pool| pool.has_model_label(pattern))
            };
            let is_used = |pool: &str, pattern: &str| in_force.iter().any(|policy| names(policy, pool, pattern));
            let done = self.vm(|vm| vm.forget_models(&SharedData, is_used));
            self.policy_gone.set(!done);
        }
    }

    /// Has the newest root told of the messages to this VM's slot.
    fn listen(&self, root: u32) {
        // The newest may be gone, with the listener whose configuration it was.
        if !host::act_on(self.newest.get()) {
            self.newest.set(root);
        }
        let Some(slot) = self.vm.borrow().slot() else { return };
        let wanted = Some((self.newest.get(), slot));
        if self.registered.get() != wanted
            && host::act_on(self.newest.get())
            && host::register_queue(&self.keys.wakes(slot))
        {
            self.registered.set(wanted);
        }
    }

    /// Says once what is wrong, not ten times a second.
    fn report(&self, trouble: String) {
        let mut last = self.last_trouble.borrow_mut();
        if *last != trouble {
            if !trouble.is_empty() {
                log::warn!("{trouble}");
            }
            *last = trouble;
        }
    }
}
