//! A view as the first release read it: any field that is not here made it refuse the document.

#![allow(dead_code, reason = "only which fields are read matters")]

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    epoch: u64,
    generation: u64,
    base: Option<u64>,
    pools: BTreeMap<String, Pool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pool {
    admitted: Option<Admitted>,
    saturation: Option<f64>,
    dispatch_budget: Option<f64>,
    workers: Vec<Worker>,
    removed: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Admitted {
    requests: u64,
    blocks: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Worker {
    address: String,
    state: String,
    scraped_ms_ago: u64,
    cause: Option<String>,
    busy: bool,
    role: Option<String>,
    ranks: Option<Vec<Rank>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rank {
    rank: Option<u32>,
    kv_used_blocks: Option<u64>,
    kv_total_blocks: Option<u64>,
    kv_used_share: Option<f64>,
    active_decode_blocks: Option<u64>,
    running: Option<u64>,
    waiting: Option<u64>,
    prefill_tokens: Option<u64>,
}

/// True when the first release takes this for a view.
pub fn reads(body: &Value) -> bool {
    Document::deserialize(body).is_ok()
}
