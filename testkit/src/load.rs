//! A load client that measures time to first token.
//!
//! Its requests leave at instants fixed in advance, whether or not earlier ones have been answered: a system that slows
//! down is not given less to do. TTFT counts from the scheduled instant. A client that is starved itself would blame the
//! system under test, so every sample knows by how much the client was late, and one that was too late is not used.
//!
//! [`saturate`] sends the same requests in the same order, each as soon as there is a place for it.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;
use tokio::time::Instant;

mod exchange;
mod report;
mod schedule;
mod sizes;
mod sse;

pub use report::{FlowReport, Report};
pub use sizes::Sizes;

use exchange::Caller;
use schedule::Shot;

use crate::watch::Watch;

/// How long before its time a request gets ready.
const AHEAD: Duration = Duration::from_millis(500);

/// Between two looks at how late the client is.
const LOOK: Duration = Duration::from_millis(20);

/// What is sent. The same plan sends the same requests at the same instants.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides arrivals and prompts.
    pub seed: u64,
    /// At the beginning; sent like the rest and left out of TTFT and goodput.
    pub warm_up: Duration,
    /// From the first possible arrival to the last, the warm-up included.
    pub duration: Duration,
    /// How long after `duration` answers are waited for.
    pub drain: Duration,
    /// Most requests sent; those that would come later are left out.
    pub max_requests: usize,
    /// Model that requests name.
    pub model: String,
    /// What kinds of requests there are.
    pub flows: Vec<Flow>,
}

/// Requests of one kind.
#[derive(Clone, Debug)]
pub struct Flow {
    /// What the report calls it.
    pub name: String,
    /// Who sends them, in turn; sent as `x-tenant-id`.
    pub tenants: Vec<String>,
    /// Mean arrivals per second, with exponential gaps between bursts.
    pub rate_per_s: f64,
    /// Mean requests of a burst, all of which arrive within a second; 1 where each comes by itself.
    pub burst: u32,
    /// Bytes of a prompt.
    pub prompt_bytes: Sizes,
    /// `max_tokens` of a request.
    pub max_tokens: Sizes,
    /// Header and value by which a lane is asked for.
    pub lane: Option<(String, String)>,
    /// Longest time to the first token after which an answer is still worth something; without one every answer is.
    pub in_time: Option<Duration>,
    /// Some callers leave.
    pub leaves: Option<Leaves>,
}

/// Callers that leave before they are answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaves {
    /// Which part of them.
    pub share: f64,
    /// When, after their request was due, every time in the range equally likely.
    pub after: RangeInclusive<Duration>,
}

/// Sends a plan to `url`, the address of a chat completions endpoint, and waits for the answers. Refusals are counted,
/// not tried again.
///
/// # Errors
/// When the plan cannot be sent at all; an answer that goes wrong is counted.
pub async fn run(url: &str, plan: &Plan) -> Result<Report> {
    let mut reports = run_in_parts(url, plan, 1).await?;
    reports.pop().context("no report")
}

/// Does what [`run`] does and reports of parts of equal length, by when requests were due.
///
/// # Errors
/// Those of [`run`].
pub async fn run_in_parts(url: &str, plan: &Plan, parts: u32) -> Result<Vec<Report>> {
    ensure!(parts > 0, "a run has at least one part");
    let (caller, _watch) = prepare(url, plan)?;
    let (mut tasks, mut records) = (JoinSet::new(), Vec::new());
    for shot in schedule::shots(plan) {
        let flow = flow(plan, &shot)?;
        // A long plan has more requests than are to stand in memory at once.
        tokio::time::sleep_until((caller.start + shot.at).checked_sub(AHEAD).unwrap_or(caller.start)).await;
        let caller = Arc::clone(&caller);
        tasks.spawn(async move {
            tokio::time::sleep_until(caller.start + shot.at).await;
            caller.call(&flow, &shot).await
        });
        while let Some(done) = tasks.try_join_next() {
            records.push(done.context("a caller broke down")?);
        }
    }
    records.extend(tasks.join_all().await);
    let length = plan.duration / parts;
    let part = |number: u32| {
        let (from, until) = (length * number, length * (number + 1));
        let due = records.iter().filter(|record| (from..until).contains(&record.at)).cloned().collect::<Vec<_>>();
        let warm_up = plan.warm_up.clamp(from, until) - from;
        report::report(&Plan { warm_up, duration: length, ..plan.clone() }, &due)
    };
    Ok((0..parts).map(part).collect())
}

/// Sends the requests of a plan in their order but not at their instants: so many are under way all the time, until its
/// duration has passed. Their TTFT counts from when each was sent. They begin one by one over the first half of the
/// warm-up: a proxy that chooses among workers by what they have in hand sees nothing of requests that came just now.
///
/// # Errors
/// Those of [`run`].
pub async fn saturate(url: &str, plan: &Plan, at_once: usize) -> Result<Report> {
    let (caller, _watch) = prepare(url, plan)?;
    let shots = Mutex::new(schedule::shots(plan).into_iter());
    let next = Arc::new(move || shots.lock().unwrap_or_else(PoisonError::into_inner).next());
    let mut tasks = JoinSet::new();
    for number in 0..at_once {
        let begin = caller.start + (plan.warm_up / 2).mul_f64(number as f64 / at_once as f64);
        let (caller, next, plan) = (Arc::clone(&caller), Arc::clone(&next), plan.clone());
        tasks.spawn(async move {
            let mut records = Vec::new();
            tokio::time::sleep_until(begin).await;
            while Instant::now() < caller.window.end
                && let Some(shot) = next()
            {
                let shot = Shot { at: caller.start.elapsed(), ..shot };
                records.push(caller.call(&flow(&plan, &shot)?, &shot).await);
            }
            Ok::<_, anyhow::Error>(records)
        });
    }
    let mut records = Vec::new();
    for of_one in tasks.join_all().await {
        records.extend(of_one?);
    }
    ensure!(next().is_some(), "the plan has too few requests to keep {at_once} under way");
    Ok(report::report(plan, &records))
}

fn prepare(url: &str, plan: &Plan) -> Result<(Arc<Caller>, Watch)> {
    ensure!(plan.duration > plan.warm_up, "the plan lasts no time");
    for flow in &plan.flows {
        let rate = flow.rate_per_s;
        ensure!(rate.is_finite() && rate > 0.0, "{}: {rate} arrivals per second are no rate", flow.name);
        let sizes = [&flow.prompt_bytes, &flow.max_tokens];
        ensure!(sizes.iter().all(|sizes| sizes.are_some()), "{}: a range of sizes is empty", flow.name);
        ensure!(flow.burst > 0, "{}: a burst has no request", flow.name);
        ensure!(!flow.tenants.is_empty(), "{}: nobody sends it", flow.name);
        let orderly = |leaves: &Leaves| (0.0..=1.0).contains(&leaves.share) && !leaves.after.is_empty();
        ensure!(flow.leaves.as_ref().is_none_or(orderly), "{}: nobody can leave like this", flow.name);
    }
    let client = reqwest::Client::builder().no_proxy().build().context("cannot make an HTTP client")?;
    let watch = Watch::start(LOOK, report::TOLERATED_LAG);
    let start = Instant::now();
    let caller = Caller {
        client,
        url: url.to_owned(),
        model: plan.model.clone(),
        start,
        window: start + plan.warm_up..start + plan.duration,
        cut_off: start + plan.duration + plan.drain,
        lag: watch.reading(),
    };
    Ok((Arc::new(caller), watch))
}

fn flow(plan: &Plan, shot: &Shot) -> Result<Flow> {
    plan.flows.get(shot.flow).cloned().context("a shot of no flow")
}
