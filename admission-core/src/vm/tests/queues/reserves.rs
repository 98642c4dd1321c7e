//! Parts of a pool that are kept for lanes, and those that wait for the rest.

use std::collections::BTreeSet;

use super::*;

#[test]
fn reserve_lets_a_lower_lane_have_its_share() {
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "high", "queue": {"max_wait": "60s"}},
            {"name": "low", "reserve": 0.5, "queue": {"max_wait": "60s"}},
        ],
        "pools": [{"name": "p", "max_in_flight": 4}],
    }));
    let mut vm = proxy.vm();
    let mut leases: Vec<LeaseId> = (0..4).map(|_| proxy.start(&mut vm, "light", "high")).collect();
    let high = proxy.wait(&mut vm, "light", "high");
    proxy.later(1);
    let low = [(); 3].map(|()| proxy.wait(&mut vm, "light", "low"));
    let mut next = || {
        proxy.end(&mut vm, leases.pop().unwrap());
        proxy.carry(&mut [&mut vm])[0].1.ticket
    };
    assert_eq!([next(), next(), next(), next()], [low[0], low[1], high, low[2]], "first until it holds its half");
}

/// Waiters of the lowest lane that have climbed count in that lane, so they would never use up a reserve that they were given.
#[test]
fn a_reserve_is_no_way_around_the_share_of_those_that_have_climbed() {
    let queue = json!({"max_requests": 300, "max_wait": "10m"});
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "high", "priority": 2, "queue": queue},
            {"name": "mid", "priority": 1, "reserve": {"share": 0.25, "lend": true}, "queue": queue},
            {"name": "low", "queue": queue, "aging": {"after": "1s"}},
        ],
        "default_lane": "mid",
        "pools": [{"name": "p", "max_in_flight": 4}],
    }));
    let mut vm = proxy.vm();
    let mut leases: Vec<LeaseId> = (0..4).map(|_| proxy.start(&mut vm, "light", "high")).collect();
    let low: BTreeSet<Ticket> = (0..150).map(|_| proxy.wait(&mut vm, "light", "low")).collect();
    for _ in 0..150 {
        proxy.wait(&mut vm, "light", "high");
    }
    proxy.later(10_000);
    let mut climbed = 0;
    for _ in 0..100 {
        proxy.end(&mut vm, leases.remove(0));
        for (_, started) in proxy.carry(&mut [&mut vm]) {
            climbed += usize::from(low.contains(&started.ticket));
            leases.push(started.admission.lease);
        }
    }
    assert_eq!(climbed, 5, "of the hundred that started");
}

/// The place that is left is kept for the highest lane, so one of the lowest gives way to the one between.
#[test]
fn who_is_kept_out_by_a_reserve_has_a_lower_one_evicted() {
    let proxy = with(&json!({
        "lanes": [
            {"name": "high", "priority": 2, "reserve": {"requests": 1}},
            {"name": "mid", "priority": 1, "queue": {"max_wait": "60s"}},
            {"name": "low", "preemptible": true},
        ],
        "pools": [{"name": "p", "max_in_flight": 3}],
    }));
    let mut vm = proxy.vm();
    let low = [(); 2].map(|()| proxy.start(&mut vm, "light", "low"));
    let mid = proxy.wait(&mut vm, "light", "mid");
    assert_eq!(proxy.carry(&mut [&mut vm]), []);
    assert_eq!(vm.leases_to_evict(), [low[1]], "the newest");
    proxy.end(&mut vm, low[1]);
    assert_eq!(proxy.carry(&mut [&mut vm])[0].1.ticket, mid);
    assert_eq!(vm.leases_to_evict(), []);
}
