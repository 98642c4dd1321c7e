//! Requests in flight that give way to one that needs the KV blocks they hold.

use std::time::{Duration, Instant};

use serde_json::json;
use wasm_tests::caller::{CHAT, RawCaller, request_bytes};
use wasm_tests::line::{queues, waiting};
use wasm_tests::rig::{Rig, Setup, Wait, eventually};

use crate::kv::{free_blocks, of_tokens, watched_with};

/// Blocks of the worker.
const BLOCKS: u64 = 150;

/// Requests that may be evicted, of two blocks each, all of whose prompts the worker computes in one step.
const LOW: usize = 50;

/// A worker that takes 4 ms to compute a token of a prompt, so that whatever it computes in one step is answered seconds later.
fn setup() -> Setup {
    let queue = json!({"max_wait": "60s"});
    let lanes = json!([
        {"name": "interactive", "priority": 100, "queue": queue},
        {"name": "batch", "priority": -10, "ceiling": 9.0, "preemptible": true, "queue": queue},
    ]);
    let mut setup = Setup::new(2, Wait::BodyHeld).with("/lanes", lanes).with("/default_lane", json!("batch"));
    setup = setup.with("/pools/0/kv", json!({"block_size": 16, "headroom": 0.0})).patient();
    // One block is vLLM's null block.
    setup.worker.num_gpu_blocks = BLOCKS as u32 + 1;
    setup.worker.max_num_seqs = 64;
    setup.worker.max_num_batched_tokens = 4_096;
    setup.worker.base_ms = 10.0;
    setup.worker.per_prefill_token_us = 4_000.0;
    setup.worker.per_kv_block_us = 0.0;
    setup
}

async fn send(rig: &Rig, lane: &str, prompt: usize, output: u32) -> RawCaller {
    let mut body = of_tokens(prompt, output);
    // Why not: a stream's answer begins with its headers, before the prompt has been computed.
    body["stream"] = json!(false);
    let body = body.to_string();
    let headers: [(&str, &[u8]); 2] = [("x-tenant-id", b"acme"), ("x-sluice-lane", lane.as_bytes())];
    RawCaller::send(rig.address, &request_bytes(CHAT, &headers, body.as_bytes(), true)).await
}

/// Fifty requests hold 100 of 150 blocks, one of a higher lane needs 60, and the worker's numbers come once a second: five give way, however
/// often the proxy looks before the next view.
#[tokio::test]
async fn as_many_give_way_as_hold_the_blocks_that_a_request_lacks() {
    let rig = Rig::start(setup()).await;
    let scrape = json!({"interval": "1s", "timeout": "5s", "down_after": "5s"});
    let _sidecar = watched_with(&rig, json!({"scrape": scrape})).await;
    // While the worker computes this prompt, all the others come.
    let mut first = send(&rig, "interactive", 400, 1).await;
    eventually("the worker computes it", async || match rig.worker.stats().running {
        1 => Ok(()),
        running => Err(running.to_string()),
    })
    .await;
    let mut low = Vec::new();
    for _ in 0..LOW {
        low.push(send(&rig, "batch", 20, 4).await);
    }
    assert_eq!(first.status().await, Some(200));
    free_blocks(&rig, |free| free <= BLOCKS - 2 * LOW as u64).await;
    assert_eq!(rig.worker.stats().running as usize, LOW);

    let mut head = send(&rig, "interactive", 950, 4).await;
    assert_eq!(head.status().await, Some(200));
    rig.counts("sluice_evicted_total", &[("lane", "batch")], 5).await;
    for mut low in low {
        let answer = low.read_until("\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200") || answer.contains("x-sluice-reason: evicted"), "{answer}");
    }
    assert_eq!(rig.worker.stats().preemptions, 0);
    rig.nothing_is_held().await;
}

/// A batch request waits, starts and is computed for seconds, and an interactive one comes: that one waits where the former has aged, else
/// the former gives way.
#[tokio::test]
async fn a_request_that_started_by_its_age_does_not_give_way() {
    for ages in [true, false] {
        let mut setup = queues(2, Wait::BodyHeld);
        if ages {
            setup = setup.with("/lanes/2/aging", json!({"after": "50ms"}));
        }
        setup.worker.per_prefill_token_us = 20_000.0;
        let rig = Rig::start(setup).await;
        let running = rig.endless("first", &[]).await;
        let mut batch = send(&rig, "batch", 100, 1).await;
        waiting(&rig, 1).await;
        let came = Instant::now();
        eventually("it has aged", async || {
            let age = came.elapsed();
            (age > Duration::from_millis(100)).then_some(()).ok_or(format!("{age:?}"))
        })
        .await;
        drop(running);
        waiting(&rig, 0).await;
        let mut high = send(&rig, "interactive", 10, 1).await;
        assert_eq!(high.status().await, Some(200));
        assert_eq!(batch.status().await, Some(if ages { 200 } else { 429 }), "ages: {ages}");
        rig.nothing_is_held().await;
        rig.nothing_trapped().await;
    }
}
