//! Which pool and which classes a request belongs to, and what is counted of it.

use serde_json::{Value, json};
use wasm_tests::bootstrap::{virtual_hosts, worker_routes};
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, reason_of};
use wasm_tests::view;
use worker_sim::Fault;

/// A chat request with this content.
fn saying(content: &str) -> Value {
    json!({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": content}]})
}

/// About 460 tokens.
fn long() -> Value {
    saying(&"word ".repeat(370))
}

async fn outcome(rig: &Rig, body: &Value) -> (u16, String) {
    let answer = rig.post("acme", &[], body).await;
    (answer.status().as_u16(), reason_of(&answer))
}

fn admitted() -> (u16, String) {
    (200, String::new())
}

fn refused(status: u16, reason: &str) -> (u16, String) {
    (status, reason.to_owned())
}

/// Has the worker hold this request until the caller is dropped.
async fn hold(rig: &Rig, body: &Value) -> RawCaller {
    let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], body.to_string().as_bytes(), true);
    rig.hanging(&request).await
}

fn with_class(wait: Wait, class: Value) -> Setup {
    Setup::new(1, wait).with("/pools/0/classes", json!([class]))
}

#[tokio::test]
async fn a_model_chooses_its_pool_by_name_before_the_longest_beginning() {
    let mut setup = Setup::new(1, Wait::AtHeaders);
    let pools = [("seven", json!(["sim-7*"])), ("seventy", json!(["sim-70b"])), ("rest", json!([]))];
    let more = pools.map(|(name, models)| json!({"name": name, "models": models, "max_in_flight": 9}));
    setup.policy["pools"].as_array_mut().unwrap().extend(more);
    let rig = Rig::start(setup).await;
    for (model, pool) in [
        ("sim", "main"),
        ("sim-8b", "main"),
        ("sim-7b", "seven"),
        ("sim-70b", "seventy"),
        ("sim-70b-chat", "seven"),
        ("SIM", "rest"),
        ("", "rest"),
    ] {
        rig.post("acme", &[("x-sluice-pool", "main")], &chat(model, 1, false)).await;
        assert_eq!(rig.seen("x-sluice-pool").as_deref(), Some(pool), "{model}");
    }
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn a_full_class_of_long_prompts_refuses_the_long_ones_alone() {
    for wait in [Wait::Unread, Wait::AtHeaders, Wait::BodyHeld] {
        let class = json!({"name": "long", "min_prompt_tokens": 200, "max_in_flight": 1});
        let rig = Rig::start(with_class(wait, class)).await;
        let holder = hold(&rig, &long()).await;
        let answer = rig.post("acme", &[], &long()).await;
        assert_eq!(answer.status(), 429, "{wait:?}");
        let limit = answer.json::<Value>().await.unwrap()["error"]["limit"].clone();
        let expected =
            json!({"knob": "pools[main].classes[long].max_in_flight", "measured": 2, "allowed": 1, "unit": "requests"});
        assert_eq!(limit, expected, "{wait:?}");
        assert_eq!(outcome(&rig, &chat(MODEL, 1, false)).await, admitted(), "{wait:?}: a short one");
        rig.counts("sluice_requests_total", &[("outcome", "class_requests")], 1).await;
        drop(holder);
        rig.nothing_is_held().await;
        for _ in 0..2 {
            assert_eq!(outcome(&rig, &long()).await, admitted(), "{wait:?}: the class has room again");
            rig.nothing_is_held().await;
        }
    }
}

/// Signs make more tokens than their bytes promise, so what was let in as short is long once it has been read.
#[tokio::test]
async fn a_request_that_proves_long_joins_the_class_then() {
    let class = json!({"name": "long", "min_prompt_tokens": 300, "max_in_flight": 1});
    let rig = Rig::start(with_class(Wait::Unread, class)).await;
    let signs = saying(&"!?".repeat(400));
    assert!(signs.to_string().len() < 4 * 300, "a guess says that it is short");
    let holder = hold(&rig, &signs).await;
    assert_eq!(outcome(&rig, &long()).await, refused(429, "class_requests"), "the class is full, by what was read");
    assert_eq!(outcome(&rig, &signs).await, refused(429, "class_requests"), "and so it is for who joins it late");
    assert_eq!(rig.worker.stats().requests, 1, "the worker has not had the whole of any other");
    assert_eq!(rig.held().await.0, 1);
    drop(holder);
    rig.nothing_is_held().await;
    for _ in 0..2 {
        assert_eq!(outcome(&rig, &signs).await, admitted(), "the class has room again");
        rig.nothing_is_held().await;
    }
}

/// Blanks make fewer tokens than their bytes promise.
#[tokio::test]
async fn a_request_that_proves_short_leaves_the_class_then() {
    let class = json!({"name": "long", "min_prompt_tokens": 200, "max_in_flight": 1});
    let rig = Rig::start(with_class(Wait::Unread, class)).await;
    let blank = saying(&" ".repeat(2_000));
    let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], blank.to_string().as_bytes(), true);
    let mut unread = RawCaller::send(rig.address, &request[..request.len() - 1]).await;
    eventually("it is held", async || {
        let held = rig.held().await.0;
        (held == 1).then_some(()).ok_or(held.to_string())
    })
    .await;
    assert_eq!(outcome(&rig, &blank).await, refused(429, "class_requests"), "by its size it is long");
    rig.worker.set_faults([Fault::Hang]);
    unread.send_more(&request[request.len() - 1..]).await;
    eventually("the worker has it", async || {
        let inside = rig.worker.stats().in_server;
        (inside == 1).then_some(()).ok_or(inside.to_string())
    })
    .await;
    rig.worker.set_faults([]);
    assert_eq!(outcome(&rig, &blank).await, admitted(), "it is still held, but no longer in the class");
    assert_eq!(outcome(&rig, &long()).await, admitted());
    drop(unread);
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn a_class_of_models_limits_what_its_models_may_ask() {
    for wait in [Wait::AtHeaders, Wait::BodyHeld] {
        let class =
            json!({"name": "small", "models": ["sim", "sim-small*"], "max_prompt_tokens": 100, "max_in_flight": 1});
        let rig = Rig::start(with_class(wait, class)).await;
        let answer = rig.post("acme", &[], &long()).await;
        assert_eq!((answer.status().as_u16(), reason_of(&answer)), refused(413, "oversize"), "{wait:?}");
        let error = answer.json::<Value>().await.unwrap()["error"].clone();
        assert_eq!(error["limit"]["knob"], "pools[main].classes[small].max_prompt_tokens");
        let mut large_model = long();
        large_model["model"] = json!("sim-large");
        assert_eq!(outcome(&rig, &large_model).await, refused(404, ""), "{wait:?}: the worker's own");
        let holder = hold(&rig, &chat(MODEL, 1, false)).await;
        assert_eq!(outcome(&rig, &chat("sim-small-1", 1, false)).await, refused(429, "class_requests"));
        assert_eq!(outcome(&rig, &chat("sim-large", 1, false)).await, refused(404, ""), "{wait:?}: the worker's own");
        drop(holder);
        rig.nothing_is_held().await;
        assert_eq!(outcome(&rig, &chat(MODEL, 1, false)).await, admitted(), "{wait:?}");
    }
}

/// Pools `main` and `cold`, the second behind a route that looks at `x-sluice-pool`.
fn with_cold_pool(wait: Wait, main: Value) -> Setup {
    let mut setup = Setup::new(1, wait).with("/pools/0/stale", json!({"hold": "10m"}));
    setup.policy["pools"][0].as_object_mut().unwrap().extend(main.as_object().cloned().unwrap_or_default());
    let cold = json!({"name": "cold", "models": ["cold-only"], "max_in_flight": 9, "max_prompt_tokens": 1_000});
    setup.policy["pools"].as_array_mut().unwrap().push(cold);
    let mut route = worker_routes()[1].clone();
    route["match"]["headers"] = json!([{"name": "x-sluice-pool", "string_match": {"exact": "cold"}}]);
    route["route"]["cluster"] = json!("cold");
    setup.virtual_hosts = virtual_hosts(&[route]);
    setup
}

#[tokio::test]
async fn what_is_too_large_goes_to_the_pool_that_takes_it() {
    for sized in [true, false] {
        let main = json!({"max_prompt_tokens": 100, "fallback_pool": "cold"});
        let rig = Rig::start(with_cold_pool(Wait::AtHeaders, main)).await;
        let headers: [(&str, &[u8]); 2] = [("x-tenant-id", b"acme"), ("x-sluice-pool", b"cold")];
        let post = async |body: Value| {
            let request = request_bytes(CHAT, &headers, body.to_string().as_bytes(), sized);
            RawCaller::send(rig.address, &request).await.status().await
        };
        assert_eq!(post(chat(MODEL, 1, false)).await, Some(200));
        let (warm, cold) = (rig.worker.stats(), rig.cold.stats());
        assert_eq!((warm.requests, cold.requests), (1, 0), "a caller's own x-sluice-pool moves nothing");
        assert_eq!(warm.last_headers["x-sluice-pool"], "main");
        assert_eq!(post(long()).await, Some(200));
        let (warm, cold) = (rig.worker.stats(), rig.cold.stats());
        assert_eq!((warm.requests, cold.requests), (1, 1));
        assert_eq!((cold.last_headers["x-sluice-pool"].as_str(), cold.last_body), ("cold", long().to_string()));
        rig.counts("sluice_requests_total", &[("pool", "cold"), ("model", "other")], 1).await;

        rig.cold.set_faults([Fault::Hang]);
        let request = request_bytes(CHAT, &headers, long().to_string().as_bytes(), sized);
        let holder = RawCaller::send(rig.address, &request).await;
        eventually("the cold pool holds it", async || {
            let pools = rig.state().await["pools"].clone();
            let held = |pool: &str| pools[pool]["held"]["requests"].clone();
            (held("cold") == 1 && held("main") == 0).then_some(()).ok_or(pools.to_string())
        })
        .await;
        drop(holder);
        rig.nothing_is_held().await;

        let answer = rig.post("acme", &[], &saying(&"word ".repeat(2_000))).await;
        assert_eq!(answer.status(), 413, "too large for both");
        let error = answer.json::<Value>().await.unwrap()["error"].clone();
        assert_eq!(error["limit"]["knob"], "pools[main].max_prompt_tokens", "the first to refuse explains");
    }
}

#[tokio::test]
async fn what_finds_all_busy_goes_to_another_pool() {
    for (wait, fixed) in [(Wait::AtHeaders, false), (Wait::Unread, true)] {
        let mut setup = with_cold_pool(wait, json!({"fallback_pool": "cold", "fallback_on": ["all_busy"]}));
        // Without a pause at the headers a route must say which pool it is.
        if fixed {
            setup.policy["routes"] = json!([{"match": {"path_prefix": "/"}, "pool": "main"}]);
        }
        let rig = Rig::start(setup).await;
        let push = async |generation, worker| {
            assert_eq!(rig.push_view(7, generation, json!({"workers": [worker]})).await.0, 200);
        };
        push(1, view::free(rig.worker.address(), 0)).await;
        assert_eq!(outcome(&rig, &chat(MODEL, 1, false)).await, admitted());
        assert_eq!((rig.worker.stats().requests, rig.cold.stats().requests), (1, 0));
        push(2, view::busy(rig.worker.address())).await;
        assert_eq!(outcome(&rig, &chat(MODEL, 1, false)).await, admitted(), "{wait:?}");
        assert_eq!((rig.worker.stats().requests, rig.cold.stats().requests), (1, 1), "{wait:?}");
        rig.counts("sluice_requests_total", &[("pool", "cold"), ("outcome", "admitted")], 1).await;
        rig.nothing_is_held().await;
    }
}

/// Too large for one pool and in time for the other: that is full, which passes.
#[tokio::test]
async fn what_finds_the_other_pool_full_waits_for_it_or_is_told_to_come_back() {
    let mut setup = with_cold_pool(Wait::AtHeaders, json!({"max_prompt_tokens": 100, "fallback_pool": "cold"}));
    let cold = json!({"name": "cold", "fallback_only": true, "max_in_flight": 1, "max_prompt_tokens": 1_000});
    setup.policy["pools"][1] = cold;
    setup = setup.with("/lanes", json!([{"name": "standard", "queue": {"max_wait": "60s"}}]));
    let rig = Rig::start(setup).await;
    let request = |more: &[(&str, &[u8])]| {
        let headers = [&[("x-tenant-id", b"acme".as_slice())], more].concat();
        request_bytes(CHAT, &headers, long().to_string().as_bytes(), true)
    };
    rig.cold.set_faults([Fault::Hang]);
    let holder = RawCaller::send(rig.address, &request(&[])).await;
    let inside = async |pool: &str, what: &str| rig.state().await["pools"][pool][what].clone();
    eventually("the cold pool holds it", async || {
        let held = inside("cold", "held").await;
        (held["requests"] == 1).then_some(()).ok_or_else(|| held.to_string())
    })
    .await;
    let mut refused = RawCaller::send(rig.address, &request(&[("x-sluice-no-queue", b"true")])).await;
    let (head, body) = refused.last_answer().await;
    assert!(head.starts_with("HTTP/1.1 429") && head.contains("x-sluice-reason: pool_requests"), "{head}");
    assert!(head.contains("retry-after: "), "{head}");
    assert!(String::from_utf8_lossy(&body).contains("pools[cold].max_in_flight"), "{body:?}");
    rig.counts("sluice_requests_total", &[("pool", "cold"), ("outcome", "pool_requests")], 1).await;
    rig.counts("sluice_fallbacks_total", &[("pool", "main"), ("outcome", "oversize")], 2).await;
    let mut waits = RawCaller::send(rig.address, &request(&[])).await;
    eventually("the next one waits for the cold pool", async || {
        let waiting = inside("cold", "waiting").await;
        (waiting["standard"]["requests"] == 1).then_some(()).ok_or_else(|| waiting.to_string())
    })
    .await;
    rig.cold.set_faults([]);
    drop(holder);
    assert_eq!(waits.status().await, Some(200));
    assert_eq!((rig.worker.stats().requests, rig.cold.stats().last_headers["x-sluice-pool"].as_str()), (0, "cold"));
    rig.nothing_is_held().await;
}

/// Counted where it would go, sent where it would have gone without a policy.
#[tokio::test]
async fn in_shadow_no_request_is_moved_to_another_pool() {
    let main = json!({"max_prompt_tokens": 100, "fallback_pool": "cold"});
    let rig = Rig::start(with_cold_pool(Wait::AtHeaders, main).with("/mode", json!("shadow"))).await;
    assert_eq!(outcome(&rig, &long()).await, admitted());
    assert_eq!((rig.worker.stats().requests, rig.cold.stats().requests), (1, 0));
    assert_eq!(rig.seen("x-sluice-pool").as_deref(), Some("main"));
    rig.counts("sluice_fallbacks_total", &[("pool", "main"), ("outcome", "oversize")], 1).await;
    rig.counts("sluice_requests_total", &[("pool", "cold"), ("outcome", "admitted")], 1).await;
    rig.nothing_is_held().await;
}

/// What is held back may prove it before the body has ended.
#[tokio::test]
async fn what_is_too_large_to_be_held_goes_there_too() {
    let main = json!({"max_prompt_tokens": 100, "fallback_pool": "cold"});
    let mut setup = with_cold_pool(Wait::AtHeaders, main).with("/body", json!({"hold_limit": "2KiB"}));
    setup.policy["pools"][1]["max_prompt_tokens"] = json!(9_000);
    let rig = Rig::start(setup).await;
    assert_eq!(outcome(&rig, &saying(&"word ".repeat(1_000))).await, admitted());
    assert_eq!((rig.worker.stats().requests, rig.cold.stats().requests), (0, 1));
    rig.nothing_is_held().await;
}

/// A route that looks at our headers would let a caller choose it, and with it what it says in its metadata.
#[tokio::test]
async fn a_caller_cannot_choose_the_rules_of_another_route() {
    for loose in [json!({"enabled": false}), json!({"mode": "shadow"}), json!({"tier": "wide"})] {
        let mut setup = with_cold_pool(Wait::Unread, json!({}));
        setup.virtual_hosts[0]["routes"][0]["metadata"] = json!({"filter_metadata": {"sluice": loose}});
        setup.policy["tiers"] = json!({"wide": {"requests_per_minute": 99}});
        let rig = Rig::start(setup.with("/tenants/capped", json!({"requests_per_minute": 1}))).await;
        let body = chat(MODEL, 1, false);
        let statuses = async || rig.post("capped", &[("x-sluice-pool", "cold")], &body).await.status().as_u16();
        assert_eq!((statuses().await, statuses().await), (200, 429), "{loose}");
        assert_eq!((rig.worker.stats().requests, rig.cold.stats().requests), (1, 0));
    }
}

#[tokio::test]
async fn endpoints_and_models_are_counted_by_names_that_callers_cannot_invent() {
    let mut setup = Setup::new(1, Wait::AtHeaders).with("/pools/0/models", json!(["sim", "sim-7*"]));
    setup.policy["pools"].as_array_mut().unwrap().push(json!({"name": "rest", "max_in_flight": 9}));
    setup.policy["routes"] = json!([{"match": {"path_prefix": "/v1/"}, "pool": "main"}]);
    setup.policy["tenants"] = json!({"capped": {"requests_per_minute": 1}});
    let rig = Rig::start(setup).await;
    let invented = "sim-7-invented\";.;x";
    let named = |model: &str| json!({"model": model, "prompt": "hi", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]});
    for (path, model, pool, label, endpoint) in [
        (CHAT, "sim", "main", "sim", "chat_completions"),
        (CHAT, invented, "main", "sim-7*", "chat_completions"),
        (CHAT, "nobodys", "main", "other", "chat_completions"),
        ("/v1/completions", "sim", "main", "sim", "completions"),
        ("/v1/completion%73?a=b", "sim", "main", "sim", "completions"),
        ("/v1/messages", "sim", "main", "sim", "messages"),
        ("/v1/embeddings", "sim-7b", "main", "sim-7*", "embeddings"),
        ("/v1/invented", "sim", "main", "sim", "other"),
        ("/other/v1/chat/completions", invented, "main", "sim-7*", "chat_completions"),
        ("/other/v1/chat/completions", "nobodys", "rest", "any", "chat_completions"),
    ] {
        let labels =
            [("pool", pool), ("lane", "standard"), ("model", label), ("endpoint", endpoint), ("outcome", "admitted")];
        let before = rig.count("sluice_requests_total", &labels).await;
        rig.post_to(path, "acme", &[], named(model).to_string()).await;
        rig.counts("sluice_requests_total", &labels, before + 1).await;
    }
    let mut outcomes = Vec::new();
    for _ in 0..2 {
        outcomes.push(rig.ask("capped", &[]).await);
    }
    assert_eq!(outcomes, [admitted(), refused(429, "tenant_request_rate")]);
    let unread = [("pool", "main"), ("model", "unread"), ("outcome", "tenant_request_rate")];
    rig.counts("sluice_requests_total", &unread, 1).await;
    let page = rig.envoy.prometheus().await.unwrap();
    assert!(!page.contains("invented"), "{page}");
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}
