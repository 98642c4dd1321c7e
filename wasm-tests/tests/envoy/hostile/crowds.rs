//! Callers who are many, or say that they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};
use wasm_tests::bootstrap;
use wasm_tests::caller::{KeptAlive, chat, is_last};
use wasm_tests::crowd::{self, Held};
use wasm_tests::echo::Echo;
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually};

/// Every number is another tenant and another model. `cargo run -p wasm-tests --example invented -- 100000` says what more of
/// them come to.
#[tokio::test]
async fn invented_tenants_and_models_leave_nothing_behind() {
    const KNOWN: u64 = 6_000;
    const MORE: u64 = 14_000;
    let echo = Echo::start().await;
    let mut setup = Setup::new(2, Wait::AtHeaders).with("/tenants/*", json!({"requests_per_minute": 1_000_000}));
    setup.clusters.push(("echo", echo.address()));
    setup.virtual_hosts = bootstrap::virtual_hosts(&[bootstrap::route_without_prefix("/", "echo")]);
    // Alone, since it measures the process, and names that others had brought would not show as new.
    let rig = Rig::start(setup.alone()).await;
    let expected = |count: u64| BTreeMap::from([(Some(200), count / 2), (Some(404), count / 2)]);
    assert_eq!(crowd::invent(rig.address, 0..KNOWN).await, expected(KNOWN));
    // Envoy shows a histogram only when it has next gathered its statistics.
    eventually("the histograms are shown", async || {
        let shown = rig.envoy.admin("/stats?filter=sluice_prompt_tokens").await.unwrap_or_default();
        shown.contains("sluice_prompt_tokens").then_some(()).ok_or(shown)
    })
    .await;
    let metrics = metrics_of(&rig).await;
    let (before, names) = (Held::by(&rig.envoy).await, keys_of(&rig.state().await));
    assert_eq!(crowd::invent(rig.address, KNOWN..KNOWN + MORE).await, expected(MORE));
    rig.nothing_is_held().await;
    let after = Held::by(&rig.envoy).await;
    assert_eq!(metrics_of(&rig).await, metrics, "no metric of theirs");
    assert_eq!(keys_of(&rig.state().await), names, "no name of theirs");
    assert_eq!(echo.whole(), (KNOWN + MORE) / 2, "and the worker had those that fit a pattern");
    // Half of the tenants are admitted. A ledger of theirs, some 140 bytes, is kept until its record needs the room; of models nothing is.
    let grown = |after: u64, before: u64| after.saturating_sub(before);
    assert!(grown(after.heap, before.heap) < 110 * MORE, "{before:?} {after:?}");
    assert!(grown(after.resident, before.resident) < 1_000 * MORE, "{before:?} {after:?}");
    rig.nothing_trapped().await;
}

/// Names of the filter's metrics.
async fn metrics_of(rig: &Rig) -> BTreeSet<String> {
    let page = rig.envoy.admin("/stats?filter=wasmcustom").await.expect("the metrics");
    let names = page.lines().filter_map(|line| line.rsplit_once(": ").map(|(name, _)| name.to_owned()));
    // Why: a VM that stalls for so long that it is taken for dead may come back in another slot, which has a gauge of its own.
    names.filter(|name| !name.contains("sluice_vm_memory_bytes")).collect()
}

/// The places of a page at which something stands.
fn keys_of(page: &Value) -> Vec<String> {
    let keys = |name: &str| page[name].as_object().into_iter().flat_map(|object| object.keys().cloned());
    ["pools", "tenants", "fair_tags", "unnamed_tenants", "shared_tenants"].into_iter().flat_map(keys).collect()
}

/// A tenant whose cap is full asks again at once, over and over, from many connections. The others do not notice, and every
/// answer is counted.
#[tokio::test]
async fn a_storm_of_retries_keeps_nobody_out_and_is_counted() {
    const POLITE: u64 = 100;
    for threads in [1, 2] {
        let rig = Rig::start(Setup::new(threads, Wait::Unread).patient()).await;
        let mut holders = Vec::new();
        for _ in 0..4 {
            holders.push(rig.endless("capped", &[]).await);
        }
        let (calm, refused) = (AtomicBool::new(false), AtomicU64::new(0));
        let storm = async || {
            let mut connection = KeptAlive::open(rig.address).await;
            while !calm.load(Ordering::Relaxed) {
                let answer = connection.post(&[("x-tenant-id", "capped")], chat(MODEL, 1, false).to_string()).await;
                let answer = answer.unwrap();
                assert_eq!(
                    (answer.status().as_u16(), &answer.headers()["x-sluice-reason"]),
                    (429, &"tenant_requests".parse().unwrap())
                );
                assert!(answer.headers().contains_key("retry-after"));
                refused.fetch_add(1, Ordering::Relaxed);
                if is_last(&answer) {
                    connection = KeptAlive::open(rig.address).await;
                }
            }
        };
        let polite = async {
            for _ in 0..POLITE {
                assert_eq!(rig.ask("acme", &[]).await, (200, String::new()));
            }
            calm.store(true, Ordering::Relaxed);
        };
        tokio::join!(polite, futures_util::future::join_all((0..16).map(|_| storm())));
        let outcomes = [("tenant_requests", refused.load(Ordering::Relaxed)), ("admitted", POLITE + 4)];
        for (outcome, count) in outcomes {
            rig.counts("sluice_requests_total", &[("outcome", outcome)], count).await;
        }
        assert!(refused.load(Ordering::Relaxed) >= 100, "a storm: {refused:?}");
        drop(holders);
        rig.nothing_is_held().await;
        rig.nothing_trapped().await;
    }
}
