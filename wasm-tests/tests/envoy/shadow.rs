//! What is in shadow is told and goes on.

use serde_json::{Value, json};
use wasm_tests::bootstrap::{route_without_prefix, virtual_hosts};
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, reason_of, text_of};
use worker_sim::Fault;

const EVERY_WAIT: [Wait; 3] = [Wait::Unread, Wait::AtHeaders, Wait::BodyHeld];

const WOULD_REJECT: &str = "x-sluice-would-reject";

fn in_shadow(wait: Wait) -> Setup {
    Setup::new(1, wait).with("/mode", json!("shadow"))
}

/// The status, why it would have been refused, and that it is no refusal of ours.
async fn outcome(answer: reqwest::Response) -> (u16, String) {
    assert_eq!(reason_of(&answer), "", "refused");
    (answer.status().as_u16(), text_of(&answer, WOULD_REJECT))
}

fn would(status: u16, reason: &str) -> (u16, String) {
    (status, reason.to_owned())
}

async fn would_reject(rig: &Rig, reason: &str, times: u64) {
    rig.counts("sluice_would_reject_total", &[("pool", "main"), ("outcome", reason)], times).await;
}

#[tokio::test]
async fn what_would_be_refused_is_served_and_told() {
    for wait in EVERY_WAIT {
        let rig = Rig::start(in_shadow(wait)).await;
        let holders = rig.hold("capped", 4).await;
        rig.worker.set_faults([]);
        let spoofed = [(WOULD_REJECT, "nonsense"), ("x-sluice-lane", "interactive")];
        let answer = rig.post("capped", &spoofed, &chat(MODEL, 1, false)).await;
        assert_eq!(outcome(answer).await, would(200, "tenant_requests"), "{wait:?}");
        let told = (wait != Wait::BodyHeld).then_some("tenant_requests");
        assert_eq!(rig.seen(WOULD_REJECT).as_deref(), told, "{wait:?}: only headers that wait can say it");
        for (tag, value) in [("tenant", "capped"), ("lane", "interactive"), ("priority", "100")] {
            assert_eq!(rig.seen(&format!("x-sluice-{tag}")).as_deref(), Some(value), "{wait:?}");
        }
        would_reject(&rig, "tenant_requests", 1).await;
        let labels = [("lane", "interactive"), ("model", "sim*"), ("endpoint", "chat_completions")];
        rig.counts("sluice_would_reject_total", &labels, 1).await;
        rig.counts("sluice_requests_total", &[("outcome", "tenant_requests")], 0).await;

        let answer = rig.post("acme", &[(WOULD_REJECT, "nonsense")], &chat(MODEL, 1, false)).await;
        assert_eq!(outcome(answer).await, would(200, ""), "{wait:?}");
        assert_eq!(rig.seen(WOULD_REJECT), None, "{wait:?}: one that is let in carries nothing");
        drop(holders);
        rig.nothing_is_held().await;
        rig.counts("sluice_requests_total", &[("outcome", "admitted")], 5).await;
    }
}

#[tokio::test]
async fn it_holds_nothing_and_burns_no_budget() {
    for wait in EVERY_WAIT {
        let setup = in_shadow(wait).with("/tenants/acme", json!({"max_in_flight": 1, "requests_per_minute": 2}));
        let rig = Rig::start(setup).await;
        let holders = rig.hold("acme", 1).await;
        let body = chat(MODEL, 32, false).to_string();
        let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], body.as_bytes(), true);
        let mut more = Vec::new();
        for _ in 0..3 {
            more.push(RawCaller::send(rig.address, &request).await);
        }
        eventually("the worker has them all", async || {
            let inside = rig.worker.stats().in_server;
            (inside == 4).then_some(()).ok_or(inside.to_string())
        })
        .await;
        assert_eq!(rig.held().await.0, 1, "{wait:?}");
        drop((holders, more));
        rig.nothing_is_held().await;
        rig.worker.set_faults([]);
        let answer = rig.post("acme", &[], &chat(MODEL, 1, false)).await;
        assert_eq!(outcome(answer).await, would(200, ""), "{wait:?}: the budget had one left");
        let answer = rig.post("acme", &[], &chat(MODEL, 1, false)).await;
        assert_eq!(outcome(answer).await, would(200, "tenant_request_rate"), "{wait:?}");
    }
}

#[tokio::test]
async fn a_tenants_mode_goes_before_its_routes_before_the_filters() {
    let setup = |mode: &str| {
        let limited = |more: Value| {
            let mut limits = json!({"max_tokens_in_flight": 1});
            limits.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
            limits
        };
        let mut setup = Setup::new(1, Wait::AtHeaders).with("/mode", json!(mode)).with(
            "/tenants",
            json!({
                "plain": limited(json!({})), "watched": limited(json!({"mode": "shadow"})),
                "bound": limited(json!({"tier": "bound"})),
            }),
        );
        setup.policy["tiers"] = json!({"bound": {"mode": "enforce"}});
        setup.policy["routes"] = json!([
            {"match": {"path_prefix": "/shadow/"}, "mode": "shadow"},
            {"match": {"path_prefix": "/enforce/"}, "mode": "enforce"},
        ]);
        setup.virtual_hosts =
            virtual_hosts(&["/shadow/", "/enforce/"].map(|prefix| route_without_prefix(prefix, "workers")));
        setup
    };
    for mode in ["shadow", "enforce"] {
        let rig = Rig::start(setup(mode)).await;
        for (route, tenant, binds) in [
            ("", "plain", mode == "enforce"),
            ("/shadow", "plain", false),
            ("/enforce", "plain", true),
            ("", "watched", false),
            ("/enforce", "watched", false),
            ("", "bound", true),
            ("/shadow", "bound", true),
        ] {
            let body = chat(MODEL, 1, false).to_string();
            let answer = rig.post_to(&format!("{route}{CHAT}"), tenant, &[], body).await;
            let told = (answer.status().as_u16(), reason_of(&answer), text_of(&answer, WOULD_REJECT));
            let oversize = "oversize".to_owned();
            let expected = if binds { (413, oversize, String::new()) } else { (200, String::new(), oversize) };
            assert_eq!(told, expected, "{mode} {route} {tenant}");
        }
        let (refused, passed) = if mode == "enforce" { (4, 3) } else { (3, 4) };
        rig.counts("sluice_requests_total", &[("outcome", "oversize")], refused).await;
        would_reject(&rig, "oversize", passed).await;
        rig.nothing_is_held().await;
    }
}

/// Even what cannot be read goes on; its worker says what it thinks of it.
#[tokio::test]
async fn malformed_bodies_and_unknown_models_pass() {
    for wait in EVERY_WAIT {
        let rig = Rig::start(in_shadow(wait).with("/pools/0/max_prompt_tokens", json!(100))).await;
        let model = |rest: &str| format!(r#"{{"model": "{MODEL}", {rest}"#);
        let nobodys = chat("nobodys-model", 1, false).to_string();
        let bodies: [(String, u16, &str); 5] = [
            (format!("\u{feff}{}", chat(MODEL, 1, false)), 400, "malformed"),
            (format!("{} []", chat(MODEL, 1, false)), 400, "malformed"),
            (model(&format!("\"messages\": {}", "[".repeat(200))), 400, "malformed"),
            (nobodys, 404, "unknown_model"),
            (
                model(&format!(r#""messages": [{{"role": "user", "content": "{}"}}]}}"#, "word ".repeat(400))),
                200,
                "oversize",
            ),
        ];
        for (sent, (body, status, reason)) in bodies.iter().enumerate() {
            for sized in [true, false] {
                let request = request_bytes(CHAT, &[], body.as_bytes(), sized);
                let answer = RawCaller::send(rig.address, &request).await.read_until("\r\n\r\n").await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{wait:?} {body:.40}: {answer}");
                assert!(answer.contains(&format!("\r\n{WOULD_REJECT}: {reason}\r\n")), "{wait:?} {body:.40}: {answer}");
                let stats = rig.worker.stats();
                assert_eq!((stats.requests, &stats.last_body), (2 * sent as u64 + 1 + u64::from(!sized), body));
            }
        }
        rig.counts("sluice_would_reject_total", &[("outcome", "malformed")], 6).await;
        rig.nothing_is_held().await;
        rig.nothing_trapped().await;
    }
}

/// What only its bytes prove too large is on its way when they do; it is not cut.
#[tokio::test]
async fn what_proves_too_large_while_it_streams_arrives_whole() {
    let mut setup = in_shadow(Wait::Unread).with("/pools/0/max_prompt_tokens", json!(1_000));
    setup.worker.max_model_len = 2_000_000;
    setup.worker.num_gpu_blocks = 200_000;
    setup.worker.per_prefill_token_us = 0.0;
    let rig = Rig::start(setup).await;
    let body = json!({
        "model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "word ".repeat(300_000)}],
    });
    let answer = rig.post("acme", &[], &body).await;
    assert_eq!(outcome(answer).await, would(200, "oversize"));
    let stats = rig.worker.stats();
    let sent = body.to_string();
    assert!(stats.last_body == sent, "{} of {} bytes", stats.last_body.len(), sent.len());
    assert_eq!(stats.last_headers.get(WOULD_REJECT), None, "the headers were gone");
    would_reject(&rig, "oversize", 1).await;
    rig.counts("sluice_requests_total", &[], 0).await;

    // While it runs it holds nothing any more.
    rig.worker.set_faults([Fault::Hang]);
    let request = request_bytes(CHAT, &[], body.to_string().as_bytes(), true);
    let caller = RawCaller::send(rig.address, &request).await;
    eventually("the worker has it", async || {
        let inside = rig.worker.stats().in_server;
        (inside == 1).then_some(()).ok_or(inside.to_string())
    })
    .await;
    assert_eq!(rig.held().await.0, 0);
    drop(caller);
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// Whether it is let in or would be refused, a request in shadow is served as it would be without the filter.
#[tokio::test]
async fn bodies_stay_as_they_are() {
    let setup = in_shadow(Wait::AtHeaders).with("/tag_body", json!(true));
    let rig = Rig::start(setup.with("/tenants/capped", json!({"requests_per_minute": 1}))).await;
    let body = chat(MODEL, 1, false);
    for reason in ["", "tenant_request_rate"] {
        let answer = rig.post("capped", &[("x-sluice-lane", "interactive")], &body).await;
        assert_eq!(outcome(answer).await, would(200, reason));
        assert_eq!(rig.worker.stats().last_body, body.to_string());
    }
}

/// Twelve of a tenant with a cap of eight, on a route that is to have a stricter tier: what is in force, in shadow, and what comes after it.
#[tokio::test]
async fn a_route_in_shadow_has_no_limit_and_the_state_page_names_it() {
    let strict = json!({"max_in_flight": 2});
    let mut setup = Setup::new(1, Wait::Unread)
        .patient()
        .with("/tiers", json!({"strict": strict}))
        .with("/tenants/acme", json!({"max_in_flight": 8}));
    setup = setup.with("/pools/0/max_in_flight", json!(64));
    let mut rig = Rig::start(setup).await;
    let shadowed = async |rig: &Rig, expected: Value| {
        eventually("the state page names what is in shadow", async || {
            rig.ask("globex", &[]).await;
            let policies = rig.state().await["policies"].clone();
            let is_it = policies.as_array().is_some_and(|all| all.len() == 1 && all[0]["shadow"] == expected);
            is_it.then_some(()).ok_or_else(|| format!("{policies}, not {expected}"))
        })
        .await;
    };
    let of_twelve = async |rig: &Rig| {
        let mut holders = Vec::new();
        while holders.len() < 12
            && let Ok(holder) = rig.try_endless("acme", &[]).await
        {
            holders.push(holder);
        }
        let held = holders.len();
        drop(holders);
        rig.nothing_is_held().await;
        held
    };
    shadowed(&rig, json!([])).await;
    assert_eq!(of_twelve(&rig).await, 8);
    let prefix = json!({"path_prefix": "/v1"});
    rig.reconfigure(|policy| policy["routes"] = json!([{"match": prefix, "tier": "strict", "mode": "shadow"}]));
    shadowed(&rig, json!(["routes[0] (/v1)"])).await;
    assert_eq!(of_twelve(&rig).await, 12, "the cap of eight is lifted");
    would_reject(&rig, "tenant_requests", 10).await;
    rig.reconfigure(|policy| policy["routes"] = json!([{"match": prefix, "tier": "strict"}]));
    shadowed(&rig, json!([])).await;
    assert_eq!(of_twelve(&rig).await, 2);
    rig.nothing_trapped().await;
}
