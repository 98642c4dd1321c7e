//! Command line of the sidecar.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use host_sidecar::check::Totals;
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
    /// Say what is wrong in configurations of the filter, of the proxy around it and of the sidecar.
    Check {
        /// YAML or JSON, with one document or several.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Print the JSON Schema of a plugin configuration.
    Schema,
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run { config } => run(&config).await.map(|()| ExitCode::SUCCESS),
        Command::Check { files } => check(&files),
        Command::Schema => print(&format!("{:#}\n", admission_core::config::schema())).map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

async fn run(path: &Path) -> Result<(), String> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let mut interrupted = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let mut terminated = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut sidecar = Sidecar::start(load(path)?).await.map_err(|error| error.to_string())?;
    print(&format!("listening on {}\n", sidecar.address()))?;
    tokio::select! {
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
        () = sidecar.broken() => return Err("a task has ended that never should".into()),
    }
    tracing::info!("stopping");
    sidecar.stop().await;
    Ok(())
}

/// Fails when there is a mistake in one of the files.
fn check(files: &[PathBuf]) -> Result<ExitCode, String> {
    let mut out = String::new();
    let mut totals = Totals::default();
    for file in files {
        let name = file.display().to_string();
        match std::fs::read_to_string(file) {
            Ok(text) => {
                let report = host_sidecar::check::text(&text);
                report.lines(&name).for_each(|line| out.extend([line.as_str(), "\n"]));
                totals.add(&report);
            }
            Err(error) => {
                out.extend([name.as_str(), ": cannot be read: ", &error.to_string(), "\n"]);
                totals.unreadable();
            }
        }
    }
    print(&format!("{out}{totals}\n"))?;
    Ok(if totals.errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn load(path: &Path) -> Result<Config, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Config::parse(&text).map_err(|errors| {
        let lines: Vec<_> = errors.iter().map(|error| format!("{}: {error}", path.display())).collect();
        lines.join("\n")
    })
}

fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| format!("cannot write to standard output: {error}"))
}
