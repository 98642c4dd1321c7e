//! Requests that wait for a rate.

use super::*;
use crate::outcome::Detail;
use crate::policy::Limits;
use crate::vm::POLL;

/// A pool of 60 requests a minute with a burst of one, with room for everything else.
fn pool_of_one_a_second(max_in_flight: u64, more: &Value) -> Proxy {
    let mut configuration = json!({
        "lanes": [
            {"name": "high", "priority": 10, "queue": {"max_requests": 100, "max_wait": "10s"}},
            {"name": "low", "priority": 0, "queue": {"max_requests": 100, "max_wait": "10s"}},
        ],
        "tenants": {"*": {}},
        "pools": [{"name": "p", "max_in_flight": max_in_flight, "requests_per_second": {"rate": 1, "burst": 1}}],
    });
    for (pointer, value) in more.as_object().unwrap() {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        configuration.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key.to_owned(), value.clone());
    }
    with(&configuration)
}

/// A tenant of 60 requests a minute with a burst of one, that may wait for its budget.
fn tenant_of_one_a_second(more: &Value) -> Proxy {
    let limits = json!({"requests_per_minute": {"rate": 60, "burst": 1}, "on_rate": "wait"});
    let mut all = json!({"/pools/0/requests_per_second": {"rate": 1_000, "burst": 1_000}, "/tenants/acme": limits});
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    pool_of_one_a_second(1_000, &all)
}

/// Waiters that have started, each with the time since the first look in milliseconds.
type Starts = Vec<(u64, Ticket)>;

/// Lets time go by poll by poll; who has started when, in milliseconds, and who was refused.
fn pass(proxy: &mut Proxy, vms: &mut [&mut Vm], time: Millis) -> (Starts, Vec<GivenUp>) {
    let (begun, mut started, mut refused) = (proxy.now, Vec::new(), Vec::new());
    while proxy.now.since(begun) < time {
        proxy.now = Time(proxy.now.0 + POLL.0);
        for vm in &mut *vms {
            let progress = vm.poll(&*proxy.store, proxy.now);
            started.extend(progress.started.iter().map(|one| (proxy.now.since(begun).0, one.ticket)));
            refused.extend(progress.refused);
        }
        started.extend(proxy.carry(vms).iter().map(|(_, one)| (proxy.now.since(begun).0, one.ticket)));
    }
    (started, refused)
}

fn advice(refusal: &Refusal) -> u64 {
    match refusal.retry {
        Retry::After(wait) => wait.0,
        Retry::Never => panic!("{refusal}"),
    }
}

/// Ten arrivals wait one to ten seconds, the eleventh is refused with eleven.
#[track_caller]
fn ten_wait_and_the_eleventh_is_refused(mut proxy: Proxy, reason: Reason) {
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "acme", "low");
    let tickets: Vec<Ticket> = (0..10).map(|_| proxy.wait(&mut vm, "acme", "low")).collect();
    for told in [11_000, 12_000] {
        let refusal = proxy.refused(&mut vm, proxy.waiter("acme", "low", 100));
        assert_eq!((refusal.reason, refusal.bound().reason), (Reason::WaitTooLong, reason), "{refusal}");
        assert_eq!((refusal.limit.as_ref().unwrap().measured, advice(&refusal)), (11_000, told), "{refusal}");
    }
    let (started, refused) = pass(&mut proxy, &mut [&mut vm], Millis(11_000));
    assert_eq!(refused, []);
    let (at, in_order): (Vec<u64>, Vec<Ticket>) = started.into_iter().unzip();
    assert_eq!((at, in_order), ((1..=10).map(|second| second * 1_000).collect(), tickets));
    assert!(vm.room.queues.is_empty());
    let (ledger, _) = store::read::<Ledger>(&*proxy.store, &proxy.policy.tenant_key("acme")).unwrap();
    assert_eq!((ledger.queued(vm.members()).count(), ledger.blocked(vm.members()).count()), (0, 0));
}

#[test]
fn ten_wait_for_a_pools_rate_and_the_eleventh_is_refused() {
    ten_wait_and_the_eleventh_is_refused(pool_of_one_a_second(1_000, &json!({})), Reason::PoolRequestRate);
}

#[test]
fn ten_wait_for_a_tenants_requests_and_the_eleventh_is_refused() {
    ten_wait_and_the_eleventh_is_refused(tenant_of_one_a_second(&json!({})), Reason::TenantRequestRate);
}

#[test]
fn ten_wait_for_a_tenants_tokens_and_the_eleventh_is_refused() {
    let limits = json!({"tokens_per_minute": {"rate": 6_000, "burst": 100}, "on_rate": "wait"});
    let proxy = tenant_of_one_a_second(&json!({"/tenants/acme": limits}));
    ten_wait_and_the_eleventh_is_refused(proxy, Reason::TenantTokenRate);
}

#[test]
fn of_ten_tenants_with_ten_each_ten_requests_wait_over_all_threads() {
    let mut proxy = pool_of_one_a_second(1_000, &json!({}));
    let (mut one, mut other) = (proxy.vm(), proxy.vm());
    proxy.start(&mut one, "acme", "low");
    let (mut waiting, mut refused) = (0, 0);
    for round in 0..10 {
        for tenant in 0..10 {
            let vm = if (round + tenant) % 2 == 0 { &mut one } else { &mut other };
            match proxy.come(vm, proxy.waiter(&format!("tenant-{tenant}"), "low", 100)) {
                Ok(Joined::Waiting(_)) => waiting += 1,
                Err(refusal) if refusal.bound().reason == Reason::PoolRequestRate => refused += 1,
                joined => panic!("{joined:?}"),
            }
        }
    }
    assert_eq!((waiting, refused), (10, 90));
    let (started, refused) = pass(&mut proxy, &mut [&mut one, &mut other], Millis(10_000));
    assert_eq!((started.len(), refused), (10, vec![]));
}

#[test]
fn who_comes_as_the_rate_is_earned_stands_behind_who_waits() {
    let burst = json!({"/pools/0/requests_per_second": {"rate": 1, "burst": 2}});
    let mut proxy = pool_of_one_a_second(1_000, &burst);
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "acme", "low");
    proxy.start(&mut vm, "globex", "low");
    let first = proxy.wait(&mut vm, "acme", "low");
    proxy.now = Time(proxy.now.0 + 1_000);
    let second = proxy.wait(&mut vm, "globex", "low");
    let (started, _) = pass(&mut proxy, &mut [&mut vm], Millis(1_000));
    assert_eq!(started.iter().map(|(_, ticket)| *ticket).collect::<Vec<_>>(), [first, second]);
}

#[test]
fn a_higher_lane_is_not_kept_out_by_those_below_that_wait_for_a_rate() {
    let mut proxy = pool_of_one_a_second(1_000, &json!({}));
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "acme", "low");
    for _ in 0..10 {
        proxy.wait(&mut vm, "acme", "low");
    }
    let high = proxy.wait(&mut vm, "globex", "high");
    let (started, _) = pass(&mut proxy, &mut [&mut vm], Millis(1_000));
    assert_eq!(started, [(1_000, high)]);
}

/// A tenant that waits for its own budget keeps back itself alone.
#[test]
fn who_waits_for_its_own_budget_keeps_back_its_own_tenant_alone() {
    let mut proxy = tenant_of_one_a_second(&json!({}));
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "acme", "low");
    let first = proxy.wait(&mut vm, "acme", "low");
    proxy.start(&mut vm, "globex", "low");
    proxy.now = Time(proxy.now.0 + 1_000);
    let second = proxy.wait(&mut vm, "acme", "low");
    let (started, _) = pass(&mut proxy, &mut [&mut vm], Millis(1_000));
    assert_eq!(started.iter().map(|(_, ticket)| *ticket).collect::<Vec<_>>(), [first, second]);
}

#[test]
fn what_waits_for_rates_is_half_of_each_bound_at_most() {
    let with = |bound: Value| {
        let proxy = tenant_of_one_a_second(&bound);
        let mut vm = proxy.vm();
        proxy.start(&mut vm, "acme", "low");
        for _ in 0..4 {
            proxy.wait(&mut vm, "acme", "low");
        }
        let refusal = proxy.refused(&mut vm, proxy.waiter("acme", "low", 100));
        let limit = refusal.limit.clone().unwrap();
        assert_eq!((refusal.reason, refusal.bound().reason), (Reason::QueueFull, Reason::TenantRequestRate));
        assert!(matches!(refusal.detail, Detail::KeptBy(_)), "{refusal}");
        (limit.knob.to_string(), limit.measured, limit.allowed)
    };
    let queue = |field: &str, most: Value| json!({format!("/lanes/1/queue/{field}"): most});
    assert_eq!(with(queue("max_requests", json!(9))), ("lanes[low].queue.max_requests".into(), 5, 4));
    assert_eq!(with(queue("max_tokens", json!(800))), ("lanes[low].queue.max_tokens".into(), 500, 400));
    assert_eq!(with(queue("max_bytes", json!("850"))), ("lanes[low].queue.max_bytes".into(), 500, 425));
    let pool = |queue: Value| json!({"/pools/0/queue": queue});
    assert_eq!(with(pool(json!({"max_requests": 8}))), ("pools[p].queue.max_requests".into(), 5, 4));

    // A place for who lacks no more than that is left.
    let proxy = tenant_of_one_a_second(&json!({"/pools/0/max_in_flight": 1, "/lanes/1/queue/max_requests": 4}));
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "acme", "low");
    for _ in 0..2 {
        proxy.wait(&mut vm, "acme", "low");
    }
    assert_eq!(proxy.refused(&mut vm, proxy.waiter("acme", "low", 100)).reason, Reason::QueueFull);
    for _ in 0..2 {
        proxy.wait(&mut vm, "globex", "low");
    }
}

/// The pool is short too, and its pace says how long that takes.
#[test]
fn who_lacks_more_than_a_rate_waits_for_the_longer_of_both() {
    let mut proxy = pool_of_one_a_second(1, &json!({}));
    let mut vm = proxy.vm();
    for _ in 0..10 {
        let lease = proxy.start(&mut vm, "acme", "low");
        proxy.now = Time(proxy.now.0 + 20_000);
        proxy.end(&mut vm, lease);
    }
    proxy.start(&mut vm, "acme", "low");
    let refusal = proxy.refused(&mut vm, proxy.waiter("acme", "low", 100));
    assert_eq!(refusal.bound().reason, Reason::PoolRequestRate);
    assert!(advice(&refusal) >= 15_000, "{refusal}");
}

#[test]
fn what_is_to_be_refused_is_told_the_instant() {
    let proxy = pool_of_one_a_second(1_000, &json!({"/pools/0/on_rate": "refuse"}));
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "acme", "low");
    let refusal = proxy.refused(&mut vm, proxy.waiter("acme", "low", 100));
    assert_eq!((refusal.reason, advice(&refusal)), (Reason::PoolRequestRate, 1_000));

    let proxy = tenant_of_one_a_second(&json!({"/tenants/acme/on_rate": "refuse"}));
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "acme", "low");
    let refusal = proxy.refused(&mut vm, proxy.waiter("acme", "low", 100));
    assert_eq!((refusal.reason, advice(&refusal)), (Reason::TenantRequestRate, 1_000));
}

/// A line whose waiters each start a poll late is served as fast as the rate is earned all the same.
#[test]
fn a_line_starts_as_fast_as_its_rate_whatever_each_is_late() {
    let rate = json!({"/pools/0/requests_per_second": {"rate": 30, "burst": 1}});
    let mut proxy = pool_of_one_a_second(1_000, &rate);
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "acme", "low");
    for _ in 0..50 {
        proxy.wait(&mut vm, "acme", "low");
    }
    proxy.now = Time(proxy.now.0 + 3);
    let (started, _) = pass(&mut proxy, &mut [&mut vm], Millis(1_005));
    assert_eq!(started.len(), 30);
}

/// A tenant of 6,000 tokens a minute with a burst of 1,000 that it waits for, before a pool with a class for long prompts.
fn tenant_of_tokens() -> Proxy {
    let limits = json!({"tokens_per_minute": {"rate": 6_000, "burst": 1_000}, "on_rate": "wait"});
    let classes = json!([{"name": "long", "min_prompt_tokens": 500, "max_in_flight": 100}]);
    tenant_of_one_a_second(&json!({"/tenants/acme": limits, "/pools/0/classes": classes}))
}

/// A large request of a higher lane or of another class before a stream of small ones of its tenant, in one VM and in two.
#[test]
fn small_requests_pass_no_large_one_of_their_tenant_that_waits_for_tokens() {
    for (lane, vms) in [("high", 1), ("high", 2), ("low", 1), ("low", 2)] {
        let mut proxy = tenant_of_tokens();
        let mut all = [proxy.vm(), proxy.vm()];
        let spend = proxy.waiter("acme", "low", 1_000);
        assert!(matches!(proxy.come(&mut all[0], spend), Ok(Joined::Started(_))));
        let Ok(Joined::Waiting(large)) = proxy.come(&mut all[0], proxy.waiter("acme", lane, 990)) else {
            panic!("the large one waits")
        };
        let mut when = Vec::new();
        for second in 1..=10_usize {
            let [one, other] = &mut all;
            let (started, refused) = pass(&mut proxy, &mut [one, other], Millis(990));
            assert_eq!(refused, [], "{lane} {vms}");
            when.extend(started.iter().map(|(_, ticket)| (second, *ticket)));
            let small = proxy.come(&mut all[second % vms], proxy.waiter("acme", "low", 10));
            assert!(matches!(small, Ok(Joined::Waiting(_))), "{lane} {vms} {second}: {small:?}");
        }
        assert_eq!(when.first(), Some(&(10, large)), "{lane} {vms}");
    }
}

#[test]
fn a_tenants_waiters_for_several_pools_start_in_their_order() {
    let Proxy { policy, .. } = with(&json!({
        "lanes": [{"name": "high", "priority": 1, "queue": {"max_wait": "10s"}}, {"name": "low", "queue": {"max_wait": "10s"}}],
        "tenants": {"acme": {"requests_per_minute": {"rate": 60, "burst": 1}, "on_rate": "wait"}},
        "pools": [{"name": "a", "models": ["a"], "max_in_flight": 99}, {"name": "z", "models": ["z"], "max_in_flight": 99}],
    }));
    let mut proxy = Proxy { policy, ..Proxy::new(1, 1) };
    let mut vm = proxy.vm();
    let come = |proxy: &mut Proxy, vm: &mut Vm, pool: &str, lane: &str| {
        proxy.now = Time(proxy.now.0 + 1);
        let pool = Arc::clone(proxy.policy.pool(pool).unwrap());
        proxy.come(vm, Waiter { pool, ..proxy.waiter("acme", lane, 100) })
    };
    assert!(matches!(come(&mut proxy, &mut vm, "a", "low"), Ok(Joined::Started(_))));
    let tickets =
        [("z", "low"), ("a", "low"), ("z", "high")].map(|(pool, lane)| match come(&mut proxy, &mut vm, pool, lane) {
            Ok(Joined::Waiting(ticket)) => ticket,
            other => panic!("{other:?}"),
        });
    let (started, _) = pass(&mut proxy, &mut [&mut vm], Millis(3_005));
    let order: Vec<Ticket> = started.iter().map(|(_, ticket)| *ticket).collect();
    assert_eq!(order, [tickets[2], tickets[0], tickets[1]]);
}

/// Many tenants, each with a rate of its own: each starts as fast as that.
#[test]
fn each_of_many_tenants_starts_as_fast_as_its_own_rate() {
    let limits = json!({"requests_per_minute": {"rate": 120, "burst": 1}, "on_rate": "wait"});
    let queue = json!({"max_requests": 10_000, "max_wait": "60s"});
    let mut proxy = tenant_of_one_a_second(&json!({"/tenants/*": limits, "/lanes/1/queue": queue}));
    let mut vm = proxy.vm();
    for tenant in 0..200 {
        let tenant = format!("tenant-{tenant}");
        proxy.start(&mut vm, &tenant, "low");
        for _ in 0..4 {
            proxy.wait(&mut vm, &tenant, "low");
        }
    }
    let (started, refused) = pass(&mut proxy, &mut [&mut vm], Millis(2_050));
    assert_eq!((started.len(), refused.len(), vm.waiting()), (800, 0, 0));
}

/// Half of the pool's bound is what lower lanes leave to a higher one, too.
#[test]
fn lower_lanes_that_wait_for_a_rate_leave_a_higher_one_its_half_of_the_pools_queue() {
    let proxy = pool_of_one_a_second(1_000, &json!({"/pools/0/queue": {"max_requests": 8}}));
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "acme", "low");
    for _ in 0..4 {
        proxy.wait(&mut vm, "acme", "low");
    }
    assert_eq!(proxy.refused(&mut vm, proxy.waiter("acme", "low", 100)).reason, Reason::QueueFull);
    proxy.wait(&mut vm, "globex", "high");
}

/// A tenant that floods keeps no other out of the half of a queue that rates may have.
#[test]
fn of_those_that_wait_for_a_rate_the_last_of_a_flood_gives_way() {
    let proxy = pool_of_one_a_second(1_000, &json!({"/lanes/1/queue": {"max_requests": 8, "max_wait": "60s"}}));
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "acme", "low");
    let tickets: Vec<Ticket> = (0..4).map(|_| proxy.wait(&mut vm, "acme", "low")).collect();
    let refusal = proxy.refused(&mut vm, proxy.waiter("acme", "low", 100));
    assert_eq!((refusal.reason, advice(&refusal)), (Reason::QueueFull, 5_000), "{refusal}");
    proxy.wait(&mut vm, "globex", "low");
    let displaced = vm.poll(&*proxy.store, proxy.now).refused;
    assert_eq!(displaced.iter().map(|given_up| given_up.ticket).collect::<Vec<_>>(), tickets[3..]);
}

/// A tenant with a cap and a budget, of which the cap binds first.
#[test]
fn who_waits_for_a_cap_is_held_to_the_budget_behind_it() {
    let limits = json!({"max_in_flight": 2, "requests_per_minute": {"rate": 60, "burst": 10}, "on_rate": "wait"});
    let proxy = tenant_of_one_a_second(&json!({"/tenants/acme": limits}));
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "acme", "low");
    proxy.start(&mut vm, "acme", "low");
    for _ in 0..18 {
        proxy.wait(&mut vm, "acme", "low");
    }
    let refusal = proxy.refused(&mut vm, proxy.waiter("acme", "low", 100));
    let reasons = (refusal.reason, refusal.bound().reason, advice(&refusal));
    assert_eq!(reasons, (Reason::WaitTooLong, Reason::TenantRequests, 11_000));
}

/// Costs in the record, while they wait and when they have gone: beside a route's own budget, and over a change of the policy.
#[test]
fn what_a_tenants_waiters_will_cost_is_counted_for_those_that_may_wait_alone() {
    let proxy = tenant_of_one_a_second(&json!({}));
    let mut vm = proxy.vm();
    let counted = |vm: &Vm| {
        let read = |key: &str| store::read::<Ledger>(&*proxy.store, key).unwrap().0;
        let (tenant, pool) = (read(&proxy.policy.tenant_key("acme")), read(&proxy.policy.pools().next().unwrap().key));
        let queued: u64 = tenant.queued(vm.members()).map(|(_, queued)| queued.cost.requests).sum();
        (queued, pool.rated(vm.members()).map(|(.., rated)| rated.requests).sum::<u64>())
    };
    proxy.start(&mut vm, "acme", "low");
    let own: Vec<Ticket> = (0..3).map(|_| proxy.wait(&mut vm, "acme", "low")).collect();
    assert_eq!(counted(&vm), (3, 3));
    let limits = (**proxy.policy.limits("acme")).clone();
    let of_route = Arc::new(Limits { rates: Arc::new(limits.rates.keyed()), ..limits });
    let of_route = Waiter { limits: of_route, ..proxy.waiter("acme", "low", 100) };
    let Ok(Joined::Waiting(of_route)) = proxy.come(&mut vm, of_route) else { panic!("others of the tenant wait") };
    assert_eq!(counted(&vm), (3, 3));
    vm.leave(&*proxy.store, of_route, proxy.now);
    assert_eq!(counted(&vm), (3, 3));
    for ticket in &own {
        vm.renew(&*proxy.store, *ticket, proxy.waiter("acme", "low", 100), proxy.now);
    }
    assert_eq!(counted(&vm), (3, 3), "the same policy again");
    let refuses = tenant_of_one_a_second(&json!({"/tenants/acme/on_rate": "refuse"}));
    for ticket in &own {
        vm.renew(&*proxy.store, *ticket, refuses.waiter("acme", "low", 100), proxy.now);
    }
    assert_eq!(counted(&vm).0, 0, "one under which its budget refuses");
    own.iter().for_each(|ticket| vm.leave(&*proxy.store, *ticket, proxy.now));
    assert_eq!(counted(&vm), (0, 0));
}

/// Requests of a route with a budget of its own that joined for their tenant's cap, and are more than the budget lets start.
#[test]
fn a_waiter_that_its_routes_budget_refuses_keeps_back_no_other() {
    let mut proxy = tenant_of_one_a_second(&json!({"/tenants/acme": {"max_in_flight": 1}}));
    let mut vm = proxy.vm();
    let running = proxy.start(&mut vm, "acme", "low");
    let limits = (**proxy.policy.limits("acme")).clone();
    let slow = tenant_of_one_a_second(&json!({})).policy.limits("acme").rates.keyed();
    let of_route = Arc::new(Limits { rates: Arc::new(slow), ..limits });
    let tickets: Vec<Ticket> = (0..3)
        .map(|_| {
            match proxy.come(&mut vm, Waiter { limits: Arc::clone(&of_route), ..proxy.waiter("acme", "low", 100) }) {
                Ok(Joined::Waiting(ticket)) => ticket,
                other => panic!("{other:?}"),
            }
        })
        .collect();
    proxy.now = Time(proxy.now.0 + 1);
    let other = proxy.wait(&mut vm, "acme", "low");
    proxy.end(&mut vm, running);
    let (started, refused) = pass(&mut proxy, &mut [&mut vm], Millis(5));
    let refused: Vec<_> = refused.iter().map(|given_up| (given_up.ticket, given_up.refusal.reason)).collect();
    assert_eq!(started.iter().map(|(_, ticket)| *ticket).collect::<Vec<_>>(), [tickets[0]]);
    assert_eq!(refused, [(tickets[1], Reason::TenantRequestRate), (tickets[2], Reason::TenantRequestRate)]);
    let lease = vm.leases.iter().map(|(id, _)| id).next().unwrap();
    proxy.end(&mut vm, lease);
    let (started, _) = pass(&mut proxy, &mut [&mut vm], Millis(5));
    assert_eq!(started.iter().map(|(_, ticket)| *ticket).collect::<Vec<_>>(), [other]);
}

/// A tenant's budget and its pool's rate are both spent, and the pool's has the longer line.
#[test]
fn who_meets_its_own_budget_is_held_to_the_pools_rate_as_well() {
    let limits = json!({"requests_per_minute": {"rate": 60, "burst": 1}, "on_rate": "wait"});
    let proxy = pool_of_one_a_second(1_000, &json!({"/tenants/acme": limits}));
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "acme", "low");
    for tenant in 0..10 {
        proxy.wait(&mut vm, &format!("tenant-{tenant}"), "low");
    }
    let refusal = proxy.refused(&mut vm, proxy.waiter("acme", "low", 100));
    assert_eq!((refusal.reason, advice(&refusal)), (Reason::WaitTooLong, 11_000), "{refusal}");
}
