//! What requests are estimated at, and usage that workers are asked for in their callers' place.

use serde_json::{Value, json};
use wasm_tests::bootstrap::{route_without_prefix, virtual_hosts};
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::line::{queues, waiting};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, reason_of, text_of};
use wasm_tests::scripted::{Scripted, TRAILER};

/// A budget that earns nothing while a test looks.
const LIMIT: u64 = 1_000_000;

fn asking_for_usage() -> Setup {
    let exact = json!({"tokens_per_minute": {"rate": 1, "burst": LIMIT}});
    let names = ["acme", "globex", "nobody"].map(str::to_owned).into_iter().chain((0..10).map(numbered));
    let tenants: Value = names.map(|name| (name, exact.clone())).collect();
    Setup::new(2, Wait::AtHeaders)
        .with("/force_usage", json!(true))
        .with("/tenants", tenants)
        .with("/pools/0/expected_output_tokens", json!(8))
}

fn numbered(number: usize) -> String {
    format!("tenant-{number}")
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

/// A policy that is tried must not change what anybody sees.
#[tokio::test]
async fn in_shadow_nobody_is_asked_for_usage() {
    let rig = Rig::start(asking_for_usage().with("/mode", json!("shadow"))).await;
    let whole = left(&rig, "nobody").await;
    let body = streaming(20);
    let stream = answer(&rig, "acme", CHAT, &body).await;
    assert!(!stream.contains("usage") && stream.ends_with("data: [DONE]\n\n"), "{stream}");
    assert_eq!(rig.worker.stats().last_body, body.to_string());
    assert_eq!(rig.seen("accept-encoding").as_deref(), Some("gzip"));
    let estimated: u64 = rig.seen("x-sluice-prompt-tokens").and_then(|tokens| tokens.parse().ok()).unwrap();
    assert_eq!(whole - left(&rig, "acme").await, estimated + 20, "by deltas");
}

#[tokio::test]
async fn a_body_that_is_too_long_to_hold_goes_on_as_it_is() {
    let mut setup = asking_for_usage().with("/body", json!({"hold_limit": "4KiB"}));
    setup.worker.per_prefill_token_us = 0.0;
    let rig = Rig::start(setup).await;
    let text = "x".repeat(16_000);
    // What names its model too late could go to no pool.
    let body = format!(
        r#"{{"model": "{MODEL}", "stream": true, "max_tokens": 20, "messages": [{{"role": "user", "content": "{text}"}}]}}"#
    );
    for sized in [true, false] {
        let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], body.as_bytes(), sized);
        let (begin, rest) = request.split_at(8_000);
        let mut caller = RawCaller::send(rig.address, begin).await;
        eventually("it is decided by its begin", async || {
            let held = rig.held().await.0;
            (held == 1).then_some(()).ok_or(held.to_string())
        })
        .await;
        caller.send_more(rest).await;
        let stream = caller.read_until("[DONE]").await;
        assert!(stream.contains("[DONE]") && !stream.contains("usage"), "{sized}: {stream}");
        assert_eq!(rig.worker.stats().last_body, body);
        rig.nothing_is_held().await;
    }
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn usage_is_asked_for_over_http_2_too() {
    let rig = Rig::start(asking_for_usage()).await;
    let client = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    let whole = left(&rig, "nobody").await;
    let written = streaming(20).to_string();
    let pieces = written.as_bytes().chunks(50).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect::<Vec<_>>();
    let unsized_body = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    for (tenant, body) in [("acme", reqwest::Body::from(written.clone())), ("globex", unsized_body)] {
        let request = client.post(format!("http://{}{CHAT}", rig.address)).header("x-tenant-id", tenant);
        let answer = request.body(body).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (200, reqwest::Version::HTTP_2), "{tenant}");
        let stream = answer.text().await.unwrap();
        assert!(!stream.contains("usage") && stream.ends_with("data: [DONE]\n\n"), "{tenant}: {stream}");
        assert!(rig.worker.stats().last_body.contains(r#""include_usage":true"#), "{tenant}");
        assert_eq!(whole - left(&rig, tenant).await, 10 + 20, "{tenant}: exactly what the worker reported");
    }
    rig.nothing_trapped().await;
}

const EVENT: &str = "data: {\"id\":\"1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" slow\"}}]}\n\n";
const REPORT: &str = "data: {\"id\":\"1\",\"choices\":[],\"usage\":{\"prompt_tokens\":70,\"completion_tokens\":9}}\n\n";
const CUT: &str = "data: {\"id\":\"1\",\"obj";

#[tokio::test]
async fn a_stream_that_ends_by_trailers_is_settled_and_loses_nothing() {
    let (begin, rest) = REPORT.split_at(60);
    let after_event = |text: &str| format!("{EVENT}{text}");
    // More than the proxy is left with.
    let much = EVENT.repeat(400);
    let after_much = |text: &str| format!("{much}{text}");
    // What a worker sends, and what its caller reads.
    let cases: Vec<(Vec<String>, String)> = vec![
        (vec![after_event(REPORT)], EVENT.into()),
        (vec![after_event(REPORT.trim_end())], EVENT.into()),
        (vec![after_event(begin), format!("{rest}{EVENT}")], after_event(EVENT)),
        (vec![after_event(begin), rest.into(), CUT.into()], after_event(CUT)),
        (vec![REPORT.into(), after_event(CUT)], after_event(CUT)),
        (vec![after_event(&begin[..30]), begin[30..].into(), rest.into()], EVENT.into()),
        (vec![after_event(&after_event(CUT))], after_event(&after_event(CUT))),
        (vec![after_much(REPORT.trim_end())], much.clone()),
        (vec![after_much(begin), rest.into()], much.clone()),
        (vec![after_much(&format!("{REPORT}data: [DONE]\n"))], after_much("data: [DONE]\n")),
    ];
    let scripts: Vec<Vec<String>> = cases.iter().map(|(parts, _)| parts.clone()).collect();
    let worker = Scripted::start(&scripts).await;
    let routes = virtual_hosts(&[route_without_prefix("/scripted/", "scripted")]);
    let clusters = vec![("scripted", worker.address())];
    let rig = Rig::start(Setup { virtual_hosts: routes, clusters, ..asking_for_usage() }).await;
    let whole = left(&rig, "nobody").await;
    let received = async || rig.envoy.stat("cluster.scripted.upstream_cx_rx_bytes_total").await.expect("a counter");
    let mut parts_sent = 0;
    for (number, (parts, expected)) in cases.iter().enumerate() {
        let tenant = numbered(number);
        let headers = [("x-tenant-id", tenant.as_bytes())];
        let request = request_bytes(&format!("/scripted{CHAT}"), &headers, streaming(20).to_string().as_bytes(), true);
        let mut caller = RawCaller::send(rig.address, &request).await;
        for _ in 1..parts.len() {
            parts_sent += 1;
            eventually("the proxy has read what was sent, and the filter with it", async || {
                let (sent, read) = (worker.sent(), received().await);
                let arrived = sent.parts == parts_sent && sent.bytes == read;
                arrived.then_some(()).ok_or(format!("{read} bytes, {parts_sent} parts of {sent:?}"))
            })
            .await;
            worker.go_on();
        }
        parts_sent += 1;
        assert_eq!(unchunked(&caller.read_until(TRAILER).await), *expected, "{parts:?}");
        let spent = whole - left(&rig, &tenant).await;
        let reported = parts.concat().contains("usage");
        assert!(if reported { spent == 70 + 9 } else { (2 + 1..70).contains(&spent) }, "{parts:?}: {spent}");
    }
    rig.nothing_trapped().await;
}

/// The text of a chunked body, without its trailers.
fn unchunked(answer: &str) -> String {
    assert!(answer.contains(TRAILER), "{answer}");
    let (_, mut rest) = answer.split_once("\r\n\r\n").unwrap();
    let mut body = String::new();
    while let Some((length, after)) = rest.split_once("\r\n")
        && let Ok(length @ 1..) = usize::from_str_radix(length, 16)
    {
        body.push_str(&after[..length]);
        rest = &after[length + 2..];
    }
    body
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

/// The refusal comes in a callback of the root, while the body is still held; what the request was given on its turn goes back.
#[tokio::test]
async fn a_request_that_has_waited_and_cannot_be_rewritten_is_refused() {
    let rig = Rig::start(queues(2, Wait::AtHeaders).with("/tag_body", json!(true))).await;
    let body = chat(MODEL, 1, false).to_string().replacen('{', &format!("{{{}", r#""priority":1,"#.repeat(7)), 1);
    let running = rig.endless("first", &[]).await;
    let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], body.as_bytes(), true);
    let mut caller = RawCaller::send(rig.address, &request).await;
    waiting(&rig, 1).await;
    drop(running);
    let answer = caller.read_until("too often").await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("x-sluice-reason: malformed"), "{answer}");
    assert_eq!(rig.worker.stats().requests, 1, "the worker has seen none but the first");
    assert_eq!(rig.post("acme", &[], &chat(MODEL, 1, false)).await.status(), 200, "its place is free");
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

/// Tokens of a prompt as estimated, of a request that is served.
async fn estimated(rig: &Rig, body: &Value) -> Option<u64> {
    let answer = rig.post("asks", &[], body).await;
    let served = answer.status().as_u16() == 200;
    answer.bytes().await.unwrap();
    rig.seen("x-sluice-prompt-tokens").filter(|_| served)?.parse().ok()
}

#[tokio::test]
async fn what_was_learned_of_a_model_goes_with_the_policy_that_named_it() {
    let mut rig = Rig::start(Setup::new(1, Wait::AtHeaders)).await;
    let text = "The tide comes in at night and takes the sand that children built by day. ".repeat(20);
    let body = json!({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": text}]});
    let first = estimated(&rig, &body).await.expect("it is served");
    for _ in 0..60 {
        estimated(&rig, &body).await;
    }
    eventually("the model is learned", async || {
        let learned = estimated(&rig, &body).await.unwrap();
        (learned.abs_diff(first) * 10 > first).then_some(()).ok_or(format!("{learned}, {first} at first"))
    })
    .await;
    rig.reconfigure(|policy| policy["pools"][0]["max_in_flight"] = json!(999));
    let kept = until_served(&rig, &body).await;
    assert!(kept.abs_diff(first) * 10 > first, "{kept} under another policy with the model, {first} at first");
    let mut last = kept;
    // A policy goes with its last stream, and what only it names with the next tick.
    for _ in 0..10 {
        rig.reconfigure(|policy| policy["pools"][0]["models"] = json!(["another"]));
        eventually("the model is gone", async || {
            let (status, reason) = rig.ask("asks", &[]).await;
            (status == 404).then_some(()).ok_or(format!("{status} {reason}"))
        })
        .await;
        let heartbeat = async || rig.state().await["members"][0]["heartbeat"].as_u64().expect("a member");
        let then = heartbeat().await;
        eventually("some ticks have come", async || {
            let now = heartbeat().await;
            (now >= then + 5).then_some(()).ok_or(format!("{now}, {then} then"))
        })
        .await;
        rig.reconfigure(|_| {});
        last = until_served(&rig, &body).await;
        if last == first {
            break;
        }
    }
    assert_eq!(last, first, "as if nothing had been learned");
    rig.nothing_trapped().await;
}

async fn until_served(rig: &Rig, body: &Value) -> u64 {
    eventually("the model is served", async || estimated(rig, body).await.ok_or("it is not".to_owned())).await
}
