//! The inner loop: what proves most changes within a minute once everything has been built.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::workspace::Workspace;
use crate::{artefacts, command, suite, tools};

type Step = (&'static str, fn(&Workspace) -> Result<()>);

const STEPS: [Step; 6] = [
    ("format", format),
    ("lints", lints),
    ("the module compiles", module),
    ("native tests", quick_tests),
    ("reference of the code", reference),
    ("spelling", suite::spelling),
];

/// Runs every step until one fails.
///
/// # Errors
/// Names the step that failed.
pub fn run(workspace: &Workspace) -> Result<()> {
    let start = Instant::now();
    tools::install(workspace)?;
    for (name, step) in STEPS {
        println!("== {name}");
        step(workspace).with_context(|| format!("step {name:?} failed"))?;
    }
    println!("check: all {} steps passed in {:.0} s", STEPS.len(), start.elapsed().as_secs_f64());
    Ok(())
}

fn format(workspace: &Workspace) -> Result<()> {
    command::run(command::unlocked_cargo(["fmt", "--all", "--check"]).current_dir(&workspace.root))
}

fn lints(workspace: &Workspace) -> Result<()> {
    let arguments = ["--workspace", "--all-targets", "--", "-D", "warnings"];
    command::run(command::cargo("clippy", arguments).current_dir(&workspace.root))
}

/// Runs the native tests but for those that play whole scenarios or measure time: these take longer than all others together.
/// Twice as many at a time as there are cores, since most of the sidecar's tests wait.
fn quick_tests(workspace: &Workspace) -> Result<()> {
    let quick = "not package(wasm-tests) and not package(testkit) and not test(/^sim::tests::/) and not test(simulated_workers)";
    let threads = std::thread::available_parallelism().map_or(2, |cores| 2 * cores.get()).to_string();
    command::run(suite::nextest(workspace).args(["--filterset", quick, "--test-threads", &threads]))
}

fn reference(workspace: &Workspace) -> Result<()> {
    let mut cargo = command::cargo("doc", ["--workspace", "--no-deps"]);
    command::run(cargo.env("RUSTDOCFLAGS", "-Dwarnings").current_dir(&workspace.root))
}

/// Compiles the filter without optimising it, which takes seconds where the release takes a minute.
fn module(workspace: &Workspace) -> Result<()> {
    let arguments = ["--target", artefacts::WASM, "--package", "sluice"];
    command::run(command::cargo("build", arguments).current_dir(&workspace.root))
}
