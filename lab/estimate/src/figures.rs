//! Errors of estimates as figures: a table, and JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::texts::{GATED, REPORTED};

/// What is promised, over all gated kinds and tokenizers together, and aimed at in each kind.
const PROMISED: [Promise; 3] = [
    Promise { name: "learned median", figure: |three| three.learned.median, most: 0.03 },
    Promise { name: "learned p95", figure: |three| three.learned.p95, most: 0.10 },
    Promise { name: "unlearned p95", figure: |three| three.unlearned.p95, most: 0.30 },
];

/// Kept sorted, so that figures come out in one order.
type ByName<T> = BTreeMap<&'static str, T>;

struct Promise {
    name: &'static str,
    figure: fn(&Three) -> f64,
    most: f64,
}

/// Relative errors of three ways to estimate: learned, by the family, by bytes.
#[derive(Clone, Default)]
pub struct Errors([Vec<f64>; 3]);

/// Of the relative errors of many estimates.
#[derive(Clone, Copy, Default, Serialize)]
pub struct Quantiles {
    median: f64,
    p95: f64,
    /// Mean of the errors with their signs: below zero where estimates are too low.
    bias: f64,
}

/// Of three ways to estimate.
#[derive(Clone, Copy, Serialize)]
pub struct Three {
    learned: Quantiles,
    unlearned: Quantiles,
    bytes4: Quantiles,
    prompts: usize,
}

/// What comes out.
#[derive(Default)]
pub struct Figures {
    gated: Errors,
    /// By kind, then tokenizer.
    texts: ByName<ByName<Errors>>,
}

impl Errors {
    /// How many prompts.
    pub fn count(&self) -> usize {
        self.0.iter().map(Vec::len).max().unwrap_or_default()
    }

    /// Takes what was estimated in each way, and what it was.
    pub fn add(&mut self, truth: u64, estimates: [u64; 3]) {
        for (errors, estimate) in self.0.iter_mut().zip(estimates) {
            errors.push((estimate as f64 - truth as f64) / truth.max(1) as f64);
        }
    }

    fn join(&mut self, other: &Self) {
        for (errors, more) in self.0.iter_mut().zip(&other.0) {
            errors.extend(more);
        }
    }

    fn three(&self) -> Three {
        let [learned, unlearned, bytes4] = self.0.each_ref().map(|errors| Quantiles::of(errors));
        Three { learned, unlearned, bytes4, prompts: self.count() }
    }
}

impl Quantiles {
    fn of(errors: &[f64]) -> Self {
        let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let at = |share: f64| sizes.get((sizes.len() as f64 * share) as usize).copied().unwrap_or_default();
        let bias = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
        Self { median: at(0.5), p95: at(0.95), bias }
    }
}

impl Figures {
    /// Takes the errors of a kind of text with a tokenizer.
    pub fn add(&mut self, kind: &'static str, tokenizer: &'static str, gated: bool, errors: Errors) {
        if gated {
            self.gated.join(&errors);
        }
        self.texts.entry(kind).or_default().insert(tokenizer, errors);
    }

    fn of_kind(&self, kind: &str) -> Errors {
        let mut all = Errors::default();
        self.texts.get(kind).into_iter().flat_map(|by| by.values()).for_each(|errors| all.join(errors));
        all
    }

    /// Prints a table.
    pub fn print(&self) {
        println!("\nestimates, relative error in percent: median / p95\n");
        println!("{:10} {:8} {:>13} {:>13} {:>13} {:>8}", "text", "by", "learned", "unlearned", "bytes/4", "prompts");
        let gated = GATED.into_iter().chain(["-"]).chain(REPORTED);
        for kind in gated {
            if kind == "-" {
                row("gated", "all", &self.gated.three());
                println!();
            }
            for (tokenizer, errors) in self.texts.get(kind).into_iter().flatten() {
                row(kind, tokenizer, &errors.three());
            }
        }
        for kind in GATED {
            for miss in misses(&self.of_kind(kind).three()) {
                println!("{kind} by itself: {miss}");
            }
        }
    }

    /// What is worse than promised.
    pub fn broken_promises(&self) -> Vec<String> {
        misses(&self.gated.three())
    }
}

fn misses(three: &Three) -> Vec<String> {
    let worse = PROMISED.iter().filter(|promise| (promise.figure)(three) > promise.most);
    let percent = |share: f64| share * 100.0;
    worse
        .map(|Promise { name, figure, most }| {
            format!("{name} {:.1} % instead of {:.0} %", percent(figure(three)), percent(*most))
        })
        .collect()
}

fn row(kind: &str, tokenizer: &str, three: &Three) {
    let pair = |of: Quantiles| format!("{:.1} / {:.1}", of.median * 100.0, of.p95 * 100.0);
    let (learned, unlearned, bytes4) = (pair(three.learned), pair(three.unlearned), pair(three.bytes4));
    println!("{kind:10} {tokenizer:8} {learned:>13} {unlearned:>13} {bytes4:>13} {:>8}", three.prompts);
}

impl Serialize for Figures {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Page {
            #[serde(flatten)]
            gated: Three,
            texts: ByName<Kind>,
        }
        #[derive(Serialize)]
        struct Kind {
            #[serde(flatten)]
            all: Three,
            tokenizers: ByName<Three>,
        }
        let kind = |(kind, by): (&&'static str, &ByName<Errors>)| {
            let tokenizers = by.iter().map(|(tokenizer, errors)| (*tokenizer, errors.three())).collect();
            (*kind, Kind { all: self.of_kind(kind).three(), tokenizers })
        };
        Page { gated: self.gated.three(), texts: self.texts.iter().map(kind).collect() }.serialize(serializer)
    }
}
