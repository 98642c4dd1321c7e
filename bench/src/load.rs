//! An open-loop load client that measures time to first token.
//!
//! Requests leave at instants fixed in advance, whether or not earlier ones have been answered: a system that slows
//! down is not given less to do. TTFT counts from the scheduled instant. A client that is starved itself would blame the
//! system under test, so every sample knows by how much the client was late, and one that was too late is not used.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;
use tokio::time::Instant;

mod exchange;
mod report;
mod schedule;
mod sse;
mod watch;

pub use report::{Report, TenantReport};

use exchange::{Caller, Record};
use schedule::Shot;
use watch::Watch;

/// What is sent. The same plan sends the same requests at the same instants.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides arrivals and prompts.
    pub seed: u64,
    /// From the first possible arrival to the last; also the time over which goodput is taken.
    pub duration: Duration,
    /// How long after `duration` answers are waited for.
    pub drain: Duration,
    /// Most requests sent; those that would come later are left out.
    pub max_requests: usize,
    /// Model that requests name.
    pub model: String,
    /// Who sends.
    pub tenants: Vec<Tenant>,
}

/// One tenant's part of a plan.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Sent as `x-tenant-id`.
    pub name: String,
    /// Mean arrivals per second, with exponential gaps.
    pub rate_per_s: f64,
    /// Bytes of a prompt, every size in the range equally likely.
    pub prompt_bytes: RangeInclusive<u32>,
    /// `max_tokens` of every request.
    pub max_tokens: u32,
    /// Header and value by which a lane is asked for.
    pub lane: Option<(String, String)>,
}

/// Sends a plan to `url`, the address of a chat completions endpoint, and waits for the answers. Refusals are counted,
/// not tried again.
///
/// # Errors
/// When the plan cannot be sent at all; an answer that goes wrong is counted.
pub async fn run(url: &str, plan: &Plan) -> Result<Report> {
    ensure!(plan.duration > Duration::ZERO, "the plan lasts no time");
    for tenant in &plan.tenants {
        let rate = tenant.rate_per_s;
        ensure!(rate.is_finite() && rate > 0.0, "{}: {rate} arrivals per second are no rate", tenant.name);
        ensure!(!tenant.prompt_bytes.is_empty(), "{}: no size of prompt is in the range", tenant.name);
    }
    let shots = schedule::shots(plan);
    let client = reqwest::Client::builder().no_proxy().build().context("cannot make an HTTP client")?;
    let watch = Watch::start();
    let start = Instant::now();
    let caller = Arc::new(Caller {
        client,
        url: url.to_owned(),
        model: plan.model.clone(),
        start,
        window_end: start + plan.duration,
        cut_off: start + plan.duration + plan.drain,
        lag: watch.reading(),
    });
    let mut tasks = JoinSet::new();
    for shot in shots {
        let tenant = plan.tenants.get(shot.tenant).context("a shot of no tenant")?.clone();
        tasks.spawn(fire(Arc::clone(&caller), tenant, shot));
    }
    let records = tasks.join_all().await;
    Ok(report::report(plan, &records))
}

async fn fire(caller: Arc<Caller>, tenant: Tenant, shot: Shot) -> Record {
    tokio::time::sleep_until(caller.start + shot.at).await;
    caller.call(&tenant, &shot).await
}
