//! Refusals out of a queue, and the limit that kept the request from starting.

use super::*;
use crate::outcome::Detail;

fn bound(refusal: &Refusal) -> Option<(Reason, Option<&str>)> {
    let Detail::KeptBy(bound) = &refusal.detail else { return None };
    Some((bound.reason, bound.limit.as_ref().map(|limit| &*limit.knob)))
}

/// Reasons that the pool's record has of what waits.
fn kept(proxy: &Proxy) -> Vec<Option<Reason>> {
    let members = store::read::<Members>(&*proxy.store, &proxy.policy.keys.members()).unwrap().0;
    let ledger = store::read::<Ledger>(&*proxy.store, &proxy.policy.keys.pool("p")).unwrap().0;
    ledger.kept(&members).map(|kept| kept.reason).collect()
}

#[test]
fn it_is_the_one_that_keeps_the_request_when_its_time_is_up() {
    let mut proxy = proxy(2);
    let mut vm = proxy.vm();
    let lease = proxy.start(&mut vm, "one", "high");
    proxy.wait(&mut vm, "one", "high");
    assert_eq!(kept(&proxy), [Some(Reason::TenantRequests)]);
    proxy.start(&mut vm, "light", "high");
    proxy.end(&mut vm, lease);
    proxy.start(&mut vm, "heavy", "bare");
    proxy.later(2_000);
    let refused = vm.poll(&*proxy.store, proxy.now).refused;
    assert_eq!(bound(&refused[0].refusal), Some((Reason::PoolRequests, Some("pools[p].max_in_flight"))));
    assert_eq!(kept(&proxy), [], "what has left waits for nothing");
}

#[test]
fn a_wait_too_long_and_a_full_queue_name_it_too() {
    let mut proxy = proxy(9);
    let mut vm = proxy.vm();
    let lease = proxy.start(&mut vm, "one", "high");
    proxy.later(3_000);
    proxy.end(&mut vm, lease);
    proxy.start(&mut vm, "one", "high");
    let own = Some((Reason::TenantRequests, Some("tenants.one.max_in_flight")));
    let long = proxy.refused(&mut vm, proxy.waiter("one", "high", 100));
    assert_eq!((long.reason, bound(&long)), (Reason::WaitTooLong, own));
    let unmeasured = self::proxy(9);
    let (proxy, mut vm) = (&unmeasured, unmeasured.vm());
    proxy.start(&mut vm, "one", "high");
    for _ in 0..8 {
        proxy.wait(&mut vm, "one", "low");
    }
    let full = proxy.refused(&mut vm, proxy.waiter("one", "low", 100));
    assert_eq!((full.reason, bound(&full)), (Reason::QueueFull, own));
}

/// The first in line lacks a place of the pool's, which a newcomer behind it would have: it came free in another VM.
#[test]
fn behind_others_it_is_what_these_lack() {
    let proxy = proxy(1);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let lease = proxy.start(&mut a, "light", "low");
    proxy.wait(&mut a, "light", "low");
    proxy.end(&mut a, lease);
    for vm in [&mut a, &mut b] {
        let mut late = proxy.waiter("light", "low", 100);
        late.deadline = Some(Millis(0));
        let refused = proxy.refused(vm, late);
        assert_eq!((refused.reason, bound(&refused)), (Reason::WaitTooLong, Some((Reason::PoolRequests, None))));
    }
}

/// The tenant holds 300 of 400 tokens: a large request lacks some of its own, and a small one is behind it.
#[test]
fn behind_a_waiter_of_its_own_tenant_it_is_what_that_one_lacks() {
    let mut proxy = with(&json!({
        "lanes": [{"name": "only", "queue": {"max_wait": "2s"}}],
        "tenants": {"one": {"max_tokens_in_flight": 400}},
        "pools": [{"name": "p", "max_in_flight": 9}],
    }));
    let mut vm = proxy.vm();
    for tokens in [300, 200, 10] {
        proxy.come(&mut vm, proxy.waiter("one", "only", tokens)).unwrap();
    }
    assert_eq!(kept(&proxy), [Some(Reason::TenantTokens)], "that others come first is no reason of its own");
    proxy.later(2_000);
    let refused = vm.poll(&*proxy.store, proxy.now).refused;
    let own = Some((Reason::TenantTokens, Some("tenants.one.max_tokens_in_flight")));
    assert_eq!(refused.iter().map(|given_up| bound(&given_up.refusal)).collect::<Vec<_>>(), [own, own]);
}

/// A tenant at its own cap waits in one lane, and the pool is full for another lane: each is said of its own.
#[test]
fn those_who_stand_aside_and_those_in_line_have_reasons_of_their_own() {
    let proxy = proxy(2);
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "one", "low");
    proxy.wait(&mut vm, "one", "low");
    let lease = proxy.start(&mut vm, "light", "high");
    proxy.wait(&mut vm, "light", "high");
    let reasons = |proxy: &Proxy| kept(proxy).into_iter().flatten().collect::<Vec<_>>();
    let both = reasons(&proxy);
    assert!(both.contains(&Reason::TenantRequests) && both.contains(&Reason::PoolRequests), "{both:?}");
    proxy.end(&mut vm, lease);
    assert_eq!(vm.poll(&*proxy.store, proxy.now).started.len(), 1);
    assert_eq!(reasons(&proxy), [Reason::TenantRequests], "the pool keeps none of the two any more");
}
