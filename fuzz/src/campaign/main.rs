//! `cargo xtask fuzz`: libFuzzer drives the targets, built with the stable toolchain's own coverage.
//!
//! New inputs stay in `target/fuzz/corpus`, those that break a property in `target/fuzz/crashes`. The committed corpora are
//! archives; each is unpacked into the folder of new inputs before a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use fuzz::{TARGETS, corpus};

mod build;
mod engine;
mod keep;

use engine::{Run, Status};

/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(20);

/// Fuzzes whatever comes from outside; see docs/fuzzing.md.
#[derive(Parser)]
#[command(name = "cargo xtask fuzz")]
struct Options {
    /// Run this target alone; an unknown name lists all of them.
    #[arg(long)]
    target: Option<String>,
    /// Minutes of each target.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Targets at a time.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Instead: run one input, such as one that broke a property.
    #[arg(long, requires = "target")]
    input: Option<PathBuf>,
    /// Instead: pack new inputs into fuzz/corpus, as few and short ones as reach the same code.
    #[arg(long, conflicts_with = "input")]
    keep: bool,
    /// Instead: pack this file into the target's corpus under its own name, or in place of the input of that name.
    #[arg(long, requires = "target", conflicts_with_all = ["input", "keep"])]
    add: Option<PathBuf>,
}

/// A target and the folders of its inputs.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name of the target and of its corpus.
    name: &'static str,
    /// The checkout.
    root: PathBuf,
    /// Folders of committed inputs outside the corpus.
    more: Vec<PathBuf>,
    /// Folder of the unpacked corpus and of new inputs.
    working: PathBuf,
    /// Folder of inputs that broke a property.
    crashes: PathBuf,
    /// Words that libFuzzer puts into inputs.
    dictionary: PathBuf,
}

impl Target {
    fn new(root: &Path, target: &fuzz::Target) -> Self {
        let name = target.name;
        let folder = |kind: &str| root.join("target/fuzz").join(kind).join(name);
        Self {
            name,
            more: target.more.iter().map(|folder| root.join(folder)).collect(),
            working: folder("corpus"),
            crashes: folder("crashes"),
            dictionary: root.join(format!("fuzz/dictionaries/{name}.dict")),
            root: root.to_owned(),
        }
    }

    /// The target's libFuzzer program, without arguments yet.
    fn program(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("FUZZ_TARGET", self.name);
        command
    }

    /// Unpacks the committed corpus among the inputs that earlier runs left.
    fn unpack(&self) -> Result<()> {
        make_folder(&self.working)?;
        for (name, input) in corpus::read(&self.root, self.name)? {
            let file = self.working.join(name);
            fs::write(&file, input).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the package lies in no folder")?;
    let targets = targets(root, options.target.as_deref())?;
    if let (Some(file), [target]) = (&options.add, targets.as_slice()) {
        return keep::add(target, file);
    }
    let program = build::build(root)?;
    match (&options.input, targets.as_slice()) {
        (Some(input), [target]) => build::run(target.program(&program).arg(input)),
        _ if options.keep => targets.iter().try_for_each(|target| keep::keep(&program, target)),
        _ => fuzz(&program, &targets, options),
    }
}

/// All targets, or the one of a name.
fn targets(root: &Path, name: Option<&str>) -> Result<Vec<Target>> {
    let wanted = TARGETS.iter().filter(|target| name.is_none_or(|name| name == target.name));
    let targets: Vec<_> = wanted.map(|target| Target::new(root, target)).collect();
    let names = TARGETS.map(|target| target.name).join(", ");
    ensure!(!targets.is_empty(), "there is no target {:?}; there are {names}", name.unwrap_or_default());
    Ok(targets)
}

fn make_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Runs the targets, prints a table of what they did, and fails where a property was broken.
fn fuzz(program: &Path, targets: &[Target], options: &Options) -> Result<()> {
    ensure!(options.minutes > 0.0 && options.jobs > 0, "--minutes and --jobs must be more than nothing");
    let time = Duration::from_secs_f64(options.minutes * 60.0);
    let runs = run_all(program, targets, time, options.jobs)?;
    print_table(targets, &runs)?;
    let broken: Vec<_> =
        runs.iter().filter_map(|(target, run)| Some((target, run.as_ref().ok()?.crash.as_ref()?.display()))).collect();
    for (target, crash) in &broken {
        let name = target.name;
        println!("\n{name}: a property does not hold of {crash}");
        println!("    cargo xtask fuzz --target {name} --input {crash}");
        println!("    once it is mended, name the file after what it shows and add it to the corpus:");
        println!("    cargo xtask fuzz --target {name} --add FILE");
    }
    ensure!(broken.is_empty(), "{} of {} targets broke a property", broken.len(), targets.len());
    Ok(())
}

/// Results of targets in the order in which they ended.
type Runs<'a> = Vec<(&'a Target, Result<Run>)>;

/// Runs all targets, `jobs` of them at a time.
fn run_all<'a>(program: &Path, targets: &'a [Target], time: Duration, jobs: usize) -> Result<Runs<'a>> {
    let waiting = Mutex::new(targets.iter());
    let next = || waiting.lock().ok().and_then(|mut waiting| waiting.next());
    let one_after_the_other = || {
        let mut done = Vec::new();
        while let Some(target) = next() {
            done.push((target, run_one(program, target, time)));
        }
        done
    };
    let runs = thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.min(targets.len())).map(|_| scope.spawn(one_after_the_other)).collect();
        // A thread that panicked has printed why.
        let ended = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked")));
        ended.collect::<Result<Vec<_>>>()
    })?;
    Ok(runs.into_iter().flatten().collect())
}

fn print_table(targets: &[Target], runs: &Runs<'_>) -> Result<()> {
    println!(
        "\n{:<16} {:>12} {:>8} {:>8} {:>8} {:>8} {:>9} {:>6}",
        "target", "executions", "exec/s", "edges", "features", "corpus", "new", "RSS MB"
    );
    for target in targets {
        let name = target.name;
        match runs.iter().find(|(other, _)| other.name == name) {
            Some((_, Ok(Run { status, new, peak_mb, seconds, .. }))) => {
                let Status { executions, edges, features, corpus } = status;
                let rate = *executions as f64 / seconds.max(1.0);
                println!(
                    "{name:<16} {executions:>12} {rate:>8.0} {edges:>8} {features:>8} {corpus:>8} {new:>9} {peak_mb:>6}"
                );
            }
            Some((_, Err(error))) => bail!("{name}: {error:#}"),
            None => {}
        }
    }
    Ok(())
}

/// Runs a target, prints its progress, and makes an input that breaks a property as short as it can.
fn run_one(program: &Path, target: &Target, time: Duration) -> Result<Run> {
    target.unpack()?;
    make_folder(&target.crashes)?;
    let start = Instant::now();
    let mut printed = start;
    let run = engine::run(program, target, time, |status| {
        if printed.elapsed() >= PROGRESS {
            printed = Instant::now();
            println!("{}: {:.0} of {:.0} s, {status}", target.name, start.elapsed().as_secs_f64(), time.as_secs_f64());
        }
    })?;
    println!("{}: done, {}", target.name, run.status);
    match &run.crash {
        None => Ok(run),
        Some(crash) => {
            println!("{}: a property does not hold; making the input shorter …", target.name);
            let crash = engine::shortened(program, target, crash)?;
            Ok(Run { crash: Some(crash), ..run })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{TARGETS, targets};

    #[test]
    fn a_name_selects_one_target_and_an_unknown_one_lists_them() {
        let root = Path::new("/checkout");
        assert_eq!(targets(root, None).unwrap().len(), TARGETS.len());
        let scan = targets(root, Some("scan")).unwrap();
        assert_eq!(scan.len(), 1);
        assert_eq!(scan[0].working, root.join("target/fuzz/corpus/scan"));
        assert!(targets(root, Some("unknown")).unwrap_err().to_string().contains("scan, rewrite"));
    }
}
