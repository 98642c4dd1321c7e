//! Tenants that no configuration names.

use std::convert::Infallible;

use serde_json::json;

use super::tallies::{proxy, tag};
use super::*;
use crate::keys::{in_record, other_place, shared_slot, unnamed_record};
use crate::members::Member;
use crate::unnamed::MOST_IN_RECORD;

/// Names of which each two have the same number.
fn alike(count: usize, number: impl Fn(&str) -> u64) -> Vec<String> {
    let first = number("invented-0");
    let names = (0_u32..).map(|name| format!("invented-{name}")).filter(|name| number(name) == first);
    names.take(count).collect()
}

fn of_one_shared_record(count: usize) -> Vec<String> {
    alike(count, |name| shared_slot(name.as_bytes()))
}

fn of_one_record(count: usize) -> Vec<String> {
    alike(count, |name| unnamed_record(name.as_bytes()))
}

fn limited(limits: &serde_json::Value) -> Proxy {
    proxy(&json!({"tenants": {"*": limits}, "pools": [{"name": "p", "max_in_flight": 999}]}))
}

/// A VM of an older module that has joined and holds a request of a tenant, which it counts in the shared record.
fn older_vm(proxy: &Proxy, tenant: &str) -> Holder {
    let join = |members: &mut Members| members.join_as_older().map(|holder| (holder, members.clone())).ok_or(());
    let joined = store::update(&*proxy.store, &proxy.policy.keys.members(), join);
    let (holder, members) = joined.unwrap().unwrap();
    let charge = |ledger: &mut Ledger| {
        ledger.charge(&members, holder, LaneKey(0), Amount { requests: 1, ..Amount::default() });
        Ok::<_, Infallible>(())
    };
    let slot = shared_slot(tenant.as_bytes());
    store::update(&*proxy.store, &proxy.policy.keys.shared_tenant(slot), charge).unwrap().unwrap();
    holder
}

fn end(proxy: &Proxy, older: Holder) {
    let fence = |members: &mut Members| {
        members.fence(&[Member { holder: older, heartbeat: 0 }]);
        Ok::<_, Infallible>(())
    };
    store::update(&*proxy.store, &proxy.policy.keys.members(), fence).unwrap().unwrap();
}

/// Requests that a tenant holds in its own ledger, and those in the one that it shares.
fn held(proxy: &Proxy, tenant: &str) -> (u64, u64) {
    let own = proxy.policy.tenant_key(tenant);
    (proxy.held(&own).requests, proxy.held(&other_place(&own).unwrap()).requests)
}

#[test]
fn each_has_a_cap_a_budget_and_a_fair_tag_of_its_own() {
    for names in [of_one_record(2), of_one_shared_record(2)] {
        let proxy = limited(&json!({"max_in_flight": 1, "requests_per_minute": 2}));
        let mut vm = proxy.vm();
        let [one, other] = [&names[0], &names[1]];
        for name in [one, other] {
            let lease = proxy.admit(&mut vm, name).unwrap();
            assert_eq!(proxy.admit(&mut vm, name), Err(Reason::TenantRequests), "{name}");
            vm.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
        }
        proxy.admit(&mut vm, one).unwrap();
        assert_eq!(held(&proxy, one), (1, 0));
        assert_eq!(held(&proxy, other), (0, 0));
        let [one, other] = [one, other].map(|name| ledger_at(&*proxy.store, &proxy.policy.tenant_key(name)).unwrap());
        assert_eq!((tag(&proxy, &one), tag(&proxy, &other)), (2 * 160 * 1_024, 160 * 1_024));
    }
}

#[test]
fn those_for_whom_a_record_has_no_room_share_one_until_one_of_it_is_idle() {
    let mut proxy = limited(&json!({"max_in_flight": 2, "requests_per_minute": 60}));
    let mut vm = proxy.vm();
    let names = of_one_record(MOST_IN_RECORD + 1);
    let (last, others) = names.split_last().unwrap();
    let mut leases: Vec<LeaseId> = others.iter().map(|name| proxy.admit(&mut vm, name).unwrap()).collect();
    let of_last = proxy.admit(&mut vm, last).unwrap();
    assert_eq!(held(&proxy, last), (0, 1), "attackers in every place, and it has its cap all the same");
    vm.release(&*proxy.store, leases.remove(0), Usage::Nothing, proxy.now);
    proxy.admit(&mut vm, last).unwrap();
    assert_eq!(held(&proxy, last), (0, 2), "the one that holds nothing owes a request to its budget");
    proxy.ticks(&mut [&mut vm], 10);
    assert_eq!(proxy.admit(&mut vm, last), Err(Reason::TenantRequests), "what it holds in the other place counts");
    vm.release(&*proxy.store, of_last, Usage::Nothing, proxy.now);
    proxy.admit(&mut vm, last).unwrap();
    assert_eq!(held(&proxy, last), (1, 1));
    assert_eq!(held(&proxy, &others[1]).0, 1, "those that hold something stay");
    assert_eq!((vm.take_counted_together(), vm.take_counted_together()), (2, 0));
}

#[test]
fn a_budget_that_was_spent_in_one_place_is_not_new_in_the_other() {
    let proxy = limited(&json!({"requests_per_minute": 3}));
    let older = older_vm(&proxy, "cust-076");
    let mut vm = proxy.vm();
    for _ in 0..3 {
        proxy.admit(&mut vm, "cust-076").unwrap();
    }
    end(&proxy, older);
    let mut vm = proxy.vm();
    assert_eq!(proxy.admit(&mut vm, "cust-076"), Err(Reason::TenantRequestRate));
    assert_eq!(held(&proxy, "cust-076"), (0, 3));
}

#[test]
fn while_an_older_module_lives_its_count_is_kept_and_no_cap_is_exceeded() {
    let proxy = limited(&json!({"max_in_flight": 2}));
    let older = older_vm(&proxy, "cust-076");
    let mut vm = proxy.vm();
    let first = proxy.admit(&mut vm, "cust-076").unwrap();
    assert_eq!(held(&proxy, "cust-076"), (0, 2), "where the older one sees it");
    assert_eq!(proxy.admit(&mut vm, "cust-076"), Err(Reason::TenantRequests));
    end(&proxy, older);
    let mut other = proxy.vm();
    proxy.admit(&mut other, "cust-076").unwrap();
    assert_eq!(held(&proxy, "cust-076"), (1, 1));
    assert_eq!(proxy.admit(&mut other, "cust-076"), Err(Reason::TenantRequests));
    vm.release(&*proxy.store, first, Usage::AsEstimated, proxy.now);
    assert_eq!(held(&proxy, "cust-076"), (1, 0), "it is given back where it was taken");
}

/// One VM believes that an older one lives, and so charges the shared record; the other does not.
#[test]
fn two_vms_that_charge_two_places_do_not_exceed_a_cap_between_them() {
    for late_is_interrupted in [false, true] {
        let proxy = limited(&json!({"max_in_flight": 1}));
        let older = older_vm(&proxy, "somebody");
        let mut late = proxy.vm();
        proxy.admit(&mut late, "nobody").unwrap();
        end(&proxy, older);
        let own = proxy.policy.tenant_key("cust-076");
        let place = if late_is_interrupted { other_place(&own).unwrap() } else { own };
        let (mut first, mut second) = if late_is_interrupted { (late, proxy.vm()) } else { (proxy.vm(), late) };
        let (rival, seen) = (proxy.clone(), Rc::new(RefCell::new(None)));
        let found = Rc::clone(&seen);
        // The first has read both places by then, and found nothing held.
        proxy.store.before_write(in_record(&place).0, move || {
            *found.borrow_mut() = Some(rival.admit(&mut second, "cust-076"));
        });
        assert_eq!(proxy.admit(&mut first, "cust-076"), Err(Reason::TenantRequests), "{late_is_interrupted}");
        assert!(seen.borrow().as_ref().is_some_and(Result::is_ok), "{late_is_interrupted}");
        let (own, shared) = held(&proxy, "cust-076");
        assert_eq!(own + shared, 1);
    }
}
