//! What a request did cost, as its answer shows.
//!
//! An [`AnswerReader`] takes an answer's bytes as they come, in constant memory, and gives the same result however they are
//! split. It reads the structure of the JSON, so text that talks about usage is never taken for a report:
//!
//! | Answer | Prompt and output | Cached prompt tokens |
//! |---|---|---|
//! | chat completions, completions, embeddings | `usage.prompt_tokens`, `.completion_tokens` | `.prompt_tokens_details.cached_tokens` |
//! | responses | `usage` or `response.usage`: `input_tokens`, `output_tokens` | `.input_tokens_details.cached_tokens` |
//! | messages | `usage` or `message.usage`: `input_tokens`, `output_tokens` | `.cache_read_input_tokens` |
//!
//! Counts only grow: of several reports the largest number of each kind stands. Anthropic's `input_tokens` leave out what the
//! cache gave or took, which is added; OpenAI's hold it already. A report with a number that cannot be a count is no report.
//!
//! A stream is also counted by its deltas: each piece of output is one token, or one for every [`BYTES_PER_TOKEN`] bytes
//! where it is longer than [`LONGEST_TOKEN`]. That count stands where nothing was reported after the last delta.

use crate::BYTES_PER_TOKEN;
use crate::units::Tokens;

mod counts;
mod document;
mod events;
mod strip;
#[cfg(test)]
mod tests;

pub use strip::UsageChunkFilter;

use counts::Reported;
use document::Document;
use events::Events;

/// Most tokens believed of one answer; a number above it is a worker's mistake.
const MOST_TOKENS: u64 = Tokens::MOST_OF_A_REQUEST.0;

/// Bytes of the longest piece of output that counts as one token: workers stream token by token, and a long word is often one.
pub const LONGEST_TOKEN: u64 = 16;

/// What an answer has cost, each part as far as it is known; what is not stays as estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Of the prompt, cached ones included.
    pub prompt: Option<Tokens>,
    /// Of the prompt, that the worker had in its cache.
    pub cached: Tokens,
    /// Of the answer.
    pub output: Option<Tokens>,
}

impl Served {
    /// A whole report without a word of a cache.
    #[must_use]
    pub const fn whole(prompt: Tokens, output: Tokens) -> Self {
        Self { prompt: Some(prompt), cached: Tokens(0), output: Some(output) }
    }
}

/// How an answer's body is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// One JSON document.
    #[default]
    Plain,
    /// Server-sent events.
    Stream,
    /// In an encoding that is not read.
    Encoded,
}

impl Form {
    /// By the answer's headers.
    ///
    /// ```
    /// use admission_bodies::usage::Form;
    ///
    /// assert_eq!(Form::of(Some("text/event-stream; charset=utf-8"), None), Form::Stream);
    /// assert_eq!(Form::of(Some("application/json"), Some("identity")), Form::Plain);
    /// assert_eq!(Form::of(None, Some("gzip")), Form::Encoded);
    /// ```
    #[must_use]
    pub fn of(content_type: Option<&str>, content_encoding: Option<&str>) -> Self {
        let encoding = content_encoding.map(str::trim).unwrap_or_default();
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
            return Self::Encoded;
        }
        let kind = content_type.and_then(|value| value.split(';').next()).unwrap_or_default();
        if kind.trim().eq_ignore_ascii_case("text/event-stream") { Self::Stream } else { Self::Plain }
    }
}

/// Reads an answer that comes in chunks, without keeping it.
///
/// ```
/// use admission_bodies::units::Tokens;
/// use admission_bodies::usage::{AnswerReader, Form};
///
/// let mut answer = AnswerReader::new(Form::Stream);
/// answer.feed(b"data: {\"choices\":[{\"delta\":{\"content\":\" gate\"}}]}\n\n");
/// assert!(answer.has_output() && !answer.ended());
/// answer.feed(b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":6,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n");
/// assert_eq!(answer.served().prompt, Some(Tokens(6)));
/// assert!(answer.ended());
/// ```
#[derive(Clone, Debug, Default)]
pub struct AnswerReader {
    form: Form,
    /// See [`Self::of_several`].
    of_several: bool,
    events: Events,
    document: Document,
}

impl AnswerReader {
    /// Of an answer of this form, before its first byte.
    #[must_use]
    pub fn new(form: Form) -> Self {
        Self { form, ..Self::default() }
    }

    /// The same of a request for several answers, as those of several prompts are too. Until such a stream ends each report may
    /// be of one of them alone.
    #[must_use]
    pub fn of_several(form: Form) -> Self {
        Self { form, of_several: true, ..Self::default() }
    }

    /// Tokens of a stream's deltas; a plain answer has none.
    const fn seen(&self) -> u64 {
        match self.form {
            Form::Stream => self.document.seen(),
            Form::Plain | Form::Encoded => 0,
        }
    }

    /// How the answer is written.
    #[must_use]
    pub const fn form(&self) -> Form {
        self.form
    }

    /// Takes the next bytes of the answer.
    pub fn feed(&mut self, bytes: &[u8]) {
        match self.form {
            Form::Plain => self.document.feed(bytes),
            Form::Stream => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    (rest, _) = self.events.advance(rest, &mut self.document);
                }
            }
            Form::Encoded => {}
        }
    }

    /// A stream's first piece of output has come.
    #[must_use]
    pub const fn has_output(&self) -> bool {
        self.seen() > 0
    }

    /// Output so far: by a stream's deltas or by what was reported, whichever is more.
    #[must_use]
    pub fn output(&self) -> Tokens {
        Tokens(self.seen().max(self.document.reported().output.unwrap_or(0)))
    }

    /// The answer has come to the end that its API gives it; one that was cut off has not.
    #[must_use]
    pub const fn ended(&self) -> bool {
        match self.form {
            Form::Plain => self.document.closed(),
            Form::Stream => self.events.done() || self.document.said_end(),
            Form::Encoded => false,
        }
    }

    /// It tells of an error, and of neither output nor usage: its worker has served nothing.
    #[must_use]
    pub fn failed(&self) -> bool {
        let Reported { prompt, output, .. } = self.document.reported();
        // A plain answer may have choices without a report.
        let is_empty = self.seen() == 0 && !self.document.has_choices() && prompt.is_none() && output.is_none();
        self.document.said_error() && is_empty
    }

    /// What the answer has cost as far as it has come. A plain answer without a report, one that is encoded and a stream
    /// whose events are of no API that is known say nothing.
    #[must_use]
    pub fn served(&self) -> Served {
        let (seen, reported) = (self.seen(), self.document.reported());
        let is_of_one = self.of_several && self.form == Form::Stream && !self.ended();
        let Reported { cached, .. } = *reported;
        let prompt = reported.prompt.filter(|_| !is_of_one);
        let counts_deltas = self.form == Form::Stream && (self.document.is_known() || !self.events.had_data());
        let output = match reported.output {
            Some(output) if is_of_one || reported.after_deltas < seen => Some(output.max(seen)),
            Some(output) => Some(output),
            None if counts_deltas => Some(seen),
            // Nothing was generated, as for embeddings.
            None => prompt.map(|_| 0),
        };
        let cached = if prompt.is_some() { cached } else { 0 };
        Served { prompt: prompt.map(Tokens), cached: Tokens(cached), output: output.map(Tokens) }
    }
}
