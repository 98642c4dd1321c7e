//! What is played: every number of the engine, its limits and the load.
//!
//! The engine has 40 KV blocks of 128 tokens and room for eight sequences. A batch request ends with about six blocks, so
//! eight of them do not fit: left alone, the engine starts as many as its blocks hold prompts, and preempts while they grow.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::load::{Flow, Plan, Report, Sizes};

use lab::side_by_side::{Figures, Run};
use testkit::parts::MODEL;
use testkit::shipped;

/// Most tokens of prompt and output together.
pub const CONTEXT_TOKENS: usize = 2_048;

/// Sequences that the engine runs at once.
pub const SEQUENCES: usize = 8;

/// Its KV blocks.
pub const KV_BLOCKS: usize = 40;

/// Tokens of each, which the CPU backend has chosen.
const BLOCK_SIZE: usize = 128;

/// Float32, since in bfloat16 small batches end the CPU backend; no prefix cache, since all prompts here begin alike.
pub const ENGINE_FLAGS: [&str; 8] = [
    "--load-format",
    "dummy",
    "--dtype",
    "float32",
    "--enforce-eager",
    "--no-enable-prefix-caching",
    // What carries no priority is served in the order of its arrival all the same.
    "--scheduling-policy",
    "priority",
];

/// Requests under way while the engine is kept full.
pub const AT_ONCE: usize = 12;

/// For so long.
pub const FULL: Duration = Duration::from_secs(20);

/// Of the overload.
pub const OVERLOAD: Duration = Duration::from_secs(40);

/// Length of the overload behind each cap of the sweep.
pub const SWEEP: Duration = Duration::from_secs(20);

/// The overload in multiples of what the engine can do.
pub const TIMES: f64 = 3.0;

/// The tenant, and the lane, whose waiting matters most.
pub const INTERACTIVE: &str = "interactive";

/// The other tenant and lane.
pub const BATCH: &str = "batch";

/// Part of the requests that are interactive.
const INTERACTIVE_SHARE: f64 = 0.6;

/// Keeps the engine full.
pub fn full() -> Plan {
    // More than it can ever answer; only their order is used.
    plan(1_000.0, FULL, Duration::from_secs(30))
}

/// Several times of so many requests a second.
pub fn overload(best: f64) -> Plan {
    plan(TIMES * best, OVERLOAD, Duration::from_secs(20))
}

/// The same load for the sweep.
pub fn sweep(best: f64) -> Plan {
    plan(TIMES * best, SWEEP, Duration::from_secs(15))
}

fn plan(requests_per_s: f64, duration: Duration, drain: Duration) -> Plan {
    let flow = |name: &str, share: f64, prompt_bytes: Sizes, max_tokens: Sizes| Flow {
        name: name.into(),
        tenants: vec![name.into()],
        rate_per_s: requests_per_s * share,
        burst: 1,
        prompt_bytes,
        max_tokens,
        lane: Some(("x-sluice-lane".into(), name.into())),
        in_time: None,
        leaves: None,
    };
    Plan {
        seed: 20,
        warm_up: Duration::from_secs(2),
        duration,
        drain,
        max_requests: 20_000,
        model: MODEL.into(),
        flows: vec![
            flow(INTERACTIVE, INTERACTIVE_SHARE, (160..=320).into(), (16..=48).into()),
            flow(BATCH, 1.0 - INTERACTIVE_SHARE, (800..=1_600).into(), (200..=400).into()),
        ],
    }
}

/// Requests that were answered to the end.
pub fn completed(report: &Report) -> u64 {
    report.flows.values().map(|flow| flow.completed).sum()
}

/// Changes the shipped policy to these tenants and this engine.
///
/// # Errors
/// When the shipped policy has no pool.
pub fn policy(policy: &mut Value) -> Result<()> {
    let tenant = |lane: &str| json!({"max_in_flight": 64, "max_lane": lane});
    policy["tenants"] = json!({INTERACTIVE: tenant(INTERACTIVE), BATCH: tenant(BATCH)});
    policy["lanes"] = json!([
        {"name": INTERACTIVE, "priority": 100, "reserve": {"share": 0.125}, "queue": {"max_requests": 64, "max_wait": "5s"}},
        {"name": "standard", "priority": 0},
        {"name": BATCH, "priority": -10, "queue": {"max_requests": 64, "max_wait": "15s"}},
    ]);
    let pool = policy.pointer_mut("/pools/0").context("the shipped policy has no pool")?;
    shipped::merge(
        pool,
        &json!({
            "max_in_flight_per_worker": SEQUENCES, "max_model_len": CONTEXT_TOKENS, "max_prompt_tokens": 1_024,
            "expected_output_tokens": 400, "kv": {"block_size": BLOCK_SIZE, "headroom": 0.1},
        }),
    );
    Ok(())
}

/// What the overload is to show.
///
/// # Errors
/// Names what it did not show.
pub fn check(figures: &Figures) -> Result<()> {
    let Figures { without, with } = figures;
    let p95 = |run: &Run| run.ttft_p95_ms.get(INTERACTIVE).copied().context("no interactive sample was usable");
    let (p95_without, p95_with) = (p95(without)?, p95(with)?);
    ensure!(without.preemptions > 0, "without the filter the engine never preempted: the load was no overload");
    ensure!(
        with.preemptions < without.preemptions,
        "with the filter the engine preempted {} times, without it {} times",
        with.preemptions,
        without.preemptions
    );
    ensure!(p95_with < p95_without, "interactive p95 TTFT is {p95_with} ms with and {p95_without} ms without");
    ensure!(with.refused.values().sum::<u64>() > 0, "nothing was refused with the filter");
    for (run, name) in [(without, "without"), (with, "with")] {
        ensure!(run.failed.is_empty(), "{name} the filter requests went wrong: {:?}", run.failed);
    }
    Ok(())
}
