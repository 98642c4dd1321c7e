//! Callers who promise much, send little, or do not read what they asked for.

use serde_json::json;
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::echo::Echo;
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually};

use super::{EVERY_WAIT, with_echo};

/// The head of a request that claims such a length, and the beginning of its body.
fn claiming(tenant: &str, length: &str) -> Vec<u8> {
    let head =
        format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\nx-tenant-id: {tenant}\r\ncontent-length: {length}\r\n\r\n");
    head.into_bytes().into_iter().chain(*br#"{"model": "sim", "messages": ["#).collect()
}

#[tokio::test]
async fn a_claimed_gibibyte_takes_no_more_than_its_tenant_may() {
    for wait in EVERY_WAIT {
        let rig = Rig::start(Setup::new(2, wait)).await;
        let mut liars = Vec::new();
        for _ in 0..4 {
            liars.push(RawCaller::send(rig.address, &claiming("capped", "1073741824")).await);
        }
        rig.in_hand(4).await;
        // Read first, they are not decided yet: what counts is what comes.
        let held = if wait == Wait::Unread { 4 } else { 0 };
        eventually("what they claim is held, if anything", async || {
            let now = rig.held().await;
            (now == (held, held)).then_some(()).ok_or(format!("{now:?}"))
        })
        .await;
        if wait == Wait::Unread {
            let mut fifth = RawCaller::send(rig.address, &claiming("capped", "1073741824")).await;
            assert_eq!(fifth.status().await, Some(429), "their own cap");
        }
        assert_eq!(rig.ask("acme", &[]).await, (200, String::new()), "{wait:?}");
        drop(liars);
        rig.in_hand(0).await;
        rig.nothing_is_held().await;
        assert_eq!(rig.worker.stats().requests, 1, "the worker had none of theirs whole");
        rig.nothing_trapped().await;
    }
}

#[tokio::test]
async fn lengths_that_mean_two_things_are_refused_by_the_proxy() {
    let rig = Rig::start(Setup::new(1, Wait::Unread)).await;
    for length in [
        "18446744073709551616",
        "-1",
        "1, 2",
        "0x10",
        "5\r\ncontent-length: 6",
        "5\r\ntransfer-encoding: chunked",
        "5\r\ntransfer-encoding: identity, chunked",
    ] {
        let mut caller = RawCaller::send(rig.address, &claiming("acme", length)).await;
        let status = caller.status().await;
        assert!(matches!(status, Some(400 | 501)), "{length:?}: {status:?}");
    }
    assert_eq!(rig.worker.stats().received, 0);
    assert_eq!(rig.ask("acme", &[]).await, (200, String::new()));
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn a_body_without_an_end_is_refused_once_its_bytes_prove_it() {
    const CHUNK: usize = 32 << 10;
    const FAR_BEYOND: usize = 64 << 20;
    for wait in EVERY_WAIT {
        let rig = Rig::start(Setup::new(2, wait).with("/pools/0/max_prompt_tokens", json!(20_000))).await;
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n");
        let start = br#"{"model": "sim", "messages": [{"content": ""#;
        let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        let mut caller = RawCaller::send(rig.address, &[head.as_bytes(), &chunk(start)].concat()).await;
        let words = chunk("word ".repeat(CHUNK / 5).as_bytes());
        let mut sent = 0;
        while sent < FAR_BEYOND && caller.send_more(&words).await {
            sent += CHUNK;
        }
        assert!(sent < FAR_BEYOND, "{wait:?}");
        let answer = caller.read_until("}}").await;
        assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("oversize"), "{wait:?}: {answer}");
        rig.nothing_is_held().await;
        assert_eq!(rig.worker.stats().requests, 0);
        rig.nothing_trapped().await;
    }
}

#[tokio::test]
async fn a_body_byte_by_byte_is_served_and_one_that_stalls_holds_up_nobody() {
    for wait in EVERY_WAIT {
        let rig = Rig::start(Setup::new(2, wait)).await;
        let request = request_bytes(CHAT, &[], chat(MODEL, 1, false).to_string().as_bytes(), true);
        let mut dripping = RawCaller::send(rig.address, &request[..1]).await;
        for byte in &request[1..] {
            dripping.send_more(&[*byte]).await;
        }
        assert_eq!(dripping.status().await, Some(200), "{wait:?}");
        let mut stalled = Vec::new();
        for _ in 0..50 {
            stalled.push(RawCaller::send(rig.address, &request[..request.len() - 1]).await);
        }
        rig.in_hand(50).await;
        assert_eq!(rig.ask("acme", &[]).await, (200, String::new()), "{wait:?}");
        drop(stalled);
        rig.in_hand(0).await;
        rig.nothing_is_held().await;
        rig.nothing_trapped().await;
    }
}

/// Who stalls is ended by the idle timeout, which every shipped configuration sets, and gives back what it held.
#[tokio::test]
async fn a_body_that_stalls_is_ended_by_the_idle_timeout() {
    for wait in EVERY_WAIT {
        let mut setup = Setup::new(1, wait);
        setup.idle_timeout = "0.3s";
        let rig = Rig::start(setup).await;
        let request = request_bytes(CHAT, &[], chat(MODEL, 1, false).to_string().as_bytes(), true);
        let mut stalled = RawCaller::send(rig.address, &request[..request.len() - 1]).await;
        assert_eq!(stalled.status().await, Some(408), "{wait:?}");
        rig.nothing_is_held().await;
        rig.nothing_trapped().await;
    }
}

/// A stream that nobody reads stops its worker by back-pressure; it holds its lease as long as it lasts, and no longer.
#[tokio::test]
async fn who_does_not_read_its_answer_holds_what_it_was_given_until_it_leaves() {
    let mut setup = Setup::new(2, Wait::Unread).patient();
    setup.worker.base_ms = 0.0;
    setup.worker.per_sequence_us = 20.0;
    let echo = Echo::start().await;
    let rig = Rig::start(with_echo(setup, &echo)).await;
    let body = chat(MODEL, 400_000, true).to_string();
    let request = request_bytes(CHAT, &[("x-tenant-id", b"capped")], body.as_bytes(), true);
    let deaf = RawCaller::send(rig.address, &request).await;
    eventually("the proxy has stopped reading the worker's answer", async || {
        let paused = rig.envoy.stat("cluster.workers.upstream_flow_control_paused_reading_total").await.unwrap();
        (paused > 0).then_some(()).ok_or(paused.to_string())
    })
    .await;
    assert_eq!(rig.held().await, (1, 1), "it is held");
    let polite = rig.post_to("/echo/v1/chat/completions", "acme", &[], chat(MODEL, 1, false).to_string()).await;
    assert_eq!(polite.status(), 200, "and nobody else waits for it");
    drop(deaf);
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}
