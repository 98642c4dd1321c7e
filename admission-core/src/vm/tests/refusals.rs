//! Refusals of workers, and of what they are news.

use serde_json::json;

use super::tallies::{A, B, proxy, push};
use super::*;
use crate::request::Api;

fn sent(tenant_key: &str) -> Sent<'_> {
    Sent { api: Api::Chat, model: Some("m-1"), tenant_key }
}

fn unserved(proxy: &Proxy, vm: &mut Vm, worker: &str, how: Unserved, sent: &Sent<'_>) {
    let pool = Arc::clone(proxy.policy.only_pool().unwrap());
    vm.unserved(&*proxy.store, &pool, worker, how, sent, proxy.now);
}

fn served(proxy: &Proxy, vm: &mut Vm, worker: &str, sent: &Sent<'_>) {
    let pool = Arc::clone(proxy.policy.only_pool().unwrap());
    vm.served_by(&pool, worker, sent, proxy.now);
}

/// A worker refuses a request of a tenant, of a kind that it has served.
pub(super) fn refuse(proxy: &Proxy, vm: &mut Vm, worker: &str, tenant_key: &str) {
    served(proxy, vm, worker, &sent("others"));
    unserved(proxy, vm, worker, Unserved::Refused, &sent(tenant_key));
}

fn of_two() -> Proxy {
    let proxy = proxy(&json!({"pools": [{"name": "p", "max_in_flight": 99, "models": ["m-1", "m-2"]}]}));
    push(&proxy, 1, &[(A, false), (B, true)]);
    proxy
}

#[test]
fn a_worker_that_refuses_is_busy_for_every_vm_until_the_next_view() {
    let mut proxy = of_two();
    let (mut one, mut two) = (proxy.vm(), proxy.vm());
    for nobody in [B, "10.9.9.9:1", ""] {
        refuse(&proxy, &mut one, nobody, "a");
        assert!(proxy.ask(&mut two, 1).is_ok(), "{nobody} is not one of the free");
    }
    refuse(&proxy, &mut one, A, "b");
    assert_eq!(proxy.ask(&mut two, 1).err(), Some(Reason::AllBusy));
    push(&proxy, 2, &[(A, false), (B, true)]);
    assert_eq!(proxy.ask(&mut two, 1).err(), Some(Reason::AllBusy), "its scrape may be older than the refusal");
    proxy.now = Time(proxy.now.0 + 100);
    assert!(proxy.ask(&mut two, 1).is_ok(), "the view is newer than the refusal");
    refuse(&proxy, &mut one, A, "c");
    proxy.now = Time(proxy.now.0 + 999);
    assert_eq!(proxy.ask(&mut two, 1).err(), Some(Reason::AllBusy));
    proxy.now = Time(proxy.now.0 + 1);
    assert!(proxy.ask(&mut two, 1).is_ok(), "after a second it is tried again");
}

#[test]
fn what_a_worker_has_never_served_says_nothing_when_it_is_refused() {
    let proxy = of_two();
    let mut vm = proxy.vm();
    served(&proxy, &mut vm, A, &sent("acme"));
    served(&proxy, &mut vm, B, &Sent { api: Api::Embeddings, ..sent("acme") });
    for other in [Sent { api: Api::Embeddings, ..sent("a") }, Sent { model: Some("m-2"), ..sent("b") }] {
        unserved(&proxy, &mut vm, A, Unserved::Refused, &other);
        assert!(proxy.ask(&mut vm, 1).is_ok(), "{other:?}");
    }
    unserved(&proxy, &mut vm, A, Unserved::Refused, &Sent { model: None, ..sent("c") });
    assert_eq!(proxy.ask(&mut vm, 1).err(), Some(Reason::AllBusy), "unread, it may be of any model that was served");
}

#[test]
fn a_tenant_that_is_refused_while_others_are_served_keeps_the_worker_from_no_other() {
    let mut proxy = of_two();
    let (mut one, mut two) = (proxy.vm(), proxy.vm());
    refuse(&proxy, &mut one, A, "evil");
    assert_eq!(proxy.ask(&mut one, 1).err(), Some(Reason::AllBusy));
    for generation in 2..12 {
        push(&proxy, generation, &[(A, false), (B, true)]);
        proxy.now = Time(proxy.now.0 + 400);
        for vm in [&mut one, &mut two] {
            refuse(&proxy, vm, A, "evil");
            assert!(proxy.ask(vm, 1).is_ok(), "of the worker it says nothing new");
        }
    }
    refuse(&proxy, &mut two, A, "zeta");
    assert_eq!(proxy.ask(&mut one, 1).err(), Some(Reason::AllBusy), "two tenants are refused");
}

#[test]
fn a_worker_that_only_refuses_is_left_alone_however_often_one_tenant_comes() {
    let mut proxy = of_two();
    let mut vm = proxy.vm();
    served(&proxy, &mut vm, A, &sent("acme"));
    for generation in 2..12 {
        proxy.now = Time(proxy.now.0 + 200);
        assert!(proxy.ask(&mut vm, 1).is_ok(), "a new view: it is tried");
        unserved(&proxy, &mut vm, A, Unserved::Refused, &sent("acme"));
        assert_eq!(proxy.ask(&mut vm, 1).err(), Some(Reason::AllBusy));
        push(&proxy, generation, &[(A, false), (B, true)]);
    }
}

#[test]
fn a_worker_that_no_connection_reaches_is_left_alone_whatever_it_has_served() {
    let proxy = of_two();
    let mut vm = proxy.vm();
    unserved(&proxy, &mut vm, A, Unserved::Unreachable, &sent("acme"));
    assert_eq!(proxy.ask(&mut vm, 1).err(), Some(Reason::AllBusy));
}

#[test]
fn the_proxy_is_asked_who_served_only_where_no_request_is_steered_and_once_a_tick() {
    let mut proxy = of_two();
    let mut vm = proxy.vm();
    let lease = proxy.ask(&mut vm, 1).unwrap().lease;
    assert!(vm.served(lease, &sent("a"), proxy.now));
    let other = Sent { api: Api::Completions, ..sent("a") };
    assert!(!vm.served(lease, &sent("b"), proxy.now) && vm.served(lease, &other, proxy.now));
    proxy.ticks(&mut [&mut vm], 1);
    assert!(vm.served(lease, &sent("a"), proxy.now));

    let proxy = super::tallies::proxy(&json!({"pools": [{"name": "p", "max_in_flight": 9, "pick_endpoint": true}]}));
    push(&proxy, 1, &[(A, false)]);
    let mut vm = proxy.vm();
    let lease = proxy.ask(&mut vm, 1).unwrap().lease;
    assert!(!vm.served(lease, &sent("a"), proxy.now), "the lease knows");
    unserved(&proxy, &mut vm, A, Unserved::Refused, &sent("b"));
    assert_eq!(proxy.ask(&mut vm, 1).err(), Some(Reason::AllBusy));
}
