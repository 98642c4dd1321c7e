//! What the overload benchmark plays: every number of the load, the workers and the limits.
//!
//! Workers are slow and steps nearly flat, as on a GPU that waits for its memory: a step takes 100 ms, up to 5 % more or
//! less, whatever the batch, so what a client measures is far above what a loaded machine adds. All lanes ask for four
//! prompt tokens for each one of output, so a token costs the same in every lane, and rates can be compared whatever the
//! mix. A worker runs at most 24 sequences. Its 199 usable KV blocks hold 24 of the mix that is served under overload (5
//! blocks each at their end), but not 24 of the mix that is sent, most of which is batch (9 blocks each at their end).

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use testkit::load::{Flow, Plan};

use testkit::parts::{MODEL, POOL, Stage};
use testkit::shipped;

/// Workers of the load.
pub const WORKERS: usize = 16;

/// Sequences that one of them runs at once.
pub const SEQUENCES: usize = 24;

/// Worker threads of Envoy in all measurements.
const ENVOY_THREADS: u32 = 2;

const WORKER_FLAGS: [&str; 18] = [
    "--model",
    MODEL,
    "--max-model-len",
    "2048",
    "--max-num-seqs",
    "24",
    "--num-gpu-blocks",
    "200",
    "--base-ms",
    "100",
    "--per-prefill-token-us",
    "20",
    "--per-sequence-us",
    "50",
    "--per-kv-block-us",
    "0",
    "--step-jitter",
    "0.05",
];

/// A worker that takes 5 ms for a request of one token, however many there are.
const QUICK_WORKER_FLAGS: [&str; 12] = [
    "--model",
    MODEL,
    "--base-ms",
    "5",
    "--per-prefill-token-us",
    "0",
    "--per-sequence-us",
    "0",
    "--per-kv-block-us",
    "0",
    "--max-num-seqs",
    "64",
];

/// One lane's part of the load.
struct Lane {
    name: &'static str,
    tenants: [&'static str; 2],
    /// Part of all tokens that are asked for.
    share: f64,
    /// Part of all tokens where the pool is kept full and the lanes above have all they ask for at three times the load.
    served_share: f64,
    /// Tokens of an answer, half as many or half as many again.
    tokens: u32,
    /// An answer that begins later is worth nothing: the lane's longest wait, and a second for the prompt.
    in_time: Duration,
}

const LANES: [Lane; 3] = [
    Lane {
        name: INTERACTIVE,
        tenants: ["acme", "initech"],
        share: 0.1,
        served_share: 0.3,
        tokens: 12,
        in_time: Duration::from_secs(3),
    },
    Lane {
        name: "standard",
        tenants: ["acme", "hooli"],
        share: 0.2,
        served_share: 0.6,
        tokens: 16,
        in_time: Duration::from_secs(11),
    },
    Lane {
        name: "batch",
        tenants: ["reports", "crawler"],
        share: 0.7,
        served_share: 0.1,
        tokens: 32,
        in_time: Duration::from_secs(241),
    },
];

/// The lane whose waiting matters most.
pub const INTERACTIVE: &str = "interactive";

/// Load at which the interactive lane's TTFT is compared, and the overload, in multiples of the pool's best rate.
pub const LOADS: [f64; 2] = [0.5, 3.0];

/// Prompt tokens for each token of output; workers count a token for four bytes.
const PROMPT_PER_OUTPUT: u32 = 4;

/// The load for the throughput stage.
pub const THROUGHPUT: Stage = Stage {
    workers: WORKERS,
    worker_flags: &WORKER_FLAGS,
    envoy_threads: ENVOY_THREADS,
    policy: |policy| {
        let each = SEQUENCES as u64;
        let most = json!({"max_in_flight": each * WORKERS as u64, "max_in_flight_per_worker": each});
        adapt(policy, three_lanes(), &most)
    },
    bootstrap: |_| Ok(()),
};

/// Places of the pool in which a part is kept for one lane, and the share of it.
const KEPT: (u64, f64) = (SEQUENCES as u64, 0.2);

/// One worker, a fifth of which is kept for the interactive lane.
pub const RESERVE: Stage = Stage {
    workers: 1,
    worker_flags: &WORKER_FLAGS,
    envoy_threads: ENVOY_THREADS,
    policy: |policy| {
        let (places, share) = KEPT;
        let mut lanes = three_lanes();
        lanes[0]["reserve"] = json!({"share": share, "lend": false});
        adapt(policy, lanes, &json!({"max_in_flight": places}))
    },
    bootstrap: |_| Ok(()),
};

/// The interactive lane within what is kept for it: three requests a second of half a second each before five places; with `flood`, beside
/// batch work that asks for three times the pool.
pub fn kept(flood: bool, pace: Pace) -> Plan {
    let plan = plan(1.0, pace, |_| 1.0);
    let flows = plan.flows.into_iter().filter_map(|flow| match flow.name.as_str() {
        INTERACTIVE => Some(Flow { rate_per_s: 3.0, max_tokens: (2..=6).into(), ..flow }),
        "batch" if flood => Some(Flow { rate_per_s: 22.0, ..flow }),
        _ => None,
    });
    Plan { flows: flows.collect(), ..plan }
}

/// One place, for which waiters on both threads of the proxy take turns.
pub const WAKE: Stage = Stage {
    workers: 1,
    worker_flags: &QUICK_WORKER_FLAGS,
    envoy_threads: ENVOY_THREADS,
    policy: |policy| adapt(policy, one_lane(100), &json!({"max_in_flight": 1})),
    bootstrap: |_| Ok(()),
};

/// Connections that wait for it.
pub const WAKE_CALLERS: usize = 8;

/// Requests at once in the stage of the long queue.
pub const QUEUE_PLACES: usize = 4;

/// Waiters of the short and the long queue.
pub const QUEUES: [usize; 2] = [10, 10_000];

/// Tenants that they belong to.
pub const QUEUE_TENANTS: usize = 100;

/// Few places and a long queue. Without the filter, the proxy's own queue of requests without a connection stands in.
pub const LONG_QUEUE: Stage = Stage {
    workers: 1,
    worker_flags: &QUICK_WORKER_FLAGS,
    envoy_threads: ENVOY_THREADS,
    policy: |policy| adapt(policy, one_lane(20_000), &json!({"max_in_flight": QUEUE_PLACES})),
    bootstrap: queue_in_proxy,
};

/// How long each part of the benchmark takes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Of each load.
    pub warm_up: Duration,
    pub window: Duration,
    /// How long answers are waited for then.
    pub drain: Duration,
    /// Dispatches after a wait.
    pub wakes: usize,
    /// Over which the proxy's CPU time is taken.
    pub queue_window: Duration,
}

impl Pace {
    /// The usual one, or one that is enough to see that everything works.
    pub fn new(quick: bool) -> Self {
        let seconds = Duration::from_secs;
        if quick {
            return Self {
                warm_up: seconds(4),
                window: seconds(6),
                drain: seconds(4),
                wakes: 300,
                queue_window: seconds(3),
            };
        }
        Self { warm_up: seconds(6), window: seconds(20), drain: seconds(6), wakes: 2_000, queue_window: seconds(8) }
    }
}

/// So many tokens a second, asked for by all lanes.
pub fn load(tokens_per_s: f64, pace: Pace) -> Plan {
    plan(tokens_per_s, pace, |lane| lane.share)
}

/// The mix that is served under overload, more of it than any pool can do.
pub fn saturating(pace: Pace) -> Plan {
    plan(100_000.0, pace, |lane| lane.served_share)
}

fn plan(tokens_per_s: f64, pace: Pace, share: fn(&Lane) -> f64) -> Plan {
    let flow = |lane: &Lane| {
        let prompt = PROMPT_PER_OUTPUT * lane.tokens;
        Flow {
            name: lane.name.into(),
            tenants: lane.tenants.map(str::to_owned).into(),
            rate_per_s: tokens_per_s * share(lane) / f64::from(lane.tokens),
            burst: 1,
            // Four bytes a token, half as many or half as many again.
            prompt_bytes: (prompt * 2..=prompt * 6).into(),
            max_tokens: (lane.tokens / 2..=lane.tokens * 3 / 2).into(),
            lane: Some(("x-sluice-lane".into(), lane.name.into())),
            in_time: Some(lane.in_time),
            leaves: None,
        }
    };
    Plan {
        seed: 20,
        warm_up: pace.warm_up,
        duration: pace.warm_up + pace.window,
        drain: pace.drain,
        max_requests: 100_000,
        model: MODEL.into(),
        flows: LANES.iter().map(flow).collect(),
    }
}

/// A request of one token.
pub fn small_request() -> String {
    let message = json!({"role": "user", "content": "Say something."});
    json!({"model": MODEL, "messages": [message], "max_tokens": 1}).to_string()
}

fn three_lanes() -> Value {
    json!([
        {"name": "interactive", "priority": 100, "reserve": {"share": 0.125}, "queue": {"max_requests": 64, "max_wait": "2s"}},
        {"name": "standard", "priority": 0, "queue": {"max_requests": 128, "max_wait": "10s"}},
        {
            "name": "batch", "priority": -10, "aging": {"after": "120s", "to": "standard"},
            "queue": {"max_requests": 512, "max_wait": "240s"},
        },
    ])
}

fn one_lane(max_requests: usize) -> Value {
    json!([{"name": "standard", "queue": {"max_requests": max_requests, "max_wait": "10m"}}])
}

/// Changes the shipped policy to these lanes and this pool, with tenants that nothing else limits.
fn adapt(policy: &mut Value, lanes: Value, most: &Value) -> Result<()> {
    policy["tiers"] = json!({});
    policy["tenants"] = json!({});
    policy["lanes"] = lanes;
    policy["default_lane"] = "standard".into();
    let pool = policy.pointer_mut("/pools/0").context("the shipped policy has no pool")?;
    pool.as_object_mut().context("the pool is no object")?.remove("max_in_flight_per_worker");
    // What is decided by its headers alone is charged so much output until its body has been read.
    let output = LANES.iter().map(|lane| lane.tokens).max();
    let sizes = json!({"max_model_len": 2048, "max_prompt_tokens": 1024, "expected_output_tokens": output, "kv": {"headroom": 0.15}});
    shipped::merge(pool, &json!({"name": POOL}));
    shipped::merge(pool, &sizes);
    shipped::merge(pool, most);
    Ok(())
}

/// Leads the listener without the filter to a cluster of its own, which has as many connections as there are places.
fn queue_in_proxy(bootstrap: &mut Value) -> Result<()> {
    let clusters = &mut bootstrap["static_resources"]["clusters"];
    let mut alone = shipped::named(clusters, "workers")?.clone();
    alone["name"] = "alone".into();
    alone["load_assignment"]["cluster_name"] = "alone".into();
    let threshold = |connections: usize| json!([{"max_connections": connections, "max_pending_requests": 20_000, "max_requests": 20_000}]);
    alone["circuit_breakers"]["thresholds"] = threshold(QUEUE_PLACES);
    shipped::named(clusters, "workers")?["circuit_breakers"]["thresholds"] = threshold(20_000);
    clusters.as_array_mut().context("no clusters")?.push(alone);
    let manager = shipped::http_manager(bootstrap, "without")?;
    manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["cluster"] = "alone".into();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_asks_for_as_many_tokens_as_it_says() {
        for plan in [load(900.0, Pace::new(true)), Plan { ..saturating(Pace::new(false)) }] {
            let tokens: f64 = plan.flows.iter().map(|flow| flow.rate_per_s * flow.max_tokens.mean()).sum();
            assert!((tokens - 900.0).abs() < 0.001 || (tokens - 100_000.0).abs() < 0.001, "{tokens}");
        }
    }

    #[test]
    fn the_flags_say_what_the_pool_is_told() {
        let after = |flag| WORKER_FLAGS.iter().skip_while(|word| **word != flag).nth(1).copied();
        assert_eq!(after("--max-num-seqs"), Some(SEQUENCES.to_string().as_str()));
    }
}
