//! Keeps folders of the machine that builds out of what is built: the same bytes everywhere, and nobody's name in them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::artefacts::WASM;
use crate::command;
use crate::workspace::Workspace;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    manifest_path: PathBuf,
    /// None for packages of this workspace.
    source: Option<String>,
}

/// Has the compiler write `crates/serde_json-1.0.0/src/…` where it would name a folder of this machine. Flags of the
/// environment would take the place of the repository's own, so they are left out.
///
/// # Errors
/// When cargo cannot say where packages are.
pub fn hide(cargo: &mut Command, workspace: &Workspace) -> Result<()> {
    let mut metadata = command::cargo("metadata", ["--format-version", "1", "--filter-platform", WASM]);
    // In the same home, which is where packages are.
    metadata.current_dir(&workspace.root).envs(cargo.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let metadata = command::output(&mut metadata)?;
    let metadata: Metadata = serde_json::from_str(&metadata).context("cannot read what cargo metadata says")?;
    let mut flags: Vec<String> = folders(&metadata).iter().map(|folder| remapped(folder, "crates")).collect();
    flags.push(remapped(&workspace.root, "."));
    let flags = serde_json::to_string(&flags).context("a path is no text")?;
    cargo.arg("--config").arg(format!("target.{WASM}.rustflags={flags}"));
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    Ok(())
}

fn remapped(from: &Path, to: &str) -> String {
    format!("--remap-path-prefix={}={to}", from.display())
}

/// Those that hold packages of registries.
fn folders(metadata: &Metadata) -> BTreeSet<&Path> {
    let packages = metadata.packages.iter().filter(|package| package.source.is_some());
    packages.filter_map(|package| package.manifest_path.parent()?.parent()).collect()
}
