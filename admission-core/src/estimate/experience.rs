//! What the answers of one model taught about it, shared by all VMs.

use super::errors::{Errors, belief};
use super::fit::Sums;
use super::output::{Lengths, class_of};
use super::trust::{Trust, fits};
use super::weights::{Inputs, Weights};
use crate::record::{Record, Sections, Writer};
use crate::units::Tokens;

/// Requests that one batch takes; those beyond teach nothing.
pub const MOST_OBSERVED: usize = 256;

/// Prompts of so many tokens count half: whole tokens are coarse for short ones.
const SHORT: f64 = 20.0;

/// No prompt is longer, whatever a worker says.
const MOST_TOKENS: u64 = 1 << 24;

mod tag {
    pub const ERRORS: u8 = 1;
    pub const SUMS: u8 = 2;
    pub const ALL_LENGTHS: u8 = 3;
    pub const TENANT_LENGTHS: u8 = 4;
    pub const TRUST: u8 = 5;
}

/// What a request was estimated from, and what its worker reported of it.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// What was counted in its body.
    pub inputs: Inputs,
    /// `usage.prompt_tokens` less what was given as token ids; `None` when not reported or when more than text went into it.
    pub prompt: Option<Tokens>,
    /// Tokens of its answer; `None` when not reported or when it did not end by itself.
    pub output: Option<Tokens>,
    /// The tenant's slot, its hash; taken modulo [`TENANT_SLOTS`](super::TENANT_SLOTS).
    pub tenant: u8,
}

/// What is believed at a moment: worked out once, used for many requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    /// Of the model.
    pub weights: Weights,
    /// Of its family.
    pub family: Weights,
    /// |ln (reported ÷ estimated)| up to which a report is taken in full.
    pub tolerance: f64,
}

/// What one VM observed since it last told the others.
#[derive(Clone, Debug)]
pub struct Batch {
    sums: Sums,
    errors: Errors,
    prompts: usize,
    /// Slot of each prompt, and whether its estimate fitted.
    verdicts: Vec<(u8, bool)>,
    /// Slot and class of each answer.
    outputs: Vec<(u8, u8)>,
}

/// What is known of one model; a record of a few kilobytes whatever happens.
///
/// ```
/// use admission_core::estimate::{Batch, Experience, Inputs, Observed};
/// use admission_core::family::Family;
/// use admission_core::request::{Api, text::Features};
/// use admission_core::units::Tokens;
///
/// let mut text = Features::default();
/// text.add_bytes("word ".repeat(500).as_bytes());
/// let inputs = Inputs::new(&text, 1, 0, Api::Chat);
/// let mut model = Experience::default();
/// for _ in 0..50 {
///     let mut batch = Batch::default();
///     let seen = Observed { inputs, prompt: Some(Tokens(700)), output: Some(Tokens(80)), tenant: 3 };
///     batch.observe(&seen, &model.belief(Family::Generic.weights()));
///     model.merge(&batch);
/// }
/// let learned = model.belief(Family::Generic.weights()).weights.tokens(&inputs);
/// assert!((690..=710).contains(&learned.0));
/// assert!(model.quantile(3, 0.9).is_some_and(|length| length < Tokens(96)));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Experience {
    sums: Sums,
    errors: Errors,
    lengths: Lengths,
    trust: Trust,
    unknown: Sections,
}

impl Default for Batch {
    fn default() -> Self {
        Self { sums: Sums::default(), errors: Errors::none(), prompts: 0, verdicts: Vec::new(), outputs: Vec::new() }
    }
}

impl Batch {
    /// Whether there is nothing to tell.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.prompts == 0 && self.outputs.is_empty()
    }

    /// Takes what a worker reported of a request, as far as it is believed.
    pub fn observe(&mut self, seen: &Observed, now: &Belief) {
        if let Some(prompt) = seen.prompt.filter(|prompt| (1..=MOST_TOKENS).contains(&prompt.0)) {
            self.observe_prompt(seen, prompt.0 as f64, now);
        }
        if let Some(output) = seen.output.filter(|_| self.outputs.len() < MOST_OBSERVED) {
            self.outputs.push((seen.tenant, class_of(output)));
        }
    }

    fn observe_prompt(&mut self, Observed { inputs, tenant, .. }: &Observed, prompt: f64, now: &Belief) {
        let estimate = now.weights.sum(inputs);
        if self.prompts >= MOST_OBSERVED || !(1.0..=MOST_TOKENS as f64).contains(&estimate) {
            return;
        }
        let (ratio, long) = (prompt / estimate, estimate.powi(2) / (estimate.powi(2) + SHORT.powi(2)));
        let error = ratio.ln();
        self.prompts = self.prompts.saturating_add(1);
        self.errors.add(error);
        let of_family = (prompt / now.family.sum(inputs).max(1.0)).ln();
        self.verdicts.push((*tenant, fits(long * error, long * of_family)));
        let belief = long * belief(error, now.tolerance);
        if belief > 0.0 {
            self.sums.add(inputs, estimate, ratio, belief);
        }
    }
}

impl Experience {
    /// The weights of this model and how far off reports are believed. What is known of the family stands for what is not
    /// yet known of the model. Worth keeping for a second or so.
    #[must_use]
    pub fn belief(&self, family: &Weights) -> Belief {
        Belief { weights: self.sums.weights(family), family: *family, tolerance: self.errors.tolerance() }
    }

    /// Whether a tenant is estimated by what was learned, or by the family: one for which what others report does not hold has
    /// nothing of it.
    #[must_use]
    pub fn fits(&self, tenant: u8) -> bool {
        self.trust.of(tenant)
    }

    /// The length that this share of answers does not exceed: of the tenant's, or of the model's while the tenant's are
    /// too few; `None` while those are too few as well.
    #[must_use]
    pub fn quantile(&self, tenant: u8, share: f64) -> Option<Tokens> {
        self.lengths.quantile(tenant, share)
    }

    /// Takes over what a VM observed; the order of batches hardly matters.
    pub fn merge(&mut self, batch: &Batch) {
        if batch.prompts > 0 {
            self.errors.merge(&batch.errors);
            self.sums.merge(&batch.sums, batch.prompts as f64, self.errors.usual());
        }
        for (tenant, fits) in &batch.verdicts {
            self.trust.add(*tenant, *fits);
        }
        for (tenant, class) in &batch.outputs {
            self.lengths.add(*tenant, *class);
        }
    }
}

impl Record for Experience {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.section(tag::ERRORS, |out| self.errors.write(out));
        writer.section(tag::SUMS, |out| self.sums.write(out));
        writer.section(tag::ALL_LENGTHS, |out| self.lengths.write_all(out));
        writer.section(tag::TENANT_LENGTHS, |out| self.lengths.write_tenants(out));
        writer.section(tag::TRUST, |out| self.trust.write(out));
        writer.finish(&self.unknown)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut this = Self::default();
        this.unknown = Sections::read(bytes, |tag, mut reader| {
            match tag {
                tag::ERRORS => this.errors = Errors::read(&mut reader)?,
                tag::SUMS => this.sums = Sums::read(&mut reader)?,
                tag::ALL_LENGTHS => this.lengths.read_all(&mut reader)?,
                tag::TENANT_LENGTHS => this.lengths.read_tenants(&mut reader)?,
                tag::TRUST => this.trust = Trust::read(&mut reader)?,
                _ => return Some(false),
            }
            Some(true)
        })?;
        Some(this)
    }
}
