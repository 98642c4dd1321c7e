//! The test against a real vLLM on the CPU: what the sidecar reads of it, what the proxy is told, and an overload with and
//! without the filter.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::demo::{Figures as Overload, Run};
use crate::parts::{self, Programs};
use crate::workspace::Workspace;
use crate::{artefacts, tools};

mod cores;
mod engine;
mod install;
mod page_cost;
mod reading;
mod scenario;
mod stage;

use page_cost::PageCost;
use reading::Reading;
use stage::Stage;

/// How to run the test.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to write the figures.
    pub json: Option<PathBuf>,
}

/// All figures.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    reading: Reading,
    /// Requests a second that the engine answers when it is kept full.
    best_requests_per_s: f64,
    overload: Overload,
    page_cost: PageCost,
}

/// Installs a real vLLM, runs the test, prints and writes the figures.
///
/// # Errors
/// When a part cannot be had or started, the sidecar reads something else than the page says, or the filter is of no use.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    println!("tools and programs");
    tools::for_demo(workspace)?;
    artefacts::released_filter(workspace)?;
    let programs = Programs { sidecar: artefacts::released_sidecar(workspace)?, ..Programs::of(workspace) };
    let installed = install::install(workspace)?;
    // Before there is any thread: those of the runtime and all programs started later inherit it.
    cores::leave_the_first_to_the_engine()?;
    let figures = parts::block_on(play(&programs, &installed))?;
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&figures)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    figures.check()
}

async fn play(programs: &Programs, installed: &install::Installed) -> Result<Figures> {
    println!("\nparts");
    let stage = Stage::start(programs, installed).await?;

    println!(
        "\nkept full for {} s, without the filter: what it can do, and what is read of it …",
        scenario::FULL.as_secs()
    );
    let url = format!("http://{}/v1/chat/completions", stage.without);
    let plan = scenario::full();
    let (full, reading) =
        tokio::join!(bench::load::saturate(&url, &plan, scenario::AT_ONCE), reading::compare(&stage, scenario::FULL));
    let reading = reading?;
    reading.print();
    let best = scenario::completed(&full?) as f64 / scenario::FULL.as_secs_f64();
    println!("\n    it answers {best:.2} requests a second");
    let seconds = scenario::OVERLOAD.as_secs();
    println!("\n{seconds} s of {} times that, without the filter …", scenario::TIMES);
    let without = overload(&stage, stage.without, best).await?;
    println!("… and the same requests with it …");
    let (with, known) = tokio::join!(overload(&stage, stage.with, best), halfway(&stage));
    println!("\nhalfway through, the proxy says of the pool:");
    for line in known? {
        println!("    {line}");
    }
    let with = with?;
    let overload = Overload { without, with };
    println!("\nside by side");
    overload.print();
    println!("\na page of the engine");
    let page_cost = PageCost::measure(&stage).await?;
    page_cost.print();
    Ok(Figures { reading, best_requests_per_s: best, overload, page_cost })
}

async fn halfway(stage: &Stage) -> Result<Vec<String>> {
    tokio::time::sleep(scenario::OVERLOAD / 2).await;
    reading::known(stage).await
}

async fn overload(stage: &Stage, listener: std::net::SocketAddr, best: f64) -> Result<Run> {
    stage.until_idle().await?;
    let before = stage.page().await?.preemptions;
    let url = format!("http://{listener}/v1/chat/completions");
    let report = bench::load::run(&url, &scenario::overload(best)).await?;
    Ok(Run::new(&report, stage.page().await?.preemptions.saturating_sub(before)))
}

impl Figures {
    fn check(&self) -> Result<()> {
        self.reading.check()?;
        self.page_cost.check()?;
        scenario::check(&self.overload)
    }
}
