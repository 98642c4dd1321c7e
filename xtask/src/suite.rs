//! Every test there is, in the order of how soon each can fail.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;
use crate::{artefacts, chaos, command, demo, simulation, supply, tools, validate};

type Step = (&'static str, fn(&Workspace) -> Result<()>);

const STEPS: [Step; 11] = [
    ("tools", tools::install),
    ("licences, bans and sources", supply::check),
    ("filter for wasm32-wasip1", artefacts::filters),
    ("native tests", native_tests),
    ("simulation", simulation::some_seeds),
    ("estimates against tokenizers", |workspace| estimates(workspace, &[])),
    ("core on wasm32 in Node", core_in_node),
    ("shipped configurations", validate::all),
    ("filter in Envoy", envoy_tests),
    ("demo", short_demo),
    ("chaos", short_chaos),
];

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

fn native_tests(workspace: &Workspace) -> Result<()> {
    command::run(command::cargo("test", ["--workspace", "--exclude", "wasm-tests"]).current_dir(&workspace.root))
}

/// Measures estimates; a program of its own, since tokenizers take long to build.
///
/// # Errors
/// When it cannot be built, or estimates are worse than promised.
pub fn estimates(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let mut cargo = command::cargo("run", ["--quiet", "--package", "bench-estimate", "--"]);
    command::run(cargo.args(arguments).current_dir(&workspace.root))
}

fn core_in_node(workspace: &Workspace) -> Result<()> {
    // Its unit tests, and its public face.
    let libraries = ["admission-bodies", "--package", "admission-core", "--lib"];
    for tests in [&libraries[..], &["wasm-tests", "--test", "core_on_wasm32"]] {
        in_node(workspace, tests)?;
    }
    Ok(())
}

fn in_node(workspace: &Workspace, tests: &[&str]) -> Result<()> {
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(workspace.tools_bin()).chain(std::env::split_paths(&inherited));
    let path = std::env::join_paths(folders).context("PATH cannot be extended")?;
    let mut cargo = command::cargo("test", ["--target", "wasm32-unknown-unknown", "--package"]);
    let printed = command::run_reading(cargo.args(tests).env("PATH", path).current_dir(&workspace.root))?;
    // A runner that finds no test is content; we are not.
    ensure!(printed.iter().filter_map(|line| passed(line)).sum::<u64>() > 0, "no test of {tests:?} ran in Node");
    Ok(())
}

/// The number in `test result: ok. 90 passed; …`.
fn passed(line: &str) -> Option<u64> {
    line.strip_prefix("test result: ok. ")?.split_once(" passed")?.0.parse().ok()
}

fn envoy_tests(workspace: &Workspace) -> Result<()> {
    command::run(command::cargo("test", ["--package", "wasm-tests"]).current_dir(&workspace.root))
}

fn short_demo(workspace: &Workspace) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let json = folder.path().join("figures.json");
    // The native tests have built the worker and the sidecar, since tests of theirs run them.
    demo::run_built(workspace, &demo::Options { json: Some(json.clone()), hold: false, short: true })?;
    let text = std::fs::read_to_string(json).context("the demo has written no figures")?;
    let figures: demo::Figures = serde_json::from_str(&text).context("the demo's figures cannot be read back")?;
    figures.check()
}

fn short_chaos(workspace: &Workspace) -> Result<()> {
    chaos::run_built(workspace, &chaos::Options { minutes: 2.0, seed: 1, json: None })
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
