//! Answers over a socket: streamed, plain and refused.

use crate::common::{chat, fast, get_text, post, slow, until};
use serde_json::{Value, json};
use worker_sim::{Config, StartError, Worker};

/// The payloads of a stream's events.
async fn events(response: reqwest::Response) -> Vec<String> {
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    let text = response.text().await.unwrap();
    let events: Vec<_> = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()).collect();
    events.into_iter().map(str::to_owned).collect()
}

/// An event without its id and time, which differ from run to run.
fn fixed(event: &str) -> String {
    let Ok(value) = serde_json::from_str::<Value>(event) else { return event.to_owned() };
    event
        .replace(value["id"].as_str().unwrap(), "ID")
        .replace(&format!("\"created\":{}", value["created"]), "\"created\":0")
}

#[tokio::test]
async fn a_chat_streams_in_the_sequence_of_vllm() {
    let worker = Worker::start(fast()).await.unwrap();
    let body = chat(&json!({"stream": true, "stream_options": {"include_usage": true}, "max_tokens": 3}));
    let events = events(post(&worker, "/v1/chat/completions", &body).await).await;
    let head = r#"{"id":"ID","object":"chat.completion.chunk","created":0,"model":"tiny","choices":["#;
    let token = |content: &str, finish: &str| {
        let delta =
            format!(r#"{{"index":0,"delta":{{"content":"{content}"}},"logprobs":null,"finish_reason":{finish},"#);
        format!(r#"{head}{delta}"token_ids":null}}]}}"#)
    };
    let expected = [
        format!(
            r#"{head}{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],"prompt_token_ids":null,"prompt_text":null}}"#
        ),
        token(" the", "null"),
        token(" slow", "null"),
        token(" water", r#""length","stop_reason":null"#),
        format!(
            r#"{head}],"usage":{{"prompt_tokens":6,"total_tokens":9,"completion_tokens":3}},"system_fingerprint":"worker-sim"}}"#
        ),
        "[DONE]".to_owned(),
    ];
    assert_eq!(events.iter().map(|event| fixed(event)).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn usage_is_streamed_only_when_asked_for() {
    let worker = Worker::start(fast()).await.unwrap();
    let events = events(post(&worker, "/v1/chat/completions", &chat(&json!({"stream": true}))).await).await;
    assert_eq!(events.len(), 1 + 128 + 1);
    assert!(!events.iter().any(|event| event.contains("usage")));
}

#[tokio::test]
async fn completions_stream_text_without_a_role() {
    let worker = Worker::start(fast()).await.unwrap();
    let body = json!({"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 2, "stream": true});
    let events = events(post(&worker, "/v1/completions", &body).await).await;
    let texts: Vec<Value> = events[..2].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert_eq!((&texts[0]["choices"][0]["text"], &texts[0]["object"]), (&json!(" the"), &json!("text_completion")));
    assert_eq!(texts[1]["choices"][0]["finish_reason"], "length");
    assert_eq!(events[2..], ["[DONE]"]);
}

#[tokio::test]
async fn a_plain_chat_has_message_and_usage() {
    let worker = Worker::start(fast()).await.unwrap();
    let response = post(&worker, "/v1/chat/completions", &chat(&json!({"max_completion_tokens": 4}))).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (200, &"application/json".parse().unwrap())
    );
    let answer = fixed(&response.text().await.unwrap());
    let expected = concat!(
        r#"{"id":"ID","object":"chat.completion","created":0,"model":"tiny","choices":[{"index":0,"message":"#,
        r#"{"role":"assistant","content":" the slow water finds","refusal":null,"annotations":null,"audio":null,"#,
        r#""function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"#,
        r#""token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"worker-sim","usage":"#,
        r#"{"prompt_tokens":6,"total_tokens":10,"completion_tokens":4,"prompt_tokens_details":null,"#,
        r#""completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"#,
        r#""kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#,
    );
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn n_and_several_prompts_are_choices_of_one_answer() {
    let worker = Worker::start(fast()).await.unwrap();
    let body = json!({"prompt": ["one", "and two"], "n": 2, "max_tokens": 2});
    let answer: Value = post(&worker, "/v1/completions", &body).await.json().await.unwrap();
    let indices: Vec<_> = answer["choices"].as_array().unwrap().iter().map(|choice| choice["index"].clone()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(3), &json!(8)));
}

#[tokio::test]
async fn refusals_are_as_vllm_words_them() {
    let worker = Worker::start(Config { num_gpu_blocks: 64, ..fast() }).await.unwrap();
    let cases = [
        (
            chat(&json!({"messages": [{"content": "x".repeat(4 * 2049)}]})),
            400,
            json!({"message": "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=2049)", "type": "BadRequestError", "param": "input_tokens", "code": 400}),
        ),
        (
            chat(&json!({"max_tokens": 5000})),
            400,
            json!({"message": "max_tokens=5000 cannot be greater than max_model_len=2048. Please request fewer output tokens. (parameter=max_tokens, value=5000)", "type": "BadRequestError", "param": "max_tokens", "code": 400}),
        ),
        (
            chat(&json!({"model": "other"})),
            404,
            json!({"message": "The model `other` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}),
        ),
        (
            chat(&json!({"max_tokens": 2000})),
            400,
            json!({"message": "The request needs 126 KV cache blocks at its end, but the worker has only 63.", "type": "BadRequestError", "param": "input_tokens", "code": 400}),
        ),
    ];
    for (body, status, error) in cases {
        let response = post(&worker, "/v1/chat/completions", &body).await;
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(response.json::<Value>().await.unwrap(), json!({"error": error}));
    }
    let malformed = reqwest::Client::new().post(format!("{}/v1/chat/completions", worker.url())).body("{\"messages\":");
    let response = malformed.send().await.unwrap();
    assert_eq!(response.status(), 400);
    assert_eq!(response.json::<Value>().await.unwrap()["error"]["type"], "BadRequestError");
    assert_eq!((worker.stats().requests, worker.stats().in_server, worker.stats().finished), (5, 0, 0));
}

#[tokio::test]
async fn models_and_health_answer() {
    let worker = Worker::start(fast()).await.unwrap();
    let models: Value = serde_json::from_str(&get_text(&worker, "/v1/models").await).unwrap();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("tiny"), &json!(2048)));
    assert_eq!(get_text(&worker, "/health").await, "");
}

#[tokio::test]
async fn pressure_on_the_blocks_preempts_and_everything_ends() {
    let worker = Worker::start(Config { num_gpu_blocks: 8, max_num_seqs: 4, ..fast() }).await.unwrap();
    let body = json!({"prompt": [0, 1, 2, 3], "n": 8, "max_tokens": 60});
    let answer: Value = post(&worker, "/v1/completions", &body).await.json().await.unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 480);
    let stats = worker.stats();
    assert!(stats.preemptions > 0 && stats.peak_running <= 4, "{stats:?}");
    assert_eq!((stats.finished, stats.running, stats.waiting), (8, 0, 0));
}

#[tokio::test]
async fn who_follows_the_end_of_an_answer_never_meets_it_inside() {
    let worker = Worker::start(fast()).await.unwrap();
    for round in 0..50 {
        let body = chat(&json!({"stream": round % 2 == 0, "max_tokens": 1}));
        post(&worker, "/v1/chat/completions", &body).await.bytes().await.unwrap();
    }
    assert_eq!((worker.stats().requests, worker.stats().peak_in_server), (50, 1));
}

#[tokio::test]
async fn a_stop_ends_streams_and_frees_the_port_at_once() {
    let worker = Worker::start(slow()).await.unwrap();
    let response = post(&worker, "/v1/chat/completions", &chat(&json!({"stream": true, "max_tokens": 1000}))).await;
    until(&worker, |stats| stats.running == 1).await;
    let address = worker.address();
    let arrivals = worker.stop().await.requests;
    assert!(arrivals.len() == 1 && arrivals[0].left_ms.is_some(), "{arrivals:?}");
    assert!(response.bytes().await.is_err(), "the stream is cut");
    std::net::TcpListener::bind(address).unwrap();
}

#[tokio::test]
async fn bad_settings_do_not_start() {
    let refused = Worker::start(Config { block_size: 0, ..fast() }).await;
    assert!(matches!(refused, Err(StartError::Config(error)) if error.flag == "--block-size"));
}

#[tokio::test]
async fn a_message_is_plain_or_streams_in_the_sequence_of_vllm() {
    let worker = Worker::start(fast()).await.unwrap();
    let plain = post(&worker, "/v1/messages", &chat(&json!({"max_tokens": 2}))).await.json::<Value>().await.unwrap();
    let expected = json!({
        "id": "chatcmpl-0000000000000000", "type": "message", "role": "assistant", "model": "tiny",
        "content": [{"type": "text", "text": " the slow"}], "stop_reason": "max_tokens",
        "usage": {"input_tokens": 6, "output_tokens": 2},
    });
    assert_eq!(plain, expected);
    let stream = post(&worker, "/v1/messages", &chat(&json!({"max_tokens": 2, "stream": true}))).await;
    let text = stream.text().await.unwrap();
    let events: Vec<(&str, Value)> = text.split_terminator("\n\n").map(named_event).collect();
    let begun = json!({
        "id": "chatcmpl-0000000000000001", "content": [], "model": "tiny", "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": 6, "output_tokens": 1},
    });
    let token = |text| json!({"index": 0, "delta": {"type": "text_delta", "text": text}});
    let stopped = json!({"delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 2}});
    let expected = [
        ("message_start", json!({"message": begun})),
        ("content_block_start", json!({"index": 0, "content_block": {"type": "text", "text": ""}})),
        ("content_block_delta", token(" the")),
        ("content_block_delta", token(" slow")),
        ("content_block_stop", json!({"index": 0})),
        ("message_delta", stopped),
        ("message_stop", json!({})),
    ];
    assert_eq!(events, expected);
    assert_eq!(worker.stats().in_server, 0);
}

/// An event's name and payload, which must name itself likewise.
fn named_event(event: &str) -> (&str, Value) {
    let (name, data) = event.split_once("\ndata: ").unwrap();
    let (name, mut data) = (name.strip_prefix("event: ").unwrap(), serde_json::from_str::<Value>(data).unwrap());
    assert_eq!(data.as_object_mut().unwrap().remove("type").unwrap(), name);
    (name, data)
}

#[tokio::test]
async fn refusals_of_messages_have_their_own_shape() {
    let worker = Worker::start(fast()).await.unwrap();
    let response = post(&worker, "/v1/messages", &chat(&json!({"model": "other", "max_tokens": 1}))).await;
    assert_eq!(response.status(), 404);
    let error = json!({"type": "NotFoundError", "message": "The model `other` does not exist."});
    assert_eq!(response.json::<Value>().await.unwrap(), json!({"type": "error", "error": error}));
}
