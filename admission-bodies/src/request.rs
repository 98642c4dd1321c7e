//! What a request body says, read in one pass as its chunks arrive: no tree, no copy of the body, constant memory.
//!
//! The scan is strict about structure (brackets, colons, commas, quotes) and lenient about everything it does not need:
//! it leaves it to the worker to refuse `1e999` or a lone surrogate.

use std::fmt;

use text::Features;

mod field;
mod literal;
#[cfg(any(test, feature = "reference"))]
#[allow(clippy::indexing_slicing)]
pub mod reference;
mod rewrite;
mod scan;
#[cfg(test)]
mod tests;
pub mod text;

pub use rewrite::{Changes, Slots, rewritten};
pub use scan::Scanner;

/// Deepest nesting read. Deeper bodies are refused: no real request comes near it.
pub const MAX_DEPTH: u32 = 127;

/// Longest model name kept, in bytes; a longer one names no model.
pub const MAX_MODEL_NAME: usize = 256;

/// Which API a path belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `…/chat/completions`.
    Chat,
    /// `…/completions`.
    Completions,
    /// `…/responses`.
    Responses,
    /// Anthropic's `…/messages`.
    Messages,
    /// `…/embeddings`, which generates nothing.
    Embeddings,
    /// `…/rerank`, `…/score`, `…/classify`, `…/pooling`, `…/embed`, `…/encode`, `…/tokenize` and `…/detokenize`, which generate nothing.
    Pooling,
    /// `…/audio/transcriptions` and `…/audio/translations`.
    Audio,
    /// `…/images/generations`, `…/images/edits` and `…/images/variations`.
    Images,
    /// Anything else; its body is read by its shape.
    Other,
}

impl Api {
    /// By the end of the path, whatever prefix a route puts before it.
    ///
    /// ```
    /// use admission_bodies::request::Api;
    ///
    /// assert_eq!(Api::of_path("/openai/v1/chat/completions?x=1"), Api::Chat);
    /// assert_eq!(Api::of_path("/v1/completions/"), Api::Completions);
    /// assert_eq!(Api::of_path("/v1/chat/completion%73"), Api::Chat);
    /// assert_eq!(Api::of_path("/v1/rerank"), Api::Pooling);
    /// assert_eq!(Api::of_path("/invocations"), Api::Other);
    /// ```
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        Self::of_plain_path(&plain_path(path))
    }

    /// Of a path that [`plain_path`] gave.
    #[must_use]
    pub fn of_plain_path(path: &str) -> Self {
        let path = path.trim_end_matches('/');
        let ends_in = |ends: &[&str]| ends.iter().any(|end| path.ends_with(end));
        if path.ends_with("/chat/completions") {
            Self::Chat
        } else if path.ends_with("/completions") {
            Self::Completions
        } else if path.ends_with("/responses") {
            Self::Responses
        } else if path.ends_with("/v1/messages") {
            Self::Messages
        } else if path.ends_with("/embeddings") {
            Self::Embeddings
        } else if ends_in(&[
            "/rerank",
            "/score",
            "/classify",
            "/pooling",
            "/embed",
            "/encode",
            "/tokenize",
            "/detokenize",
        ]) {
            Self::Pooling
        } else if ends_in(&["/audio/transcriptions", "/audio/translations"]) {
            Self::Audio
        } else if ends_in(&["/images/generations", "/images/edits", "/images/variations"]) {
            Self::Images
        } else {
            Self::Other
        }
    }

    /// Says whether its bodies are JSON. Of other paths a body is read if it begins as JSON does.
    #[must_use]
    pub const fn is_json(self) -> bool {
        !matches!(self, Self::Audio | Self::Images | Self::Other)
    }

    /// Says whether its answers are made token by token, as far as its path tells.
    #[must_use]
    pub const fn generates(self) -> bool {
        !matches!(self, Self::Embeddings | Self::Pooling)
    }

    /// In metrics; never changes.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Chat => "chat_completions",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::Pooling => "pooling",
            Self::Audio => "audio",
            Self::Images => "images",
            Self::Other => "other",
        }
    }
}

/// A path without its query, decoded, its empty and dotted segments resolved: what stands before a worker may do so before
/// it looks, so must we, or `completion%73` and `x/../completions` would be other paths.
///
/// ```
/// use admission_bodies::request::plain_path;
///
/// assert_eq!(plain_path("/health/..//v1/./completion%73?x=1"), "/v1/completions");
/// assert_eq!(plain_path("/v1/models/"), "/v1/models/");
/// assert_eq!(plain_path("*"), "/*");
/// ```
#[must_use]
pub fn plain_path(path: &str) -> String {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    // Most are plain already.
    if path.starts_with('/') && !["%", "//", "/."].iter().any(|odd| path.contains(odd)) {
        return path.to_owned();
    }
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    let end = if decoded.ends_with('/') && !segments.is_empty() { "/" } else { "" };
    format!("/{}{end}", segments.join("/"))
}

/// What has been found in a body so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Bytes seen.
    pub bytes: u64,
    /// The `model`, if one was named that is not too long to be one.
    pub model: Option<String>,
    /// `stream`, where it is said.
    pub stream: Option<bool>,
    /// `background`, where it is said.
    pub background: Option<bool>,
    /// There is a field of those that models are asked by: messages, prompts or token ids.
    pub holds_prompt: bool,
    /// `stream_options.include_usage`, where it is said.
    pub include_usage: Option<bool>,
    /// The largest of `max_tokens`, `max_completion_tokens` and `max_output_tokens`: which of them counts is the worker's
    /// affair.
    pub max_tokens: Option<u64>,
    /// The largest of `max_new_tokens`, `n_predict`, and the limits among `parameters` or `sampling_params`, which workers of other APIs
    /// read.
    pub limit_elsewhere: Option<u64>,
    /// Text of the prompt.
    pub text: Features,
    /// Prompt tokens given as numbers.
    pub token_ids: u64,
    /// Messages of a chat.
    pub messages: u64,
    /// Tools declared.
    pub tools: u64,
    /// What is no text.
    pub media: Media,
    /// The longest of several prompts, with all that stands beside them.
    pub longest_prompt: Option<Longest>,
    /// The larger of `n` and `best_of`.
    pub answers: u64,
    /// Prompts × answers; see [`Facts::sequences_of`].
    pub sequences: u64,
    /// Workers read something else than what the body holds: more, such as a history that they keep, or less.
    pub elsewhere: bool,
}

impl Facts {
    /// Longest answer that is allowed, by the keys that workers of an API read.
    #[must_use]
    pub fn limit_of(&self, api: Api) -> Option<u64> {
        if api == Api::Other { self.max_tokens.max(self.limit_elsewhere) } else { self.max_tokens }
    }

    /// Answers asked for of an API: of a chat there is one prompt, whatever else its body holds.
    #[must_use]
    pub fn sequences_of(&self, api: Api) -> u64 {
        match api {
            Api::Chat | Api::Responses | Api::Messages => self.answers,
            Api::Completions | Api::Embeddings | Api::Pooling | Api::Audio | Api::Images | Api::Other => self.sequences,
        }
    }
}

/// Parts of messages that are no text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Media {
    /// Pictures.
    pub images: u64,
    /// Recordings of sound.
    pub recordings: u64,
    /// Files and films.
    pub files: u64,
}

/// One of several prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Longest {
    /// Its text.
    pub text: Features,
    /// Its tokens given as numbers.
    pub token_ids: u64,
}

/// Why a body cannot be what its path says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// What was wrong.
    pub what: &'static str,
    /// At which byte.
    pub at: u64,
}

const TOO_DEEP: &str = "the body is nested too deeply";
const FOLLOWED: &str = "something follows the JSON object";

impl Broken {
    /// Others may read the body all the same: it is only nested deeper than is read here, or begins with a whole object, after
    /// which some readers stop.
    #[must_use]
    pub fn others_may_read(&self) -> bool {
        self.is_too_deep() || self.what == FOLLOWED
    }

    /// Says whether it is nested deeper than is read here.
    #[must_use]
    pub fn is_too_deep(&self) -> bool {
        self.what == TOO_DEEP
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} at byte {}", self.what, self.at)
    }
}
