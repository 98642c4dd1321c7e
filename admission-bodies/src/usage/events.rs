//! The lines of server-sent events.

use super::document::Document;

const DATA: &[u8] = b"data:";

/// What OpenAI's streams end with.
const DONE: &[u8] = b"[DONE]";

/// Follows the lines of a stream and hands the data to a document. Lines end with LF or CRLF.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    line: Line,
    /// Marks of the end.
    marks: u64,
    had_data: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// So many bytes of the field's name have been seen.
    Name(usize),
    /// Before the first byte of the data.
    Blank,
    Data,
    /// In data that begins as the mark of the end does, of which so many bytes have been seen.
    Mark(usize),
    /// In a comment or in another field.
    Other,
}

impl Default for Line {
    fn default() -> Self {
        Self::Name(0)
    }
}

impl Events {
    /// The mark of the end has come.
    pub(super) const fn done(&self) -> bool {
        self.marks > 0
    }

    /// How many of them.
    pub(super) const fn marks(&self) -> u64 {
        self.marks
    }

    /// There was data beside that mark.
    pub(super) const fn had_data(&self) -> bool {
        self.had_data
    }

    /// Reads on, to the end of an event if there is one: what follows it, and whether there was.
    pub(super) fn advance<'a>(&mut self, bytes: &'a [u8], document: &mut Document) -> (&'a [u8], bool) {
        let mut rest = bytes;
        while let Some((first, after)) = rest.split_first() {
            rest = match (self.line, *first) {
                (Line::Name(0), b'\n') => {
                    document.leave();
                    return (after, true);
                }
                (Line::Name(0), b'\r') => after,
                (Line::Name(0), b'd') if rest.starts_with(DATA) => {
                    self.line = Line::Blank;
                    rest.get(DATA.len()..).unwrap_or_default()
                }
                (Line::Name(_), b'\n') => self.next(after),
                (Line::Name(seen), byte) => {
                    self.line = self.name(seen, byte);
                    after
                }
                (Line::Blank, b' ') => after,
                (Line::Blank, b'\n') => self.next(after),
                (Line::Blank, byte) => {
                    let is_mark = byte == b'[';
                    self.had_data |= !is_mark;
                    self.line = if is_mark { Line::Mark(0) } else { Line::Data };
                    rest
                }
                (Line::Data | Line::Mark(_) | Line::Other, b'\n') => self.next(after),
                (Line::Mark(seen), byte) => {
                    self.mark(seen, byte);
                    after
                }
                (Line::Data, _) => document.feed_line(rest),
                (Line::Other, _) => {
                    let end = rest.iter().position(|byte| *byte == b'\n');
                    end.and_then(|end| rest.get(end..)).unwrap_or_default()
                }
            };
        }
        (rest, false)
    }

    fn next<'a>(&mut self, after: &'a [u8]) -> &'a [u8] {
        self.line = Line::Name(0);
        after
    }

    fn name(&self, seen: usize, byte: u8) -> Line {
        let matched = seen.saturating_add(1);
        match DATA.get(seen) {
            Some(expected) if *expected == byte && matched == DATA.len() => Line::Blank,
            Some(expected) if *expected == byte => Line::Name(matched),
            _ => Line::Other,
        }
    }

    fn mark(&mut self, seen: usize, byte: u8) {
        let matched = seen.saturating_add(1);
        match DONE.get(seen) {
            Some(expected) if *expected == byte => {
                self.marks = self.marks.saturating_add((matched == DONE.len()).into());
                self.line = Line::Mark(matched);
            }
            Some(_) => {
                self.had_data = true;
                self.line = Line::Other;
            }
            None => {}
        }
    }
}
