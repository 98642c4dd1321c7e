//! Estimates as the policy sets them, in the tags that a worker gets.

use serde_json::{Value, json};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, shipped_log_format};

const TEXT: &str = "The tide comes in at night and takes the sand that children built by day. ";

/// A policy with a word on estimates.
fn setup(estimate: Value) -> Setup {
    Setup::new(1, Wait::AtHeaders).with("/pools/0/estimate", estimate)
}

fn chat_of(content: &Value) -> Value {
    json!({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": content}]})
}

/// Prompt tokens of a request, as its worker learns them.
async fn estimated(rig: &Rig, content: &Value) -> u64 {
    let answer = rig.post("acme", &[], &chat_of(content)).await;
    let (status, tokens) = (answer.status(), rig.seen("x-sluice-prompt-tokens"));
    tokens.and_then(|tokens| tokens.parse().ok()).unwrap_or_else(|| panic!("{status}, and the worker got no estimate"))
}

#[tokio::test]
async fn pictures_recordings_and_files_cost_what_the_policy_says() {
    let rig = Rig::start(setup(json!({"image_tokens": 3_000, "recording_tokens": 700, "file_tokens": 5_000}))).await;
    let text = json!({"type": "text", "text": TEXT});
    let parts = [
        (3_000, json!({"type": "image_url", "image_url": {"url": "https://example.com/sand.png"}})),
        (700, json!({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}})),
        (5_000, json!({"type": "file", "file": {"file_data": "JVBERi0xLjQ=", "filename": "tide.pdf"}})),
    ];
    let alone = estimated(&rig, &json!([text])).await;
    for (tokens, part) in parts {
        let with_it = estimated(&rig, &json!([text, part])).await;
        // Its few words beside it may count, too.
        assert!((tokens..tokens + 20).contains(&with_it.saturating_sub(alone)), "{part}: {with_it}, {alone} alone");
    }
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn before_anything_is_learned_a_prompt_counts_by_the_family_that_the_policy_names() {
    let text = json!(TEXT.repeat(20));
    let mut counts = Vec::new();
    for family in ["small", "o200k"] {
        let rig = Rig::start(setup(json!({"family": family}))).await;
        counts.push(estimated(&rig, &text).await);
    }
    // A text makes more pieces of a vocabulary of 32,000 than of one of 200,000.
    assert!(counts[0] > counts[1] + counts[1] / 20, "{counts:?}");
}

/// Output tokens that a request is charged with, once the filter knows how long answers are.
async fn learned(rig: &Rig) -> u64 {
    let body = json!({"model": MODEL, "max_tokens": 4_000, "messages": [{"role": "user", "content": "How long?"}]});
    let expected = 777;
    eventually("lengths of answers are learned", async || {
        assert_eq!(rig.post("acme", &[], &body).await.status(), 200);
        let last = rig.logged().pop().map(|line| line["sluice"]["value"]["estimated_output_tokens"].clone());
        let charged = last.as_ref().and_then(Value::as_u64).filter(|charged| *charged != expected);
        charged.ok_or_else(|| format!("{last:?}"))
    })
    .await
}

#[tokio::test]
async fn the_output_charged_covers_the_share_of_answers_that_the_policy_names() {
    let mut charged = Vec::new();
    for quantile in [0.5, 0.95] {
        let mut setup = setup(json!({"quantile": quantile})).with("/pools/0/expected_output_tokens", json!(777));
        // Every fifth answer is long.
        setup.worker.answer_tokens = vec![20, 20, 20, 20, 200];
        setup.access_log = shipped_log_format();
        let rig = Rig::start(setup).await;
        charged.push(learned(&rig).await);
        rig.nothing_trapped().await;
    }
    let [half, nearly_all] = charged[..] else { panic!("{charged:?}") };
    // Lengths are counted in classes, two to a doubling.
    assert!((15..30).contains(&half) && (150..300).contains(&nearly_all), "{charged:?}");
}
