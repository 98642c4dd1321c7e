//! The families' first weights: least squares of relative errors over the texts that are for that, none below a floor.

use std::path::Path;

use admission_core::family::Family;
use admission_core::request::text::{Feature, Features};
use anyhow::{Context, Result, bail};
use fastrand::Rng;

use crate::texts::{GATED, Text};
use crate::tokenizers::{self, Counter};

/// Prompts drawn from each text.
const DRAWN: usize = 16;

/// Rounds of the solver; far more than it needs.
const ROUNDS: usize = 2_000;

/// What kinds of text count: code the most, since no other kind has as much variety in itself.
fn importance(kind: &str) -> f64 {
    match kind {
        "code" => 3.0,
        kind if GATED.contains(&kind) => 1.0,
        _ => 0.35,
    }
}

/// How strongly weights are held to [`usual`] ones where the texts say little: as if errors of 5 % were usual, and weights
/// half a token apart.
const HOLD: f64 = 0.01;

/// Weights of messages, tools and chats, in thousandths: from the families' templates, not fitted.
const fn around(family: Family) -> [u32; 3] {
    match family {
        Family::Llama3 | Family::Gemma => [5_000, 10_000, 5_000],
        Family::Qwen => [5_000, 10_000, 3_000],
        Family::DeepSeek => [2_000, 10_000, 2_000],
        Family::O200k | Family::Cl100k | Family::Small | Family::Generic => [4_000, 10_000, 3_000],
    }
}

/// The least that a feature may weigh: what callers could repeat at will must never be free.
fn floor(feature: Feature) -> f64 {
    match feature {
        Feature::Long | Feature::Digit => 0.1,
        Feature::RareSign | Feature::Indent | Feature::Rule => 0.05,
        Feature::Latin | Feature::Greek | Feature::Arabic | Feature::Indic | Feature::Kana => 0.25,
        Feature::Symbol | Feature::Han | Feature::Hangul => 0.4,
        Feature::Emoji => 1.0,
        _ => 0.01,
    }
}

/// What a feature weighs with most tokenizers.
fn usual(feature: Feature) -> f64 {
    match feature {
        Feature::Long | Feature::Foreign => 0.1,
        Feature::RareSign => 0.15,
        Feature::Line | Feature::Digit => 0.3,
        Feature::Greek | Feature::Arabic | Feature::Indic => 0.4,
        Feature::Rule => 0.5,
        Feature::Signs | Feature::FreshLine => 0.6,
        Feature::Indent | Feature::Han | Feature::Kana | Feature::Hangul => 0.75,
        Feature::Opened | Feature::Latin => 0.9,
        Feature::Word | Feature::Number | Feature::Symbol => 1.0,
        Feature::Capitals => 1.4,
        Feature::RareHan => 2.0,
        Feature::Emoji => 2.5,
    }
}

struct Row {
    text: String,
    inputs: [f64; Feature::COUNT],
    counts: f64,
}

/// Fits each family that has tokenizers, and prints its weights as they stand in the core.
///
/// # Errors
/// A tokenizer cannot be read.
pub fn run(texts: &[Text], others: &[String]) -> Result<()> {
    let rows = rows(texts);
    let (cl100k, o200k) = tokenizers::openai()?;
    let mut counters = vec![(Family::Cl100k, cl100k), (Family::O200k, o200k)];
    for other in others {
        let (name, path) = other.split_once('=').context("--tokenizer wants FAMILY=PATH")?;
        let Some(family) = Family::ALL.into_iter().find(|family| family.label() == name) else {
            bail!("there is no family {name:?}");
        };
        counters.push((family, tokenizers::from_file(family, Path::new(path))?));
    }
    for family in Family::ALL {
        // What is known of no model in particular is the mean of all large vocabularies.
        let generic = family == Family::Generic;
        let of = |own: Family| own == family || generic && own != Family::Small;
        let own: Vec<&Counter> = counters.iter().filter(|(own, _)| of(*own)).map(|(_, counter)| counter).collect();
        if !own.is_empty() {
            print(family, &weights(&rows, &own)?);
        }
    }
    Ok(())
}

fn print(family: Family, weights: &[f64]) {
    let thousandths = weights.iter().map(|weight| (weight * 1_000.0).round() as u32).chain(around(family));
    let written: Vec<String> = thousandths.map(grouped).collect();
    let name = family.label().to_uppercase();
    println!("const {name}: Weights = Weights::per_mille([{}]);", written.join(", "));
}

fn grouped(number: u32) -> String {
    match number {
        1_000.. => format!("{}_{:03}", number / 1_000, number % 1_000),
        _ => number.to_string(),
    }
}

/// Stretches of each text; texts of one kind count as much together as those of another.
fn rows(texts: &[Text]) -> Vec<Row> {
    let mut rng = Rng::with_seed(3);
    let mut rows = Vec::new();
    for text in texts {
        let of_kind = texts.iter().filter(|other| other.kind == text.kind).count();
        for _ in 0..DRAWN {
            let first = rng.usize(..text.blocks.len());
            let stretch: String = text.blocks.iter().skip(first).take(rng.usize(1..6)).map(String::as_str).collect();
            let mut features = Features::default();
            features.add_bytes(stretch.as_bytes());
            let inputs = features.counts().map(|count| count as f64);
            rows.push(Row { text: stretch, inputs, counts: importance(text.kind) / of_kind as f64 });
        }
    }
    rows
}

fn weights(rows: &[Row], counters: &[&Counter]) -> Result<[f64; Feature::COUNT]> {
    let mut matrix = [[0.0; Feature::COUNT]; Feature::COUNT];
    let mut right = [0.0; Feature::COUNT];
    for (row, counter) in rows.iter().flat_map(|row| counters.iter().map(move |counter| (row, counter))) {
        let truth = counter.count(&row.text)?.max(1) as f64;
        for (at, one) in row.inputs.iter().enumerate() {
            right[at] += row.counts * one / truth;
            for (cell, other) in matrix[at].iter_mut().zip(&row.inputs) {
                *cell += row.counts * one * other / truth / truth;
            }
        }
    }
    let (floors, usual) = (Feature::ALL.map(floor), Feature::ALL.map(usual));
    let mut weights = usual;
    for _ in 0..ROUNDS {
        for at in 0..Feature::COUNT {
            let product: f64 = matrix[at].iter().zip(&weights).map(|(cell, weight)| cell * weight).sum();
            let held = HOLD * (weights[at] - usual[at]);
            weights[at] = (weights[at] + (right[at] - product - held) / (matrix[at][at] + HOLD)).max(floors[at]);
        }
    }
    report(rows, counters, &weights)?;
    Ok(weights)
}

/// How well the weights fit, beside them.
fn report(rows: &[Row], counters: &[&Counter], weights: &[f64; Feature::COUNT]) -> Result<()> {
    let mut errors = Vec::new();
    for (row, counter) in rows.iter().flat_map(|row| counters.iter().map(move |counter| (row, counter))) {
        let sum: f64 = weights.iter().zip(&row.inputs).map(|(weight, count)| weight * count).sum();
        errors.push((sum / counter.count(&row.text)?.max(1) as f64 - 1.0).abs());
    }
    errors.sort_by(f64::total_cmp);
    let at = |share: f64| errors.get((errors.len() as f64 * share) as usize).copied().unwrap_or_default() * 100.0;
    println!("// fitted to {} prompts: median {:.1} %, p95 {:.1} %", errors.len(), at(0.5), at(0.95));
    Ok(())
}
