//! The estimate benchmark: how near the core's estimates come to what real tokenizers count, before and after learning.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;

mod figures;
mod fit;
mod made_up;
mod measure;
mod request;
mod texts;
mod tokenizers;

use figures::Figures;
use texts::Half;

/// Measures estimates against real tokenizers. `cargo xtask bench estimate` runs it.
#[derive(Parser)]
struct Options {
    /// Write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Fit the families' first weights to the texts that are for that, and print them.
    #[arg(long, conflicts_with = "json")]
    fit: bool,
    /// With --fit: another tokenizer, as FAMILY=tokenizer.json. Those of one family are fitted together.
    #[arg(long, requires = "fit", value_name = "FAMILY=PATH")]
    tokenizer: Vec<String>,
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

/// Measures, prints a table and writes the figures; or fits weights and prints them. Fails when a text or tokenizer cannot be
/// read, or the estimates are worse than promised.
fn run(options: &Options) -> Result<()> {
    let fitting = texts::read(Half::Fit)?;
    if options.fit {
        return fit::run(&fitting, &options.tokenizer);
    }
    let tokenizers = tokenizers::all(&fitting)?;
    let figures: Figures = measure::all(&texts::read(Half::Test)?, &tokenizers)?;
    figures.print();
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&figures)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let broken = figures.broken_promises();
    if !broken.is_empty() {
        bail!("estimates are worse than promised: {}", broken.join("; "));
    }
    Ok(())
}
