//! What a trap costs, and whom: docs/failure-policy.md says what is shown here.

use std::cell::Cell;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::line::{queues, send, waiting};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually};
use worker_sim::Fault;

const RELOADS: &str = "wasm.sluice.vm_reload_success";
const BACKOFFS: &str = "wasm.sluice.vm_reload_backoff";

fn request(headers: &[(&str, &[u8])], stream: bool, max_tokens: u32) -> Vec<u8> {
    request_bytes(CHAT, headers, chat(MODEL, max_tokens, stream).to_string().as_bytes(), true)
}

const TO_TRAP: [(&str, &[u8]); 2] = [("x-sluice-test-fault", b"trap"), ("connection", b"close")];

/// Sends the command to trap; the answer.
async fn trap(rig: &Rig) -> (String, Vec<u8>) {
    RawCaller::send(rig.address, &request(&TO_TRAP, false, 1)).await.last_answer().await
}

/// Connections that each worker thread has had so far.
async fn taken(rig: &Rig, threads: usize) -> Vec<u64> {
    let mut taken = Vec::new();
    for thread in 0..threads {
        let name = format!("listener.public.worker_{thread}.downstream_cx_total");
        taken.push(rig.envoy.stat(&name).await.unwrap());
    }
    taken
}

/// A connection and the thread that has taken it.
async fn connect(rig: &Rig, threads: usize) -> (usize, RawCaller) {
    let before = taken(rig, threads).await;
    let caller = RawCaller::send(rig.address, b"").await;
    let thread = eventually("a thread takes the connection", async || {
        let now = taken(rig, threads).await;
        (0..threads).find(|thread| now[*thread] > before[*thread]).ok_or_else(|| format!("{now:?}"))
    });
    (thread.await, caller)
}

/// Sends a request to one thread. Which thread takes a connection is the kernel's choice, so others are let go.
async fn send_to(rig: &Rig, threads: usize, thread: usize, request: &[u8]) -> RawCaller {
    for _ in 0..200 {
        let (taker, mut caller) = connect(rig, threads).await;
        if taker == thread {
            assert!(caller.send_more(request).await, "a new connection takes a request");
            return caller;
        }
    }
    panic!("the kernel never chose thread {thread}");
}

#[tokio::test]
async fn a_trap_ends_the_streams_of_one_worker_thread_and_no_other() {
    const THREADS: usize = 4;
    let rig = Rig::start(Setup::new(THREADS as u32, Wait::Unread).patient().faulty()).await;
    let mut streams = Vec::new();
    // Which thread takes a connection is the kernel's choice.
    while rig.connections().await.contains(&0) {
        assert!(streams.len() < 200, "the kernel never chose some thread");
        streams.push(rig.endless("acme", &[]).await);
    }
    let by_thread = taken(&rig, THREADS).await;
    let (head, body) = trap(&rig).await;
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    assert!(!head.contains("x-sluice-reason") && body.is_empty(), "the proxy's own words: {head}");
    let after = taken(&rig, THREADS).await;
    let hit = (0..THREADS).find(|thread| after[*thread] > by_thread[*thread]).unwrap();
    let mut alive = 0;
    for stream in &mut streams {
        // A stream that goes on brings more; one of the dead VM breaks off.
        alive += u64::from(stream.goes_on().await);
    }
    assert_eq!(alive, by_thread.iter().sum::<u64>() - by_thread[hit], "{by_thread:?}, {hit}");
    let turned_away = Cell::new(0);
    for thread in 0..THREADS {
        eventually("every thread serves", async || {
            match send_to(&rig, THREADS, thread, &request(&[], false, 1)).await.status().await {
                Some(200) => Ok(()),
                // Its VM was not old enough to be loaded again at once.
                other => {
                    turned_away.set(turned_away.get() + 1);
                    assert_eq!((thread, other), (hit, Some(503)), "the others go on serving");
                    Err("a back-off".to_owned())
                }
            }
        })
        .await;
    }
    let loads = (rig.envoy.stat(RELOADS).await.unwrap(), rig.envoy.stat(BACKOFFS).await.unwrap());
    assert_eq!(loads, (1, turned_away.get()));
    drop(streams);
    rig.nothing_is_held().await;
}

/// A VM is loaded again with the next stream, but not within a second of the last time: only a thread that traps over and over
/// answers 503 for so long, while the others serve.
#[tokio::test]
async fn who_traps_over_and_over_costs_one_thread_a_back_off() {
    const THREADS: usize = 2;
    let rig = Rig::start(Setup::new(THREADS as u32, Wait::Unread).faulty()).await;
    let (hit, _) = connect(&rig, THREADS).await;
    eventually("the thread backs off", async || {
        send_to(&rig, THREADS, hit, &request(&TO_TRAP, false, 1)).await.last_answer().await;
        (rig.envoy.stat(BACKOFFS).await.unwrap() > 0).then_some(()).ok_or_else(String::new)
    })
    .await;
    let other = send_to(&rig, THREADS, 1 - hit, &request(&[], false, 1)).await.status().await;
    assert_eq!(other, Some(200), "the other thread serves");
    eventually("the thread serves again", async || {
        let status = send_to(&rig, THREADS, hit, &request(&[], false, 1)).await.status().await;
        (status == Some(200)).then_some(()).ok_or(format!("{status:?}"))
    })
    .await;
    rig.nothing_is_held().await;
}

/// Waits until the proxy has ended so many requests because nothing moved on them, and for what their callers were told: the
/// answer passes the dead VM too, which turns it into a 503.
async fn ended_by_the_timeout(rig: &Rig, mut callers: Vec<RawCaller>) {
    for caller in &mut callers {
        let head = caller.read_until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 503") && !head.contains("x-sluice-reason"), "{head}");
    }
    let ended = rig.envoy.stat("http.public.downstream_rq_idle_timeout").await.unwrap();
    assert_eq!(ended, callers.len() as u64, "by the timeout and nothing else");
    rig.in_hand(0).await;
}

#[tokio::test]
async fn requests_that_a_dead_vm_held_end_by_the_idle_timeout() {
    const IDLE: &str = "1s";
    // In line, its body still with the proxy's connection.
    let rig = Rig::start(Setup { idle_timeout: IDLE, ..queues(1, Wait::Unread).faulty() }).await;
    let running = rig.endless("first", &[]).await;
    let mut callers = Vec::new();
    for number in 0..4 {
        callers.push(send(&rig, "acme", "standard", number).await);
    }
    waiting(&rig, 4).await;
    trap(&rig).await;
    drop(running);
    ended_by_the_timeout(&rig, callers).await;

    // Undecided: at the headers, and with the body held.
    for wait in [Wait::AtHeaders, Wait::BodyHeld] {
        let rig = Rig::start(Setup { idle_timeout: IDLE, ..Setup::new(1, wait).faulty() }).await;
        let whole = request(&[], false, 1);
        let caller = RawCaller::send(rig.address, &whole[..whole.len() - 1]).await;
        rig.in_hand(1).await;
        trap(&rig).await;
        ended_by_the_timeout(&rig, vec![caller]).await;
        eventually("it serves again", async || {
            let (status, reason) = rig.ask("acme", &[]).await;
            (status == 200).then_some(()).ok_or(format!("{wait:?}: {status} {reason}"))
        })
        .await;
    }
}

#[tokio::test]
async fn requests_in_a_worker_whose_vm_has_died_end_with_their_workers_next_word() {
    let rig = Rig::start(Setup::new(1, Wait::Unread).patient().faulty()).await;
    let mut plain = RawCaller::send(rig.address, &request(&[], false, 30)).await;
    let mut begun = rig.endless("acme", &[]).await;
    rig.in_hand(2).await;
    trap(&rig).await;
    let head = plain.read_until("\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 503") && !head.contains("x-sluice-reason"), "{head}");
    assert!(!begun.goes_on().await, "a stream breaks off");
    rig.in_hand(0).await;
    eventually("the worker is told that they have gone", async || {
        let left = rig.worker.stats();
        (left.in_server == 0).then_some(()).ok_or(format!("{left:?}"))
    })
    .await;
    rig.nothing_is_held().await;
}

/// What a hanging worker has of a dead VM stays there until the idle timeout: the worker says nothing, so nothing ends it before.
#[tokio::test]
async fn a_silent_worker_and_a_dead_vm_end_by_the_idle_timeout() {
    let rig = Rig::start(Setup { idle_timeout: "1s", ..Setup::new(1, Wait::Unread).faulty() }).await;
    rig.worker.set_faults([Fault::Hang]);
    let caller = RawCaller::send(rig.address, &request(&[], false, 1)).await;
    eventually("the worker has it", async || (rig.worker.stats().in_server == 1).then_some(()).ok_or_else(String::new))
        .await;
    trap(&rig).await;
    ended_by_the_timeout(&rig, vec![caller]).await;
}

/// Every object of a document.
fn objects<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            found.push(value);
            fields.values().for_each(|field| objects(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| objects(item, found)),
        _ => {}
    }
}

#[test]
fn every_shipped_filter_is_loaded_again_and_every_stream_ends_when_nothing_moves() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config");
    let (mut filters, mut managers, mut files) = (0, 0, 0);
    for file in ["envoy.yaml", "pools.yaml", "istio.yaml", "istio-pull.yaml", "ecds/sluice.yaml"] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        let documents =
            serde_norway::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap());
        let documents: Vec<Value> = documents.collect();
        let mut all = Vec::new();
        documents.iter().for_each(|document| objects(document, &mut all));
        for object in &all {
            if object.get("vm_config").is_some() {
                assert_eq!(object["failure_policy"], "FAIL_RELOAD", "{file}: {object}");
                filters += 1;
            }
            if object["kind"] == "WasmPlugin" {
                assert_eq!(object["spec"]["failStrategy"], "FAIL_RELOAD", "{file}");
                filters += 1;
            }
        }
        // Where requests pass. A resource that Envoy watches stands in a manager elsewhere.
        if file != "ecds/sluice.yaml" {
            let public = |object: &&&Value| object["stat_prefix"] == "public" || object.get("applyTo").is_some();
            let timeouts = all.iter().filter(public).flat_map(|object| {
                let mut inner = Vec::new();
                objects(object, &mut inner);
                inner.into_iter().filter_map(|object| object.get("stream_idle_timeout")).cloned().collect::<Vec<_>>()
            });
            let timeouts: Vec<Value> = timeouts.collect();
            assert!(
                !timeouts.is_empty() && timeouts.iter().all(|timeout| *timeout == json!("300s")),
                "{file}: {timeouts:?}"
            );
            managers += timeouts.len();
        }
        files += 1;
    }
    assert!(files == 5 && filters >= 7 && managers >= 4, "{files} {filters} {managers}");
}
