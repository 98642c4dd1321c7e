//! Shared parts of the lab's programs: how each runs its play, writes its figures, and shows two runs side by side.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

pub mod side_by_side;

/// Exit status of a program of the lab, after its error, if any, has been printed.
#[must_use]
pub fn exit(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a play to its end. Every process that it started has ended when this returns, also after a failure or Ctrl-C.
///
/// # Errors
/// Those of the play, and that it was interrupted.
pub fn block_on<T>(play: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start a runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        // Why: whichever ends first, the others are dropped, and with them every process that was started. The play comes
        // first, since Ctrl-C may be how it is meant to end.
        tokio::select! {
            biased;
            outcome = play => outcome,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
            _ = terminate.recv() => bail!("terminated"),
        }
    })
}

/// Writes figures as JSON, where a file for them was named.
///
/// # Errors
/// When the file cannot be written.
pub fn write_figures(path: Option<&Path>, figures: &impl Serialize) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(figures)?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
