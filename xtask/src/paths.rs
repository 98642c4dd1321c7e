//! Keeps folders of the machine that builds out of what is built: the same bytes everywhere, and nobody's name in them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::artefacts::WASM;
use crate::command;

/// Has the compiler, run in a checkout, write `crates/serde_json-1.0.0/src/…` where it would name a folder of this machine. Flags of the
/// environment would take the place of the repository's own, so they are left out.
///
/// # Errors
/// When cargo cannot say where packages are.
pub fn hide(cargo: &mut Command, checkout: &Path) -> Result<()> {
    let mut metadata = command::cargo("metadata", ["--format-version", "1", "--filter-platform", WASM]);
    // In the same home, which is where packages are.
    metadata.current_dir(checkout).envs(cargo.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let metadata = command::output(&mut metadata)?;
    let metadata: Value = serde_json::from_str(&metadata).context("cannot read what cargo metadata says")?;
    let mut flags: Vec<String> = folders(&metadata).iter().map(|folder| remapped(folder, "crates")).collect();
    flags.push(remapped(checkout, "."));
    let flags = serde_json::to_string(&flags).context("a path is no text")?;
    cargo.arg("--config").arg(format!("target.{WASM}.rustflags={flags}"));
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    Ok(())
}

fn remapped(from: &Path, to: &str) -> String {
    format!("--remap-path-prefix={}={to}", from.display())
}

/// Folders that hold packages of registries.
fn folders(metadata: &Value) -> BTreeSet<&Path> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    // Packages of this workspace have no source.
    let of_registries = packages.filter(|package| package["source"].is_string());
    of_registries.filter_map(|package| Path::new(package["manifest_path"].as_str()?).parent()?.parent()).collect()
}
