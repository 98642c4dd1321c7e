//! Refusals of workers, and of what they are news.

use serde_json::json;

use super::tallies::{A, B, proxy, push};
use super::*;
use crate::request::Api;

fn sent(shape: u64) -> Sent<'static> {
    Sent { api: Api::Chat, model: Some("m"), tenant_key: "acme", shape }
}

fn unserved(proxy: &Proxy, vm: &mut Vm, worker: &str, how: Unserved, sent: &Sent<'_>) {
    let pool = Arc::clone(proxy.policy.only_pool().unwrap());
    vm.unserved(&*proxy.store, &pool, worker, how, sent, proxy.now);
}

/// A worker refuses a request of this shape, of a kind that it has served.
pub(super) fn refuse(proxy: &Proxy, vm: &mut Vm, worker: &str, shape: u64) {
    vm.served_by(worker, &sent(shape));
    unserved(proxy, vm, worker, Unserved::Refused, &sent(shape));
}

fn of_two() -> Proxy {
    let proxy = proxy(&json!({"pools": [{"name": "p", "max_in_flight": 99}]}));
    push(&proxy, 1, &[(A, false), (B, true)]);
    proxy
}

#[test]
fn a_worker_that_refuses_is_busy_for_every_vm_until_the_next_view() {
    let mut proxy = of_two();
    let (mut one, mut two) = (proxy.vm(), proxy.vm());
    for nobody in [B, "10.9.9.9:1", ""] {
        refuse(&proxy, &mut one, nobody, 1);
        assert!(proxy.ask(&mut two, 1).is_ok(), "{nobody} is not one of the free");
    }
    refuse(&proxy, &mut one, A, 2);
    assert_eq!(proxy.ask(&mut two, 1).err(), Some(Reason::AllBusy));
    push(&proxy, 2, &[(A, false), (B, true)]);
    assert_eq!(proxy.ask(&mut two, 1).err(), Some(Reason::AllBusy), "its scrape may be older than the refusal");
    proxy.now = Time(proxy.now.0 + 100);
    assert!(proxy.ask(&mut two, 1).is_ok(), "the view is newer than the refusal");
    refuse(&proxy, &mut one, A, 3);
    proxy.now = Time(proxy.now.0 + 999);
    assert_eq!(proxy.ask(&mut two, 1).err(), Some(Reason::AllBusy));
    proxy.now = Time(proxy.now.0 + 1);
    assert!(proxy.ask(&mut two, 1).is_ok(), "after a second it is tried again");
}

#[test]
fn what_a_worker_has_never_served_says_nothing_when_it_is_refused() {
    let proxy = of_two();
    let mut vm = proxy.vm();
    vm.served_by(A, &sent(1));
    vm.served_by(B, &Sent { api: Api::Embeddings, ..sent(1) });
    for other in [
        Sent { api: Api::Embeddings, ..sent(2) },
        Sent { model: Some("another"), ..sent(2) },
        Sent { model: None, ..sent(2) },
    ] {
        unserved(&proxy, &mut vm, A, Unserved::Refused, &other);
        assert!(proxy.ask(&mut vm, 1).is_ok(), "{other:?}");
    }
    unserved(&proxy, &mut vm, A, Unserved::Refused, &sent(2));
    assert_eq!(proxy.ask(&mut vm, 1).err(), Some(Reason::AllBusy), "it has served the like");
}

#[test]
fn a_request_that_is_refused_again_and_again_keeps_its_worker_from_no_other() {
    let mut proxy = of_two();
    let (mut one, mut two) = (proxy.vm(), proxy.vm());
    for vm in [&mut one, &mut two] {
        vm.served_by(A, &sent(1));
    }
    refuse(&proxy, &mut one, A, 1);
    assert_eq!(proxy.ask(&mut one, 1).err(), Some(Reason::AllBusy));
    for generation in 2..12 {
        push(&proxy, generation, &[(A, false), (B, true)]);
        proxy.now = Time(proxy.now.0 + 400);
        for vm in [&mut one, &mut two] {
            unserved(&proxy, vm, A, Unserved::Refused, &sent(1));
            assert!(proxy.ask(vm, 1).is_ok(), "of the worker it says nothing new");
        }
    }
    let other = Sent { tenant_key: "zeta", ..sent(1) };
    unserved(&proxy, &mut two, A, Unserved::Refused, &other);
    assert_eq!(proxy.ask(&mut one, 1).err(), Some(Reason::AllBusy), "two tenants are refused");
}

#[test]
fn a_worker_that_no_connection_reaches_is_left_alone_whatever_it_has_served() {
    let proxy = of_two();
    let mut vm = proxy.vm();
    unserved(&proxy, &mut vm, A, Unserved::Unreachable, &sent(1));
    assert_eq!(proxy.ask(&mut vm, 1).err(), Some(Reason::AllBusy));
}

#[test]
fn the_proxy_is_asked_who_served_only_where_no_request_is_steered_and_once_a_tick() {
    let mut proxy = of_two();
    let mut vm = proxy.vm();
    let lease = proxy.ask(&mut vm, 1).unwrap().lease;
    assert!(vm.served(lease, &sent(1)));
    assert!(!vm.served(lease, &sent(2)) && vm.served(lease, &Sent { api: Api::Completions, ..sent(1) }));
    proxy.ticks(&mut [&mut vm], 1);
    assert!(vm.served(lease, &sent(1)));

    let proxy = super::tallies::proxy(&json!({"pools": [{"name": "p", "max_in_flight": 9, "pick_endpoint": true}]}));
    push(&proxy, 1, &[(A, false)]);
    let mut vm = proxy.vm();
    let lease = proxy.ask(&mut vm, 1).unwrap().lease;
    assert!(!vm.served(lease, &sent(1)), "the lease knows");
    unserved(&proxy, &mut vm, A, Unserved::Refused, &sent(2));
    assert_eq!(proxy.ask(&mut vm, 1).err(), Some(Reason::AllBusy));
}
