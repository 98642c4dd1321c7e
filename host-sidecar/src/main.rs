//! Command line of the sidecar.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use host_sidecar::{Config, Sidecar};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Reads GPU workers and tells the proxies which are busy.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Scrape and push until told to stop.
    Run {
        /// YAML or JSON.
        #[arg(long)]
        config: PathBuf,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let Command::Run { config } = Arguments::parse().command;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run(&config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

async fn run(path: &Path) -> Result<(), String> {
    let mut interrupted = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let mut terminated = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut sidecar = Sidecar::start(load(path)?).await.map_err(|error| error.to_string())?;
    announce(&sidecar).map_err(|error| format!("cannot write to standard output: {error}"))?;
    tokio::select! {
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
        () = sidecar.broken() => return Err("a task has ended that never should".into()),
    }
    tracing::info!("stopping");
    sidecar.stop().await;
    Ok(())
}

fn load(path: &Path) -> Result<Config, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Config::parse(&text).map_err(|errors| {
        let lines: Vec<_> = errors.iter().map(|error| format!("{}: {error}", path.display())).collect();
        lines.join("\n")
    })
}

fn announce(sidecar: &Sidecar) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "listening on {}", sidecar.address())?;
    out.flush()
}
