//! Two runs of the same load, without and with the filter, side by side.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use testkit::load::Report;

/// Name of the flow whose waiting matters most.
pub const INTERACTIVE: &str = "interactive";

/// Preemptions without the filter for each one that it may leave.
const PREEMPTIONS_LEFT: u64 = 20;

/// Both runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// All requests to the workers.
    pub without: Run,
    /// The filter decides.
    pub with: Run,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// By tenant.
    pub ttft_p50_ms: BTreeMap<String, f64>,
    /// By tenant.
    pub ttft_p95_ms: BTreeMap<String, f64>,
    /// Of requests that were answered to the end.
    pub goodput_tokens_per_s: f64,
    /// By reason.
    pub refused: BTreeMap<String, u64>,
    /// By tenant.
    pub sent: BTreeMap<String, u64>,
    /// By tenant.
    pub completed: BTreeMap<String, u64>,
    /// By what happened: neither answered nor refused.
    pub failed: BTreeMap<String, u64>,
    /// Not answered to the end when the run ended.
    pub unfinished: u64,
    /// Sequences that the workers had to put back for want of KV blocks.
    pub preemptions: u64,
    /// TTFT samples not used because the client was late.
    pub discarded_samples: u64,
    /// The most that the client was late.
    pub client_lag_max_ms: f64,
}

impl Run {
    /// A run from what the client and the workers counted.
    pub fn new(report: &Report, preemptions: u64) -> Self {
        let mut run = Self {
            ttft_p50_ms: BTreeMap::new(),
            ttft_p95_ms: BTreeMap::new(),
            goodput_tokens_per_s: report.goodput_tokens_per_s,
            refused: report.refused.clone(),
            sent: BTreeMap::new(),
            completed: BTreeMap::new(),
            failed: BTreeMap::new(),
            unfinished: 0,
            preemptions,
            discarded_samples: report.discarded,
            client_lag_max_ms: report.lag_max_ms,
        };
        for (name, flow) in &report.flows {
            run.ttft_p50_ms.extend(flow.ttft_p50_ms.map(|ttft| (name.clone(), ttft)));
            run.ttft_p95_ms.extend(flow.ttft_p95_ms.map(|ttft| (name.clone(), ttft)));
            run.sent.insert(name.clone(), flow.sent);
            run.completed.insert(name.clone(), flow.completed);
            run.unfinished += flow.unfinished;
            for (what, count) in &flow.failed {
                *run.failed.entry(what.clone()).or_default() += count;
            }
        }
        run
    }
}

impl Figures {
    /// Prints both runs side by side.
    pub fn print(&self) {
        let row = |name: &str, of: &dyn Fn(&Run) -> String| {
            println!("    {name:<34}{:>14}{:>14}", of(&self.without), of(&self.with));
        };
        println!("    {:<34}{:>14}{:>14}", "", "without", "with");
        for tenant in self.without.sent.keys() {
            row(&format!("{tenant}: TTFT p50"), &|run| milliseconds(run.ttft_p50_ms.get(tenant)));
            row(&format!("{tenant}: TTFT p95"), &|run| milliseconds(run.ttft_p95_ms.get(tenant)));
            row(&format!("{tenant}: answered of sent"), &|run| {
                format!("{}/{}", count(&run.completed, tenant), count(&run.sent, tenant))
            });
        }
        row("goodput", &|run| format!("{:.0} tokens/s", run.goodput_tokens_per_s));
        row("worker preemptions", &|run| run.preemptions.to_string());
        for (title, map) in
            [("refused", (|run| &run.refused) as fn(&Run) -> &BTreeMap<String, u64>), ("failed", |run| &run.failed)]
        {
            let mut kinds: Vec<&String> = map(&self.without).keys().chain(map(&self.with).keys()).collect();
            kinds.sort_unstable();
            kinds.dedup();
            for kind in kinds {
                row(&format!("{title}: {kind}"), &|run| count(map(run), kind).to_string());
            }
        }
        row("unfinished at the end", &|run| run.unfinished.to_string());
        row("discarded samples", &|run| run.discarded_samples.to_string());
        row("client late by at most", &|run| format!("{:.0} ms", run.client_lag_max_ms));
    }

    /// What the demo is to show.
    ///
    /// # Errors
    /// Names what it did not show.
    pub fn check(&self) -> Result<()> {
        let (without, with) = (&self.without, &self.with);
        ensure!(without.preemptions > 0, "without the filter no worker preempted: the load was no overload");
        // Why: not none. Requests of unlike size are spread over the workers by count, in real time; once in many runs the
        // large ones meet on one worker.
        ensure!(
            with.preemptions * PREEMPTIONS_LEFT <= without.preemptions,
            "with the filter workers preempted {} times, without it {} times",
            with.preemptions,
            without.preemptions
        );
        let p95 = |run: &Run| run.ttft_p95_ms.get(INTERACTIVE).copied().context("no interactive sample was usable");
        let (p95_without, p95_with) = (p95(without)?, p95(with)?);
        ensure!(p95_with < p95_without, "interactive p95 TTFT is {p95_with} ms with and {p95_without} ms without");
        let refused = |run: &Run| run.refused.values().sum::<u64>();
        ensure!(refused(without) == 0, "{} requests were refused without the filter", refused(without));
        ensure!(refused(with) > 0, "nothing was refused with the filter");
        for run in [without, with] {
            ensure!(run.failed.is_empty(), "requests went wrong: {:?}", run.failed);
        }
        Ok(())
    }
}

fn milliseconds(value: Option<&f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.0} ms"))
}

fn count(map: &BTreeMap<String, u64>, key: &str) -> u64 {
    map.get(key).copied().unwrap_or(0)
}
