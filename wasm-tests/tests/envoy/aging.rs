//! Waiters that climb to higher lanes.

use std::time::Duration;

use host_sidecar::Sidecar;
use serde_json::json;
use tokio::time::Instant;
use wasm_tests::rig::{Rig, Setup, TOKEN, Wait, eventually};
use wasm_tests::sidecar;

/// Requests that fill the worker.
const FULL: u32 = 20;

/// Time after which a waiter climbs.
const CLIMBS_AFTER: Duration = Duration::from_secs(1);

/// Three lanes, the lowest of which ages.
fn setup() -> Setup {
    let lanes = json!([
        {"name": "interactive", "priority": 100, "ceiling": 1.2},
        {"name": "standard", "ceiling": 1.0},
        {
            "name": "batch", "priority": -10, "ceiling": 0.8, "dispatch_budget": {"baseline": 0.05},
            "queue": {"max_wait": "60s"}, "aging": {"after": format!("{}ms", CLIMBS_AFTER.as_millis())},
        },
    ]);
    let setup = Setup::new(2, Wait::Unread).patient().with("/lanes", lanes);
    setup.with("/default_lane", json!("standard"))
}

/// A sidecar that says how full the worker is; the proxy has its view when this returns.
async fn watched(rig: &Rig) -> Sidecar {
    // The state page knows a pool by its first request.
    assert_eq!(rig.ask("acme", &[]).await.0, 200);
    let url = format!("http://{}", rig.control_address());
    let detector = json!({"detector": "concurrency", "mode": "requests", "max_concurrency": FULL});
    let pool = json!([{"name": "main", "workers": [rig.worker.address().to_string()], "saturation": detector}]);
    let more = json!({"proxies": [{"url": url, "token": TOKEN}], "pools": pool, "scrape": {"interval": "20ms"}});
    let sidecar = sidecar::start(rig.worker.address(), &more).await;
    eventually("the proxy knows how much fills the pool", async || {
        let view = rig.state().await["pools"]["main"]["view"].clone();
        (!view["full_requests"].is_null()).then_some(()).ok_or_else(|| view.to_string())
    })
    .await;
    sidecar
}

/// A lane that its own ceiling and budget keep shut moves after a while: its waiters are held to the ceiling of the lane above by then,
/// and where that is shut too, to that of the next one.
#[tokio::test]
async fn a_waiter_that_has_aged_starts_below_the_ceiling_of_the_lane_that_it_has_climbed_to() {
    let rig = Rig::start(setup()).await;
    let _sidecar = watched(&rig).await;
    let lane = |lane: &'static str| [("x-sluice-lane", lane)];
    let mut held = Vec::new();
    for (running, climbs) in [(FULL * 9 / 10, 1), (FULL + 1, 2)] {
        while held.len() < running as usize {
            held.push(rig.endless("acme", &lane("interactive")).await);
        }
        let (status, reason) =
            rig.ask("acme", &[lane("batch").as_slice(), &[("x-sluice-no-queue", "true")]].concat()).await;
        assert_eq!((status, reason.as_str()), (429, "saturated"), "{running} run");
        let came = Instant::now();
        held.push(rig.endless("acme", &lane("batch")).await);
        assert!(came.elapsed() >= CLIMBS_AFTER * climbs, "{:?} with {running} running", came.elapsed());
        assert_eq!(rig.worker.stats().running as usize, held.len(), "so many run in truth");
    }
    drop(held);
    rig.nothing_is_held().await;
}

/// Requests that came for the highest lane, and some that have climbed to it, wait for one place: of any hundred that start five are of
/// those that have climbed.
#[tokio::test]
async fn who_has_climbed_above_the_default_lane_has_its_share_of_the_starts() {
    let queue = json!({"max_requests": 500, "max_wait": "60s"});
    let lanes = json!([
        {"name": "interactive", "priority": 100, "queue": queue}, {"name": "standard"},
        {"name": "batch", "priority": -10, "queue": queue, "aging": {"after": "10ms"}},
    ]);
    let setup = Setup::new(2, Wait::Unread).patient().with("/lanes", lanes).with("/default_lane", json!("standard"));
    let rig = Rig::start(setup.with("/pools/0/max_in_flight", json!(1))).await;
    let first = rig.endless("acme", &[("x-sluice-lane", "interactive")]).await;
    let before = rig.worker.arrivals().requests.len();
    let asks = |tenant: &'static str, lane: &'static str, count: usize| {
        let one = async || rig.ask(tenant, &[("x-sluice-lane", lane)]).await.0;
        futures_util::future::join_all((0..count).map(move |_| one()))
    };
    let waits = async |lane: &str, count: u64| {
        eventually("all wait", async || {
            let waiting = rig.state().await["pools"]["main"]["waiting"][lane].clone();
            let is_there = waiting["requests"] == count && waiting["oldest_ms"].as_u64() > Some(100);
            is_there.then_some(()).ok_or_else(|| waiting.to_string())
        })
        .await;
    };
    let release = async {
        waits("batch", 20).await;
        waits("interactive", 150).await;
        drop(first);
    };
    let (climbed, came, ()) = tokio::join!(asks("reports", "batch", 20), asks("acme", "interactive", 150), release);
    assert!(climbed.iter().chain(&came).all(|status| *status == 200), "{climbed:?} {came:?}");
    let arrivals = rig.worker.arrivals().requests;
    let lanes: Vec<bool> = arrivals[before..].iter().map(|arrival| arrival.lane.as_deref() == Some("batch")).collect();
    let last_came = lanes.iter().rposition(|climbed| !climbed).unwrap();
    let counts = lanes[..last_came].windows(100).map(|starts| starts.iter().filter(|climbed| **climbed).count());
    let counts: Vec<usize> = counts.collect();
    assert_eq!((counts[0], counts.iter().max()), (5, Some(&5)), "{counts:?}");
    rig.nothing_is_held().await;
}
