//! Fuzzing: libFuzzer drives the targets of the package `fuzz`, with what the stable toolchain offers for coverage.
//!
//! Inputs that were found stay in `target/fuzz/corpus`, those that broke a property in `target/fuzz/crashes`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command;
use crate::workspace::Workspace;

mod engine;
mod keep;

use engine::{Run, Status};

/// Coverage in eight bits a place, with a table of the places, and comparisons, as libFuzzer reads them. No sanitizer of
/// memory: the targets are safe code.
const FLAGS: [&str; 8] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg",
    "fuzzing",
    "-Ccodegen-units=1",
];

/// From one line of progress to the next.
const TELL: Duration = Duration::from_secs(20);

/// What is to be fuzzed.
#[derive(clap::Args)]
pub struct Options {
    /// This target alone; all are listed where it is not one.
    #[arg(long)]
    target: Option<String>,
    /// For so many minutes each.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// So many targets at a time.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Instead: run one input, such as one that broke a property.
    #[arg(long, requires = "target")]
    input: Option<PathBuf>,
    /// Instead: take what has been found into fuzz/corpus, as few and short inputs as reach the same code.
    #[arg(long, conflicts_with = "input")]
    keep: bool,
}

/// A target and where its inputs are.
#[derive(Clone, Debug)]
pub struct Target {
    name: String,
    /// Committed inputs; the first folder is the corpus.
    seeds: Vec<PathBuf>,
    /// Where new inputs go.
    working: PathBuf,
    crashes: PathBuf,
    dictionary: PathBuf,
}

impl Target {
    /// Its program, before any arguments.
    fn program(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("FUZZ_TARGET", &self.name);
        command
    }
}

/// Builds the targets and runs them, or keeps what they found.
///
/// # Errors
/// The targets cannot be built, there is none of that name, or a property does not hold.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let program = build(workspace)?;
    let all = targets(workspace, &program)?;
    let targets: Vec<Target> = match &options.target {
        None => all,
        Some(name) => {
            let names: Vec<&str> = all.iter().map(|target| target.name.as_str()).collect();
            ensure!(names.contains(&name.as_str()), "there is no target {name:?}; there are {}", names.join(", "));
            all.into_iter().filter(|target| target.name == *name).collect()
        }
    };
    match (&options.input, targets.as_slice()) {
        (Some(input), [target]) => command::run(target.program(&program).arg(input)),
        _ if options.keep => targets.iter().try_for_each(|target| keep::keep(workspace, &program, target)),
        _ => fuzz(&program, &targets, options),
    }
}

fn build(workspace: &Workspace) -> Result<PathBuf> {
    let version = command::output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    let folder = folder(workspace).join("build");
    // With a target named, the flags are for what runs there and not for what builds it.
    let mut cargo = command::cargo("build", ["--package", "fuzz", "--features", "libfuzzer", "--profile", "fuzz"]);
    cargo.arg("--target").arg(host).arg("--target-dir").arg(&folder);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f")).current_dir(&workspace.root);
    command::run(&mut cargo)?;
    Ok(folder.join(host).join("fuzz/fuzz"))
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.root.join("target/fuzz")
}

/// Asks the program.
fn targets(workspace: &Workspace, program: &Path) -> Result<Vec<Target>> {
    let listed = command::output(Command::new(program).env_remove("FUZZ_TARGET"))?;
    let target = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next()?.to_owned();
        let of = |kind: &str| folder(workspace).join(kind).join(&name);
        let (working, crashes) = (of("corpus"), of("crashes"));
        let dictionary = workspace.root.join(format!("fuzz/dictionaries/{name}.dict"));
        Some(Target {
            seeds: words.map(|seeds| workspace.root.join(seeds)).collect(),
            working,
            crashes,
            dictionary,
            name,
        })
    };
    Ok(listed.lines().filter_map(target).collect())
}

fn fuzz(program: &Path, targets: &[Target], options: &Options) -> Result<()> {
    ensure!(options.minutes > 0.0 && options.jobs > 0, "--minutes and --jobs must be more than nothing");
    let time = Duration::from_secs_f64(options.minutes * 60.0);
    let waiting = Mutex::new(targets.iter());
    let next = || waiting.lock().ok().and_then(|mut waiting| waiting.next());
    let one_after_the_other = || {
        let mut done = Vec::new();
        while let Some(target) = next() {
            done.push((target, fuzz_one(program, target, time)));
        }
        done
    };
    let runs: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..options.jobs.min(targets.len())).map(|_| scope.spawn(one_after_the_other)).collect();
        // A thread that has panicked has said why.
        let ended = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked")));
        ended.collect::<Result<Vec<_>>>()
    })?
    .into_iter()
    .flatten()
    .collect();
    let mut broken = Vec::new();
    println!(
        "\n{:<16} {:>12} {:>8} {:>8} {:>8} {:>8} {:>9} {:>6}",
        "target", "executions", "exec/s", "edges", "features", "corpus", "new", "RSS MB"
    );
    for target in targets {
        let Some((_, run)) = runs.iter().find(|(other, _)| other.name == target.name) else { continue };
        match run {
            Ok(Run { status, new, peak_mb, seconds, crash }) => {
                let Status { executions, edges, features, corpus } = status;
                let rate = *executions as f64 / seconds.max(1.0);
                println!(
                    "{:<16} {executions:>12} {rate:>8.0} {edges:>8} {features:>8} {corpus:>8} {new:>9} {peak_mb:>6}",
                    target.name
                );
                broken.extend(crash.as_ref().map(|crash| (target, crash)));
            }
            Err(error) => bail!("{}: {error:#}", target.name),
        }
    }
    for (target, crash) in &broken {
        println!("\n{}: a property does not hold of {}", target.name, crash.display());
        println!("    cargo xtask fuzz --target {} --input {}", target.name, crash.display());
        println!("    once it is mended, copy it to fuzz/corpus/{} under a name that says what it is", target.name);
    }
    ensure!(broken.is_empty(), "{} of {} targets broke a property", broken.len(), targets.len());
    Ok(())
}

/// Runs a target, says now and then how far it is, and makes an input that breaks a property as short as it can.
fn fuzz_one(program: &Path, target: &Target, time: Duration) -> Result<Run> {
    for folder in [&target.working, &target.crashes] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let start = Instant::now();
    let mut told = start;
    let run = engine::run(program, target, time, |status| {
        if told.elapsed() >= TELL {
            told = Instant::now();
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
