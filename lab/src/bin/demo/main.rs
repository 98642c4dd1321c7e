//! The demo: three simulated workers, the sidecar and a real Envoy with the shipped configuration, overloaded twice.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use clap::Parser;
use lab::side_by_side::{Figures, Run};
use testkit::parts::{Parts, Programs};

mod scenario;
mod show;

/// Overloads three simulated workers behind a real Envoy, without and with the filter.
#[derive(Parser, Clone, Debug)]
#[command(name = "cargo xtask demo")]
struct Options {
    /// Write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Leave everything running until Ctrl-C.
    #[arg(long)]
    hold: bool,
    /// Load of 10 seconds instead of 25.
    #[arg(long)]
    short: bool,
    /// Fail unless the figures show what the demo is there to show.
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let play = async || play(&Programs::built()?, &options).await;
    lab::exit(lab::block_on(play()))
}

async fn play(programs: &Programs, options: &Options) -> Result<()> {
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
    lab::write_figures(options.json.as_deref(), &figures)?;
    if options.hold {
        show::addresses(&parts);
        tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C")?;
    }
    if options.check { figures.check() } else { Ok(()) }
}

async fn overload(parts: &Parts, listener: SocketAddr, short: bool) -> Result<Run> {
    let plan = scenario::plan(short);
    let before = parts.preemptions().await?;
    let url = format!("http://{listener}/v1/chat/completions");
    let (report, workers) = tokio::join!(testkit::load::run(&url, &plan), halfway(parts, plan.duration));
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
