//! Bodies that are held behind their headers, which the proxy's router has had: what it sends when it tries another worker.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use wasm_tests::bootstrap::{virtual_hosts, worker_routes};
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::line::{order, queues, send, waiting};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually};

const PATIENCE: Duration = Duration::from_secs(30);

/// A proxy of two workers that take turns, of which the second is dead; where it cannot connect it tries the other one.
async fn beside_a_dead_worker(mut setup: Setup) -> Rig {
    setup.more_workers = 1;
    let mut route = worker_routes()[1].clone();
    route["route"]["retry_policy"] = json!({
        "retry_on": "connect-failure",
        "num_retries": 2,
        "retry_host_predicate": [{
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {"@type":
                "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
        }],
        "host_selection_retry_max_attempts": 5,
    });
    setup.virtual_hosts = virtual_hosts(&[route]);
    let mut rig = Rig::start(setup).await;
    rig.others.remove(0).stop().await;
    rig
}

async fn retries(rig: &Rig) -> u64 {
    rig.envoy.stat("cluster.workers.upstream_rq_retry").await.unwrap()
}

/// Waits until so many requests are at a worker, or at least their headers.
async fn at_a_worker(rig: &Rig, count: u64) {
    eventually("so many requests have a worker", async || {
        let active = rig.envoy.stat("cluster.workers.upstream_rq_active").await.unwrap();
        (active == count).then_some(()).ok_or(format!("{active}, not {count}"))
    })
    .await;
}

#[tokio::test]
async fn a_body_that_waits_goes_to_no_worker_by_a_retry() {
    const WAITERS: usize = 6;
    let rig = beside_a_dead_worker(queues(2, Wait::BodyHeld)).await;
    let running = rig.endless("first", &[]).await;
    let before = retries(&rig).await;
    let mut callers = Vec::new();
    for number in 0..WAITERS {
        callers.push(send(&rig, "acme", "standard", number).await);
    }
    waiting(&rig, WAITERS as u64).await;
    at_a_worker(&rig, WAITERS as u64 + 1).await;
    assert!(retries(&rig).await > before, "none has come to the dead worker first");
    assert_eq!(rig.worker.stats().requests, 1, "one that waits has come");
    drop(running);
    for caller in &mut callers {
        assert_eq!(caller.status().await, Some(200));
    }
    // The worker may learn last that the first one's caller has gone.
    let arrivals = &rig.worker.arrivals().requests[1..];
    let ended = arrivals.iter().map(|arrival| arrival.left_ms.unwrap_or(f64::MAX));
    let came = arrivals.iter().skip(1).map(|arrival| arrival.came_ms);
    assert!(ended.zip(came).all(|(ended, came)| ended <= came), "two were inside at once: {arrivals:?}");
    assert_eq!((order(&rig).len(), rig.worker.stats().requests), (WAITERS, WAITERS as u64 + 1));
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// A body follows its headers on the worker's connection once, whatever had come of it when the proxy tried again. Bytes behind its end
/// would be the next request there, which no filter has judged.
#[tokio::test]
async fn a_body_that_comes_in_pieces_is_sent_once() {
    const PIECES: usize = 4;
    let rig = beside_a_dead_worker(Setup::new(1, Wait::BodyHeld)).await;
    let mut body = chat(MODEL, 1, false);
    body["messages"][0]["content"] = json!("What is it that you would say? ".repeat(400));
    let body = body.to_string();
    for sized in [true, false] {
        for number in 0..6 {
            let request = request_bytes(CHAT, &[], body.as_bytes(), sized);
            let pieces: Vec<&[u8]> = request.chunks(request.len().div_ceil(PIECES)).collect();
            let mut caller = RawCaller::send(rig.address, pieces[0]).await;
            // The proxy has found a worker that has the headers, at the second attempt where the first was the dead one's.
            at_a_worker(&rig, 1).await;
            for piece in &pieces[1..] {
                assert!(caller.send_more(piece).await);
            }
            assert_eq!(caller.status().await, Some(200), "sized: {sized}, {number}");
            assert_eq!(rig.worker.stats().last_body, body, "sized: {sized}, {number}");
        }
    }
    assert!(retries(&rig).await > 0, "none has come to the dead worker first");
    assert_eq!(rig.worker.stats().received, 12);
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// A body is the same at its worker where the request has waited for its turn, and where a policy in shadow would have had it wait.
#[tokio::test]
async fn a_body_in_pieces_goes_on_as_it_came() {
    let mut body = chat(MODEL, 1, false);
    body["messages"][0]["content"] = json!("What is it that you would say? ".repeat(3_000));
    let body = body.to_string();
    for mode in ["enforce", "shadow"] {
        let rig = Rig::start(queues(1, Wait::BodyHeld).with("/mode", json!(mode))).await;
        for sized in [true, false] {
            let running = rig.endless("first", &[]).await;
            let request = request_bytes(CHAT, &[], body.as_bytes(), sized);
            let mut pieces = request.chunks(7_000);
            let mut caller = RawCaller::send(rig.address, pieces.next().unwrap()).await;
            rig.in_hand(2).await;
            for piece in pieces {
                assert!(caller.send_more(piece).await);
            }
            if mode == "enforce" {
                waiting(&rig, 1).await;
                drop(running);
            }
            assert_eq!(caller.status().await, Some(200), "{mode}, sized: {sized}");
            assert_eq!(rig.worker.stats().last_body, body, "{mode}, sized: {sized}");
            drop(caller);
        }
        rig.in_hand(0).await;
        rig.nothing_is_held().await;
        rig.nothing_trapped().await;
    }
}

/// A proxy whose requests may have 32 KiB buffered, less than the filter keeps.
fn of_small_buffers(threads: u32, mode: &str) -> Setup {
    let mut setup = queues(threads, Wait::BodyHeld).with("/mode", json!(mode));
    let mut route = worker_routes()[1].clone();
    route.as_object_mut().unwrap().remove("request_body_buffer_limit");
    setup.buffer_limit = 32 << 10;
    setup.virtual_hosts = virtual_hosts(&[route]);
    setup
}

/// A request of such a lane, of 100 KB, in two halves.
fn long_request(lane: &[u8]) -> [Vec<u8>; 2] {
    let mut body = chat(MODEL, 1, false);
    body["messages"][0]["content"] = json!("word ".repeat(20_000));
    let mut first = request_bytes(CHAT, &[("x-sluice-lane", lane)], body.to_string().as_bytes(), true);
    let rest = first.split_off(first.len() / 2);
    [first, rest]
}

#[tokio::test]
async fn a_body_above_the_proxys_own_limit_is_refused_by_the_proxy() {
    let rig = Rig::start(of_small_buffers(2, "enforce")).await;
    let [first, rest] = long_request(b"standard");
    // One that may go on as soon as all of it has come, and one that waits for its turn then.
    for waits in [0, 1] {
        let running = if waits > 0 { Some(rig.endless("first", &[]).await) } else { None };
        let mut caller = RawCaller::send(rig.address, &first).await;
        rig.in_hand(1 + waits).await;
        caller.send_more(&rest).await;
        if waits > 0 {
            waiting(&rig, waits).await;
        }
        drop(running);
        assert_eq!(caller.status().await, Some(413), "{waits} wait");
        rig.nothing_is_held().await;
        waiting(&rig, 0).await;
        rig.in_hand(0).await;
        rig.nothing_trapped().await;
    }
    assert_eq!(rig.ask("acme", &[]).await, (200, String::new()));
}

/// The filter answers one request and lets another one go on in the same moment, whose body the proxy then refuses.
#[tokio::test]
async fn a_request_that_another_gave_way_to_is_refused_by_the_proxy_and_holds_nothing() {
    let rig = Rig::start(of_small_buffers(1, "enforce")).await;
    let [first, rest] = long_request(b"interactive");
    for _ in 0..3 {
        let body = chat(MODEL, 1, false).to_string();
        let gives_way = request_bytes(CHAT, &[("x-sluice-lane", b"batch")], body.as_bytes(), true);
        let mut gives_way = rig.hanging(&gives_way).await;
        let mut caller = RawCaller::send(rig.address, &first).await;
        rig.in_hand(2).await;
        caller.send_more(&rest).await;
        assert_eq!(gives_way.status().await, Some(429));
        let status = timeout(PATIENCE, caller.status()).await;
        assert_eq!(status, Ok(Some(413)), "the proxy's own answer is held");
        rig.nothing_is_held().await;
    }
    waiting(&rig, 0).await;
    rig.nothing_trapped().await;
}

/// A worker that begins to answer each request as soon as its headers have come, and never ends.
async fn hasty() -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut connection, _)) = listener.accept().await {
            let _ = connection.read_u8().await;
            let _ = connection.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n").await;
            open.push(connection);
        }
    });
    (address, serving)
}

/// The rest of a body comes when its worker answers already and its beginning is kept; all of it is more than the proxy can take.
#[tokio::test]
async fn an_answer_before_the_decision_leaves_nothing_behind() {
    let (address, serving) = hasty().await;
    for mode in ["enforce", "shadow"] {
        let mut setup = of_small_buffers(1, mode);
        setup.clusters.push(("hasty", address));
        setup.virtual_hosts =
            virtual_hosts(&[json!({"match": {"prefix": CHAT}, "route": {"cluster": "hasty", "timeout": "0s"}})]);
        let rig = Rig::start(setup).await;
        let [first, rest] = long_request(b"standard");
        for _ in 0..3 {
            let mut caller = RawCaller::send(rig.address, &first).await;
            let answer = timeout(PATIENCE, caller.read_until("hi")).await.expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 200"), "{mode}: {answer}");
            caller.send_more(&rest).await;
            drop(caller);
            rig.in_hand(0).await;
        }
        rig.nothing_is_held().await;
        rig.nothing_trapped().await;
    }
    serving.abort();
}

/// Bodies that do not end fill what a VM keeps for such ones, and the next request is decided by what has come of it.
#[tokio::test]
async fn bodies_that_do_not_end_take_the_memory_that_is_theirs_and_no_more() {
    const MIB: usize = 1 << 20;
    let mut setup = Setup::new(1, Wait::BodyHeld).with("/body", json!({"hold_limit": "100MiB"}));
    setup.alone = true;
    let mut route = worker_routes()[1].clone();
    route["request_body_buffer_limit"] = json!(200 * MIB);
    setup.virtual_hosts = virtual_hosts(&[route]);
    let rig = Rig::start(setup).await;
    let begin = format!(r#"{{"model": "{MODEL}", "messages": [{{"role": "user", "content": ""#);
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n{begin}", 90 * MIB);
    let words = "word ".repeat(MIB / 5).into_bytes();
    let mut callers = Vec::new();
    for number in 0..4 {
        assert_eq!(rig.held().await, (0, 0), "{number} have sent a part");
        let mut caller = RawCaller::send(rig.address, head.as_bytes()).await;
        for _ in 0..80 {
            assert!(caller.send_more(&words).await);
        }
        callers.push(caller);
    }
    eventually("the last one is decided", async || {
        let (held, _) = rig.held().await;
        (held == 1).then_some(()).ok_or(held.to_string())
    })
    .await;
    drop(callers);
    rig.in_hand(0).await;
    rig.nothing_is_held().await;
    // There is room again, for a body as long.
    let mut caller = RawCaller::send(rig.address, head.as_bytes()).await;
    for _ in 0..80 {
        assert!(caller.send_more(&words).await);
    }
    assert_eq!(rig.ask("acme", &[]).await, (200, String::new()));
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}
