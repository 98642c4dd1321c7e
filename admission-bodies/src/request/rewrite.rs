//! Writes into a body what workers read there: the request's priority, and that a stream is to end with its usage.

use std::ops::Range;

#[cfg(test)]
mod tests;

/// Most places noted. No honest body has more than two.
const MAX_NOTED: usize = 6;

/// Longest thing written at one place, in bytes.
const MAX_WRITTEN: usize = 48;

/// Where a body's top-level object stands, and in it the values of `priority` and `stream_options`. Offsets are bytes of the
/// whole body, however it was cut into chunks. Takes the same memory whatever the body says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// Just behind the object's `{`.
    begin: u64,
    /// Just behind the object's `}`; 0 until it was seen.
    end: u64,
    has_keys: bool,
    /// Of a key that stands twice most parsers take the last value and some the first, so all are noted, in their order.
    notes: [Note; MAX_NOTED],
    noted: usize,
    too_many: bool,
    /// The value being read: where it begins and how deep.
    open: Option<(Place, u64, u32)>,
    options: Options,
}

/// The `stream_options` being read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Options {
    /// Just behind its `{`.
    begin: u64,
    has_keys: bool,
    names_usage: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Note {
    place: Place,
    at: Range<u64>,
}

/// What stands somewhere in a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Place {
    /// A value of `priority`.
    #[default]
    Priority,
    /// A value of `stream_options` that is no object.
    Options,
    /// A value of `include_usage` in it.
    IncludeUsage,
    /// The beginning of one in which `include_usage` is missing, with or without other keys.
    NoUsage { has_keys: bool },
}

/// What is to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// As `priority`, a whole number; vLLM serves a lower one first.
    pub priority: Option<i32>,
    /// `stream_options.include_usage` is to be `true`.
    pub include_usage: bool,
}

impl Slots {
    /// Whether these keys stand in the body more often than is noted, so that [`rewritten`] cannot replace them.
    #[must_use]
    pub fn too_many(&self) -> bool {
        self.too_many
    }

    /// Whether the body says a priority, as far as it was read.
    #[must_use]
    pub fn names_priority(&self) -> bool {
        self.too_many || self.notes().any(|note| note.place == Place::Priority)
    }

    fn notes(&self) -> impl Iterator<Item = &Note> {
        self.notes.iter().take(self.noted)
    }

    // These run once or a few times a body; inlined, they would slow down every other value.

    #[cold]
    pub(super) fn object_begins(&mut self, behind: u64) {
        self.begin = behind;
    }

    pub(super) fn key_begins(&mut self) {
        self.has_keys = true;
    }

    #[cold]
    pub(super) fn options_begin(&mut self, behind: u64) {
        self.options = Options { begin: behind, has_keys: false, names_usage: false };
    }

    #[cold]
    pub(super) fn option_begins(&mut self) {
        self.options.has_keys = true;
    }

    #[cold]
    pub(super) fn options_end(&mut self) {
        let Options { begin, has_keys, names_usage } = self.options;
        if !names_usage {
            self.note(Place::NoUsage { has_keys }, begin..begin);
        }
    }

    #[cold]
    pub(super) fn value_begins(&mut self, at: u64, depth: u32, place: Place) {
        self.options.names_usage |= place == Place::IncludeUsage;
        self.open = Some((place, at, depth));
    }

    #[cold]
    pub(super) fn value_ends(&mut self, depth: u32, behind: u64) {
        if let Some((place, begin, _)) = self.open.take_if(|(.., begun)| *begun == depth) {
            self.note(place, begin..behind);
        }
    }

    #[cold]
    pub(super) fn object_ends(&mut self, behind: u64) {
        self.end = behind;
    }

    fn note(&mut self, place: Place, at: Range<u64>) {
        match self.notes.get_mut(self.noted) {
            Some(note) => {
                *note = Note { place, at };
                self.noted = self.noted.saturating_add(1);
            }
            None => self.too_many = true,
        }
    }

    /// Whether this is the object that was read: all of it, and nothing but blanks behind.
    fn fits(&self, body: &[u8]) -> bool {
        let before = |behind: u64| body.get(offset(behind)?.checked_sub(1)?);
        let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        let rest = offset(self.end).and_then(|end| body.get(end..));
        before(self.begin) == Some(&b'{')
            && before(self.end) == Some(&b'}')
            && rest.is_some_and(|rest| rest.iter().all(blank))
    }
}

impl Changes {
    /// Whether nothing is to be written.
    #[must_use]
    pub fn none(self) -> bool {
        self == Self::default()
    }

    /// What is to stand there, if that is to be changed.
    fn text_at(self, place: Place) -> Option<String> {
        match place {
            Place::Priority => self.priority.map(|priority| priority.to_string()),
            _ if !self.include_usage => None,
            Place::Options => Some(r#"{"include_usage":true}"#.to_owned()),
            Place::IncludeUsage => Some("true".to_owned()),
            Place::NoUsage { has_keys } => Some(format!(r#""include_usage":true{}"#, if has_keys { "," } else { "" })),
        }
    }

    /// Keys that have to be added to the object.
    fn missing(self, slots: &Slots) -> Vec<String> {
        let names_options = slots.notes().any(|note| note.place != Place::Priority);
        let priority = self.priority.filter(|_| !slots.names_priority());
        let usage = self.include_usage && !names_options;
        let priority = priority.map(|priority| format!(r#""priority":{priority}"#));
        priority.into_iter().chain(usage.then(|| r#""stream_options":{"include_usage":true}"#.to_owned())).collect()
    }
}

/// The body with these changes: in place of every value that a key has, or, where the key is missing, as the first key of its
/// object. All else stays byte for byte.
///
/// Nothing when the body does not end where the scanner saw it end, or has the keys [too often](Slots::too_many).
///
/// ```
/// use admission_bodies::request::{Changes, Scanner, rewritten};
///
/// let body = br#"{"model": "llama", "priority": -9, "stream": true}"#;
/// let mut scanner = Scanner::default();
/// scanner.feed(body);
/// assert_eq!(scanner.finish(), Ok(()));
/// let changes = Changes { priority: Some(2), include_usage: true };
/// let expected = br#"{"stream_options":{"include_usage":true},"model": "llama", "priority": 2, "stream": true}"#;
/// assert_eq!(rewritten(body, scanner.slots(), changes).as_deref(), Some(&expected[..]));
/// ```
#[must_use]
pub fn rewritten(body: &[u8], slots: &Slots, changes: Changes) -> Option<Vec<u8>> {
    if slots.too_many || !slots.fits(body) {
        return None;
    }
    let room = MAX_WRITTEN.saturating_mul(slots.noted.saturating_add(2));
    let mut written = Vec::with_capacity(body.len().saturating_add(room));
    let mut copied = offset(slots.begin)?;
    written.extend_from_slice(body.get(..copied)?);
    let missing = changes.missing(slots);
    if !missing.is_empty() {
        written.extend_from_slice(missing.join(",").as_bytes());
        written.extend_from_slice(if slots.has_keys { b"," } else { b"" });
    }
    for Note { place, at } in slots.notes() {
        if let Some(text) = changes.text_at(*place) {
            written.extend_from_slice(body.get(copied..offset(at.start)?)?);
            written.extend_from_slice(text.as_bytes());
            copied = offset(at.end)?;
        }
    }
    written.extend_from_slice(body.get(copied..)?);
    Some(written)
}

fn offset(offset: u64) -> Option<usize> {
    usize::try_from(offset).ok()
}
