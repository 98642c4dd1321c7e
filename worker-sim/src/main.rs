//! The worker as a program: one line on stdout when it serves, then it runs until SIGTERM or Ctrl-C.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use worker_sim::{Config, StartError, Worker};

#[tokio::main]
async fn main() -> ExitCode {
    match run(Config::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(config: Config) -> Result<(), StartError> {
    // Handlers come before the line on stdout, so that whoever read it may already send a signal.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let worker = Worker::start(config).await?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "listening on {}", worker.address())?;
    stdout.flush()?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    worker.stop().await;
    Ok(())
}
