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
