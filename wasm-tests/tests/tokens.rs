//! What requests are estimated at, and usage that workers are asked for in their callers' place.
#![cfg(not(target_family = "wasm"))]

use serde_json::{Value, json};
use wasm_tests::caller::{CHAT, RawCaller, request_bytes};
use wasm_tests::line::{queues, waiting};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, reason_of, text_of};

/// A budget that earns nothing while a test looks.
const LIMIT: u64 = 1_000_000;

fn asking_for_usage() -> Setup {
    let exact = json!({"tokens_per_minute": {"rate": 1, "burst": LIMIT}});
    let tenants = ["acme", "globex", "nobody"].map(|tenant| (tenant.to_owned(), exact.clone()));
    Setup::new(2, Wait::AtHeaders)
        .with("/force_usage", json!(true))
        .with("/tenants", tenants.into_iter().collect())
        .with("/pools/0/expected_output_tokens", json!(8))
}

fn streaming(output: u64) -> Value {
    let text = "x".repeat(40);
    let messages = json!([{"role": "user", "content": text}]);
    json!({"model": MODEL, "stream": true, "max_tokens": output, "messages": messages, "prompt": text})
}

async fn answer(rig: &Rig, tenant: &str, path: &str, body: &Value) -> String {
    let answer = rig.post_to(path, tenant, &[("accept-encoding", "gzip")], body.to_string()).await;
    assert_eq!(answer.status().as_u16(), 200, "{}", reason_of(&answer));
    answer.text().await.unwrap()
}

/// What is left of a tenant's budget once nothing is held, less what asking is charged.
async fn left(rig: &Rig, tenant: &str) -> u64 {
    rig.nothing_is_held().await;
    let exact = json!({"model": MODEL, "prompt": [1], "max_tokens": 1});
    let answer = rig.post_to("/v1/completions", tenant, &[], exact.to_string()).await;
    text_of(&answer, "x-ratelimit-remaining-tokens").parse().unwrap()
}

#[tokio::test]
async fn usage_is_asked_for_and_hidden_from_callers_that_did_not_ask() {
    let rig = Rig::start(asking_for_usage()).await;
    let whole = left(&rig, "nobody").await;
    for (tenant, path) in [("acme", CHAT), ("globex", "/v1/completions")] {
        let mut body = streaming(20);
        body["stream_options"] = json!({"include_usage": false});
        let stream = answer(&rig, tenant, path, &body).await;
        assert!(!stream.contains("usage") && stream.ends_with("data: [DONE]\n\n"), "{stream}");
        let told: Value = serde_json::from_str(&rig.worker.stats().last_body).unwrap();
        assert_eq!(told["stream_options"], json!({"include_usage": true}), "{path}");
        assert_eq!(rig.seen("accept-encoding"), None);
        let spent = whole - left(&rig, tenant).await;
        assert_eq!(spent, 10 + 20, "{path}: exactly what the worker reported");
    }
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn callers_that_ask_get_their_usage_and_plain_answers_stay_as_they_are() {
    let rig = Rig::start(asking_for_usage()).await;
    let mut body = streaming(5);
    body["stream_options"] = json!({"include_usage": true});
    let stream = answer(&rig, "acme", CHAT, &body).await;
    assert!(stream.contains(r#""completion_tokens":5"#), "{stream}");
    assert_eq!(serde_json::from_str::<Value>(&rig.worker.stats().last_body).unwrap(), body);
    body["stream"] = json!(false);
    body.as_object_mut().unwrap().remove("stream_options");
    let plain = answer(&rig, "acme", CHAT, &body).await;
    assert!(plain.contains(r#""completion_tokens":5"#), "{plain}");
    assert_eq!(serde_json::from_str::<Value>(&rig.worker.stats().last_body).unwrap(), body);
    let mut anthropic = streaming(5);
    anthropic.as_object_mut().unwrap().remove("prompt");
    let stream = answer(&rig, "acme", "/v1/messages", &anthropic).await;
    assert!(stream.contains(r#""output_tokens":5"#), "{stream}");
    assert_eq!(serde_json::from_str::<Value>(&rig.worker.stats().last_body).unwrap(), anthropic);
    rig.nothing_trapped().await;
}

/// What starts a request that has waited is no callback of its own, and still writes into its body.
#[tokio::test]
async fn a_request_that_has_waited_is_rewritten_too() {
    let rig = Rig::start(queues(2, Wait::AtHeaders).with("/force_usage", json!(true))).await;
    let mut body = streaming(7);
    body["stream_options"] = json!(null);
    let written = body.to_string();
    for sized in [true, false] {
        let running = rig.endless("first", &[]).await;
        let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], written.as_bytes(), sized);
        let mut caller = RawCaller::send(rig.address, &request).await;
        waiting(&rig, 1).await;
        drop(running);
        let stream = caller.read_until("[DONE]").await;
        assert!(!stream.contains("usage"), "{sized}: {stream}");
    }
    assert!(rig.worker.stats().last_body.contains(r#""stream_options":{"include_usage":true}"#));
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// The worker takes four bytes for a token, unlike any tokenizer, and answers with as many as it is asked for.
#[tokio::test]
async fn estimates_learn_what_the_workers_make_of_requests() {
    let setup = Setup::new(2, Wait::AtHeaders).with("/pools/0/expected_output_tokens", json!(700));
    let rig = Rig::start(setup).await;
    let text = "The tide comes in at night and takes the sand that children built by day. ".repeat(20);
    let body = |limit: Option<u64>| {
        let message = json!({"role": "user", "content": text});
        let mut body = json!({"model": MODEL, "messages": [message]});
        if let Some(limit) = limit {
            body["max_tokens"] = json!(limit);
        }
        body
    };
    let actual = text.len() as u64 / 4;
    let estimate = async || {
        rig.post("asks", &[], &body(Some(1))).await.bytes().await.unwrap();
        rig.seen("x-sluice-prompt-tokens").and_then(|tokens| tokens.parse::<u64>().ok()).unwrap()
    };
    let first = estimate().await;
    assert!(first.abs_diff(actual) * 10 > actual, "{first} is not yet the worker's {actual}");
    for number in 0..60 {
        // Connections, and with them worker threads, change.
        let tenant = format!("tenant-{}", number % 3);
        rig.post(&tenant, &[], &body(Some(30))).await.bytes().await.unwrap();
    }
    eventually("estimates are the worker's", async || {
        let learned = estimate().await;
        (learned.abs_diff(actual) * 20 <= actual).then_some(()).ok_or(format!("{learned} instead of {actual}"))
    })
    .await;
    eventually("errors are measured", async || {
        let labels = [("pool", "main"), ("model", "sim*")];
        let measured = rig.count("sluice_estimate_error_permille_count", &labels).await;
        (measured >= 61).then_some(()).ok_or(format!("{measured} are"))
    })
    .await;
    rig.nothing_trapped().await;
}
