//! Learning from some prompts, testing with others.

use admission_core::estimate::{BYTES_PER_TOKEN, Batch, Experience, Observed, Weights};
use admission_core::family::Family;
use admission_core::units::Tokens;
use anyhow::{Result, ensure};
use fastrand::Rng;

use crate::figures::{Errors, Figures};
use crate::request::{Pools, Request};
use crate::texts::{GATED, LONG, LONG_WHOLE, REPORTED, Text};
use crate::tokenizers::Counter;

/// Requests that are learned from.
const LEARNED: usize = 50;

/// Requests of each kind that are tested with, for each tokenizer.
const TESTED: usize = 120;

/// The same of long chats.
const TESTED_LONG: usize = 40;

/// Prompts shorter than this are reported by themselves.
const LEAST_TOKENS: u64 = 200;

const SEED: u64 = 1_851;

/// One block in three of the tested texts is learned from, and never tested with. Of other kinds nothing is learned.
fn is_learned(kind: &str, at: usize) -> bool {
    GATED.contains(&kind) && at.is_multiple_of(3)
}

fn side(text: &Text, learned: bool) -> Vec<&str> {
    let blocks = text.blocks.iter().enumerate().filter(|(at, _)| is_learned(text.kind, *at) == learned);
    blocks.map(|(_, block)| block.as_str()).collect()
}

/// A request of a kind, of blocks of one side; `None` where a text has too few of them.
fn drawn(texts: &[Text], pools: &Pools<'_>, kind: &str, learned: bool, rng: &mut Rng) -> Option<Request> {
    if kind == "chat" {
        return Some(Request::chat(pools, rng));
    }
    if matches!(kind, LONG | LONG_WHOLE) {
        return Some(Request::long(pools, rng));
    }
    let of = if kind == "short" { "english" } else { kind };
    let all: Vec<&Text> = texts.iter().filter(|text| text.kind == of).collect();
    let blocks = side(all.get(rng.usize(..all.len().max(1)))?, learned);
    if blocks.is_empty() {
        return None;
    }
    Some(if kind == "short" { Request::short(&blocks, rng) } else { Request::about(&blocks, rng) })
}

/// All figures.
///
/// # Errors
/// A request cannot be read or counted.
pub fn all(texts: &[Text], counters: &[Counter]) -> Result<Figures> {
    let mut figures = Figures::default();
    for counter in counters {
        let family = Family::of_model(counter.model).weights();
        let learned = learn(texts, counter, family)?;
        for kind in GATED.into_iter().chain(REPORTED) {
            let errors = test(texts, counter, kind, [family, &learned])?;
            let gated = GATED.contains(&kind);
            figures.add(kind, counter.name, gated, errors);
        }
    }
    Ok(figures)
}

fn learn(texts: &[Text], counter: &Counter, family: &Weights) -> Result<Weights> {
    let pools = Pools::new(texts, is_learned);
    let (mut rng, mut model) = (Rng::with_seed(SEED), Experience::default());
    let mut seen = 0;
    while seen < LEARNED {
        let kind = GATED.get(rng.usize(..GATED.len())).copied().unwrap_or_default();
        let Some(request) = drawn(texts, &pools, kind, true, &mut rng) else { continue };
        let read = request.read(counter.model, rng.bool(), None)?;
        let prompt = Some(Tokens(request.tokens(counter)?));
        let mut batch = Batch::default();
        batch.observe(&Observed { inputs: read.inputs, prompt, output: None, tenant: 0 }, &model.belief(family));
        model.merge(&batch);
        seen += 1;
    }
    Ok(if model.fits(0) { model.belief(family).weights } else { *family })
}

fn test(texts: &[Text], counter: &Counter, kind: &str, [family, learned]: [&Weights; 2]) -> Result<Errors> {
    let pools = Pools::new(texts, |kind, at| !is_learned(kind, at));
    let (mut rng, mut errors, mut tries) = (Rng::with_seed(SEED + 1), Errors::default(), 0);
    let tested = if matches!(kind, LONG | LONG_WHOLE) { TESTED_LONG } else { TESTED };
    while errors.count() < tested && tries < TESTED * 10 {
        tries += 1;
        let Some(request) = drawn(texts, &pools, kind, false, &mut rng) else { continue };
        let truth = request.tokens(counter)?;
        if (truth < LEAST_TOKENS) != (kind == "short") {
            continue;
        }
        let seed = (kind != LONG_WHOLE).then_some(SEED + tries as u64);
        let read = request.read(counter.model, rng.bool(), seed)?;
        errors
            .add(truth, [learned.tokens(&read.inputs).0, family.tokens(&read.inputs).0, read.bytes / BYTES_PER_TOKEN]);
    }
    let is_complete = errors.count() == tested || !GATED.contains(&kind);
    ensure!(is_complete, "only {} of {tested} requests of {kind} came about: are its texts there?", errors.count());
    Ok(errors)
}
