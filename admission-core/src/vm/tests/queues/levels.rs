//! Lanes of one priority: one line.

use super::*;
use crate::outcome::Reason;

#[test]
fn tenants_of_lanes_of_one_priority_take_turns_over_both() {
    let lane = |name: &str| json!({"name": name, "queue": {"max_wait": "60s"}});
    let proxy = with(&json!({"lanes": [lane("chat"), lane("agents")], "pools": [{"name": "p", "max_in_flight": 1}]}));
    let mut vm = proxy.vm();
    let mut running = proxy.start(&mut vm, "first", "chat");
    let come = [("greedy", "chat"), ("greedy", "chat"), ("modest", "agents"), ("modest", "agents")];
    let tickets = come.map(|(tenant, lane)| proxy.wait(&mut vm, tenant, lane));
    let mut order = Vec::new();
    for _ in 0..tickets.len() {
        proxy.end(&mut vm, running);
        let [(_, started)] = &proxy.carry(&mut [&mut vm])[..] else { panic!("one place, one start") };
        running = started.admission.lease;
        order.push(tickets.iter().position(|ticket| *ticket == started.ticket).unwrap());
    }
    assert_eq!(
        order,
        [0, 2, 1, 3],
        "the second of a tenant goes behind the first of the other, whose lane is listed later"
    );
}

/// Waiters of another lane count by the turns that their tenants take, as those of its own do.
#[test]
fn a_flood_in_one_lane_shuts_no_tenant_out_of_another() {
    let lane = |name: &str, wait: &str| json!({"name": name, "queue": {"max_requests": 1000, "max_wait": wait}});
    for into in ["chat", "agents"] {
        let lanes = [lane("chat", "60s"), lane("agents", "10s")];
        let mut proxy = with(&json!({"lanes": lanes, "pools": [{"name": "p", "max_in_flight": 1}]}));
        let mut vm = proxy.vm();
        for _ in 0..50 {
            let lease = proxy.start(&mut vm, "greedy", "chat");
            proxy.later(100);
            proxy.end(&mut vm, lease);
        }
        let running = proxy.start(&mut vm, "greedy", "chat");
        for _ in 0..290 {
            proxy.wait(&mut vm, "greedy", "chat");
        }
        let modest = proxy.wait(&mut vm, "modest", into);
        let refused = proxy.come(&mut vm, proxy.waiter("greedy", "agents", 100)).unwrap_err();
        assert_eq!((refused.reason, refused.place.unwrap().position), (Reason::WaitTooLong, 292), "{into}");
        proxy.end(&mut vm, running);
        let [(_, started)] = &proxy.carry(&mut [&mut vm])[..] else { panic!("one place, one start") };
        assert_eq!(started.ticket, modest, "{into}");
    }
}

/// At a saturation that closes `other` and not those above it.
#[test]
fn waiters_climb_from_priority_to_priority() {
    let other = json!({"name": "other", "ceiling": 0.8, "queue": {"max_wait": "60s"}, "aging": {"after": "1s"}});
    let open = |name: &str, priority: i32| json!({"name": name, "ceiling": 1.2, "priority": priority});
    let shut = |name: &str, priority: i32| json!({"name": name, "ceiling": 0.8, "priority": priority});
    let climbs_after = |lanes: &[Value], to: Option<&str>| {
        let mut other = other.clone();
        if let Some(to) = to {
            other["aging"]["to"] = json!(to);
        }
        let lanes = [lanes, &[other]].concat();
        let pools = json!([{"name": "p", "max_in_flight": 100, "stale": {"hold": "600s"}}]);
        let mut proxy = with(&json!({"lanes": lanes, "default_lane": lanes[0]["name"], "pools": pools}));
        let mut vm = proxy.vm();
        let worker = json!({"address": "10.0.0.1:80", "state": "up", "scraped_ms_ago": 1, "busy": false});
        take_view(&proxy, 1, &json!({"saturation": 0.9, "workers": [worker]}));
        proxy.wait(&mut vm, "some", "other");
        (1..6).find(|_| {
            proxy.later(1_001);
            !vm.poll(&*proxy.store, proxy.now).started.is_empty()
        })
    };
    assert_eq!(climbs_after(&[open("one", 0)], None), None, "lanes of one priority do not age into each other");
    assert_eq!(climbs_after(&[open("up", 5), open("one", 0)], None), Some(1), "the lane beside it is no step");
    assert_eq!(
        climbs_after(&[open("up", 5), shut("up2", 5)], None),
        Some(1),
        "the default lane, where it has that priority"
    );
    assert_eq!(climbs_after(&[open("top", 9), shut("up", 5), open("up2", 5)], None), Some(1), "else the last one");
    assert_eq!(climbs_after(&[open("top", 9), shut("up", 5), shut("up2", 5)], None), Some(2));
    assert_eq!(climbs_after(&[open("top", 9), open("up", 5), shut("up2", 5)], Some("up")), Some(1), "or where it may");
    assert_eq!(climbs_after(&[open("top", 9), shut("up", 5)], Some("up")), None);
}
