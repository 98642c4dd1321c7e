//! What seldom comes together.

use super::*;

#[test]
fn who_does_not_fit_its_lanes_budget_of_tokens_holds_back_no_other_vm() {
    let proxy = with(&json!({
        "lanes": [
            {"name": "high", "priority": 1, "queue": {"max_wait": "60s"},
             "dispatch_budget": {"baseline": 0.0, "unit": "tokens", "max": 1000}},
            {"name": "low", "queue": {"max_wait": "60s"}},
        ],
        "pools": [{"name": "p", "max_in_flight": 10}],
    }));
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    push(&proxy, 1, &[false], 0.0);
    let come = |vm: &mut Vm, tokens| proxy.come(vm, proxy.waiter("light", "high", tokens)).unwrap();
    let Joined::Started(first) = come(&mut a, 900) else { panic!() };
    let Joined::Waiting(second) = come(&mut a, 200) else { panic!() };
    proxy.start(&mut b, "light", "low");
    assert_eq!(proxy.carry(&mut [&mut a, &mut b]), []);
    proxy.end(&mut a, first.lease);
    let started = proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!(started.iter().map(|(vm, started)| (*vm, started.ticket)).collect::<Vec<_>>(), [(0, second)]);
}

#[test]
fn who_climbs_while_its_tenant_has_room_leaves_no_ghost_before_its_tenant() {
    let mut proxy = proxy(3);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let own = proxy.start(&mut a, "one", "low");
    let climbs = proxy.wait(&mut a, "one", "low");
    proxy.carry(&mut [&mut a, &mut b]);
    proxy.later(5_000);
    proxy.end(&mut a, own);
    // The message for the tenant is late, one for the pool is not.
    let started = a.woken(&*proxy.store, &Note::Start(proxy.policy.keys.pool("p").into()), proxy.now).started;
    assert_eq!(started.iter().map(|started| started.ticket).collect::<Vec<_>>(), [climbs]);
    proxy.carry(&mut [&mut a, &mut b]);
    proxy.end(&mut a, started[0].admission.lease);
    proxy.start(&mut b, "one", "low");
}

#[test]
fn every_tenant_that_stands_aside_is_asked_in_the_end() {
    let many = 40;
    let mut tenants: BTreeMap<String, Value> = BTreeMap::new();
    for number in 0..many {
        tenants.insert(format!("a{number:02}"), json!({"max_in_flight": 1}));
        tenants.insert(format!("z{number:02}"), json!({"max_in_flight": 1}));
    }
    let proxy = with(&json!({
        "lanes": [
            {"name": "high", "priority": 1, "queue": {"max_wait": "60s"}},
            {"name": "low", "queue": {"max_wait": "60s"}},
        ],
        "tenants": tenants, "pools": [{"name": "p", "max_in_flight": 200}],
    }));
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let mut leases = BTreeMap::new();
    for number in 0..many {
        for (group, lane) in [("a", "high"), ("z", "low")] {
            let tenant = format!("{group}{number:02}");
            leases.insert(tenant.clone(), proxy.start(&mut a, &tenant, lane));
            proxy.wait(&mut b, &tenant, lane);
        }
    }
    proxy.carry(&mut [&mut a, &mut b]);
    proxy.end(&mut a, leases["z39"]);
    // The message is lost.
    a.take_wakes();
    let started: usize = (0..20).map(|_| b.poll(&*proxy.store, proxy.now).started.len()).sum();
    assert_eq!(started, 1);
}

#[test]
fn nobody_gives_way_to_one_that_finds_no_room_all_the_same() {
    let proxy = with(&json!({
        "lanes": [{"name": "low", "queue": {"max_requests": 9, "max_tokens": 1000, "max_wait": "60s"}}],
        "pools": [{"name": "p", "max_in_flight": 1}],
    }));
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "light", "low");
    for _ in 0..9 {
        proxy.wait(&mut vm, "light", "low");
    }
    assert_eq!(proxy.refused(&mut vm, proxy.waiter("acme", "low", 2_000)).reason, Reason::QueueFull);
    assert_eq!((vm.poll(&*proxy.store, proxy.now).refused, proxy.waiting()), (vec![], 9));
    let Ok(Joined::Waiting(_)) = proxy.come(&mut vm, proxy.waiter("acme", "low", 350)) else { panic!() };
    assert_eq!((vm.poll(&*proxy.store, proxy.now).refused.len(), proxy.waiting()), (3, 7), "three of a hundred");
}

#[test]
fn one_that_comes_first_after_a_worker_does_not_shorten_the_wait_of_those_that_were_held() {
    let mut proxy = with(&json!({
        "lanes": [{"name": "low", "queue": {"max_wait": "2s"}}],
        "pools": [{"name": "p", "max_in_flight": 1, "hold_when_empty": "30s"}],
    }));
    let mut vm = proxy.vm();
    push(&proxy, 1, &[], 0.0);
    let first = proxy.wait(&mut vm, "light", "low");
    proxy.wait(&mut vm, "light", "low");
    proxy.later(29_900);
    let wakes = push(&proxy, 2, &[false], 0.0);
    proxy.wait(&mut vm, "acme", "low");
    let started = vm.woken(&*proxy.store, &wakes[0].note, proxy.now).started;
    assert_eq!(started.iter().map(|started| started.ticket).collect::<Vec<_>>(), [first]);
    proxy.later(1_000);
    assert_eq!(vm.poll(&*proxy.store, proxy.now), Progress::default());
    proxy.later(1_000);
    assert_eq!(vm.poll(&*proxy.store, proxy.now).refused.len(), 2);
}

#[test]
fn nobody_is_evicted_for_one_that_has_left() {
    let proxy = with(&json!({
        "lanes": [
            {"name": "high", "priority": 1, "queue": {"max_wait": "60s"}},
            {"name": "low", "preemptible": true, "queue": {"max_wait": "60s"}},
        ],
        "pools": [{"name": "p", "max_in_flight": 1}],
    }));
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    proxy.start(&mut b, "light", "low");
    let high = proxy.wait(&mut a, "light", "high");
    let asked = |vm: &Vm| {
        let ledger = store::read::<Ledger>(&*proxy.store, &proxy.policy.keys.pool("p")).unwrap().0;
        ledger.asked_to_evict(vm.members()).requests
    };
    assert_eq!(asked(&a), 1);
    a.leave(&*proxy.store, high, proxy.now);
    proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!((b.leases_to_evict(), asked(&b)), (vec![], 0));
    let high = proxy.wait(&mut a, "light", "high");
    proxy.carry(&mut [&mut a, &mut b]);
    let evicted = b.leases_to_evict();
    b.release(&*proxy.store, evicted[0], Usage::Refused, proxy.now);
    assert_eq!(proxy.carry(&mut [&mut a, &mut b])[0].1.ticket, high);
}

/// As between two threads of which one has the next policy already.
#[test]
fn vms_that_disagree_on_who_comes_first_do_not_wake_one_another_for_ever() {
    let policy = |first: &str, second: &str| {
        with(&json!({
            "lanes": [{"name": first, "priority": 1, "queue": {}}, {"name": second, "queue": {}}],
            "pools": [{"name": "p", "max_in_flight": 1}],
        }))
    };
    let old = policy("left", "right");
    let new = Proxy { policy: policy("right", "left").policy, ..old.clone() };
    let (mut a, mut b) = (old.vm(), new.vm());
    let lease = old.start(&mut a, "light", "left");
    let first = old.wait(&mut a, "light", "right");
    new.wait(&mut b, "light", "left");
    old.end(&mut a, lease);
    assert_eq!(old.carry(&mut [&mut a, &mut b]), [], "each lets the other go first");
    a.renew(&*new.store, first, new.waiter("light", "right", 100), new.now);
    let started = a.poll(&*new.store, new.now).started;
    assert_eq!(started.iter().map(|started| started.ticket).collect::<Vec<_>>(), [first]);
}

#[test]
fn of_a_tenant_held_up_in_two_vms_who_came_first_starts_first() {
    let mut proxy = proxy(9);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let own = proxy.start(&mut a, "one", "low");
    let first = proxy.wait(&mut b, "one", "low");
    proxy.later(10);
    let second = proxy.wait(&mut a, "one", "low");
    proxy.carry(&mut [&mut a, &mut b]);
    proxy.end(&mut a, own);
    let started = proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!(started.iter().map(|(vm, started)| (*vm, started.ticket)).collect::<Vec<_>>(), [(1, first)]);
    proxy.end(&mut b, started[0].1.admission.lease);
    let started = proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!(started.iter().map(|(vm, started)| (*vm, started.ticket)).collect::<Vec<_>>(), [(0, second)]);
}

/// A tenant at its cap waits in one VM for two pools, first with batch work and then with a chat. A chat that comes to another VM once
/// the cap has room comes after that chat.
#[test]
fn of_a_tenants_waiters_for_several_pools_the_highest_lane_goes_first() {
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "chat", "priority": 10, "queue": {"max_wait": "60s"}}, {"name": "batch", "queue": {"max_wait": "60s"}},
        ],
        "tenants": {"one": {"max_in_flight": 1}},
        "pools": [
            {"name": "p", "models": ["p"], "max_in_flight": 9}, {"name": "q", "models": ["q"], "max_in_flight": 9},
        ],
    }));
    let (mut here, mut there) = (proxy.vm(), proxy.vm());
    let running = proxy.start(&mut here, "one", "chat");
    proxy.later(10);
    proxy.wait(&mut here, "one", "batch");
    proxy.later(10);
    let of_q = Arc::clone(proxy.policy.pools().nth(1).unwrap());
    let chat = Waiter { pool: of_q, ..proxy.waiter("one", "chat", 1) };
    let Ok(Joined::Waiting(chat)) = proxy.come(&mut here, chat) else { panic!("the tenant is at its cap") };
    proxy.later(10);
    proxy.end(&mut here, running);
    let newcomer = proxy.waiter("one", "chat", 1);
    let refusal = there.admit(&*proxy.store, &newcomer.request(), proxy.now).unwrap_err();
    assert_eq!(refusal.reason, Reason::OwnFirst);
    let started = proxy.carry(&mut [&mut here, &mut there]);
    assert_eq!(started.iter().map(|(vm, started)| (*vm, started.ticket)).collect::<Vec<_>>(), [(0, chat)]);
}
