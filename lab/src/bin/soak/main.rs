//! The soak: whether memory, shared data and latency are after a long time what they were at its beginning.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;

use testkit::parts::{Parts, Programs};

mod figures;
mod samples;
mod scenario;

use figures::{Figures, PARTS, Phase};

/// Longest time until nothing is held once nobody asks.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs for long at half load and at three times the load, and checks that memory, keys and latency stay as they were.
#[derive(Parser, Clone, Debug)]
#[command(name = "cargo xtask soak")]
struct Options {
    /// How long each of the two loads lasts, in minutes; at least two.
    #[arg(long, default_value_t = 20.0)]
    minutes: f64,
    /// Write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    lab::exit(run(&Options::parse()))
}

/// Measures, prints a table and writes the figures.
fn run(options: &Options) -> Result<()> {
    ensure!((2.0..=6_000.0).contains(&options.minutes), "--minutes takes 2 to 6000");
    let figures = lab::block_on(measure(&Programs::built()?, options.minutes))?;
    println!("\nsoak, twice {} minutes", options.minutes);
    figures.print();
    lab::write_figures(options.json.as_deref(), &figures)?;
    if !figures.broken.is_empty() {
        bail!("{}", figures.broken.join("\n"));
    }
    Ok(())
}

async fn measure(programs: &Programs, minutes: f64) -> Result<Figures> {
    println!("parts");
    let parts = Parts::start(programs, &scenario::STAGE).await?;
    let length = Duration::from_secs_f64(minutes * 60.0);
    let url = format!("http://{}/v1/chat/completions", parts.with);
    let mut phases = Vec::new();
    for phase in scenario::PHASES {
        println!("\n{} for {minutes} minutes …", phase.name);
        let (plan, mut samples) = (phase.plan(length), Vec::new());
        let reports = tokio::select! {
            reports = testkit::load::run_in_parts(&url, &plan, PARTS) => reports?,
            watched = samples::watch(&parts, phase.name, &mut samples) => {
                watched?;
                bail!("nobody looks any more");
            }
        };
        let measured = Phase::new(phase.name, length.as_secs_f64(), samples, &reports);
        phases.push(measured.context("nothing was sent")?);
        parts.until_idle().await?;
    }
    let deadline = Instant::now() + PATIENCE;
    let rest = loop {
        let last = samples::look(&parts, Instant::now()).await?;
        if last.held + last.waiting == 0 || Instant::now() > deadline {
            break (last.held, last.waiting);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    Ok(Figures::new(minutes, phases, rest))
}
