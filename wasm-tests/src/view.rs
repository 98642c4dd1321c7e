//! What a sidecar would say of workers.

use std::net::SocketAddr;

use serde_json::{Value, json};

/// A worker that is up, free and has so many requests running.
#[must_use]
pub fn free(address: SocketAddr, running: u64) -> Value {
    reported(address, "up", false, running)
}

/// A worker that is up and busy, although nothing runs on it.
#[must_use]
pub fn busy(address: SocketAddr) -> Value {
    reported(address, "up", true, 0)
}

/// A worker that is up or not, and whose numbers look free and idle.
#[must_use]
pub fn idle(address: SocketAddr, state: &str) -> Value {
    reported(address, state, false, 0)
}

fn reported(address: SocketAddr, state: &str, busy: bool, running: u64) -> Value {
    let rank = json!({"rank": 0, "kv_used_blocks": 0, "kv_total_blocks": 4_095, "running": running});
    json!({"address": address.to_string(), "state": state, "scraped_ms_ago": 3, "busy": busy, "ranks": [rank]})
}
