//! The pool's best rate, half of it, and three times it, with the filter and without.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use testkit::load::{Plan, Report};

use super::scenario::{self, INTERACTIVE, LOADS, Pace, SEQUENCES, WORKERS};
use testkit::parts::{Parts, Programs};

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Throughput {
    /// The pool's best rate.
    pub best_tokens_per_s: f64,
    pub with: Side,
    pub without: Side,
}

/// Both loads on one side.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    pub half_load: Run,
    pub overload: Run,
}

/// One load.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    #[serde(flatten)]
    pub report: Report,
    /// Sequences that workers had to put back for want of KV blocks.
    pub preemptions: u64,
}

impl Side {
    /// Tokens a second of answers in time under overload, as a part of the best rate.
    pub fn goodput_ratio(&self, best_tokens_per_s: f64) -> f64 {
        self.overload.report.goodput_tokens_per_s / best_tokens_per_s
    }

    /// The interactive lane's p95 TTFT under overload, in multiples of that at half load.
    pub fn interactive_ttft_p95_ratio(&self) -> Option<f64> {
        let p95 = |run: &Run| run.report.flows.get(INTERACTIVE)?.ttft_p95_ms;
        Some(p95(&self.overload)? / p95(&self.half_load)?)
    }

    /// In both runs.
    pub fn preemptions(&self) -> u64 {
        self.half_load.preemptions + self.overload.preemptions
    }
}

/// Measures all of it with one set of parts.
///
/// # Errors
/// When a part fails, or a request goes otherwise than it may.
pub async fn measure(programs: &Programs, pace: Pace) -> Result<Throughput> {
    let parts = Parts::start(programs, &scenario::THROUGHPUT).await?;
    let best_tokens_per_s = best_rate(&parts, pace).await?;
    let with = side(&parts, parts.with, "with the filter", best_tokens_per_s, pace).await?;
    let without = side(&parts, parts.without, "without it", best_tokens_per_s, pace).await?;
    Ok(Throughput { best_tokens_per_s, with, without })
}

/// The best rate is that of workers whose batches are always full: as many requests are under way at any time as the
/// engines run at once, and the next one is sent when one has been answered, so none waits in an engine for long. It goes
/// by the listener without the filter.
async fn best_rate(parts: &Parts, pace: Pace) -> Result<f64> {
    let at_once = WORKERS * SEQUENCES;
    println!("\nthe pool's best rate: {at_once} requests under way at any time, as many as the engines run at once …");
    let before = parts.preemptions().await?;
    let report = testkit::load::saturate(&url(parts.without), &scenario::saturating(pace), at_once).await?;
    nothing_failed(&report)?;
    let preemptions = parts.preemptions().await? - before;
    println!("    {:.0} tokens/s; {preemptions} preemptions", report.goodput_tokens_per_s);
    parts.until_idle().await?;
    Ok(report.goodput_tokens_per_s)
}

async fn side(parts: &Parts, listener: SocketAddr, name: &str, best: f64, pace: Pace) -> Result<Side> {
    let mut runs = Vec::new();
    for load in LOADS {
        println!("\n{load} of that, {name} …");
        runs.push(run(parts, listener, &scenario::load(load * best, pace)).await?);
    }
    let overload = runs.pop().context("no overload")?;
    Ok(Side { half_load: runs.pop().context("no half load")?, overload })
}

pub async fn run(parts: &Parts, listener: SocketAddr, plan: &Plan) -> Result<Run> {
    let before = parts.preemptions().await?;
    let report = testkit::load::run(&url(listener), plan).await?;
    nothing_failed(&report)?;
    let preemptions = parts.preemptions().await? - before;
    for (name, flow) in &report.flows {
        let p95 = flow.ttft_p95_ms.map_or_else(|| "-".to_owned(), |ttft| format!("{ttft:.0} ms"));
        let in_time = flow.completed - flow.late;
        println!("    {name:<12} {in_time:>5} of {:>5} answered in time, TTFT p95 {p95}", flow.sent);
    }
    let refused: Vec<String> = report.refused.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    if !refused.is_empty() {
        println!("    refused: {}", refused.join(", "));
    }
    println!("    {:.0} tokens/s in time; {preemptions} preemptions", report.goodput_tokens_per_s);
    parts.until_idle().await?;
    Ok(Run { report, preemptions })
}

/// Refusals are answers too; anything else would make the figures meaningless.
fn nothing_failed(report: &Report) -> Result<()> {
    let failed: BTreeMap<&String, u64> =
        report.flows.values().flat_map(|flow| &flow.failed).map(|(what, count)| (what, *count)).collect();
    ensure!(failed.is_empty(), "requests went wrong: {failed:?}");
    Ok(())
}

fn url(listener: SocketAddr) -> String {
    format!("http://{listener}/v1/chat/completions")
}
