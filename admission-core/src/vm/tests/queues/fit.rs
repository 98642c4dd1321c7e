//! Requests that need more KV blocks than are free.

use super::*;
use crate::ledger::FlowKey;
use crate::queue::Queue;

/// Blocks of a pool's one worker.
const BLOCKS: u64 = 100;

/// Tokens of a block.
const BLOCK: u64 = 16;

/// A pool whose blocks are counted to the last.
fn pool_of_blocks() -> Proxy {
    with(&json!({
        "lanes": [
            {"name": "low", "queue": {"max_requests": 200, "max_wait": "10s"}},
            {"name": "small", "priority": -1, "queue": {"max_requests": 100, "max_wait": "60s"}},
            {"name": "bare", "priority": -5},
        ],
        "pools": [{"name": "p", "max_in_flight": 1_000, "kv": {"block_size": BLOCK, "headroom": 0.0}, "stale": {"hold": "60s"}}],
    }))
}

/// A view in which so many blocks are in use, by nothing that this proxy has started.
fn see(proxy: &Proxy, generation: u64, used: u64) {
    let rank = json!({"kv_used_blocks": used, "kv_total_blocks": BLOCKS});
    let worker = json!({"address": "10.0.0.1:80", "state": "up", "scraped_ms_ago": 1, "busy": false, "ranks": [rank]});
    take_view(proxy, generation, &json!({"workers": [worker]}));
}

/// Tokens that a tenant has been charged in fair order for a lane.
fn charged(proxy: &Proxy, tenant: &str, lane: &str) -> u64 {
    let ledger = ledger_at(&*proxy.store, &proxy.policy.tenant_key(tenant)).unwrap();
    let pool = proxy.policy.pools().next().unwrap();
    ledger.start_tag(FlowKey::of(&pool.key, LaneKey::of(lane)), 0) / 1_024
}

/// A request for all blocks of a worker, seven seconds after it came: for the last two it has kept the line.
fn keeps_the_line(proxy: &mut Proxy, vm: &mut Vm) -> Ticket {
    let Ok(Joined::Waiting(large)) = proxy.come(vm, proxy.waiter("large", "low", BLOCKS * BLOCK)) else { panic!() };
    for _ in 0..700 {
        assert_eq!(vm.poll(&*proxy.store, proxy.now).started, []);
        proxy.later(10);
    }
    large
}

/// One request, from its arrival to its end.
struct Small {
    ends: Time,
    lease: LeaseId,
}

#[test]
fn a_head_that_does_not_fit_lets_pass_then_holds_then_lets_pass() {
    let mut proxy = pool_of_blocks();
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    see(&proxy, 1, 50);
    let large = proxy.waiter("large", "low", 100 * BLOCK);
    let Ok(Joined::Waiting(large)) = proxy.come(&mut a, large) else { panic!("nothing is free for it") };
    let began = proxy.now;
    let mut running: Vec<Small> = Vec::new();
    let (mut waited, mut at_once) = (Vec::new(), Vec::new());
    let mut ended_at = None;
    for step in 0..3_000_u64 {
        let now = proxy.now;
        let since = now.since(began).0;
        for (vm, of_a) in [(&mut a, true), (&mut b, false)] {
            let due = running.extract_if(.., |one| one.ends <= now).collect::<Vec<_>>();
            due.into_iter().for_each(|one| proxy.end(vm, one.lease));
            let progress = vm.poll(&*proxy.store, now);
            for started in progress.started {
                assert!(!of_a || started.ticket != large, "100 blocks are never free for it");
                running.push(Small { ends: Time(now.0 + 2_000), lease: started.admission.lease });
            }
            for GivenUp { ticket, refusal, .. } in progress.refused {
                assert_eq!((of_a, ticket, refusal.reason), (true, large, Reason::QueueTimeout));
                ended_at = Some(since);
            }
            // One small request each half second, of either thread in turn.
            if step % 50 == 0 && (step / 50 % 2 == 0) == of_a {
                match proxy.come(vm, proxy.waiter("small", "small", 2 * BLOCK)).unwrap() {
                    Joined::Started(admission) => {
                        at_once.push(since);
                        running.push(Small { ends: Time(now.0 + 2_000), lease: admission.lease });
                    }
                    Joined::Waiting(_) => waited.push(since),
                }
            }
        }
        proxy.later(10);
        if since > 12_000 {
            break;
        }
    }
    assert_eq!(ended_at, Some(10_000));
    let in_hold: Vec<u64> = at_once.iter().copied().filter(|at| (5_100..9_900).contains(at)).collect();
    assert_eq!(in_hold, Vec::<u64>::new(), "they wait while it holds the line");
    assert!(waited.iter().all(|at| (4_900..10_100).contains(at)), "at all other times they start at once: {waited:?}");
    assert!(waited.len() >= 9, "{waited:?}");
    assert!(at_once.iter().any(|at| *at > 10_100), "they go on when it has gone");
    // Five seconds of 42 to 50 idle blocks, at a service time of two seconds, which is measured as 2 to 2.5.
    let cost = charged(&proxy, "large", "low");
    assert!((5 * 42 * BLOCK * 2 / 5..=5 * 50 * BLOCK / 2).contains(&cost), "{cost} tokens for what it kept idle");
}

#[test]
fn however_many_do_not_fit_the_others_start_during_half_of_the_time() {
    for tenants in [1, 7] {
        let mut proxy = pool_of_blocks();
        let (mut a, mut b) = (proxy.vm(), proxy.vm());
        see(&proxy, 1, 50);
        let mut running: Vec<Small> = Vec::new();
        let (mut came, mut started) = (0_u32, 0_u32);
        for step in 0..6_000_u64 {
            let now = proxy.now;
            running.extract_if(.., |one| one.ends <= now).for_each(|one| proxy.end(&mut b, one.lease));
            if step % 30 == 0 {
                let tenant = format!("large-{}", step / 30 % tenants);
                let joined = proxy.come(&mut a, proxy.waiter(&tenant, "low", 100 * BLOCK));
                assert!(!matches!(joined, Ok(Joined::Started(_))));
            }
            for vm in [&mut a, &mut b] {
                assert_eq!(vm.poll(&*proxy.store, now).started, [], "100 blocks are never free");
            }
            if step % 5 == 0 {
                came += 1;
                if let Ok(Joined::Started(admission)) = proxy.come(&mut b, proxy.waiter("small", "bare", 2 * BLOCK)) {
                    started += 1;
                    running.push(Small { ends: Time(now.0 + 1_000), lease: admission.lease });
                }
            }
            proxy.later(10);
        }
        assert!(started * 2 >= came, "{started} of {came} beside large ones of {tenants} tenants");
        assert!(started * 10 < came * 9, "the large ones hold the line now and then: {started} of {came}");
    }
}

#[test]
fn those_that_need_the_same_keep_their_order_while_none_fits() {
    let mut proxy = pool_of_blocks();
    let mut vm = proxy.vm();
    see(&proxy, 1, 95);
    let mut tickets: Vec<(&str, Ticket)> = Vec::new();
    for tenant in ["x", "x", "x", "y", "y", "y"] {
        let Ok(Joined::Waiting(ticket)) = proxy.come(&mut vm, proxy.waiter(tenant, "low", 10 * BLOCK)) else {
            panic!()
        };
        tickets.push((tenant, ticket));
        proxy.later(1);
    }
    assert_eq!(vm.poll(&*proxy.store, proxy.now).started, []);
    see(&proxy, 2, 55);
    let started = vm.poll(&*proxy.store, proxy.now).started;
    let by: Vec<&str> = started
        .iter()
        .filter_map(|started| tickets.iter().find(|(_, ticket)| *ticket == started.ticket).map(|(tenant, _)| *tenant))
        .collect();
    assert_eq!(by, ["x", "y", "x", "y"], "40 of 45 blocks, of the two tenants in turn");
}

#[test]
fn a_large_one_gets_what_the_hold_has_kept_for_it() {
    let mut proxy = pool_of_blocks();
    let mut vm = proxy.vm();
    see(&proxy, 1, 0);
    let mut leases: Vec<LeaseId> = (0..10)
        .map(|_| match proxy.come(&mut vm, proxy.waiter("small", "bare", 10 * BLOCK)).unwrap() {
            Joined::Started(admission) => admission.lease,
            Joined::Waiting(_) => panic!("all is free"),
        })
        .collect();
    let Ok(Joined::Waiting(large)) = proxy.come(&mut vm, proxy.waiter("large", "low", 60 * BLOCK)) else { panic!() };
    let mut started = Vec::new();
    for _ in 0..1_000 {
        let now = proxy.now;
        started.extend(vm.poll(&*proxy.store, now).started.into_iter().map(|started| started.ticket));
        if !started.is_empty() {
            break;
        }
        // One ends each 300 ms, and there is always another for its blocks.
        if now.0 % 300 < 10 {
            proxy.end(&mut vm, leases.remove(0));
            if let Ok(Joined::Started(admission)) = proxy.come(&mut vm, proxy.waiter("small", "bare", 10 * BLOCK)) {
                leases.push(admission.lease);
            }
        }
        proxy.later(10);
    }
    assert_eq!(started, [large]);
    assert!(leases.len() >= 4, "it did not wait until all had ended: {}", leases.len());
    assert!(charged(&proxy, "large", "low") > 60 * BLOCK + 100, "what it kept idle, beside its own cost");
}

/// One that keeps the line in front of ten workers, half of which is free: what is idle is what is free in all.
#[test]
fn a_hold_in_front_of_many_workers_is_charged_for_all_that_is_idle() {
    let mut proxy = pool_of_blocks();
    let mut vm = proxy.vm();
    let workers: Vec<Value> = (0..10).map(|host| worker(host, 50, None)).collect();
    take_view(&proxy, 1, &json!({"workers": workers}));
    let large = keeps_the_line(&mut proxy, &mut vm);
    vm.leave(&*proxy.store, large, proxy.now);
    assert_eq!(charged(&proxy, "large", "low"), 1_990 * 500 * BLOCK / 7_500);
}

/// A VM dies while a waiter of it keeps the line: what waits behind starts once the VM is void, long before the hold was to end.
#[test]
fn a_dead_vm_keeps_the_line_no_longer() {
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "low", "queue": {"max_wait": "60s"}},
            {"name": "small", "priority": -1, "queue": {"max_wait": "60s"}},
        ],
        "pools": [{"name": "p", "max_in_flight": 99, "kv": {"block_size": BLOCK, "headroom": 0.0}, "stale": {"hold": "600s"}}],
    }));
    let (mut gone, mut vm) = (proxy.vm(), proxy.vm());
    see(&proxy, 1, 50);
    let Ok(Joined::Waiting(_)) = proxy.come(&mut gone, proxy.waiter("large", "low", BLOCKS * BLOCK)) else { panic!() };
    for _ in 0..310 {
        assert_eq!(gone.poll(&*proxy.store, proxy.now).started, []);
        gone.tick(&*proxy.store, proxy.now).unwrap();
        vm.tick(&*proxy.store, proxy.now).unwrap();
        proxy.later(100);
    }
    let Ok(Joined::Waiting(small)) = proxy.come(&mut vm, proxy.waiter("small", "small", BLOCK)) else {
        panic!("it holds")
    };
    let mut started = Vec::new();
    for _ in 0..15 {
        proxy.later(100);
        vm.tick(&*proxy.store, proxy.now).unwrap();
        started.extend(vm.poll(&*proxy.store, proxy.now).started.into_iter().map(|started| started.ticket));
    }
    assert_eq!(started, [small]);
    assert_eq!(charged(&proxy, "large", "low"), 0, "the VM that knew what it kept idle is gone");
}

#[test]
fn a_hold_ends_for_all_when_its_waiter_is_refused_for_good() {
    let mut proxy = pool_of_blocks();
    let mut vm = proxy.vm();
    see(&proxy, 1, 50);
    let large = keeps_the_line(&mut proxy, &mut vm);
    let rank = json!({"kv_used_blocks": 0, "kv_total_blocks": 60});
    let smaller = json!({"address": "10.0.0.1:80", "state": "up", "scraped_ms_ago": 1, "busy": false, "ranks": [rank]});
    take_view(&proxy, 2, &json!({"workers": [smaller]}));
    let refused = vm.poll(&*proxy.store, proxy.now).refused;
    assert_eq!((refused[0].ticket, refused[0].refusal.reason), (large, Reason::Oversize));
    let pool = proxy.policy.pools().next().unwrap();
    let (ledger, _) = store::read::<Ledger>(&*proxy.store, &pool.key).unwrap();
    assert_eq!(ledger.line_kept_for(proxy.now), Millis(0));
    assert!(charged(&proxy, "large", "low") >= 1_990 * 50 * BLOCK / 7_500);
}

#[test]
fn who_leaves_in_its_hold_is_charged_for_it_once() {
    let mut proxy = pool_of_blocks();
    let mut vm = proxy.vm();
    see(&proxy, 1, 50);
    let large = keeps_the_line(&mut proxy, &mut vm);
    assert_eq!(charged(&proxy, "large", "low"), 0, "its hold lasts");
    vm.leave(&*proxy.store, large, proxy.now);
    // Two seconds of 50 idle blocks; no request has ended, and a usual one is taken to last 7.5 s.
    assert_eq!(charged(&proxy, "large", "low"), 1_990 * 50 * BLOCK / 7_500);
}

#[test]
fn a_guess_beyond_all_there_is_starts_when_all_is_free() {
    let proxy = pool_of_blocks();
    let mut vm = proxy.vm();
    see(&proxy, 1, 50);
    let mut unread = proxy.waiter("unread", "low", 150 * BLOCK);
    unread.ask.prompt_read = false;
    let Ok(Joined::Waiting(unread)) = proxy.come(&mut vm, unread) else { panic!("half is free") };
    assert_eq!(vm.poll(&*proxy.store, proxy.now).started, []);
    see(&proxy, 2, 0);
    let started = vm.poll(&*proxy.store, proxy.now).started;
    assert_eq!(started.iter().map(|started| started.ticket).collect::<Vec<_>>(), [unread]);
}

#[test]
fn blocks_that_others_hold_are_waited_for_too() {
    let mut proxy = pool_of_blocks();
    let mut vm = proxy.vm();
    see(&proxy, 1, 0);
    let lease = proxy.start(&mut vm, "small", "bare");
    proxy.later(2_000);
    proxy.end(&mut vm, lease);
    see(&proxy, 2, 50);
    let Ok(Joined::Waiting(_)) = proxy.come(&mut vm, proxy.waiter("large", "low", 100 * BLOCK)) else { panic!() };
    for _ in 0..520 {
        assert_eq!(vm.poll(&*proxy.store, proxy.now).started, []);
        proxy.later(10);
    }
    let small = proxy.refused(&mut vm, proxy.waiter("small", "bare", 2 * BLOCK));
    assert_eq!(small.reason, Reason::OthersFirst, "the large one keeps the line, though this proxy holds nothing");
}

#[test]
fn many_of_one_tenant_that_do_not_fit_hide_no_other_tenant() {
    let proxy = pool_of_blocks();
    let mut vm = proxy.vm();
    see(&proxy, 1, 95);
    let mut waits = |tenant: &str, blocks: u64| match proxy.come(&mut vm, proxy.waiter(tenant, "low", blocks * BLOCK)) {
        Ok(Joined::Waiting(ticket)) => ticket,
        other => panic!("{other:?}"),
    };
    for _ in 0..130 {
        waits("large", 90);
    }
    let small = waits("small", 10);
    assert_eq!(vm.poll(&*proxy.store, proxy.now).started, []);
    see(&proxy, 2, 80);
    let started = vm.poll(&*proxy.store, proxy.now).started;
    assert_eq!(started.iter().map(|started| started.ticket).collect::<Vec<_>>(), [small]);
}

/// Callers that name the shortest deadlines, in two VMs by turns: each hold is shorter than the time between two polls.
#[test]
fn holds_that_end_between_two_polls_leave_the_others_half_of_the_time_too() {
    let mut proxy = pool_of_blocks();
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    see(&proxy, 1, 50);
    let (mut came, mut started) = (0_u32, 0_u32);
    for ms in 0..4_000_u64 {
        if ms % 5 == 0 {
            let vm = if ms % 10 == 0 { &mut a } else { &mut b };
            let mut large = proxy.waiter("large", "low", 100 * BLOCK);
            large.deadline = Some(Millis(7));
            assert!(!matches!(proxy.come(vm, large), Ok(Joined::Started(_))));
            for vm in [&mut a, &mut b] {
                assert_eq!(vm.poll(&*proxy.store, proxy.now).started, [], "100 blocks are never free");
            }
        }
        came += 1;
        if let Ok(Joined::Started(admission)) = proxy.come(&mut b, proxy.waiter("small", "bare", 2 * BLOCK)) {
            started += 1;
            proxy.end(&mut b, admission.lease);
        }
        proxy.later(1);
    }
    assert!(started * 2 >= came, "{started} of {came}");
    assert!(started < came, "the large ones hold the line now and then");
}

/// A pool that steers, with these lanes.
fn steered(lanes: &Value) -> Proxy {
    let kv = json!({"block_size": BLOCK, "headroom": 0.0});
    let pool = json!({"name": "p", "max_in_flight": 99, "pick_endpoint": true, "kv": kv, "stale": {"hold": "60s"}});
    with(&json!({"lanes": lanes, "pools": [pool]}))
}

/// A worker with so many blocks in use, by a page that shows so many requests.
fn worker(host: u8, used: u64, admitted: Option<u64>) -> Value {
    let rank = json!({"kv_used_blocks": used, "kv_total_blocks": BLOCKS});
    let address = format!("10.0.0.{host}:80");
    json!({"address": address, "state": "up", "scraped_ms_ago": 1, "busy": false, "ranks": [rank], "admitted": admitted})
}

fn come(proxy: &Proxy, vm: &mut Vm, (tenant, lane): (&str, &str), blocks: u64, can_be_steered: bool) -> Joined {
    proxy.come(vm, Waiter { can_be_steered, ..proxy.waiter(tenant, lane, blocks * BLOCK) }).unwrap()
}

/// Two workers with 90 and 30 blocks free, the first of which is then given 80: what can be steered has 30, what cannot has 40 of both.
#[test]
fn a_waiter_that_cannot_be_steered_is_not_judged_by_the_room_of_one_that_can() {
    let proxy = steered(&json!([{"name": "low", "queue": {"max_wait": "10s"}}]));
    let mut vm = proxy.vm();
    take_view(&proxy, 1, &json!({"workers": [worker(1, 10, None), worker(2, 70, None)]}));
    let come = |vm: &mut Vm, tenant: &str, blocks: u64, can_be_steered: bool| {
        come(&proxy, vm, (tenant, "low"), blocks, can_be_steered)
    };
    assert!(matches!(come(&mut vm, "a", 80, true), Joined::Started(_)));
    let Joined::Started(elsewhere) = come(&mut vm, "b", 10, false) else { panic!("40 are free") };
    let Joined::Waiting(_) = come(&mut vm, "c", 35, true) else { panic!("no worker has 35") };
    let Joined::Waiting(unsteered) = come(&mut vm, "d", 38, false) else { panic!("both have 30") };
    assert_eq!(vm.poll(&*proxy.store, proxy.now).started, []);
    proxy.end(&mut vm, elsewhere.lease);
    let started = vm.poll(&*proxy.store, proxy.now).started;
    assert_eq!(started.iter().map(|started| started.ticket).collect::<Vec<_>>(), [unsteered]);
}

/// The same over two VMs: a waiter that fits no worker lets pass what the proxy sends to one, though that has more room.
#[test]
fn a_waiter_that_fits_no_worker_lets_pass_one_of_another_vm_that_cannot_be_steered() {
    let proxy = steered(&json!([{"name": "low", "queue": {"max_wait": "10s"}}]));
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    take_view(&proxy, 1, &json!({"workers": [worker(1, 10, None), worker(2, 70, None)]}));
    assert!(matches!(come(&proxy, &mut a, ("a", "low"), 80, true), Joined::Started(_)));
    assert!(matches!(come(&proxy, &mut a, ("c", "low"), 35, true), Joined::Waiting(_)), "30 at the freest");
    assert!(matches!(come(&proxy, &mut b, ("d", "low"), 5, false), Joined::Started(_)), "40 of both");
}

/// One page hangs while the other shows what its worker was given: every request sees the pool as full as every other does.
#[test]
fn what_a_worker_shows_counts_the_same_for_all_that_ask() {
    let proxy = steered(&json!([
        {"name": "high", "priority": 100},
        {"name": "low", "priority": -10, "ceiling": 0.8, "reserve": 0.2, "queue": {"max_wait": "10s"}},
    ]));
    let mut vm = proxy.vm();
    let see = |generation: u64, saturation: f64, workers: [Value; 2]| {
        let pool = json!({"saturation": saturation, "full_blocks": BLOCKS, "held": 0, "workers": workers});
        take_view(&proxy, generation, &pool);
    };
    see(1, 0.1, [worker(1, 0, None), worker(2, 0, None)]);
    assert!(matches!(come(&proxy, &mut vm, ("a", "high"), 40, true), Joined::Started(_)));
    see(2, 0.45, [worker(1, 0, None), worker(2, 0, None)]);
    assert!(matches!(come(&proxy, &mut vm, ("b", "low"), 40, false), Joined::Waiting(_)), "0.45 and 40 of 100");
    see(3, 0.5, [worker(1, 40, Some(1)), worker(2, 0, None)]);
    let started = vm.poll(&*proxy.store, proxy.now).started;
    assert_eq!(started.len(), 1, "0.5 shows the first: a request that cannot be steered is below the ceiling too");
}

/// Engines with blocks of eight tokens, in front of which blocks of sixteen are configured.
#[test]
fn a_newcomer_that_waits_is_measured_in_the_blocks_of_the_engine() {
    let proxy = pool_of_blocks();
    let mut vm = proxy.vm();
    let rank = json!({"kv_used_blocks": 50, "kv_total_blocks": BLOCKS});
    let worker = json!({"address": "10.0.0.1:80", "state": "up", "scraped_ms_ago": 1, "busy": false, "ranks": [rank]});
    take_view(&proxy, 1, &json!({"block_size": BLOCK / 2, "workers": [worker]}));
    let Ok(Joined::Waiting(_)) = proxy.come(&mut vm, proxy.waiter("large", "low", 30 * BLOCK)) else {
        panic!("60 of 50")
    };
    let members = store::read::<Members>(&*proxy.store, &proxy.policy.keys.members()).unwrap().0;
    let ledger = store::read::<Ledger>(&*proxy.store, &proxy.policy.keys.pool("p")).unwrap().0;
    assert_eq!(ledger.yielding(&members).map(|(_, one)| one.blocks.0).collect::<Vec<_>>(), [60], "it lets others pass");
}

#[test]
fn of_lanes_of_one_priority_the_waiter_that_has_let_pass_longer_keeps_the_line() {
    let queue = json!({"max_requests": 9, "max_wait": "10s"});
    let mut proxy = with(&json!({
        "lanes": [{"name": "listed-first", "queue": queue}, {"name": "listed-last", "queue": queue}],
        "pools": [{"name": "p", "max_in_flight": 99, "kv": {"block_size": BLOCK, "headroom": 0.0}, "stale": {"hold": "60s"}}],
    }));
    let mut vm = proxy.vm();
    see(&proxy, 1, 50);
    for (tenant, lane) in [("earlier", "listed-last"), ("later", "listed-first")] {
        let joined = proxy.come(&mut vm, proxy.waiter(tenant, lane, BLOCKS * BLOCK));
        assert!(matches!(joined, Ok(Joined::Waiting(_))), "{joined:?}");
        vm.poll(&*proxy.store, proxy.now);
        proxy.later(1_000);
    }
    proxy.later(5_000);
    vm.poll(&*proxy.store, proxy.now);
    let keeper = vm.room.queues.values().find_map(Queue::line_keeper);
    assert_eq!(keeper.map(|(waiter, _)| &*waiter.lane.name), Some("listed-last"));
}
