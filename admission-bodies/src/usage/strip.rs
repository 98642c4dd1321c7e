//! Taking out of a stream the chunk that the filter has asked for on a client's behalf.

use std::borrow::Cow;

use super::document::Document;
use super::events::Events;

/// Most that is held back of one event, in bytes; a longer one is no report.
const MOST_HELD: usize = 8_192;

/// Removes from a stream of chat completions or completions every event that holds a report beside an empty list of
/// choices, as `stream_options.include_usage` has workers send before `[DONE]`. All else stays byte for byte, a
/// `"usage": null` in other chunks included.
///
/// Bytes are held back only while they may be the beginning of such an event: most chunks hold whole events, and one that
/// does not is decided as soon as its `choices` have begun.
///
/// ```
/// use admission_bodies::usage::UsageChunkFilter;
///
/// let mut filter = UsageChunkFilter::default();
/// let report = b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":6}}\n\ndata: [DONE]\n\n";
/// assert_eq!(&*filter.feed(report), b"data: [DONE]\n\n");
/// assert!(filter.finish().is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct UsageChunkFilter {
    events: Events,
    document: Document,
    /// The beginning of an event that may have to go.
    held: Vec<u8>,
    /// A part of the event has gone on, so the rest must.
    passing: bool,
    /// Documents and marks of the end before the event.
    before: (u64, u64),
}

impl UsageChunkFilter {
    /// Takes the next bytes of a stream and gives what can go on of what has come: mostly the very same bytes.
    pub fn feed<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let mut out = Output::new(bytes);
        let mut rest = bytes;
        while !rest.is_empty() {
            let (after, ended) = self.events.advance(rest, &mut self.document);
            let part = rest.get(..rest.len().saturating_sub(after.len())).unwrap_or_default();
            rest = after;
            if ended {
                if self.passing || !self.is_usage_chunk() {
                    out.pass(&mut self.held, part);
                } else {
                    self.held.clear();
                    out.drop_part();
                }
                (self.passing, self.before) = (false, (self.document.count(), self.events.marks()));
            } else if self.passing || self.is_ordinary(part.len()) {
                self.passing = true;
                out.pass(&mut self.held, part);
            } else {
                self.held.extend_from_slice(part);
                out.drop_part();
            }
        }
        out.finish()
    }

    /// What is held back of what has come.
    #[must_use]
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    /// What is still held back when the stream has ended, amid an event or without the blank line after the last.
    #[must_use]
    pub fn finish(&mut self) -> Vec<u8> {
        let held = std::mem::take(&mut self.held);
        if self.is_usage_chunk() { Vec::new() } else { held }
    }

    fn documents(&self) -> u64 {
        self.document.count().saturating_sub(self.before.0)
    }

    fn has_mark(&self) -> bool {
        self.events.marks() > self.before.1
    }

    fn is_usage_chunk(&self) -> bool {
        self.documents() == 1 && self.document.is_usage_chunk() && !self.has_mark()
    }

    /// Whether an event of which more is to come can be no report.
    fn is_ordinary(&self, more: usize) -> bool {
        let begun = self.documents();
        let closed_otherwise = self.document.closed() && !self.document.is_usage_chunk();
        begun > 1
            || self.has_mark()
            || begun == 1 && (self.document.has_choices() || closed_otherwise)
            || self.held.len().saturating_add(more) > MOST_HELD
    }
}

/// What goes on: all of the input as long as nothing is taken out of it or put before it.
struct Output<'a> {
    input: &'a [u8],
    /// Bytes of the input that go on untouched from its beginning.
    untouched: usize,
    /// Once something has been changed.
    changed: Option<Vec<u8>>,
}

impl<'a> Output<'a> {
    const fn new(input: &'a [u8]) -> Self {
        Self { input, untouched: 0, changed: None }
    }

    fn changed(&mut self) -> &mut Vec<u8> {
        let untouched = self.input.get(..self.untouched).unwrap_or_default();
        self.changed.get_or_insert_with(|| untouched.to_vec())
    }

    fn pass(&mut self, held: &mut Vec<u8>, part: &[u8]) {
        if !held.is_empty() {
            self.changed().append(held);
        }
        match &mut self.changed {
            Some(changed) => changed.extend_from_slice(part),
            None => self.untouched = self.untouched.saturating_add(part.len()),
        }
    }

    fn drop_part(&mut self) {
        self.changed();
    }

    fn finish(self) -> Cow<'a, [u8]> {
        match self.changed {
            Some(changed) => Cow::Owned(changed),
            None => Cow::Borrowed(self.input),
        }
    }
}
