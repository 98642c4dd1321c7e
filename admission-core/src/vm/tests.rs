use super::*;
use crate::members::DEAD_AFTER_TICKS;
use crate::policy::{Plugin, Policy};
use crate::store::memory::MemoryStore;
use crate::units::Tokens;
#[cfg(target_family = "wasm")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// Some VMs of one proxy over one memory, in virtual time.
struct Proxy {
    store: MemoryStore,
    policy: Policy,
    now: Time,
}

impl Proxy {
    fn new(tenant_cap: u64, pool_cap: u64) -> Self {
        let json = format!(
            r#"{{"tenants": {{"acme": {{"max_in_flight": {tenant_cap}}}}}, "pools": [{{"name": "p", "max_in_flight": {pool_cap}}}]}}"#
        );
        let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
        Self { store: MemoryStore::default(), policy: *policy, now: Time(1_000_000) }
    }

    fn vm(&self) -> Vm {
        let mut vm = Vm::new(self.policy.keys.clone());
        vm.announce(&Directory::of(&self.policy));
        vm
    }

    fn admit(&self, vm: &mut Vm, tenant: &str) -> Result<LeaseId, Reason> {
        let key = self.policy.tenant_key(tenant);
        let request = Request {
            ask: Ask { prompt: Tokens(100), output: Tokens(60), output_limit: None, prompt_read: true },
            rules: Rules { tenant: self.policy.tenant(tenant).limits, pool: self.policy.only_pool().unwrap() },
            tenant_key: &key,
            lane: LaneKey(1),
        };
        vm.admit(&self.store, &request, self.now).map(|admission| admission.lease).map_err(|refusal| refusal.reason)
    }

    fn held(&self, key: &str) -> Amount {
        let members = store::read::<Members>(&self.store, &self.policy.keys.members()).unwrap().0;
        store::read::<Ledger>(&self.store, key).unwrap().0.held(&members)
    }

    fn pool(&self) -> Amount {
        self.held(&self.policy.keys.pool("p"))
    }

    fn tenant(&self) -> Amount {
        self.held(&self.policy.tenant_key("acme"))
    }

    fn ticks(&mut self, vms: &mut [&mut Vm], count: u32) {
        for _ in 0..count {
            self.now = Time(self.now.0 + TICK.0);
            for vm in vms.iter_mut() {
                vm.tick(&self.store, self.now).unwrap();
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
    a.release(&proxy.store, first, Usage::AsEstimated, proxy.now);
    a.release(&proxy.store, first, Usage::AsEstimated, proxy.now);
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
    vm.release(&proxy.store, lease, Usage::AsEstimated, proxy.now);
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
    stalled.release(&proxy.store, lease, Usage::AsEstimated, proxy.now);
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
    stalled.release(&proxy.store, lease, Usage::AsEstimated, proxy.now);
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
        let ask = Ask { prompt: Tokens(prompt), output: Tokens(0), output_limit: None, prompt_read: true };
        vm.correct(&proxy.store, lease, &ask, proxy.now);
        let amount = Amount { requests: 1, tokens: Tokens(prompt), blocks: Tokens(prompt).blocks_of(16) };
        assert_eq!((proxy.tenant(), proxy.pool()), (amount, amount));
    }
    vm.release(&proxy.store, lease, Usage::AsEstimated, proxy.now);
    assert_eq!((proxy.tenant(), proxy.pool()), (Amount::default(), Amount::default()));
}

/// A tenant with 10 requests and 1,000 tokens for each minute; each request of these tests asks for 160 tokens.
fn with_budgets(pool_cap: u64) -> Proxy {
    let json = format!(
        r#"{{"tenants": {{"acme": {{"requests_per_minute": 10, "tokens_per_minute": {{"rate": 1000, "burst": 500}}}}}},
            "pools": [{{"name": "p", "max_in_flight": {pool_cap}}}]}}"#
    );
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
    Proxy { policy: *policy, ..Proxy::new(1, 1) }
}

fn tokens_left(proxy: &Proxy) -> u64 {
    let ledger = store::read::<Ledger>(&proxy.store, &proxy.policy.tenant_key("acme")).unwrap().0;
    let budgets = Budgets::of(&ledger, &proxy.policy.tenant("acme").limits.rates, proxy.now);
    budgets.tokens.unwrap().remaining
}

#[test]
fn budgets_are_charged_as_estimated_and_settled_as_used() {
    let mut proxy = with_budgets(99);
    let mut vm = proxy.vm();
    let leases: Vec<_> = (0..3).map(|_| proxy.admit(&mut vm, "acme").unwrap()).collect();
    assert_eq!(tokens_left(&proxy), 500 - 3 * 160);
    assert_eq!(proxy.admit(&mut vm, "acme"), Err(Reason::TenantTokenRate));
    for (lease, usage, left) in [
        (leases[0], Usage::Reported(Tokens(60)), 20 + 100),
        (leases[1], Usage::AsEstimated, 20 + 100),
        (leases[2], Usage::Nothing, 20 + 100 + 160),
    ] {
        vm.release(&proxy.store, lease, usage, proxy.now);
        assert_eq!(tokens_left(&proxy), left);
    }
    let lease = proxy.admit(&mut vm, "acme").unwrap();
    vm.release(&proxy.store, lease, Usage::Reported(Tokens(5_000)), proxy.now);
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
fn a_correction_settles_the_budget_too() {
    let proxy = with_budgets(9);
    let mut vm = proxy.vm();
    let lease = proxy.admit(&mut vm, "acme").unwrap();
    let ask = Ask { prompt: Tokens(30), output: Tokens(10), output_limit: None, prompt_read: true };
    vm.correct(&proxy.store, lease, &ask, proxy.now);
    assert_eq!(tokens_left(&proxy), 460);
    vm.release(&proxy.store, lease, Usage::Nothing, proxy.now);
    assert_eq!(tokens_left(&proxy), 500);
}

#[test]
fn invented_tenants_add_no_keys() {
    let proxy = Proxy::new(9, 1_000_000);
    let mut vm = proxy.vm();
    for name in 0..20_000 {
        let lease = proxy.admit(&mut vm, &format!("invented-{name}")).unwrap();
        vm.release(&proxy.store, lease, Usage::AsEstimated, proxy.now);
    }
    let most = usize::try_from(crate::keys::SHARED_TENANT_SLOTS).unwrap() + 3;
    assert!(proxy.store.keys().len() <= most, "{} keys", proxy.store.keys().len());
}

/// One VM of the model, and what the model believes of it.
struct Modelled {
    vm: Vm,
    leases: Vec<LeaseId>,
    /// Leases it held when others took it for dead: by so many a cap may be exceeded.
    fenced_with: usize,
    fenced: Option<Holder>,
}

impl Modelled {
    fn new(proxy: &Proxy) -> Self {
        Self { vm: proxy.vm(), leases: Vec::new(), fenced_with: 0, fenced: None }
    }

    fn note_fencing(&mut self, members: &Members) {
        let fenced = self.vm.holder.filter(|holder| !members.counts(holder.epoch));
        if fenced.is_some() && fenced != self.fenced {
            self.fenced = fenced;
            self.fenced_with = self.leases.len();
        }
        self.fenced_with = self.fenced_with.min(self.leases.len());
    }
}

/// A reference model of which leases live VMs hold, beside the real records, under conflicting writes, VMs that die and
/// VMs that stall until others declare them dead.
#[test]
fn no_interleaving_exceeds_a_cap_or_loses_a_release() {
    for seed in 0..80 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (tenant_cap, pool_cap) = (rng.u64(1..6), rng.u64(1..9));
        let mut proxy = Proxy::new(tenant_cap, pool_cap);
        let mut vms: Vec<Modelled> = (0..rng.usize(1..5)).map(|_| Modelled::new(&proxy)).collect();
        let mut observer = proxy.vm();
        let mut stalled = usize::MAX;
        for _ in 0..600 {
            random_step(&mut proxy, &mut vms, &mut observer, &mut stalled, &mut rng);
            let members = store::read::<Members>(&proxy.store, &proxy.policy.keys.members()).unwrap().0;
            vms.iter_mut().for_each(|modelled| modelled.note_fencing(&members));
            let believed: usize = vms.iter().map(|modelled| modelled.leases.len()).sum();
            let excused: usize = vms.iter().map(|modelled| modelled.fenced_with).sum();
            assert!(
                believed as u64 <= tenant_cap.min(pool_cap) + excused as u64,
                "seed {seed}: {believed}, {excused} excused"
            );
        }
        proxy.store.fail_on("", 0);
        for Modelled { vm, leases, .. } in &mut vms {
            leases.drain(..).for_each(|lease| vm.release(&proxy.store, lease, Usage::AsEstimated, proxy.now));
        }
        let mut all: Vec<&mut Vm> = vms.iter_mut().map(|modelled| &mut modelled.vm).collect();
        all.push(&mut observer);
        proxy.ticks(&mut all, DEAD_AFTER_TICKS + 2);
        assert_eq!((proxy.tenant(), proxy.pool()), (Amount::default(), Amount::default()), "seed {seed}");
    }
}

fn random_step(
    proxy: &mut Proxy,
    vms: &mut [Modelled],
    observer: &mut Vm,
    stalled: &mut usize,
    rng: &mut fastrand::Rng,
) {
    let index = rng.usize(..vms.len());
    if rng.u8(..8) == 0 {
        proxy.store.fail_on(if rng.bool() { "pool/p" } else { "tenant/acme" }, rng.u32(0..70));
    }
    match rng.u8(..40) {
        0..16 => {
            let lease = proxy.admit(&mut vms[index].vm, "acme");
            vms[index].leases.extend(lease);
        }
        16..30 if !vms[index].leases.is_empty() => {
            let place = rng.usize(..vms[index].leases.len());
            let lease = vms[index].leases.swap_remove(place);
            vms[index].vm.release(&proxy.store, lease, Usage::AsEstimated, proxy.now);
        }
        30 => vms[index] = Modelled::new(proxy),
        31 => *stalled = index,
        32 => *stalled = usize::MAX,
        _ => {
            proxy.now = Time(proxy.now.0 + TICK.0);
            // A tick that loses to other writers is an ordinary thing; the next one makes up for it.
            let _ = observer.tick(&proxy.store, proxy.now);
            for (_, modelled) in vms.iter_mut().enumerate().filter(|(place, _)| place != stalled) {
                let _ = modelled.vm.tick(&proxy.store, proxy.now);
            }
        }
    }
}
