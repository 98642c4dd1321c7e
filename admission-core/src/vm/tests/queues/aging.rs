//! Waiters that climb to higher lanes.

use super::*;

#[test]
fn a_waiter_of_two_minutes_counts_as_the_next_lane_up() {
    let lane = |name: &str, priority: i32, aging: bool| {
        let aging = aging.then(|| json!({"after": "120s"}));
        let mut lane = json!({"name": name, "priority": priority, "queue": {"max_wait": "600s"}});
        lane.as_object_mut().unwrap().extend(aging.map(|aging| ("aging".to_owned(), aging)));
        lane
    };
    let mut proxy = with(&json!({
        "lanes": [lane("p0", 2, false), lane("p1", 1, false), lane("p2", 0, true)],
        "pools": [{"name": "p", "max_in_flight": 1}],
    }));
    let mut vm = proxy.vm();
    let first = proxy.start(&mut vm, "light", "p0");
    let old = proxy.wait(&mut vm, "light", "p2");
    proxy.later(121_000);
    vm.poll(&*proxy.store, proxy.now);
    let p1 = proxy.wait(&mut vm, "heavy", "p1");
    let p0 = proxy.wait(&mut vm, "other", "p0");
    let mut order = Vec::new();
    let mut lease = first;
    for _ in 0..3 {
        proxy.end(&mut vm, lease);
        let started = proxy.carry(&mut [&mut vm]);
        order.push(started[0].1.ticket);
        lease = started[0].1.admission.lease;
    }
    assert_eq!(order, [p0, old, p1]);
}

#[test]
fn who_has_aged_is_held_to_the_ceiling_and_budget_of_the_lane_that_it_counts_as() {
    let lane =
        |name: &str, priority: i32, ceiling: f64| json!({"name": name, "priority": priority, "ceiling": ceiling});
    let mut batch = lane("batch", -10, 0.8);
    batch["dispatch_budget"] = json!({"baseline": 0.05});
    (batch["queue"], batch["aging"]) = (json!({"max_wait": "60s"}), json!({"after": "1s"}));
    let mut proxy = with(&json!({
        "lanes": [lane("interactive", 100, 1.2), lane("standard", 0, 1.0), batch],
        "pools": [{"name": "p", "max_in_flight": 100, "stale": {"hold": "600s"}}],
    }));
    let (mut here, mut there) = (proxy.vm(), proxy.vm());
    for (generation, saturation, climbs) in [(1, 0.9, 1), (2, 1.05, 2), (3, 0.81, 1)] {
        let worker = json!({"address": "10.0.0.1:80", "state": "up", "scraped_ms_ago": 1, "busy": false});
        take_view(&proxy, generation, &json!({"saturation": saturation, "workers": [worker]}));
        let ticket = proxy.wait(&mut here, "some", "batch");
        proxy.later(climbs * 1_000 - 10);
        assert_eq!(here.poll(&*proxy.store, proxy.now).started, [], "at {saturation}");
        proxy.later(20);
        let Ok(Joined::Waiting(younger)) = proxy.come(&mut there, proxy.waiter("other", "batch", 1)) else {
            panic!("at {saturation}")
        };
        let started = here.poll(&*proxy.store, proxy.now).started;
        assert_eq!(started.iter().map(|started| started.ticket).collect::<Vec<_>>(), [ticket], "at {saturation}");
        assert_eq!(there.poll(&*proxy.store, proxy.now).started, [], "{saturation}: the younger one has not climbed");
        there.leave(&*proxy.store, younger, proxy.now);
        proxy.end(&mut here, started[0].admission.lease);
    }
}

/// Many who have climbed to the highest lane beside many who came for it, in two VMs: of a hundred starts five are of the first, and
/// once none waits that came for that lane, all are.
#[test]
fn who_has_climbed_above_the_default_lane_has_a_share_of_the_starts_while_others_could_start() {
    let queue = json!({"max_requests": 500, "max_wait": "600s"});
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "high", "priority": 10, "queue": queue}, {"name": "mid", "queue": queue},
            {"name": "low", "priority": -10, "queue": queue, "aging": {"after": "1s"}},
        ],
        "default_lane": "mid", "pools": [{"name": "p", "max_in_flight": 1}],
    }));
    let (mut here, mut there) = (proxy.vm(), proxy.vm());
    let mut lease = (proxy.start(&mut here, "first", "high"), 0);
    let climbers: Vec<Ticket> = (0..120).map(|_| proxy.wait(&mut there, "climbs", "low")).collect();
    proxy.later(3_000);
    there.poll(&*proxy.store, proxy.now);
    for _ in 0..200 {
        proxy.wait(&mut here, "came", "high");
    }
    let mut climbed = Vec::new();
    for _ in 0..310 {
        proxy.later(5);
        let vm = if lease.1 == 0 { &mut here } else { &mut there };
        proxy.end(vm, lease.0);
        let mut started = proxy.carry(&mut [&mut here, &mut there]);
        for (place, vm) in [&mut here, &mut there].into_iter().enumerate() {
            started.extend(vm.poll(&*proxy.store, proxy.now).started.into_iter().map(|started| (place, started)));
        }
        let [(place, started)] = started.try_into().unwrap();
        climbed.push(place == 1 && climbers.contains(&started.ticket));
        lease = (started.admission.lease, place);
    }
    let count = |starts: &[bool]| starts.iter().filter(|climbed| **climbed).count();
    assert_eq!((count(&climbed[..100]), count(&climbed[100..200])), (5, 5));
    assert_eq!((count(&climbed), count(&climbed[220..])), (110, 90), "all of them once the others have started");
}

/// The share is spent and a request that came for the highest lane waits in a VM that is gone: those that have climbed wait for it until
/// it is void, and no longer.
#[test]
fn a_dead_vm_bounds_those_who_have_climbed_until_it_is_void() {
    let queue = json!({"max_wait": "600s"});
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "high", "priority": 10, "queue": queue}, {"name": "mid"},
            {"name": "low", "priority": -10, "queue": queue, "aging": {"after": "1s", "share": 0.01}},
        ],
        "default_lane": "mid", "pools": [{"name": "p", "max_in_flight": 1}],
    }));
    let (mut gone, mut vm) = (proxy.vm(), proxy.vm());
    let lease = proxy.start(&mut vm, "first", "mid");
    for _ in 0..3 {
        proxy.wait(&mut vm, "climbs", "low");
    }
    proxy.later(3_000);
    proxy.wait(&mut gone, "came", "high");
    gone.tick(&*proxy.store, proxy.now).unwrap();
    proxy.end(&mut vm, lease);
    let started = vm.poll(&*proxy.store, proxy.now).started;
    assert_eq!(started.len(), 1, "one of a hundred");
    proxy.end(&mut vm, started[0].admission.lease);
    assert_eq!(vm.poll(&*proxy.store, proxy.now).started, [], "its share is spent, and the other could start");
    for _ in 0..15 {
        proxy.later(100);
        vm.tick(&*proxy.store, proxy.now).unwrap();
    }
    assert_eq!(vm.poll(&*proxy.store, proxy.now).started.len(), 1, "no other could start");
}
