//! The entry points a person needs: `cargo xtask tools | build | reproduce | test | sim | mutants | chaos | soak | demo | bench | fuzz |
//! test-vllm | docs`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod artefacts;
mod chaos;
mod checksums;
mod command;
mod config;
mod demo;
mod docs;
mod filter;
mod fuzz;
mod module;
mod mutants;
mod overload;
mod parts;
mod paths;
mod reproduce;
mod sbom;
mod sidecar_bench;
mod simulation;
mod soak;
mod state_page;
mod suite;
mod supply;
mod tools;
mod validate;
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

#[derive(Subcommand)]
enum Task {
    /// Install what tests and demo need, Envoy among it, under target/tools.
    Tools,
    /// Write dist: the filter, the sidecar, what both are made of, and the sums.
    Build,
    /// Build the filter in two folders, and fail unless the modules are the same byte for byte.
    Reproduce,
    /// Run every test there is; the first failure ends it.
    Test,
    /// Play the core's scenarios in virtual time, check its invariants after every step, and print what comes out.
    Sim(simulation::Options),
    /// Let everything that can go wrong do so in a real Envoy, by seed, and check that nothing is left over.
    Chaos(chaos::Options),
    /// Run for long at half load and at three times the load, and check that memory, keys and latency stay as they were.
    Soak(soak::Options),
    /// Change one place of the decision or the ledger after the other, and see that a unit test fails each time. Takes an hour
    /// or more; not part of `test`.
    Mutants(mutants::Options),
    /// Overload three simulated workers behind a real Envoy, without and with the filter.
    Demo {
        /// Write the figures to this file.
        #[arg(long)]
        json: Option<PathBuf>,
        /// Leave everything running until Ctrl-C.
        #[arg(long)]
        hold: bool,
        /// Load of 10 seconds instead of 25.
        #[arg(long)]
        short: bool,
    },
    /// Measure with real parts and print a table.
    Bench {
        #[command(subcommand)]
        what: Benchmark,
    },
    /// Install a real vLLM on the CPU (5.9 GB), compare what the sidecar reads with its page, and overload it without and with
    /// the filter. Takes two cores and some minutes; not part of `test`.
    TestVllm {
        /// Write the figures to this file.
        #[arg(long)]
        json: Option<PathBuf>,
    },
    /// Fuzz whatever comes from outside; see docs/fuzzing.md. Not part of `test`, which tries the corpora.
    #[command(disable_help_flag = true)]
    Fuzz {
        /// Flags of the driver; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Write docs/configuration.md and envoy-config/schemas/plugin.schema.json again, from the configuration's types.
    Docs,
}

#[derive(Subcommand)]
enum Benchmark {
    /// Three times the load with and without the filter, and what waiting in the proxy costs.
    Overload {
        /// Write the figures to this file.
        #[arg(long)]
        json: Option<PathBuf>,
        /// Shorter loads: enough to see that everything works, too little for figures.
        #[arg(long)]
        quick: bool,
    },
    /// What a request through the filter costs the proxy, beside no filter, the least filter and Envoy's own.
    Filter {
        /// Write the figures to this file.
        #[arg(long)]
        json: Option<PathBuf>,
        /// Fewer and shorter rounds: enough to see that everything works, too little for figures.
        #[arg(long)]
        quick: bool,
    },
    /// What reading a thousand workers ten times a second costs the sidecar, and how soon the filter acts on what it read.
    Sidecar {
        /// Write the figures to this file.
        #[arg(long)]
        json: Option<PathBuf>,
        /// Shorter windows: enough to see that everything works, too little for figures.
        #[arg(long)]
        quick: bool,
    },
    /// Token estimates against real tokenizers, before and after learning.
    Estimate {
        /// What `--help` behind `--` tells of.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
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
    let workspace = Workspace::find()?;
    match task {
        Task::Tools => tools::install(&workspace),
        Task::Build => artefacts::release(&workspace),
        Task::Reproduce => reproduce::run(&workspace),
        Task::Test => suite::run(&workspace),
        Task::Sim(options) => simulation::run(&workspace, &options),
        Task::Chaos(options) => chaos::run(&workspace, &options),
        Task::Soak(options) => soak::run(&workspace, &options),
        Task::Mutants(options) => mutants::run(&workspace, &options),
        Task::Demo { json, hold, short } => demo::run(&workspace, &demo::Options { json, hold, short }),
        Task::Bench { what: Benchmark::Overload { json, quick } } => {
            overload::run(&workspace, &overload::Options { json, quick })
        }
        Task::Bench { what: Benchmark::Filter { json, quick } } => {
            filter::run(&workspace, &filter::Options { json, quick })
        }
        Task::Bench { what: Benchmark::Sidecar { json, quick } } => {
            sidecar_bench::run(&workspace, &sidecar_bench::Options { json, quick })
        }
        Task::Bench { what: Benchmark::Estimate { arguments } } => suite::estimates(&workspace, &arguments),
        Task::TestVllm { json } => vllm::run(&workspace, &vllm::Options { json }),
        Task::Fuzz { arguments } => fuzz::run(&workspace, &arguments),
        Task::Docs => docs::write(&workspace),
    }
}
