//! The calls to the proxy that the filter makes for a request that it admits and settles, with values of the same size and
//! nothing worked out: what they cost is the least that any filter can add that shares its counts and says what it did.

use std::hint::black_box;

use proxy_wasm::hostcalls;
use proxy_wasm::types::{MapType, MetricType};

/// Of a tenant and of a pool.
const RECORDS: [&str; 2] = ["floor/tenant", "floor/pool"];

/// Bytes of a record in which one worker thread holds something.
const RECORD: [u8; 250] = [7; 250];

/// Tenant, lane, priority, pool and what the request was taken for.
const TAGS: [&str; 6] = ["x-floor-a", "x-floor-b", "x-floor-c", "x-floor-d", "x-floor-e", "x-floor-f"];

/// How the tenant's budgets stand, and how long the request took.
const ANSWER_HEADERS: [&str; 9] = [
    "x-floor-answer-a",
    "x-floor-answer-b",
    "x-floor-answer-c",
    "x-floor-answer-d",
    "x-floor-answer-e",
    "x-floor-answer-f",
    "x-floor-answer-g",
    "x-floor-answer-h",
    "x-floor-answer-i",
];

/// A counter and a histogram.
#[derive(Clone, Copy)]
pub struct Metrics {
    counter: Option<u32>,
    histogram: Option<u32>,
}

impl Metrics {
    pub fn define() -> Self {
        Self {
            counter: hostcalls::define_metric(MetricType::Counter, "floor_requests").ok(),
            histogram: hostcalls::define_metric(MetricType::Histogram, "floor_tokens").ok(),
        }
    }
}

/// What the headers and the route say.
pub fn arrive() {
    black_box(hostcalls::get_map_bytes(MapType::HttpRequestHeaders).ok());
    black_box(hostcalls::get_property(vec!["xds", "route_metadata", "filter_metadata", "floor"]).ok());
}

/// Two records charged, and the worker told.
pub fn admit() {
    change_records();
    for name in TAGS {
        let _ = hostcalls::set_map_value_bytes(MapType::HttpRequestHeaders, name, Some(b"standard"));
    }
}

/// The caller told.
pub fn answer() {
    let headers = hostcalls::get_map_bytes(MapType::HttpResponseHeaders).unwrap_or_default();
    let own = ANSWER_HEADERS.map(|name| (name, b"300000000".as_slice()));
    let all = headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).chain(own).collect();
    let _ = hostcalls::set_map_bytes(MapType::HttpResponseHeaders, all);
}

/// Both records given back to, and statistics and access logs told.
pub fn settle(metrics: Metrics) {
    change_records();
    let _ = metrics.counter.map(|counter| hostcalls::increment_metric(counter, 1));
    for value in [60, 120, 3] {
        let _ = metrics.histogram.map(|histogram| hostcalls::record_metric(histogram, value));
    }
    let _ = hostcalls::set_property(
        vec!["floor.summary"],
        Some(b"estimated_prompt_tokens=60 prompt_tokens=58 output_tokens=9"),
    );
}

fn change_records() {
    for key in RECORDS {
        let version = hostcalls::get_shared_data(key).ok().and_then(|(bytes, version)| black_box(bytes).and(version));
        let _ = hostcalls::set_shared_data(key, Some(&RECORD), version);
    }
}
