//! The filter benchmark: what a request through the filter costs the proxy, beside what others cost it, in one run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use bench::bodies::{self, Body};
use bench::statistics::Summary;

use crate::workspace::Workspace;
use crate::{artefacts, command, parts, tools};

mod figures;
mod rounds;
mod stage;
mod variants;

use figures::{Details, Figures, OfBody, differences};
use rounds::{Pace, Samples, Turn};
use stage::{Stage, question};
use variants::{Modules, TENANTS, Variant};

/// Chunks of a streamed answer.
const CHUNKS: usize = 400;

const MIB: f64 = 1024.0 * 1024.0;

/// How to run the benchmark.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to write the figures.
    pub json: Option<PathBuf>,
    /// Fewer and shorter rounds: enough to see that everything works, too little for figures.
    pub quick: bool,
}

/// Builds what is needed, measures, prints tables and writes the figures.
///
/// # Errors
/// When a part cannot be built or started, or a request is answered otherwise than it should be, so that figures would say
/// nothing.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    println!("tools and modules");
    tools::for_demo(workspace)?;
    artefacts::released_filter(workspace)?;
    let [floor, naive] = ["floor", "naive"].map(|name| compared(workspace, name));
    let modules = Modules { filter: workspace.filter(), floor: floor?, naive: naive? };
    let figures = parts::block_on(measure(workspace, &modules, options))?;
    figures.print();
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&figures)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Builds a module that the filter is compared with, `bench/NAME`.
fn compared(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    let package = format!("bench-{name}");
    let arguments = ["--release", "--target", artefacts::WASM, "--package", &package];
    command::run(command::cargo("build", arguments).current_dir(&workspace.root))?;
    Ok(workspace.built(&format!("{}/release", artefacts::WASM), &format!("bench_{name}.wasm")))
}

async fn measure(workspace: &Workspace, modules: &Modules, options: &Options) -> Result<Figures> {
    let pace = Pace::new(options.quick);
    let all = bodies::all();
    println!("\n{} proxies of one worker thread each, {pace:?}", Variant::ALL.len());
    let [small, ..] = &all;
    let mut stage = Stage::start(workspace, modules, small).await?;
    let [few, many] = TENANTS;

    let mut found = BTreeMap::new();
    for body in &all {
        println!("    {} …", body.name);
        let asked = question(body, few, None)?;
        let turns: Vec<Turn> = Variant::COMPARED.map(|variant| (variant, asked.clone())).into();
        let samples = rounds::measure(&mut stage, &turns, None, pace).await?;
        found.insert(body.name, OfBody::new(body.json.len(), &samples));
    }

    println!("    {many} tenants beside {few} …");
    let turns =
        [(Variant::Sluice, question(small, few, None)?), (Variant::SluiceManyTenants, question(small, many, None)?)];
    let tenants = rounds::measure(&mut stage, &turns, None, pace).await?;

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
        details: Details {
            stream_cpu_us: summaries(&streams),
            tenants_cpu_us: summaries(&tenants),
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
