use std::cell::RefCell;

use super::*;
use crate::members::DEAD_AFTER_TICKS;
use crate::outcome::Reason;
use crate::policy::{Plugin, Policy};
use crate::store::memory::MemoryStore;
use crate::units::Tokens;
use crate::usage::Served;
#[cfg(target_family = "wasm")]
use wasm_bindgen_test::wasm_bindgen_test as test;

mod answers;
mod learning;
mod queues;
mod tallies;

/// Some VMs of one proxy over one memory, in virtual time.
#[derive(Clone)]
struct Proxy {
    store: Rc<MemoryStore>,
    policy: Rc<Policy>,
    now: Time,
}

impl Proxy {
    fn new(tenant_cap: u64, pool_cap: u64) -> Self {
        let json = format!(
            r#"{{"tenants": {{"acme": {{"max_in_flight": {tenant_cap}}}}}, "pools": [{{"name": "p", "max_in_flight": {pool_cap}}}]}}"#
        );
        let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
        Self { store: Rc::default(), policy: Rc::new(*policy), now: Time(1_000_000) }
    }

    fn vm(&self) -> Vm {
        let mut vm = Vm::new(self.policy.keys.clone());
        vm.announce(&Directory::of(&self.policy));
        vm
    }

    fn admit(&self, vm: &mut Vm, tenant: &str) -> Result<LeaseId, Reason> {
        self.admit_to(vm, tenant, "p")
    }

    fn rules(&self, tenant: &str, pool: &str) -> Rules<'_> {
        let pool = self.policy.pools().find(|candidate| candidate.name == pool).unwrap();
        let lane = self.policy.lanes().last().unwrap();
        let lanes = self.policy.line_up();
        Rules { tenant: self.policy.limits(tenant), pool, lane, lanes, classes: &pool.classes }
    }

    fn admit_to(&self, vm: &mut Vm, tenant: &str, pool: &str) -> Result<LeaseId, Reason> {
        let key = self.policy.tenant_key(tenant);
        let request = Request {
            ask: Ask {
                prompt: Tokens(100),
                longest_prompt: Tokens(0),
                output: Tokens(60),
                output_limit: None,
                prompt_read: true,
            },
            rules: self.rules(tenant, pool),
            tenant_key: &key,
            can_be_steered: true,
            bytes: 0,
            deadline: None,
        };
        vm.admit(&*self.store, &request, self.now).map(|admission| admission.lease).map_err(|refusal| refusal.reason)
    }

    fn held(&self, key: &str) -> Amount {
        let members = store::read::<Members>(&*self.store, &self.policy.keys.members()).unwrap().0;
        store::read::<Ledger>(&*self.store, key).unwrap().0.held(&members)
    }

    fn pool(&self) -> Amount {
        self.held(&self.policy.keys.pool("p"))
    }

    fn tenant(&self) -> Amount {
        self.held(&self.policy.tenant_key("acme"))
    }

    fn tallied(&self, pool: &str, key: TallyKey) -> u64 {
        let members = store::read::<Members>(&*self.store, &self.policy.keys.members()).unwrap().0;
        store::read::<Ledger>(&*self.store, &self.policy.keys.pool(pool)).unwrap().0.tallied(key, &members)
    }

    fn ticks(&mut self, vms: &mut [&mut Vm], count: u32) {
        for _ in 0..count {
            self.now = Time(self.now.0 + TICK.0);
            for vm in vms.iter_mut() {
                vm.tick(&*self.store, self.now).unwrap();
            }
        }
    }
}

#[test]
fn two_vms_share_one_count() {
    let proxy = Proxy::new(3, 99);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let first = proxy.admit(&mut a, "acme").unwrap();
    proxy.admit(&mut b, "acme").unwrap();
    proxy.admit(&mut a, "acme").unwrap();
    assert_eq!(proxy.admit(&mut b, "acme"), Err(Reason::TenantRequests));
    a.release(&*proxy.store, first, Usage::AsEstimated, proxy.now);
    a.release(&*proxy.store, first, Usage::AsEstimated, proxy.now);
    assert_eq!(proxy.tenant().requests, 2, "released once, however often it is said");
    assert!(proxy.admit(&mut b, "acme").is_ok());
}

#[test]
fn a_pool_refusal_writes_nothing() {
    let proxy = Proxy::new(9, 1);
    let mut vm = proxy.vm();
    proxy.admit(&mut vm, "acme").unwrap();
    let writes = proxy.store.writes.get();
    assert_eq!(proxy.admit(&mut vm, "acme"), Err(Reason::PoolRequests));
    assert_eq!((proxy.store.writes.get(), proxy.tenant().requests), (writes, 1));
}

#[test]
fn a_pool_that_stays_contended_gives_the_tenant_its_share_back() {
    let proxy = Proxy::new(9, 9);
    let mut vm = proxy.vm();
    proxy.admit(&mut vm, "acme").unwrap();
    proxy.store.fail_on("pool/p", store::MAX_ATTEMPTS);
    assert_eq!(proxy.admit(&mut vm, "acme"), Err(Reason::Contention));
    assert_eq!((proxy.tenant().requests, proxy.pool().requests), (1, 1));
}

#[test]
fn a_release_never_gives_up() {
    let mut proxy = Proxy::new(9, 9);
    let mut vm = proxy.vm();
    let lease = proxy.admit(&mut vm, "acme").unwrap();
    proxy.store.fail_on("pool/p", store::MAX_ATTEMPTS * 3);
    vm.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
    assert_eq!((proxy.tenant().requests, proxy.pool().requests), (0, 1));
    proxy.ticks(&mut [&mut vm], 3);
    assert_eq!(proxy.pool(), Amount::default());
}

#[test]
fn what_a_dead_vm_held_is_void_after_ten_ticks_of_another() {
    let mut proxy = Proxy::new(1, 9);
    let (mut dead, mut main_thread) = (proxy.vm(), proxy.vm());
    proxy.admit(&mut dead, "acme").unwrap();
    drop(dead);
    proxy.ticks(&mut [&mut main_thread], DEAD_AFTER_TICKS);
    assert_eq!(proxy.tenant().requests, 1);
    proxy.ticks(&mut [&mut main_thread], 1);
    assert_eq!((proxy.tenant(), proxy.pool()), (Amount::default(), Amount::default()));
    let mut successor = proxy.vm();
    assert!(proxy.admit(&mut successor, "acme").is_ok());
}

#[test]
fn a_fenced_vm_charges_again_and_releases_under_its_new_epoch() {
    let mut proxy = Proxy::new(2, 9);
    let (mut stalled, mut other) = (proxy.vm(), proxy.vm());
    let lease = proxy.admit(&mut stalled, "acme").unwrap();
    proxy.ticks(&mut [&mut other], DEAD_AFTER_TICKS + 1);
    assert_eq!(proxy.tenant().requests, 0, "fenced");
    proxy.admit(&mut other, "acme").unwrap();
    proxy.admit(&mut other, "acme").unwrap();
    assert_eq!(proxy.admit(&mut stalled, "acme"), Err(Reason::TenantRequests), "it first charges what it holds");
    assert_eq!((proxy.tenant().requests, proxy.pool().requests), (3, 3), "over the cap by what it held");
    stalled.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
    assert_eq!((proxy.tenant().requests, proxy.pool().requests), (2, 2));
}

#[test]
fn a_fenced_vm_admits_nothing_until_all_is_charged_again() {
    let mut proxy = Proxy::new(9, 9);
    let (mut stalled, mut other) = (proxy.vm(), proxy.vm());
    let lease = proxy.admit(&mut stalled, "acme").unwrap();
    proxy.ticks(&mut [&mut other], DEAD_AFTER_TICKS + 1);
    proxy.store.fail_on("pool/p", store::MAX_ATTEMPTS);
    assert_eq!(proxy.admit(&mut stalled, "acme"), Err(Reason::Contention));
    stalled.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
    assert_eq!((proxy.tenant().requests, proxy.pool().requests), (0, 0), "the release waits behind the charge");
    proxy.ticks(&mut [&mut stalled], 1);
    assert_eq!(proxy.pool(), Amount::default());
    assert!(proxy.admit(&mut stalled, "acme").is_ok());
}

#[test]
fn a_corrected_lease_is_released_as_corrected() {
    let proxy = Proxy::new(9, 9);
    let mut vm = proxy.vm();
    let lease = proxy.admit(&mut vm, "acme").unwrap();
    for prompt in [1_000, 10, 500] {
        let ask = Ask {
            prompt: Tokens(prompt),
            longest_prompt: Tokens(0),
            output: Tokens(0),
            output_limit: None,
            prompt_read: true,
        };
        vm.correct(&*proxy.store, lease, &ask, proxy.rules("acme", "p"), proxy.now).unwrap();
        let amount = Amount { requests: 1, tokens: Tokens(prompt), blocks: Tokens(prompt).blocks_of(16) };
        assert_eq!((proxy.tenant(), proxy.pool()), (amount, amount));
    }
    vm.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
    assert_eq!((proxy.tenant(), proxy.pool()), (Amount::default(), Amount::default()));
}

/// A tenant with 10 requests and 1,000 tokens for each minute; each request of these tests asks for 160 tokens.
fn with_budgets(pool_cap: u64) -> Proxy {
    let json = format!(
        r#"{{"tenants": {{"acme": {{"requests_per_minute": 10, "tokens_per_minute": {{"rate": 1000, "burst": 500}}}}}},
            "pools": [{{"name": "p", "max_in_flight": {pool_cap}}}]}}"#
    );
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
    Proxy { policy: Rc::new(*policy), ..Proxy::new(1, 1) }
}

fn tokens_left(proxy: &Proxy) -> u64 {
    let ledger = store::read::<Ledger>(&*proxy.store, &proxy.policy.tenant_key("acme")).unwrap().0;
    let spending = Spending { rates: Arc::clone(&proxy.policy.limits("acme").rates), spent: ledger.spent() };
    spending.at(proxy.now).tokens.unwrap().remaining
}

#[test]
fn budgets_are_charged_as_estimated_and_settled_as_used() {
    let mut proxy = with_budgets(99);
    let mut vm = proxy.vm();
    let leases: Vec<_> = (0..3).map(|_| proxy.admit(&mut vm, "acme").unwrap()).collect();
    assert_eq!(tokens_left(&proxy), 500 - 3 * 160);
    assert_eq!(proxy.admit(&mut vm, "acme"), Err(Reason::TenantTokenRate));
    for (lease, usage, left) in [
        (leases[0], Usage::Served(Served::whole(Tokens(60), Tokens(0))), 20 + 100),
        (leases[1], Usage::AsEstimated, 20 + 100),
        (leases[2], Usage::Nothing, 20 + 100 + 160),
    ] {
        vm.release(&*proxy.store, lease, usage, proxy.now);
        assert_eq!(tokens_left(&proxy), left);
    }
    let lease = proxy.admit(&mut vm, "acme").unwrap();
    vm.release(&*proxy.store, lease, Usage::Served(Served::whole(Tokens(5_000), Tokens(0))), proxy.now);
    assert_eq!((tokens_left(&proxy), proxy.admit(&mut vm, "acme")), (0, Err(Reason::TenantTokenRate)), "in debt");
    proxy.now = Time(proxy.now.0 + 3_600_000);
    assert!(proxy.admit(&mut vm, "acme").is_ok(), "paid by time");
}

#[test]
fn a_refused_request_burns_no_budget() {
    let proxy = with_budgets(1);
    let mut vm = proxy.vm();
    proxy.admit(&mut vm, "acme").unwrap();
    for _ in 0..20 {
        assert_eq!(proxy.admit(&mut vm, "acme"), Err(Reason::PoolRequests));
    }
    proxy.store.fail_on("pool/p", store::MAX_ATTEMPTS);
    assert!(proxy.admit(&mut vm, "acme").is_err());
    assert_eq!(tokens_left(&proxy), 500 - 160);
}

#[test]
fn what_is_refused_after_it_was_let_in_burns_no_budget_either() {
    let json = r#"{"tenants": {"acme": {"requests_per_minute": 1, "tokens_per_minute": 1000}},
        "pools": [{"name": "p", "max_in_flight": 9, "requests_per_second": 1}]}"#;
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
    let proxy = Proxy { policy: Rc::new(*policy), ..Proxy::new(1, 1) };
    let mut vm = proxy.vm();
    for _ in 0..5 {
        let lease = proxy.admit(&mut vm, "acme").unwrap();
        vm.release(&*proxy.store, lease, Usage::Refused, proxy.now);
        assert_eq!(tokens_left(&proxy), 1_000);
    }
    let lease = proxy.admit(&mut vm, "acme").unwrap();
    vm.release(&*proxy.store, lease, Usage::Nothing, proxy.now);
    assert_eq!(proxy.admit(&mut vm, "acme"), Err(Reason::TenantRequestRate), "one that was served counts");
    assert_eq!(proxy.admit(&mut vm, "zeta"), Err(Reason::PoolRequestRate));
}

#[test]
fn a_correction_settles_the_budget_too() {
    let proxy = with_budgets(9);
    let mut vm = proxy.vm();
    let lease = proxy.admit(&mut vm, "acme").unwrap();
    let ask = Ask {
        prompt: Tokens(30),
        longest_prompt: Tokens(0),
        output: Tokens(10),
        output_limit: None,
        prompt_read: true,
    };
    vm.correct(&*proxy.store, lease, &ask, proxy.rules("acme", "p"), proxy.now).unwrap();
    assert_eq!(tokens_left(&proxy), 460);
    vm.release(&*proxy.store, lease, Usage::Nothing, proxy.now);
    assert_eq!(tokens_left(&proxy), 500);
}

#[test]
fn invented_tenants_add_no_keys() {
    let proxy = Proxy::new(9, 1_000_000);
    let mut vm = proxy.vm();
    for name in 0..20_000 {
        let lease = proxy.admit(&mut vm, &format!("invented-{name}")).unwrap();
        vm.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
    }
    let most = usize::try_from(crate::keys::SHARED_TENANT_SLOTS).unwrap() + 3;
    assert!(proxy.store.keys().len() <= most, "{} keys", proxy.store.keys().len());
}

/// What grows after it was let in by a guess is held against the caps like any request.
#[test]
fn a_guess_that_proves_too_small_does_not_pass_a_cap_of_tokens() {
    let json =
        r#"{"tenants": {"acme": {"max_tokens_in_flight": 1000}}, "pools": [{"name": "p", "max_in_flight": 99}]}"#;
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
    let proxy = Proxy { policy: Rc::new(*policy), ..Proxy::new(1, 1) };
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let leases = [proxy.admit(&mut a, "acme").unwrap(), proxy.admit(&mut b, "acme").unwrap()];
    let whole = Ask {
        prompt: Tokens(700),
        longest_prompt: Tokens(0),
        output: Tokens(60),
        output_limit: None,
        prompt_read: true,
    };
    let grow = |vm: &mut Vm, lease| {
        let rules = proxy.rules("acme", "p");
        vm.correct(&*proxy.store, lease, &whole, rules, proxy.now).map_err(|refusal| refusal.reason)
    };
    assert_eq!(grow(&mut a, leases[0]), Ok(()));
    assert_eq!(grow(&mut b, leases[1]), Err(Reason::TenantTokens));
    assert_eq!((proxy.tenant().tokens, proxy.pool().tokens), (Tokens(760 + 160), Tokens(760 + 160)));
    b.release(&*proxy.store, leases[1], Usage::Nothing, proxy.now);
    a.release(&*proxy.store, leases[0], Usage::Nothing, proxy.now);
    assert_eq!((proxy.tenant(), proxy.pool()), (Amount::default(), Amount::default()));
}

/// Another VM that is faster between this one's reading and writing of the pool: the decision is made again.
#[test]
fn a_pool_that_fills_up_meanwhile_refuses() {
    let proxy = Proxy::new(9, 1);
    let (mut slow, fast) = (proxy.vm(), Rc::new(RefCell::new(proxy.vm())));
    let (other, rival) = (proxy.clone(), Rc::clone(&fast));
    proxy.store.before_write("pool/p", move || assert!(other.admit(&mut rival.borrow_mut(), "zeta").is_ok()));
    assert_eq!(proxy.admit(&mut slow, "acme"), Err(Reason::PoolRequests));
    assert_eq!((proxy.pool().requests, proxy.tenant().requests), (1, 0));
}

const TENANTS: [&str; 2] = ["acme", "zeta"];
const POOLS: [&str; 2] = ["p", "q"];

/// One VM of the model, and what the model believes of it.
struct Modelled {
    vm: Vm,
    leases: Vec<(LeaseId, usize, usize)>,
    /// Leases it held when others took it for dead: by so many a cap may be exceeded.
    excused: Vec<LeaseId>,
    fenced: Option<Holder>,
}

impl Modelled {
    fn new(proxy: &Proxy) -> Self {
        Self { vm: proxy.vm(), leases: Vec::new(), excused: Vec::new(), fenced: None }
    }

    fn act(&mut self, proxy: &Proxy, rng: &mut fastrand::Rng) {
        if rng.bool() || self.leases.is_empty() {
            let (tenant, pool) = (rng.usize(..TENANTS.len()), rng.usize(..POOLS.len()));
            let lease = proxy.admit_to(&mut self.vm, TENANTS[tenant], POOLS[pool]);
            self.leases.extend(lease.map(|lease| (lease, tenant, pool)));
        } else {
            let (lease, ..) = self.leases.swap_remove(rng.usize(..self.leases.len()));
            self.vm.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
        }
    }

    fn note_fencing(&mut self, members: &Members) {
        let fenced = self.vm.holder.filter(|holder| !members.counts(holder.epoch));
        if fenced.is_some() && fenced != self.fenced {
            self.fenced = fenced;
            self.excused = self.leases.iter().map(|(lease, ..)| *lease).collect();
        }
    }
}

/// Many VMs over one memory.
struct Model {
    proxy: Proxy,
    vms: Vec<Rc<RefCell<Modelled>>>,
    observer: Vm,
    stalled: usize,
    tenant_caps: [u64; 2],
    pool_caps: [u64; 2],
}

impl Model {
    fn new(rng: &mut fastrand::Rng) -> Self {
        let (tenant_caps, pool_caps) = ([(); 2].map(|()| rng.u64(1..6)), [(); 2].map(|()| rng.u64(1..6)));
        let json = format!(
            r#"{{"tenants": {{"acme": {{"max_in_flight": {}}}, "zeta": {{"max_in_flight": {}}}}},
                "pools": [{{"name": "p", "max_in_flight": 99, "classes": [{{"name": "c", "max_in_flight": {}}}]}}, {{"name": "q", "models": ["q"], "max_in_flight": {}}}]}}"#,
            tenant_caps[0], tenant_caps[1], pool_caps[0], pool_caps[1]
        );
        let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
        let proxy = Proxy { policy: Rc::new(*policy), ..Proxy::new(1, 1) };
        let vms = (0..rng.usize(2..5)).map(|_| Rc::new(RefCell::new(Modelled::new(&proxy)))).collect();
        let observer = proxy.vm();
        Self { proxy, vms, observer, stalled: usize::MAX, tenant_caps, pool_caps }
    }

    /// Some VM does something, perhaps while another does something else in the middle of it, perhaps while writes lose.
    fn step(&mut self, rng: &mut fastrand::Rng) {
        let index = rng.usize(..self.vms.len());
        let record = ["pool/p", "pool/q", "tenant/acme", "tenant/zeta", "members"][rng.usize(..5)];
        match rng.u8(..8) {
            0 => self.proxy.store.fail_on(record, rng.u32(0..70)),
            1..4 => {
                let rival = Rc::clone(&self.vms[(index + 1) % self.vms.len()]);
                let (proxy, mut rng) = (self.proxy.clone(), rng.fork());
                self.proxy.store.before_write(record, move || {
                    if let Ok(mut rival) = rival.try_borrow_mut() {
                        rival.act(&proxy, &mut rng);
                    }
                });
            }
            _ => {}
        }
        match rng.u8(..40) {
            0..30 => self.vms[index].borrow_mut().act(&self.proxy, rng),
            30 => *self.vms[index].borrow_mut() = Modelled::new(&self.proxy),
            31 => self.stalled = index,
            32 => self.stalled = usize::MAX,
            _ => self.tick(),
        }
    }

    fn tick(&mut self) {
        self.proxy.now = Time(self.proxy.now.0 + TICK.0);
        // A tick that loses to other writers is an ordinary thing; the next one makes up for it.
        let _ = self.observer.tick(&*self.proxy.store, self.proxy.now);
        for (place, modelled) in self.vms.iter().enumerate() {
            if place != self.stalled {
                let _ = modelled.borrow_mut().vm.tick(&*self.proxy.store, self.proxy.now);
            }
        }
    }

    fn check_caps(&self, seed: u64) {
        let members = store::read::<Members>(&*self.proxy.store, &self.proxy.policy.keys.members()).unwrap().0;
        self.vms.iter().for_each(|modelled| modelled.borrow_mut().note_fencing(&members));
        for place in 0..2 {
            let count = |counted: &dyn Fn(&(LeaseId, usize, usize)) -> bool| -> (u64, u64) {
                let vms = self.vms.iter().map(|modelled| {
                    let modelled = modelled.borrow();
                    let held: Vec<_> = modelled.leases.iter().filter(|lease| counted(lease)).collect();
                    let excused = held.iter().filter(|(lease, ..)| modelled.excused.contains(lease)).count();
                    (held.len() as u64, excused as u64)
                });
                vms.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
            };
            let (held, excused) = count(&|(_, tenant, _)| *tenant == place);
            let cap = self.tenant_caps[place];
            assert!(
                held <= cap + excused,
                "seed {seed}: {} holds {held}, cap {cap}, {excused} excused",
                TENANTS[place]
            );
            let (held, excused) = count(&|(_, _, pool)| *pool == place);
            let cap = self.pool_caps[place];
            assert!(held <= cap + excused, "seed {seed}: {} holds {held}, cap {cap}, {excused} excused", POOLS[place]);
        }
    }

    /// Ends every request and lets time pass.
    fn end(mut self, seed: u64) {
        self.proxy.store.fail_on("", 0);
        self.proxy.store.before_write("no such key", || ());
        self.stalled = usize::MAX;
        for modelled in &self.vms {
            let Modelled { vm, leases, .. } = &mut *modelled.borrow_mut();
            for (lease, ..) in leases.drain(..) {
                vm.release(&*self.proxy.store, lease, Usage::AsEstimated, self.proxy.now);
            }
        }
        (0..DEAD_AFTER_TICKS + 2).for_each(|_| self.tick());
        let keys = &self.proxy.policy.keys;
        for key in [keys.tenant("acme"), keys.tenant("zeta"), keys.pool("p"), keys.pool("q")] {
            assert_eq!(self.proxy.held(&key), Amount::default(), "seed {seed}: {key}");
        }
        assert_eq!(self.proxy.tallied("p", TallyKey::class("c")), 0, "seed {seed}");
    }
}

#[test]
fn no_interleaving_exceeds_a_cap_or_loses_a_release() {
    for seed in 0..120 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut model = Model::new(&mut rng);
        for _ in 0..500 {
            model.step(&mut rng);
            model.check_caps(seed);
        }
        model.end(seed);
    }
}
