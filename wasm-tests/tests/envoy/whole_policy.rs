//! The shipped policy of a platform with many tenants, in Envoy.

use serde_json::{Value, json};
use wasm_tests::caller::chat;
use wasm_tests::rig::{Rig, Setup, Wait};
use worker_sim::Fault;

const MODEL: &str = "llama-3.3-70b-instruct";

fn shipped() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../envoy-config/policy.yaml");
    serde_norway::from_str(&std::fs::read_to_string(path).expect("the shipped policy")).expect("YAML")
}

async fn rig(policy: Value) -> Rig {
    let mut setup = Setup::new(2, Wait::AtHeaders);
    setup.policy = policy;
    setup.worker.model = MODEL.to_owned();
    Rig::start(setup).await
}

fn worker(load: u64) -> Value {
    json!({
        "address": format!("10.0.0.{}:8000", load + 1), "state": "up", "scraped_ms_ago": 0, "busy": false,
        "ranks": [{"kv_used_blocks": 0, "kv_total_blocks": 10_000, "running": load}],
    })
}

#[tokio::test]
async fn the_shipped_policy_in_a_proxy() {
    let rig = rig(shipped()).await;
    let view = |saturation: f64| json!({"saturation": saturation, "workers": [worker(1), worker(0)]});
    let pools = json!({"llama-70b": view(0.5)});
    let document = |generation: u64, pools: &Value| {
        json!({"version": 1, "epoch": 1, "generation": generation, "pools": pools}).to_string().into_bytes()
    };
    let push = async |generation, pools: Value| {
        let token = Some(wasm_tests::rig::TOKEN);
        let (status, answer) = rig.control("POST", "/sluice/v1/view", token, document(generation, &pools)).await;
        assert_eq!(status, 200, "{answer}");
    };
    push(1, pools).await;
    let key = ("x-api-key", "change-me");
    let answer = rig.post("ignored", &[key, ("x-sluice-lane", "interactive")], &chat(MODEL, 2, false)).await;
    assert_eq!(answer.status(), 200);
    let headers = rig.worker.stats().last_headers;
    let tag = |name: &str| headers.get(name).cloned().unwrap_or_default();
    assert_eq!((tag("x-sluice-tenant"), tag("x-sluice-lane")), ("trial".into(), "standard".into()), "clamped");
    assert_eq!(tag("x-gateway-destination-endpoint"), "", "in shadow nothing is steered");

    let answer = rig.post("ignored", &[("x-sluice-lane", "batch")], &chat(MODEL, 2, false)).await;
    assert_eq!(answer.status(), 200);
    assert!(answer.headers().contains_key("ratelimit"), "{:?}", answer.headers());
    let headers = rig.worker.stats().last_headers;
    assert_eq!((&*headers["x-sluice-tenant"], &*headers["x-sluice-lane"]), ("anonymous", "batch"));
    assert_eq!(headers["x-gateway-destination-endpoint"], "10.0.0.1:8000,10.0.0.2:8000", "the freest first");

    push(2, json!({"llama-70b": view(1.1)})).await;
    let answer = rig.post("ignored", &[("x-sluice-no-queue", "true")], &chat(MODEL, 2, false)).await;
    assert_eq!((answer.status().as_u16(), answer.headers()["x-sluice-reason"].to_str().unwrap()), (429, "saturated"));
    let answer = rig.post("ignored", &[key, ("x-sluice-no-queue", "true")], &chat(MODEL, 2, false)).await;
    assert_eq!(
        (answer.status().as_u16(), answer.headers()["x-sluice-would-reject"].to_str().unwrap()),
        (200, "saturated")
    );

    let long = "word ".repeat(20_000);
    let long = json!({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": long}]});
    rig.worker.set_faults([Fault::Refuse503]);
    assert_eq!(rig.post("ignored", &[], &long).await.status(), 503, "let in, and the worker refused");
    assert_eq!(rig.worker.stats().last_headers["x-sluice-pool"], "cold");
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// The names once shared a cap: both had the same place among 1,024 records.
#[tokio::test]
async fn unknown_tenants_have_caps_of_their_own_and_the_state_page_names_them() {
    let (one, other) = ("cust-076", "cust-119");
    let setup = Setup::new(2, Wait::Unread).with("/tenants/*", json!({"max_in_flight": 1}));
    let rig = Rig::start(setup).await;
    let holders = rig.hold(one, 1).await;
    let page = rig.state().await;
    assert_eq!(page["unnamed_tenants"][one]["requests"], 1, "{page}");
    rig.worker.set_faults([]);
    let status = async |tenant: &str| rig.post(tenant, &[], &chat("sim", 1, false)).await.status().as_u16();
    assert_eq!((status(one).await, status(other).await), (429, 200));
    drop(holders);
    rig.nothing_is_held().await;
    assert_eq!(status(one).await, 200);
    assert_eq!(rig.state().await["fair_tags"], json!({}), "nothing of tenants without a name in the configuration");
    status("capped").await;
    let tags = rig.state().await["fair_tags"]["capped"].clone();
    let tags: Vec<_> = tags.as_object().expect("a tag").values().collect();
    assert!(matches!(tags[..], [tag] if tag.as_u64() > Some(0)), "{tags:?}");
}
