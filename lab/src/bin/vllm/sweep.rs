//! The same overload behind other caps: how many batches of the engine are let in, and whether the engine knows the lanes.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use testkit::load::Report;
use testkit::parts::{self, Front, Programs};
use testkit::shipped;

use super::scenario::{self, BATCH, INTERACTIVE, SEQUENCES};
use super::stage::Stage;

/// One way to limit the pool.
struct Variant {
    /// Batches of the engine that are let in; `None` where KV fit alone bounds the pool.
    batches: Option<f64>,
    /// The lane's priority is written into bodies, by which the engine schedules.
    tag_body: bool,
    policy: fn(&mut Value) -> Result<()>,
}

/// All caps without `tag_body`, and then with it.
const VARIANTS: [Variant; 10] = [
    Variant::of::<4, false>(),
    Variant::of::<5, false>(),
    Variant::of::<6, false>(),
    Variant::of::<8, false>(),
    Variant::of::<0, false>(),
    Variant::of::<4, true>(),
    Variant::of::<5, true>(),
    Variant::of::<6, true>(),
    Variant::of::<8, true>(),
    Variant::of::<0, true>(),
];

impl Variant {
    /// A cap in quarters of a batch, 0 for none.
    const fn of<const QUARTERS: usize, const TAG: bool>() -> Self {
        let batches = if QUARTERS == 0 { None } else { Some(QUARTERS as f64 / 4.0) };
        Self { batches, tag_body: TAG, policy: policy::<QUARTERS, TAG> }
    }
}

/// Figures of one variant.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Batches of the engine that were let in; absent where KV fit alone bounded the pool.
    pub batches: Option<f64>,
    pub tag_body: bool,
    pub interactive_ttft_p95_ms: Option<f64>,
    /// Share of the interactive requests that were answered to the end.
    pub interactive_served: f64,
    /// Share of the batch requests that were.
    pub batch_served: f64,
    /// Tokens a second during the load, of requests answered to the end.
    pub tokens_per_s: f64,
    /// Requests answered to the end, for each second of the load.
    pub answered_per_s: f64,
    pub preemptions: u64,
}

/// Plays the load behind each variant, `best` being what the engine can answer in a second.
///
/// # Errors
/// When a part fails, or a request goes otherwise than it may.
pub async fn measure(programs: &Programs, stage: &Stage, best: f64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for variant in &VARIANTS {
        println!("\n{} …", variant.name());
        stage.until_idle().await?;
        let shape = parts::Stage {
            workers: 1,
            worker_flags: &[],
            envoy_threads: 1,
            policy: variant.policy,
            bootstrap: hold_headers,
        };
        let front = Front::start(programs, &shape, &[stage.engine_address()], super::stage::slow_page).await?;
        let before = stage.page().await?.preemptions;
        let url = format!("http://{}/v1/chat/completions", front.with);
        let report = testkit::load::run(&url, &scenario::sweep(best)).await?;
        rows.push(Row::new(variant, &report, stage.page().await?.preemptions.saturating_sub(before))?);
    }
    Ok(rows)
}

/// Prints the rows as a table.
pub fn print(rows: &[Row]) {
    println!(
        "    cap        tag_body   chat TTFT p95   chat served   batch served   tokens/s   answered/s   preemptions"
    );
    for row in rows {
        let cap = row.batches.map_or_else(|| "KV fit".to_owned(), |batches| format!("{batches} x"));
        let p95 = row.interactive_ttft_p95_ms.map_or_else(|| "-".to_owned(), |ttft| format!("{ttft:.0} ms"));
        println!(
            "    {cap:<11}{:<8}{p95:>16}{:>12.0} %{:>13.0} %{:>11.0}{:>13.1}{:>14}",
            if row.tag_body { "yes" } else { "no" },
            row.interactive_served * 100.0,
            row.batch_served * 100.0,
            row.tokens_per_s,
            row.answered_per_s,
            row.preemptions
        );
    }
}

impl Variant {
    fn name(&self) -> String {
        let cap = self
            .batches
            .map_or_else(|| "no cap but KV fit".to_owned(), |batches| format!("a cap of {batches} batches"));
        let tag = if self.tag_body { "the engine knows the lanes" } else { "the engine knows no lanes" };
        format!("{cap}, {tag}")
    }
}

impl Row {
    fn new(variant: &Variant, report: &Report, preemptions: u64) -> Result<Self> {
        let flow = |name: &str| report.flows.get(name).with_context(|| format!("no requests of {name}"));
        for flow in report.flows.values() {
            ensure!(flow.failed.is_empty(), "{}: requests went wrong: {:?}", variant.name(), flow.failed);
        }
        let served = |name| flow(name).map(|flow| flow.completed as f64 / flow.sent.max(1) as f64);
        Ok(Self {
            batches: variant.batches,
            tag_body: variant.tag_body,
            interactive_ttft_p95_ms: flow(INTERACTIVE)?.ttft_p95_ms,
            interactive_served: served(INTERACTIVE)?,
            batch_served: served(BATCH)?,
            tokens_per_s: report.goodput_tokens_per_s,
            answered_per_s: scenario::completed(report) as f64 / scenario::SWEEP.as_secs_f64(),
            preemptions,
        })
    }
}

/// The policy of the overload with another cap.
fn policy<const QUARTERS: usize, const TAG: bool>(policy: &mut Value) -> Result<()> {
    scenario::policy(policy)?;
    policy["tag_body"] = TAG.into();
    policy["header_pause"] = TAG.into();
    let pool = policy.pointer_mut("/pools/0").context("the shipped policy has no pool")?;
    if QUARTERS > 0 {
        pool["max_in_flight_per_worker"] = (SEQUENCES * QUARTERS / 4).into();
        return Ok(());
    }
    // Without a cap there is nothing to keep a share of, and nothing that holds without a view.
    pool.as_object_mut().context("the pool is no object")?.remove("max_in_flight_per_worker");
    pool["stale"] = json!({"hold": "5s", "then": "admit"});
    let lanes = policy["lanes"].as_array_mut().context("the policy has no lanes")?;
    lanes.iter_mut().filter_map(Value::as_object_mut).for_each(|lane| drop(lane.remove("reserve")));
    Ok(())
}

/// Lets the filter hold headers until the body has been read.
fn hold_headers(bootstrap: &mut Value) -> Result<()> {
    let filter = shipped::named(&mut shipped::http_manager(bootstrap, "public")?["http_filters"], "sluice")?;
    filter["typed_config"]["config"]["allow_on_headers_stop_iteration"] = true.into();
    Ok(())
}
