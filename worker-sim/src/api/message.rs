//! The bodies of answers in Anthropic's shape, with the fields that vLLM sends.

use bytes::Bytes;
use serde::Serialize;

use super::reply::{Envelope, Usage, json, word};

const MAX_TOKENS: &str = "max_tokens";

#[derive(Serialize)]
struct Plain<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    content: [Block; 1],
    model: &'a str,
    stop_reason: &'static str,
    usage: Tokens,
}

/// A piece of content; its kind differs from place to place.
#[derive(Serialize)]
struct Block {
    r#type: &'static str,
    text: String,
}

#[derive(Serialize)]
struct Tokens {
    input_tokens: u64,
    output_tokens: u64,
}

/// vLLM leaves out what it has not set, the type and the role among them.
#[derive(Serialize)]
struct Begun<'a> {
    id: &'a str,
    content: [(); 0],
    model: &'a str,
    stop_reason: (),
    stop_sequence: (),
    usage: Tokens,
}

#[derive(Serialize)]
struct Stopped {
    stop_reason: &'static str,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    MessageStart { message: Begun<'a> },
    ContentBlockStart { content_block: Block, index: u32 },
    ContentBlockDelta { delta: Block, index: u32 },
    ContentBlockStop { index: u32 },
    MessageDelta { delta: Stopped, usage: Tokens },
    MessageStop,
}

/// The whole answer in one body.
pub(super) fn plain(envelope: &Envelope, text: String, usage: &Usage) -> Vec<u8> {
    json(&Plain {
        id: &envelope.id,
        r#type: "message",
        role: "assistant",
        content: [Block { r#type: "text", text }],
        model: &envelope.model,
        stop_reason: MAX_TOKENS,
        usage: Tokens { input_tokens: usage.prompt_tokens, output_tokens: usage.completion_tokens },
    })
}

/// What opens a stream, before its first token.
pub(super) fn begin(envelope: &Envelope, usage: &Usage) -> [Bytes; 2] {
    let usage = Tokens { input_tokens: usage.prompt_tokens, output_tokens: 0 };
    let (id, model) = (envelope.id.as_str(), envelope.model.as_str());
    let message = Begun { id, content: [], model, stop_reason: (), stop_sequence: (), usage };
    let content_block = Block { r#type: "text", text: String::new() };
    [Event::MessageStart { message }.bytes(), Event::ContentBlockStart { content_block, index: 0 }.bytes()]
}

/// The token at this place of the output.
pub(super) fn token(index: u32) -> Bytes {
    let delta = Block { r#type: "text_delta", text: word(index).to_owned() };
    Event::ContentBlockDelta { delta, index: 0 }.bytes()
}

/// What closes a stream.
pub(super) fn end(usage: &Usage) -> [Bytes; 3] {
    let usage = Tokens { input_tokens: usage.prompt_tokens, output_tokens: usage.completion_tokens };
    let delta = Event::MessageDelta { delta: Stopped { stop_reason: MAX_TOKENS }, usage };
    [Event::ContentBlockStop { index: 0 }.bytes(), delta.bytes(), Event::MessageStop.bytes()]
}

impl Event<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
        }
    }

    fn bytes(&self) -> Bytes {
        let mut bytes = format!("event: {}\ndata: ", self.name()).into_bytes();
        bytes.extend(json(self));
        bytes.extend(b"\n\n");
        Bytes::from(bytes)
    }
}
