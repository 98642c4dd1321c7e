//! The demo: three simulated workers, the sidecar and a real Envoy with the shipped configuration, overloaded twice.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

use crate::workspace::Workspace;
use crate::{artefacts, tools};

mod figures;
mod parts;
mod scenario;
mod show;

pub use figures::Figures;

use figures::Run;
use parts::{Parts, Programs};

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
    println!("tools and programs");
    tools::for_demo(workspace)?;
    artefacts::released_filter(workspace)?;
    artefacts::programs(workspace)?;
    run_built(workspace, options).map(drop)
}

/// Runs the demo and returns what it measured. Whatever it started has ended then, also after a failure or Ctrl-C.
///
/// # Errors
/// When a part cannot be started, or a request goes otherwise than it should.
pub fn run_built(workspace: &Workspace, options: &Options) -> Result<Figures> {
    let programs = Programs {
        worker: workspace.built("debug", "worker-sim"),
        sidecar: workspace.built("debug", "sluice-sidecar"),
        envoy: workspace.envoy(),
        filter: workspace.filter(),
        bootstrap: workspace.shipped("envoy.yaml"),
        sidecar_config: workspace.shipped("sidecar.yaml"),
    };
    let runtime = tokio::runtime::Runtime::new().context("cannot start the demo's runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        // Whichever ends first, the other is dropped, and with it every program that was started. The demo comes first, since
        // once it holds, Ctrl-C is how it is meant to end.
        tokio::select! {
            biased;
            figures = play(&programs, options) => figures,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
            _ = terminate.recv() => bail!("terminated"),
        }
    })
}

async fn play(programs: &Programs, options: &Options) -> Result<Figures> {
    println!("parts");
    let parts = Parts::start(programs).await?;
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
