//! A real sidecar.

use std::net::SocketAddr;

use host_sidecar::{Config, Sidecar};
use serde_json::{Value, json};

/// Starts a sidecar that reads one worker into the pool `main`, quickly; `more` are fields of its configuration.
///
/// # Panics
/// When it does not start.
pub async fn start(worker: SocketAddr, more: &Value) -> Sidecar {
    let mut config = json!({
        "listen": "127.0.0.1:0",
        "scrape": {"interval": "20ms", "timeout": "5s", "down_after": "5s"},
        "push": {"heartbeat": "200ms", "timeout": "5s"},
        "pools": [{"name": "main", "workers": [worker.to_string()]}],
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        config[field] = value.clone();
    }
    Sidecar::start(Config::from_value(config).expect("a configuration")).await.expect("start the sidecar")
}

/// Status of a page of the sidecar, and what it holds.
///
/// # Panics
/// When the page cannot be had.
pub async fn page(sidecar: &Sidecar, path: &str) -> (u16, String) {
    let client = testkit::envoy::direct_client().expect("a client");
    let answer = client.get(format!("http://{}{path}", sidecar.address())).send().await.expect("the page");
    (answer.status().as_u16(), answer.text().await.expect("the page"))
}

/// Value of a sample on the sidecar's metrics page; 0 while there is none.
///
/// # Panics
/// When the page cannot be had.
pub async fn metric(sidecar: &Sidecar, sample: &str) -> f64 {
    let (_, page) = page(sidecar, "/metrics").await;
    let found = page.lines().find_map(|line| line.strip_prefix(sample)?.trim().parse().ok());
    found.unwrap_or(0.0)
}
