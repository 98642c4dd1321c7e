//! The run of a scenario: everything that happens, one thing after the other.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use crate::control::Receiver;
use crate::policy::{Plugin, Policy};
use crate::queue::Ticket;
use crate::store::memory::MemoryStore;
use crate::units::{Millis, Time};
use crate::vm::{LeaseId, POLL, TICK, Wake};

use super::clients::RequestId;
use super::clock::{Agenda, Instant};
use super::figures::{Figures, StreamFigures};
use super::proxy::{self, Call, Shared};
use super::reference::books::Books;
use super::reference::{Health, Reference};
use super::sidecar::Sidecar;
use super::workers::Worker;
use super::{Broken, Scenario, Trouble};

mod acts;
mod middle;
mod requests;
mod troubles;
mod views;

use requests::Asking;

/// After the last request has ended: what a VM that died last held has to be void by then.
const AFTERMATH_MS: u64 = 2_500;

/// Nobody waits or runs so much longer than the last request comes.
const FOR_EVER_MS: u64 = 900_000;

/// Far more than ever happens in one millisecond, unless messages breed messages.
const MOST_IN_A_MS: u32 = 20_000;

const REMEMBERED: usize = 60;

/// After which the view of another sidecar may be replaced.
const HOLD: Millis = Millis(5_000);

/// Sidecars do not scrape at the same time.
const SIDECARS_APART_MS: u64 = 7;

enum Event {
    /// The next request of a stream is sent.
    Next(usize),
    /// A request, or another attempt of it, reaches the proxy.
    Comes(RequestId),
    /// Its client has had enough of that attempt.
    Tires(RequestId, u32),
    Call {
        vm: usize,
        life: u32,
        call: Call,
    },
    Wake(Wake),
    Tick(usize),
    StepEnds {
        worker: usize,
        life: u32,
    },
    Scrape(usize),
    View(usize, Vec<u8>),
    Trouble(Trouble),
    /// A VM that stalled goes on.
    GoesOn {
        vm: usize,
        life: u32,
    },
    /// Another VM takes the place of one that died.
    Revives(usize),
}

/// A thread of the proxy.
struct Seat {
    vm: Shared,
    /// Rises with its death.
    life: u32,
    health: Health,
    deferred: VecDeque<Call>,
    polling: bool,
    /// Which of the policies it has.
    policy: usize,
    /// Epoch of which it was told to the reference that others took it for dead.
    fenced: Option<u64>,
}

/// Everything.
pub(super) struct World<'a> {
    scenario: &'a Scenario,
    seed: u64,
    /// The one that all VMs begin with, and the one that comes.
    policies: Vec<Policy>,
    /// Of the threads that the control listener runs in.
    receivers: Vec<Rc<RefCell<Receiver>>>,
    store: Rc<MemoryStore>,
    agenda: Agenda<Event>,
    now: Instant,
    /// By which the clock of all VMs has stepped, in milliseconds.
    stepped: i64,
    rng: fastrand::Rng,
    seats: Vec<Seat>,
    workers: Vec<Worker>,
    sidecars: Vec<Sidecar>,
    silent_until: Instant,
    /// When a view last came in the middle of something.
    viewed: Instant,
    asking: BTreeMap<RequestId, Asking>,
    tickets: BTreeMap<(usize, Ticket), RequestId>,
    leases: BTreeMap<(usize, LeaseId), RequestId>,
    next_request: u64,
    reference: Reference,
    books: Books,
    figures: Figures,
    last: VecDeque<String>,
    broken: Option<String>,
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario, seed: u64) -> Result<Self, Box<Broken>> {
        let policies = [Some(&scenario.policy), scenario.next_policy.as_ref()];
        let policies =
            policies.into_iter().flatten().map(|policy| match Plugin::parse(policy.to_string().as_bytes()) {
                Ok(Plugin::Filter(policy)) => Ok(*policy),
                other => {
                    let what = format!("the policy cannot be read: {other:?}");
                    let (scenario, last) = (scenario.name.clone(), Vec::new());
                    Err(Box::new(Broken { scenario, seed, at: 0, what, last }))
                }
            });
        let policies = policies.collect::<Result<Vec<_>, _>>()?;
        let policy = &policies[0];
        let pool = policy.pools().next().map(|pool| pool.name.clone()).unwrap_or_default();
        let receiver = |_| Rc::new(RefCell::new(Receiver::new(policy.keys.clone(), HOLD)));
        let mut world = Self {
            scenario,
            seed,
            receivers: (0..scenario.vms).map(receiver).collect(),
            store: Rc::default(),
            agenda: Agenda::new(),
            now: Instant::default(),
            stepped: 0,
            rng: fastrand::Rng::with_seed(seed),
            seats: (0..scenario.vms).map(|_| Seat::new(policy, 0)).collect(),
            workers: scenario.workers.iter().map(|make| Worker::new(*make, true)).collect(),
            sidecars: Sidecar::all(scenario.eyes, &pool),
            silent_until: Instant::default(),
            viewed: Instant::default(),
            asking: BTreeMap::new(),
            tickets: BTreeMap::new(),
            leases: BTreeMap::new(),
            next_request: 0,
            reference: Reference::new(&scenario.policy, scenario.next_policy.as_ref(), scenario.vms),
            books: Books::of(policy, scenario.streams.iter().map(|stream| stream.tenant)),
            figures: Figures::default(),
            last: VecDeque::new(),
            broken: None,
            policies,
        };
        world.figures.streams = vec![StreamFigures::default(); scenario.streams.len()];
        world.plan_all();
        Ok(world)
    }

    fn plan_all(&mut self) {
        let Scenario { vms, lasts, troubles, luck, workers, .. } = self.scenario;
        let by_chance = luck.troubles(*lasts, *vms, workers.len(), &mut self.rng);
        for (at, trouble) in troubles.iter().chain(&by_chance) {
            self.agenda.plan(Instant::of_ms(*at), Event::Trouble(*trouble));
        }
        for sidecar in 0..self.sidecars.len() {
            self.agenda.plan(Instant::of_ms(SIDECARS_APART_MS * sidecar as u64), Event::Scrape(sidecar));
        }
        for vm in 0..*vms {
            // Threads begin their ticks at different times.
            self.agenda.plan(Instant(self.rng.u64(..TICK.0 * 1_000)), Event::Tick(vm));
        }
        self.plan_streams();
    }

    /// Lets everything happen until every request has ended, and the aftermath has passed.
    pub(super) fn play(mut self) -> Result<Figures, Box<Broken>> {
        let mut over: Option<Instant> = None;
        let mut in_this_ms = 0;
        while let Some((at, event)) = self.agenda.next() {
            in_this_ms = if at.ms() == self.now.ms() { in_this_ms + 1 } else { 0 };
            if in_this_ms > MOST_IN_A_MS {
                self.breaks("VMs wake one another without end".to_owned());
            }
            self.now = at;
            if over.is_some_and(|over| at.ms_since(over) > AFTERMATH_MS) {
                break;
            }
            self.happen(event);
            if at.ms() > self.scenario.lasts + FOR_EVER_MS {
                self.breaks(format!("I6: {} requests have not ended", self.asking.len()));
            }
            let quiet = at.ms() > self.scenario.lasts && self.asking.is_empty();
            over = if quiet && self.all_are_able() { over.or(Some(at)) } else { None };
            if let Some(what) = self.broken.take() {
                return Err(self.report(what));
            }
        }
        let sight = self.books.look(&*self.store);
        if let Err(what) = self.reference.all_is_over(&sight) {
            return Err(self.report(what));
        }
        self.figures.worker_preemptions = self.workers.iter().map(|worker| worker.preemptions).sum();
        self.figures.overtakings = self.reference.overtakings;
        self.figures.conflicts = u64::from(self.store.conflicts.get());
        self.figures.writes = u64::from(self.store.writes.get());
        Ok(self.figures)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Next(stream) => self.next_of(stream),
            Event::Comes(id) => self.comes(id),
            Event::Tires(id, attempt) => self.tires(id, attempt),
            Event::Call { vm, life, call } => self.call(vm, life, call),
            Event::Wake(wake) => self.wake(&wake),
            Event::Tick(vm) => {
                self.agenda.plan(self.now.plus_ms(TICK.0), Event::Tick(vm));
                if self.seats[vm].health == Health::Able {
                    self.act(vm, Call::Tick);
                }
            }
            Event::StepEnds { worker, life } => self.step_ends(worker, life),
            Event::Scrape(sidecar) => self.scrape(sidecar),
            Event::View(sidecar, body) => self.view_arrives(sidecar, &body),
            Event::Trouble(trouble) => self.befall(trouble),
            Event::GoesOn { vm, life } => self.goes_on(vm, life),
            Event::Revives(vm) => self.revives(vm),
        }
    }

    /// Plans the next poll of a VM in which somebody waits.
    fn keep_polling(&mut self, vm: usize) {
        let seat = &mut self.seats[vm];
        if !seat.polling && proxy::waiting(&seat.vm) > 0 {
            seat.polling = true;
            let (at, life) = (self.now.plus_ms(POLL.0), seat.life);
            self.agenda.plan(at, Event::Call { vm, life, call: Call::Poll });
        }
    }

    /// What a VM reads from the clock now.
    fn time(&self) -> Time {
        Time(self.now.time().0.saturating_add_signed(self.stepped))
    }

    /// The first policy: what is the same in all of them may be read from it.
    fn any_policy(&self) -> &Policy {
        &self.policies[0]
    }

    fn all_are_able(&self) -> bool {
        self.seats.iter().all(|seat| seat.health == Health::Able)
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(format!("{:>8}.{:03} {}", self.now.ms(), self.now.0 % 1_000, what()));
    }

    fn breaks(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    fn report(&mut self, what: String) -> Box<Broken> {
        let (scenario, line) = (self.scenario.name.clone(), self.books.line());
        let last = self.last.drain(..).chain(line).collect();
        Box::new(Broken { scenario, seed: self.seed, at: self.now.ms(), what, last })
    }
}

impl Seat {
    fn new(policy: &Policy, number: usize) -> Self {
        let vm = proxy::new(policy);
        let deferred = VecDeque::new();
        Self { vm, life: 0, health: Health::Able, deferred, polling: false, policy: number, fenced: None }
    }
}
