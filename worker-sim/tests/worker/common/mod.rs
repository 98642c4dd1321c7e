//! What the tests over a socket share.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use worker_sim::{Config, Stats, Worker};

/// Longest wait for a condition; far above what any takes.
const DEADLINE: Duration = Duration::from_secs(10);

/// A worker a hundred times as fast as the default one.
pub fn fast() -> Config {
    Config { model: "tiny".to_owned(), speed: 100.0, max_model_len: 2048, ..Config::default() }
}

/// A worker whose sequences do not end within a test.
pub fn slow() -> Config {
    Config { base_ms: 50.0, speed: 1.0, ..fast() }
}

pub fn chat(more: &Value) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "Which way does it flow?"}]});
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body
}

pub async fn post(worker: &Worker, path: &str, body: &Value) -> reqwest::Response {
    reqwest::Client::new().post(format!("{}{path}", worker.url())).json(body).send().await.unwrap()
}

pub async fn get_text(worker: &Worker, path: &str) -> String {
    reqwest::get(format!("{}{path}", worker.url())).await.unwrap().text().await.unwrap()
}

/// Waits until the statistics meet a condition, and returns them.
pub async fn until(worker: &Worker, condition: impl Fn(&Stats) -> bool) -> Stats {
    let start = Instant::now();
    loop {
        let stats = worker.stats();
        if condition(&stats) {
            return stats;
        }
        assert!(start.elapsed() < DEADLINE, "in vain waited for a condition: {stats:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
