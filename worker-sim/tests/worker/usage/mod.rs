//! What answers say that they cost.

use serde_json::{Value, json};
use worker_sim::{Config, Fault, Worker};

use crate::common::{chat, fast, post};

/// The JSON payloads of a stream's events.
async fn events(response: reqwest::Response) -> Vec<Value> {
    let text = response.text().await.unwrap();
    text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
}

async fn chat_events(worker: &Worker, include_usage: bool) -> Vec<Value> {
    let options = json!({"stream": true, "stream_options": {"include_usage": include_usage}, "max_tokens": 4});
    events(post(worker, "/v1/chat/completions", &chat(&options)).await).await
}

#[tokio::test]
async fn a_response_is_plain_or_streams_in_the_sequence_of_openai() {
    let worker = Worker::start(Config { cached_share: 0.5, ..fast() }).await.unwrap();
    let ask = |stream: bool| json!({"model": "tiny", "input": "Which way does it flow?", "max_output_tokens": 2, "stream": stream});
    let usage = json!({
        "input_tokens": 6, "input_tokens_details": {"cached_tokens": 3}, "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 8,
    });
    let plain: Value = post(&worker, "/v1/responses", &ask(false)).await.json().await.unwrap();
    assert_eq!(
        (&plain["object"], &plain["status"], &plain["usage"]),
        (&json!("response"), &json!("completed"), &usage)
    );
    assert_eq!(plain["output"][0]["content"][0]["text"], " the slow");
    let events = events(post(&worker, "/v1/responses", &ask(true)).await).await;
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds, expected);
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    assert_eq!((&events[0]["response"]["usage"], &events[9]["response"]["usage"]), (&Value::Null, &usage));
    assert_eq!((&events[4]["delta"], &events[6]["text"]), (&json!(" the"), &json!(" the slow")));
}

#[tokio::test]
async fn embeddings_answer_every_input_and_cost_their_prompts() {
    let worker = Worker::start(fast()).await.unwrap();
    let body = json!({"model": "tiny", "input": ["one", "and two"]});
    let answer: Value = post(&worker, "/v1/embeddings", &body).await.json().await.unwrap();
    assert_eq!((answer["data"].as_array().unwrap().len(), &answer["data"][1]["index"]), (2, &json!(1)));
    assert_eq!(answer["usage"], json!({"prompt_tokens": 3, "total_tokens": 3}));
}

#[tokio::test]
async fn what_was_cached_is_told_in_the_words_of_each_api() {
    let worker = Worker::start(Config { cached_share: 0.5, ..fast() }).await.unwrap();
    let plain: Value = post(&worker, "/v1/chat/completions", &chat(&json!({}))).await.json().await.unwrap();
    assert_eq!(plain["usage"]["prompt_tokens_details"], json!({"cached_tokens": 3}));
    let streamed = chat_events(&worker, true).await;
    assert_eq!(streamed.last().unwrap()["usage"]["prompt_tokens_details"], json!({"cached_tokens": 3}));
    let message: Value = post(&worker, "/v1/messages", &chat(&json!({"max_tokens": 2}))).await.json().await.unwrap();
    let expected = json!({
        "input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3, "output_tokens": 2,
    });
    assert_eq!(message["usage"], expected);
}

#[tokio::test]
async fn usage_goes_wrong_as_its_faults_say() {
    let worker = Worker::start(fast()).await.unwrap();
    let right = json!({"prompt_tokens": 6, "total_tokens": 10, "completion_tokens": 4});
    let absurd = json!({"prompt_tokens": -1, "total_tokens": 1e18, "completion_tokens": 1e18});
    for (fault, told) in [
        (Fault::NoUsage, vec![]),
        (Fault::NullUsage, vec![Value::Null]),
        (Fault::AbsurdUsage, vec![absurd]),
        (Fault::NullsBetween, [vec![Value::Null; 5], vec![right.clone()]].concat()),
    ] {
        worker.set_faults([fault]);
        let events = chat_events(&worker, true).await;
        let usage: Vec<Value> = events.iter().filter_map(|event| event.get("usage").cloned()).collect();
        assert_eq!(usage, told, "{fault:?}");
    }
    worker.set_faults([Fault::RepeatedUsage]);
    let of_two = chat(&json!({"stream": true, "n": 2, "max_tokens": 4}));
    let of_two = events(post(&worker, "/v1/chat/completions", &of_two).await).await;
    let events = chat_events(&worker, true).await;
    let so_far: Vec<u64> = events.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert_eq!(so_far, [1, 1, 2, 3, 4, 4, 4], "the role, four tokens, and the report twice");
    assert!(!chat_events(&worker, false).await.iter().any(|event| event["choices"] == json!([])));
    let told = of_two.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap());
    assert_eq!(told.max(), Some(4), "a chunk tells of its own answer alone");
}

#[tokio::test]
async fn a_truncated_stream_breaks_off_after_half_of_its_tokens() {
    let worker = Worker::start(fast()).await.unwrap();
    worker.set_faults([Fault::Truncate]);
    let body = chat(&json!({"stream": true, "max_tokens": 6}));
    let mut answer = post(&worker, "/v1/chat/completions", &body).await;
    let mut read = Vec::new();
    let broken = loop {
        match answer.chunk().await {
            Ok(Some(bytes)) => read.extend(bytes),
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    let text = String::from_utf8(read).unwrap();
    assert!(broken && !text.contains("[DONE]"), "{text}");
    assert_eq!(text.matches("\"content\":\" ").count(), 3, "{text}");
}
