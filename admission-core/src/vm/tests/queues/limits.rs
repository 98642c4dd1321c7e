//! Pools without workers, dispatch budgets, evictions, classes.

use super::*;

#[test]
fn a_pool_without_workers_holds_requests_until_one_appears() {
    let mut proxy = with(&json!({
        "lanes": [{"name": "low", "queue": {"max_wait": "2s"}}],
        "pools": [{"name": "p", "max_in_flight_per_worker": 4, "hold_when_empty": "30s"}],
    }));
    let mut vm = proxy.vm();
    push(&proxy, 1, &[], 0.0);
    let early = proxy.wait(&mut vm, "light", "low");
    for step in 0..5 {
        proxy.later(4_000);
        push(&proxy, 2 + step, &[], 0.0);
        assert_eq!(vm.poll(&*proxy.store, proxy.now), Progress::default(), "longer than the lane's wait");
    }
    proxy.wait(&mut vm, "light", "low");
    proxy.later(10_000);
    push(&proxy, 8, &[], 0.0);
    let progress = vm.poll(&*proxy.store, proxy.now);
    assert_eq!(progress.refused.len(), 1);
    assert_eq!((progress.refused[0].0, progress.refused[0].1.reason), (early, Reason::NoWorkers));
    let wakes = push(&proxy, 9, &[false], 0.0);
    assert_eq!(wakes.len(), 1, "a new view wakes");
    assert_eq!(vm.woken(&*proxy.store, &wakes[0].note, proxy.now).started.len(), 1);
}

#[test]
fn a_dispatch_budget_bounds_its_lane_and_holds_back_no_other() {
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "high", "queue": {"max_wait": "60s"}},
            {"name": "low", "priority": -1, "ceiling": 9.0, "queue": {"max_wait": "60s"},
             "dispatch_budget": {"baseline": 0.1}},
            {"name": "lowest", "priority": -2, "ceiling": 9.0, "queue": {"max_wait": "60s"}},
        ],
        "pools": [{"name": "p", "max_in_flight": 10}],
    }));
    let mut vm = proxy.vm();
    push(&proxy, 1, &[false], 0.6);
    let first = proxy.start(&mut vm, "light", "low");
    for _ in 0..2 {
        proxy.start(&mut vm, "light", "low");
    }
    proxy.wait(&mut vm, "light", "low");
    proxy.start(&mut vm, "light", "lowest");
    proxy.end(&mut vm, first);
    let woken = vm.poll(&*proxy.store, proxy.now).started;
    assert_eq!(woken.len(), 0, "D - B = 0.3 of ten, and three have started since the scrape, of whatever lane");
    let wakes = push(&proxy, 2, &[false], 0.4);
    assert_eq!(vm.woken(&*proxy.store, &wakes[0].note, proxy.now).started.len(), 1, "D - B = 0.5 of ten");
    let pool = Arc::clone(proxy.policy.only_pool().unwrap());
    vm.mark(&*proxy.store, &pool, "10.0.0.9:80", proxy.now);
    proxy.wait(&mut vm, "light", "low");
    proxy.later(3_000);
    assert_eq!(vm.poll(&*proxy.store, proxy.now), Progress::default(), "a worker has refused");
    let wakes = push(&proxy, 3, &[false], 0.0);
    assert_eq!(vm.woken(&*proxy.store, &wakes[0].note, proxy.now).started.len(), 1);
}

#[test]
fn the_newest_request_of_the_lowest_lane_gives_way() {
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "high", "queue": {"max_wait": "60s"}},
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
    assert_eq!((proxy.carry(&mut [&mut a, &mut b]), b.take_evictions()), (vec![], vec![]), "none for its own lane");
    let high = proxy.wait(&mut a, "light", "high");
    proxy.carry(&mut [&mut a, &mut b]);
    proxy.later(5);
    a.poll(&*proxy.store, proxy.now);
    proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!((a.take_evictions(), b.take_evictions()), (vec![], vec![newest]), "one for one that waits");
    b.release(&*proxy.store, newest, Usage::Refused, proxy.now);
    let started = proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!(started.iter().map(|(vm, started)| (*vm, started.ticket)).collect::<Vec<_>>(), [(0, high)]);
    for _ in 0..2 {
        proxy.wait(&mut b, "light", "high");
    }
    proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!((a.take_evictions().len(), b.take_evictions().len()), (1, 0), "the other one has begun its answer");
    let ledger = store::read::<Ledger>(&*proxy.store, &proxy.policy.keys.pool("p")).unwrap().0;
    assert_eq!(ledger.asked_to_evict(a.members()), 1);
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
    assert_eq!(vm.take_evictions(), [low]);
    let refusal = vm.evicted(&*proxy.store, low, proxy.now);
    let Retry::After(Millis(wait)) = refusal.retry else { panic!("{refusal:?}") };
    assert!(refusal.reason == Reason::Evicted && (1_200..=2_000).contains(&wait), "{refusal:?}");
}

#[test]
fn nobody_gives_way_to_who_waits_for_its_own_tenant() {
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "high", "queue": {"max_wait": "60s"}},
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
    assert_eq!(a.take_evictions().len(), 1, "one is in line, five wait for their tenant");
}

#[test]
fn a_class_at_its_cap_keeps_back_nobody_else() {
    let proxy = with(&json!({
        "lanes": [{"name": "low", "queue": {"max_wait": "60s"}}],
        "pools": [{"name": "p", "max_in_flight": 9, "classes": [{"name": "long", "min_prompt_tokens": 1000, "max_in_flight": 1}]}],
    }));
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let long = |proxy: &Proxy, vm: &mut Vm| proxy.come(vm, proxy.waiter("light", "low", 5_000)).unwrap();
    let Joined::Started(first) = long(&proxy, &mut a) else { panic!() };
    let Joined::Waiting(second) = long(&proxy, &mut b) else { panic!() };
    proxy.start(&mut b, "light", "low");
    proxy.start(&mut a, "light", "low");
    proxy.end(&mut a, first.lease);
    let started = proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!(started.iter().map(|(vm, started)| (*vm, started.ticket)).collect::<Vec<_>>(), [(1, second)]);
}
