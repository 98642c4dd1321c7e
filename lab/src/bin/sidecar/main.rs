//! The sidecar benchmark: what reading a thousand workers ten times a second costs, and how soon the filter acts on what was read.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use testkit::process;

use clap::Parser;
use testkit::checkout;
use testkit::parts::Program;

mod effect;
mod figures;
mod stage;

use figures::{Details, Figures, Gaps, WholePages};
use stage::{Programs, Stage};

const MIB: f64 = 1024.0 * 1024.0;

/// Measures what reading a thousand workers ten times a second costs the sidecar, and how soon the filter acts on what was read.
#[derive(Parser, Clone, Debug)]
#[command(name = "cargo xtask bench sidecar")]
struct Options {
    /// Write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Shorter windows: enough to see that everything works, too little for figures.
    #[arg(long)]
    quick: bool,
}

/// How long everything takes.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Until connections stand and buffers have their sizes.
    warm_up: Duration,
    /// In which the cost is taken and changes are timed.
    window: Duration,
    /// In which some workers are slow.
    slow_window: Duration,
    /// In which all workers send whole pages.
    whole_window: Duration,
}

fn main() -> ExitCode {
    lab::exit(run(&Options::parse()))
}

/// Measures, prints a table and writes the figures.
fn run(options: &Options) -> Result<()> {
    let programs = Programs {
        sidecar: checkout::released("sluice-sidecar")?,
        envoy: checkout::envoy(),
        filter: checkout::filter(),
        bootstrap: checkout::shipped("envoy.yaml"),
    };
    let figures = lab::block_on(measure(&programs, options.quick))?;
    figures.print();
    lab::write_figures(options.json.as_deref(), &figures)
}

async fn measure(programs: &Programs, quick: bool) -> Result<Figures> {
    let seconds = Duration::from_secs;
    let pace = match quick {
        true => Pace { warm_up: seconds(2), window: seconds(5), slow_window: seconds(2), whole_window: seconds(2) },
        false => Pace { warm_up: seconds(5), window: seconds(40), slow_window: seconds(10), whole_window: seconds(10) },
    };
    println!("\n{} workers, one sidecar, one proxy; {pace:?}", stage::WORKERS);
    let stage = Stage::start(programs).await?;
    tokio::time::sleep(pace.warm_up).await;

    println!("    one worker turns busy and free again …");
    let first_connections = stage.take_seen().connections;
    let (effects, cost) = Cost::of(&stage, effect::measure(&stage, pace.window)).await?;
    let effects = effects.with_context(|| format!("the sidecar's last words:\n{}", stage.log_end()))?;
    let seen = stage.take_seen();

    println!("    three workers are late, trickle and hang …");
    stage.slow_some_down();
    // Their first slow answer is the first of the window; what the others saw before is left out.
    drop(stage.take_seen());
    tokio::time::sleep(pace.slow_window).await;
    let with_slow = stage.take_seen();
    ensure!(!seen.gaps.is_empty() && !with_slow.gaps.is_empty(), "no worker was read twice");

    println!("    all workers send whole pages whatever is asked for …");
    stage.send_whole_pages();
    drop(stage.take_seen());
    let ((), whole) = Cost::of(&stage, tokio::time::sleep(pace.whole_window)).await?;
    let whole_scrapes = stage.take_seen().asked;

    let page = page(&stage.sidecar).await?;
    Ok(Figures {
        cores: cost.cores(),
        rss_mib: process::peak_resident_bytes(stage.sidecar.id()?)? as f64 / MIB,
        effect_p99_ms: effects.p99_ms,
        details: Details {
            workers: stage::WORKERS,
            window_s: cost.took.as_secs_f64(),
            scrapes_per_s: seen.asked as f64 / cost.took.as_secs_f64(),
            cpu_us_a_scrape: cost.cpu.as_secs_f64() * 1e6 / seen.asked as f64,
            bytes_a_scrape: cost.bytes as f64 / seen.asked as f64,
            whole_pages: WholePages {
                cores: whole.cores(),
                scrapes_per_s: whole_scrapes as f64 / whole.took.as_secs_f64(),
                cpu_us_a_scrape: whole.cpu.as_secs_f64() * 1e6 / whole_scrapes as f64,
                bytes_a_scrape: whole.bytes as f64 / whole_scrapes as f64,
            },
            connections: first_connections + seen.connections,
            new_connections_in_window: seen.connections,
            failed_scrapes_a_slow_worker_apart: count(&page, "sluice_sidecar_scrapes_total{", |line| {
                !line.contains("result=\"ok\"") && !line.contains("result=\"timeout\"")
            })?,
            views_taken: count(&page, "sluice_sidecar_pushes_total{", |line| line.contains("result=\"taken\""))?,
            effects,
            gaps: Gaps::of(seen.gaps),
            gaps_beside_slow_workers: Gaps::of(with_slow.gaps),
            quick,
        },
    })
}

/// What the sidecar took in some time.
struct Cost {
    cpu: Duration,
    took: Duration,
    /// Of workers' pages.
    bytes: u64,
}

impl Cost {
    /// While something else is done.
    async fn of<T>(stage: &Stage, work: impl Future<Output = T>) -> Result<(T, Self)> {
        let spent = async || -> Result<_> {
            let bytes = count(&page(&stage.sidecar).await?, "sluice_sidecar_scraped_bytes_total{", |_| true)?;
            Ok((process::cpu_time(stage.sidecar.id()?)?, bytes, Instant::now()))
        };
        let (cpu_before, bytes_before, began) = spent().await?;
        let result = work.await;
        let (cpu, bytes, ended) = spent().await?;
        let cost = Self { cpu: cpu.saturating_sub(cpu_before), took: ended - began, bytes: bytes - bytes_before };
        Ok((result, cost))
    }

    fn cores(&self) -> f64 {
        self.cpu.as_secs_f64() / self.took.as_secs_f64()
    }
}

/// The sidecar's own metrics.
async fn page(sidecar: &Program) -> Result<String> {
    let url = format!("http://{}/metrics", sidecar.address);
    let answer = testkit::envoy::direct_client()?.get(url).send().await.context("the sidecar has gone")?;
    Ok(answer.error_for_status()?.text().await?)
}

/// Sum over the lines of one series.
fn count(page: &str, series: &str, wanted: impl Fn(&str) -> bool) -> Result<u64> {
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with(series)).collect();
    if lines.is_empty() {
        bail!("the sidecar's metrics have no {series}");
    }
    let value = |line: &&str| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok());
    Ok(lines.into_iter().filter(|line| wanted(line)).filter_map(|line| value(&line)).sum())
}
