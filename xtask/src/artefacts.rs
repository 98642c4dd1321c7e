//! Building what is shipped and what tests run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command;
use crate::workspace::Workspace;

/// What the filter is compiled to.
pub const WASM: &str = "wasm32-wasip1";

/// Writes what a release consists of.
///
/// # Errors
/// When something does not build.
pub fn release(workspace: &Workspace) -> Result<()> {
    filter(workspace, &[], &workspace.dist().join("sluice.wasm"))?;
    copy(&released_sidecar(workspace)?, &workspace.dist().join("sluice-sidecar"))
}

/// Builds the sidecar as released, and says where cargo has put it.
///
/// # Errors
/// When it does not build.
pub fn released_sidecar(workspace: &Workspace) -> Result<PathBuf> {
    let arguments = ["build", "--profile", "native", "--package", "host-sidecar", "--bin", "sluice-sidecar"];
    command::run(command::cargo(arguments).current_dir(&workspace.root))?;
    Ok(workspace.built("native", "sluice-sidecar"))
}

/// Builds the filter as released, and the one that traps on command.
///
/// # Errors
/// When it does not build.
pub fn filters(workspace: &Workspace) -> Result<()> {
    filter(workspace, &["--features", "test-trap"], &workspace.trapping_filter())?;
    filter(workspace, &[], &workspace.filter())
}

/// Builds the filter as released.
///
/// # Errors
/// When it does not build.
pub fn released_filter(workspace: &Workspace) -> Result<()> {
    filter(workspace, &[], &workspace.filter())
}

/// Cargo puts every variant in the same place, so each is copied to its own before the next is built.
fn filter(workspace: &Workspace, features: &[&str], to: &Path) -> Result<()> {
    let mut cargo = command::cargo(["build", "--release", "--target", WASM, "--package", "sluice"]);
    command::run(cargo.args(features).current_dir(&workspace.root))?;
    copy(&workspace.built(&format!("{WASM}/release"), "sluice.wasm"), to)
}

/// Builds the worker and the sidecar as tests do. With this package among those selected, cargo compiles their common
/// dependencies as it has done for it.
///
/// # Errors
/// When they do not build.
pub fn programs(workspace: &Workspace) -> Result<()> {
    let mut cargo = command::cargo(["build", "--bins"]);
    cargo.args(["--package", "worker-sim", "--package", "host-sidecar", "--package", "xtask"]);
    command::run(cargo.current_dir(&workspace.root))
}

/// By renaming, so that whoever reads the file meanwhile has either the old one or the new.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let explain = || format!("cannot copy {} to {}", from.display(), to.display());
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(explain)?;
    }
    let half = to.with_extension("new");
    fs::copy(from, &half).with_context(explain)?;
    fs::rename(&half, to).with_context(explain)?;
    println!("    {} ({} KiB)", to.display(), fs::metadata(to).with_context(explain)?.len() / 1024);
    Ok(())
}
