//! Places that are kept for lanes.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use wasm_tests::caller::RawCaller;
use wasm_tests::rig::{Rig, Setup, Wait, eventually};
use wasm_tests::view;

/// Requests that a worker has capacity for.
const BATCH: u64 = 128;

/// Lanes with the floors that SGLang's gateway has for a capacity of 256.
fn four_lanes() -> Value {
    json!([
        {"name": "system", "priority": 30, "reserve": {"requests": 32}},
        {"name": "interactive", "priority": 20, "reserve": {"requests": 128}},
        {"name": "default", "priority": 10, "reserve": {"requests": 26}},
        {"name": "bulk"},
    ])
}

/// Sends some requests of a lane more than may start, all together; those that have started, and why no more did.
async fn fill(rig: &Rig, lane: &str, may_start: usize) -> (Vec<RawCaller>, BTreeSet<String>) {
    let headers = [("x-sluice-lane", lane)];
    let all = (0..may_start + 8).map(|_| rig.try_endless("acme", &headers));
    let (mut held, mut reasons) = (Vec::new(), BTreeSet::new());
    for answer in futures_util::future::join_all(all).await {
        match answer {
            Ok(caller) => held.push(caller),
            Err(head) => {
                let reason = head.lines().find_map(|line| line.strip_prefix("x-sluice-reason: "));
                reasons.insert(reason.unwrap_or(&head).to_owned());
            }
        }
    }
    (held, reasons)
}

/// Sends a view in which so many workers are up.
async fn workers(rig: &Rig, generation: u64, count: u16) {
    let all: Vec<Value> = (0..count).map(|port| view::free(([127, 0, 0, 2], 1 + port).into(), 0)).collect();
    let pool = json!({"saturation": 0.0, "workers": all});
    assert_eq!(rig.push_view(7, generation, pool).await.0, 200);
}

#[tokio::test]
async fn floors_are_kept_free_and_fall_with_the_workers() {
    let stale = json!({"hold": "10m"});
    let setup = Setup::new(2, Wait::Unread).patient().with("/lanes", four_lanes()).with("/pools/0/stale", stale);
    let setup = setup.with("/pools/0/max_in_flight", Value::Null);
    let mut setup = setup.with("/pools/0/max_in_flight_per_worker", json!(BATCH));
    setup.worker.max_num_seqs = 2 * BATCH as u32;
    let rig = Rig::start(setup).await;
    workers(&rig, 1, 2).await;
    let mut all = Vec::new();
    for (lane, holds, reason) in [
        ("bulk", 70, "reserved"),
        ("default", 26, "reserved"),
        ("interactive", 128, "reserved"),
        ("system", 32, "pool_requests"),
    ] {
        let (held, refused) = fill(&rig, lane, holds).await;
        assert_eq!((held.len(), refused), (holds, BTreeSet::from([reason.to_owned()])), "{lane} of 256");
        all.push(held);
    }
    for (lane, bound, permille) in
        [("all", "max_in_flight_per_worker", 1_000), ("system", "reserve", 1_000), ("interactive", "reserve", 1_000)]
    {
        rig.counts("sluice_bound_used_permille", &[("lane", lane), ("bound", bound)], permille).await;
    }
    drop(std::mem::take(&mut all));
    rig.nothing_is_held().await;
    let headers = [("x-sluice-lane", "interactive")];
    let second = futures_util::future::join_all((0..150).map(|_| rig.endless("acme", &headers))).await;
    assert_eq!(fill(&rig, "bulk", 48).await.0.len(), 48, "beside 150 of the second lane");
    rig.counts("sluice_bound_used_permille", &[("lane", "interactive"), ("bound", "reserve")], 1_171).await;
    drop(second);
    rig.nothing_is_held().await;
    workers(&rig, 2, 1).await;
    for (lane, holds) in [("bulk", 0), ("default", 0), ("interactive", 96)] {
        let (held, refused) = fill(&rig, lane, holds).await;
        assert_eq!((held.len(), refused), (holds, BTreeSet::from(["reserved".to_owned()])), "{lane} of 128");
        all = vec![held];
    }
    assert_eq!(fill(&rig, "system", 32).await.0.len(), 32, "of 128, 96 of which the second lane holds");
    drop(all);
    rig.nothing_is_held().await;
}

/// One line gives a lane a fifth of the pool that is always free for it: under a flood of all others, and of those that have climbed to it,
/// none of its requests waits while it holds less.
#[tokio::test]
async fn a_lane_does_not_wait_while_it_holds_less_than_what_is_kept_for_it() {
    const PLACES: usize = 24;
    const KEPT: usize = 5;
    let queue = json!({"max_requests": 200, "max_wait": "60s"});
    let lanes = json!([
        {"name": "oncall", "priority": 100, "queue": queue, "reserve": {"share": 0.2, "lend": false}},
        {"name": "chat", "queue": queue},
        {"name": "batch", "priority": -10, "queue": queue, "aging": {"after": "100ms", "share": 1.0}},
    ]);
    let setup = Setup::new(2, Wait::Unread).patient().with("/lanes", lanes).with("/default_lane", json!("chat"));
    let rig = Rig::start(setup.with("/pools/0/max_in_flight", json!(PLACES))).await;
    let lane = |lane: &'static str| ("x-sluice-lane", lane);
    let flood = async {
        let ask = async |lane: (&'static str, &'static str)| {
            loop {
                assert_eq!(rig.ask("acme", &[lane]).await.0, 200);
            }
        };
        let all = (0..60).map(|place| ask(lane(if place % 2 == 0 { "chat" } else { "batch" })));
        futures_util::future::join_all(all).await
    };
    let oncall = async {
        eventually("the others fill what is theirs", async || {
            let waiting = rig.state().await["pools"]["main"]["waiting"]["chat"]["requests"].as_u64().unwrap_or(0);
            (waiting > 5).then_some(()).ok_or_else(|| waiting.to_string())
        })
        .await;
        for round in 0..8 {
            let before = rig.worker.arrivals().requests.len();
            let headers = [lane("oncall"), ("x-sluice-no-queue", "true")];
            let held = (0..KEPT).map(|_| rig.endless("globex", &headers));
            let held = tokio::time::timeout(Duration::from_secs(60), futures_util::future::join_all(held)).await;
            let held = held.unwrap_or_else(|_| panic!("round {round}: some of the {KEPT} had no place"));
            let arrivals = rig.worker.arrivals().requests;
            let served = arrivals[before..].iter().filter(|arrival| arrival.lane.as_deref() == Some("oncall")).count();
            assert_eq!(served, KEPT, "round {round}");
            drop(held);
            rig.counts("sluice_lane_in_flight_requests", &[("lane", "oncall")], 0).await;
        }
    };
    tokio::select! {
        _ = flood => unreachable!("it never ends"),
        () = oncall => {}
    }
    let refused = rig.count("sluice_requests_total", &[("lane", "oncall"), ("outcome", "reserved")]).await;
    assert_eq!(refused, 0);
}
