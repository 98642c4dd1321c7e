//! What the demo plays: the workers, the tenants, what is allowed to whom.
//!
//! The numbers hang together. A worker has 199 usable KV blocks; a batch request begins with about 8 of them and ends
//! with about 20. Left alone, a worker starts as many as its blocks hold prompts and runs out while they grow. Twelve
//! requests, not all of them batch, fit to their end. The tenants together ask for over three times what the workers can
//! do.

use std::time::Duration;

use anyhow::{Context, Result};
use lab::side_by_side::INTERACTIVE;
use serde_json::{Value, json};
use testkit::load::{Flow, Plan};

use testkit::parts::{MODEL, Stage};
use testkit::shipped;

/// A tenant that may have one request in flight.
pub const GUEST: &str = "guest";

/// Three workers behind two threads of Envoy; what is counted must be counted over both.
pub const STAGE: Stage =
    Stage { workers: 3, worker_flags: &WORKER_FLAGS, envoy_threads: 2, policy: adapt, bootstrap: |_| Ok(()) };

/// Flags of a worker: slow tokens, so that three of them and everything else fit on two cores; a larger batch gains
/// little, as on a GPU that is full; dear prompts, since a preempted request is computed again; few blocks.
const WORKER_FLAGS: [&str; 14] = [
    "--model",
    MODEL,
    "--max-model-len",
    "2048",
    "--max-num-seqs",
    "64",
    "--num-gpu-blocks",
    "200",
    "--base-ms",
    "10",
    "--per-prefill-token-us",
    "300",
    "--per-sequence-us",
    "2500",
];

/// The load. Workers count a token for four bytes.
pub fn plan(short: bool) -> Plan {
    let flow = |name: &str, rate_per_s, prompt_tokens: u32, max_tokens| Flow {
        name: name.into(),
        tenants: vec![name.into()],
        rate_per_s,
        burst: 1,
        prompt_bytes: (prompt_tokens * 3..=prompt_tokens * 5).into(),
        max_tokens: (max_tokens..=max_tokens).into(),
        lane: Some(("x-sluice-lane".into(), name.into())),
        in_time: None,
        leaves: None,
    };
    Plan {
        seed: 20,
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(if short { 10 } else { 25 }),
        drain: Duration::from_secs(10),
        max_requests: 2_000,
        model: MODEL.into(),
        flows: vec![flow(INTERACTIVE, 4.0, 64, 32), flow("standard", 5.0, 192, 64), flow("batch", 12.0, 128, 192)],
    }
}

/// Changes the shipped policy to this scenario's tenants and to workers of this size.
///
/// # Errors
/// When the shipped policy has no pool.
fn adapt(policy: &mut Value) -> Result<()> {
    shipped::merge(
        policy,
        &json!({
            "tenants": {
                INTERACTIVE: {"max_in_flight": 16, "max_lane": "interactive"},
                "standard": {"max_in_flight": 16, "max_lane": "standard"},
                "batch": {"max_in_flight": 16, "max_lane": "batch"},
                GUEST: {"max_in_flight": 1, "max_lane": "standard"},
            },
            // Waits as short as the demo: nobody is to stand in line when it is over.
            "lanes": [
                {"name": "interactive", "priority": 100, "reserve": {"share": 0.125}, "queue": {"max_wait": "2s"}},
                {"name": "standard", "priority": 0, "queue": {"max_wait": "4s"}},
                {"name": "batch", "priority": -10, "queue": {"max_wait": "8s"}},
            ],
        }),
    );
    let pool = policy.pointer_mut("/pools/0").context("the shipped policy has no pool")?;
    shipped::merge(
        pool,
        &json!({
            "max_in_flight_per_worker": 11, "max_model_len": 2048, "max_prompt_tokens": 1024,
            "expected_output_tokens": 192,
        }),
    );
    Ok(())
}
