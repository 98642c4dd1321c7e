//! Building what is shipped and what tests run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::workspace::Workspace;
use crate::{checksums, command, module, paths, tools};

/// What the filter is compiled to.
pub const WASM: &str = "wasm32-wasip1";

/// Modules that the benchmark compares the filter with; cargo writes their packages with hyphens.
const OTHER_FILTERS: [&str; 2] = ["lab_floor", "lab_naive"];

/// Writes what a release consists of: the filter, the sidecar, what each is made of, and the sums of all.
///
/// # Errors
/// When something does not build.
pub fn release(workspace: &Workspace) -> Result<()> {
    tools::for_build(workspace)?;
    let dist = workspace.dist();
    filter(workspace, &[], &dist.join("sluice.wasm"))?;
    copy(&released_sidecar(workspace)?, &dist.join("sluice-sidecar"))?;
    command::run(command::cargo("run", ["--package", "lab-sbom", "--"]).arg(&dist).current_dir(&workspace.root))?;
    checksums::write(&dist)
}

/// Builds the sidecar as released, and says where cargo has put it.
///
/// # Errors
/// When it does not build.
pub fn released_sidecar(workspace: &Workspace) -> Result<PathBuf> {
    let arguments = ["--profile", "native", "--package", "host-sidecar", "--bin", "sluice-sidecar"];
    command::run(command::cargo("build", arguments).current_dir(&workspace.root))?;
    Ok(workspace.built("native", "sluice-sidecar"))
}

/// Builds the filter as released, and the one that fails on command.
///
/// # Errors
/// When it does not build.
pub fn filters(workspace: &Workspace) -> Result<()> {
    faulty_filter(workspace)?;
    released_filter(workspace)
}

/// Builds the filter that fails on command.
///
/// # Errors
/// When it does not build.
pub fn faulty_filter(workspace: &Workspace) -> Result<()> {
    filter(workspace, &["--features", "test-faults"], &workspace.faulty_filter())
}

/// Builds the modules that the benchmark compares the filter with.
///
/// # Errors
/// When they do not build.
pub fn other_filters(workspace: &Workspace) -> Result<()> {
    for name in OTHER_FILTERS {
        let package = name.replace('_', "-");
        let mut cargo = command::cargo("build", ["--release", "--target", WASM, "--package", &package]);
        command::run(cargo.current_dir(&workspace.root))?;
        let module = workspace.built(&format!("{WASM}/release"), &format!("{name}.wasm"));
        copy(&module, &workspace.module(name))?;
    }
    Ok(())
}

/// Builds the filter as released.
///
/// # Errors
/// When it does not build.
pub fn released_filter(workspace: &Workspace) -> Result<()> {
    filter(workspace, &[], &workspace.filter())
}

/// Builds the filter into a file, and beside that, as `*.debug.wasm`, the same with the names of its functions.
fn filter(workspace: &Workspace, features: &[&str], to: &Path) -> Result<()> {
    // Cargo puts every variant in the same place.
    as_released(&compile_filter(workspace, features, None)?, to)
}

/// Writes a module of the compiler as it is released, and beside that, as `*.debug.wasm`, the same with the names of its functions.
///
/// # Errors
/// When it is no module, or cannot be written.
pub fn as_released(compiled: &[u8], to: &Path) -> Result<()> {
    let named = module::trimmed(compiled)?;
    put(&named, &to.with_extension("debug.wasm"))?;
    put(&module::without_names(&named)?, to)
}

/// Compiles the filter, where cargo is to take another folder for its home than the usual, and returns the module as the
/// compiler leaves it.
///
/// # Errors
/// When it does not build.
pub fn compile_filter(workspace: &Workspace, features: &[&str], home: Option<&Path>) -> Result<Vec<u8>> {
    let mut cargo = command::cargo("build", ["--release", "--target", WASM, "--package", "sluice"]);
    cargo.args(features).arg("--target-dir").arg(workspace.cargo_target()).current_dir(&workspace.root);
    cargo.envs(home.map(|home| ("CARGO_HOME", home)));
    paths::hide(&mut cargo, &workspace.root)?;
    command::run(&mut cargo)?;
    let module = workspace.built(&format!("{WASM}/release"), "sluice.wasm");
    fs::read(&module).with_context(|| format!("cannot read {}", module.display()))
}

/// Copies a file by renaming, so that whoever reads it meanwhile has either the old one or the new.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let half = half_of(to)?;
    fs::copy(from, &half).with_context(|| format!("cannot copy {} to {}", from.display(), half.display()))?;
    finish(&half, to)
}

/// The same for what is in memory.
fn put(bytes: &[u8], to: &Path) -> Result<()> {
    let half = half_of(to)?;
    fs::write(&half, bytes).with_context(|| format!("cannot write {}", half.display()))?;
    finish(&half, to)
}

fn half_of(to: &Path) -> Result<PathBuf> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    Ok(to.with_extension("new"))
}

fn finish(half: &Path, to: &Path) -> Result<()> {
    fs::rename(half, to).with_context(|| format!("cannot put {} in its place", to.display()))?;
    let bytes = fs::metadata(to).with_context(|| format!("cannot look at {}", to.display()))?.len();
    println!("    {} ({} KiB)", to.display(), bytes.div_ceil(1024));
    Ok(())
}
