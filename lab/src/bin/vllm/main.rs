//! The test against a real vLLM on the CPU: what the sidecar reads of it, what the proxy is told, and an overload with and
//! without the filter.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use clap::Parser;
use lab::side_by_side::{Figures as Overload, Run};
use testkit::checkout;
use testkit::parts::Programs;

mod cores;
mod engine;
mod page_cost;
mod reading;
mod scenario;
mod stage;
mod sweep;

use page_cost::PageCost;
use reading::Reading;
use stage::Stage;

/// Compares what the sidecar reads of a real vLLM with its page, and overloads it without and with the filter.
#[derive(Parser, Clone, Debug)]
#[command(name = "cargo xtask test-vllm")]
struct Options {
    /// Write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// All figures.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    reading: Reading,
    /// Requests a second that the engine answers when it is kept full.
    best_requests_per_s: f64,
    overload: Overload,
    /// The overload behind other caps.
    sweep: Vec<sweep::Row>,
    page_cost: PageCost,
}

fn main() -> ExitCode {
    lab::exit(run(&Options::parse()))
}

/// Runs the test, prints and writes the figures, and fails when the sidecar reads something else than the page says or the
/// filter is of no use.
fn run(options: &Options) -> Result<()> {
    let programs = Programs { sidecar: checkout::released("sluice-sidecar")?, ..Programs::built()? };
    let installed = engine::Installed::with_model()?;
    // Why: before there is any thread, since those of the runtime and all programs started later inherit it.
    cores::leave_the_first_to_the_engine()?;
    let figures = lab::block_on(play(&programs, &installed))?;
    lab::write_figures(options.json.as_deref(), &figures)?;
    figures.check()
}

async fn play(programs: &Programs, installed: &engine::Installed) -> Result<Figures> {
    println!("\nparts");
    let stage = Stage::start(programs, installed).await?;

    println!(
        "\nkept full for {} s, without the filter: what it can do, and what is read of it …",
        scenario::FULL.as_secs()
    );
    let url = format!("http://{}/v1/chat/completions", stage.front.without);
    let plan = scenario::full();
    let (full, reading) =
        tokio::join!(testkit::load::saturate(&url, &plan, scenario::AT_ONCE), reading::compare(&stage, scenario::FULL));
    let reading = reading?;
    reading.print();
    let best = scenario::completed(&full?) as f64 / scenario::FULL.as_secs_f64();
    println!("\n    it answers {best:.2} requests a second");
    let seconds = scenario::OVERLOAD.as_secs();
    println!("\n{seconds} s of {} times that, without the filter …", scenario::TIMES);
    let without = overload(&stage, stage.front.without, best).await?;
    println!("… and the same requests with it …");
    let (with, known) = tokio::join!(overload(&stage, stage.front.with, best), halfway(&stage));
    println!("\nhalfway through, the proxy says of the pool:");
    for line in known? {
        println!("    {line}");
    }
    let with = with?;
    let overload = Overload { without, with };
    println!("\nside by side");
    overload.print();
    let sweep = sweep::measure(programs, &stage, best).await?;
    println!("\nthe same overload for {} s behind other caps, in batches of the engine", scenario::SWEEP.as_secs());
    sweep::print(&sweep);
    println!("\na page of the engine");
    let page_cost = PageCost::measure(&stage).await?;
    page_cost.print();
    Ok(Figures { reading, best_requests_per_s: best, overload, sweep, page_cost })
}

async fn halfway(stage: &Stage) -> Result<Vec<String>> {
    tokio::time::sleep(scenario::OVERLOAD / 2).await;
    reading::known(stage).await
}

async fn overload(stage: &Stage, listener: std::net::SocketAddr, best: f64) -> Result<Run> {
    stage.until_idle().await?;
    let before = stage.page().await?.preemptions;
    let url = format!("http://{listener}/v1/chat/completions");
    let report = testkit::load::run(&url, &scenario::overload(best)).await?;
    Ok(Run::new(&report, stage.page().await?.preemptions.saturating_sub(before)))
}

impl Figures {
    fn check(&self) -> Result<()> {
        self.reading.check()?;
        self.page_cost.check()?;
        scenario::check(&self.overload)
    }
}
