//! The filter benchmark: what a request through the filter costs the proxy, beside what others cost it, in one run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use testkit::bodies::{self, Body};
use testkit::statistics::Summary;

use clap::Parser;
use testkit::checkout;

mod builds;
mod figures;
mod rounds;
mod stage;
mod variants;

use figures::{Details, Figures, OfBody, differences};
use rounds::{Pace, Samples};
use stage::{Stage, question};
use variants::{Modules, TENANTS, UNNAMED, Variant};

/// Chunks of a streamed answer.
const CHUNKS: usize = 400;

const MIB: f64 = 1024.0 * 1024.0;

/// Measures what a request through the filter costs the proxy, beside no filter, the least filter and Envoy's own.
#[derive(Parser, Clone, Debug)]
#[command(name = "cargo xtask bench filter")]
struct Options {
    /// Write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Fewer and shorter rounds: enough to see that everything works, too little for figures.
    #[arg(long)]
    quick: bool,
    /// Measure, instead of all that, the filter beside that of another build, such as `target/neighbour/sluice.wasm`, which
    /// `cargo xtask neighbours COMMIT` leaves.
    #[arg(long, value_name = "MODULE")]
    beside: Option<PathBuf>,
}

fn main() -> ExitCode {
    lab::exit(run(&Options::parse()))
}

/// Measures, prints tables and writes the figures.
fn run(options: &Options) -> Result<()> {
    let [floor, naive] = ["lab_floor", "lab_naive"].map(checkout::module);
    let other =
        options.beside.as_deref().map(std::fs::canonicalize).transpose().context("cannot find the module beside")?;
    let modules = Modules { filter: checkout::filter(), floor, naive, other };
    if modules.other.is_some() {
        let builds = lab::block_on(builds::compare(&modules, options.quick))?;
        builds.print();
        return lab::write_figures(options.json.as_deref(), &builds);
    }
    let figures = lab::block_on(measure(&modules, options))?;
    figures.print();
    lab::write_figures(options.json.as_deref(), &figures)
}

async fn measure(modules: &Modules, options: &Options) -> Result<Figures> {
    let pace = Pace::new(options.quick);
    let all = bodies::all();
    let [small, ..] = &all;
    let mut stage = Stage::start(modules, &Variant::ALL, small).await?;
    println!("\n{} proxies of one worker thread each, {pace:?}", stage.sides.len());
    let [few, many] = TENANTS;

    let mut found = BTreeMap::new();
    for body in &all {
        println!("    {} …", body.name);
        let asked = question(body, few, None)?;
        let turns = Variant::COMPARED.map(|variant| (variant, asked.clone()));
        let samples = rounds::measure(&mut stage, &turns, None, pace).await?;
        found.insert(body.name, OfBody::new(body.json.len(), &samples));
    }

    println!("    {many} tenants beside {few} …");
    let turns =
        [(Variant::Sluice, question(small, few, None)?), (Variant::SluiceManyTenants, question(small, many, None)?)];
    let tenants = rounds::measure(&mut stage, &turns, None, pace).await?;

    println!("    {UNNAMED} tenants that the list does not name …");
    let (few_ask, all_ask) = (question(small, few, None)?, question(small, UNNAMED, None)?);
    let all_of_them = if options.quick { 1 } else { UNNAMED as u64 };
    stage.ask_until(Variant::SluiceUnnamed, &all_ask, all_of_them, pace).await?;
    let turns = [(Variant::Sluice, few_ask), (Variant::SluiceUnnamed, all_ask)];
    let unnamed = rounds::measure(&mut stage, &turns, None, pace).await?;

    println!("    streams of {CHUNKS} chunks …");
    let asked = question(&streaming(small), few, Some(CHUNKS))?;
    let turns = [Variant::None, Variant::Floor, Variant::Sluice].map(|variant| (variant, asked.clone()));
    let streams = rounds::measure(&mut stage, &turns, Some(CHUNKS), pace).await?;

    stage.check().await?;
    let mut resident_mib = BTreeMap::new();
    for side in &stage.sides {
        resident_mib.insert(side.variant.name(), side.envoy.resident_bytes()? as f64 / MIB);
    }
    let resident = |variant: Variant| resident_mib.get(variant.name()).copied().unwrap_or(f64::NAN);
    Ok(Figures {
        bodies: found,
        stream_chunk_us: Summary::of(&differences(cpu(&streams, Variant::Sluice), cpu(&streams, Variant::None))).median,
        rss_mib: resident(Variant::Sluice) - resident(Variant::None),
        wasm_bytes: std::fs::metadata(&modules.filter).context("the filter's module has gone")?.len(),
        tenants_10000_ratio: median(&tenants, Variant::SluiceManyTenants) / median(&tenants, Variant::Sluice),
        unnamed_100000_ratio: median(&unnamed, Variant::SluiceUnnamed) / median(&unnamed, Variant::Sluice),
        details: Details {
            stream_cpu_us: summaries(&streams),
            tenants_cpu_us: summaries(&tenants),
            unnamed_cpu_us: summaries(&unnamed),
            resident_mib,
            quick: options.quick,
        },
    })
}

/// A body whose answer is asked for as a stream.
fn streaming(body: &Body) -> Body {
    let wish = r#"{"stream":true,"stream_options":{"include_usage":true},"#;
    Body { name: "stream", json: body.json.replacen('{', wish, 1) }
}

fn cpu(samples: &BTreeMap<Variant, Samples>, variant: Variant) -> &[f64] {
    samples.get(&variant).map(|samples| samples.cpu_us.as_slice()).unwrap_or_default()
}

fn median(samples: &BTreeMap<Variant, Samples>, variant: Variant) -> f64 {
    Summary::of(cpu(samples, variant)).median
}

fn summaries(samples: &BTreeMap<Variant, Samples>) -> BTreeMap<&'static str, Summary> {
    samples.iter().map(|(variant, samples)| (variant.name(), Summary::of(&samples.cpu_us))).collect()
}
