//! Names in an answer that mean something.

use crate::usage::counts::Count;

/// Longest name that is looked at, in bytes.
const LONGEST_NAME: usize = 32;

/// What a key means, wherever it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Error,
    Usage,
    Choices,
    Delta,
    Kind,
    Envelope,
    Details,
    /// Of output, in a choice and in a delta.
    Text,
    /// Of output in a delta.
    Output,
    Count(Count),
    Other,
}

/// A name of at most so many bytes; a longer one is none that is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Name {
    bytes: [u8; LONGEST_NAME],
    pub(super) length: usize,
}

/// What a name means that is a key.
pub(super) fn key_of(name: &[u8]) -> Key {
    match name {
        b"error" => Key::Error,
        b"usage" => Key::Usage,
        b"choices" => Key::Choices,
        b"delta" => Key::Delta,
        b"type" => Key::Kind,
        b"message" | b"response" => Key::Envelope,
        b"prompt_tokens_details" | b"input_tokens_details" => Key::Details,
        b"text" => Key::Text,
        b"content" | b"reasoning_content" | b"reasoning" | b"refusal" | b"name" | b"arguments" | b"thinking"
        | b"partial_json" => Key::Output,
        b"prompt_tokens" => Key::Count(Count::Prompt),
        b"input_tokens" => Key::Count(Count::Input),
        b"completion_tokens" | b"output_tokens" => Key::Count(Count::Output),
        b"cached_tokens" => Key::Count(Count::Cached),
        b"cache_read_input_tokens" => Key::Count(Count::CacheRead),
        b"cache_creation_input_tokens" => Key::Count(Count::CacheWritten),
        _ => Key::Other,
    }
}

impl Name {
    pub(super) fn push(&mut self, run: &[u8]) {
        let end = self.length.saturating_add(run.len());
        if let Some(room) = self.bytes.get_mut(self.length..end) {
            room.copy_from_slice(run);
        }
        self.length = end;
    }

    pub(super) fn known(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    pub(super) fn ends_a_stream(&self) -> bool {
        matches!(self.known(), b"message_stop" | b"response.completed" | b"response.incomplete" | b"response.failed")
    }
}
