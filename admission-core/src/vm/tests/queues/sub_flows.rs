//! Turns within a tenant, by the key that the platform puts into a header.

use super::*;
use crate::ledger::SubFlow;
use crate::vm::Progress;

impl Proxy {
    fn keyed(&self, tenant: &str, key: &str) -> Waiter {
        Waiter { sub: Some(SubFlow::of(key.as_bytes())), ..self.waiter(tenant, "low", 100) }
    }

    fn keyed_waits(&self, vm: &mut Vm, tenant: &str, key: &str) -> Ticket {
        match self.come(vm, self.keyed(tenant, key)) {
            Ok(Joined::Waiting(ticket)) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn keyed_starts(&self, vm: &mut Vm, tenant: &str, key: &str) -> LeaseId {
        match self.come(vm, self.keyed(tenant, key)) {
            Ok(Joined::Started(admission)) => admission.lease,
            other => panic!("{other:?}"),
        }
    }

    /// Ends what runs and lets the next start, so often; the tickets that started. Each VM looks between two starts at what they have
    /// moved, as it does with every poll.
    fn order(&self, vms: &mut [&mut Vm], (at, lease): (usize, LeaseId), times: usize) -> Vec<(usize, Ticket)> {
        let mut running = (at, lease);
        let one_after_the_other = (0..times).map(|_| {
            let polled = vms.iter_mut().map(|vm| vm.poll(&*self.store, self.now));
            polled.for_each(|progress| assert_eq!(progress, Progress::default()));
            self.end(vms[running.0], running.1);
            let [(vm, started)] = &self.carry(vms)[..] else { panic!("one place, one start") };
            running = (*vm, started.admission.lease);
            (*vm, started.ticket)
        });
        one_after_the_other.collect()
    }
}

/// The pool is full, or the tenant holds all that it may.
#[test]
fn users_of_one_tenant_take_turns_over_all_threads() {
    for (tenant, places) in [("light", 1), ("one", 8)] {
        let proxy = proxy(places);
        let (mut a, mut b, mut c) = (proxy.vm(), proxy.vm(), proxy.vm());
        let running = proxy.keyed_starts(&mut a, tenant, "hog");
        for vm in [&mut a, &mut b, &mut c] {
            proxy.keyed_waits(vm, tenant, "hog");
            proxy.keyed_waits(vm, tenant, "hog");
        }
        let modest = [proxy.keyed_waits(&mut b, tenant, "modest"), proxy.keyed_waits(&mut b, tenant, "modest")];
        let order = proxy.order(&mut [&mut a, &mut b, &mut c], (0, running), 4);
        let of_modest: Vec<usize> = (0..4).filter(|at| order[*at].0 == 1 && modest.contains(&order[*at].1)).collect();
        assert_eq!(of_modest, [0, 2], "{tenant}: {order:?}");
    }
}

#[test]
fn keys_gain_a_tenant_nothing_against_others() {
    let mut proxy = proxy(1);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let running = proxy.keyed_starts(&mut a, "acme", "key-0");
    proxy.later(1);
    let keyed: Vec<Ticket> = (0..4).map(|key| proxy.keyed_waits(&mut a, "acme", &format!("key-{key}"))).collect();
    proxy.later(1);
    for _ in 0..4 {
        proxy.wait(&mut b, "light", "low");
    }
    let order = proxy.order(&mut [&mut a, &mut b], (0, running), 6);
    assert_eq!(order.iter().map(|(vm, _)| *vm).collect::<Vec<_>>(), [1, 0, 1, 0, 1, 0]);
    assert_eq!(order[1], (0, keyed[1]), "the key that runs already goes last");
}

/// Tags within a tenant only grow, so one with a long history would go behind each newcomer if they were compared.
#[test]
fn equal_tags_of_two_tenants_go_by_arrival() {
    let mut proxy = proxy(1);
    let mut vm = proxy.vm();
    for tenant in ["acme", "acme", "acme", "light", "light", "light", "light"] {
        let lease = proxy.keyed_starts(&mut vm, tenant, "old");
        proxy.end(&mut vm, lease);
    }
    let running = proxy.start(&mut vm, "two", "low");
    proxy.later(1);
    let old = proxy.keyed_waits(&mut vm, "acme", "old");
    proxy.later(1);
    let newcomers = ["three", "four"].map(|tenant| proxy.keyed_waits(&mut vm, tenant, "new"));
    let order = proxy.order(&mut [&mut vm], (0, running), 3);
    assert_eq!(order.iter().map(|(_, ticket)| *ticket).collect::<Vec<_>>(), [old, newcomers[0], newcomers[1]]);
}

/// A waiter of another class is of another flow, and its tenant's turn is for all of these.
#[test]
fn users_take_turns_over_the_classes_of_their_requests() {
    let proxy = with(&json!({
        "lanes": [{"name": "low", "queue": {"max_wait": "60s"}}],
        "pools": [{"name": "p", "max_in_flight": 1, "classes": [{"name": "long", "min_prompt_tokens": 101, "max_in_flight": 8}]}],
    }));
    let mut vm = proxy.vm();
    let running = proxy.keyed_starts(&mut vm, "acme", "hog");
    let hogs = [proxy.keyed_waits(&mut vm, "acme", "hog"), proxy.keyed_waits(&mut vm, "acme", "hog")];
    let long = Waiter { sub: Some(SubFlow::of(b"modest")), ..proxy.waiter("acme", "low", 150) };
    let Ok(Joined::Waiting(long)) = proxy.come(&mut vm, long) else { panic!("it waits") };
    let order = proxy.order(&mut [&mut vm], (0, running), 3);
    assert_eq!(order.iter().map(|(_, ticket)| *ticket).collect::<Vec<_>>(), [long, hogs[0], hogs[1]]);
}

#[test]
fn an_answer_that_was_shorter_brings_its_user_forward() {
    let proxy = proxy(2);
    let mut vm = proxy.vm();
    let short = proxy.keyed_starts(&mut vm, "acme", "short");
    let running = proxy.keyed_starts(&mut vm, "acme", "long");
    let long = proxy.keyed_waits(&mut vm, "acme", "long");
    let next = proxy.keyed_waits(&mut vm, "acme", "short");
    vm.release(&*proxy.store, short, Usage::Served(Served::whole(Tokens(1), Tokens(0))), proxy.now);
    let started: Vec<Ticket> = proxy.carry(&mut [&mut vm]).iter().map(|(_, one)| one.ticket).collect();
    assert_eq!(started, [next]);
    assert_eq!(proxy.order(&mut [&mut vm], (0, running), 1), [(0, long)]);
}

/// More waiters than a VM looks at of one tenant, none of which fits.
#[test]
fn a_user_whose_requests_do_not_fit_hides_no_other() {
    let mut proxy = with(&json!({
        "lanes": [{"name": "low", "queue": {"max_requests": 300, "max_wait": "10s"}}],
        "pools": [{"name": "p", "max_in_flight": 1_000, "kv": {"block_size": 16, "headroom": 0.0}, "stale": {"hold": "60s"}}],
    }));
    let mut vm = proxy.vm();
    let see = |proxy: &Proxy, generation, used: u64| {
        let rank = json!({"kv_used_blocks": used, "kv_total_blocks": 100});
        let worker =
            json!({"address": "10.0.0.1:80", "state": "up", "scraped_ms_ago": 1, "busy": false, "ranks": [rank]});
        take_view(proxy, generation, &json!({"workers": [worker]}));
    };
    let keyed = |proxy: &Proxy, key: &str, tokens| Waiter {
        sub: Some(SubFlow::of(key.as_bytes())),
        ..proxy.waiter("acme", "low", tokens)
    };
    see(&proxy, 1, 0);
    let Ok(Joined::Started(served)) = proxy.come(&mut vm, keyed(&proxy, "modest", 16)) else { panic!("there is room") };
    proxy.end(&mut vm, served.lease);
    see(&proxy, 2, 100);
    let waits = |proxy: &Proxy, vm: &mut Vm, key, tokens| match proxy.come(vm, keyed(proxy, key, tokens)) {
        Ok(Joined::Waiting(ticket)) => ticket,
        other => panic!("{other:?}"),
    };
    for _ in 0..200 {
        waits(&proxy, &mut vm, "hog", 1_600);
    }
    let modest = waits(&proxy, &mut vm, "modest", 16);
    see(&proxy, 3, 50);
    proxy.later(5);
    let started: Vec<Ticket> = vm.poll(&*proxy.store, proxy.now).started.iter().map(|one| one.ticket).collect();
    assert_eq!(started, [modest]);
}

/// A change takes `fairness_header` out of the policy, or puts it in: those that came before it are older.
#[test]
fn requests_with_and_without_a_user_go_by_arrival() {
    for (before, after) in [(Some("a"), None), (None, Some("a"))] {
        let mut proxy = proxy(1);
        let mut vm = proxy.vm();
        let waiter = |proxy: &Proxy, key: Option<&str>| Waiter {
            sub: key.map(|key| SubFlow::of(key.as_bytes())),
            ..proxy.waiter("acme", "low", 100)
        };
        for key in ["a", "b", "c", "a", "b", "c"] {
            let lease = proxy.keyed_starts(&mut vm, "acme", key);
            proxy.end(&mut vm, lease);
        }
        let running = proxy.keyed_starts(&mut vm, "acme", "a");
        let come = |proxy: &mut Proxy, vm: &mut Vm, key| {
            proxy.later(1);
            match proxy.come(vm, waiter(proxy, key)) {
                Ok(Joined::Waiting(ticket)) => ticket,
                other => panic!("{other:?}"),
            }
        };
        let tickets = [before, before, after, after].map(|key| come(&mut proxy, &mut vm, key));
        let order = proxy.order(&mut [&mut vm], (0, running), 4);
        assert_eq!(order.iter().map(|(_, ticket)| *ticket).collect::<Vec<_>>(), tickets, "{before:?}, {after:?}");
    }
}

/// A newcomer in one VM, before the other VM that it has woken looks.
#[test]
fn a_shorter_request_of_one_user_does_not_pass_the_user_whose_turn_it_is() {
    let queue = json!({"max_wait": "60s", "order": "shortest_first"});
    let proxy =
        with(&json!({"lanes": [{"name": "low", "queue": queue}], "pools": [{"name": "p", "max_in_flight": 1}]}));
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    for _ in 0..20 {
        let lease = proxy.keyed_starts(&mut a, "acme", "hog");
        proxy.end(&mut a, lease);
    }
    let running = proxy.keyed_starts(&mut a, "acme", "hog");
    let long = Waiter { sub: Some(SubFlow::of(b"modest")), ..proxy.waiter("acme", "low", 500) };
    let Ok(Joined::Waiting(modest)) = proxy.come(&mut b, long) else { panic!("the pool is full") };
    proxy.carry(&mut [&mut a, &mut b]);
    proxy.end(&mut a, running);
    proxy.keyed_waits(&mut a, "acme", "hog");
    let [(_, started)] = &proxy.carry(&mut [&mut a, &mut b])[..] else { panic!("one place, one start") };
    assert_eq!(started.ticket, modest);
}

#[test]
fn a_short_request_of_one_user_lends_no_other_its_place_among_tenants() {
    let queue = json!({"max_wait": "60s", "order": "shortest_first", "across_tenants_after": 1});
    let proxy =
        with(&json!({"lanes": [{"name": "low", "queue": queue}], "pools": [{"name": "p", "max_in_flight": 1}]}));
    let (mut a, mut b, mut c) = (proxy.vm(), proxy.vm(), proxy.vm());
    let keyed = |tenant: &str, key: &str, tokens| Waiter {
        sub: Some(SubFlow::of(key.as_bytes())),
        ..proxy.waiter(tenant, "low", tokens)
    };
    let Ok(Joined::Started(served)) = proxy.come(&mut a, keyed("x", "short", 50)) else { panic!("there is room") };
    proxy.end(&mut a, served.lease);
    let running = proxy.start(&mut a, "z", "low");
    let waits = |vm: &mut Vm, waiter| assert!(matches!(proxy.come(vm, waiter), Ok(Joined::Waiting(_))));
    waits(&mut a, keyed("x", "long", 5_000));
    waits(&mut b, keyed("x", "short", 10));
    waits(&mut c, keyed("y", "any", 100));
    waits(&mut c, keyed("y", "any", 100));
    proxy.carry(&mut [&mut a, &mut b, &mut c]);
    proxy.end(&mut a, running);
    let started = proxy.carry(&mut [&mut a, &mut b, &mut c]);
    assert_eq!(started.iter().map(|(vm, _)| *vm).collect::<Vec<_>>(), [2], "100 tokens before 5,000");
}
