//! Bounds of what waits for a pool, over its lanes, its tenants and all worker threads.

use serde_json::json;
use wasm_tests::caller::{RawCaller, chat};
use wasm_tests::line::{order, queues, send, send_more, waiting};
use wasm_tests::rig::{MODEL, Rig, Wait, text_of};

/// Heads of the answers of some callers.
async fn answers(callers: &mut [RawCaller]) -> Vec<String> {
    let mut all = Vec::new();
    for caller in callers {
        all.push(caller.read_until("\r\n\r\n").await);
    }
    all
}

fn served(answers: &[String]) -> usize {
    answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 200")).count()
}

fn refused(answers: &[String]) -> usize {
    let is_full = |answer: &&String| {
        answer.starts_with("HTTP/1.1 429")
            && ["x-sluice-reason: queue_full", "retry-after: ", "pools[main].queue"]
                .iter()
                .all(|part| answer.contains(part))
    };
    answers.iter().filter(is_full).count()
}

/// Four of the lowest lane wait, then three of the highest come: three of the four are refused, in whatever thread they wait.
#[tokio::test]
async fn a_full_pool_takes_a_higher_lane_for_the_newest_of_the_lowest() {
    for threads in [2, 4] {
        let rig = Rig::start(queues(threads, Wait::Unread).with("/pools/0/queue", json!({"max_requests": 4}))).await;
        let running = rig.endless("first", &[]).await;
        let mut low = Vec::new();
        for number in 0..4 {
            low.push(send(&rig, "acme", "batch", number).await);
            waiting(&rig, number as u64 + 1).await;
        }
        let full = rig.post("acme", &[("x-sluice-lane", "batch")], &chat(MODEL, 1, false)).await;
        assert_eq!((full.status().as_u16(), text_of(&full, "x-sluice-reason")), (429, "queue_full".to_owned()));
        let mut high = Vec::new();
        for number in 4..7 {
            high.push(send(&rig, "acme", "interactive", number).await);
            rig.counts("sluice_requests_total", &[("lane", "batch"), ("outcome", "queue_full")], number as u64 - 2)
                .await;
            waiting(&rig, 4).await;
        }
        drop(running);
        let (low, high) = (answers(&mut low).await, answers(&mut high).await);
        assert_eq!((served(&high), served(&low), refused(&low)), (3, 1, 3), "{low:?}");
        assert_eq!(order(&rig)[..3], ["4", "5", "6"], "{threads} threads");
        rig.nothing_is_held().await;
        waiting(&rig, 0).await;
        rig.nothing_trapped().await;
    }
}

/// A quarter of 64 KiB is one tenant's, whatever lanes and threads its requests wait in.
#[tokio::test]
async fn one_tenant_has_a_quarter_of_the_bytes_that_wait() {
    let rig = Rig::start(queues(2, Wait::Unread).with("/pools/0/queue", json!({"max_bytes": "64KiB"}))).await;
    let running = rig.endless("first", &[]).await;
    let prompt = "word ".repeat(1_000);
    let mut greedy = Vec::new();
    for (number, lane) in ["batch", "standard", "interactive"].iter().enumerate() {
        greedy.push(send_more(&rig, "greedy", lane, number, &[], &prompt).await);
        waiting(&rig, number as u64 + 1).await;
    }
    let mut body = chat(MODEL, 1, false);
    body["messages"][0]["content"] = json!(prompt);
    let full = rig.post("greedy", &[], &body).await;
    assert_eq!((full.status().as_u16(), text_of(&full, "x-sluice-reason")), (429, "queue_full".to_owned()));
    let text = full.text().await.expect("it has a body");
    assert!(text.contains("pools[main].queue.max_bytes") && text.contains("16384"), "{text}");
    let mut modest = [send_more(&rig, "modest", "batch", 3, &[], &prompt).await];
    waiting(&rig, 4).await;
    drop(running);
    assert_eq!((served(&answers(&mut greedy).await), served(&answers(&mut modest).await)), (3, 1));
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}
