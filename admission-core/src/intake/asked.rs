//! Requests as answers are held against them.

use crate::estimate::Inputs;
use crate::request::{Api, Facts, Media};
use crate::units::Tokens;

/// The facts of a request, whose body was read to its end, that its answer is compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The model it names.
    pub model: Option<String>,
    /// Inputs from which its prompt was estimated.
    pub inputs: Inputs,
    /// Prompt tokens that were given as numbers.
    pub token_ids: Tokens,
    /// Answers asked for.
    pub sequences: u64,
    /// Longest answer it allows.
    pub limit: Option<Tokens>,
    /// Nothing but text and token ids went into its prompt.
    pub plain: bool,
    /// True where it asks for its answer in a stream.
    pub streams: bool,
}

impl Asked {
    /// The facts of a body that was read.
    pub(super) fn of(facts: Facts, api: Api) -> Self {
        Self {
            inputs: Inputs::new(&facts.text, facts.messages, facts.tools, api),
            token_ids: Tokens(facts.token_ids),
            sequences: facts.sequences_of(api),
            limit: facts.limit_of(api).map(Tokens),
            plain: facts.media == Media::default() && !facts.elsewhere,
            streams: facts.stream == Some(true),
            model: facts.model,
        }
    }

    /// Tokens of its text, as a report of the whole prompt says.
    #[must_use]
    pub fn prompt_seen(&self, reported: Tokens) -> Option<Tokens> {
        self.plain.then(|| Tokens(reported.0.saturating_sub(self.token_ids.0)))
    }

    /// Length of one of its answers, which have so many tokens in all. One that was cut short by its limit says nothing unless it is
    /// longer than was expected: how long it would have been is not known.
    #[must_use]
    pub fn output_seen(&self, output: Tokens, expected: Tokens) -> Option<Tokens> {
        let each = |all: Tokens| Tokens(all.0.div_ceil(self.sequences.max(1)));
        let cut_short = self.limit.is_some_and(|limit| each(output) >= limit);
        (!cut_short || output > expected).then(|| each(output)).filter(|each| each.0 > 0)
    }
}
