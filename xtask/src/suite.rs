//! Every test that a change has to pass, in the order of how soon each can fail.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::workspace::Workspace;
use crate::{artefacts, command, lab, supply, tools};

type Step = (&'static str, fn(&Workspace) -> Result<()>);

const STEPS: [Step; 10] = [
    ("tools", tools::install),
    ("licences, bans and sources", supply::check),
    ("spelling", spelling),
    ("modules and native programs", build),
    ("native tests", native_tests),
    ("examples in the documentation of the code", examples),
    ("core on wasm32 in Node", core_in_node),
    ("shipped configurations", |workspace| lab::VALIDATE.run_built(workspace, &[])),
    ("filter in Envoy", |workspace| envoy_tests(workspace, &[])),
    ("demo and chaos", demo_and_chaos),
];

/// Packages that are modules alone, and those whose tests are among the long forms since they take minutes to compile.
const LEFT_OUT: [&str; 6] = ["sluice", "lab-estimate", "lab-floor", "lab-naive", "lab-sbom", "lab-scan"];

/// Targets of a package that are built. Why not all targets: benchmarks are none of a test's business.
const TARGETS: [&str; 4] = ["--lib", "--bins", "--tests", "--examples"];

/// A test of the simulation that takes a minute by itself; the long forms run it.
pub const LONG: &str = "sim::tests::ten_minutes_at_three_times_the_load";

/// Tests inside Envoy that run side by side; each waits most of its time.
const ENVOY_TESTS_AT_ONCE: &str = "4";

/// Runs every step until one fails.
///
/// # Errors
/// Names the step that failed.
pub fn run(workspace: &Workspace) -> Result<()> {
    let mut durations = Vec::new();
    for (number, (name, step)) in STEPS.iter().enumerate() {
        println!("== {}/{} {name}", number + 1, STEPS.len());
        let start = Instant::now();
        step(workspace).with_context(|| format!("step {name:?} failed"))?;
        durations.push((name, start.elapsed()));
    }
    for (name, duration) in &durations {
        println!("{:>7.1} s  {name}", duration.as_secs_f64());
    }
    let whole: Duration = durations.iter().map(|(_, duration)| *duration).sum();
    println!("test: all {} steps passed in {:.0} s", STEPS.len(), whole.as_secs_f64());
    Ok(())
}

/// Checks the spelling of everything that is tracked.
///
/// # Errors
/// When a word is misspelt.
pub fn spelling(workspace: &Workspace) -> Result<()> {
    command::run(Command::new(workspace.venv().join("bin/typos")).current_dir(&workspace.root))
}

fn build(workspace: &Workspace) -> Result<()> {
    // Why side by side: the module's last step runs on one core for most of a minute, and cargo locks other folders for it.
    thread::scope(|scope| {
        let modules = scope.spawn(|| artefacts::filters(workspace));
        let natives = command::run(&mut native("build", workspace));
        let modules = modules.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        natives.and(modules)
    })
}

/// Cargo with everything native selected. Why the same for every subcommand: cargo compiles a package again for another
/// selection, since the features of what it depends on differ.
fn native(subcommand: &str, workspace: &Workspace) -> Command {
    let mut cargo = command::cargo(subcommand, ["--workspace"]);
    cargo.args(LEFT_OUT.iter().flat_map(|package| ["--exclude", package])).args(TARGETS);
    cargo.current_dir(&workspace.root);
    cargo
}

/// Runs the tests that need no Envoy.
///
/// # Errors
/// When one fails.
pub fn native_tests(workspace: &Workspace) -> Result<()> {
    let quick = format!("not package(wasm-tests) and not test(={LONG})");
    command::run(nextest(workspace).args(["--filterset", &quick]))
}

/// The runner of native tests, with everything native selected.
pub fn nextest(workspace: &Workspace) -> Command {
    let mut nextest = Command::new(workspace.venv().join("bin/cargo-nextest"));
    nextest.args(["nextest", "run", "--locked", "--workspace"]);
    nextest.args(LEFT_OUT.iter().flat_map(|package| ["--exclude", package])).args(TARGETS);
    nextest.current_dir(&workspace.root);
    nextest
}

fn examples(workspace: &Workspace) -> Result<()> {
    let mut cargo = command::cargo("test", ["--workspace", "--doc"]);
    cargo.args(LEFT_OUT.iter().flat_map(|package| ["--exclude", package]));
    command::run(cargo.current_dir(&workspace.root))
}

/// Runs the core where `usize` has 32 bits, as it has in the filter: its unit tests, and its public face by wasm-bindgen with the
/// program that `build` has made for that.
fn core_in_node(workspace: &Workspace) -> Result<()> {
    let runner = format!("node --no-warnings {}", workspace.root.join("lab/assets/wasi.mjs").display());
    let units = ["--target", artefacts::WASM, "--package", "admission-bodies", "--package", "admission-core", "--lib"];
    let mut units = command::cargo("test", units);
    let face = ["--target", "wasm32-unknown-unknown", "--package", "wasm-tests", "--test", "core_on_wasm32"];
    for cargo in [units.env("CARGO_TARGET_WASM32_WASIP1_RUNNER", runner), &mut command::cargo("test", face)] {
        let printed = command::run_reading(cargo.current_dir(&workspace.root))?;
        // Why: a runner that finds no test is content; we are not.
        ensure!(printed.iter().filter_map(|line| passed(line)).sum::<u64>() > 0, "no test of the core ran in Node");
    }
    Ok(())
}

/// The number in `test result: ok. 90 passed; …`.
fn passed(line: &str) -> Option<u64> {
    line.strip_prefix("test result: ok. ")?.split_once(" passed")?.0.parse().ok()
}

/// Installs and builds what tests in Envoy need, and runs those whose names contain one of the words.
///
/// # Errors
/// When something cannot be had or built, or a test fails.
pub fn envoy_tests_alone(workspace: &Workspace, words: &[String]) -> Result<()> {
    tools::install(workspace)?;
    build(workspace)?;
    envoy_tests(workspace, words)
}

/// Builds what tests in Envoy need, and runs those that want parts of another commit.
///
/// # Errors
/// When something cannot be built, or a test fails.
pub fn envoy_tests_of_neighbours(workspace: &Workspace) -> Result<()> {
    build(workspace)?;
    envoy_tests(workspace, &["--ignored".to_owned()])
}

/// Runs the tests in Envoy. Why not by nextest: it starts a process for every test, and these share Envoys.
fn envoy_tests(workspace: &Workspace, words: &[String]) -> Result<()> {
    let mut tests = Command::new(envoy_tests_program(workspace)?);
    tests.args(["--test-threads", ENVOY_TESTS_AT_ONCE]).args(words);
    command::run(tests.current_dir(workspace.root.join("wasm-tests")))
}

fn envoy_tests_program(workspace: &Workspace) -> Result<PathBuf> {
    let messages = command::output(native("build", workspace).arg("--message-format=json-render-diagnostics"))?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = messages.filter(|message| {
        message["target"]["name"] == "envoy"
            && message["target"]["kind"][0] == "test"
            && message["profile"]["test"] == true
    });
    let program = programs.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    program.context("cargo has built no test named `envoy` of the package wasm-tests")
}

fn demo_and_chaos(workspace: &Workspace) -> Result<()> {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    lab::DEMO.run_built(workspace, &words("--short --check"))?;
    lab::CHAOS.run_built(workspace, &words("--minutes 0.5 --seed 1"))
}

#[cfg(test)]
mod tests {
    use super::passed;

    #[test]
    fn only_a_result_that_is_ok_counts() {
        assert_eq!(passed("test result: ok. 90 passed; 0 failed; 0 ignored"), Some(90));
        assert_eq!(passed("test result: FAILED. 1 passed; 1 failed"), None);
        assert_eq!(passed("running 90 tests"), None);
    }
}
