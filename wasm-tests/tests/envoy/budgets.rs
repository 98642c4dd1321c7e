//! Lanes that fill what their pool has to spare.

use std::time::Duration;

use futures_util::future::join_all;
use host_sidecar::Sidecar;
use serde_json::json;
use wasm_tests::bootstrap;
use wasm_tests::caller::chat;
use wasm_tests::rig::{MODEL, Rig, Setup, TOKEN, Wait};
use wasm_tests::sidecar;

/// Places of the pool.
const PLACES: u64 = 96;

/// Most that the batch lane fills of an idle pool at a baseline of 0.05.
const FILLED: u64 = 91;

/// A pool of 96 places with a batch lane, in front of a worker that takes about a second for a hundred tokens.
fn setup() -> Setup {
    let queue = json!({"max_requests": 1_000, "max_wait": "2m"});
    let lanes = json!([
        {"name": "standard", "queue": queue},
        {"name": "batch", "priority": -10, "ceiling": 9.0, "dispatch_budget": {"baseline": 0.05}, "queue": queue},
    ]);
    let setup = Setup::new(2, Wait::Unread).with("/lanes", lanes).with("/default_lane", json!("batch"));
    let mut setup = setup.with("/pools/0/max_in_flight", json!(PLACES));
    setup.worker.base_ms = 10.0;
    setup.worker.per_kv_block_us = 0.0;
    setup.worker.max_num_seqs = 256;
    setup
}

async fn watch(rig: &Rig) -> Sidecar {
    let more = json!({
        "proxies": [{"url": format!("http://{}", rig.control_address()), "token": TOKEN}],
        "scrape": {"interval": "100ms", "timeout": "5s", "down_after": "10s"},
    });
    sidecar::start(rig.worker.address(), &more).await
}

/// Sends so many requests of a lane together; how many are served.
async fn crowd(rig: &Rig, tenant: &str, lane: &str, count: usize, tokens: u32) -> usize {
    let body = chat(MODEL, tokens, false);
    let headers = [("x-sluice-lane", lane)];
    let answers = join_all((0..count).map(|_| rig.post(tenant, &headers, &body))).await;
    answers.iter().filter(|answer| answer.status() == 200).count()
}

/// Requests that run, looked at every 20 ms for as long as something waits, without the first and the last ones.
async fn running_while_some_wait(rig: &Rig) -> Vec<u64> {
    let mut samples = Vec::new();
    loop {
        let waiting = &rig.state().await["pools"]["main"]["waiting"]["batch"]["requests"];
        let waits = waiting.as_u64().unwrap_or(0) > 0;
        if !waits && !samples.is_empty() {
            break;
        }
        if waits {
            samples.push(rig.worker.stats().running);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let skipped = samples.len() / 5;
    samples.drain(..skipped);
    samples
}

fn median(mut samples: Vec<u64>) -> u64 {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

#[tokio::test]
async fn a_lane_alone_keeps_its_pool_filled_and_a_backlog_of_any_length_is_served() {
    let rig = Rig::start(setup()).await;
    let _sidecar = watch(&rig).await;
    let (served, running) = tokio::join!(crowd(&rig, "acme", "batch", 400, 100), running_while_some_wait(&rig));
    assert_eq!(served, 400);
    assert!(rig.worker.stats().peak_running <= FILLED, "{}", rig.worker.stats().peak_running);
    assert!(median(running.clone()) >= 86, "{running:?}");
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn a_backlog_of_a_tenant_at_its_own_cap_changes_nothing() {
    let rig = Rig::start(setup()).await;
    let _sidecar = watch(&rig).await;
    let others = crowd(&rig, "capped", "standard", 92, 10);
    let (of_capped, served, running) =
        tokio::join!(others, crowd(&rig, "acme", "batch", 250, 100), running_while_some_wait(&rig));
    assert_eq!((of_capped, served), (92, 250));
    assert!(median(running.clone()) >= 80, "{running:?}");
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn a_lane_with_a_budget_goes_on_without_a_sidecar() {
    let rig = Rig::start(setup()).await;
    assert_eq!(crowd(&rig, "acme", "batch", 200, 20).await, 200);
    let peak = rig.worker.stats().peak_running;
    assert!((86..=FILLED).contains(&peak), "{peak}");
    rig.nothing_is_held().await;
}

/// A second proxy before the worker of a rig.
async fn beside(rig: &Rig) -> Rig {
    let mut setup = setup();
    setup.clusters = vec![("shared", rig.worker.address())];
    setup.virtual_hosts = bootstrap::virtual_hosts(&[bootstrap::route_without_prefix("/", "shared")]);
    Rig::start(setup).await
}

/// N of the batch lane is this on a proxy.
async fn allowed(rig: &Rig, expected: u64) {
    rig.counts("sluice_dispatch_budget_allowed", &[("pool", "main"), ("lane", "batch")], expected).await;
}

#[tokio::test]
async fn two_proxies_share_what_the_pool_has_to_spare() {
    let first = Rig::start(setup()).await;
    let second = beside(&first).await;
    let proxies =
        [&first, &second].map(|rig| json!({"url": format!("http://{}", rig.control_address()), "token": TOKEN}));
    // Why asked first: a pool without a record has no gauge.
    for rig in [&first, &second] {
        assert_eq!(rig.ask("acme", &[]).await.0, 200);
    }
    let more = json!({"proxies": proxies, "scrape": {"interval": "100ms", "timeout": "5s", "down_after": "10s"}});
    let _sidecar = sidecar::start(first.worker.address(), &more).await;
    tokio::join!(allowed(&first, 45), allowed(&second, 45));
    // Why three seconds each: a place that comes free stays so until the next view, and on a slow machine views are late.
    let (of_first, of_second, running) = tokio::join!(
        crowd(&first, "acme", "batch", 150, 300),
        crowd(&second, "acme", "batch", 150, 300),
        running_while_some_wait(&first),
    );
    assert_eq!((of_first, of_second), (150, 150));
    // Why no bound of the peak: what ends between an answer and a scrape may be replaced by both, so on a machine that is late more run
    // until these have ended, which is most of the time where all of one round end together. Why these bounds: each for itself they would fill
    // twice the pool, and one that took the other's load for its own half of it.
    assert!((70..=PLACES * 3 / 2).contains(&median(running.clone())), "{running:?}");
    for rig in [&first, &second] {
        rig.nothing_is_held().await;
    }
}
