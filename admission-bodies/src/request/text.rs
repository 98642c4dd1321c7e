//! The features of a prompt's text that its tokens are estimated from.
//!
//! A feature is the number of bytes at which a boolean expression over the classes of that byte and of the seven before
//! it holds. So all of them come out of bit masks, and how the text was cut into pieces or written in escapes changes
//! nothing. They follow how tokenizers split before they merge: words and the halves of camelCase, groups of digits,
//! runs of signs, indents, and lead bytes of other scripts, each of which has its own density.

mod block;
mod count;
mod data;
mod escape;
mod sample;
#[cfg(test)]
mod tests;

pub use count::Features;
pub(super) use count::Plain;
pub(super) use data::Data;
pub(super) use escape::{NO_NUMBER, UNKNOWN, before_part_of_escape, closing, unescaped};
pub use sample::COUNTED_WHOLE;
pub(super) use sample::Text;

/// Where in the text a token is likely to begin, or a longer one to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Feature {
    /// A word begins: a letter after none, an upper-case letter after a lower-case one, a lower-case one after two
    /// upper-case ones.
    Word,
    /// A lower-case letter after two upper-case ones: words in capitals cost more.
    Capitals,
    /// A letter that seven others precede: long words are cut.
    Long,
    /// A letter after a sign that a blank precedes: the sign does not join the word then.
    Opened,
    /// A digit after none.
    Number,
    /// A digit.
    Digit,
    /// A sign after none.
    Signs,
    /// A sign other than comma, full stop and quote, which join others more often.
    RareSign,
    /// A sign that three others precede.
    Rule,
    /// A space after exactly one other: an indent begins.
    Indent,
    /// A control character: line ends, tabs.
    Line,
    /// A control character that follows no sign, which would join it.
    FreshLine,
    /// A character of C2 to CD: accented Latin.
    Latin,
    /// Of CE to D3: Greek, Cyrillic.
    Greek,
    /// Of D4 to DF: Armenian, Hebrew, Arabic.
    Arabic,
    /// Of E0 and E1: Indic scripts, Thai, Georgian.
    Indic,
    /// Of E2, EE and EF: typographic signs, arrows, fullwidth forms.
    Symbol,
    /// Of E3: kana and the punctuation of Chinese and Japanese.
    Kana,
    /// Of E4 to E9: Chinese characters.
    Han,
    /// Of E9: Chinese characters that are rarer than the others.
    RareHan,
    /// Of EA to ED: Hangul.
    Hangul,
    /// Of F0 and more: emoji, rare scripts.
    Emoji,
    /// The first of a run of characters beyond ASCII.
    Foreign,
}

impl Feature {
    /// How many there are.
    pub const COUNT: usize = 23;

    /// All of them, in the order of [`Features::counts`].
    pub const ALL: [Self; Self::COUNT] = [
        Self::Word,
        Self::Capitals,
        Self::Long,
        Self::Opened,
        Self::Number,
        Self::Digit,
        Self::Signs,
        Self::RareSign,
        Self::Rule,
        Self::Indent,
        Self::Line,
        Self::FreshLine,
        Self::Latin,
        Self::Greek,
        Self::Arabic,
        Self::Indic,
        Self::Symbol,
        Self::Kana,
        Self::Han,
        Self::RareHan,
        Self::Hangul,
        Self::Emoji,
        Self::Foreign,
    ];

    /// Of a character beyond ASCII, by its first byte.
    const fn of_lead(byte: u8) -> Self {
        match byte {
            0..=0xcd => Self::Latin,
            0xce..=0xd3 => Self::Greek,
            0xd4..=0xdf => Self::Arabic,
            0xe0 | 0xe1 => Self::Indic,
            0xe2 | 0xee | 0xef => Self::Symbol,
            0xe3 => Self::Kana,
            0xe4..=0xe9 => Self::Han,
            0xea..=0xed => Self::Hangul,
            0xf0..=0xff => Self::Emoji,
        }
    }
}
