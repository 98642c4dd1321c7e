//! The overload benchmark: what admission is worth at three times the load, and what queues in the proxy cost.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use clap::{Parser, ValueEnum};
use testkit::parts::Programs;

mod figures;
mod long_prompts;
mod queue_cost;
mod reserve;
mod scenario;
mod throughput;
mod wake;

use figures::{Figures, Lanes, Report};
use scenario::Pace;

/// Measures three times the load with and without the filter, and what waiting in the proxy costs.
#[derive(Parser, Clone, Debug)]
#[command(name = "cargo xtask bench overload")]
struct Options {
    /// Write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measure this module of the filter first, such as `target/neighbour/sluice.wasm`, which `cargo xtask neighbours` leaves of
    /// another commit.
    #[arg(long, value_name = "MODULE")]
    before: Option<PathBuf>,
    /// Play one scenario only.
    #[arg(long, value_enum)]
    only: Option<Scenario>,
    /// Shorter loads: enough to see that everything works, too little for figures.
    #[arg(long)]
    quick: bool,
}

/// Scenarios of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Three lanes at three times what 16 workers can do, a reserve, and what waiting costs.
    Lanes,
    /// Bursts of long prompts beside a chat, with one worker.
    LongPrompts,
}

fn main() -> ExitCode {
    lab::exit(run(&Options::parse()))
}

/// Measures, prints a table and writes the figures.
fn run(options: &Options) -> Result<()> {
    let report = lab::block_on(measure_all(options))?;
    println!("\noverload");
    report.print();
    lab::write_figures(options.json.as_deref(), &report)?;
    Ok(())
}

async fn measure_all(options: &Options) -> Result<Report> {
    let (now, pace) = (Programs::built()?, Pace::new(options.quick));
    let before = match &options.before {
        Some(module) => {
            println!("\n{} …", module.display());
            let programs = Programs { filter: std::path::absolute(module)?, ..now.clone() };
            Some(measure(&programs, options.only, pace).await?)
        }
        None => None,
    };
    Ok(Report { now: measure(&now, options.only, pace).await?, before })
}

async fn measure(programs: &Programs, only: Option<Scenario>, pace: Pace) -> Result<Figures> {
    let is_played = |scenario| only.is_none_or(|only| only == scenario);
    let lanes = if is_played(Scenario::Lanes) { Some(lanes(programs, pace).await?) } else { None };
    let long_prompts =
        if is_played(Scenario::LongPrompts) { Some(long_prompts::measure(programs, pace).await?) } else { None };
    Ok(Figures { lanes, long_prompts })
}

async fn lanes(programs: &Programs, pace: Pace) -> Result<Lanes> {
    let throughput = throughput::measure(programs, pace).await?;
    let reserve = reserve::measure(programs, pace).await?;
    let wake = wake::measure(programs, pace).await?;
    let queue_cost = queue_cost::measure(programs, pace).await?;
    Ok(Lanes::new(throughput, reserve, wake, queue_cost))
}
