//! Callers who invent who they are and what they want.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;

use http_body_util::BodyExt;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::caller::{KeptAlive, is_last};
use crate::envoy::Envoy;

/// How many ask at once, each over a connection of its own.
const AT_ONCE: u64 = 8;

/// What a proxy holds.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Bytes on its own heap, which shared data and metrics are on.
    pub heap: u64,
    /// Bytes of the process, the filter's memory included.
    pub resident: u64,
    /// Names on its metrics page.
    pub metrics: usize,
}

impl Held {
    /// Asks the proxy.
    ///
    /// # Panics
    /// When it does not say.
    pub async fn by(envoy: &Envoy) -> Self {
        let memory: Value = serde_json::from_str(&envoy.admin("/memory").await.expect("its memory")).expect("JSON");
        let heap = memory["allocated"].as_str().and_then(|bytes| bytes.parse().ok()).expect("bytes");
        let metrics = envoy.admin("/stats?filter=wasmcustom").await.expect("its metrics").lines().count();
        Self { heap, resident: envoy.resident_bytes(), metrics }
    }
}

/// Sends a request for every number: each of another tenant and for another model, of which every second fits the pattern
/// `sim*`. How many had which status, and `None` for those without an answer.
pub async fn invent(address: SocketAddr, numbers: Range<u64>) -> BTreeMap<Option<u16>, u64> {
    let mut callers = JoinSet::new();
    for caller in 0..AT_ONCE {
        callers.spawn(ask(address, (numbers.start + caller..numbers.end).step_by(AT_ONCE as usize)));
    }
    let mut all = BTreeMap::new();
    while let Some(statuses) = callers.join_next().await {
        for (status, count) in statuses.expect("a caller") {
            *all.entry(status).or_default() += count;
        }
    }
    all
}

async fn ask(address: SocketAddr, numbers: impl Iterator<Item = u64>) -> BTreeMap<Option<u16>, u64> {
    let mut statuses = BTreeMap::new();
    let mut connection = KeptAlive::open(address).await;
    for number in numbers {
        let model = if number.is_multiple_of(2) { "sim" } else { "invented" };
        let body =
            format!(r#"{{"model": "{model}-{number}", "messages": [{{"content": "Hello."}}], "max_tokens": 1}}"#);
        let answer = connection.post(&[("x-tenant-id", &format!("tenant-{number}"))], body).await.ok();
        let status = answer.as_ref().map(|answer| answer.status().as_u16());
        *statuses.entry(status).or_default() += 1;
        let closes = answer.as_ref().is_none_or(is_last);
        let ended = match answer {
            Some(answer) => answer.into_body().collect().await.is_ok(),
            None => false,
        };
        if closes || !ended {
            connection = KeptAlive::open(address).await;
        }
    }
    statuses
}
