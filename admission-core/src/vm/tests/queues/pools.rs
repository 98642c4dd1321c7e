//! Bounds of what waits for a pool, over its lanes.

use super::*;

/// A pool of one request before which four requests may wait, or a few bytes.
fn bounded(max_bytes: &str) -> Proxy {
    with(&json!({
        "lanes": [
            {"name": "high", "priority": 10, "queue": {"max_wait": "60s"}},
            {"name": "middle", "priority": 0, "queue": {"max_wait": "60s"}},
            {"name": "low", "priority": -10, "queue": {"max_wait": "60s"}},
        ],
        "tenants": {"acme": {}, "light": {}},
        "pools": [{"name": "p", "max_in_flight": 1, "queue": {"max_requests": 4, "max_bytes": max_bytes}}],
    }))
}

/// The tickets that have given way in a VM, after the messages of another have come.
fn gave_way(proxy: &Proxy, from: &mut Vm, vm: &mut Vm) -> Vec<Ticket> {
    let wakes: Vec<Wake> = from.take_wakes().into_iter().filter(|wake| Some(wake.slot) == vm.slot()).collect();
    let notes = wakes.iter().map(|wake| Note::decode(&wake.note.encode()).unwrap());
    let refused = notes.flat_map(|note| vm.woken(&*proxy.store, &note, proxy.now).refused).collect::<Vec<_>>();
    assert!(refused.iter().all(|GivenUp { refusal, .. }| {
        let limit = refusal.limit.as_ref().unwrap();
        refusal.reason == Reason::QueueFull && &*limit.knob == "pools[p].queue.max_requests" && limit.measured == 5
    }));
    refused.into_iter().map(|given_up| given_up.ticket).collect()
}

#[test]
fn in_a_full_pool_the_newest_of_the_lowest_lane_gives_way_to_a_higher_one() {
    let mut proxy = bounded("1MiB");
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "light", "low");
    let low: Vec<Ticket> = (0..2).map(|_| proxy.wait(&mut vm, "light", "low")).collect();
    proxy.later(1);
    let middle = [proxy.wait(&mut vm, "light", "middle"), proxy.wait(&mut vm, "light", "middle")];
    let refusal = proxy.refused(&mut vm, proxy.waiter("light", "low", 1));
    let limit = refusal.limit.unwrap();
    assert_eq!((refusal.reason, &*limit.knob, limit.measured), (Reason::QueueFull, "pools[p].queue.max_requests", 5));
    for (came, gives_way) in [("high", low[1]), ("high", low[0]), ("high", middle[1])] {
        proxy.wait(&mut vm, "acme", came);
        let told = vm.poll(&*proxy.store, proxy.now).refused;
        assert_eq!(told.iter().map(|given_up| given_up.ticket).collect::<Vec<_>>(), [gives_way]);
        assert_eq!(proxy.waiting(), 4);
    }
    let middle_again = proxy.waiter("light", "middle", 1);
    assert_eq!(proxy.refused(&mut vm, middle_again).reason, Reason::QueueFull, "nobody of a lower lane waits");
}

#[test]
fn the_lowest_lane_gives_way_in_whatever_vm_it_waits() {
    let proxy = bounded("1MiB");
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    proxy.start(&mut a, "light", "low");
    proxy.wait(&mut a, "light", "middle");
    let low: Vec<Ticket> = (0..3).map(|_| proxy.wait(&mut b, "light", "low")).collect();
    proxy.wait(&mut a, "light", "high");
    assert_eq!(proxy.waiting(), 5, "until the other VM has been told");
    assert_eq!(gave_way(&proxy, &mut a, &mut b), [low[2]]);
    assert_eq!(proxy.waiting(), 4);
    // A message more than there is to do, as after one that was late.
    let again = Note::GiveWay(proxy.policy.keys.pool("p").into());
    assert_eq!(b.woken(&*proxy.store, &again, proxy.now).refused, []);
}

#[test]
fn a_waiter_gives_way_although_the_message_was_lost() {
    let proxy = bounded("1MiB");
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    proxy.start(&mut a, "light", "low");
    let low: Vec<Ticket> = (0..4).map(|_| proxy.wait(&mut b, "light", "low")).collect();
    proxy.wait(&mut a, "light", "high");
    a.take_wakes();
    let gave_way = |vm: &mut Vm| vm.poll(&*proxy.store, proxy.now).refused.first().map(|given_up| given_up.ticket);
    assert_eq!((gave_way(&mut b), gave_way(&mut b)), (Some(low[3]), None));
    assert_eq!(proxy.waiting(), 4);
}

#[test]
fn what_waits_longer_than_a_bound_that_was_lowered_stays() {
    let mut proxy = bounded("1MiB");
    let mut vm = proxy.vm();
    let lease = proxy.start(&mut vm, "light", "low");
    let tickets: Vec<Ticket> = (0..4).map(|_| proxy.wait(&mut vm, "light", "low")).collect();
    let other = with(&json!({
        "lanes": [
            {"name": "high", "priority": 10, "queue": {"max_wait": "60s"}},
            {"name": "low", "priority": -10, "queue": {"max_wait": "60s"}},
        ],
        "pools": [{"name": "p", "max_in_flight": 1, "queue": {"max_requests": 1}}],
    }));
    proxy.policy = other.policy;
    for ticket in tickets {
        vm.renew(&*proxy.store, ticket, proxy.waiter("light", "low", 100), proxy.now);
    }
    assert_eq!((vm.poll(&*proxy.store, proxy.now).refused, proxy.waiting()), (vec![], 4));
    assert_eq!(proxy.refused(&mut vm, proxy.waiter("light", "low", 1)).reason, Reason::QueueFull);
    proxy.end(&mut vm, lease);
    assert_eq!(vm.poll(&*proxy.store, proxy.now).started.len(), 1);
}

#[test]
fn of_the_bytes_that_wait_a_quarter_is_one_tenants() {
    let proxy = bounded("4000");
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    proxy.start(&mut a, "light", "low");
    let bytes = |vm: &mut Vm, tenant: &str, lane: &str, kept_bytes: u64| {
        proxy.come(vm, Waiter { kept_bytes, ..proxy.waiter(tenant, lane, 1) }).map_err(|refusal| {
            let limit = refusal.limit.unwrap();
            (limit.knob.to_string(), limit.measured, limit.allowed)
        })
    };
    let full = |measured, allowed| Err(("pools[p].queue.max_bytes".to_owned(), measured, allowed));
    assert!(bytes(&mut a, "light", "low", 600).is_ok());
    assert_eq!(bytes(&mut b, "light", "high", 401), full(1_001, 1_000), "over lanes and VMs");
    let refusal = proxy.refused(&mut b, Waiter { kept_bytes: 401, ..proxy.waiter("light", "low", 1) });
    assert_eq!(refusal.place.map(|place| place.position), Some(2), "it is told where it would have been");
    assert!(bytes(&mut b, "light", "high", 400).is_ok());
    assert_eq!(bytes(&mut b, "acme", "low", 3_001), full(4_001, 4_000), "of all");
    assert!(bytes(&mut b, "acme", "low", 3_000).is_ok(), "the first of a tenant");
    assert_eq!(bytes(&mut a, "acme", "high", 1), full(3_001, 1_000));
}
