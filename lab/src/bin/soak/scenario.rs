//! What the soak plays. Workers are slow and steps nearly flat, so that four of them, and what three times their load costs the
//! proxy, leave room on two cores.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use testkit::load::{Flow, Leaves, Plan};

use testkit::parts::{MODEL, POOL, Stage};
use testkit::shipped;

/// The flow whose latency is compared.
pub const INTERACTIVE: &str = "interactive";

/// Names that tenants make up, in turn: more than there are records for tenants without a name in the policy.
const STRANGERS: usize = 10_000;

/// Tokens a second that the workers together can do at most: 4 × 16 sequences, a step of 100 ms and a little.
const BEST_TOKENS_PER_S: f64 = 600.0;

const WORKER_FLAGS: [&str; 16] = [
    "--model",
    MODEL,
    "--max-model-len",
    "2048",
    "--max-num-seqs",
    "16",
    "--num-gpu-blocks",
    "400",
    "--base-ms",
    "100",
    "--per-prefill-token-us",
    "20",
    "--per-sequence-us",
    "50",
    "--per-kv-block-us",
    "0",
];

/// Four workers behind two threads of Envoy.
pub const STAGE: Stage =
    Stage { workers: 4, worker_flags: &WORKER_FLAGS, envoy_threads: 2, policy: adapt, bootstrap: |_| Ok(()) };

/// One of the two loads.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    pub name: &'static str,
    /// Of what the workers can do.
    times: f64,
    /// Which part of the callers leave.
    leave: f64,
}

/// In this order.
pub const PHASES: [Phase; 2] =
    [Phase { name: "half load", times: 0.5, leave: 0.0 }, Phase { name: "three times", times: 3.0, leave: 0.2 }];

impl Phase {
    /// The load, with a warm-up before what is compared.
    pub fn plan(self, length: Duration) -> Plan {
        let flow = |name: &str, lane: &str, tenants: Vec<String>, share: f64, tokens: u32| Flow {
            name: name.into(),
            tenants,
            rate_per_s: self.times * BEST_TOKENS_PER_S * share / f64::from(tokens),
            burst: 1,
            prompt_bytes: (64..=400).into(),
            max_tokens: (tokens / 2..=tokens * 3 / 2).into(),
            lane: Some(("x-sluice-lane".into(), lane.into())),
            in_time: None,
            leaves: (self.leave > 0.0)
                .then(|| Leaves { share: self.leave, after: Duration::ZERO..=Duration::from_secs(3) }),
        };
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let strangers = (0..STRANGERS).map(|number| format!("stranger-{number}")).collect();
        Plan {
            seed: 30,
            warm_up: length / 20,
            duration: length,
            drain: Duration::from_secs(60),
            max_requests: 10_000_000,
            model: MODEL.into(),
            flows: vec![
                flow(INTERACTIVE, INTERACTIVE, named(&["acme", "initech"]), 0.1, 12),
                flow("standard", "standard", named(&["hooli"]), 0.2, 16),
                flow("strangers", "standard", strangers, 0.2, 16),
                flow("batch", "batch", named(&["reports", "crawler"]), 0.5, 32),
            ],
        }
    }
}

/// A request for a model that nobody has heard of, whose name fits the pool or not.
pub fn made_up(number: u64) -> Value {
    let family = if number.is_multiple_of(2) { MODEL } else { "made-up" };
    json!({
        "model": format!("{family}-{number}"), "max_tokens": 1,
        "messages": [{"role": "user", "content": "Say something."}],
    })
}

fn adapt(policy: &mut Value) -> Result<()> {
    policy["tiers"] = json!({});
    policy["tenants"] = json!({"acme": {"weight": 2}, "reports": {"max_in_flight": 40}, "*": {"max_in_flight": 16}});
    policy["lanes"] = json!([
        {"name": "interactive", "priority": 100, "reserve": {"share": 0.125}, "queue": {"max_requests": 64, "max_wait": "2s"}},
        {"name": "standard", "priority": 0, "queue": {"max_requests": 128, "max_wait": "5s"}},
        {
            "name": "batch", "priority": -10, "preemptible": true, "aging": {"after": "20s", "to": "standard"},
            "queue": {"max_requests": 256, "max_wait": "30s"},
        },
    ]);
    policy["default_lane"] = "standard".into();
    let pool = policy.pointer_mut("/pools/0").context("the shipped policy has no pool")?;
    pool.as_object_mut().context("the pool is no object")?.remove("max_in_flight_per_worker");
    shipped::merge(
        pool,
        &json!({
            "name": POOL, "max_in_flight": 64, "max_model_len": 2048, "max_prompt_tokens": 1024,
            "expected_output_tokens": 32,
        }),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loads_are_multiples_of_what_the_workers_can_do() {
        for phase in PHASES {
            let plan = phase.plan(Duration::from_secs(60));
            let tokens: f64 = plan.flows.iter().map(|flow| flow.rate_per_s * flow.max_tokens.mean()).sum();
            assert!((tokens - phase.times * BEST_TOKENS_PER_S).abs() < 0.001, "{}: {tokens}", phase.name);
        }
    }
}
