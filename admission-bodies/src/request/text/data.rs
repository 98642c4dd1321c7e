//! Strings that are data unless they prove to be text.

use super::Feature;
use super::escape::{Fault, LONGEST_ESCAPE, unescaped, unit_of};
use super::sample::Text;

/// More than one character in so many that base64 has none of makes a string text, as does any beyond ASCII. Fewer are line
/// ends, of two characters behind 64 at the least, and the name of a type before its data.
const BYTES_PER_ODD: u64 = 32;

/// Counts of at most so many fit in a byte, so that sixteen bytes are looked at in one step.
const MOST_AT_ONCE: usize = 255;

/// One string at a time.
#[derive(Clone, Debug, Default)]
pub struct Data {
    text: Text,
    /// Characters that base64 has none of.
    odd: u64,
}

impl Data {
    /// Nothing yet; where its samples are taken follows from `seed`, as in [`Text::new`].
    #[must_use]
    pub fn new(seed: Option<u64>) -> Self {
        Self { text: Text::new(seed), odd: 0 }
    }

    /// As [`Text::add_json`].
    ///
    /// # Errors
    /// The first escape that is none.
    pub fn add_json(&mut self, bytes: &[u8], length: usize) -> Result<(), Fault> {
        self.text.add_json(bytes, length)?;
        self.odd = self.odd.saturating_add(odd_in_json(bytes.get(..length).unwrap_or(bytes)));
        Ok(())
    }

    /// As [`Text::add_escaped`].
    pub fn add_escaped(&mut self, character: u8) {
        self.text.add_escaped(character);
        self.odd = self.odd.saturating_add(is_odd(character).into());
    }

    /// As [`Text::add_utf16`].
    pub fn add_utf16(&mut self, unit: u16) {
        self.text.add_utf16(unit);
        self.odd = self.odd.saturating_add(is_odd_unit(unit).into());
    }

    /// Whether no data is written so.
    #[must_use]
    pub fn is_text(&self) -> bool {
        self.odd.saturating_mul(BYTES_PER_ODD) > self.text.bytes()
            || self.text.own_features().count(Feature::Foreign) > 0
    }

    /// Takes the string out, as text.
    #[must_use]
    pub fn take(&mut self) -> Text {
        self.odd = 0;
        self.text.take()
    }
}

/// Characters that base64 has none of, in a part of a JSON string in which each escape is whole.
fn odd_in_json(mut bytes: &[u8]) -> u64 {
    let mut odd = 0_u64;
    while let Some(slash) = memchr::memchr(b'\\', bytes) {
        let (plain, escape) = bytes.split_at_checked(slash).unwrap_or_default();
        let (is_odd, length) = match unit_of(escape) {
            Ok(unit) => (is_odd_unit(unit), LONGEST_ESCAPE),
            Err(_) => (escape.get(1).and_then(|byte| unescaped(*byte)).is_none_or(is_odd), 2),
        };
        odd = odd.saturating_add(odd_in(plain)).saturating_add(is_odd.into());
        bytes = escape.get(length..).unwrap_or_default();
    }
    odd.saturating_add(odd_in(bytes))
}

fn odd_in(bytes: &[u8]) -> u64 {
    let parts = bytes.chunks(MOST_AT_ONCE);
    parts.map(|part| u64::from(part.iter().fold(0_u8, |odd, byte| odd.wrapping_add(is_odd(*byte).into())))).sum()
}

/// In either alphabet of base64.
const fn is_odd(character: u8) -> bool {
    !(character.is_ascii_alphanumeric() || matches!(character, b'+' | b'/' | b'=' | b'-' | b'_'))
}

fn is_odd_unit(unit: u16) -> bool {
    u8::try_from(unit).map_or(true, is_odd)
}
