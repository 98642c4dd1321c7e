//! Runs the filter and the sidecar of another commit beside those of this one.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace::Workspace;
use crate::{artefacts, command, paths, suite, tools};

/// Commit of the other parts.
#[derive(clap::Args)]
pub struct Options {
    /// Any commit of this repository, such as that of the release before.
    commit: String,
}

/// Builds the module and the sidecar of a commit, and runs the tests in Envoy that put them beside this checkout's.
///
/// # Errors
/// When the commit cannot be had or built, or a test fails.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    tools::install(workspace)?;
    let folder = workspace.root.join("target/neighbour");
    let checkout = folder.join("checkout");
    check_out(workspace, &options.commit, &checkout)?;
    let target = folder.join("target");
    let cargo = |arguments: &[&str]| {
        let mut cargo = command::cargo("build", arguments.iter().copied());
        cargo.arg("--target-dir").arg(&target).current_dir(&checkout);
        cargo
    };
    let mut module = cargo(&["--release", "--target", artefacts::WASM, "--package", "sluice"]);
    // As this checkout's is built, so that the two can be compared.
    paths::hide(&mut module, &checkout)?;
    command::run(&mut module)?;
    command::run(&mut cargo(&["--package", "host-sidecar", "--bin", "sluice-sidecar"]))?;
    let module = target.join(artefacts::WASM).join("release/sluice.wasm");
    let module = fs::read(&module).with_context(|| format!("cannot read {}", module.display()))?;
    artefacts::as_released(&module, &folder.join("sluice.wasm"))?;
    copy(&target.join("debug/sluice-sidecar"), &folder.join("sluice-sidecar"))?;
    suite::envoy_tests_of_neighbours(workspace)
}

/// Replaces a folder by the files of a commit. Why no work tree of git: it would have to be removed by hand after a failure.
fn check_out(workspace: &Workspace, commit: &str, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("cannot remove {}", to.display()))?;
    }
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let archive = to.with_extension("tar");
    let mut git = Command::new("git");
    git.args(["archive", "--output"]).arg(&archive).arg(commit);
    command::run(git.current_dir(&workspace.root))?;
    command::run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(to))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display())).map(drop)
}
