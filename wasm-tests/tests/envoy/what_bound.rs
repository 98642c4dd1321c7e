//! A refusal that says how long a request would wait, or has waited, says what for.

use serde_json::{Value, json};
use wasm_tests::caller::chat;
use wasm_tests::line::{queues, send};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, reason_of, text_of};

/// Lanes whose requests wait for a second, before a pool with room.
fn setup() -> Setup {
    let queue = json!({"max_requests": 1, "max_wait": "1s"});
    let setup = queues(2, Wait::Unread).with("/lanes/1/queue", queue).with("/pools/0/max_in_flight", json!(64));
    setup.with("/tenants/one", json!({"max_in_flight": 1}))
}

/// A view of one worker, with so many of its 100 blocks free.
fn view(is_busy: bool, free: u64) -> Value {
    let rank = json!({"rank": 0, "kv_used_blocks": 100 - free, "kv_total_blocks": 100});
    let worker =
        json!({"address": "127.0.0.1:1", "state": "up", "scraped_ms_ago": 3, "busy": is_busy, "ranks": [rank]});
    json!({"workers": [worker]})
}

/// Waits until the state page says that the requests of the middle lane wait for this.
async fn kept_by(rig: &Rig, reason: &str) {
    eventually("the state page says what they wait for", async || {
        let lane = rig.state().await["pools"]["main"]["waiting"]["standard"].clone();
        (lane["kept_by"] == json!([reason])).then_some(()).ok_or_else(|| format!("{lane}, not {reason}"))
    })
    .await;
}

/// Asserts that an answer says in each place that a caller reads what bound.
async fn says(rig: &Rig, answer: reqwest::Response, outcome: &str, bound: &str, knob: Option<&str>) {
    assert_eq!((answer.status().as_u16(), reason_of(&answer)), (429, outcome.to_owned()), "{answer:?}");
    assert_eq!(text_of(&answer, "x-sluice-bound"), bound);
    let error = answer.json::<Value>().await.expect("a refusal is JSON")["error"].clone();
    assert_eq!(error["bound"]["code"], bound, "{error}");
    assert_eq!(error["bound"]["limit"]["knob"].as_str(), knob, "{error}");
    assert!(knob.is_none_or(|knob| error["message"].as_str().is_some_and(|text| text.contains(knob))), "{error}");
    let labels = [("pool", "main"), ("lane", "standard"), ("outcome", outcome), ("bound", bound)];
    rig.counts("sluice_queue_refusals_total", &labels, 1).await;
}

/// A pool of 64 in which one request runs, and a tenant that may have no second.
#[tokio::test]
async fn a_wait_for_the_tenants_own_cap_says_so() {
    let rig = Rig::start(setup()).await;
    assert_eq!(rig.ask("one", &[]).await.0, 200, "how long requests take is measured");
    let running = rig.endless("one", &[]).await;
    let knob = Some("tenants.one.max_in_flight");
    let post = async |headers: &[(&str, &str)]| rig.post("one", headers, &chat(MODEL, 1, false)).await;
    says(&rig, post(&[("x-slo-ttft-ms", "1")]).await, "wait_too_long", "tenant_requests", knob).await;
    let (waited, full) = tokio::join!(post(&[]), async {
        kept_by(&rig, "tenant_requests").await;
        post(&[]).await
    });
    says(&rig, full, "queue_full", "tenant_requests", knob).await;
    says(&rig, waited, "queue_timeout", "tenant_requests", knob).await;
    drop(running);
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// Blocks of a full cache, workers that are all busy, and views that come no more while a request waits.
#[tokio::test]
async fn a_wait_for_the_workers_says_for_what_of_them() {
    let cases = [
        (view(false, 1), "60s", "local_caps", ["kv_blocks", "kv_blocks"]),
        (view(true, 100), "60s", "local_caps", ["all_busy", "all_busy"]),
        (view(true, 100), "600ms", "reject", ["all_busy", "stale_view"]),
    ];
    for (view, hold, then, [first, last]) in cases {
        let stale = json!({"hold": hold, "then": then});
        let setup = setup().with("/pools/0/stale", stale).with("/pools/0/kv", json!({"block_size": 16}));
        let rig = Rig::start(setup).await;
        assert_eq!(rig.push_view(1, 1, view).await.0, 200);
        let body = chat(MODEL, 64, false);
        let (waited, ()) = tokio::join!(rig.post("acme", &[], &body), kept_by(&rig, first));
        let knob = match last {
            "kv_blocks" => Some("pools[main].kv.headroom"),
            "stale_view" => Some("pools[main].stale.hold"),
            _ => Some("the sidecar's pools[main].busy"),
        };
        says(&rig, waited, "queue_timeout", last, knob).await;
        rig.nothing_trapped().await;
    }
}

/// The lower of two lanes waits for the same place as the higher one.
#[tokio::test]
async fn a_lane_behind_another_waits_for_what_that_lacks() {
    let rig = Rig::start(setup().with("/pools/0/max_in_flight", json!(1))).await;
    let running = rig.endless("acme", &[]).await;
    let _higher = send(&rig, "acme", "interactive", 1).await;
    let body = chat(MODEL, 1, false);
    let (waited, ()) = tokio::join!(rig.post("globex", &[], &body), kept_by(&rig, "pool_requests"));
    says(&rig, waited, "queue_timeout", "pool_requests", Some("pools[main].max_in_flight")).await;
    drop(running);
    rig.nothing_trapped().await;
}
