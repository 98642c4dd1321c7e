//! Requests in flight that give way to those of higher lanes.

use super::*;
use crate::stream::StreamId;
use crate::units::Blocks;
use crate::view::Credit;
use crate::vm::Progress;

/// Blocks of a pool's one worker.
const BLOCKS: u64 = 100;

/// A pool of one worker, its lanes and the sidecar that reports it.
struct Pool {
    proxy: Proxy,
    generation: u64,
    /// Counts of the last answer but one, and of the last; scrapes behind the next view began after the former.
    answers: [Credit; 2],
}

impl Pool {
    fn new(ceiling: f64) -> Self {
        let proxy = with(&json!({
            "lanes": [
                {"name": "high", "priority": 1, "ceiling": ceiling, "queue": {"max_wait": "60s"}},
                {"name": "low", "preemptible": true, "queue": {"max_wait": "60s"}},
            ],
            "pools": [{"name": "p", "max_in_flight": 1_000, "kv": {"block_size": 16, "headroom": 0.0}, "stale": {"hold": "60s"}}],
        }));
        let mut pool = Self { proxy, generation: 0, answers: [Credit::default(); 2] };
        pool.see(0, 0.0);
        pool
    }

    /// A second later comes a view of a scrape that began after the last answer but one.
    fn see(&mut self, used: u64, saturation: f64) {
        self.proxy.later(1_000);
        self.generation += 1;
        let [Credit { admitted, held }, last] = self.answers;
        let rank = json!({"kv_used_blocks": used, "kv_total_blocks": BLOCKS});
        let worker =
            json!({"address": "10.0.0.1:80", "state": "up", "scraped_ms_ago": 1, "busy": false, "ranks": [rank]});
        let pool = json!({"saturation": saturation, "admitted": admitted, "held": held, "workers": [worker]});
        let answer = receive(&self.proxy, self.generation, &pool).answer;
        self.answers = [last, answer.credit("p").unwrap()];
    }

    fn start_low(&self, vm: &mut Vm, blocks: u64) -> LeaseId {
        match self.proxy.come(vm, self.proxy.waiter("light", "low", blocks * 16)) {
            Ok(Joined::Started(admission)) => admission.lease,
            other => panic!("{other:?}"),
        }
    }

    fn wait_high(&self, vm: &mut Vm, blocks: u64) -> Ticket {
        match self.proxy.come(vm, self.proxy.waiter("light", "high", blocks * 16)) {
            Ok(Joined::Waiting(ticket)) => ticket,
            other => panic!("{other:?}"),
        }
    }

    /// Time passes, in which all VMs look often and those end that are evicted: so many, and these have started.
    fn passes(&mut self, vms: &mut [&mut Vm]) -> (usize, Vec<Ticket>) {
        let (mut evicted, mut started) = (0, Vec::new());
        for _ in 0..50 {
            self.proxy.later(5);
            started.extend(self.proxy.carry(vms).into_iter().map(|(_, started)| started.ticket));
            for vm in vms.iter_mut() {
                started
                    .extend(vm.poll(&*self.proxy.store, self.proxy.now).started.iter().map(|started| started.ticket));
                for lease in vm.leases_to_evict() {
                    vm.release(&*self.proxy.store, lease, Usage::Refused, self.proxy.now);
                    evicted += 1;
                }
            }
        }
        (evicted, started)
    }
}

#[test]
fn a_head_has_as_many_evicted_as_hold_the_blocks_that_it_lacks() {
    let mut pool = Pool::new(9.0);
    let (mut a, mut b) = (pool.proxy.vm(), pool.proxy.vm());
    for vm in 0..25 {
        pool.start_low(if vm % 2 == 0 { &mut a } else { &mut b }, 4);
    }
    pool.see(0, 0.0);
    pool.see(100, 0.0);
    pool.see(100, 0.0);
    let head = pool.wait_high(&mut a, 30);
    let mut vms = [&mut a, &mut b];
    assert_eq!(pool.passes(&mut vms), (8, vec![]), "eight hold 32 blocks, which no view shows to be free");
    pool.see(100, 0.0);
    pool.see(100, 0.0);
    assert_eq!(pool.passes(&mut vms), (0, vec![]), "their scrapes may have begun before they ended");
    pool.see(68, 0.0);
    assert_eq!(pool.passes(&mut vms), (0, vec![head]));
}

#[test]
fn blocks_that_no_view_has_seen_are_free_when_their_request_has_been_evicted() {
    let mut pool = Pool::new(9.0);
    let mut vm = pool.proxy.vm();
    pool.see(0, 0.0);
    for _ in 0..25 {
        pool.start_low(&mut vm, 4);
    }
    let heads = [pool.wait_high(&mut vm, 30), pool.wait_high(&mut vm, 10)];
    assert_eq!(pool.passes(&mut [&mut vm]), (10, heads.to_vec()), "each as soon as there is room for it");
}

#[test]
fn what_one_vm_does_not_hold_is_asked_of_the_next_and_nothing_is_evicted_in_vain() {
    let mut pool = Pool::new(9.0);
    let (mut a, mut b) = (pool.proxy.vm(), pool.proxy.vm());
    for _ in 0..2 {
        pool.start_low(&mut a, 20);
        pool.proxy.later(1);
    }
    pool.start_low(&mut b, 20);
    let begun = pool.start_low(&mut b, 40);
    b.first_byte(&*pool.proxy.store, begun);
    pool.see(0, 0.0);
    pool.see(100, 0.0);
    pool.see(100, 0.0);
    let too_large = pool.wait_high(&mut b, 61);
    assert_eq!(pool.passes(&mut [&mut a, &mut b]), (0, vec![]), "the sixty that could be evicted are not enough");
    b.leave(&*pool.proxy.store, too_large, pool.proxy.now);
    let head = pool.wait_high(&mut b, 60);
    assert_eq!(pool.passes(&mut [&mut a, &mut b]), (3, vec![]));
    pool.see(100, 0.0);
    pool.see(100, 0.0);
    pool.see(40, 0.0);
    assert_eq!(pool.passes(&mut [&mut a, &mut b]), (0, vec![head]));
    let ledger = store::read::<Ledger>(&*pool.proxy.store, &pool.proxy.policy.keys.pool("p")).unwrap().0;
    assert!(ledger.asked_to_evict(a.members()).is_zero(), "nobody is asked for more than there was");
}

#[test]
fn none_is_evicted_for_a_head_that_has_left() {
    let mut pool = Pool::new(9.0);
    let (mut a, mut b) = (pool.proxy.vm(), pool.proxy.vm());
    pool.see(0, 0.0);
    for _ in 0..25 {
        pool.start_low(&mut a, 4);
    }
    let head = pool.wait_high(&mut b, 30);
    pool.wait_high(&mut b, 10);
    b.poll(&*pool.proxy.store, pool.proxy.now);
    let asked = |vm: &Vm| {
        let key = pool.proxy.policy.keys.pool("p");
        store::read::<Ledger>(&*pool.proxy.store, &key).unwrap().0.asked_to_evict(vm.members()).blocks
    };
    assert_eq!(asked(&a), Blocks(30));
    b.leave(&*pool.proxy.store, head, pool.proxy.now);
    a.woken(&*pool.proxy.store, &Note::Evict(pool.proxy.policy.keys.pool("p").into()), pool.proxy.now);
    assert_eq!((a.leases_to_evict(), asked(&a)), (vec![], Blocks(0)));
}

/// Small requests wait that could have the blocks of each evicted request as it ends.
#[test]
fn what_is_evicted_for_a_head_is_kept_for_it() {
    let mut pool = Pool::new(9.0);
    let (mut a, mut b) = (pool.proxy.vm(), pool.proxy.vm());
    pool.see(0, 0.0);
    for vm in 0..25 {
        pool.start_low(if vm % 2 == 0 { &mut a } else { &mut b }, 4);
    }
    for vm in 0..10 {
        let vm = if vm % 2 == 0 { &mut a } else { &mut b };
        let small = pool.proxy.come(vm, pool.proxy.waiter("light", "low", 64));
        assert!(matches!(small, Ok(Joined::Waiting(_))));
    }
    let head = pool.wait_high(&mut a, 30);
    let (evicted, started) = pool.passes(&mut [&mut a, &mut b]);
    assert_eq!((evicted, started), (8, vec![head]));
}

#[test]
fn a_pool_that_is_too_full_for_its_lane_is_emptied_by_one_for_each_that_waits_and_view() {
    let mut pool = Pool::new(0.9);
    let mut vm = pool.proxy.vm();
    for _ in 0..10 {
        pool.start_low(&mut vm, 4);
    }
    pool.see(0, 0.5);
    pool.see(40, 1.2);
    pool.see(40, 1.2);
    let heads = [pool.wait_high(&mut vm, 4), pool.wait_high(&mut vm, 4)];
    assert_eq!(pool.passes(&mut [&mut vm]), (2, vec![]));
    pool.see(40, 1.2);
    assert_eq!(pool.passes(&mut [&mut vm]), (0, vec![]), "its scrape may have begun before they ended");
    pool.see(40, 1.2);
    pool.see(32, 1.0);
    assert_eq!(pool.passes(&mut [&mut vm]), (2, vec![]), "it was not enough");
    pool.see(32, 1.0);
    pool.see(32, 1.0);
    pool.see(24, 0.8);
    assert_eq!(pool.passes(&mut [&mut vm]), (0, heads.to_vec()));
}

#[test]
fn the_newest_request_of_the_lowest_lane_gives_way() {
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "high", "priority": 1, "queue": {"max_wait": "60s"}},
            {"name": "low", "preemptible": true, "queue": {"max_wait": "60s"}},
        ],
        "pools": [{"name": "p", "max_in_flight": 3}],
    }));
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let begun = proxy.start(&mut a, "light", "low");
    proxy.later(1);
    proxy.start(&mut a, "light", "low");
    proxy.later(1);
    let newest = proxy.start(&mut b, "light", "low");
    a.first_byte(&*proxy.store, begun);
    proxy.wait(&mut a, "light", "low");
    assert_eq!((proxy.carry(&mut [&mut a, &mut b]), b.leases_to_evict()), (vec![], vec![]), "none for its own lane");
    let high = proxy.wait(&mut a, "light", "high");
    proxy.carry(&mut [&mut a, &mut b]);
    proxy.later(5);
    a.poll(&*proxy.store, proxy.now);
    proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!((a.leases_to_evict(), b.leases_to_evict()), (vec![], vec![newest]), "one for one that waits");
    b.release(&*proxy.store, newest, Usage::Refused, proxy.now);
    let started = proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!(started.iter().map(|(vm, started)| (*vm, started.ticket)).collect::<Vec<_>>(), [(0, high)]);
    for _ in 0..2 {
        proxy.wait(&mut b, "light", "high");
    }
    proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!((a.leases_to_evict().len(), b.leases_to_evict().len()), (1, 0), "the other one has begun its answer");
    let ledger = store::read::<Ledger>(&*proxy.store, &proxy.policy.keys.pool("p")).unwrap().0;
    assert_eq!(ledger.asked_to_evict(a.members()).requests, 1);
}

/// Requests of 400 ms before one place: three that wait in a higher lane go before the one that gives way.
#[test]
fn who_gives_way_may_come_back_when_those_before_it_have_been_served() {
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "high", "priority": 1, "queue": {"max_wait": "60s"}},
            {"name": "low", "preemptible": true},
        ],
        "pools": [{"name": "p", "max_in_flight": 1}],
    }));
    let mut vm = proxy.vm();
    for _ in 0..20 {
        let lease = proxy.start(&mut vm, "light", "high");
        proxy.later(400);
        proxy.end(&mut vm, lease);
    }
    let low = proxy.start(&mut vm, "light", "low");
    for _ in 0..3 {
        proxy.wait(&mut vm, "light", "high");
    }
    proxy.carry(&mut [&mut vm]);
    assert_eq!(vm.leases_to_evict(), [low]);
    let refusal = vm.evicted(&*proxy.store, low, proxy.now);
    let Retry::After(Millis(wait)) = refusal.retry else { panic!("{refusal:?}") };
    assert!(refusal.reason == Reason::Evicted && (1_200..=2_000).contains(&wait), "{refusal:?}");
}

#[test]
fn nobody_gives_way_to_who_waits_for_its_own_tenant() {
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "high", "priority": 1, "queue": {"max_wait": "60s"}},
            {"name": "low", "preemptible": true, "queue": {"max_wait": "60s"}},
        ],
        "tenants": {"one": {"max_in_flight": 1}, "light": {}},
        "pools": [{"name": "p", "max_in_flight": 4}],
    }));
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    proxy.start(&mut b, "one", "high");
    for _ in 0..3 {
        proxy.start(&mut a, "light", "low");
    }
    for _ in 0..5 {
        proxy.wait(&mut b, "one", "high");
    }
    proxy.wait(&mut b, "light", "high");
    for _ in 0..4 {
        proxy.carry(&mut [&mut a, &mut b]);
        proxy.later(5);
        b.poll(&*proxy.store, proxy.now);
    }
    assert_eq!(a.leases_to_evict().len(), 1, "one is in line, five wait for their tenant");
}

#[test]
fn a_request_that_started_by_its_age_does_not_give_way() {
    let queue = json!({"max_wait": "60s"});
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "high", "priority": 1, "queue": queue},
            {"name": "low", "preemptible": true, "queue": queue, "aging": {"after": "1s"}},
        ],
        "default_lane": "high",
        "pools": [{"name": "p", "max_in_flight": 1}],
    }));
    let mut vm = proxy.vm();
    let mut evicted_after = |waits: u64| {
        let first = proxy.start(&mut vm, "light", "high");
        let low = proxy.wait(&mut vm, "light", "low");
        proxy.later(waits);
        vm.poll(&*proxy.store, proxy.now);
        proxy.end(&mut vm, first);
        let started = proxy.carry(&mut [&mut vm]);
        assert_eq!(started.iter().map(|(_, started)| started.ticket).collect::<Vec<_>>(), [low]);
        let high = proxy.wait(&mut vm, "light", "high");
        proxy.carry(&mut [&mut vm]);
        let evicted = vm.leases_to_evict();
        vm.leave(&*proxy.store, high, proxy.now);
        vm.release(&*proxy.store, started[0].1.admission.lease, Usage::AsEstimated, proxy.now);
        evicted.len()
    };
    assert_eq!((evicted_after(500), evicted_after(1_500)), (1, 0));
}

/// Waiters of the highest lane that its dispatch budget shuts out take no place, so none is freed for them but for the first.
#[test]
fn nothing_gives_way_for_those_whom_a_dispatch_budget_keeps_waiting() {
    let queue = json!({"max_wait": "60s"});
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "agents", "priority": 2, "dispatch_budget": {"baseline": 0.9}, "queue": queue},
            {"name": "high", "priority": 1, "queue": queue},
            {"name": "low", "preemptible": true, "queue": queue},
        ],
        "pools": [{"name": "p", "max_in_flight": 10}],
    }));
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "light", "agents");
    for _ in 0..9 {
        proxy.start(&mut vm, "light", "low");
    }
    for _ in 0..6 {
        proxy.wait(&mut vm, "heavy", "agents");
    }
    proxy.wait(&mut vm, "light", "high");
    let mut evicted = 0;
    for _ in 0..10 {
        proxy.later(5);
        assert_eq!(vm.poll(&*proxy.store, proxy.now), Progress::default());
        proxy.carry(&mut [&mut vm]);
        evicted += vm.leases_to_evict().len();
    }
    assert_eq!(evicted, 2, "for the head of each lane");
}

#[test]
fn a_place_that_comes_free_before_it_is_asked_for_costs_no_eviction() {
    let proxy = with(&json!({
        "lanes": [{"name": "high", "priority": 1, "queue": {}}, {"name": "low", "preemptible": true}],
        "pools": [{"name": "p", "max_in_flight": 3}],
    }));
    for ends in [true, false] {
        let mut vm = proxy.vm();
        let leases = ["high", "low", "low"].map(|lane| proxy.start(&mut vm, "light", lane));
        let waiter = proxy.waiter("light", "high", 1);
        let refused = vm.admit(&*proxy.store, &waiter.request(), proxy.now).unwrap_err();
        // Why for others: a waiter that joins for the pool asks then.
        let for_others = Refusal { reason: Reason::OthersFirst, ..refused.clone() };
        let Ok(Joined::Waiting(ticket)) = vm.enqueue(&*proxy.store, waiter.clone(), for_others, proxy.now) else {
            panic!("it waits")
        };
        if ends {
            proxy.end(&mut vm, leases[0]);
        }
        vm.ask_to_evict(&*proxy.store, &waiter, &refused);
        for wake in vm.take_wakes().iter().filter(|wake| matches!(wake.note, Note::Evict(_))) {
            vm.woken(&*proxy.store, &wake.note, proxy.now);
        }
        assert_eq!(vm.leases_to_evict().len(), usize::from(!ends));
        vm.leave(&*proxy.store, ticket, proxy.now);
        leases.into_iter().for_each(|lease| proxy.end(&mut vm, lease));
    }
}

/// Advice of when to come back is measured by how long requests are served.
#[test]
fn a_request_that_is_evicted_says_nothing_of_how_long_requests_are_served() {
    let mut pool = Pool::new(9.0);
    let mut vm = pool.proxy.vm();
    let time_to_free = |pool: &Pool| {
        let store = &*pool.proxy.store;
        let members = store::read::<Members>(store, &pool.proxy.policy.keys.members()).unwrap().0;
        store::read::<Ledger>(store, &pool.proxy.policy.keys.pool("p")).unwrap().0.time_to_free(1, &members)
    };
    let served = pool.start_low(&mut vm, 4);
    pool.see(0, 0.0);
    pool.proxy.end(&mut vm, served);
    pool.start_low(&mut vm, 50);
    let before = time_to_free(&pool);
    pool.start_low(&mut vm, 50);
    pool.wait_high(&mut vm, 40);
    assert_eq!(pool.passes(&mut [&mut vm]).0, 1);
    assert!(before.is_some());
    assert_eq!(time_to_free(&pool), before.map(|before| Millis(before.0 / 2)), "two are in flight, as long as before");
}

#[test]
fn what_starts_is_given_up_or_gives_way_names_its_stream() {
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "high", "priority": 1, "queue": {"max_wait": "1s"}},
            {"name": "low", "preemptible": true, "queue": {"max_wait": "60s"}},
        ],
        "pools": [{"name": "p", "max_in_flight": 1}],
    }));
    let mut vm = proxy.vm();
    let owned = |proxy: &Proxy, owner, lane| Waiter { owner: StreamId(owner), ..proxy.waiter("light", lane, 100) };
    let Ok(Joined::Started(first)) = proxy.come(&mut vm, owned(&proxy, 1, "low")) else { panic!("the pool is empty") };
    let Ok(Joined::Waiting(second)) = proxy.come(&mut vm, owned(&proxy, 2, "low")) else { panic!("it is full") };
    vm.renew(&*proxy.store, second, owned(&proxy, 2, "low"), proxy.now);
    assert!(matches!(proxy.come(&mut vm, owned(&proxy, 3, "high")), Ok(Joined::Waiting(_))));
    proxy.carry(&mut [&mut vm]);
    assert_eq!(vm.take_evictions(), [Eviction { owner: StreamId(1), lease: first.lease }]);
    proxy.later(1_000);
    let given_up: Vec<StreamId> = vm.poll(&*proxy.store, proxy.now).refused.iter().map(|one| one.owner).collect();
    assert_eq!(given_up, [StreamId(3)]);
    vm.release(&*proxy.store, first.lease, Usage::Refused, proxy.now);
    let started = proxy.carry(&mut [&mut vm]);
    assert_eq!(started.iter().map(|(_, started)| started.owner).collect::<Vec<_>>(), [StreamId(2)]);
    let lease = started[0].1.admission.lease;
    assert!(matches!(proxy.come(&mut vm, owned(&proxy, 4, "high")), Ok(Joined::Waiting(_))));
    proxy.carry(&mut [&mut vm]);
    assert_eq!(vm.take_evictions(), [Eviction { owner: StreamId(2), lease }], "a lease has the stream of its waiter");
}
