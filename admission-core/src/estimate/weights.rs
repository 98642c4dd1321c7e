//! Tokens of a prompt as a weighted sum of what was counted in it.

use crate::request::Api;
use crate::request::text::{Feature, Features};
use crate::units::Tokens;

/// Text of so many bytes is at least a token: no vocabulary has entries as long, beyond runs of one sign.
const BYTES_OF_LONGEST: u64 = 64;

/// Least tokens of text, whatever weights were learned: vocabularies cut digits into threes at the longest, know few words of
/// more than a dozen letters, and seldom join characters beyond ASCII to more than four. Ordinary text is far above this.
const LEAST: [(Feature, f64); 3] = [(Feature::Digit, 1.0 / 3.0), (Feature::Long, 0.25), (Feature::Han, 0.25)];

/// What a prompt's tokens are estimated from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    counts: [u64; Weights::COUNT],
    bytes: u64,
}

/// Tokens for one of each input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights([f64; Weights::COUNT]);

impl Inputs {
    /// Of text, so many messages and tools. Only a chat has them, and what a template puts before the answer.
    #[must_use]
    pub fn new(text: &Features, messages: u64, tools: u64, api: Api) -> Self {
        let beside = match api {
            Api::Chat | Api::Messages | Api::Responses => [messages, tools, 1],
            // By its shape: workers that read messages there put them into the same template.
            Api::Other if messages > 0 => [messages, tools, 1],
            Api::Completions | Api::Embeddings | Api::Pooling | Api::Audio | Api::Images | Api::Other => [0; 3],
        };
        let mut counts = [0; Weights::COUNT];
        for (place, count) in counts.iter_mut().zip(text.counts().iter().chain(&beside)) {
            *place = *count;
        }
        Self { counts, bytes: text.bytes() }
    }

    /// Of text that stands alone.
    #[must_use]
    pub fn of_text(text: &Features) -> Self {
        Self::new(text, 0, 0, Api::Other)
    }

    /// The features of the text, then messages, tools, and one for what stands in any chat.
    #[must_use]
    pub const fn counts(&self) -> &[u64; Weights::COUNT] {
        &self.counts
    }
}

impl Weights {
    /// How many there are.
    pub const COUNT: usize = Feature::COUNT + 3;

    /// From thousandths of a token, in the order of [`Inputs::counts`].
    #[must_use]
    pub const fn per_mille(thousandths: [u32; Self::COUNT]) -> Self {
        let mut weights = [0.0; Self::COUNT];
        let (mut to, mut from) = (weights.as_mut_slice(), thousandths.as_slice());
        while let (Some((place, other)), Some((thousandth, rest))) = (to.split_first_mut(), from.split_first()) {
            *place = *thousandth as f64 / 1_000.0;
            (to, from) = (other, rest);
        }
        Self(weights)
    }

    pub(super) const fn new(weights: [f64; Self::COUNT]) -> Self {
        Self(weights)
    }

    /// In the order of [`Inputs::counts`].
    #[must_use]
    pub const fn values(&self) -> &[f64; Self::COUNT] {
        &self.0
    }

    /// Tokens of a prompt, rounded up. Never fewer than one for 64 bytes, nor than any vocabulary makes of digits, long words
    /// and Chinese characters, whatever was learned.
    #[must_use]
    pub fn tokens(&self, inputs: &Inputs) -> Tokens {
        let of = |feature: Feature| inputs.counts.get(feature as usize).copied().unwrap_or_default() as f64;
        let least: f64 = LEAST.iter().map(|(feature, weight)| weight * of(*feature)).sum();
        // The cast saturates, and makes nothing of what is no number.
        Tokens(self.sum(inputs).max(least).ceil() as u64).max(Tokens(inputs.bytes.div_ceil(BYTES_OF_LONGEST)))
    }

    pub(super) fn sum(&self, inputs: &Inputs) -> f64 {
        self.0.iter().zip(&inputs.counts).map(|(weight, count)| weight * *count as f64).sum()
    }
}
