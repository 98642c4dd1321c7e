use std::cell::RefCell;

use super::*;
use crate::ledger::Ledger;
use crate::members::DEAD_AFTER_TICKS;
use crate::outcome::Reason;
use crate::policy::{Plugin, Policy};
use crate::store::memory::MemoryStore;
use crate::stream::StreamId;
use crate::units::Tokens;
use crate::unnamed::ledger_at;
use crate::usage::Served;

mod answers;
mod interleavings;
mod learning;
mod queues;
mod refusals;
mod tallies;
mod unnamed;

/// What was read of a request.
fn ask(prompt: u64, output: u64) -> Ask {
    let (prompt, output) = (Tokens(prompt), Tokens(output));
    Ask { prompt, longest_prompt: Tokens(0), output, output_limit: None, prompt_read: true, sequences: 1 }
}

/// Some VMs of one proxy over one memory, in virtual time.
#[derive(Clone)]
struct Proxy {
    store: Rc<MemoryStore>,
    policy: Rc<Policy>,
    now: Time,
}

/// A request that can be steered, of a stream that no test looks at.
fn request<'a>(ask: Ask, rules: Rules<'a>, tenant_key: &'a str) -> Request<'a> {
    let owner = StreamId::default();
    Request { owner, ask, rules, tenant_key, can_be_steered: true, bytes: 0, deadline: None, sub: None }
}

impl Vm {
    fn leases_to_evict(&mut self) -> Vec<LeaseId> {
        self.take_evictions().iter().map(|eviction| eviction.lease).collect()
    }
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
        vm.announce(&Directory::of(&self.policy), Held::of(&self.policy));
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
        let request = request(ask(100, 60), self.rules(tenant, pool), &key);
        vm.admit(&*self.store, &request, self.now).map(|admission| admission.lease).map_err(|refusal| refusal.reason)
    }

    fn held(&self, key: &str) -> Amount {
        let members = store::read::<Members>(&*self.store, &self.policy.keys.members()).unwrap().0;
        ledger_at(&*self.store, key).unwrap().held(&members)
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
fn a_clock_that_steps_back_fences_nobody() {
    let mut proxy = Proxy::new(3, 99);
    let mut older = proxy.vm();
    proxy.admit(&mut older, "acme").unwrap();
    proxy.ticks(&mut [&mut older], 3);
    proxy.now = Time(proxy.now.0 - 5_000);
    // It has not ticked at the later time, so nothing keeps it from ticking now.
    let mut newer = proxy.vm();
    proxy.admit(&mut newer, "acme").unwrap();
    proxy.ticks(&mut [&mut older, &mut newer], 2 * DEAD_AFTER_TICKS);
    assert_eq!(proxy.tenant().requests, 2, "what the older one holds still counts");
}

#[test]
fn a_vm_whose_heartbeat_is_of_a_later_time_asks_whether_it_counts() {
    let mut proxy = Proxy::new(1, 99);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    proxy.admit(&mut a, "acme").unwrap();
    proxy.admit(&mut b, "zeta").unwrap();
    proxy.now = Time(proxy.now.0 - 5_000);
    proxy.ticks(&mut [&mut b], DEAD_AFTER_TICKS + 1);
    assert_eq!(proxy.tenant().requests, 0, "it has been silent");
    assert_eq!(proxy.admit(&mut a, "acme"), Err(Reason::TenantRequests), "it has charged again what it holds");
    assert_eq!(proxy.tenant().requests, 1);
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
        let ask = ask(prompt, 0);
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
    let ledger = ledger_at(&*proxy.store, &proxy.policy.tenant_key("acme")).unwrap();
    let spending = Spending {
        rates: Arc::clone(&proxy.policy.limits("acme").rates),
        spent: ledger.spent(&proxy.policy.limits("acme").rates),
    };
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
fn a_correction_settles_the_budget_too_and_says_how_it_stands_then() {
    let proxy = with_budgets(9);
    let mut vm = proxy.vm();
    let lease = proxy.admit(&mut vm, "acme").unwrap();
    proxy.admit(&mut proxy.vm(), "acme").unwrap();
    for (prompt, left, told) in [(30, 300, Some(300)), (120, 210, Some(210)), (119, 210, None), (30, 300, Some(300))] {
        let ask = ask(prompt, 10);
        let spending = vm.correct(&*proxy.store, lease, &ask, proxy.rules("acme", "p"), proxy.now).unwrap();
        let standing = spending.and_then(|spending| spending.at(proxy.now).tokens);
        assert_eq!((tokens_left(&proxy), standing.map(|standing| standing.remaining)), (left, told), "{prompt}");
    }
    proxy.store.fail_on("tenant/acme", store::MAX_ATTEMPTS);
    let ask = ask(1, 0);
    let late = vm.correct(&*proxy.store, lease, &ask, proxy.rules("acme", "p"), proxy.now);
    assert_eq!(late, Ok(None), "others were faster, so the next tick settles it");
    vm.tick(&*proxy.store, proxy.now).unwrap();
    assert_eq!(tokens_left(&proxy), 500 - 160 - 1);
    vm.release(&*proxy.store, lease, Usage::Nothing, proxy.now);
    assert_eq!(tokens_left(&proxy), 500 - 160);
}

#[test]
fn invented_tenants_add_no_keys() {
    let proxy = Proxy::new(9, 1_000_000);
    let mut vm = proxy.vm();
    for name in 0..20_000 {
        let lease = proxy.admit(&mut vm, &format!("invented-{name}")).unwrap();
        vm.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
    }
    let most = usize::try_from(crate::keys::UNNAMED_RECORDS).unwrap() + 3;
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
    let whole = ask(700, 60);
    let grow = |vm: &mut Vm, lease| {
        let rules = proxy.rules("acme", "p");
        vm.correct(&*proxy.store, lease, &whole, rules, proxy.now).map(drop).map_err(|refusal| refusal.reason)
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
