//! The control listener, and what a view does to decisions.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::rig::{MODEL, Rig, Setup, TOKEN, Wait, eventually};

const VIEW: &str = "/sluice/v1/view";
const STATE: &str = "/sluice/v1/state";

fn worker(state: &str, busy: bool, free_blocks: u64) -> Value {
    json!({
        "address": "127.0.0.1:1", "state": state, "scraped_ms_ago": 3, "busy": busy,
        "ranks": [{"rank": 0, "kv_used_blocks": 100 - free_blocks, "kv_total_blocks": 100}],
    })
}

fn workers(workers: &[Value]) -> Value {
    json!({"workers": workers})
}

async fn reason(rig: &Rig) -> (u16, String) {
    let answer = rig.post("acme", &[], &chat(MODEL, 1, false)).await;
    let reason = answer.headers().get("x-sluice-reason").map(|value| value.to_str().unwrap().to_owned());
    (answer.status().as_u16(), reason.unwrap_or_default())
}

async fn push(rig: &Rig, generation: u64, pool: Value) {
    let (status, answer) = rig.push_view(7, generation, pool).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn what_must_not_be_taken_is_refused_and_changes_nothing() {
    let rig = Rig::start(Setup::new(2, Wait::Unread)).await;
    rig.ask("acme", &[]).await;
    push(&rig, 5, workers(&[worker("up", false, 100)])).await;
    let stands = |state: &Value| {
        (state["view"]["epoch"].clone(), state["view"]["generation"].clone(), state["pools"]["main"]["workers"].clone())
    };
    let before = stands(&rig.state().await);
    assert_eq!((&before.0, &before.1), (&json!(7), &json!(5)));

    let newer = json!({"version": 1, "epoch": 7, "generation": 6, "pools": {}}).to_string().into_bytes();
    for token in [None, Some(""), Some("wrong"), Some("correct-horse-battery-stapl")] {
        assert_eq!(rig.control("POST", VIEW, token, newer.clone()).await.0, 401);
        assert_eq!(rig.control("GET", STATE, token, Vec::new()).await.0, 401);
    }
    for generation in [5, 4, 0] {
        let (status, refusal) = rig.push_view(7, generation, workers(&[])).await;
        assert_eq!((status, &refusal["generation"]), (409, &json!(5)));
    }
    assert_eq!(rig.push_view(6, 99, workers(&[])).await.0, 409, "an older sidecar");
    for body in [
        &b""[..],
        b"{",
        b"[]",
        b"{\"version\": 1}",
        b"{\"version\": 2, \"epoch\": 9, \"generation\": 1, \"pools\": {}}",
    ] {
        let (status, refusal) = rig.control("POST", VIEW, Some(TOKEN), body.to_vec()).await;
        assert!(status == 400 && refusal["error"].as_str().unwrap().starts_with("not a view"), "{refusal}");
    }
    assert_eq!(rig.control("PUT", VIEW, Some(TOKEN), newer).await.0, 405);
    assert_eq!(rig.control("GET", "/elsewhere", Some(TOKEN), Vec::new()).await.0, 404);
    assert_eq!(stands(&rig.state().await), before);
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn a_wrong_token_is_counted_and_said_once() {
    let rig = Rig::start(Setup::new(1, Wait::Unread)).await;
    for _ in 0..5 {
        assert_eq!(rig.control("POST", VIEW, Some("wrong"), b"{}".to_vec()).await.0, 401);
    }
    assert_eq!(rig.count("sluice_views_total", &[("outcome", "unauthorized")]).await, 5);
    push(&rig, 1, workers(&[])).await;
    assert_eq!(rig.push_view(7, 1, workers(&[])).await.0, 409);
    for (outcome, count) in [("taken", 1), ("older", 1)] {
        assert_eq!(rig.count("sluice_views_total", &[("outcome", outcome)]).await, count, "{outcome}");
    }
    let log = rig.envoy.log();
    assert_eq!(log.matches("the bearer token is missing or wrong").count(), 1, "{log}");
    assert!(!log.contains(TOKEN));
}

#[tokio::test]
async fn a_change_is_taken_by_who_holds_its_base() {
    let rig = Rig::start(Setup::new(1, Wait::Unread)).await;
    let named =
        |address: &str, busy: bool| json!({"address": address, "state": "up", "scraped_ms_ago": 1, "busy": busy});
    let change = |generation: u64, base: u64, pools: Value| {
        json!({"version": 1, "epoch": 7, "generation": generation, "base": base, "pools": pools})
            .to_string()
            .into_bytes()
    };
    let seen = async || {
        let view = rig.state().await["pools"]["main"]["view"].clone();
        (view["generation"].clone(), view["live_workers"].clone(), view["free_workers"].clone())
    };
    // From its first request on the filter is known, with its pools.
    rig.ask("acme", &[]).await;
    push(&rig, 1, workers(&[named("10.0.0.1:1", false), named("10.0.0.2:1", false), named("10.0.0.3:1", false)])).await;
    let news = json!({"main": {"workers": [named("10.0.0.1:1", true)], "removed": ["10.0.0.3:1"]}});
    let (status, answer) = rig.control("POST", VIEW, Some(TOKEN), change(2, 1, news)).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(seen().await, (json!(2), json!(2), json!(1)));
    assert_eq!(rig.control("POST", VIEW, Some(TOKEN), change(3, 2, json!({}))).await.0, 200, "a heartbeat");
    let (status, refusal) = rig.control("POST", VIEW, Some(TOKEN), change(9, 8, json!({}))).await;
    assert_eq!((status, &refusal["needs_whole"]), (409, &json!(true)), "{refusal}");
    assert_eq!(seen().await, (json!(3), json!(2), json!(1)));
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn a_view_of_ten_mebibytes_is_refused_with_and_without_its_size() {
    let rig = Rig::start(Setup::new(1, Wait::Unread)).await;
    push(&rig, 1, workers(&[worker("up", false, 100)])).await;
    let mut huge = br#"{"version": 1, "epoch": 7, "generation": 2, "pools": {"main": {"workers": []}}"#.to_vec();
    huge.resize((10 << 20) - 1, b' ');
    huge.push(b'}');
    let authorization = format!("Bearer {TOKEN}");
    for sized in [true, false] {
        let request = request_bytes(VIEW, &[("authorization", authorization.as_bytes())], &huge, sized);
        assert_eq!(RawCaller::send(rig.control_address(), &request).await.status().await, Some(413), "sized: {sized}");
    }
    assert_eq!(rig.state().await["view"]["generation"], 1);
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn a_view_is_as_large_as_the_control_listener_says() {
    let mut setup = Setup::new(1, Wait::Unread);
    setup.control = json!({"max_view": "1KiB"});
    let rig = Rig::start(setup).await;
    push(&rig, 1, workers(&[worker("up", false, 100)])).await;
    let many: Vec<Value> = (0..40).map(|_| worker("up", false, 100)).collect();
    assert_eq!(rig.push_view(7, 2, workers(&many)).await.0, 413);
    assert_eq!(rig.state().await["view"]["generation"], 1);
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn on_other_listeners_control_paths_are_ordinary_requests() {
    let rig = Rig::start(Setup::new(1, Wait::Unread)).await;
    let client = testkit::envoy::direct_client().unwrap();
    let view = json!({"version": 1, "epoch": 9, "generation": 1, "pools": {}}).to_string();
    for address in [rig.address, rig.neighbour] {
        let url = |path| format!("http://{address}{path}");
        let post = client.post(url(VIEW)).bearer_auth(TOKEN).body(view.clone()).send().await.unwrap();
        let get = client.get(url(STATE)).bearer_auth(TOKEN).send().await.unwrap();
        assert_eq!((post.status().as_u16(), get.status().as_u16()), (404, 404), "the worker's answer");
        assert!(!get.text().await.unwrap().contains("members"));
    }
    assert_eq!(rig.state().await["view"], Value::Null);
}

#[tokio::test]
async fn a_view_sheds_when_all_are_busy_and_refuses_when_none_lives() {
    let setup = Setup::new(2, Wait::Unread).with("/pools/0/stale", json!({"hold": "10m"}));
    let rig = Rig::start(setup).await;
    assert_eq!(reason(&rig).await.0, 200, "without a view the pool's own cap holds");
    let (free, busy) = (worker("up", false, 100), worker("up", true, 100));
    for (generation, pool, expected) in [
        (1, vec![busy.clone(), busy.clone()], (503, "all_busy")),
        (2, vec![busy.clone(), free.clone()], (200, "")),
        (3, vec![busy, worker("draining", false, 100)], (503, "all_busy")),
        (4, vec![worker("down", false, 100), worker("draining", false, 100)], (503, "no_workers")),
        (5, vec![], (503, "no_workers")),
        (6, vec![free], (200, "")),
    ] {
        push(&rig, generation, workers(&pool)).await;
        assert_eq!(reason(&rig).await, (expected.0, expected.1.to_owned()), "generation {generation}");
    }
}

#[tokio::test]
async fn the_cap_for_each_worker_follows_the_view() {
    let mut setup = Setup::new(4, Wait::Unread).with("/pools/0/max_in_flight_per_worker", json!(2));
    setup.policy["pools"][0].as_object_mut().unwrap().remove("max_in_flight");
    let rig = Rig::start(setup).await;
    assert_eq!(reason(&rig).await, (503, "stale_view".to_owned()), "no view, no number of workers");
    push(&rig, 1, workers(&[worker("up", false, 100), worker("up", false, 100)])).await;
    let holders = rig.hold("acme", 4).await;
    assert_eq!(reason(&rig).await, (429, "pool_requests".to_owned()));
    push(&rig, 2, workers(&vec![worker("up", false, 100); 3])).await;
    rig.worker.set_faults([]);
    assert_eq!(reason(&rig).await.0, 200);
    drop(holders);
    rig.nothing_is_held().await;
}

/// What was admitted since the scrape counts against the free blocks; the next scrape has seen it.
#[tokio::test]
async fn in_flight_credit_is_retired_by_sequence() {
    let setup = Setup::new(2, Wait::AtHeaders).with("/pools/0/kv", json!({"block_size": 16, "headroom": 0.1}));
    let rig = Rig::start(setup).await;
    let pool = |admitted: Value| json!({"admitted": admitted, "workers": [worker("up", false, 19)]});
    push(&rig, 1, pool(json!({"requests": 0, "blocks": 0}))).await;
    // 19 free blocks less 10 of headroom: three requests of 3 blocks each.
    let holders = rig.hold("acme", 3).await;
    assert_eq!(reason(&rig).await, (429, "kv_blocks".to_owned()));

    let (_, answer) = rig.push_view(7, 2, pool(json!({"requests": 0, "blocks": 0}))).await;
    assert_eq!(answer["admitted"]["main"], json!({"requests": 3, "blocks": 9}));
    assert_eq!(reason(&rig).await, (429, "kv_blocks".to_owned()), "a scrape from before they were admitted");

    push(&rig, 3, pool(answer["admitted"]["main"].clone())).await;
    rig.worker.set_faults([]);
    assert_eq!(reason(&rig).await.0, 200, "a scrape that has seen them");
    drop(holders);
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn a_stale_view_falls_back_to_what_its_policy_says() {
    for (then, expected) in [("local_caps", (200, "")), ("admit", (200, "")), ("reject", (503, "stale_view"))] {
        let setup = Setup::new(1, Wait::Unread).with("/pools/0/stale", json!({"hold": "1s", "then": then}));
        let rig = Rig::start(setup).await;
        let expected = (expected.0, expected.1.to_owned());
        for round in 1..3 {
            let generation = AtomicU64::new(round * 1_000);
            // The machine may stall for longer than the view is believed; then it is pushed again.
            eventually("a new view is believed", async || {
                push(&rig, generation.fetch_add(1, Ordering::Relaxed), workers(&[worker("up", true, 100)])).await;
                let now = reason(&rig).await;
                (now == (503, "all_busy".to_owned())).then_some(()).ok_or(format!("{then}: {now:?}"))
            })
            .await;
            eventually("it is too old", async || {
                let now = reason(&rig).await;
                (now == expected).then_some(()).ok_or(format!("{then}: {now:?}"))
            })
            .await;
        }
    }
}

/// What an operator watches over a long time.
#[tokio::test]
async fn the_memory_of_each_vm_and_the_number_of_records_are_told() {
    const PAGE: u64 = 65_536;
    // Alone, since gauges outlive those who show them.
    let rig = Rig::start(Setup::new(2, Wait::Unread).alone()).await;
    eventually("both threads have had a request", async || {
        rig.ask("stranger", &[]).await;
        // A connection of its own may be any thread's.
        let request = request_bytes(CHAT, &[], chat(MODEL, 1, false).to_string().as_bytes(), true);
        RawCaller::send(rig.address, &request).await.status().await;
        let members = rig.state().await["members"].clone();
        (members.as_array().map(Vec::len) == Some(2)).then_some(()).ok_or(members.to_string())
    })
    .await;
    eventually("both say how much memory they have", async || {
        let of = async |vm| rig.count("sluice_vm_memory_bytes", &[("vm", vm)]).await;
        let memory = [of("0").await, of("1").await];
        let plausible = |bytes: &u64| *bytes >= PAGE && bytes.is_multiple_of(PAGE) && *bytes < 1 << 30;
        memory.iter().all(plausible).then_some(()).ok_or(format!("{memory:?}"))
    })
    .await;
    let records = async || rig.state().await["records"].as_u64().unwrap();
    let before = records().await;
    for (tenant, more) in [("stranger", 0), ("another", 1), ("another", 1), ("capped", 2)] {
        assert_eq!(rig.ask(tenant, &[]).await.0, 200);
        assert_eq!(records().await, before + more, "{tenant}");
    }
}
