//! Mutants of the decision and the ledger: each changes one place, and some test has to fail.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::workspace::Workspace;

/// Version of cargo-mutants.
const VERSION: &str = "27.1.0";

/// Tests of what cannot see such a change, and take most of the time.
const OTHERS: [&str; 9] =
    ["estimate::", "request::", "usage::", "intake::", "identity::", "answer::", "policy::", "config::", "sim::"];

/// Built without optimisation, which is quickest: most of the time goes into building.
const PROFILE: [(&str, &str); 2] = [("CARGO_PROFILE_DEV_OPT_LEVEL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "false")];

/// What cargo-mutants ends with when no mutant was missed, and when some ran out of time besides.
const NONE_MISSED: [i32; 2] = [0, 3];

/// What is to be mutated.
#[derive(clap::Args)]
pub struct Options {
    /// Only list the mutants.
    #[arg(long)]
    list: bool,
    /// Try this part of all alone, such as 0/8.
    #[arg(long)]
    shard: Option<String>,
    /// Try only those whose name matches, such as `within_tenant_caps`.
    #[arg(long)]
    only: Option<String>,
}

/// Tries mutants in a copy of the tree, with the core's unit tests; what was missed is in target/mutants/mutants.out.
///
/// # Errors
/// cargo-mutants cannot be installed, or some mutant survives.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let program = installed(workspace)?;
    let folder = workspace.root.join("target/mutants");
    let mut mutants = Command::new(program);
    mutants
        .args(["mutants", "--package", "admission-core", "--no-shuffle", "--jobs", "1"])
        .current_dir(&workspace.root);
    mutants.args(options.shard.iter().flat_map(|shard| ["--shard", shard]));
    mutants.args(options.only.iter().flat_map(|only| ["--re", only]));
    if options.list {
        return command::run(mutants.arg("--list"));
    }
    mutants.arg("--output").arg(&folder).args(["--cargo-arg=--lib", "--", "--"]);
    mutants.args(OTHERS.iter().flat_map(|tests| ["--skip", tests]));
    // Copies lie in other folders each time; what they depend on is built once.
    mutants.env("CARGO_TARGET_DIR", folder.join("build")).envs(PROFILE);
    command::run_to(&mut mutants, &NONE_MISSED).context("see target/mutants/mutants.out/missed.txt and docs/mutants.md")
}

/// Installed on demand only: nothing else needs it.
fn installed(workspace: &Workspace) -> Result<std::path::PathBuf> {
    let program = workspace.tools_bin().join("cargo-mutants");
    let there = command::output(Command::new(&program).args(["mutants", "--version"])).unwrap_or_default();
    if there.split_whitespace().any(|word| word == VERSION) {
        return Ok(program);
    }
    println!("    cargo-mutants {VERSION} is compiled once; that takes minutes");
    let mut cargo =
        command::unlocked_cargo(["install", "cargo-mutants", "--locked", "--force", "--version", VERSION, "--root"]);
    command::run(cargo.arg(workspace.tools()).env_remove("CARGO_TARGET_DIR"))?;
    if !program.is_file() {
        bail!("cargo install has not brought {}", program.display());
    }
    Ok(program)
}
