//! What answers say that they cost, rightly or by a fault.

use serde::Serialize;

use super::reply::Envelope;
use super::request::{Api, Job};

/// What a request has cost so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bill {
    prompt: u64,
    /// Of the prompt, that is said to have been in the cache.
    cached: u64,
    output: u64,
}

/// How usage is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Telling {
    pub(super) what: What,
    /// Every event says what was used so far, and the last one comes twice.
    pub(super) repeated: bool,
    /// Events that do not tell it say that it is null.
    pub(super) nulls: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum What {
    #[default]
    Right,
    Nothing,
    Null,
    Absurd,
}

/// A report, in its API's words.
#[derive(Clone, Copy, Serialize)]
#[serde(untagged)]
pub(super) enum Told {
    Null,
    Chunk {
        prompt_tokens: u64,
        total_tokens: u64,
        completion_tokens: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt_tokens_details: Option<Details>,
    },
    Plain {
        prompt_tokens: u64,
        total_tokens: u64,
        completion_tokens: u64,
        prompt_tokens_details: Option<Details>,
        completion_tokens_details: (),
    },
    Embedded {
        prompt_tokens: u64,
        total_tokens: u64,
    },
    Message {
        input_tokens: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_creation_input_tokens: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_read_input_tokens: Option<u64>,
        output_tokens: u64,
    },
    /// The second half of a message's.
    Output {
        output_tokens: u64,
    },
    Response {
        input_tokens: u64,
        input_tokens_details: Details,
        output_tokens: u64,
        output_tokens_details: Reasoning,
        total_tokens: u64,
    },
    AbsurdPrompt {
        prompt_tokens: i64,
        total_tokens: f64,
        completion_tokens: f64,
    },
    AbsurdInput {
        input_tokens: i64,
        output_tokens: f64,
    },
}

#[derive(Clone, Copy, Serialize)]
pub(super) struct Details {
    cached_tokens: u64,
}

#[derive(Clone, Copy, Serialize)]
pub(super) struct Reasoning {
    reasoning_tokens: u64,
}

impl Bill {
    /// Of a whole job.
    pub(super) fn of(job: &Job, cached_share: f64) -> Self {
        let prompt = job.prompt_tokens;
        let cached = (prompt as f64 * cached_share) as u64;
        Self { prompt, cached, output: job.wishes.iter().map(|wish| u64::from(wish.output)).sum() }
    }

    /// The same after so many tokens of output.
    pub(super) fn after(self, output: u64) -> Self {
        Self { output, ..self }
    }

    fn details(&self) -> Option<Details> {
        (self.cached > 0).then_some(Details { cached_tokens: self.cached })
    }

    pub(super) fn chunk(&self) -> Told {
        let Self { prompt: prompt_tokens, output: completion_tokens, .. } = *self;
        let total_tokens = prompt_tokens + completion_tokens;
        Told::Chunk { prompt_tokens, total_tokens, completion_tokens, prompt_tokens_details: self.details() }
    }

    pub(super) fn plain(&self) -> Told {
        let Self { prompt: prompt_tokens, output: completion_tokens, .. } = *self;
        let (total_tokens, prompt_tokens_details) = (prompt_tokens + completion_tokens, self.details());
        let completion_tokens_details = ();
        Told::Plain { prompt_tokens, total_tokens, completion_tokens, prompt_tokens_details, completion_tokens_details }
    }

    pub(super) fn embedded(&self) -> Told {
        Told::Embedded { prompt_tokens: self.prompt, total_tokens: self.prompt }
    }

    /// Anthropic's `input_tokens` leave out what came from the cache.
    pub(super) fn message(&self) -> Told {
        let cached = (self.cached > 0).then_some(self.cached);
        Told::Message {
            input_tokens: self.prompt - self.cached,
            cache_creation_input_tokens: cached.map(|_| 0),
            cache_read_input_tokens: cached,
            output_tokens: self.output,
        }
    }

    pub(super) fn output(&self) -> Told {
        Told::Output { output_tokens: self.output }
    }

    pub(super) fn response(&self) -> Told {
        Told::Response {
            input_tokens: self.prompt,
            input_tokens_details: Details { cached_tokens: self.cached },
            output_tokens: self.output,
            output_tokens_details: Reasoning { reasoning_tokens: 0 },
            total_tokens: self.prompt + self.output,
        }
    }
}

impl Envelope {
    /// What is said instead of the truth, as the faults have it; `None` where the field is left out.
    pub(super) fn tell(&self, truth: Told) -> Option<Told> {
        let absurd = match self.api {
            Api::Messages | Api::Responses => Told::AbsurdInput { input_tokens: -1, output_tokens: 1e18 },
            Api::Chat | Api::Completions | Api::Embeddings => {
                Told::AbsurdPrompt { prompt_tokens: -1, total_tokens: 1e18, completion_tokens: 1e18 }
            }
        };
        match self.telling.what {
            What::Right => Some(truth),
            What::Nothing => None,
            What::Null => Some(Told::Null),
            What::Absurd => Some(absurd),
        }
    }
}
