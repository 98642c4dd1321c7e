//! Reasons for a refusal that no other test meets from outside, each truly the cause.

use serde_json::{Value, json};
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::line::{queues, send, waiting};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, reason_of, text_of};
use worker_sim::Fault;

const NO_QUEUE: (&str, &str) = ("x-sluice-no-queue", "true");

fn refused(status: u16, reason: &str) -> (u16, String) {
    (status, reason.to_owned())
}

fn admitted() -> (u16, String) {
    refused(200, "")
}

/// A worker that has so many free blocks of 100, in a pool whose saturation is this.
fn with_blocks(free: u64, saturation: f64) -> Value {
    let rank = json!({"rank": 0, "kv_used_blocks": 100 - free, "kv_total_blocks": 100});
    let worker = json!({"address": "127.0.0.1:1", "state": "up", "scraped_ms_ago": 3, "busy": false, "ranks": [rank]});
    json!({"workers": [worker], "saturation": saturation})
}

/// Sends a chat request of acme's with so many tokens of output, and does not wait for its answer.
async fn begin(rig: &Rig, max_tokens: u32) -> RawCaller {
    let body = chat(MODEL, max_tokens, false).to_string();
    RawCaller::send(rig.address, &request_bytes(CHAT, &[("x-tenant-id", b"acme")], body.as_bytes(), true)).await
}

/// A compare-and-swap that is lost as often as it is tried: of the tenant's record, and of the pool's when the tenant's has been
/// charged.
#[tokio::test]
async fn a_request_that_cannot_be_counted_is_refused_and_holds_nothing() {
    let rig = Rig::start(Setup::new(1, Wait::Unread).faulty()).await;
    for (number, fault) in (1..).zip(["contention", "pool-contention"]) {
        assert_eq!(rig.ask("capped", &[]).await, admitted());
        rig.nothing_is_held().await;
        let before = rig.worker.stats().received;
        let answer = rig.post("capped", &[("x-sluice-test-fault", fault)], &chat(MODEL, 1, false)).await;
        assert_eq!((answer.status().as_u16(), reason_of(&answer)), refused(503, "contention"), "{fault}");
        assert!(text_of(&answer, "retry-after").parse::<u64>().is_ok_and(|seconds| seconds > 0), "{answer:?}");
        let error = answer.json::<Value>().await.unwrap()["error"].clone();
        assert_eq!((&error["code"], &error["limit"]), (&json!("contention"), &Value::Null), "{error}");
        rig.nothing_is_held().await;
        assert_eq!(rig.worker.stats().received, before, "the worker was not asked");
        rig.counts("sluice_requests_total", &[("outcome", "contention")], number).await;
    }
    // The cap of four is whole.
    let holders = rig.hold("capped", 4).await;
    assert_eq!(rig.ask("capped", &[]).await, refused(429, "tenant_requests"));
    drop(holders);
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn a_pool_takes_so_many_requests_a_second() {
    let setup = Setup::new(1, Wait::Unread).with("/pools/0/requests_per_second", json!({"rate": 1, "burst": 1}));
    // A lane without a queue, and one whose requests could wait if the pool let them.
    let setup = setup.with("/pools/0/on_rate", json!("refuse")).with("/lanes/0/queue", json!({"max_wait": "60s"}));
    let rig = Rig::start(setup).await;
    assert_eq!(rig.ask("acme", &[]).await, admitted());
    // A machine that stalls for a second earns another.
    let answer = eventually("the pool is asked too often", async || {
        let lane = [("x-sluice-lane", "interactive")];
        let answer = rig.post("globex", &lane, &chat(MODEL, 1, false)).await;
        if answer.status() == 429 { Ok(answer) } else { Err(answer.status().to_string()) }
    })
    .await;
    assert_eq!(reason_of(&answer), "pool_request_rate");
    let advice: u64 = text_of(&answer, "retry-after-ms").parse().unwrap();
    assert!((1..=2_000).contains(&advice), "{advice}");
    eventually("it is earned back", async || {
        let answer = rig.ask("acme", &[]).await;
        (answer == admitted()).then_some(()).ok_or(format!("{answer:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_tenants_tokens_in_flight_are_limited() {
    let setup = Setup::new(1, Wait::AtHeaders).with("/tenants/acme", json!({"max_tokens_in_flight": 1_000}));
    let rig = Rig::start(setup).await;
    rig.worker.set_faults([Fault::Hang]);
    let holder = begin(&rig, 800).await;
    eventually("it is held", async || (rig.held().await.0 == 1).then_some(()).ok_or_else(String::new)).await;
    let answer = rig.post("acme", &[], &chat(MODEL, 800, false)).await;
    assert_eq!((answer.status().as_u16(), reason_of(&answer)), refused(429, "tenant_tokens"));
    let limit = answer.json::<Value>().await.unwrap()["error"]["limit"].clone();
    let told = (&limit["knob"], &limit["allowed"], &limit["unit"]);
    assert_eq!(told, (&json!("tenants.acme.max_tokens_in_flight"), &json!(1_000), &json!("tokens")));
    rig.worker.set_faults([]);
    assert_eq!(rig.ask("acme", &[]).await, admitted(), "a small one fits beside it");
    drop(holder);
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn a_lane_holds_what_its_dispatch_budget_leaves_it() {
    let lanes = json!([{"name": "standard"}, {"name": "bulk", "priority": -1, "dispatch_budget": {"baseline": 0.5}}]);
    let setup = Setup::new(1, Wait::Unread).with("/lanes", lanes).with("/pools/0/stale", json!({"hold": "10m"}));
    let rig = Rig::start(setup.with("/default_lane", json!("standard"))).await;
    for (generation, saturation, expected) in [(1, 0.4, admitted()), (2, 0.6, refused(429, "dispatch_budget"))] {
        assert_eq!(rig.push_view(7, generation, with_blocks(100, saturation)).await.0, 200);
        assert_eq!(rig.ask("acme", &[("x-sluice-lane", "bulk")]).await, expected, "{saturation}");
        assert_eq!(rig.ask("acme", &[("x-sluice-lane", "standard")]).await, admitted(), "{saturation}");
    }
}

/// A small request would fit, but a large one waits for room that the small one would take.
#[tokio::test]
async fn what_would_fit_does_not_pass_one_that_keeps_the_line() {
    let lanes = json!([{"name": "standard", "queue": {"max_requests": 16, "max_wait": "6s"}}]);
    let setup = Setup::new(2, Wait::AtHeaders)
        .with("/lanes", lanes)
        .with("/tenants", json!({"acme": {}, "capped": {"max_tokens_in_flight": 1_000}}))
        .with("/pools/0/stale", json!({"hold": "10m"}))
        .with("/pools/0/kv", json!({"block_size": 16, "headroom": 0.1}));
    let rig = Rig::start(setup).await;
    // Nine blocks are left for requests.
    assert_eq!(rig.push_view(7, 1, with_blocks(19, 0.5)).await.0, 200);
    let mut large = begin(&rig, 300).await;
    waiting(&rig, 1).await;
    eventually("the large one keeps the line", async || {
        let pool = rig.state().await["pools"]["main"].clone();
        pool["line_kept_ms"].as_u64().filter(|kept| *kept > 0).map(drop).ok_or_else(|| pool.to_string())
    })
    .await;
    assert_eq!(rig.ask("globex", &[NO_QUEUE]).await, refused(429, "others_first"), "it fits, but is not first");
    assert_eq!(rig.push_view(7, 2, with_blocks(100, 0.0)).await.0, 200);
    assert_eq!(large.status().await, Some(200));
    assert_eq!(rig.ask("globex", &[NO_QUEUE]).await, admitted());
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// The same within the caps of one tenant, which keeps back nobody else.
#[tokio::test]
async fn what_would_fit_does_not_pass_those_of_its_own_tenant() {
    let lanes = json!([{"name": "standard", "queue": {"max_requests": 16, "max_wait": "60s"}}]);
    let setup = Setup::new(2, Wait::AtHeaders)
        .with("/lanes", lanes)
        .with("/tenants/acme", json!({"max_tokens_in_flight": 1_000}));
    let rig = Rig::start(setup).await;
    rig.worker.set_faults([Fault::Hang]);
    let holder = begin(&rig, 800).await;
    eventually("it is held", async || (rig.held().await.0 == 1).then_some(()).ok_or_else(String::new)).await;
    rig.worker.set_faults([]);
    let mut large = begin(&rig, 700).await;
    waiting(&rig, 1).await;
    assert_eq!(rig.ask("acme", &[NO_QUEUE]).await, refused(429, "own_first"), "it fits, but is not first");
    assert_eq!(rig.ask("globex", &[NO_QUEUE]).await, admitted(), "of another tenant");
    drop(holder);
    assert_eq!(large.status().await, Some(200));
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// What the lane has measured says how long a wait will be.
#[tokio::test]
async fn who_would_wait_too_long_is_told_so_at_once() {
    let rig = Rig::start(queues(1, Wait::Unread)).await;
    let running = rig.endless("first", &[]).await;
    let mut callers = Vec::new();
    for number in 0..4 {
        callers.push(send(&rig, "acme", "standard", number).await);
    }
    waiting(&rig, 4).await;
    drop(running);
    for caller in &mut callers {
        assert_eq!(caller.status().await, Some(200));
    }
    let running = rig.endless("first", &[]).await;
    let mut first = send(&rig, "acme", "standard", 4).await;
    waiting(&rig, 1).await;
    let hurried = rig.post("acme", &[("x-slo-ttft-ms", "1")], &chat(MODEL, 1, false)).await;
    assert_eq!((hurried.status().as_u16(), reason_of(&hurried)), refused(429, "wait_too_long"));
    assert_eq!(text_of(&hurried, "x-sluice-queue-position"), "2");
    let predicted: u64 = text_of(&hurried, "x-sluice-predicted-wait-ms").parse().unwrap();
    assert!(predicted > 1, "{predicted}");
    waiting(&rig, 1).await;
    drop(running);
    assert_eq!(first.status().await, Some(200));
    rig.nothing_is_held().await;
}
