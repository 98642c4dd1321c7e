//! Server-sent events of a streamed chat completion.

use serde::Deserialize;

/// What one event tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A piece of the answer's text.
    Content,
    /// The answer is whole.
    Done,
}

/// Cuts a stream into events.
#[derive(Debug, Default)]
pub struct Events {
    /// A line whose end has not come yet.
    rest: Vec<u8>,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Delta,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
}

impl Events {
    /// Takes the next bytes and returns the events that end in them. Role, finish and usage events tell nothing here.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        let mut parts = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            self.rest.extend_from_slice(part);
            if parts.peek().is_some() {
                events.extend(event(self.rest.trim_ascii()));
                self.rest.clear();
            }
        }
        events
    }
}

fn event(line: &[u8]) -> Option<Event> {
    let data = line.strip_prefix(b"data:")?.trim_ascii_start();
    if data == b"[DONE]" {
        return Some(Event::Done);
    }
    let chunk: Chunk = serde_json::from_slice(data).ok()?;
    let text = |choice: &Choice| choice.delta.content.as_ref().is_some_and(|content| !content.is_empty());
    chunk.choices.iter().any(text).then_some(Event::Content)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n: comment\n\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n";

    #[test]
    fn only_text_and_the_end_count() {
        assert_eq!(Events::default().feed(STREAM.as_bytes()), [Event::Content, Event::Done]);
    }

    #[test]
    fn it_does_not_matter_where_the_stream_is_cut() {
        for cut in 0..STREAM.len() {
            let mut events = Events::default();
            let mut seen = events.feed(&STREAM.as_bytes()[..cut]);
            seen.extend(events.feed(&STREAM.as_bytes()[cut..]));
            assert_eq!(seen, [Event::Content, Event::Done], "cut at {cut}");
        }
    }
}
