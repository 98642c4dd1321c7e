//! Tokens from what is known of a request, without a tokenizer.
//!
//! prompt = Σ features of the text × their weights + messages, tools and a constant × theirs + token ids + pictures,
//! recordings and files at what the pool says of them
//!
//! output = the smaller of the request's own limit and the length that most answers of its model and tenant stay within, ×
//! sequences

use std::rc::Rc;

use crate::ask::Ask;
use crate::config::OutputEstimate;
use crate::policy::Pool;
use crate::request::text::Features;
use crate::request::{Api, Facts, Longest, Media};
use crate::units::Tokens;

mod errors;
mod experience;
mod first_weights;
mod fit;
mod output;
#[cfg(test)]
mod tests;
mod trust;
mod weights;

pub use experience::{Batch, Belief, Experience, MOST_OBSERVED, Observed};
pub use output::TENANT_SLOTS;
pub use weights::{Inputs, Weights};

pub use admission_bodies::BYTES_PER_TOKEN;

/// Bytes of a recording that engines take in one piece: some thirty seconds, at what most formats need for them.
const BYTES_PER_RECORDING: u64 = 1 << 19;

const ONE_IMAGE: Media = Media { images: 1, recordings: 0, files: 0 };

/// What requests of one model and one tenant are taken for.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimator {
    /// Of its tokenizer.
    pub belief: Rc<Belief>,
    /// Tokens that an answer is expected to stay within.
    pub usual_output: Tokens,
}

impl Estimator {
    /// Estimator of a pool before any request has ended, by the model that requests name if that is known.
    #[must_use]
    pub fn unlearned(pool: &Pool, model: Option<&str>) -> Self {
        let belief = Experience::default().belief(pool.family(model).weights());
        Self { belief: Rc::new(belief), usual_output: pool.expected_output }
    }

    /// The ask of a request of which only the body's size is known: text at so many bytes for a token, recordings and pictures as many
    /// as the pool says.
    #[must_use]
    pub fn from_size(&self, body_bytes: u64, api: Api, pool: &Pool) -> Ask {
        let text = Tokens(body_bytes.div_ceil(BYTES_PER_TOKEN));
        let recordings = body_bytes.div_ceil(BYTES_PER_RECORDING);
        let prompt = match api {
            Api::Audio => text.min(pool.media(Media { recordings, ..Media::default() })),
            Api::Images => text.min(pool.media(ONE_IMAGE)),
            _ => text,
        };
        let output = self.output(api, self.usual_output, 1, pool);
        Ask { prompt, longest_prompt: prompt, output, output_limit: None, prompt_read: false, sequences: 0 }
    }

    /// The ask of a request whose body was read to its end.
    #[must_use]
    pub fn from_body(&self, facts: &Facts, api: Api, pool: &Pool) -> Ask {
        let weights = &self.belief.weights;
        let output_limit = facts.limit_of(api).map(Tokens);
        let whole = |text: &Features, token_ids: u64| {
            weights
                .tokens(&Inputs::new(text, facts.messages, facts.tools, api))
                .plus(Tokens(token_ids))
                .plus(pool.media(facts.media))
        };
        let read = whole(&facts.text, facts.token_ids);
        // Why its size at least: which of its fields a worker reads is not known on such a path, and one that is not known here may hold more.
        let by_size = api == Api::Other && facts.media == Media::default();
        let prompt = if by_size { read.max(Tokens(facts.bytes.div_ceil(BYTES_PER_TOKEN))) } else { read };
        let of_one = |one: &Longest| whole(&one.text, one.token_ids);
        let longest_prompt = facts.longest_prompt.as_ref().map_or(read, of_one);
        let each = self.output_of_one(output_limit, longest_prompt, pool);
        let all = facts.sequences_of(api).max(1);
        let output = self.output(api, each, all, pool);
        let sequences = if api.generates() { all } else { 0 };
        // Ranks and scores are made of pairs of their texts, so the whole is no prompt of one sequence.
        let prompt_read = api != Api::Pooling;
        Ask { prompt, longest_prompt, output, output_limit, prompt_read, sequences }
    }

    /// The ask of a request whose body of `body_bytes` was read in part: the rest is taken for text of
    /// [`BYTES_PER_TOKEN`].
    #[must_use]
    pub fn from_part(&self, facts: &Facts, body_bytes: u64, api: Api, pool: &Pool) -> Ask {
        let seen = self.from_body(facts, api, pool);
        let rest = body_bytes.saturating_sub(facts.bytes).div_ceil(BYTES_PER_TOKEN);
        Ask { prompt: seen.prompt.plus(Tokens(rest)), prompt_read: false, ..seen }
    }

    /// Tokens of all answers.
    fn output(&self, api: Api, each: Tokens, answers: u64, pool: &Pool) -> Tokens {
        match api {
            Api::Embeddings | Api::Pooling => Tokens(0),
            Api::Images => pool.media(ONE_IMAGE).times(answers),
            _ => each.times(answers),
        }
    }

    fn output_of_one(&self, limit: Option<Tokens>, prompt: Tokens, pool: &Pool) -> Tokens {
        let room = pool.max_model_len.as_ref().map(|cap| Tokens(cap.limit.saturating_sub(prompt.0)));
        let wanted = match pool.estimate.output {
            OutputEstimate::MaxTokens => limit.or(room).unwrap_or(self.usual_output),
            OutputEstimate::Learned | OutputEstimate::Expected => limit.unwrap_or(Tokens::MAX).min(self.usual_output),
        };
        room.map_or(wanted, |room| wanted.min(room))
    }
}
