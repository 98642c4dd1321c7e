//! Bursts of long prompts with short answers beside a steady chat, in front of one worker: by the policy as shipped, behind
//! Envoy's own circuit breaker, and with nothing in between.
//!
//! Lengths are distributed as in public traces of a chat and of a code completion service, by their means: 1,300 tokens of
//! prompt and 230 of output, and 2,000 and 25. At the code's own pace both together ask for a little more than the
//! worker can do.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};
use testkit::load::{Flow, Plan, Report, Sizes};
use testkit::parts::{MODEL, Parts, Programs, Stage};
use testkit::shipped;

use super::scenario::{INTERACTIVE, Pace};

/// Sequences in the worker's batch, and the cap: one batch.
const SEQUENCES: u64 = 32;

const WORKER_FLAGS: [&str; 6] = ["--model", MODEL, "--max-num-seqs", "32", "--num-gpu-blocks", "4000"];

/// The code's pace in multiples of its own.
const PACES: [f64; 2] = [1.0, 6.0];

/// Code requests a second at their own pace: with it a circuit breaker serves of both about what it served of the traces.
const CODE_PER_S: f64 = 4.0;

/// Answers of the lane that are worth something begin within this: the shipped policy's goal for it, and a patient editor.
const IN_TIME: [(&str, Duration); 2] = [(INTERACTIVE, Duration::from_secs(1)), ("standard", Duration::from_secs(5))];

/// Workers count a token for four bytes of a prompt.
const BYTES: u32 = 4;

/// One worker behind the shipped files, with its batch as the cap and tenants that may ask for any lane; and a listener behind
/// Envoy's circuit breaker.
const STAGE: Stage = Stage {
    workers: 1,
    worker_flags: &WORKER_FLAGS,
    envoy_threads: 2,
    policy: |policy| {
        policy["tenants"] = json!({"*": {"tier": "paid"}});
        let pool = policy.pointer_mut("/pools/0").context("the shipped policy has no pool")?;
        shipped::merge(pool, &json!({"max_in_flight_per_worker": SEQUENCES, "max_model_len": 8192}));
        Ok(())
    },
    bootstrap: add_breaker,
};

/// The listener behind the circuit breaker, and its cluster.
const BREAKER: &str = "breaker";

/// Figures of the scenario.
#[derive(Clone, Debug, Serialize)]
pub struct LongPrompts {
    /// Figures at each pace of the code.
    pub paces: Vec<AtPace>,
}

/// Figures at one pace of the code.
#[derive(Clone, Debug, Serialize)]
pub struct AtPace {
    /// The pace, in multiples of the code's own.
    pub pace: f64,
    pub nothing: Run,
    pub breaker: Run,
    pub sluice: Run,
}

/// One load in front of one listener.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Share of the chat's requests that were answered to the end and had their first token within a second.
    pub chat_in_time: f64,
    /// The same of the code's, within five seconds.
    pub code_in_time: f64,
    /// Tokens a second of all these answers.
    pub good_tokens_per_s: f64,
    pub report: Report,
}

impl Run {
    fn new(report: Report) -> Self {
        let in_time = |(lane, _): (&str, Duration)| {
            let flow = report.flows.get(lane);
            flow.map_or(0.0, |flow| (flow.completed - flow.late) as f64 / flow.sent.max(1) as f64)
        };
        let [chat_in_time, code_in_time] = IN_TIME.map(in_time);
        Self { chat_in_time, code_in_time, good_tokens_per_s: report.goodput_tokens_per_s, report }
    }
}

impl AtPace {
    /// Good tokens in multiples of those behind the circuit breaker.
    pub fn gain(&self) -> f64 {
        self.sluice.good_tokens_per_s / self.breaker.good_tokens_per_s
    }
}

/// Gains over the circuit breaker that are wanted, and the share of chat in time at each pace.
const GOALS: ([f64; 2], f64) = ([1.2, 1.3], 0.99);

impl LongPrompts {
    /// Prints them as a table.
    pub fn print(&self) {
        println!("    {:<26}{:>12}{:>12}{:>18}", "", "chat ≤ 1 s", "code ≤ 5 s", "tokens/s in time");
        let (gains, chat) = GOALS;
        for (found, gain) in self.paces.iter().zip(gains) {
            println!("    code at {} times its pace", found.pace);
            for (name, run) in [("nothing", &found.nothing), ("breaker", &found.breaker), ("sluice", &found.sluice)] {
                let (chat, code) = (run.chat_in_time * 100.0, run.code_in_time * 100.0);
                println!("      {name:<24}{chat:>10.1} %{code:>10.1} %{:>18.0}", run.good_tokens_per_s);
            }
            println!(
                "      chat in time {:.1} % (goal >= {:.0} %), tokens {:.2} x the breaker's (goal >= {gain})",
                found.sluice.chat_in_time * 100.0,
                chat * 100.0,
                found.gain()
            );
        }
    }
}

/// Measures the same requests in front of each listener.
///
/// # Errors
/// When a part fails.
pub async fn measure(programs: &Programs, pace: Pace) -> Result<LongPrompts> {
    println!("\nbursts of long prompts beside a chat, one worker with a batch of {SEQUENCES}");
    let parts = Parts::start(programs, &STAGE).await?;
    let breaker = parts.envoy.listener(BREAKER).await?;
    let mut paces = Vec::new();
    for code in PACES {
        let mut runs = Vec::new();
        for (name, listener) in [
            ("with nothing in between", parts.without),
            ("behind a circuit breaker", breaker),
            ("as shipped", parts.with),
        ] {
            println!("\ncode at {code} times its pace, {name} …");
            runs.push(run(&parts, listener, &plan(code, pace)).await?);
        }
        let [nothing, breaker, sluice] = <[Run; 3]>::try_from(runs).ok().context("a listener was left out")?;
        paces.push(AtPace { pace: code, nothing, breaker, sluice });
    }
    Ok(LongPrompts { paces })
}

async fn run(parts: &Parts, listener: SocketAddr, plan: &Plan) -> Result<Run> {
    let report = testkit::load::run(&format!("http://{listener}/v1/chat/completions"), plan).await?;
    for (name, flow) in &report.flows {
        let p95 = flow.ttft_p95_ms.map_or_else(|| "-".to_owned(), |ttft| format!("{ttft:.0} ms"));
        println!(
            "    {name:<12} {:>5} of {:>5} answered in time, TTFT p95 {p95}, refused {:?}, failed {:?}",
            flow.completed - flow.late,
            flow.sent,
            flow.refused,
            flow.failed
        );
    }
    println!("    {:.0} tokens/s in time", report.goodput_tokens_per_s);
    parts.until_idle().await?;
    Ok(Run::new(report))
}

/// Chat at five requests a second, and code at so many times its own pace, in bursts of thirty.
fn plan(code: f64, pace: Pace) -> Plan {
    let [(chat_lane, chat_in_time), (code_lane, code_in_time)] = IN_TIME;
    let bytes = |median: u32, sigma| Sizes::HeavyTail { median: median * BYTES, sigma, most: 7_000 * BYTES };
    let flow = |lane: &str, tenants: [&str; 2], in_time| Flow {
        name: lane.into(),
        tenants: tenants.map(str::to_owned).into(),
        rate_per_s: 5.0,
        burst: 1,
        // Means of 1,300 and 230.
        prompt_bytes: bytes(1_000, 0.72),
        max_tokens: Sizes::HeavyTail { median: 150, sigma: 0.92, most: 1_000 },
        lane: Some(("x-sluice-lane".into(), lane.into())),
        in_time: Some(in_time),
        leaves: None,
    };
    let chat = flow(chat_lane, ["acme", "initech"], chat_in_time);
    let code = Flow {
        rate_per_s: CODE_PER_S * code,
        burst: 30,
        // Means of 2,000 and 25.
        prompt_bytes: bytes(1_500, 0.76),
        max_tokens: Sizes::HeavyTail { median: 13, sigma: 1.14, most: 200 },
        ..flow(code_lane, ["editor", "review"], code_in_time)
    };
    let window = pace.window * 3;
    Plan {
        seed: 41,
        warm_up: pace.warm_up,
        duration: pace.warm_up + window,
        // Why so long: the longest answers take 15 s, and one that was cut off here would count as late.
        drain: Duration::from_secs(20),
        max_requests: 100_000,
        model: MODEL.into(),
        flows: vec![chat, code],
    }
}

/// A listener like the one without the filter, whose cluster takes one batch of requests and answers the others 503.
fn add_breaker(bootstrap: &mut Value) -> Result<()> {
    let resources = &mut bootstrap["static_resources"];
    let mut cluster = shipped::named(&mut resources["clusters"], "workers")?.clone();
    cluster["name"] = BREAKER.into();
    cluster["load_assignment"]["cluster_name"] = BREAKER.into();
    cluster["circuit_breakers"]["thresholds"][0]["max_requests"] = SEQUENCES.into();
    let mut listener = shipped::named(&mut resources["listeners"], "without")?.clone();
    listener["name"] = BREAKER.into();
    listener["stat_prefix"] = BREAKER.into();
    resources["clusters"].as_array_mut().context("no clusters")?.push(cluster);
    resources["listeners"].as_array_mut().context("no listeners")?.push(listener);
    let manager = shipped::http_manager(bootstrap, BREAKER)?;
    manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["cluster"] = BREAKER.into();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_the_means_that_are_written() {
        let flows = plan(1.0, Pace::new(true)).flows;
        let means = |flow: &Flow| (flow.prompt_bytes.mean() / f64::from(BYTES), flow.max_tokens.mean());
        let [chat, code] = [means(&flows[0]), means(&flows[1])];
        let is_near = |found: f64, written: f64| (found / written - 1.0).abs() < 0.02;
        assert!(is_near(chat.0, 1_300.0) && is_near(chat.1, 230.0), "{chat:?}");
        assert!(is_near(code.0, 2_000.0) && is_near(code.1, 25.0), "{code:?}");
    }
}
