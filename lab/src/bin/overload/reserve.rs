//! A lane with a part of the pool that is kept for it, alone and under a flood of others.

use std::net::SocketAddr;

use anyhow::Result;
use serde::Serialize;
use testkit::parts::{Parts, Programs};

use super::scenario::{self, INTERACTIVE, Pace};
use super::throughput::{Run, run};

/// Both sides of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Reserve {
    pub with: Side,
    pub without: Side,
}

/// The lane alone, and beside the flood.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    pub idle: Run,
    pub flood: Run,
}

impl Side {
    /// The lane's p95 TTFT under the flood, in multiples of that alone.
    pub fn ttft_p95_ratio(&self) -> Option<f64> {
        let p95 = |run: &Run| run.report.flows.get(INTERACTIVE)?.ttft_p95_ms;
        Some(p95(&self.flood)? / p95(&self.idle)?)
    }
}

/// Measures both loads with the filter and without.
///
/// # Errors
/// When a part fails, or a request goes otherwise than it may.
pub async fn measure(programs: &Programs, pace: Pace) -> Result<Reserve> {
    let parts = Parts::start(programs, &scenario::RESERVE).await?;
    let with = side(&parts, parts.with, "with the filter", pace).await?;
    Ok(Reserve { with, without: side(&parts, parts.without, "without it", pace).await? })
}

async fn side(parts: &Parts, listener: SocketAddr, name: &str, pace: Pace) -> Result<Side> {
    println!("\na lane within its reserve, alone, {name} …");
    let idle = run(parts, listener, &scenario::kept(false, pace)).await?;
    println!("\nthe same beside a flood of batch work, {name} …");
    Ok(Side { idle, flood: run(parts, listener, &scenario::kept(true, pace)).await? })
}
