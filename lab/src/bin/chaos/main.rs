//! Chaos in a real Envoy: everything that can go wrong does, by seed, under a random load; then it is seen whether anything is left
//! over.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Parser;
use testkit::watch::Watch;
use tokio::time::{Instant, sleep};

use testkit::checkout;
use testkit::parts::Programs;

mod balance;
mod callers;
mod caps;
mod figures;
mod gates;
mod history;
mod members;
mod policy;
mod proxy;
mod script;
mod shots;
mod stage;
mod workers;

use callers::{Callers, Record};
use figures::{Figures, Run};
use stage::Stage;
use workers::Visit;

/// A client that runs later than this blames the proxy for it.
const STALL: Duration = Duration::from_millis(100);

/// Faults shown of a run that fails.
const SHOWN: usize = 12;

/// State pages shown of its end.
const SHOWN_PAGES: usize = 3;

/// Lets everything that can go wrong do so in a real Envoy, by seed, and checks that nothing is left over.
#[derive(Parser, Clone, Debug)]
#[command(name = "cargo xtask chaos")]
struct Options {
    /// How long, in minutes; at least half a minute.
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// Decides requests and events.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    lab::exit(run(&Options::parse()))
}

/// Plays, prints a table and writes the figures.
fn run(options: &Options) -> Result<()> {
    ensure!((0.5..=600.0).contains(&options.minutes), "--minutes takes 0.5 to 600");
    let figures = lab::block_on(play(options))?;
    print!("\nchaos, seed {}, {} minutes\n{}", options.seed, options.minutes, figures.table());
    lab::write_figures(options.json.as_deref(), &figures)?;
    if !figures.broken.is_empty() {
        bail!("{}\n{}", figures.broken.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("\n"), repeat(options));
    }
    Ok(())
}

fn repeat(options: &Options) -> String {
    format!("to play it again: cargo xtask chaos --minutes {} --seed {}", options.minutes, options.seed)
}

async fn play(options: &Options) -> Result<Figures> {
    let length = Duration::from_secs_f64(options.minutes * 60.0);
    let (acts, shots) = (script::acts(options.seed, length), shots::shots(options.seed, length));
    println!("\nseed {}: {} events, {} requests in {} s", options.seed, acts.len(), shots.len(), length.as_secs());
    let mut stage = Stage::start(&Programs::built()?, &checkout::faulty_filter()).await?;
    let watch = Watch::start(Duration::from_millis(20), STALL);
    let callers = Callers::new(stage.clock, stage.door.subscribe())?;
    let begin = Instant::now();
    let events = acts.len();
    let (played, ()) = tokio::join!(stage.play(&acts, begin, length), callers.send(shots, begin));
    let settled = match played {
        Ok(()) => stage.settle().await,
        Err(error) => Err(error),
    };
    let rest = match settled {
        Ok(rest) => rest,
        Err(error) => {
            explain(&stage, None);
            return Err(error.context(repeat(options)));
        }
    };
    // Of those whose callers have just left workers learn a moment later.
    sleep(history::SLACK).await;
    stage.seats.iter_mut().try_for_each(workers::Seat::look)?;
    let visits: Vec<Visit> = stage.seats.iter().flat_map(|seat| seat.visits().iter().cloned()).collect();
    let records: BTreeMap<usize, Record> = callers.records().into_iter().map(|record| (record.id, record)).collect();
    let overshoot = caps::overshoot(&stage.history, &records, &visits);
    let budget = gates::by_budget(&stage.history, &records, &visits);
    let ceiling = gates::by_ceiling(&stage.history, &records, &visits);
    let reserve = gates::by_reserve(&stage.history, &records, &visits);
    let balance = balance::balance(&stage.history, &records, &visits);
    let client_late_ms =
        watch.stalls().iter().map(|stall| (stall.end - stall.start).as_secs_f64() * 1e3).fold(0.0, f64::max);
    let run = Run {
        seed: options.seed,
        minutes: options.minutes,
        events,
        fences: stage.history.fences.len(),
        client_late_ms,
    };
    let figures = Figures::new(run, rest, (&overshoot, [&budget, &ceiling, &reserve]), balance);
    for record in &figures.balance.elsewhere {
        println!("failed, though no worker in trouble had it: {record}");
    }
    if !figures.broken.is_empty() {
        let beyond = [&budget, &ceiling, &reserve].map(|gate| (gate.by, gate.at, &gate.who));
        let beyond = [(overshoot.by, overshoot.at, &overshoot.who)].into_iter().chain(beyond).find(|(by, ..)| *by > 0);
        for record in beyond.iter().flat_map(|(_, _, who)| *who) {
            let visits: Vec<&Visit> = visits.iter().filter(|visit| visit.id == record.id).collect();
            println!("counted beyond a cap or a gate: {record:?} {visits:?}");
        }
        explain(&stage, beyond.map(|(_, at, _)| at));
    }
    Ok(figures)
}

/// What one needs to know of a run that fails, with the state around some time and at the end.
fn explain(stage: &Stage, around: Option<Duration>) {
    let near = |at: Duration| around.is_some_and(|around| at.abs_diff(around) < history::SLACK);
    let last = stage.pages.len().saturating_sub(SHOWN_PAGES);
    for (_, (at, page)) in stage.pages.iter().enumerate().filter(|(number, (at, _))| *number >= last || near(*at)) {
        println!("state page at {:.1} s: {page}", at.as_secs_f64());
    }
    for incident in &stage.history.incidents {
        println!("{incident:?}");
    }
    for (number, life) in stage.history.lives.iter().enumerate() {
        println!("proxy {number}: {:?}\nthe end of its log:\n{}", life.counted, life.log_end);
    }
    println!("its memory: {}", stage.memory_log());
    println!("the end of the log of the one that runs:\n{}", stage.log_end());
}
