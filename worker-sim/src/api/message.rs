//! The bodies of answers in Anthropic's shape, with the fields that vLLM sends.

use bytes::Bytes;
use serde::Serialize;

use super::reply::{Envelope, json, word};
use super::usage::{Bill, Told};
use crate::hub::Ending;

#[derive(Serialize)]
struct Plain<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    content: [Block; 1],
    model: &'a str,
    stop_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Told>,
}

/// A piece of content; its kind differs from place to place.
#[derive(Serialize)]
struct Block {
    r#type: &'static str,
    text: String,
}

/// vLLM leaves out what it has not set, the type and the role among them.
#[derive(Serialize)]
struct Begun<'a> {
    id: &'a str,
    content: [(); 0],
    model: &'a str,
    stop_reason: (),
    stop_sequence: (),
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Told>,
}

#[derive(Serialize)]
struct Stopped {
    stop_reason: &'static str,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    MessageStart {
        message: Begun<'a>,
    },
    ContentBlockStart {
        content_block: Block,
        index: u32,
    },
    ContentBlockDelta {
        delta: Block,
        index: u32,
    },
    ContentBlockStop {
        index: u32,
    },
    MessageDelta {
        delta: Stopped,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<Told>,
    },
    MessageStop,
}

/// The whole answer in one body.
pub(super) fn plain(envelope: &Envelope, (text, ending): (String, Ending), bill: &Bill) -> Vec<u8> {
    json(&Plain {
        id: &envelope.id,
        r#type: "message",
        role: "assistant",
        content: [Block { r#type: "text", text }],
        model: &envelope.model,
        stop_reason: stop_reason(ending),
        usage: envelope.tell(bill.message()),
    })
}

/// What opens a stream, before its first token. Anthropic's own tells of the token that is on its way.
pub(super) fn begin(envelope: &Envelope, bill: &Bill) -> [Bytes; 2] {
    let usage = envelope.tell(bill.after(1).message());
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

/// What closes a stream. The second half of the usage is the output alone, as Anthropic has it.
pub(super) fn end(envelope: &Envelope, ending: Ending, bill: &Bill) -> Vec<Bytes> {
    let usage = envelope.tell(bill.output());
    let delta = Event::MessageDelta { delta: Stopped { stop_reason: stop_reason(ending) }, usage }.bytes();
    let mut events = vec![Event::ContentBlockStop { index: 0 }.bytes(), delta.clone()];
    events.extend(envelope.telling.repeated.then_some(delta));
    events.push(Event::MessageStop.bytes());
    events
}

fn stop_reason(ending: Ending) -> &'static str {
    match ending {
        Ending::Limit => "max_tokens",
        Ending::Model => "end_turn",
    }
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
