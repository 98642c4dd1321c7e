//! The entry points a person needs: `cargo xtask --help` lists them.
//!
//! This program installs, builds and starts others. What knows the product or puts load on it is a program of the package
//! `lab`, which gets all arguments behind its command's name.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod artefacts;
mod check;
mod checksums;
mod command;
mod fuzz;
mod lab;
mod module;
mod mutants;
mod neighbours;
mod nightly;
mod paths;
mod reproduce;
mod suite;
mod supply;
mod tools;
mod vllm;
mod workspace;

use workspace::Workspace;

/// Builds, tests and shows Sluice.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

/// Arguments for the program that does the work; its own `--help` explains them.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

#[derive(Subcommand)]
enum Task {
    /// Install what tests and demo need, Envoy among it, under target/tools.
    Tools,
    /// Write dist: the filter, the sidecar, what both are made of, and the sums.
    Build,
    /// Build the filter in two folders, and fail unless the modules are the same byte for byte.
    Reproduce,
    /// Prove a change in about a minute: format, lints, native tests, and that the module compiles.
    Check,
    /// Run every test that a change has to pass; the first step that fails ends it.
    Test,
    /// Run the long forms of the tests, half an hour at most, and write their figures to docs/nightly.md.
    Nightly(nightly::Options),
    /// Run tests inside a real Envoy whose names contain the given words; all of them without words.
    Envoy(Rest),
    /// Run filter and sidecar of another commit beside those of this one, in a real Envoy.
    Neighbours(neighbours::Options),
    /// Ask Envoy and the schemas about every shipped configuration.
    Validate,
    /// Write docs/configuration.md and envoy-config/schemas/plugin.schema.json again, from the configuration's types.
    Docs,
    /// Overload three simulated workers behind a real Envoy, without and with the filter.
    Demo(Rest),
    /// Play the core's scenarios in virtual time, check its invariants after every step, and print what comes out.
    Sim(Rest),
    /// Let everything that can go wrong do so in a real Envoy, by seed, and check that nothing is left over.
    Chaos(Rest),
    /// Run for long at half load and at three times the load, and check that memory, keys and latency stay as they were.
    Soak(Rest),
    /// Measure with real parts and print a table.
    Bench {
        #[command(subcommand)]
        what: Benchmark,
    },
    /// Install a real vLLM on the CPU (5.9 GB), compare what the sidecar reads with its page, and overload it without and with
    /// the filter.
    TestVllm(Rest),
    /// Fuzz whatever comes from outside; see docs/fuzzing.md. `test` tries the corpora.
    Fuzz(Rest),
    /// Change one place of the decision or the ledger after the other, and see that a unit test fails each time. Takes an hour
    /// or more.
    Mutants(mutants::Options),
}

#[derive(Subcommand)]
enum Benchmark {
    /// Three times the load with and without the filter, and what waiting in the proxy costs.
    Overload(Rest),
    /// What a request through the filter costs the proxy, beside no filter, the least filter and Envoy's own.
    Filter(Rest),
    /// What reading a thousand workers ten times a second costs the sidecar, and how soon the filter acts on what it read.
    Sidecar(Rest),
    /// Token estimates against real tokenizers, before and after learning.
    Estimate(Rest),
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    let workspace = &Workspace::find()?;
    match task {
        Task::Tools => tools::install(workspace),
        Task::Build => artefacts::release(workspace),
        Task::Reproduce => reproduce::run(workspace),
        Task::Check => check::run(workspace),
        Task::Test => suite::run(workspace),
        Task::Nightly(options) => nightly::run(workspace, &options),
        Task::Envoy(rest) => suite::envoy_tests_alone(workspace, &rest.arguments),
        Task::Neighbours(options) => neighbours::run(workspace, &options),
        Task::Validate => lab::VALIDATE.run(workspace, &[]),
        Task::Docs => lab::REFERENCE.run(workspace, &[]),
        Task::Demo(rest) => lab::DEMO.run(workspace, &rest.arguments),
        Task::Sim(rest) => lab::SIMULATE.run(workspace, &rest.arguments),
        Task::Chaos(rest) => lab::CHAOS.run(workspace, &rest.arguments),
        Task::Soak(rest) => lab::SOAK.run(workspace, &rest.arguments),
        Task::Bench { what: Benchmark::Overload(rest) } => lab::OVERLOAD.run(workspace, &rest.arguments),
        Task::Bench { what: Benchmark::Filter(rest) } => lab::FILTER.run(workspace, &rest.arguments),
        Task::Bench { what: Benchmark::Sidecar(rest) } => lab::SIDECAR.run(workspace, &rest.arguments),
        Task::Bench { what: Benchmark::Estimate(rest) } => command::run(lab::estimate(workspace).args(&rest.arguments)),
        Task::TestVllm(rest) => lab::VLLM.run(workspace, &rest.arguments),
        Task::Fuzz(rest) => fuzz::run(workspace, &rest.arguments),
        Task::Mutants(options) => mutants::run(workspace, &options),
    }
}
