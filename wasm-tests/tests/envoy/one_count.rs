//! One count for all worker threads, whatever ends a request: with 1, 2 and 4 worker threads, in each of the three
//! places where a request can wait.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually};
use worker_sim::Fault;

/// Runs a test in every combination, each with a proxy of its own.
macro_rules! in_every_way {
    ($($name:ident => $test:path),* $(,)?) => {
        $(mod $name {
            use super::*;

            #[tokio::test]
            async fn unread() {
                in_threads(Wait::Unread, $test).await;
            }

            #[tokio::test]
            async fn at_headers() {
                in_threads(Wait::AtHeaders, $test).await;
            }

            #[tokio::test]
            async fn body_held() {
                in_threads(Wait::BodyHeld, $test).await;
            }
        })*
    };
}

in_every_way! {
    a_cap_of_four_is_never_exceeded => cap_of_four,
    a_pool_of_four_is_never_exceeded => pool_of_four,
    callers_who_leave_take_nothing_along => callers_leave,
    workers_that_reset_take_nothing_along => workers_reset,
}

async fn in_threads(wait: Wait, test: impl AsyncFn(Setup)) {
    for threads in [1, 2, 4] {
        test(Setup::new(threads, wait)).await;
    }
}

async fn cap_of_four(setup: Setup) {
    never_a_fifth(setup, |_| "capped".to_owned(), "tenant_requests").await;
}

/// Callers of many tenants, who share nothing but the pool.
async fn pool_of_four(setup: Setup) {
    let setup = setup.with("/pools/0/max_in_flight", json!(4));
    never_a_fifth(setup, |caller| format!("tenant-{caller}"), "pool_requests").await;
}

/// 200 callers at once, who come back until they are served. The worker counts how many it has at a time.
async fn never_a_fifth(setup: Setup, tenant: impl Fn(u64) -> String, reason: &'static str) {
    let rig = Arc::new(Rig::start(setup).await);
    let callers: Vec<_> = (0..200)
        .map(|caller| {
            let (rig, tenant) = (Arc::clone(&rig), tenant(caller));
            tokio::spawn(async move {
                let body = chat(MODEL, 4, caller % 2 == 0);
                let mut refusals = 0;
                loop {
                    let answer = rig.post(&tenant, &[], &body).await;
                    match answer.status().as_u16() {
                        200 => {
                            answer.bytes().await.expect("a whole answer");
                            return refusals;
                        }
                        429 => assert_eq!(answer.headers()["x-sluice-reason"], reason),
                        other => panic!("{other}: {}", answer.text().await.unwrap_or_default()),
                    }
                    refusals += 1;
                    tokio::time::sleep(Duration::from_millis(5 + caller % 7)).await;
                }
            })
        })
        .collect();
    let mut refusals = 0;
    for caller in callers {
        refusals += caller.await.expect("a caller");
    }
    let stats = rig.worker.stats();
    assert_eq!(stats.requests, 200);
    assert!(stats.peak_in_server <= 4, "{} at once", stats.peak_in_server);
    assert!(refusals > 0, "nobody was ever too many");
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// Callers hang up after the headers, amid the body, before the answer and amid the answer.
async fn callers_leave(setup: Setup) {
    let rig = Rig::start(setup).await;
    let tenant: (&str, &[u8]) = ("x-tenant-id", b"capped");
    let body = chat(MODEL, 4_000, true).to_string();
    for sized in [true, false] {
        let whole = request_bytes(CHAT, &[tenant], body.as_bytes(), sized);
        let headers = whole.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("headers") + 4;
        for (part, admitted) in [(headers, false), (headers + 20, false), (whole.len(), true)] {
            let mut callers = Vec::new();
            for _ in 0..3 {
                callers.push(RawCaller::send(rig.address, &whole[..part]).await);
            }
            rig.in_hand(3).await;
            if admitted {
                for caller in &mut callers {
                    assert!(caller.read_until("data: ").await.contains("200 OK"));
                }
                assert_eq!(rig.held().await, (3, 3));
            }
            drop(callers);
            rig.nothing_is_held().await;
        }
    }
    leave_before_the_answer(&rig, &request_bytes(CHAT, &[tenant], body.as_bytes(), true)).await;
    rig.nothing_trapped().await;
}

async fn leave_before_the_answer(rig: &Rig, request: &[u8]) {
    rig.worker.set_faults([Fault::Hang]);
    let mut callers = Vec::new();
    for _ in 0..4 {
        callers.push(RawCaller::send(rig.address, request).await);
    }
    eventually("four are held", async || match rig.held().await {
        (4, 4) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let refused = rig.post("capped", &[], &chat(MODEL, 1, false)).await;
    assert_eq!(refused.status(), 429);
    drop(callers);
    rig.nothing_is_held().await;
    rig.worker.set_faults([]);
    assert_eq!(rig.post("capped", &[], &chat(MODEL, 1, false)).await.status(), 200);
}

/// The worker breaks the connection before its answer and amid it.
async fn workers_reset(setup: Setup) {
    let rig = Rig::start(setup).await;
    let body = chat(MODEL, 4, true).to_string();
    for place in ["before", "amid"] {
        let path = format!("/resetting/{place}{CHAT}");
        for _ in 0..8 {
            let request = request_bytes(&path, &[("x-tenant-id", b"capped")], body.as_bytes(), true);
            let mut caller = RawCaller::send(rig.address, &request).await;
            let status = caller.status().await;
            assert_eq!(status, Some(if place == "amid" { 200 } else { 503 }));
            if place == "amid" {
                rig.resetter.reset_stream();
                // While the caller is still there: it is the worker's reset that gives back.
                rig.nothing_is_held().await;
            }
        }
    }
    rig.nothing_is_held().await;
    let admitted = rig.state().await["pools"]["main"]["admitted"]["requests"].clone();
    assert_eq!(admitted, json!(16), "they had been admitted");
    rig.nothing_trapped().await;
}
