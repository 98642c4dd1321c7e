//! The overload benchmark: what admission is worth at three times the load, and what queues in the proxy cost.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::parts::{self, Programs};
use crate::workspace::Workspace;

mod figures;
mod queue_cost;
mod scenario;
mod throughput;
mod wake;

use figures::Figures;
use scenario::Pace;

/// How to run the benchmark.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to write the figures.
    pub json: Option<PathBuf>,
    /// Shorter loads: enough to see that everything works, too little for figures.
    pub quick: bool,
}

/// Builds what is needed, measures, prints a table and writes the figures.
///
/// # Errors
/// When a part cannot be built or started, or a request goes otherwise than it may.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    parts::build(workspace)?;
    let figures = parts::block_on(measure(&Programs::of(workspace), Pace::new(options.quick)))?;
    println!("\noverload");
    figures.print();
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&figures)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

async fn measure(programs: &Programs, pace: Pace) -> Result<Figures> {
    let throughput = throughput::measure(programs, pace).await?;
    let wake = wake::measure(programs, pace).await?;
    let queue_cost = queue_cost::measure(programs, pace).await?;
    Ok(Figures::new(throughput, wake, queue_cost))
}
