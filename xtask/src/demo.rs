//! The demo: three simulated workers, the sidecar and a real Envoy with the shipped configuration, overloaded twice.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::parts::{self, Parts, Programs};
use crate::workspace::Workspace;

mod figures;
mod scenario;
mod show;

pub use figures::{Figures, Run};

/// How to run the demo.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to write the figures.
    pub json: Option<PathBuf>,
    /// Leave everything running until Ctrl-C.
    pub hold: bool,
    /// Less load.
    pub short: bool,
}

/// Builds what is needed and runs the demo.
///
/// # Errors
/// When a part cannot be built, and those of [`run_built`].
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    parts::build(workspace)?;
    run_built(workspace, options).map(drop)
}

/// Runs the demo and returns what it measured.
///
/// # Errors
/// When a part cannot be started, or a request goes otherwise than it should.
pub fn run_built(workspace: &Workspace, options: &Options) -> Result<Figures> {
    parts::block_on(play(&Programs::of(workspace), options))
}

async fn play(programs: &Programs, options: &Options) -> Result<Figures> {
    println!("parts");
    let parts = Parts::start(programs, &scenario::STAGE).await?;
    show::requests(&parts).await?;
    parts.until_idle().await?;

    let seconds = scenario::plan(options.short).duration.as_secs();
    println!(
        "\n{seconds} s of load, over three times what the workers can do, from three tenants, without the filter …"
    );
    let without = overload(&parts, parts.without, options.short).await?;
    println!("\n… and the same requests with it …");
    let with = overload(&parts, parts.with, options.short).await?;
    println!("\nthe filter's count, as Prometheus reads it");
    for line in show::counted(&parts).await? {
        println!("    {line}");
    }
    let figures = Figures { without, with };
    println!("\nside by side");
    figures.print();
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&figures)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if options.hold {
        show::addresses(&parts);
        tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C")?;
    }
    Ok(figures)
}

async fn overload(parts: &Parts, listener: SocketAddr, short: bool) -> Result<Run> {
    let plan = scenario::plan(short);
    let before = parts.preemptions().await?;
    let url = format!("http://{listener}/v1/chat/completions");
    let (report, workers) = tokio::join!(bench::load::run(&url, &plan), halfway(parts, plan.duration));
    println!("    halfway, the sidecar says:");
    for line in workers? {
        println!("    {line}");
    }
    let preemptions = parts.preemptions().await?.saturating_sub(before);
    parts.until_idle().await?;
    Ok(Run::new(&report?, preemptions))
}

async fn halfway(parts: &Parts, duration: Duration) -> Result<Vec<String>> {
    tokio::time::sleep(duration / 2).await;
    show::workers(parts).await
}
