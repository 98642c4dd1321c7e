//! Tells the worker a request's priority, in the body, where the worker reads it.

use std::ops::Range;

#[cfg(test)]
mod tests;

/// Most values of `priority` noted. No honest body has more than one.
const MAX_NOTED: usize = 4;

/// Longest thing written in place of one value, in bytes: the key, a number of eleven signs and a comma.
const MAX_WRITTEN: usize = 24;

/// Where a body's top-level object and its values of `priority` stand. Offsets are bytes of the whole body, however it
/// was cut into chunks. Takes the same memory whatever the body says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// Just behind the object's `{`.
    begin: u64,
    /// Just behind the object's `}`; 0 until it was seen.
    end: u64,
    has_keys: bool,
    /// Of a key that stands twice most parsers take the last value and some the first, so all are noted.
    values: [Range<u64>; MAX_NOTED],
    noted: usize,
    too_many: bool,
    /// Where the value being read begins.
    value_begin: u64,
}

impl Slots {
    /// Whether `priority` stands in the body more often than is noted, so that [`with_priority`] cannot replace it.
    #[must_use]
    pub fn too_many(&self) -> bool {
        self.too_many
    }

    /// The values of `priority` seen to their end so far, in their order, each from its first byte to behind its last.
    #[must_use]
    pub fn values(&self) -> &[Range<u64>] {
        self.values.get(..self.noted).unwrap_or_default()
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
    pub(super) fn value_begins(&mut self, at: u64) {
        self.value_begin = at;
    }

    #[cold]
    pub(super) fn value_ends(&mut self, behind: u64) {
        match self.values.get_mut(self.noted) {
            Some(place) => {
                *place = self.value_begin..behind;
                self.noted = self.noted.saturating_add(1);
            }
            None => self.too_many = true,
        }
    }

    #[cold]
    pub(super) fn object_ends(&mut self, behind: u64) {
        self.end = behind;
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

/// The body with this priority, which vLLM reads as a whole number that serves a lower one first: in place of every
/// value that `priority` has at the top level, or, where it has none, as the first key. All else stays byte for byte.
///
/// Nothing when the body does not end where the scanner saw it end, or says `priority` [too often](Slots::too_many).
///
/// ```
/// use admission_core::request::{Scanner, with_priority};
///
/// let body = br#"{"model": "llama", "priority": -9}"#;
/// let mut scanner = Scanner::default();
/// scanner.feed(body);
/// assert_eq!(scanner.finish(), Ok(()));
/// let tagged = with_priority(body, scanner.slots(), 2);
/// assert_eq!(tagged.as_deref(), Some(&br#"{"model": "llama", "priority": 2}"#[..]));
/// ```
#[must_use]
pub fn with_priority(body: &[u8], slots: &Slots, priority: i32) -> Option<Vec<u8>> {
    if slots.too_many || !slots.fits(body) {
        return None;
    }
    let room = MAX_WRITTEN.saturating_mul(slots.values().len().max(1));
    let mut tagged = Vec::with_capacity(body.len().saturating_add(room));
    let mut copied = 0;
    for value in slots.values() {
        tagged.extend_from_slice(body.get(copied..offset(value.start)?)?);
        tagged.extend_from_slice(priority.to_string().as_bytes());
        copied = offset(value.end)?;
    }
    if slots.values().is_empty() {
        copied = offset(slots.begin)?;
        let comma = if slots.has_keys { "," } else { "" };
        tagged.extend_from_slice(body.get(..copied)?);
        tagged.extend_from_slice(format!("\"priority\":{priority}{comma}").as_bytes());
    }
    tagged.extend_from_slice(body.get(copied..)?);
    Some(tagged)
}

fn offset(offset: u64) -> Option<usize> {
    usize::try_from(offset).ok()
}
