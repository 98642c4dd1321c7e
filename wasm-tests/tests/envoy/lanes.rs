//! Which lane a request gets, and what the worker is told of it.

use serde_json::{Value, json};
use wasm_tests::bootstrap::{route_without_prefix, virtual_hosts};
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, reason_of};
use wasm_tests::view;

type Header = (&'static str, &'static str);

/// Three lanes, `standard` for who asks for none.
fn three_lanes(wait: Wait) -> Setup {
    let lanes = json!([
        {"name": "interactive", "priority": 100}, {"name": "standard"}, {"name": "batch", "priority": -10},
    ]);
    Setup::new(1, wait).with("/lanes", lanes).with("/default_lane", json!("standard"))
}

#[tokio::test]
async fn every_giver_of_a_lane_is_asked_in_its_order() {
    let names = ["by-header", "by-objective", "by-route", "by-tenant", "by-rule", "by-default"];
    let mut setup = Setup::new(1, Wait::Unread)
        .with("/lanes", names.map(|name| json!({"name": name})).into())
        .with("/lane_header", json!("X-Lane"))
        .with("/objectives", json!({"fast": "by-objective"}))
        .with("/tenants/mine", json!({"lane": "by-tenant"}))
        .with("/routes", json!([{"match": {"path_prefix": "/routed/"}, "lane": "by-route"}]))
        .with(
            "/lane_rules",
            json!([{"path_prefix": "/routed/v1", "lane": "by-rule"}, {"path_prefix": "/ruled", "lane": "by-rule"}]),
        );
    setup.virtual_hosts =
        virtual_hosts(&["/routed/", "/ruled/", "/plain/"].map(|prefix| route_without_prefix(prefix, "workers")));
    let rig = Rig::start(setup).await;
    let (asked, objective) = (("x-lane", "by-header"), ("x-gateway-inference-objective", "fast"));
    let chain: [(&str, &str, &[Header]); 6] = [
        ("/routed", "mine", &[asked, objective]),
        ("/routed", "mine", &[objective]),
        ("/routed", "mine", &[]),
        ("/ruled", "mine", &[]),
        ("/ruled", "other", &[]),
        ("/plain", "other", &[]),
    ];
    for ((prefix, tenant, headers), lane) in chain.into_iter().zip(names) {
        let body = chat(MODEL, 1, false).to_string();
        let answer = rig.post_to(&format!("{prefix}{CHAT}"), tenant, headers, body).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some(lane));
        rig.counts("sluice_requests_total", &[("lane", lane)], 1).await;
    }
    assert_eq!(rig.ask("other", &[("x-lane", "no-such")]).await.0, 200);
    assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some("by-default"), "a lane that there is not");
}

/// A name that no policy lists gives no more than the lane of ordinary requests, and takes nothing away that a tenant, a route or a rule gives.
#[tokio::test]
async fn an_objective_that_is_not_listed_is_an_ordinary_one() {
    let rules = json!([{"path_prefix": "/v1/completions", "lane": "batch"}]);
    let setup = three_lanes(Wait::Unread).with("/default_lane", json!("interactive")).with("/lane_rules", rules);
    let setup = setup.with("/tenants", json!({"mine": {"lane": "interactive"}, "slow": {"max_lane": "batch"}}));
    let rig = Rig::start(setup).await;
    let unheard_of: Header = ("x-gateway-inference-objective", "unheard-of");
    for (tenant, headers, lane) in [
        ("other", &[][..], "interactive"),
        ("other", &[unheard_of], "standard"),
        ("mine", &[unheard_of], "interactive"),
        ("slow", &[unheard_of], "batch"),
    ] {
        assert_eq!(rig.ask(tenant, headers).await.0, 200);
        assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some(lane), "{tenant} {headers:?}");
    }
    let prompt = json!({"model": MODEL, "prompt": "Hello", "max_tokens": 1}).to_string();
    assert_eq!(rig.post_to("/v1/completions", "other", &[unheard_of], prompt).await.status(), 200);
    assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some("batch"), "a rule");
}

#[tokio::test]
async fn an_objective_may_come_under_either_name() {
    let setup = three_lanes(Wait::Unread).with("/objectives", json!({"chat": "interactive", "nightly": "batch"}));
    let rig = Rig::start(setup).await;
    let (ours, older) = ("x-llm-d-inference-objective", "x-gateway-inference-objective");
    for (headers, lane) in [
        (&[(ours, "chat")][..], "interactive"),
        (&[(older, "nightly")], "batch"),
        (&[(older, "nightly"), (ours, "chat")], "interactive"),
    ] {
        assert_eq!(rig.ask("acme", headers).await.0, 200);
        assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some(lane), "{headers:?}");
    }
    let priority = rig.worker.stats().last_headers["x-sluice-priority"].clone();
    assert_eq!(priority, "100");
}

/// Headers that have gone on cannot tell what only the body says; what is counted knows it all the same.
#[tokio::test]
async fn a_lane_by_model_is_told_where_headers_wait_and_counted_everywhere() {
    for wait in [Wait::Unread, Wait::AtHeaders, Wait::BodyHeld] {
        let rules =
            json!([{"path_prefix": "/v1/completions", "lane": "batch"}, {"model": "sim", "lane": "interactive"}]);
        let rig = Rig::start(three_lanes(wait).with("/lane_rules", rules)).await;
        let told = |lane: &'static str| (wait == Wait::AtHeaders).then_some(lane);
        assert_eq!(rig.ask("acme", &[]).await.0, 200);
        assert_eq!(rig.seen("x-sluice-lane").as_deref(), told("interactive"), "{wait:?}");
        assert_eq!(rig.seen("x-sluice-tenant").as_deref(), Some("acme"), "{wait:?}");
        let other = rig.post("acme", &[], &chat("sim-other", 1, false)).await;
        assert_eq!((other.status().as_u16(), reason_of(&other).as_str()), (404, ""), "the worker's own");
        assert_eq!(rig.seen("x-sluice-lane").as_deref(), told("standard"), "{wait:?}");
        for lane in ["interactive", "standard"] {
            rig.counts("sluice_requests_total", &[("lane", lane)], 1).await;
        }
        assert_eq!(rig.ask("acme", &[("x-sluice-lane", "batch")]).await.0, 200);
        assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some("batch"), "{wait:?}: asked for, so no model is needed");
        let prompt = json!({"model": MODEL, "prompt": "Hello", "max_tokens": 1}).to_string();
        assert_eq!(rig.post_to("/v1/completions", "acme", &[], prompt).await.status(), 200);
        assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some("batch"), "{wait:?}: the rule before tells by the path");
        rig.nothing_is_held().await;
    }
}

#[tokio::test]
async fn nobody_gets_above_the_highest_lane_of_its_tier() {
    let setup = three_lanes(Wait::AtHeaders)
        .with("/tiers", json!({"free": {"max_lane": "standard"}}))
        .with("/tenants", json!({"free": {"tier": "free"}, "slow": {"tier": "free", "max_lane": "batch"}}))
        .with("/objectives", json!({"chat": "interactive"}))
        .with("/lane_rules", json!([{"model": "sim", "lane": "interactive"}]));
    let rig = Rig::start(setup).await;
    let objective = ("x-gateway-inference-objective", "chat");
    for headers in [&[][..], &[("x-sluice-lane", "interactive")], &[objective]] {
        for (tenant, lane) in [("paid", "interactive"), ("free", "standard"), ("slow", "batch")] {
            assert_eq!(rig.ask(tenant, headers).await.0, 200);
            assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some(lane), "{tenant} {headers:?}");
        }
    }
    assert_eq!(rig.ask("free", &[("x-sluice-lane", "batch")]).await.0, 200);
    assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some("batch"), "below it is the caller's choice");
    for (lane, count) in [("interactive", 3), ("standard", 3), ("batch", 4)] {
        rig.counts("sluice_requests_total", &[("lane", lane)], count).await;
    }
}

#[tokio::test]
async fn a_lane_is_shed_at_its_ceiling() {
    let lanes = json!([
        {"name": "interactive", "priority": 100, "ceiling": 1.1}, {"name": "standard"},
        {"name": "batch", "priority": -10}, {"name": "bulk", "priority": -20, "ceiling": 0.9},
    ]);
    let setup = Setup::new(1, Wait::Unread).with("/pools/0/stale", json!({"hold": "10m"}));
    let rig = Rig::start(setup.with("/lanes", lanes)).await;
    // What closes a lane closes those below it.
    let ceiling_of = |lane: &str| match lane {
        "interactive" | "standard" => (1_100, "interactive"),
        "batch" => (1_000, "batch"),
        _ => (900, "bulk"),
    };
    for (generation, permille) in [(1, 899), (2, 900), (3, 1_000), (4, 1_200)] {
        let worker = view::free(rig.worker.address(), 0);
        let pool = json!({"workers": [worker], "saturation": permille as f64 / 1_000.0});
        assert_eq!(rig.push_view(7, generation, pool).await.0, 200);
        for lane in ["interactive", "standard", "batch", "bulk"] {
            let answer = rig.post("acme", &[("x-sluice-lane", lane)], &chat(MODEL, 1, false)).await;
            let (ceiling, of) = ceiling_of(lane);
            let expected = if permille >= ceiling { (429, "saturated") } else { (200, "") };
            assert_eq!((answer.status().as_u16(), reason_of(&answer).as_str()), expected, "{lane} at {permille}");
            if expected.0 == 429 {
                let limit = answer.json::<Value>().await.unwrap()["error"]["limit"].clone();
                assert_eq!(
                    (&limit["knob"], &limit["measured"]),
                    (&json!(format!("lanes[{of}].ceiling")), &json!(permille))
                );
            }
        }
        eventually("the gauge shows it", async || {
            let gauge = rig.count("sluice_saturation_permille", &[("pool", "main")]).await;
            (gauge == permille).then_some(()).ok_or(gauge.to_string())
        })
        .await;
    }
    let labels = |lane| [("pool", "main"), ("lane", lane), ("outcome", "saturated")];
    rig.counts("sluice_requests_total", &labels("bulk"), 3).await;
    rig.counts("sluice_requests_total", &labels("standard"), 1).await;
}

/// Sends a body as it is, sized or chunked, in pieces of this size, for a lane.
async fn send(rig: &Rig, lane: &str, body: &str, sized: bool, piece: usize) -> Option<u16> {
    let headers: [(&str, &[u8]); 2] = [("x-tenant-id", b"acme"), ("x-sluice-lane", lane.as_bytes())];
    let request = request_bytes(CHAT, &headers, body.as_bytes(), sized);
    let mut pieces = request.chunks(piece);
    let mut caller = RawCaller::send(rig.address, pieces.next().unwrap_or_default()).await;
    for more in pieces {
        tokio::task::yield_now().await;
        caller.send_more(more).await;
    }
    caller.status().await
}

#[tokio::test]
async fn the_worker_reads_the_priority_in_the_body() {
    let setup = three_lanes(Wait::AtHeaders).with("/tag_body", json!(true));
    let rig = Rig::start(setup).await;
    let message = format!(r#""messages": [{{"role":"user", "content":"{}", "priority": 3}}]"#, "wörd ".repeat(300));
    let body =
        |first: &str, last: &str| format!("{{{first}\t\"model\" :\"sim\",{message},\r\n \"max_tokens\":1{last}}}\n");
    for (before, after) in [
        (body("", ""), body("\"priority\":PRIORITY,", "")),
        (body("\"priority\": 9,", ""), body("\"priority\": PRIORITY,", "")),
        (body("", ", \"pri\\u006frity\" : -1e9 "), body("", ", \"pri\\u006frity\" : PRIORITY ")),
        (
            body("\"priority\":{\"a\":[1]},", ",\"priority\":null"),
            body("\"priority\":PRIORITY,", ",\"priority\":PRIORITY"),
        ),
    ] {
        for (lane, priority, sized, piece) in
            [("interactive", "-100", true, 1 << 20), ("standard", "0", false, 700), ("batch", "10", true, 700)]
        {
            assert_eq!(send(&rig, lane, &before, sized, piece).await, Some(200), "{before}");
            let stats = rig.worker.stats();
            let expected = after.replace("PRIORITY", priority);
            assert_eq!(stats.last_body, expected);
            let length = stats.last_headers.get("content-length").map(String::as_str);
            assert_eq!(length, sized.then_some(expected.len().to_string()).as_deref());
        }
    }
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// Trailers end a body without its last bytes saying so.
#[tokio::test]
async fn a_body_with_trailers_is_decided_and_tagged() {
    for wait in [Wait::Unread, Wait::AtHeaders, Wait::BodyHeld] {
        let rig = Rig::start(three_lanes(wait).with("/tag_body", json!(wait == Wait::AtHeaders))).await;
        let body = chat(MODEL, 1, false).to_string();
        let mut request = request_bytes(CHAT, &[("x-sluice-lane", b"batch")], body.as_bytes(), false);
        request.truncate(request.len() - 2);
        request.extend_from_slice(b"x-trailer: here\r\n\r\n");
        for _ in 0..3 {
            assert_eq!(RawCaller::send(rig.address, &request).await.status().await, Some(200), "{wait:?}");
            let priority = if wait == Wait::AtHeaders { "{\"priority\":10," } else { "{" };
            assert_eq!(rig.worker.stats().last_body, body.replacen('{', priority, 1), "{wait:?}");
        }
        rig.counts("sluice_requests_total", &[("lane", "batch"), ("outcome", "admitted")], 3).await;
        rig.nothing_is_held().await;
        rig.nothing_trapped().await;
    }
}

/// The begin of such a body has gone on before it is known whether the rest names a priority.
#[tokio::test]
async fn a_body_too_long_to_hold_goes_without_a_priority_its_callers_included() {
    let setup =
        three_lanes(Wait::AtHeaders).with("/tag_body", json!(true)).with("/body", json!({"hold_limit": "4KiB"}));
    let rig = Rig::start(setup).await;
    let content = "word ".repeat(2_000);
    let body = |first: &str, last: &str| {
        format!(r#"{{{first}"model":"sim","max_tokens":1,"messages":[{{"role":"user","content":"{content}"}}]{last}}}"#)
    };
    for (body, status) in
        [(body("", ""), 200), (body("", ",\"priority\":-5"), 400), (body("\"priority\":-5,", ""), 400)]
    {
        let before = rig.worker.stats().requests;
        let request = request_bytes(CHAT, &[("x-sluice-lane", b"batch")], body.as_bytes(), true);
        let (begin, rest) = request.split_at(6_000);
        let mut caller = RawCaller::send(rig.address, begin).await;
        eventually("it is decided by its begin", async || {
            let held = rig.held().await.0;
            (held == 1).then_some(()).ok_or(held.to_string())
        })
        .await;
        caller.send_more(rest).await;
        assert_eq!(caller.status().await, Some(status), "{body:.60}");
        assert_eq!(rig.worker.stats().requests, before + u64::from(status == 200), "{body:.60}");
        rig.nothing_is_held().await;
    }
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn a_body_with_too_many_priorities_is_refused() {
    let rig = Rig::start(three_lanes(Wait::AtHeaders).with("/tag_body", json!(true))).await;
    let many = |count| {
        format!(
            r#"{{{} "model": "sim", "messages": [{{"role": "user", "content": "hi"}}]}}"#,
            "\"priority\": 1,".repeat(count)
        )
    };
    assert_eq!(send(&rig, "batch", &many(6), true, 1 << 20).await, Some(200));
    assert_eq!(rig.worker.stats().last_body, many(6).replace(": 1,", ": 10,"));
    for sized in [true, false] {
        let answer = rig.post_to(CHAT, "acme", &[], many(7)).await;
        assert_eq!((answer.status().as_u16(), reason_of(&answer).as_str()), (400, "malformed"));
        assert_eq!(send(&rig, "batch", &many(100), sized, 100).await, Some(400));
    }
    assert_eq!(rig.worker.stats().requests, 1);
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}
