//! Requests that come faster than workers are scraped.

use host_sidecar::Sidecar;
use serde_json::{Value, json};
use wasm_tests::caller::chat;
use wasm_tests::rig::{MODEL, Rig, Setup, TOKEN, Wait, eventually};
use wasm_tests::sidecar;
use worker_sim::Fault;

/// A policy of one lane with a ceiling, which asks nothing of the pool but that, and believes a view for longer than any test takes.
fn setup(threads: u32, ceiling: f64) -> Setup {
    let lanes = json!([{"name": "only", "ceiling": ceiling}]);
    let setup = Setup::new(threads, Wait::Unread).patient().with("/lanes", lanes);
    setup.with("/pools/0/stale", json!({"hold": "10m"}))
}

/// A sidecar that has scraped the worker while it was idle, and whose scrapes hang from then on; it holds what it saw last.
async fn scraped_while_idle(rig: &Rig, saturation: Value) -> Sidecar {
    // The state page knows a pool by its first request.
    assert_eq!(rig.ask("acme", &[]).await.0, 200);
    let url = format!("http://{}", rig.control_address());
    let pool = json!([{"name": "main", "workers": [rig.worker.address().to_string()], "saturation": saturation}]);
    let more = json!({
        "proxies": [{"url": url, "token": TOKEN}], "pools": pool,
        "scrape": {"interval": "20ms", "timeout": "100ms", "stale_after": "2h", "down_after": "3h"},
    });
    let sidecar = sidecar::start(rig.worker.address(), &more).await;
    eventually("the proxy knows how much fills the pool", async || {
        let view = rig.state().await["pools"]["main"]["view"].clone();
        let is_known = !view["full_requests"].is_null() || !view["full_blocks"].is_null();
        is_known.then_some(()).ok_or_else(|| view.to_string())
    })
    .await;
    rig.worker.set_faults([Fault::HangMetrics]);
    eventually("scrapes hang", async || {
        let sample = r#"sluice_sidecar_scrapes_total{pool="main",result="timeout"}"#;
        (sidecar::metric(&sidecar, sample).await >= 2.0).then_some(()).ok_or_else(String::new)
    })
    .await;
    sidecar
}

/// A worker of twenty places and a lane that may fill ten: the eleventh request finds them full, though the only scrape there
/// ever was shows an idle worker.
#[tokio::test]
async fn a_ceiling_holds_at_any_rate_of_arrivals() {
    let rig = Rig::start(setup(2, 0.5)).await;
    let detector = json!({"detector": "concurrency", "mode": "requests", "max_concurrency": 20});
    let _sidecar = scraped_while_idle(&rig, detector).await;
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(rig.endless("acme", &[]).await);
    }
    for _ in 0..5 {
        assert_eq!(rig.ask("acme", &[]).await, (429, "saturated".to_owned()));
    }
    assert_eq!(rig.worker.stats().running, 10, "so many run in truth");
    held.truncate(9);
    eventually("a place that comes free is taken without another scrape", async || {
        let (status, reason) = rig.ask("acme", &[]).await;
        (status == 200).then_some(()).ok_or(reason)
    })
    .await;
    drop(held);
    rig.nothing_is_held().await;
}

/// A crowd over two worker threads: no more run than the ceiling allows.
#[tokio::test]
async fn a_crowd_between_two_scrapes_passes_no_ceiling() {
    let rig = Rig::start(setup(2, 0.5)).await;
    let detector = json!({"detector": "concurrency", "mode": "requests", "max_concurrency": 20});
    let _sidecar = scraped_while_idle(&rig, detector).await;
    let body = chat(MODEL, 500_000, true);
    let crowd = futures_util::future::join_all((0..60).map(|_| rig.post("acme", &[], &body))).await;
    let started = crowd.iter().filter(|answer| answer.status() == 200).count();
    assert_eq!(started, 10);
    eventually("so many run in truth", async || {
        let running = rig.worker.stats().running;
        (running == 10).then_some(()).ok_or(running.to_string())
    })
    .await;
    assert_eq!(rig.worker.stats().peak_running, 10);
    drop(crowd);
    rig.nothing_is_held().await;
}
