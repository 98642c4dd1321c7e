//! Files of this checkout: installed tools, built modules and programs, shipped configurations.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Root of the checkout that this crate was compiled in.
#[must_use]
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().unwrap_or(root)
}

/// The Envoy program that `cargo xtask tools` installs.
#[must_use]
pub fn envoy() -> PathBuf {
    root().join("target/tools/envoy")
}

/// Program of a Python package that `cargo xtask tools` installs.
#[must_use]
pub fn python_program(name: &str) -> PathBuf {
    root().join("target/tools/venv/bin").join(name)
}

/// The filter's module as it is released.
#[must_use]
pub fn filter() -> PathBuf {
    root().join("target/wasm/sluice.wasm")
}

/// The filter's module that fails on command.
#[must_use]
pub fn faulty_filter() -> PathBuf {
    root().join("target/wasm/sluice-test-faults.wasm")
}

/// Another module that `cargo xtask` has compiled for a benchmark.
#[must_use]
pub fn module(name: &str) -> PathBuf {
    root().join("target/wasm").join(name).with_extension("wasm")
}

/// A file among the shipped configurations.
#[must_use]
pub fn shipped(name: &str) -> PathBuf {
    root().join("envoy-config").join(name)
}

/// A program of this workspace that cargo has built in the same profile as the one that asks.
///
/// # Errors
/// When the system does not say which program asks.
pub fn beside_this(name: &str) -> Result<PathBuf> {
    Ok(folder_of_this()?.join(name))
}

/// A program of this workspace that cargo has built as released.
///
/// # Errors
/// When the system does not say which program asks.
pub fn released(name: &str) -> Result<PathBuf> {
    Ok(folder_of_this()?.join("../native").join(name))
}

fn folder_of_this() -> Result<PathBuf> {
    let program = std::env::current_exe().context("the system does not say which program this is")?;
    let folder = program.parent().context("a program has a folder")?;
    // Why: cargo puts the programs of tests one folder deeper.
    let folder = if folder.ends_with("deps") { folder.parent().context("deps has a parent")? } else { folder };
    Ok(folder.to_owned())
}
