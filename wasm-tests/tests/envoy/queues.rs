//! Requests that wait inside the proxy: their order over all worker threads, and every way in which a wait ends.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use wasm_tests::bootstrap::{route_without_prefix, virtual_hosts};
use wasm_tests::caller::{RawCaller, chat, request_bytes};
use wasm_tests::line::{order, queues, send, send_more, waiting};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, text_of};
use wasm_tests::view;
use worker_sim::Fault;

/// The test runs with two and with four worker threads, over which the callers' connections are spread.
#[tokio::test]
async fn the_higher_lane_starts_first_whatever_thread_it_waits_in() {
    for (threads, wait) in [(2, Wait::Unread), (4, Wait::Unread), (2, Wait::AtHeaders), (4, Wait::AtHeaders)] {
        let rig = Rig::start(queues(threads, wait)).await;
        let running = rig.endless("first", &[]).await;
        let mut callers = Vec::new();
        for (number, lane) in ["batch", "standard", "interactive"].iter().cycle().take(12).enumerate() {
            callers.push(send(&rig, "acme", lane, number).await);
            waiting(&rig, number as u64 + 1).await;
        }
        drop(running);
        for caller in &mut callers {
            assert_eq!(caller.status().await, Some(200));
        }
        let right: Vec<String> = [2, 5, 8, 11, 1, 4, 7, 10, 0, 3, 6, 9].map(|number| number.to_string()).into();
        assert_eq!(order(&rig), right, "{threads} threads, {wait:?}");
        rig.nothing_is_held().await;
        waiting(&rig, 0).await;
        rig.nothing_trapped().await;
    }
}

#[tokio::test]
async fn bodies_that_are_held_wait_too() {
    let rig = Rig::start(queues(2, Wait::BodyHeld)).await;
    let running = rig.endless("first", &[]).await;
    let mut callers = Vec::new();
    for number in 0..6 {
        callers.push(send(&rig, "acme", "standard", number).await);
    }
    waiting(&rig, 6).await;
    drop(running);
    for caller in &mut callers {
        assert_eq!(caller.status().await, Some(200));
    }
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// Four requests of one tenant wait in a lane, then two of another in a lane: those two are served among the first four.
async fn take_turns(mut setup: Setup, greedy: &str, modest: &str) -> Rig {
    // Why: a thread may learn with its next poll only that the first of its waiters has fallen behind the next one, because
    // another thread has served the same tenant. A request that lasts many polls gives a loaded machine time for one.
    setup.worker.base_ms = 100.0;
    let rig = Rig::start(setup).await;
    let running = rig.endless("first", &[]).await;
    let mut callers = Vec::new();
    let come = [("greedy", greedy); 4].into_iter().chain([("modest", modest); 2]);
    for (number, (tenant, lane)) in come.enumerate() {
        callers.push(send(&rig, tenant, lane, number).await);
        waiting(&rig, number as u64 + 1).await;
    }
    drop(running);
    for caller in &mut callers {
        assert_eq!(caller.status().await, Some(200));
    }
    let tenants: Vec<_> = rig.worker.arrivals().requests.into_iter().filter_map(|arrival| arrival.tenant).collect();
    let place = |tenant: &str| tenants.iter().rposition(|other| other == tenant);
    assert!(place("modest") < place("greedy"), "{tenants:?}");
    assert_eq!(&tenants[1..5].iter().filter(|tenant| *tenant == "modest").count(), &2, "{tenants:?}");
    rig
}

#[tokio::test]
async fn tenants_of_one_lane_take_turns() {
    take_turns(queues(2, Wait::Unread), "standard", "standard").await;
}

/// The order in which such lanes are listed says nothing, and each keeps its own ceiling and bounds.
#[tokio::test]
async fn tenants_of_lanes_of_one_priority_take_turns_over_both() {
    let lanes = [("one", 0.9, 16), ("other", 2.0, 2)];
    for lanes in [lanes, [lanes[1], lanes[0]]] {
        let lanes = lanes.map(|(name, ceiling, most)| {
            json!({"name": name, "ceiling": ceiling, "queue": {"max_requests": most, "max_wait": "60s"}})
        });
        let setup = queues(2, Wait::Unread).with("/lanes", lanes.into()).with("/default_lane", json!("one"));
        let rig = take_turns(setup, "one", "other").await;
        let reason = async |lane: &str, headers: &[(&str, &str)]| {
            let headers: Vec<(&str, &str)> = headers.iter().copied().chain([("x-sluice-lane", lane)]).collect();
            rig.ask("acme", &headers).await.1
        };
        let running = rig.endless("first", &[("x-sluice-lane", "one")]).await;
        let waiters = [send(&rig, "acme", "other", 8).await, send(&rig, "acme", "other", 9).await];
        waiting(&rig, 2).await;
        assert_eq!(reason("other", &[]).await, "queue_full");
        drop((waiters, running));
        waiting(&rig, 0).await;
        rig.nothing_is_held().await;
        let worker = view::free(rig.worker.address(), 0);
        assert_eq!(rig.push_view(7, 1, json!({"workers": [worker], "saturation": 0.95})).await.0, 200);
        assert_eq!(reason("one", &[("x-sluice-no-queue", "true")]).await, "saturated");
        assert_eq!(reason("other", &[]).await, "", "what closes one lane closes no other of its priority");
        rig.nothing_trapped().await;
    }
}

/// Tenants that have been served a little ask for a little more, behind one that asks for much and has been served nothing, whose turn
/// is first.
#[tokio::test]
async fn the_shortest_goes_first_among_tenants_where_the_policy_says_so() {
    for (after, right) in [(9, ["0", "1", "2", "3"]), (0, ["1", "2", "3", "0"])] {
        let queue = json!({"order": "shortest_first", "across_tenants_after": after, "max_wait": "60s"});
        let rig = Rig::start(queues(2, Wait::AtHeaders).with("/lanes/1/queue", queue)).await;
        // Far apart, since what a word comes to is learned meanwhile, by each thread for itself.
        let tenants = [("much", 1_500), ("a", 40), ("b", 160), ("c", 400)];
        for (tenant, words) in &tenants[1..] {
            let served = &mut send_more(&rig, tenant, "standard", 9, &[], &"word ".repeat(*words)).await;
            assert_eq!(served.status().await, Some(200));
        }
        let running = rig.endless("first", &[]).await;
        let mut callers = Vec::new();
        for (number, (tenant, words)) in tenants.iter().enumerate() {
            callers.push(send_more(&rig, tenant, "standard", number, &[], &"word ".repeat(*words)).await);
            waiting(&rig, number as u64 + 1).await;
        }
        drop(running);
        for caller in &mut callers {
            assert_eq!(caller.status().await, Some(200));
        }
        let waited: Vec<String> = order(&rig).into_iter().filter(|number| number != "9").collect();
        assert_eq!(waited, right, "beyond {after}");
        rig.nothing_is_held().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_place_at_once() {
    let rig = Rig::start(queues(2, Wait::Unread)).await;
    let running = rig.endless("first", &[]).await;
    let leaves = send(&rig, "acme", "interactive", 0).await;
    waiting(&rig, 1).await;
    let mut stays = send(&rig, "acme", "standard", 1).await;
    waiting(&rig, 2).await;
    drop(leaves);
    waiting(&rig, 1).await;
    drop(running);
    assert_eq!(stays.status().await, Some(200));
    assert_eq!(order(&rig), ["1"]);
    rig.counts("sluice_requests_total", &[("lane", "interactive"), ("outcome", "left")], 1).await;
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn waits_end_and_queues_are_bounded_and_say_so() {
    let setup = queues(2, Wait::Unread)
        .with("/lanes/1/queue", json!({"max_requests": 1, "max_wait": "600ms"}))
        .with("/reject", json!({"status": {"queue_full": 529}}));
    let rig = Rig::start(setup).await;
    let running = rig.endless("first", &[]).await;
    let no_queue = rig.post("acme", &[("x-sluice-no-queue", "true")], &chat(MODEL, 1, false)).await;
    assert_eq!((no_queue.status().as_u16(), text_of(&no_queue, "x-sluice-reason")), (429, "pool_requests".to_owned()));
    let mut waits = send(&rig, "acme", "standard", 0).await;
    waiting(&rig, 1).await;
    let full = rig.post("acme", &[], &chat(MODEL, 1, false)).await;
    assert_eq!((full.status().as_u16(), text_of(&full, "x-sluice-reason")), (529, "queue_full".to_owned()));
    assert_eq!(text_of(&full, "x-sluice-queue-position"), "2");
    let answer = waits.read_until("\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("x-sluice-reason: queue_timeout"), "{answer}");
    assert!(answer.contains("x-sluice-queue-position: 1") && answer.contains("retry-after: "), "{answer}");
    let hurried =
        rig.post("acme", &[("x-slo-ttft-ms", "30"), ("x-sluice-lane", "batch")], &chat(MODEL, 1, false)).await;
    assert_eq!(text_of(&hurried, "x-sluice-reason"), "queue_timeout", "its own deadline");
    let labels = [("lane", "standard"), ("outcome", "queue_timeout")];
    eventually("the proxy has merged its histograms", async || {
        let waited = rig.count("sluice_queue_wait_ms_count", &labels).await;
        (waited == 1).then_some(()).ok_or(format!("{waited} waits"))
    })
    .await;
    drop(running);
    rig.nothing_is_held().await;
    waiting(&rig, 0).await;
}

#[tokio::test]
async fn how_long_a_request_has_waited_is_told() {
    let rig = Rig::start(queues(1, Wait::Unread)).await;
    let free = rig.post("acme", &[], &chat(MODEL, 1, false)).await;
    assert!(text_of(&free, "server-timing").starts_with("queue;dur=0, worker;dur="));
    let gauge = async |expected: u64| {
        eventually("the gauge shows it", async || {
            let waiting = rig.count("sluice_waiting_requests", &[("pool", "main"), ("lane", "standard")]).await;
            (waiting == expected).then_some(()).ok_or(format!("{waiting}, not {expected}"))
        })
        .await;
    };
    // Whoever had this proxy before may have left it at something.
    gauge(0).await;
    let running = rig.endless("first", &[]).await;
    let mut waits = send(&rig, "acme", "standard", 0).await;
    waiting(&rig, 1).await;
    gauge(1).await;
    drop(running);
    let answer = waits.read_until("\r\n\r\n").await;
    let told =
        |name: &str| answer.split(name).nth(1).and_then(|rest| rest.split(['\r', ',']).next()).map(str::to_owned);
    let waited: u64 = told("server-timing: queue;dur=").expect(&answer).parse().expect("milliseconds");
    assert!(waited > 0, "{answer}");
}

#[tokio::test]
async fn a_preemptible_request_gives_way_before_its_answer_begins() {
    let advice = json!({"retry_after": {"min": "10ms", "max": "60s", "jitter": 0.0}});
    let rig = Rig::start(queues(2, Wait::Unread).with("/reject", advice)).await;
    // Four of 300 ms, one after the other: so long does one take, as far as the proxy knows.
    for _ in 0..4 {
        assert_eq!(rig.post("acme", &[], &chat(MODEL, 30, false)).await.status(), 200);
    }
    let before = rig.worker.arrivals().requests.len();
    rig.worker.set_faults([Fault::Hang]);
    let mut victim = send(&rig, "acme", "batch", 0).await;
    eventually("the worker has it", async || {
        let inside = rig.worker.arrivals().requests.len();
        (inside == before + 1).then_some(()).ok_or(inside.to_string())
    })
    .await;
    rig.worker.set_faults([]);
    let mut urgent = send(&rig, "acme", "interactive", 1).await;
    let evicted = victim.read_until("\r\n\r\n").await;
    let reason = evicted.lines().find_map(|line| line.strip_prefix("x-sluice-reason: "));
    assert!(evicted.starts_with("HTTP/1.1 429") && reason == Some("evicted"), "{evicted}");
    let told = evicted.lines().find_map(|line| line.strip_prefix("retry-after-ms: ")).expect(&evicted);
    assert!((100..10_000).contains(&told.parse::<u64>().unwrap()), "as long as the urgent one takes, at least: {told}");
    assert_eq!(urgent.status().await, Some(200));
    eventually("the worker sees the abort", async || {
        let left = rig.worker.arrivals().requests[before].left_ms;
        left.map(|_| ()).ok_or("it is still inside".to_owned())
    })
    .await;
    rig.counts("sluice_evicted_total", &[("lane", "batch")], 1).await;
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn what_is_held_and_what_waits_is_counted_in_every_unit_that_bounds_it() {
    let setup = queues(2, Wait::Unread).with("/lanes/1/queue", json!({"max_requests": 16, "max_bytes": "64KiB"}));
    let rig = Rig::start(setup).await;
    let running = rig.endless("first", &[]).await;
    let mut callers = Vec::new();
    for number in 0..4 {
        callers.push(send(&rig, "acme", "standard", number).await);
    }
    waiting(&rig, 4).await;
    let of_lane = [("pool", "main"), ("lane", "standard")];
    let all = rig.state().await["pools"]["main"].clone();
    let (waits, held) = (&all["waiting"]["standard"], &all["held"]);
    let bytes = waits["bytes"].as_u64().unwrap();
    for (metric, value) in [
        ("sluice_waiting_requests", Some(4)),
        ("sluice_waiting_tokens", waits["tokens"].as_u64()),
        ("sluice_waiting_bytes", Some(bytes)),
        ("sluice_lane_in_flight_requests", Some(1)),
        ("sluice_lane_in_flight_tokens", held["tokens"].as_u64()),
    ] {
        rig.counts(metric, &of_lane, value.unwrap()).await;
    }
    for (lane, bound, permille) in [
        ("all", "max_in_flight", 1_000),
        ("standard", "queue.max_requests", 250),
        ("standard", "queue.max_bytes", bytes * 1_000 / (64 << 10)),
        ("interactive", "queue.max_requests", 0),
    ] {
        rig.counts("sluice_bound_used_permille", &[("lane", lane), ("bound", bound)], permille).await;
    }
    drop((running, callers));
    rig.nothing_is_held().await;
}

/// A worker may answer a request whose body still waits for its turn. When it starts its answer has begun, so it does not give way, and the
/// next one does.
#[tokio::test]
async fn a_request_that_is_answered_before_its_turn_eats_no_eviction() {
    let early = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut setup = queues(2, Wait::BodyHeld).with("/pools/0/max_in_flight", json!(2));
    setup.clusters.push(("early", early.local_addr().unwrap()));
    setup.virtual_hosts = virtual_hosts(&[route_without_prefix("/early/", "early")]);
    let rig = Rig::start(setup).await;
    rig.worker.set_faults([Fault::Hang, Fault::Hang]);
    let mut older = send(&rig, "acme", "batch", 0).await;
    eventually("the worker has it", async || {
        let inside = rig.worker.arrivals().requests.len();
        (inside == 1).then_some(()).ok_or(inside.to_string())
    })
    .await;
    let place = send(&rig, "first", "interactive", 1).await;
    eventually("both places are taken", async || {
        let held = rig.held().await.0;
        (held == 2).then_some(()).ok_or(held.to_string())
    })
    .await;
    rig.worker.set_faults([]);
    let headers: [(&str, &[u8]); 2] = [("x-tenant-id", b"acme"), ("x-sluice-lane", b"batch")];
    let body = chat(MODEL, 1, true).to_string();
    let mut request = request_bytes("/early/v1/chat/completions", &headers, body.as_bytes(), false);
    request.extend(b"0\r\n\r\n");
    let mut answered = RawCaller::send(rig.address, &request).await;
    let (mut worker, _) = early.accept().await.unwrap();
    waiting(&rig, 1).await;
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: {}\n\r\n";
    worker.write_all(head.as_bytes()).await.unwrap();
    assert!(answered.read_until("data: ").await.starts_with("HTTP/1.1 200"));
    drop(place);
    waiting(&rig, 0).await;
    let mut urgent = send(&rig, "acme", "interactive", 2).await;
    let evicted = tokio::time::timeout(Duration::from_secs(30), older.read_until("\r\n\r\n")).await;
    assert!(evicted.expect("the older one gives way").contains("x-sluice-reason: evicted"));
    assert_eq!(urgent.status().await, Some(200));
    drop(answered);
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn a_pool_without_workers_holds_requests_until_a_view_shows_one() {
    let setup = queues(2, Wait::Unread).with("/pools/0/hold_when_empty", json!("60s"));
    let rig = Rig::start(setup).await;
    assert_eq!(rig.push_view(1, 1, json!({"workers": []})).await.0, 200);
    let mut waits = send(&rig, "acme", "standard", 0).await;
    waiting(&rig, 1).await;
    assert_eq!(rig.push_view(1, 2, json!({"workers": [view::free(rig.worker.address(), 0)]})).await.0, 200);
    assert_eq!(waits.status().await, Some(200));
}

#[tokio::test]
async fn a_new_policy_decides_on_those_that_wait() {
    let mut rig = Rig::start(queues(2, Wait::Unread)).await;
    let running = rig.endless("first", &[]).await;
    let mut callers = Vec::new();
    for number in 0..4 {
        callers.push(send(&rig, "acme", if number % 2 == 0 { "batch" } else { "standard" }, number).await);
    }
    waiting(&rig, 4).await;
    // The lane `batch` is gone, and the pool has room.
    rig.reconfigure(|policy| {
        policy["lanes"].as_array_mut().expect("lanes").pop();
        policy["pools"][0]["max_in_flight"] = json!(9);
    });
    for caller in &mut callers {
        assert_eq!(caller.status().await, Some(200));
    }
    drop(running);
    rig.nothing_is_held().await;
    waiting(&rig, 0).await;
}

/// The first waits until its time is up, the second until its turn comes.
#[tokio::test]
async fn a_policy_in_shadow_refuses_none_of_those_that_wait() {
    let mut rig = Rig::start(queues(2, Wait::Unread).with("/lanes/1/queue/max_wait", json!("2s"))).await;
    let running = rig.endless("first", &[]).await;
    let mut callers = [send(&rig, "acme", "standard", 0).await, send(&rig, "acme", "batch", 1).await];
    waiting(&rig, 2).await;
    rig.reconfigure(|policy| policy["mode"] = json!("shadow"));
    assert_eq!(callers[0].status().await, Some(200));
    drop(running);
    assert_eq!(callers[1].status().await, Some(200));
    rig.nothing_is_held().await;
    waiting(&rig, 0).await;
}

#[tokio::test]
async fn a_vm_that_traps_leaves_no_ghost_in_line() {
    let rig = Rig::start(queues(2, Wait::Unread).faulty()).await;
    let running = rig.endless("first", &[]).await;
    let mut callers = Vec::new();
    for number in 0..8 {
        callers.push(send(&rig, "acme", "interactive", number).await);
    }
    waiting(&rig, 8).await;
    let trap = rig.post("acme", &[("x-sluice-test-fault", "trap")], &chat(MODEL, 1, false)).await;
    assert_eq!(trap.status(), 503);
    eventually("those of the dead are void", async || {
        let state = rig.state_if_served().await?;
        let waiting = state["pools"]["main"]["waiting"]["interactive"]["requests"].as_u64().unwrap_or(0);
        (waiting < 8).then_some(()).ok_or(state.to_string())
    })
    .await;
    drop(running);
    eventually("the pool serves on", async || {
        let (status, reason) = rig.ask("acme", &[]).await;
        (status == 200).then_some(()).ok_or(format!("{status} {reason}"))
    })
    .await;
}
