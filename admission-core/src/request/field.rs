//! Keys that mean something, and the limits that some of them set.

/// Keys within messages whose strings are data and links, no text of the prompt.
pub(super) const NOT_TEXT: [&[u8]; 4] = [b"data", b"file_data", b"file_id", b"url"];

/// Keys within messages whose strings are names, which the overhead of a message covers; beyond their usual length they
/// are text, since templates render what they are given.
pub(super) const NAMES: [&[u8]; 7] = [b"detail", b"format", b"id", b"media_type", b"role", b"tool_call_id", b"type"];

/// Usual length of such a name, in bytes.
pub(super) const NAME_LENGTH: usize = 48;

/// The top-level field being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Field {
    /// Perhaps rendered into the prompt by a template, so its strings count.
    #[default]
    Other,
    Model,
    MaxTokens,
    MaxCompletionTokens,
    N,
    BestOf,
    Messages,
    Prompt,
    Suffix,
    /// Where it stands is noted. It counts as if it were not known: a caller may put any text there.
    Priority,
    /// Declared to the model as they stand: keys count as well.
    Declarations,
    /// Known to be no part of a prompt.
    NoPrompt,
}

impl Field {
    pub(super) fn of_key(key: &[u8]) -> Self {
        match key {
            b"model" => Self::Model,
            b"max_tokens" => Self::MaxTokens,
            b"max_completion_tokens" => Self::MaxCompletionTokens,
            b"n" => Self::N,
            b"best_of" => Self::BestOf,
            b"messages" => Self::Messages,
            b"prompt" => Self::Prompt,
            b"suffix" => Self::Suffix,
            b"priority" => Self::Priority,
            b"tools" | b"functions" | b"response_format" | b"documents" => Self::Declarations,
            b"user" | b"stop" | b"metadata" | b"request_id" | b"cache_salt" | b"service_tier" => Self::NoPrompt,
            _ => Self::Other,
        }
    }

    /// Whether its value is a number that limits or multiplies the answer.
    pub(super) fn is_limit(self) -> bool {
        matches!(self, Self::MaxTokens | Self::MaxCompletionTokens | Self::N | Self::BestOf)
    }
}

/// The limits that a body sets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    n: Option<u64>,
    best_of: Option<u64>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
}

impl Limits {
    /// Takes the value of a field, if the field is a limit. A limit of nothing is none to workers.
    pub(super) fn set(&mut self, field: Field, number: Option<u64>) {
        let number = number.filter(|number| *number > 0);
        match field {
            Field::MaxTokens => self.max_tokens = number,
            Field::MaxCompletionTokens => self.max_completion_tokens = number,
            Field::N => self.n = number,
            Field::BestOf => self.best_of = number,
            _ => {}
        }
    }

    /// Longest answer, in tokens: the larger of both limits, since which of them counts is the worker's affair.
    pub(super) fn max_tokens(&self) -> Option<u64> {
        self.max_completion_tokens.max(self.max_tokens)
    }

    /// Answers to one prompt.
    pub(super) fn answers(&self) -> u64 {
        self.n.max(self.best_of).unwrap_or(1)
    }
}
