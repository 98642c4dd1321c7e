//! Requests that stand in line inside the proxy, and the order in which the worker gets them.

use serde_json::json;

use crate::caller::{CHAT, RawCaller, chat, request_bytes};
use crate::rig::{MODEL, Rig, Setup, Wait, eventually};

/// Three lanes with queues over a pool of one request at a time, and a worker whose streams last.
#[must_use]
pub fn queues(threads: u32, wait: Wait) -> Setup {
    let queue = json!({"max_requests": 16, "max_wait": "60s"});
    let lanes = json!([
        {"name": "interactive", "priority": 100, "queue": queue},
        {"name": "standard", "queue": queue},
        {"name": "batch", "priority": -10, "ceiling": 9.0, "preemptible": true, "queue": queue},
    ]);
    let setup = Setup::new(threads, wait).with("/lanes", lanes).with("/pools/0/max_in_flight", json!(1));
    setup.with("/default_lane", json!("standard")).patient()
}

/// Sends a request that is told apart by its number, on a connection of its own.
pub async fn send(rig: &Rig, tenant: &str, lane: &str, number: usize) -> RawCaller {
    send_more(rig, tenant, lane, number, &[], "Say something, please.").await
}

/// The same with more headers and another prompt.
pub async fn send_more(
    rig: &Rig,
    tenant: &str,
    lane: &str,
    number: usize,
    more: &[(&str, &str)],
    prompt: &str,
) -> RawCaller {
    let number = number.to_string();
    let mut headers = vec![
        ("x-tenant-id", tenant.as_bytes()),
        ("x-sluice-lane", lane.as_bytes()),
        ("x-client-request-id", number.as_bytes()),
    ];
    headers.extend(more.iter().map(|(name, value)| (*name, value.as_bytes())));
    let mut body = chat(MODEL, 1, false);
    body["messages"][0]["content"] = json!(prompt);
    RawCaller::send(rig.address, &request_bytes(CHAT, &headers, body.to_string().as_bytes(), true)).await
}

/// Waits until so many stand in line.
pub async fn waiting(rig: &Rig, count: u64) {
    eventually("so many wait", async || {
        let state = rig.state().await["pools"]["main"]["waiting"].clone();
        let lanes = state.as_object().cloned().unwrap_or_default();
        let all: u64 = lanes.values().filter_map(|lane| lane["requests"].as_u64()).sum();
        (all == count).then_some(()).ok_or(format!("{state}, not {count}"))
    })
    .await;
}

/// The numbers of the requests in the order in which they reached the worker.
#[must_use]
pub fn order(rig: &Rig) -> Vec<String> {
    let arrivals = rig.worker.arrivals().requests.into_iter();
    arrivals.filter_map(|arrival| arrival.id).collect()
}
