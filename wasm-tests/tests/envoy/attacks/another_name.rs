//! An attacker that asks for the same by another name, where limits do not look.

use serde_json::{Value, json};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, reason_of};

/// Names under which engines take prompts, with any prefix, and one that is made up.
const NAMES: [&str; 8] = [
    "/invocations",
    "/any/prefix/invocations",
    "/generate",
    "/generate_stream",
    "/v2/models/sim/generate",
    "/completion",
    "/v1/chat/completions",
    "/made-up",
];

/// Fields that hold prompts.
const FIELDS: [&str; 6] = ["messages", "prompt", "input", "inputs", "text_input", "text"];

fn body(field: &str, text: &str) -> Value {
    let value = if field == "messages" { json!([{"role": "user", "content": text}]) } else { json!(text) };
    json!({"model": MODEL, "max_tokens": 1, field: value})
}

fn setup(wait: Wait) -> Setup {
    Setup::new(1, wait).with("/pools/0/max_prompt_tokens", json!(100)).with("/pools/0/max_sequences", json!(4))
}

async fn outcome(rig: &Rig, path: &str, body: &Value) -> (u16, String) {
    let answer = rig.post_to(path, "evil", &[], body.to_string()).await;
    (answer.status().as_u16(), reason_of(&answer))
}

/// An attacker asks for what no request may have: a prompt that is too long, more answers than one may ask for, an answer behind which its
/// worker goes on. Under none of the names does the worker begin with it.
#[tokio::test]
async fn no_name_of_an_endpoint_takes_what_another_refuses() {
    for wait in [Wait::Unread, Wait::AtHeaders, Wait::BodyHeld] {
        let rig = Rig::start(setup(wait)).await;
        let oversize = (413, "oversize".to_owned());
        for (name, field) in NAMES.iter().flat_map(|name| FIELDS.map(|field| (name, field))) {
            let long = body(field, &"word ".repeat(200));
            assert_eq!(outcome(&rig, name, &long).await, oversize, "{wait:?} {name} {field}");
        }
        for name in NAMES.iter().filter(|name| !name.contains("chat")) {
            let mut many = body("prompt", "Hi");
            many["prompt"] = json!(["a", "b", "c", "d", "e"]);
            many["input"] = json!("one");
            assert_eq!(outcome(&rig, name, &many).await, oversize, "{wait:?} {name}: five prompts before one");
            let mut nested = body("inputs", "Hi");
            nested["sampling_params"] = json!({"n": 5});
            assert_eq!(outcome(&rig, name, &nested).await, oversize, "{wait:?} {name}: five answers");
        }
        for name in NAMES.iter().chain(&["/v1/responses"]) {
            let mut later = body("input", "Hi");
            later["background"] = json!(true);
            assert_eq!(outcome(&rig, name, &later).await, (400, "malformed".to_owned()), "{wait:?} {name}: background");
        }
        let stats = rig.worker.stats();
        assert_eq!((stats.requests, stats.running), (0, 0), "{wait:?}: the worker has begun with none");
        assert_eq!(outcome(&rig, "/invocations", &body("messages", "Hi")).await, (200, String::new()), "{wait:?}");
        rig.nothing_is_held().await;
        rig.nothing_trapped().await;
    }
}

/// An attacker spends by another name: its budget pays for that as for any other.
#[tokio::test]
async fn answers_by_another_name_are_paid_for() {
    let evil = json!({"tokens_per_minute": {"rate": 1, "burst": 200}});
    let rig = Rig::start(setup(Wait::Unread).with("/tenants/evil", evil)).await;
    let mut long_answer = body("messages", "Hi");
    long_answer["max_tokens"] = json!(400);
    assert_eq!(outcome(&rig, "/invocations", &long_answer).await.0, 200);
    eventually("its answer is a debt", async || match outcome(&rig, "/invocations", &body("prompt", "Hi")).await {
        (429, reason) if reason == "tenant_token_rate" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    rig.nothing_is_held().await;
}

/// A route says that its requests may go on in the background, and what they are.
#[tokio::test]
async fn a_route_may_allow_the_background_and_name_its_api() {
    let routes = json!([
        {"match": {"path_prefix": "/v1/responses"}, "background": true},
        {"match": {"path_prefix": "/made-up"}, "api": "pooling"},
    ]);
    let rig = Rig::start(setup(Wait::AtHeaders).with("/routes", routes)).await;
    let mut later = body("input", "Hi");
    later["background"] = json!(true);
    assert_eq!(outcome(&rig, "/v1/responses", &later).await, (200, String::new()));
    assert_eq!(outcome(&rig, "/v1/chat/completions", &later).await, (400, "malformed".to_owned()));
    let mut many = body("input", "Hi");
    many["input"] = json!(["a", "b", "c", "d", "e"]);
    assert_eq!(
        outcome(&rig, "/made-up", &many).await,
        (404, String::new()),
        "the worker's own: nothing is generated there"
    );
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// An attacker puts beside its prompt what other endpoints read, or gives it as numbers.
#[tokio::test]
async fn fields_beside_a_prompt_hide_none_of_it() {
    let rig = Rig::start(setup(Wait::Unread)).await;
    let oversize = (413, "oversize".to_owned());
    let decoys = [
        json!({"query": "a", "documents": ["b"]}),
        json!({"text_1": "a", "text_2": "b"}),
        json!({"input_ids": [1]}),
        json!({"prompt_token_ids": [1], "tokens": [1]}),
        json!({"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [1]}]}),
    ];
    for (name, decoy) in NAMES.iter().flat_map(|name| decoys.iter().map(move |decoy| (name, decoy))) {
        for field in ["prompt", "messages"] {
            let mut long = body(field, &"word ".repeat(200));
            for (decoy, value) in decoy.as_object().expect("fields") {
                long[decoy] = value.clone();
            }
            assert_eq!(outcome(&rig, name, &long).await, oversize, "{name} {field} {decoy}");
        }
    }
    for name in NAMES.iter().filter(|name| !name.contains("chat")) {
        let numbers = |ids: Value| json!({"model": MODEL, "max_tokens": 1, "input_ids": ids});
        let long: Vec<u32> = (0..200).collect();
        assert_eq!(outcome(&rig, name, &numbers(json!(long))).await, oversize, "{name}: 200 tokens");
        let five = json!([[1], [2], [3], [4], [5]]);
        assert_eq!(outcome(&rig, name, &numbers(five)).await, oversize, "{name}: five prompts");
    }
    assert_eq!(rig.worker.stats().requests, 0, "the worker has begun with none");
    rig.nothing_trapped().await;
}
