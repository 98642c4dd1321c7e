//! Workers whose metrics pages change: what the real sidecar then has the proxy do.

use serde_json::json;
use wasm_tests::caller::chat;
use wasm_tests::rig::{MODEL, Rig, Setup, TOKEN, Wait, eventually, reason_of};
use wasm_tests::sidecar;
use worker_sim::Fault;

/// A proxy whose sidecar reads its one worker, with more in the pool of that.
async fn read_by_a_sidecar(of_pool: serde_json::Value) -> (Rig, host_sidecar::Sidecar) {
    read_with(of_pool, 2, |setup| setup).await
}

/// The same with a cap of the worker, and with whatever the policy is to say beside it.
async fn read_with(
    of_pool: serde_json::Value,
    cap: u32,
    of_policy: impl FnOnce(Setup) -> Setup,
) -> (Rig, host_sidecar::Sidecar) {
    let setup = Setup::new(2, Wait::Unread).with("/pools/0/max_in_flight_per_worker", json!(cap));
    let rig = Rig::start(of_policy(setup).patient()).await;
    // The state page shows a pool from its first request on.
    assert_eq!(rig.ask("acme", &[]).await.0, 200);
    let worker = rig.worker.address();
    let mut pool = json!({"name": "main", "workers": [worker.to_string()]});
    for (field, value) in of_pool.as_object().into_iter().flatten() {
        pool[field] = value.clone();
    }
    let proxies = json!([{"url": format!("http://{}", rig.control_address()), "token": TOKEN}]);
    let scrape = json!({"interval": "20ms", "timeout": "400ms", "down_after": "500ms"});
    let sidecar = sidecar::start(worker, &json!({"proxies": proxies, "scrape": scrape, "pools": [pool]})).await;
    until(&rig, "live_workers", 1).await;
    (rig, sidecar)
}

async fn until(rig: &Rig, field: &str, expected: u64) {
    eventually("the view says so", async || {
        let view = rig.state().await["pools"]["main"]["view"].clone();
        (view[field] == expected).then_some(()).ok_or_else(|| view.to_string())
    })
    .await;
}

#[tokio::test]
async fn a_page_that_cannot_be_read_leaves_a_worker_up_within_its_cap() {
    let (rig, sidecar) = read_by_a_sidecar(json!({})).await;
    rig.worker.set_faults([Fault::GarbageMetrics]);
    until(&rig, "kv_unknown_workers", 1).await;
    let holders = [rig.endless("acme", &[]).await, rig.endless("acme", &[]).await];
    assert_eq!(rig.ask("acme", &[]).await, (429, "pool_requests".to_owned()), "its cap of 2 holds");
    drop(holders);
    rig.nothing_is_held().await;
    assert_eq!(rig.ask("acme", &[]).await.0, 200);
    assert_eq!(rig.state().await["pools"]["main"]["view"]["live_workers"], 1);
    sidecar.stop().await;
}

#[tokio::test]
async fn pages_that_cannot_be_read_leave_a_lane_with_a_dispatch_budget_its_share() {
    let lanes = json!([{"name": "chat"}, {"name": "batch", "dispatch_budget": {"baseline": 0.25}}]);
    let of_policy = |setup: Setup| setup.with("/lanes", lanes.clone()).with("/default_lane", json!("batch"));
    let (rig, sidecar) = read_with(json!({}), 4, of_policy).await;
    rig.worker.set_faults([Fault::GarbageMetrics]);
    until(&rig, "kv_unknown_workers", 1).await;
    let mut holders = Vec::new();
    for _ in 0..3 {
        holders.push(rig.endless("acme", &[]).await);
    }
    assert_eq!(rig.ask("acme", &[]).await, (429, "dispatch_budget".to_owned()), "0.75 of 4 are in use");
    holders.pop();
    eventually("a place that comes free is taken", async || match rig.ask("acme", &[]).await {
        (200, _) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    drop(holders);
    rig.nothing_is_held().await;
    sidecar.stop().await;
}

#[tokio::test]
async fn a_page_that_cannot_be_read_takes_a_worker_down_where_that_is_wanted() {
    let (rig, sidecar) = read_by_a_sidecar(json!({"when_unreadable": "down"})).await;
    rig.worker.set_faults([Fault::GarbageMetrics]);
    until(&rig, "live_workers", 0).await;
    assert_eq!(rig.ask("acme", &[]).await, (503, "no_workers".to_owned()));
    rig.worker.set_faults([]);
    until(&rig, "live_workers", 1).await;
    assert_eq!(rig.ask("acme", &[]).await.0, 200);
    eventually("the sidecar is ready", async || match sidecar::page(&sidecar, "/readyz").await {
        (200, _) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert_eq!(sidecar::metric(&sidecar, "sluice_sidecar_unknown_pool{pool=\"main\"}").await, 0.0);
    sidecar.stop().await;
}

#[tokio::test]
async fn a_worker_that_hangs_is_down_all_the_same() {
    let (rig, sidecar) = read_by_a_sidecar(json!({})).await;
    rig.worker.set_faults([Fault::HangMetrics]);
    until(&rig, "live_workers", 0).await;
    sidecar.stop().await;
}

#[tokio::test]
async fn a_pool_that_the_sidecar_names_otherwise() {
    let setup = Setup::new(1, Wait::Unread).with("/pools", json!([{"name": "main", "max_in_flight_per_worker": 2}]));
    let rig = Rig::start(setup.alone()).await;
    let answer = rig.post("acme", &[], &chat(MODEL, 1, false)).await;
    assert_eq!((answer.status().as_u16(), reason_of(&answer)), (503, "stale_view".to_owned()));
    let said = answer.text().await.expect("a body");
    assert!(said.contains("no view names the pool \\\"main\\\""), "{said}");
    let worker = rig.worker.address();
    let proxies = json!([{"url": format!("http://{}", rig.control_address()), "token": TOKEN}]);
    let pools = json!([{"name": "other", "workers": [worker.to_string()]}]);
    let sidecar = sidecar::start(worker, &json!({"proxies": proxies, "pools": pools})).await;
    eventually("the log says so", async || {
        let log = rig.envoy.log();
        let said = log.contains("pool \"main\": the sidecar's views do not name it");
        said.then_some(()).ok_or(log)
    })
    .await;
    assert_eq!(rig.count("sluice_view_missing", &[("pool", "main")]).await, 1);
    eventually("the sidecar says so", async || {
        let (status, page) = sidecar::page(&sidecar, "/readyz").await;
        let named = page.contains("needs views of pool main, which `pools` lacks");
        (status == 503 && named).then_some(()).ok_or(page)
    })
    .await;
    assert_eq!(sidecar::metric(&sidecar, "sluice_sidecar_unknown_pool{pool=\"main\"}").await, 1.0);
    sidecar.stop().await;
    let right = json!([{"name": "main", "workers": [worker.to_string()]}]);
    let sidecar = sidecar::start(worker, &json!({"proxies": proxies, "pools": right})).await;
    rig.counts("sluice_view_missing", &[("pool", "main")], 0).await;
    until(&rig, "live_workers", 1).await;
    assert_eq!(rig.ask("acme", &[]).await.0, 200);
    sidecar.stop().await;
}
