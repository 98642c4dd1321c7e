//! Pools without workers, dispatch budgets, classes.

use super::super::refusals::refuse;
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
    assert_eq!((progress.refused[0].ticket, progress.refused[0].refusal.reason), (early, Reason::NoWorkers));
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
    refuse(&proxy, &mut vm, "10.0.0.9:80", "light");
    proxy.wait(&mut vm, "light", "low");
    proxy.later(3_000);
    assert_eq!(vm.poll(&*proxy.store, proxy.now), Progress::default(), "a worker has refused");
    let wakes = push(&proxy, 3, &[false], 0.0);
    assert_eq!(vm.woken(&*proxy.store, &wakes[0].note, proxy.now).started.len(), 1);
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

/// Tenants that have been served 40, 30, 20 and 10 tokens ask for as many again; one that has been served nothing asks for 900 and 910.
#[test]
fn the_shortest_goes_first_among_tenants_where_enough_wait_and_turns_are_near() {
    let turns = [900, 10, 20, 30, 40, 910];
    for (after, expected) in [(9, turns), (0, [10, 20, 30, 40, 900, 910]), (4, [10, 20, 900, 30, 40, 910])] {
        let queue = json!({"order": "shortest_first", "across_tenants_after": after, "max_wait": "60s"});
        let mut proxy = with(&json!({
            "lanes": [{"name": "low", "queue": queue}],
            "pools": [{"name": "p", "max_in_flight": 1}],
        }));
        let mut vms = [proxy.vm(), proxy.vm()];
        for (tenant, tokens) in [("t2", 40), ("t3", 30), ("t4", 20), ("t5", 10)] {
            let Ok(Joined::Started(served)) = proxy.come(&mut vms[0], proxy.waiter(tenant, "low", tokens)) else {
                panic!("the place is free")
            };
            proxy.end(&mut vms[0], served.lease);
        }
        let mut running = (0, proxy.start(&mut vms[0], "light", "low"));
        for (vm, tenant, tokens) in
            [(0, "t1", 900), (1, "t1", 910), (0, "t2", 40), (1, "t3", 30), (0, "t4", 20), (1, "t5", 10)]
        {
            assert!(matches!(proxy.come(&mut vms[vm], proxy.waiter(tenant, "low", tokens)), Ok(Joined::Waiting(_))));
            proxy.later(1);
        }
        let mut order = Vec::new();
        while order.len() < expected.len() {
            // Why first: a thread that has not looked since shows the others a head that may not be its first any more.
            proxy.later(5);
            vms.iter_mut().for_each(|vm| assert_eq!(vm.poll(&*proxy.store, proxy.now).started, []));
            proxy.end(&mut vms[running.0], running.1);
            let [a, b] = &mut vms;
            let started = proxy.carry(&mut [a, b]);
            let [(vm, started)] = started.as_slice() else { panic!("{order:?}, then {started:?}") };
            running = (*vm, started.admission.lease);
            order.push(proxy.pool().tokens.0);
        }
        assert_eq!(order, expected, "beyond {after}");
    }
}
