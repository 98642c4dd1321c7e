//! Counts beside lanes: classes, workers, marks, fair tags.

use serde_json::{Value, json};

use super::*;
use crate::control::Receiver;
use crate::ledger::FlowKey;
use crate::view::WorkerKey;

pub(super) const A: &str = "10.0.0.1:8000";
pub(super) const B: &str = "10.0.0.2:8000";

pub(super) fn proxy(configuration: &Value) -> Proxy {
    let Ok(Plugin::Filter(policy)) = Plugin::parse(configuration.to_string().as_bytes()) else {
        panic!("{configuration}")
    };
    Proxy { policy: Rc::new(*policy), ..Proxy::new(1, 1) }
}

/// Where a tenant's flow in the only lane of the pool `p` has been left.
pub(super) fn tag(proxy: &Proxy, ledger: &Ledger) -> u64 {
    let lane = proxy.policy.lanes().last().unwrap();
    ledger.finish_tag(FlowKey::of(&proxy.policy.keys.pool("p"), lane.key))
}

pub(super) fn push(proxy: &Proxy, generation: u64, workers: &[(&str, bool)]) {
    let report =
        |(address, busy): &(&str, bool)| json!({"address": address, "state": "up", "scraped_ms_ago": 0, "busy": busy});
    push_reports(proxy, generation, &workers.iter().map(report).collect::<Vec<_>>());
}

/// A worker that has so many of 1,000 blocks free.
fn worker(address: &str, free: u64) -> Value {
    let ranks = json!([{"kv_used_blocks": 1_000 - free, "kv_total_blocks": 1_000}]);
    json!({"address": address, "state": "up", "scraped_ms_ago": 0, "busy": false, "ranks": ranks})
}

fn push_reports(proxy: &Proxy, generation: u64, workers: &[Value]) {
    push_pool(proxy, generation, &json!({"workers": workers}));
}

fn push_pool(proxy: &Proxy, generation: u64, pool: &Value) {
    let token = "00".repeat(32);
    let control = json!({"role": "control", "token_sha256": token}).to_string();
    let Ok(Plugin::Control(control)) = Plugin::parse(control.as_bytes()) else { panic!("control") };
    let view = json!({"version": 1, "epoch": 1, "generation": generation, "pools": {"p": pool}});
    Receiver::of(&control).take(&*proxy.store, view.to_string().as_bytes(), proxy.now).unwrap();
}

/// Leaves what a control listener does whose build knows no list of workers.
fn summary_alone(proxy: &Proxy, generation: u64) {
    let key = proxy.policy.keys.view_of("p");
    let (bytes, version) = proxy.store.read(&key);
    let summary = ViewSummary { generation, ..ViewSummary::decode(&bytes.unwrap()).unwrap() };
    proxy.store.write(&key, &summary.encode(), version).unwrap();
}

fn ask(prompt: u64) -> Ask {
    let prompt = Tokens(prompt);
    Ask { prompt, longest_prompt: prompt, output: Tokens(0), output_limit: None, prompt_read: true, sequences: 1 }
}

impl Proxy {
    pub(super) fn ask(&self, vm: &mut Vm, prompt: u64) -> Result<Admission, Reason> {
        let rules = self.rules("acme", "p");
        let classes = rules.pool.classes_of(None, Tokens(prompt));
        let key = self.policy.tenant_key("acme");
        let rules = Rules { classes: &classes, ..rules };
        let request = request(ask(prompt), rules, &key);
        vm.admit(&*self.store, &request, self.now).map_err(|refusal| refusal.reason)
    }

    fn correct(&self, vm: &mut Vm, lease: LeaseId, prompt: u64) -> Result<(), Reason> {
        let rules = self.rules("acme", "p");
        let classes = rules.pool.classes_of(None, Tokens(prompt));
        let rules = Rules { classes: &classes, ..rules };
        vm.correct(&*self.store, lease, &ask(prompt), rules, self.now).map(drop).map_err(|refusal| refusal.reason)
    }
}

fn with_class() -> Proxy {
    let class = json!({"name": "long", "min_prompt_tokens": 100, "max_in_flight": 1});
    proxy(&json!({"pools": [{"name": "p", "max_in_flight": 9, "classes": [class]}]}))
}

#[test]
fn a_class_is_joined_and_left_as_the_prompt_proves_longer_or_shorter() {
    let (proxy, long) = (with_class(), TallyKey::class("long"));
    let mut vm = proxy.vm();
    let short = proxy.ask(&mut vm, 99).unwrap().lease;
    proxy.correct(&mut vm, short, 100).unwrap();
    assert_eq!(proxy.tallied("p", long), 1);
    let other = proxy.ask(&mut vm, 50).unwrap().lease;
    assert_eq!(proxy.correct(&mut vm, other, 200), Err(Reason::ClassRequests));
    assert_eq!((proxy.tallied("p", long), proxy.pool().tokens), (1, Tokens(150)), "it is as it was");
    proxy.correct(&mut vm, short, 10).unwrap();
    assert_eq!((proxy.tallied("p", long), proxy.pool().tokens), (0, Tokens(60)));
    proxy.correct(&mut vm, other, 200).unwrap();
    assert_eq!(proxy.ask(&mut vm, 100).err(), Some(Reason::ClassRequests));
    vm.release(&*proxy.store, other, Usage::AsEstimated, proxy.now);
    vm.release(&*proxy.store, short, Usage::AsEstimated, proxy.now);
    assert_eq!((proxy.tallied("p", long), proxy.pool()), (0, Amount::default()));
}

#[test]
fn a_fenced_vm_tallies_again_and_a_dead_one_no_more() {
    let (mut proxy, long) = (with_class(), TallyKey::class("long"));
    let (mut stalled, mut other) = (proxy.vm(), proxy.vm());
    let lease = proxy.ask(&mut stalled, 100).unwrap().lease;
    proxy.ticks(&mut [&mut other], DEAD_AFTER_TICKS + 1);
    assert_eq!(proxy.tallied("p", long), 0, "fenced");
    proxy.ticks(&mut [&mut other, &mut stalled], 1);
    assert_eq!(proxy.tallied("p", long), 1, "back, under its new epoch");
    stalled.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
    assert_eq!(proxy.tallied("p", long), 0);
}

#[test]
fn steered_requests_are_counted_at_their_worker_and_its_cap_binds() {
    let pool = json!({"name": "p", "max_in_flight_per_worker": 2, "pick_endpoint": true});
    let proxy = proxy(&json!({"pools": [pool]}));
    let (mut one, mut two) = (proxy.vm(), proxy.vm());
    push(&proxy, 1, &[(A, false), (B, true)]);
    let held = |address: &str| proxy.tallied("p", TallyKey::worker(WorkerKey::of(address)));
    let first = proxy.ask(&mut one, 1).unwrap();
    assert_eq!(first.endpoint.unwrap().header, A);
    proxy.ask(&mut two, 1).unwrap();
    assert_eq!((held(A), held(B)), (2, 0));
    assert_eq!(proxy.ask(&mut two, 1).err(), Some(Reason::PoolRequests), "A holds its cap and B is busy");
    assert_eq!(proxy.pool().requests, 2, "nothing stays of a refusal");
    push(&proxy, 2, &[(A, false), (B, false)]);
    assert_eq!(proxy.ask(&mut two, 1).unwrap().endpoint.unwrap().header, B, "the new list is read");
    summary_alone(&proxy, 3);
    assert_eq!(proxy.ask(&mut two, 1).unwrap().endpoint, None, "an older list tells of nobody");
    one.release(&*proxy.store, first.lease, Usage::AsEstimated, proxy.now);
    assert_eq!((held(A), held(B)), (1, 1), "the last one was not steered");
    push(&proxy, 4, &[(A, false), (B, false)]);
    let (rules, tenant_key) = (proxy.rules("acme", "p"), &proxy.policy.tenant_key("acme"));
    let request = Request { can_be_steered: false, ..request(ask(1), rules, tenant_key) };
    assert_eq!(two.admit(&*proxy.store, &request, proxy.now).unwrap().endpoint, None, "its headers have gone on");
    assert_eq!((held(A), held(B)), (1, 1));
}

/// A request counts at its worker for every VM, is corrected there, and ends there.
#[test]
fn blocks_given_to_a_worker_since_its_numbers_bound_the_next_there() {
    let pool =
        json!({"name": "p", "max_in_flight": 99, "pick_endpoint": true, "kv": {"block_size": 16, "headroom": 0.0}});
    let proxy = proxy(&json!({"pools": [pool]}));
    let (mut one, mut two) = (proxy.vm(), proxy.vm());
    push_reports(&proxy, 1, &[worker(A, 550), worker(B, 550)]);
    let blocks = |blocks: u64| 16 * blocks;
    let header = |admitted: Admission| admitted.endpoint.map(|endpoint| endpoint.header);
    let first = proxy.ask(&mut one, blocks(500)).unwrap();
    let lease = first.lease;
    assert_eq!(header(first), Some(format!("{A},{B}")));
    assert_eq!(proxy.ask(&mut two, blocks(100)).map(header), Ok(Some(B.to_owned())), "50 are left at A");
    proxy.correct(&mut one, lease, blocks(300)).unwrap();
    assert_eq!(proxy.ask(&mut two, blocks(200)).map(header), Ok(Some(format!("{A},{B}"))), "250 are left at each");
    assert_eq!(proxy.ask(&mut two, blocks(451)).err(), Some(Reason::KvBlocks));
    one.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
    assert_eq!(proxy.tallied("p", TallyKey::worker(WorkerKey::of(A))), 1, "corrections count no further request");
    assert_eq!(proxy.ask(&mut two, blocks(350)).map(header), Ok(Some(format!("{A},{B}"))), "350 are left at A");
    assert_eq!(proxy.ask(&mut two, blocks(451)).err(), Some(Reason::KvBlocks));
}

/// A request that was let in by a guess grows at its own worker, whatever is free at another.
#[test]
fn a_lease_grows_into_the_blocks_of_its_own_worker() {
    let pool =
        json!({"name": "p", "max_in_flight": 99, "pick_endpoint": true, "kv": {"block_size": 16, "headroom": 0.0}});
    let proxy = proxy(&json!({"pools": [pool]}));
    let mut vm = proxy.vm();
    push_reports(&proxy, 1, &[worker(A, 550), worker(B, 550)]);
    let guessed = proxy.ask(&mut vm, 16).unwrap();
    assert!(guessed.endpoint.unwrap().header.starts_with(A));
    proxy.ask(&mut vm, 160).unwrap();
    assert!(proxy.ask(&mut vm, 6_400).unwrap().endpoint.unwrap().header.starts_with(A));
    assert_eq!(proxy.correct(&mut vm, guessed.lease, 8_000), Err(Reason::KvBlocks), "149 are left at A, 540 at B");
    proxy.correct(&mut vm, guessed.lease, 16 * 150).unwrap();
    assert_eq!(proxy.pool().blocks.0, 150 + 10 + 400);
}

/// A lease that was charged in blocks of one size is corrected and given back in blocks of that size.
#[test]
fn a_lease_keeps_the_block_size_that_it_began_with() {
    let proxy =
        proxy(&json!({"pools": [{"name": "p", "max_in_flight": 9, "kv": {"block_size": 16, "headroom": 0.0}}]}));
    let mut vm = proxy.vm();
    let lease = proxy.ask(&mut vm, 1_600).unwrap().lease;
    assert_eq!(proxy.pool().blocks.0, 100);
    push_pool(&proxy, 1, &json!({"block_size": 32, "workers": [worker(A, 500)]}));
    let other = proxy.ask(&mut vm, 1_600).unwrap().lease;
    assert_eq!(proxy.pool().blocks.0, 150);
    proxy.correct(&mut vm, lease, 800).unwrap();
    proxy.correct(&mut vm, other, 3_200).unwrap();
    assert_eq!(proxy.pool().blocks.0, 50 + 100);
    for lease in [lease, other] {
        vm.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
    }
    assert_eq!(proxy.pool(), Amount::default());
}

/// Two workers that may have 1,000 prompt tokens to read each.
fn that_read_a_thousand(steered: bool) -> Proxy {
    let proxy = proxy(&json!({"pools": [{"name": "p", "max_in_flight": 99, "pick_endpoint": steered}]}));
    let workers = [A, B].map(|address| json!({"address": address, "state": "up", "scraped_ms_ago": 0, "busy": false}));
    push_pool(&proxy, 1, &json!({"prefill_limit": 1_000, "workers": workers}));
    proxy
}

#[test]
fn a_worker_is_busy_by_the_prompts_that_it_was_sent_and_has_not_read() {
    let mut proxy = that_read_a_thousand(true);
    let (mut one, mut two) = (proxy.vm(), proxy.vm());
    let to = |admission: &Admission| admission.endpoint.clone().unwrap().header;
    let long = proxy.ask(&mut one, 1_200).unwrap();
    assert_eq!(to(&long), format!("{A},{B}"));
    for prompt in [600, 400] {
        let short = proxy.ask(&mut two, prompt).unwrap();
        assert_eq!(to(&short), B, "the other has too much to read, for every VM");
    }
    let over = proxy.ask(&mut one, 100).unwrap();
    assert_eq!(to(&over), B, "exactly as much as it may have is not too much");
    assert_eq!(proxy.ask(&mut two, 1).err(), Some(Reason::AllBusy));
    proxy.correct(&mut one, over.lease, 2).unwrap();
    assert_eq!(proxy.ask(&mut two, 1).err(), Some(Reason::AllBusy), "1,002 of 1,000");
    one.first_token(&*proxy.store, long.lease, proxy.now);
    assert_eq!(to(&proxy.ask(&mut two, 1).unwrap()), A, "it has read what it had");
    for vm in [&mut one, &mut two] {
        let held: Vec<_> = vm.leases.iter().map(|(id, _)| id).collect();
        held.into_iter().for_each(|lease| vm.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now));
    }
    for worker in [A, B] {
        let key = TallyKey::prompts_at(TallyKey::worker(WorkerKey::of(worker)));
        assert_eq!(proxy.tallied("p", key), 0, "nothing is left at {worker}");
    }
    proxy.ticks(&mut [&mut one, &mut two], 1);
}

/// A length that is only claimed closes no worker: a body that never comes would close it to all.
#[test]
fn a_prompt_that_is_not_read_makes_its_worker_busy_from_when_it_is_sent() {
    for steered in [true, false] {
        let mut proxy = that_read_a_thousand(steered);
        let mut vm = proxy.vm();
        let claim = Ask { prompt_read: false, ..ask(5_000) };
        let (key, rules) = (proxy.policy.tenant_key("acme"), proxy.rules("acme", "p"));
        let request = request(claim, rules, &key);
        let claims: Vec<_> = (0..2).map(|_| vm.admit(&*proxy.store, &request, proxy.now).unwrap().lease).collect();
        let short = proxy.ask(&mut vm, 1).unwrap().lease;
        vm.release(&*proxy.store, short, Usage::AsEstimated, proxy.now);
        for lease in &claims {
            proxy.correct(&mut vm, *lease, 4_000).unwrap();
            vm.body_sent(&*proxy.store, *lease, false, proxy.now);
        }
        assert_eq!(proxy.ask(&mut vm, 1).err(), Some(Reason::AllBusy), "steered: {steered}");
        claims.iter().for_each(|lease| vm.answers_whole(&*proxy.store, *lease));
        proxy.ticks(&mut [&mut vm], 3);
        assert!(proxy.ask(&mut vm, 1).is_ok(), "an answer that shows nothing counts for two scrapes");
        claims.iter().for_each(|lease| vm.release(&*proxy.store, *lease, Usage::AsEstimated, proxy.now));
        assert_eq!(proxy.tallied("p", TallyKey::prompts_sent()), u64::from(!steered));
    }
}

#[test]
fn workers_that_the_proxy_chooses_are_busy_by_an_even_part_of_the_prompts() {
    let proxy = that_read_a_thousand(false);
    let mut vm = proxy.vm();
    let first = proxy.ask(&mut vm, 1_500).unwrap().lease;
    proxy.ask(&mut vm, 501).unwrap();
    assert_eq!(proxy.ask(&mut vm, 1).err(), Some(Reason::AllBusy), "2,001 for two");
    vm.release(&*proxy.store, first, Usage::AsEstimated, proxy.now);
    assert!(proxy.ask(&mut vm, 1).is_ok());
}

#[test]
fn addresses_are_compared_as_proxies_write_them() {
    let proxy = proxy(&json!({"pools": [{"name": "p", "max_in_flight": 9, "pick_endpoint": true}]}));
    let mut vm = proxy.vm();
    push(&proxy, 1, &[("[FD00:0::7]:80", false), ("worker-1:80", false)]);
    assert_eq!(proxy.ask(&mut vm, 1).unwrap().endpoint.unwrap().header, "[fd00::7]:80");
    super::refusals::refuse(&proxy, &mut vm, "[fd00::7]:80", "acme");
    assert_eq!(proxy.ask(&mut vm, 1).unwrap().endpoint, None, "the other is a name, which a proxy cannot be told");
}

#[test]
fn a_fair_tag_rises_by_tokens_served_over_weight() {
    let proxy = proxy(&json!({"tenants": {"acme": {"weight": 4}}, "pools": [{"name": "p", "max_in_flight": 1}]}));
    let acme = || ledger_at(&*proxy.store, &proxy.policy.tenant_key("acme")).unwrap();
    let tag = || tag(&proxy, &acme());
    let mut vm = proxy.vm();
    let lease = proxy.ask(&mut vm, 400).unwrap().lease;
    assert_eq!(tag(), 100 * 1_024, "as estimated");
    assert!(proxy.ask(&mut vm, 400).is_err());
    assert_eq!(tag(), 100 * 1_024, "a refusal is no service");
    proxy.correct(&mut vm, lease, 800).unwrap();
    assert_eq!(tag(), 200 * 1_024);
    vm.release(&*proxy.store, lease, Usage::Served(Served::whole(Tokens(40), Tokens(0))), proxy.now);
    assert_eq!(tag(), 10 * 1_024, "as the worker said");
    let lease = proxy.ask(&mut vm, 400).unwrap().lease;
    vm.release(&*proxy.store, lease, Usage::Refused, proxy.now);
    assert_eq!(tag(), 10 * 1_024);
}
