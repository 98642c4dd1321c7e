//! The long forms of the tests: many seeds, long chaos, every text, whole corpora, a real engine.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;
use crate::{command, lab, suite, tools};

/// Page that the figures are written to, from the root.
const PAGE: &str = "docs/nightly.md";

/// Lines of what a step prints last that the page shows.
const SHOWN: usize = 14;

/// Steps of a run.
#[derive(clap::Args)]
pub struct Options {
    /// Leave this step out; the page says so.
    #[arg(long)]
    skip: Vec<String>,
}

struct Step {
    name: &'static str,
    /// How a person runs it alone.
    command: &'static str,
    build: fn(&Workspace) -> Result<()>,
    run: fn(&Workspace) -> Command,
}

/// Commit of the release before this one, whose filter and sidecar work with these.
const RELEASE_BEFORE: &str = "0f227f7";

const STEPS: [Step; 8] = [
    Step {
        name: "simulation",
        command: "cargo xtask sim --scenario chaos --seed 480 --seeds 1000",
        build: |workspace| lab::SIMULATE.build(workspace),
        run: |workspace| with(lab::SIMULATE.command(workspace), "--scenario chaos --seed 480 --seeds 1000"),
    },
    Step {
        name: "a long scenario",
        command: "cargo test --package admission-core --features sim ten_minutes",
        build: |_| Ok(()),
        run: |workspace| {
            let mut nextest = suite::nextest(workspace);
            nextest.args(["--filterset", &format!("test(={})", suite::LONG)]);
            nextest
        },
    },
    Step {
        name: "estimates",
        command: "cargo xtask bench estimate",
        build: |_| Ok(()),
        run: |workspace| lab::estimate(workspace),
    },
    Step {
        name: "corpora",
        command: "FUZZ_MUTATIONS=20 cargo test --package fuzz --test replay",
        build: |_| Ok(()),
        run: |workspace| {
            let mut nextest = suite::nextest(workspace);
            nextest.args(["--filterset", "package(fuzz)"]).env("FUZZ_MUTATIONS", "20");
            nextest
        },
    },
    Step {
        name: "bills of materials",
        command: "cargo test --package lab-sbom",
        build: |_| Ok(()),
        run: |workspace| {
            let mut cargo = command::cargo("test", ["--package", "lab-sbom"]);
            cargo.current_dir(&workspace.root);
            cargo
        },
    },
    Step {
        name: "chaos",
        command: "cargo xtask chaos --minutes 4 --seed 2",
        build: |workspace| lab::CHAOS.build(workspace),
        run: |workspace| with(lab::CHAOS.command(workspace), "--minutes 4 --seed 2"),
    },
    Step {
        name: "neighbours",
        command: "cargo xtask neighbours 0f227f7",
        build: |_| Ok(()),
        run: |workspace| {
            // Why not by cargo: this program is the one that `cargo xtask` runs.
            let mut xtask = Command::new(std::env::current_exe().unwrap_or_else(|_| "xtask".into()));
            xtask.args(["neighbours", RELEASE_BEFORE]).current_dir(&workspace.root);
            xtask
        },
    },
    Step {
        name: "vllm",
        command: "cargo xtask test-vllm",
        build: |workspace| lab::VLLM.build(workspace),
        run: |workspace| lab::VLLM.command(workspace),
    },
];

/// Runs every step, also after one has failed, and writes the page.
///
/// # Errors
/// A step that is to be skipped does not exist, the page cannot be written, or a step failed.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if let Some(unknown) = options.skip.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
        bail!("there is no step {unknown:?}; there are {}", STEPS.map(|step| step.name).join(", "));
    }
    tools::install(workspace)?;
    let mut page = head(workspace)?;
    let mut failed = Vec::new();
    for step in &STEPS {
        println!("== {}", step.name);
        let start = Instant::now();
        let verdict = if options.skip.iter().any(|name| name == step.name) {
            Err(anyhow::anyhow!("left out by --skip"))
        } else {
            (step.build)(workspace).and_then(|()| command::run_reading(&mut (step.run)(workspace)))
        };
        let _ = write!(page, "\n## {}\n\n`{}`: ", step.name, step.command);
        match verdict {
            Ok(printed) => page.push_str(&shown(&printed, start.elapsed())),
            Err(error) => {
                let _ = writeln!(page, "**{error:#}**");
                failed.push(step.name);
            }
        }
    }
    let path = workspace.root.join(PAGE);
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    println!("wrote {}", path.display());
    failed.retain(|name| !options.skip.iter().any(|skipped| skipped == name));
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

fn with(mut command: Command, arguments: &str) -> Command {
    command.args(arguments.split(' '));
    command
}

fn head(workspace: &Workspace) -> Result<String> {
    let git = |arguments: &[&str]| command::output(Command::new("git").args(arguments).current_dir(&workspace.root));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = if git(&["status", "--porcelain"])?.is_empty() { "" } else { ", with changes beside it" };
    let date = command::output(Command::new("date").args(["--utc", "+%Y-%m-%d %H:%M UTC"]))?;
    Ok(format!(
        "# Nightly\n\nCommit {}{changed}, {}\n\n\
         Written by `cargo xtask nightly`, which runs what `cargo xtask test` leaves out because it takes long; \
         [development.md](development.md) says what that is.\n",
        commit.trim(),
        date.trim(),
    ))
}

/// How long a step took, and the last lines that it printed.
fn shown(printed: &[String], took: Duration) -> String {
    let lines: Vec<&str> = printed.iter().map(|line| line.trim_end()).filter(|line| !line.is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(SHOWN)..).unwrap_or_default();
    // Why: the runner of native tests prints to standard error, which is shown and not kept.
    if last.is_empty() {
        return format!("passed in {:.0} s\n", took.as_secs_f64());
    }
    format!("passed in {:.0} s\n\n```text\n{}\n```\n", took.as_secs_f64(), last.join("\n"))
}
