//! Builds the filter twice, in two folders, and compares.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;
use crate::{artefacts, checksums, command, module, tools};

/// Builds the filter from what git tracks, in two folders whose paths are of different lengths, each with a home of its own
/// name for cargo, and fails unless both modules are the same, byte for byte.
///
/// # Errors
/// When a build fails, or the modules differ.
pub fn run(workspace: &Workspace) -> Result<()> {
    tools::for_build(workspace)?;
    let folder = workspace.root.join("target/reproduce");
    clear(&folder)?;
    let mut sums = Vec::new();
    for name in ["one", "another/place/with/a/longer/name"] {
        let root = folder.join(name);
        copy_tracked(workspace, &root)?;
        let module = build(&root)?;
        sums.push(checksums::of(&module));
        println!("    {}  {} bytes", checksums::of(&module), module.len());
    }
    ensure!(sums.windows(2).all(|pair| pair[0] == pair[1]), "the same sources gave two modules");
    clear(&folder)
}

fn clear(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

fn copy_tracked(workspace: &Workspace, to: &Path) -> Result<()> {
    let list = command::output(Command::new("git").args(["ls-files", "-z"]).current_dir(&workspace.root))?;
    for name in list.split_terminator('\0') {
        let (from, to) = (workspace.root.join(name), to.join(name));
        let parent = to.parent().context("a tracked file has a folder")?;
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}

fn build(root: &Path) -> Result<Vec<u8>> {
    let home = root.with_extension("cargo-home");
    symlink(cargo_home()?, &home).with_context(|| format!("cannot link {}", home.display()))?;
    let compiled = artefacts::compile_filter(&Workspace::at(root.to_owned()), &[], Some(&home))?;
    module::without_names(&module::trimmed(&compiled)?)
}

/// Where what cargo has downloaded is.
fn cargo_home() -> Result<PathBuf> {
    let usual = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"));
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(usual).context("neither CARGO_HOME nor HOME is set")
}
