//! Taking what was found into the committed corpora.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use super::{Target, folder};
use crate::workspace::Workspace;

/// Most inputs kept for a target that nobody has given a name.
const MOST: usize = 150;

/// Longest input kept, in bytes: those that reach something take no more.
const LONGEST: u64 = 4_096;

/// Most bytes of them all.
const MOST_BYTES: u64 = 128 * 1_024;

/// Puts those inputs into the corpus that reach code which those with names do not, the shortest first, in place of what was
/// put there before.
///
/// # Errors
/// A file cannot be read or written, or libFuzzer fails.
pub fn keep(workspace: &Workspace, program: &Path, target: &Target) -> Result<()> {
    let corpus = target.seeds.first().context("no corpus")?;
    let scratch = folder(workspace).join("keep").join(&target.name);
    let (named, found, merged) = (scratch.join("named"), scratch.join("found"), scratch.join("merged"));
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    for folder in [&named, &found, &merged] {
        fs::create_dir_all(folder)?;
    }
    for file in files(corpus)? {
        copy(&file, if is_named(&file) { &named } else { &found })?;
    }
    for file in target.seeds.iter().skip(1).map(|folder| files(folder)).collect::<Result<Vec<_>>>()?.concat() {
        copy(&file, &named)?;
    }
    for file in if target.working.exists() { files(&target.working)? } else { Vec::new() } {
        if fs::metadata(&file)?.len() <= LONGEST {
            copy(&file, &found)?;
        }
    }
    // What those with names reach is reached already. Each edge counts once, however often it is taken.
    for file in files(&named)? {
        copy(&file, &merged)?;
    }
    let mut merge = target.program(program);
    merge.args(["-merge=1", "-use_counters=0", "-timeout=20"]).arg(&merged).arg(&found);
    let ended = merge.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let ended = ended.context("cannot start libFuzzer")?;
    ensure!(ended.success(), "libFuzzer ended with {ended} while it merged {}", target.name);
    let mut new: Vec<(u64, PathBuf)> = Vec::new();
    for file in files(&merged)?.into_iter().filter(|file| !is_named(file)) {
        new.push((fs::metadata(&file)?.len(), file));
    }
    new.sort();
    for file in files(corpus)?.iter().filter(|file| !is_named(file)) {
        fs::remove_file(file)?;
    }
    let (mut bytes, mut kept) = (0, 0);
    for (length, file) in new.iter().take(MOST) {
        bytes += length;
        if bytes > MOST_BYTES {
            break;
        }
        copy(file, corpus)?;
        kept += 1;
    }
    println!("{}: {kept} of {} found inputs that reach more are kept in {}", target.name, new.len(), corpus.display());
    Ok(())
}

/// Whether a person has named it: libFuzzer gives 40 hexadecimal digits.
fn is_named(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.len() != 40 || !name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    Ok(files)
}

fn copy(file: &Path, folder: &Path) -> Result<()> {
    let name = file.file_name().context("a file without a name")?;
    fs::copy(file, folder.join(name)).with_context(|| format!("cannot copy {}", file.display()))?;
    Ok(())
}
