//! Keys that mean something, and the limits that some of them set.

/// Usual length of a name within a message, in bytes.
pub(super) const NAME_LENGTH: usize = 48;

/// Usual length of a role, which templates render as it is.
pub(super) const ROLE_LENGTH: usize = 16;

/// The top-level field being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Field {
    /// Perhaps rendered into the prompt by a template, so its strings count.
    #[default]
    Other,
    Model,
    Stream,
    /// Where it stands is noted.
    StreamOptions,
    MaxTokens,
    MaxCompletionTokens,
    MaxOutputTokens,
    MaxNewTokens,
    NPredict,
    N,
    BestOf,
    /// Messages of a chat, or what stands beside them: a system prompt.
    Messages,
    /// Anthropic's system prompt: blocks like those of a message, but no message.
    System,
    /// Text, several texts, or token ids. Where objects stand in it, as in a call of the responses API, they are messages.
    Prompt,
    /// A prompt, unless its value is an object.
    Text,
    /// An object of limits, or a list of such objects; whatever else it has counts as if it were not known.
    Parameters,
    /// Says whether the worker goes on after it has answered.
    Background,
    Suffix,
    /// Token ids in place of messages.
    TokenIds,
    /// Says that workers read something else than what the body holds: a history of theirs, or less of the prompt. Its strings
    /// count.
    Elsewhere,
    /// Where it stands is noted. It counts as if it were not known: a caller may put any text there.
    Priority,
    /// Tools, declared to the model as they stand: all but blanks between their parts counts.
    Tools,
    /// Other things declared so.
    Declarations,
    /// Known to be no part of a prompt.
    NoPrompt,
}

impl Field {
    pub(super) fn of_key(key: &[u8]) -> Self {
        match key {
            b"model" => Self::Model,
            b"stream" => Self::Stream,
            b"stream_options" => Self::StreamOptions,
            b"max_tokens" => Self::MaxTokens,
            b"max_completion_tokens" => Self::MaxCompletionTokens,
            b"max_output_tokens" => Self::MaxOutputTokens,
            b"max_new_tokens" => Self::MaxNewTokens,
            b"n_predict" => Self::NPredict,
            b"n" => Self::N,
            b"best_of" => Self::BestOf,
            b"messages" => Self::Messages,
            b"system" => Self::System,
            b"prompt" | b"input" | b"inputs" | b"text_input" => Self::Prompt,
            b"text" => Self::Text,
            b"parameters" | b"sampling_params" => Self::Parameters,
            b"background" => Self::Background,
            b"suffix" => Self::Suffix,
            b"input_ids" | b"token_ids" | b"prompt_token_ids" => Self::TokenIds,
            b"previous_response_id" | b"conversation" | b"truncate_prompt_tokens" => Self::Elsewhere,
            b"priority" => Self::Priority,
            b"tools" | b"functions" => Self::Tools,
            b"response_format" | b"documents" => Self::Declarations,
            b"user" | b"stop" | b"stop_sequences" | b"metadata" | b"request_id" | b"cache_salt" | b"service_tier"
            | b"encoding_format" => Self::NoPrompt,
            _ => Self::Other,
        }
    }

    /// Whether its value is a number that limits or multiplies the answer.
    pub(super) fn is_limit(self) -> bool {
        matches!(
            self,
            Self::MaxTokens
                | Self::MaxCompletionTokens
                | Self::MaxOutputTokens
                | Self::MaxNewTokens
                | Self::NPredict
                | Self::N
                | Self::BestOf
        )
    }

    /// Says whether its value is a switch that is read.
    pub(super) fn is_switch(self) -> bool {
        matches!(self, Self::Stream | Self::Background)
    }

    /// Says whether it holds what the model is asked.
    pub(super) fn is_asked(self) -> bool {
        matches!(self, Self::Messages | Self::Prompt | Self::TokenIds)
    }

    /// Whether it holds messages or blocks of them.
    pub(super) fn is_chat(self) -> bool {
        matches!(self, Self::Messages | Self::System | Self::Prompt)
    }

    /// Whether keys and signs in it count as well as strings.
    pub(super) fn is_declared(self) -> bool {
        matches!(self, Self::Tools | Self::Declarations)
    }
}

/// What a key below the top level says of its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Inner {
    #[default]
    Plain,
    /// Its strings are data, unless they are written otherwise or something beside them says that they are text.
    Data,
    /// Its strings are links and ids, no text of the prompt.
    Link,
    /// Its strings are names, which the overhead of a message covers; beyond their usual length they are text, since
    /// templates render what they are given.
    Name,
    /// The name of who speaks.
    Role,
    /// A name that tells what a block of a message is.
    Type,
    /// A name that tells what data is.
    MediaType,
    /// The object is a picture, or says where one is.
    Image,
    /// The object is a recording, or says where one is.
    Audio,
    /// The value is a file, as data.
    File,
    /// The value says where a file is.
    FileLink,
    /// Where the object's picture or document comes from: its block's type has said what it is.
    Source,
    IncludeUsage,
    /// Objects and lists under it are rendered as they stand: what tools were called with, what they gave back.
    Declared,
}

impl Inner {
    /// Of keys that most messages have, and the length of what stands there to the colon. To look for the end of a key takes
    /// longer than to compare it with a constant, since what follows waits for it.
    #[inline(always)]
    pub(super) fn usual(key: &[u8]) -> Option<(Self, usize)> {
        const USUAL: [(&[u8], Inner); 4] = [
            (b"content\":", Inner::Plain),
            (b"role\":", Inner::Role),
            (b"type\":", Inner::Type),
            (b"text\":", Inner::Plain),
        ];
        USUAL.iter().find(|(name, _)| key.starts_with(name)).map(|(name, inner)| (*inner, name.len()))
    }

    pub(super) fn of_key(key: &[u8]) -> Self {
        match key {
            b"data" => Self::Data,
            b"url" => Self::Link,
            b"detail" | b"format" | b"id" | b"tool_call_id" => Self::Name,
            b"role" => Self::Role,
            b"type" => Self::Type,
            b"media_type" => Self::MediaType,
            b"image_url" => Self::Image,
            b"input_audio" | b"audio_url" => Self::Audio,
            b"file_data" => Self::File,
            b"file_id" | b"file_url" | b"video_url" => Self::FileLink,
            b"source" => Self::Source,
            b"include_usage" => Self::IncludeUsage,
            b"input" | b"arguments" | b"output" | b"parameters" => Self::Declared,
            _ => Self::Plain,
        }
    }
}

/// Who speaks, to the closing quote, as most messages say it.
const USUAL_ROLES: [&[u8]; 3] = [b"user\"", b"assistant\"", b"system\""];

/// The length of a usual role to its closing quote. As with [`Inner::usual`], how far it reaches is guessed before it is known.
#[inline(always)]
pub(super) fn usual_role(string: &[u8]) -> Option<usize> {
    USUAL_ROLES.iter().find(|role| string.starts_with(role)).map(|role| role.len())
}

/// The limits that a body sets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    n: Option<u64>,
    best_of: Option<u64>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    max_new_tokens: Option<u64>,
    n_predict: Option<u64>,
}

impl Limits {
    /// Takes the value of a field, if the field is a limit. A limit of nothing is none to workers.
    pub(super) fn set(&mut self, field: Field, number: Option<u64>) {
        let number = number.filter(|number| *number > 0);
        match field {
            Field::MaxTokens => self.max_tokens = number,
            Field::MaxCompletionTokens => self.max_completion_tokens = number,
            Field::MaxOutputTokens => self.max_output_tokens = number,
            Field::MaxNewTokens => self.max_new_tokens = number,
            Field::NPredict => self.n_predict = number,
            Field::N => self.n = number,
            Field::BestOf => self.best_of = number,
            _ => {}
        }
    }

    /// Takes the value of a limit that may be there several times, of which the largest counts.
    pub(super) fn raise(&mut self, field: Field, number: Option<u64>) {
        let limit = if matches!(field, Field::N | Field::BestOf) { &mut self.n } else { &mut self.max_tokens };
        *limit = (*limit).max(number.filter(|number| *number > 0));
    }

    /// Longest answer, in tokens: the largest limit, since which of them counts is the worker's affair.
    pub(super) fn max_tokens(&self) -> Option<u64> {
        self.max_completion_tokens.max(self.max_tokens).max(self.max_output_tokens)
    }

    /// Longest answer by the keys of other engines.
    pub(super) fn elsewhere(&self) -> Option<u64> {
        self.max_new_tokens.max(self.n_predict)
    }

    /// Answers to one prompt.
    pub(super) fn answers(&self) -> Option<u64> {
        self.n.max(self.best_of)
    }
}
