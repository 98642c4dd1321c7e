//! The simulation of the core: scenarios by name, and scenarios that seeds make up.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use admission_core::sim::scenarios::{self, CHAOS, TABLE_SEED};
use admission_core::sim::{Broken, page, run as play};
use anyhow::{Context, Result, bail};

use clap::Parser;

/// Plays the core's scenarios in virtual time, checks its invariants after every step, and prints what comes out.
#[derive(Parser)]
#[command(name = "cargo xtask sim")]
struct Options {
    /// Play this scenario alone: one of those that are shown without it, or `chaos`, which the seed makes up.
    #[arg(long)]
    scenario: Option<String>,
    /// Seed of everything that is left to chance.
    #[arg(long, default_value_t = TABLE_SEED)]
    seed: u64,
    /// Play so many seeds from that one on and print only what breaks; of `chaos` unless another scenario is named.
    #[arg(long, conflicts_with = "renew")]
    seeds: Option<u64>,
    /// Write the tables in admission-core/src/sim/tables again, which the tests compare with.
    #[arg(long, conflicts_with_all = ["scenario", "seed"])]
    renew: bool,
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

/// Plays, and prints what comes out.
fn run(options: &Options) -> Result<()> {
    let Options { scenario, seed, seeds, renew } = options;
    match (scenario.as_deref(), seeds) {
        (name, Some(count)) => many(name.unwrap_or(CHAOS), *seed..seed.saturating_add(*count)),
        (Some(name), None) => one(name, *seed).map(|page| print!("{page}")),
        (None, None) => all(*seed, *renew),
    }
}

fn all(seed: u64, renew: bool) -> Result<()> {
    for scenario in scenarios::all() {
        let page = one(&scenario.name, seed)?;
        if renew {
            let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../admission-core/src/sim/tables");
            let path = tables.join(format!("{}.txt", scenario.name));
            fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
            println!("wrote {}", path.display());
        } else {
            println!("{page}");
        }
    }
    Ok(())
}

fn one(name: &str, seed: u64) -> Result<String> {
    let Some(scenario) = scenarios::named(name, seed) else {
        let known: Vec<String> = scenarios::all().into_iter().map(|scenario| scenario.name).collect();
        bail!("there is no scenario {name:?}; there are {}, {CHAOS}", known.join(", "));
    };
    let figures = play(&scenario, seed).map_err(|broken| *broken).context("an invariant does not hold")?;
    Ok(page(&scenario, seed, &figures))
}

/// Plays seeds on all processors and says every few seconds how far it is.
fn many(name: &str, seeds: Range<u64>) -> Result<()> {
    one(name, seeds.start)?;
    let (next, done, start) = (AtomicU64::new(seeds.start), AtomicU64::new(0), Instant::now());
    let work = || {
        let mut broken = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return broken;
            }
            broken.extend(scenarios::named(name, seed).and_then(|scenario| play(&scenario, seed).err()));
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    let count = seeds.end.saturating_sub(seeds.start);
    let broken: Vec<Box<Broken>> = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut told = Instant::now();
        while workers.iter().any(|worker| !worker.is_finished()) {
            thread::sleep(Duration::from_millis(50));
            if told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                println!("{name}: {} of {count} seeds", done.load(Ordering::Relaxed));
            }
        }
        // A thread that has panicked has said why.
        let ended = workers.into_iter().map(|worker| worker.join().map_err(|_| anyhow::anyhow!("a thread panicked")));
        ended.collect::<Result<Vec<_>>>().map(|all| all.into_iter().flatten().collect())
    })?;
    for one in &broken {
        println!("{one}\n");
    }
    if !broken.is_empty() {
        bail!("{} of {count} seeds of {name} break an invariant", broken.len());
    }
    println!("{name}: all of {count} seeds from {} on hold, in {:.0} s", seeds.start, start.elapsed().as_secs_f64());
    Ok(())
}
