//! Packing new inputs into the committed corpora.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use fuzz::corpus::{self, Inputs};

use super::{Target, make_folder};

/// Most inputs without a name of their own that are kept for a target.
const MOST: usize = 150;

/// Longest input kept, in bytes: those that reach something take no more.
const LONGEST: usize = 4_096;

/// Most bytes of all kept inputs of a target.
const MOST_BYTES: usize = 128 * 1_024;

/// Packs one file into a target's corpus under its own name.
///
/// # Errors
/// The name is libFuzzer's, or a file cannot be read or written.
pub fn add(target: &Target, file: &Path) -> Result<()> {
    let name = name_of(file)?;
    ensure!(is_named(&name), "{}: first name the file after what it shows", file.display());
    let input = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut inputs = corpus::read(&target.root, target.name)?;
    inputs.insert(name.clone(), input);
    corpus::write(&target.root, target.name, &inputs)?;
    println!("{}: {name} is one of {} inputs", target.name, inputs.len());
    Ok(())
}

/// Puts those inputs into the corpus that reach code which the named ones do not, the shortest first, in place of those
/// that were kept before.
///
/// # Errors
/// A file cannot be read or written, or libFuzzer fails.
pub fn keep(program: &Path, target: &Target) -> Result<()> {
    let scratch = target.root.join("target/fuzz/keep").join(target.name);
    let (merged, found) = (scratch.join("merged"), scratch.join("found"));
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    let (named, mut candidates): (Inputs, Inputs) =
        corpus::read(&target.root, target.name)?.into_iter().partition(|(name, _)| is_named(name));
    candidates.extend(new_inputs(target)?);
    write_all(&found, &candidates)?;
    // What the named inputs reach is reached already.
    write_all(&merged, &named)?;
    for folder in &target.more {
        write_all(&merged, &read_all(folder)?)?;
    }
    merge(program, target, &merged, &found)?;
    let reach_more: Inputs = read_all(&merged)?.into_iter().filter(|(name, _)| !is_named(name)).collect();
    let count = reach_more.len();
    let kept = shortest(reach_more);
    println!("{}: {} of {count} found inputs that reach more are kept", target.name, kept.len());
    corpus::write(&target.root, target.name, &named.into_iter().chain(kept).collect())?;
    Ok(())
}

/// Inputs that earlier runs left, without the long ones.
fn new_inputs(target: &Target) -> Result<Inputs> {
    if !target.working.exists() {
        return Ok(Inputs::new());
    }
    let inputs = read_all(&target.working)?.into_iter();
    Ok(inputs.filter(|(name, input)| !is_named(name) && input.len() <= LONGEST).collect())
}

/// Copies into `merged` those of `found` that reach more. Each edge counts once, however often it is taken.
fn merge(program: &Path, target: &Target, merged: &Path, found: &Path) -> Result<()> {
    let mut merge = target.program(program);
    merge.args(["-merge=1", "-use_counters=0", "-timeout=20"]).arg(merged).arg(found);
    let ended = merge.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let ended = ended.context("cannot start libFuzzer")?;
    ensure!(ended.success(), "libFuzzer ended with {ended} while it merged {}", target.name);
    Ok(())
}

/// The shortest inputs that fit the limits of a corpus.
fn shortest(inputs: Inputs) -> Inputs {
    let mut inputs: Vec<_> = inputs.into_iter().collect();
    inputs.sort_by_key(|(_, input)| input.len());
    let mut bytes = 0;
    let fits = |(_, input): &(String, Vec<u8>)| {
        bytes += input.len();
        bytes <= MOST_BYTES
    };
    inputs.into_iter().take(MOST).take_while(fits).collect()
}

/// Whether a person has named an input: libFuzzer gives 40 hexadecimal digits.
fn is_named(name: &str) -> bool {
    name.len() != 40 || !name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn name_of(file: &Path) -> Result<String> {
    let name = file.file_name().with_context(|| format!("{} is no file", file.display()))?;
    Ok(name.to_str().context("an input's name must be UTF-8")?.to_owned())
}

fn read_all(folder: &Path) -> Result<Inputs> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let read = |file: &PathBuf| Ok((name_of(file)?, fs::read(file)?));
    files.iter().filter(|file| file.is_file()).map(read).collect()
}

fn write_all(folder: &Path, inputs: &Inputs) -> Result<()> {
    make_folder(folder)?;
    for (name, input) in inputs {
        let file = folder.join(name);
        fs::write(&file, input).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Inputs, LONGEST, MOST, MOST_BYTES, is_named, shortest};

    #[test]
    fn names_of_libfuzzer_differ_from_names_of_people() {
        assert!(!is_named("0123456789abcdef0123456789abcdef01234567"));
        assert!(is_named("long-numbers"));
    }

    #[test]
    fn the_shortest_inputs_that_fit_are_kept() {
        let inputs = |count: usize, length: usize| -> Inputs {
            (0..count).map(|number| (format!("{number:040}"), vec![0; length])).collect()
        };
        assert_eq!(shortest(inputs(MOST + 9, 1)).len(), MOST);
        assert_eq!(shortest(inputs(MOST, LONGEST)).len(), MOST_BYTES / LONGEST);
        let mut mixed = inputs(MOST, 2);
        mixed.insert("short".to_owned(), vec![1]);
        assert!(shortest(mixed).contains_key("short"));
    }
}
