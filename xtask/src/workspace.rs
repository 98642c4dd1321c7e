//! Where things are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command;

/// The folders of this checkout.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// The checkout.
    pub root: PathBuf,
    /// Where cargo builds, wherever that has been set to.
    cargo_target: PathBuf,
}

impl Workspace {
    /// Asks cargo.
    ///
    /// # Errors
    /// When cargo cannot say.
    pub fn find() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let mut cargo = command::cargo("metadata", ["--no-deps", "--format-version", "1", "--manifest-path"]);
        let answer = command::output(cargo.arg(manifest))?;
        let metadata: Value = serde_json::from_str(&answer).context("cannot read what cargo metadata says")?;
        let path = |field: &str| metadata[field].as_str().map(PathBuf::from).with_context(|| format!("no {field}"));
        Ok(Self { root: path("workspace_root")?, cargo_target: path("target_directory")? })
    }

    /// Another checkout, which cargo builds in its own `target`.
    pub fn at(root: PathBuf) -> Self {
        Self { cargo_target: root.join("target"), root }
    }

    /// Installed tools. Not where cargo builds, so that tests find them wherever that is.
    pub fn tools(&self) -> PathBuf {
        self.root.join("target/tools")
    }

    /// Programs that come from crates.
    pub fn tools_bin(&self) -> PathBuf {
        self.tools().join("bin")
    }

    /// Programs that come from Python packages.
    pub fn venv(&self) -> PathBuf {
        self.tools().join("venv")
    }

    /// The Envoy program.
    pub fn envoy(&self) -> PathBuf {
        self.tools().join("envoy")
    }

    /// The filter as it is released.
    pub fn filter(&self) -> PathBuf {
        self.module("sluice")
    }

    /// The filter that fails on command.
    pub fn faulty_filter(&self) -> PathBuf {
        self.module("sluice-test-faults")
    }

    /// A module by its name.
    pub fn module(&self, name: &str) -> PathBuf {
        self.root.join("target/wasm").join(name).with_extension("wasm")
    }

    /// What a release consists of.
    pub fn dist(&self) -> PathBuf {
        self.root.join("dist")
    }

    /// Where cargo builds.
    pub fn cargo_target(&self) -> &Path {
        &self.cargo_target
    }

    /// A program that cargo has built in a profile's folder.
    pub fn built(&self, folder: &str, name: &str) -> PathBuf {
        self.cargo_target.join(folder).join(name)
    }
}
