//! Fuzzing; the driver is a program of the package `fuzz`, so that nothing else compiles it.

use anyhow::Result;

use crate::command;
use crate::workspace::Workspace;

/// Runs the driver with the arguments of `cargo xtask fuzz`, in the folder that this was called in: paths are relative to it.
///
/// # Errors
/// The driver cannot be built, or fails.
pub fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let mut cargo = command::cargo("run", ["--quiet", "--package", "fuzz", "--bin", "campaign", "--manifest-path"]);
    command::run(cargo.arg(workspace.root.join("Cargo.toml")).arg("--").args(arguments))
}
