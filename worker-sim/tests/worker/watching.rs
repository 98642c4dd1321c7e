//! What a worker shows of itself: statistics, the metrics page, clients that leave, faults.

use std::time::Duration;

use crate::common::{chat, fast, get_text, post, slow, until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use worker_sim::{Arrivals, Config, Fault, Stats, Worker};

/// Sends a request over a connection of its own, to be dropped at will.
async fn open(worker: &Worker, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = open_with_length(worker, body.len()).await;
    stream.write_all(body.as_bytes()).await.unwrap();
    stream
}

async fn open_with_length(worker: &Worker, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(worker.address()).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: sim\r\nx-lane: batch\r\nx-lane: slow\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn a_client_that_leaves_is_aborted_in_every_phase() {
    let worker = Worker::start(Config { max_num_seqs: 1, max_num_batched_tokens: 8, ..slow() }).await.unwrap();
    for stream in [false, true] {
        let short = chat(&json!({"stream": stream, "max_tokens": 1000}));
        let long = chat(&json!({"stream": stream, "messages": [{"content": "x".repeat(4000)}]}));
        let aborted = worker.stats().aborted;
        // Its prompt takes 125 steps of 50 ms, so it stays in prefill.
        let prefilling = open(&worker, &long).await;
        until(&worker, |stats| stats.running == 1).await;
        let waiting = open(&worker, &short).await;
        until(&worker, |stats| stats.waiting == 1).await;
        drop(waiting);
        let stats = until(&worker, |stats| stats.waiting == 0).await;
        assert_eq!((stats.running, stats.aborted, stats.in_server), (1, aborted + 1, 1), "waiting");
        drop(prefilling);
        let stats = until(&worker, |stats| stats.running == 0).await;
        assert_eq!(stats.aborted, aborted + 2, "prefill");
        let mut decoding = open(&worker, &short).await;
        until(&worker, |stats| stats.running == 1).await;
        if stream {
            let mut seen = Vec::new();
            while !String::from_utf8_lossy(&seen).contains("content\":\" the") {
                assert!(decoding.read_buf(&mut seen).await.unwrap() > 0);
            }
        }
        drop(decoding);
        let stats = until(&worker, |stats| stats.running == 0 && stats.in_server == 0).await;
        assert_eq!(stats.aborted, aborted + 3, "decode");
    }
    let page = get_text(&worker, "/metrics").await;
    assert!(page.contains("vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.0\n"), "{page}");
    assert!(
        page.contains("vllm:request_success_total{engine=\"0\",finished_reason=\"abort\",model_name=\"tiny\"} 6.0\n")
    );
}

#[tokio::test]
async fn a_request_is_received_with_its_headers_and_inside_with_its_body() {
    let worker = Worker::start(slow()).await.unwrap();
    let body = chat(&json!({"max_tokens": 1000})).to_string();
    let mut stream = open_with_length(&worker, body.len()).await;
    stream.write_all(&body.as_bytes()[..10]).await.unwrap();
    let stats = until(&worker, |stats| stats.received == 1).await;
    assert_eq!((stats.requests, stats.in_server, stats.peak_in_server), (0, 0, 0));
    assert_eq!(stats.last_headers["x-lane"], "batch, slow");
    stream.write_all(&body.as_bytes()[10..]).await.unwrap();
    until(&worker, |stats| stats.in_server == 1 && stats.running == 1).await;
    drop(stream);
    let stats = until(&worker, |stats| stats.in_server == 0).await;
    assert_eq!((stats.received, stats.requests, stats.peak_in_server, stats.aborted), (1, 1, 1, 1));
}

#[tokio::test]
async fn the_statistics_are_a_page_too() {
    let worker = Worker::start(fast()).await.unwrap();
    post(&worker, "/v1/chat/completions", &chat(&json!({"max_tokens": 2}))).await;
    let page: Stats = serde_json::from_str(&get_text(&worker, "/sim/stats").await).unwrap();
    assert_eq!(page, worker.stats());
    assert_eq!((page.requests, page.finished, page.peak_running), (1, 1, 1));
}

#[tokio::test]
async fn the_order_of_arrival_is_a_page_that_can_be_begun_anew() {
    let worker = Worker::start(fast()).await.unwrap();
    let client = reqwest::Client::new();
    for (id, lane) in [("b", "batch"), ("a", "interactive")] {
        let request = client.post(format!("{}/v1/chat/completions", worker.url())).header("x-client-request-id", id);
        let request = request.header("x-sluice-tenant", "acme").header("x-sluice-lane", lane);
        let request = request.header("x-sluice-prompt-tokens", "30").header("x-sluice-output-tokens", "12");
        request.json(&chat(&json!({"max_tokens": 1}))).send().await.unwrap();
    }
    let page: Arrivals = serde_json::from_str(&get_text(&worker, "/sim/arrivals").await).unwrap();
    assert_eq!(page.requests, worker.arrivals().requests);
    let listed: Vec<_> = page.requests.iter().map(|arrival| (arrival.id.as_deref(), arrival.lane.as_deref())).collect();
    assert_eq!(listed, [(Some("b"), Some("batch")), (Some("a"), Some("interactive"))]);
    assert!(page.requests[0].left_ms.is_some_and(|left| left <= page.requests[1].came_ms), "{page:?}");
    assert_eq!((page.requests[0].tenant.as_deref(), page.requests[0].tokens), (Some("acme"), Some(42)));
    assert_eq!(client.delete(format!("{}/sim/arrivals", worker.url())).send().await.unwrap().status(), 200);
    let page = worker.arrivals();
    assert_eq!((page.requests.len(), page.forgotten), (0, 2));
}

#[tokio::test]
async fn the_metrics_page_follows_the_engines() {
    let config = Config { data_parallel_size: 2, max_num_seqs: 1, num_gpu_blocks: 11, ..slow() };
    let worker = Worker::start(config).await.unwrap();
    let body = json!({"prompt": [1, 2, 3], "n": 3, "max_tokens": 100, "stream": true});
    let mut streams = post(&worker, "/v1/completions", &body).await;
    until(&worker, |stats| (stats.running, stats.waiting) == (2, 1)).await;
    streams.chunk().await.unwrap();
    let page = get_text(&worker, "/metrics").await;
    for line in [
        "vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 1.0",
        "vllm:num_requests_running{engine=\"1\",model_name=\"tiny\"} 1.0",
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 1.0",
        "vllm:num_requests_waiting{engine=\"1\",model_name=\"tiny\"} 0.0",
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.1",
        "vllm:prompt_tokens_total{engine=\"0\",model_name=\"tiny\"} 3.0",
        "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"tiny\"} 1.0",
        "vllm:request_prompt_tokens_count{engine=\"0\",model_name=\"tiny\"} 0.0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
}

#[tokio::test]
async fn refuse503_answers_in_the_shape_of_vllm_until_cleared() {
    let worker = Worker::start(Config { faults: vec![Fault::Refuse503], ..fast() }).await.unwrap();
    let body = chat(&json!({"max_tokens": 1}));
    let response = post(&worker, "/v1/chat/completions", &body).await;
    assert_eq!(response.status(), 503);
    let error: Value = response.json().await.unwrap();
    assert_eq!((&error["error"]["type"], &error["error"]["code"]), (&json!("ServiceUnavailableError"), &json!(503)));
    let cleared = post(&worker, "/sim/faults", &json!({"faults": []})).await;
    assert_eq!(cleared.json::<Value>().await.unwrap(), json!({"faults": []}));
    assert_eq!(post(&worker, "/v1/chat/completions", &body).await.status(), 200);
    assert_eq!(post(&worker, "/sim/faults", &json!({"faults": ["nonsense"]})).await.status(), 400);
}

#[tokio::test]
async fn a_hung_request_is_never_answered_and_ends_with_its_client() {
    let worker = Worker::start(fast()).await.unwrap();
    assert_eq!(post(&worker, "/sim/faults", &json!({"faults": ["hang"]})).await.status(), 200);
    let stream = open(&worker, &chat(&json!({"max_tokens": 1}))).await;
    let stats = until(&worker, |stats| stats.in_server == 1).await;
    assert_eq!((stats.running, stats.waiting), (0, 0));
    drop(stream);
    let stats = until(&worker, |stats| stats.in_server == 0).await;
    assert_eq!((stats.aborted, stats.finished), (1, 0));
}

#[tokio::test]
async fn some_series_can_be_asked_for_below_the_metrics_page() {
    let worker = Worker::start(Config::default()).await.unwrap();
    let names = "name[]=vllm:num_requests_running&name[]=vllm:request_prompt_tokens_sum";
    let lines = |page: String| page.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(lines(get_text(&worker, &format!("/metrics/?{names}")).await), 2);
    let whole = lines(get_text(&worker, "/metrics/").await);
    assert!(whole > 50);
    assert_eq!(lines(get_text(&worker, &format!("/metrics?{names}")).await), whole, "as vLLM does");
}

#[tokio::test]
async fn the_metrics_page_can_be_garbage_or_never_come() {
    let worker = Worker::start(Config { faults: vec![Fault::GarbageMetrics], ..fast() }).await.unwrap();
    let page = reqwest::get(format!("{}/metrics", worker.url())).await.unwrap().bytes().await.unwrap();
    assert!(page.len() > 1 << 20 && std::str::from_utf8(&page).is_err());
    worker.set_faults([Fault::HangMetrics]);
    let scrape = reqwest::get(format!("{}/metrics", worker.url()));
    assert!(tokio::time::timeout(Duration::from_millis(50), scrape).await.is_err());
    assert_eq!(get_text(&worker, "/health").await, "", "only the metrics hang");
}
