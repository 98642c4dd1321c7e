//! Text by kinds of characters, which is what tokens are estimated from.

/// How often each kind of character was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    counts: [u64; Class::COUNT],
    /// Runs of ASCII letters.
    pub words: u64,
    in_word: bool,
}

/// A kind of character. Tokenizers merge common words, keep digits and signs nearly single, and spend more on scripts
/// they saw less of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// ASCII letters.
    Letter,
    /// ASCII digits.
    Digit,
    /// Blanks.
    Space,
    /// Line ends, tabs and other control characters.
    Control,
    /// Other ASCII signs.
    Sign,
    /// Two bytes in UTF-8: accented Latin, Greek, Cyrillic, Hebrew, Arabic.
    TwoBytes,
    /// Three bytes: most of Asia.
    ThreeBytes,
    /// Four bytes: emoji, rare scripts.
    FourBytes,
    /// A byte inside a longer character.
    Continuation,
}

impl Class {
    const COUNT: usize = 9;

    const fn of_byte(byte: u8) -> Self {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => Self::Letter,
            b'0'..=b'9' => Self::Digit,
            b' ' => Self::Space,
            0..=0x1f | 0x7f => Self::Control,
            0x21..=0x7e => Self::Sign,
            0x80..=0xbf => Self::Continuation,
            0xc0..=0xdf => Self::TwoBytes,
            0xe0..=0xef => Self::ThreeBytes,
            0xf0..=0xff => Self::FourBytes,
        }
    }

    /// Of a UTF-16 unit, as `\u` escapes write characters: the first half of a pair stands for the whole.
    const fn of_utf16(unit: u16) -> Self {
        match unit {
            0..=0x7f => Self::of_byte(unit as u8),
            0x80..=0x7ff => Self::TwoBytes,
            0xd800..=0xdbff => Self::FourBytes,
            0xdc00..=0xdfff => Self::Continuation,
            _ => Self::ThreeBytes,
        }
    }
}

#[allow(clippy::indexing_slicing, reason = "runs in the compiler")]
const CLASS_OF: [Class; 256] = {
    let mut table = [Class::Letter; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = Class::of_byte(byte as u8);
        byte += 1;
    }
    table
};

impl Classes {
    /// How often a kind was seen.
    #[must_use]
    pub const fn count(&self, class: Class) -> u64 {
        // In bounds for every class; written so that the compiler needs no proof at run time.
        match self.counts.as_slice().split_at_checked(class as usize) {
            Some((_, [count, ..])) => *count,
            _ => 0,
        }
    }

    /// Counts the bytes of a string's content.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if let Some(class) = CLASS_OF.get(usize::from(*byte)) {
                self.add(*class);
            }
        }
    }

    /// Counts a character that was written as a `\u` escape.
    pub fn add_utf16(&mut self, unit: u16) {
        self.add(Class::of_utf16(unit));
    }

    /// Ends a word at the end of a string, so that the next string begins a new one.
    pub fn end_string(&mut self) {
        self.in_word = false;
    }

    fn add(&mut self, class: Class) {
        if let Some(count) = self.counts.get_mut(class as usize) {
            *count = count.saturating_add(1);
        }
        let in_word = matches!(class, Class::Letter);
        self.words = self.words.saturating_add(u64::from(in_word && !self.in_word));
        self.in_word = in_word;
    }
}
