//! What callers and workers see of the filter.

use serde_json::{Value, json};
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually};
use worker_sim::Fault;

const EVERY_WAIT: [Wait; 3] = [Wait::Unread, Wait::AtHeaders, Wait::BodyHeld];

#[tokio::test]
async fn an_admitted_request_reaches_the_worker_with_its_tags() {
    for wait in EVERY_WAIT {
        let rig = Rig::start(Setup::new(1, wait)).await;
        let answer = rig.post("acme", &[("x-sluice-lane", "interactive")], &chat(MODEL, 3, false)).await;
        assert_eq!(answer.status(), 200);
        let headers = rig.worker.stats().last_headers;
        let tag = |name: &str| headers.get(&format!("x-sluice-{name}")).map(String::as_str);
        assert_eq!((tag("tenant"), tag("lane"), tag("priority")), (Some("acme"), Some("interactive"), Some("100")));
        // What only the body tells cannot be in headers that have gone on before it.
        let known_later = (tag("pool"), tag("prompt-tokens").is_some());
        let expected = if wait == Wait::BodyHeld { (None, false) } else { (Some("main"), true) };
        assert_eq!(known_later, expected, "{wait:?}");
    }
}

#[tokio::test]
async fn spoofed_headers_do_not_reach_the_worker() {
    for wait in EVERY_WAIT {
        let mut setup = Setup::new(1, wait).with("/tiers", json!({"slow": {"max_lane": "standard"}}));
        setup.policy["tenants"]["acme"] = json!({"tier": "slow"});
        let rig = Rig::start(setup).await;
        let spoofed: [(&str, &[u8]); 11] = [
            ("x-tenant-id", b"acme"),
            ("x_sluice_tenant", b"a worker behind CGI reads this as ours"),
            ("X-Gateway_Destination-Endpoint", b"10.0.0.1:80"),
            ("X-Sluice-Tenant", b"somebody-else"),
            ("x-sluice-tenant", b"again"),
            ("x-sluice-lane", b"interactive"),
            ("x-sluice-priority", b"1000000"),
            ("x-sluice-anything", b"\xff\xfe"),
            ("x-gateway-destination-endpoint", b"10.0.0.1:80"),
            ("X-Gateway-Destination-Endpoint-Served", b"10.0.0.1:80"),
            ("x-gateway-destination-endpoint-subset", b"10.0.0.1:80"),
        ];
        let body = chat(MODEL, 1, false).to_string();
        let request = request_bytes(CHAT, &spoofed, body.as_bytes(), true);
        assert_eq!(RawCaller::send(rig.address, &request).await.status().await, Some(200));
        let headers = rig.worker.stats().last_headers;
        assert_eq!(headers["x-sluice-tenant"], "acme");
        assert_eq!((&*headers["x-sluice-lane"], &*headers["x-sluice-priority"]), ("standard", "0"), "clamped");
        assert!(!headers.contains_key("x-sluice-anything"), "{headers:?}");
        assert!(!headers.keys().any(|name| name.contains('_') || name.starts_with("x-gateway-")), "{headers:?}");
        rig.nothing_trapped().await;
    }
}

#[tokio::test]
async fn requests_without_a_body_pass_and_lose_spoofed_headers() {
    let rig = Rig::start(Setup::new(1, Wait::Unread)).await;
    let request = request_bytes(CHAT, &[("x-sluice-tenant", b"me"), ("x-mine", b"stays")], b"", true);
    assert_eq!(RawCaller::send(rig.address, &request).await.status().await, Some(400), "the worker's own refusal");
    let headers = rig.worker.stats().last_headers;
    assert_eq!((headers.get("x-sluice-tenant"), headers["x-mine"].as_str()), (None, "stays"));
    assert_eq!(rig.state().await["members"], json!([]), "nothing was decided");
}

#[tokio::test]
async fn a_refusal_explains_itself_in_the_apis_own_shape() {
    let setup = Setup::new(1, Wait::AtHeaders).with("/pools/0/max_prompt_tokens", json!(100));
    let rig = Rig::start(setup).await;
    let long = json!({"model": MODEL, "messages": [{"role": "user", "content": "word ".repeat(400)}]});
    let answer = rig.post("acme", &[], &long).await;
    assert_eq!(answer.status(), 413);
    assert_eq!(answer.headers()["x-sluice-reason"], "oversize");
    assert!(!answer.headers().contains_key("retry-after"), "never");
    let error = answer.json::<Value>().await.unwrap()["error"].clone();
    assert_eq!(
        (&error["code"], &error["type"], &error["param"]),
        (&json!("oversize"), &json!("invalid_request_error"), &Value::Null)
    );
    assert_eq!(
        (&error["limit"]["knob"], &error["limit"]["allowed"]),
        (&json!("pools[main].max_prompt_tokens"), &json!(100))
    );
    let measured = error["limit"]["measured"].as_u64().unwrap();
    assert!(error["message"].as_str().unwrap().contains(&measured.to_string()), "{error}");

    let _holders = rig.hold("capped", 4).await;
    let answer = rig.post("capped", &[], &chat(MODEL, 1, false)).await;
    assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (429, &"1".parse().unwrap()));
    let error = answer.json::<Value>().await.unwrap()["error"].clone();
    assert_eq!(
        error["limit"],
        json!({"knob": "tenants.capped.max_in_flight", "measured": 5, "allowed": 4, "unit": "requests"})
    );
    assert_eq!(error["type"], "rate_limit_error");
    let labels = [
        ("endpoint", "chat_completions"),
        ("lane", "standard"),
        ("model", "sim*"),
        ("outcome", "tenant_requests"),
        ("pool", "main"),
    ];
    rig.counts("sluice_requests_total", &labels, 1).await;
    let page = rig.envoy.prometheus().await.unwrap();
    assert!(page.lines().any(|line| has_labels(line, "sluice_requests_total", &labels)), "{page}");
}

/// Whether a line of the metrics page is of this metric and has these labels, in whatever order, and no others.
fn has_labels(line: &str, metric: &str, labels: &[(&str, &str)]) -> bool {
    let Some((found, _)) = line.strip_prefix(metric).and_then(|rest| rest.strip_prefix('{')?.split_once('}')) else {
        return false;
    };
    let mut found: Vec<&str> = found.split(',').collect();
    found.sort_unstable();
    found == labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect::<Vec<_>>()
}

/// A body that goes beyond what its headers promised is refused while it streams through.
#[tokio::test]
async fn what_an_unread_body_proves_impossible_is_refused_then() {
    let setup = Setup::new(2, Wait::Unread).with("/pools/0/max_prompt_tokens", json!(1_000));
    let rig = Rig::start(setup).await;
    for content in ["word ".repeat(8_000), "word ".repeat(700_000)] {
        let long = json!({"model": MODEL, "messages": [{"role": "user", "content": content}]});
        let answer = rig.post("acme", &[], &long).await;
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["x-sluice-reason"]),
            (413, &"oversize".parse().unwrap())
        );
    }
    let other = rig.post("acme", &[], &chat("another-model", 1, false)).await;
    assert_eq!(
        (other.status().as_u16(), &other.headers()["x-sluice-reason"]),
        (404, &"unknown_model".parse().unwrap())
    );
    rig.nothing_is_held().await;
    assert_eq!(rig.worker.stats().requests, 0, "the worker was given none of them whole");
}

/// A guess that proves too small is held to the caps like any request, before the worker has all of the body.
#[tokio::test]
async fn what_grows_beyond_a_cap_of_tokens_is_refused_then() {
    let setup = Setup::new(2, Wait::Unread).with("/tenants", json!({"acme": {"max_tokens_in_flight": 4_000}}));
    let rig = Rig::start(setup).await;
    rig.worker.set_faults([Fault::Hang]);
    let body = format!(r#"{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "hi"}}], "n": 5}}"#);
    let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], body.as_bytes(), true);
    let (first, last) = request.split_at(request.len() - 1);
    let mut callers = Vec::new();
    for _ in 0..4 {
        callers.push(RawCaller::send(rig.address, first).await);
    }
    eventually("four guesses are held", async || {
        let held = rig.state().await["tenants"]["acme"]["requests"].clone();
        (held == 4).then_some(()).ok_or(held.to_string())
    })
    .await;
    let mut answers = tokio::task::JoinSet::new();
    for mut caller in callers {
        caller.send_more(last).await;
        answers.spawn(async move { caller.status().await });
    }
    for _ in 0..3 {
        assert_eq!(answers.join_next().await.unwrap().unwrap(), Some(429));
    }
    eventually("the worker has one of them whole", async || match rig.worker.stats().requests {
        1 => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
    drop(answers);
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn json_that_claims_to_be_compressed_is_read_all_the_same() {
    for wait in EVERY_WAIT {
        let rig = Rig::start(Setup::new(1, wait).with("/pools/0/max_prompt_tokens", json!(100))).await;
        let long = json!({"model": MODEL, "messages": [{"role": "user", "content": "word ".repeat(400)}]});
        let answer = rig.post("acme", &[("content-encoding", "gzip")], &long).await;
        assert_eq!(answer.status(), 413, "{wait:?}");
    }
}

#[tokio::test]
async fn statuses_and_shapes_are_the_operators_and_the_apis() {
    let reject = json!({"status": {"tenant_request_rate": 529}, "batch_url": "https://batch.example", "retry_after": {"min": "3s"}});
    let mut setup = Setup::new(1, Wait::Unread).with("/reject", reject).with("/pools/0/max_prompt_tokens", json!(100));
    setup.policy["tenants"]["slow"] = json!({"requests_per_minute": 1});
    let rig = Rig::start(setup).await;
    let first = rig.post("slow", &[], &chat(MODEL, 1, false)).await;
    assert_eq!(
        (first.status().as_u16(), &first.headers()["x-ratelimit-remaining-requests"]),
        (200, &"0".parse().unwrap())
    );
    assert!(first.headers()["ratelimit-policy"].to_str().unwrap().contains(r#""requests";q=1;w=60"#));
    let second = rig.post("slow", &[], &chat(MODEL, 1, false)).await;
    assert_eq!(second.status().as_u16(), 529);
    let advice: u64 = second.headers()["retry-after-ms"].to_str().unwrap().parse().unwrap();
    assert!((3_000..=30_000).contains(&advice), "{advice}");
    assert_eq!(second.headers()["x-ratelimit-limit-requests"], "1");
    assert_eq!(second.headers()["x-ratelimit-remaining-requests"], "0");
    let reset = second.headers()["x-ratelimit-reset-requests"].to_str().unwrap().trim_end_matches("ms");
    assert!((1..=60_000).contains(&reset.parse::<u64>().unwrap()), "{reset}");
    let left = rig.state().await["tenants"]["slow"]["budgets"]["requests"].clone();
    assert_eq!((&left["limit"], &left["remaining"], &left["window_ms"]), (&json!(1), &json!(0), &json!(60_000)));

    let anthropic = request_bytes("/v1/messages", &[("x-tenant-id", b"slow")], b"{}", true);
    let answer = RawCaller::send(rig.address, &anthropic).await.read_until("}}").await;
    assert!(answer.contains(r#"{"type":"error","error":{"type":"overloaded_error""#), "{answer}");
    let long = json!({"model": MODEL, "messages": [{"role": "user", "content": "word ".repeat(400)}]});
    let large = rig.post("acme", &[], &long).await;
    assert_eq!(large.headers()["x-should-retry"], "false");
    assert!(large.text().await.unwrap().contains("https://batch.example"));
}

/// A budget of tokens is charged with the estimate and settled with what the worker reports, plain and streamed.
#[tokio::test]
async fn budgets_of_tokens_are_settled_by_usage() {
    for stream in [false, true] {
        let setup = Setup::new(2, Wait::AtHeaders)
            .with("/tenants", json!({"acme": {"tokens_per_minute": 1_000}}))
            .with("/pools/0/expected_output_tokens", json!(20));
        let rig = Rig::start(setup).await;
        let mut body = chat(MODEL, 200, stream);
        body["stream_options"] = json!({"include_usage": true});
        for _ in 0..3 {
            let answer = rig.post("acme", &[], &body).await;
            assert_eq!(answer.status(), 200);
            answer.bytes().await.unwrap();
        }
        rig.nothing_is_held().await;
        let answer = rig.post("acme", &[], &chat(MODEL, 1, false)).await;
        let left: u64 = answer.headers()["x-ratelimit-remaining-tokens"].to_str().unwrap().parse().unwrap();
        // Three times 6 prompt and 200 output tokens by the worker's count, where 33 were estimated each time. What the
        // minute earns back while the test runs is far less than the difference.
        assert!((300..=700).contains(&left), "stream {stream}: {left}");
    }
}

/// A body larger than the proxy may hold back is decided from what was seen, never turned into a 413 by the proxy.
#[tokio::test]
async fn a_body_beyond_the_hold_limit_is_decided_from_what_was_seen() {
    for wait in [Wait::AtHeaders, Wait::BodyHeld] {
        let mut setup = Setup::new(1, wait);
        setup.worker.max_model_len = 2_000_000;
        setup.worker.num_gpu_blocks = 200_000;
        setup.worker.per_prefill_token_us = 0.0;
        let rig = Rig::start(setup).await;
        let body = format!(
            r#"{{"model": "{MODEL}", "max_tokens": 1, "messages": [{{"role": "user", "content": "{}"}}]}}"#,
            "word ".repeat(600_000)
        );
        for sized in [true, false] {
            let request = request_bytes(CHAT, &[], body.as_bytes(), sized);
            assert_eq!(
                RawCaller::send(rig.address, &request).await.status().await,
                Some(200),
                "{wait:?} sized: {sized}"
            );
        }
        assert_eq!(rig.worker.stats().requests, 2);
        rig.nothing_is_held().await;
    }
}

#[tokio::test]
async fn poisoned_bodies_never_trap() {
    let deep = format!(r#"{{"model": "{MODEL}", "messages": {}{}}}"#, "[".repeat(50_000), "]".repeat(50_000));
    let long =
        format!(r#"{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "{}"}}]}}"#, "x".repeat(3 << 20));
    let model = |rest: &str| format!(r#"{{"model": "{MODEL}", {rest}}}"#).into_bytes();
    let bodies: Vec<Vec<u8>> = vec![
        model(r#""messages": []"#),
        model(r#""messages": null, "max_tokens": 1e999, "n": -1e999"#),
        model(r#""messages": "\ud800", "max_tokens": 99999999999999999999999999"#),
        model(r#""messages": [[[{"content": {"content": []}}]]], "max_tokens": -5"#),
        b"{\"model\": \"\xff\xfe\", \"messages\": [{\"content\": \"\xc3\x28\xa0\"}]}".to_vec(),
        br#"{"model": "sim", "messages": [{"role": "user", "con"#.to_vec(),
        b"\xef\xbb\xbf{}".to_vec(),
        b"null".to_vec(),
        vec![0; 1_000],
        deep.into_bytes(),
        long.into_bytes(),
    ];
    for wait in EVERY_WAIT {
        let rig = Rig::start(Setup::new(2, wait)).await;
        for body in &bodies {
            for (sized, path) in [(true, CHAT), (false, CHAT), (true, "/v1/completions"), (true, "/v1/anything")] {
                let tenant: (&str, &[u8]) = ("x-tenant-id", b"caf\xe9");
                let request = request_bytes(path, &[tenant], body, sized);
                let status = RawCaller::send(rig.address, &request).await.status().await;
                // The worker may close on what it does not know before it has read all of it.
                let answered = status.is_some_and(|status| path == "/v1/anything" || (200..500).contains(&status));
                assert!(answered, "{wait:?} {path} {sized}: {status:?}");
            }
        }
        assert_eq!(rig.post("capped", &[], &chat(MODEL, 1, false)).await.status(), 200);
        rig.nothing_is_held().await;
        rig.nothing_trapped().await;
    }
}

#[tokio::test]
async fn a_second_plugin_of_the_same_code_disturbs_nothing() {
    let rig = Rig::start(Setup::new(2, Wait::Unread)).await;
    rig.worker.set_faults([Fault::Hang]);
    let body = chat(MODEL, 1, false).to_string();
    let request = request_bytes(CHAT, &[("x-tenant-id", b"capped")], body.as_bytes(), true);
    let _held_next_door = RawCaller::send(rig.neighbour, &request).await;
    eventually("the neighbour's request is in the worker", async || {
        (rig.worker.stats().in_server == 1).then_some(()).ok_or_else(String::new)
    })
    .await;
    assert_eq!(RawCaller::send(rig.neighbour, &request).await.status().await, Some(429), "its own cap of 1 holds");
    assert_eq!(rig.state().await["members"], json!([]), "and is counted in its own namespace");
    rig.worker.set_faults([]);
    assert_eq!(rig.post("capped", &[], &chat(MODEL, 1, false)).await.status(), 200);
    assert_eq!(RawCaller::send(rig.neighbour, &request).await.status().await, Some(429), "its request is still held");
    rig.nothing_trapped().await;
}
