//! Counts features: byte by byte where little comes, else 64 bytes at a time.
//!
//! Within a block a class is a mask of 64 bits, and what stands before a byte is the mask shifted by one. An escape such as
//! `\n` stands as the character it means at its second byte; its backslash is no character, so what looks at the one before
//! looks through it.

use super::Feature;
use super::block::{self, BLOCK, Escapes, Masks, padded};
use super::escape::{Fault, LONGEST_ESCAPE, odd_escapes, unit_of};

/// Fewer bytes than this are counted one by one.
const FEW: usize = 8;

/// What was counted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    counts: [u64; Feature::COUNT],
    bytes: u64,
    blanks: u64,
    before: Before,
}

/// Classes of the bytes before, the last in the highest bit; nothing stands before a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Before {
    uppers: u64,
    lowers: u64,
    digits: u64,
    /// Of these only the last three are kept.
    signs: u64,
    spaces: u64,
    /// Spaces and line ends.
    blanks: u64,
    inside: u64,
}

/// Classes of a byte, or of those of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Classes {
    upper: u64,
    lower: u64,
    digit: u64,
    sign: u64,
    common: u64,
    space: u64,
    line: u64,
    lead: u64,
    inside: u64,
    /// Backslashes of escapes; no characters.
    slash: u64,
    /// The bytes behind them.
    escaped: u64,
}

/// A unit of UTF-16 as UTF-8. Each half of a pair stands for two of its four bytes, so that nobody needs to put them together.
pub(in crate::request) struct Plain([u8; 3], usize);

impl Plain {
    pub(in crate::request) fn of(unit: u16) -> Self {
        match (unit, char::from_u32(unit.into())) {
            (_, Some(char)) => {
                let mut bytes = [0; 3];
                let length = char.encode_utf8(&mut bytes).len();
                Self(bytes, length)
            }
            (..0xdc00, None) => Self([0xf0, 0x80, 0], 2),
            (_, None) => Self([0x80, 0x80, 0], 2),
        }
    }

    pub(in crate::request) fn bytes(&self) -> &[u8] {
        self.0.get(..self.1).unwrap_or_default()
    }
}

impl Features {
    /// How often a feature was seen.
    #[must_use]
    pub fn count(&self, feature: Feature) -> u64 {
        self.counts.get(feature as usize).copied().unwrap_or_default()
    }

    /// How often each was seen, in the order of [`Feature::ALL`].
    #[must_use]
    pub const fn counts(&self) -> &[u64; Feature::COUNT] {
        &self.counts
    }

    /// Bytes of text, as UTF-8.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its spaces.
    #[must_use]
    pub const fn blanks(&self) -> u64 {
        self.blanks
    }

    /// Adds other text.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blanks = self.blanks.saturating_add(other.blanks);
    }

    /// What has been added since it was `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut more = Self::default();
        for ((more, count), before) in more.counts.iter_mut().zip(self.counts).zip(before.counts) {
            *more = count.saturating_sub(before);
        }
        more.bytes = self.bytes.saturating_sub(before.bytes);
        more.blanks = self.blanks.saturating_sub(before.blanks);
        more
    }

    /// As often as in `bytes` bytes of which `of` were like this.
    #[must_use]
    pub fn scaled(&self, bytes: u64, of: u64) -> Self {
        let of = u128::from(of.max(1));
        let scaled = |count: u64| {
            let whole = u128::from(count).saturating_mul(u128::from(bytes)).saturating_add(of / 2) / of;
            u64::try_from(whole).unwrap_or(u64::MAX)
        };
        Self { counts: self.counts.map(scaled), bytes, blanks: scaled(self.blanks), before: Before::default() }
    }

    /// Counts bytes of a text as they are.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        if bytes.len() < FEW {
            return bytes.iter().for_each(|byte| self.add_byte(*byte));
        }
        for part in bytes.chunks(BLOCK) {
            let owned;
            let block = match part.first_chunk::<BLOCK>() {
                Some(block) => block,
                None => {
                    owned = padded(part);
                    &owned
                }
            };
            self.add_block(block, part.len(), &Masks::of(block).first(part.len()), Escapes::default());
        }
    }

    /// Counts the content of a JSON string, or a part of it: the first `length` of these bytes, in which each escape is whole.
    /// What stands behind them is not counted, but it is faster where there is some.
    ///
    /// # Errors
    /// The first escape that is none. All before it is counted then.
    pub(super) fn add_json(&mut self, bytes: &[u8], length: usize) -> Result<(), Fault> {
        let mut taken = 0_usize;
        while taken < length {
            let rest = bytes.get(taken..).unwrap_or_default();
            let left = length.saturating_sub(taken);
            let owned;
            let block = match rest.first_chunk::<BLOCK>() {
                Some(block) => block,
                None => {
                    owned = padded(rest);
                    &owned
                }
            };
            let more = self.add_json_block(block, left.min(BLOCK));
            taken = taken.saturating_add(more);
            if more == 0 {
                taken = taken.saturating_add(
                    self.add_numbers(rest.get(..left).unwrap_or(rest)).map_err(|fault| fault.behind(taken))?,
                );
            }
        }
        Ok(())
    }

    /// Counts the first bytes of a block that begins with no part of an escape, and returns how many: up to an escape that is not
    /// whole, or by number, or none.
    #[inline(always)]
    fn add_json_block(&mut self, block: &[u8; BLOCK], length: usize) -> usize {
        let masks = Masks::of(block);
        let (mut length, mut escapes) = (length, Escapes::default());
        if masks.backslash != 0 {
            escapes = Escapes::of(masks.backslash, &mut 0);
            let unusual = escapes.escaped & lowest(length) & !block::usual_escapes(block);
            let odd = if unusual == 0 { 0 } else { odd_escapes(block, unusual) };
            // Both bytes of an escape are in one block.
            let cut = escapes.slash & (1_u64 << length.saturating_sub(1) | odd >> 1);
            length = length.min(cut.trailing_zeros() as usize);
            if length < BLOCK {
                escapes = escapes.first(length);
            }
        }
        if length >= BLOCK {
            self.add_block(block, BLOCK, &masks, escapes);
        } else if length > 0 {
            self.add_block(block, length, &masks.first(length), escapes);
        }
        length
    }

    /// Counts the escapes by number that these bytes begin with, and returns how many bytes they are.
    fn add_numbers(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        let mut taken = 0_usize;
        loop {
            let rest = bytes.get(taken..).unwrap_or_default();
            if taken > 0 && !rest.starts_with(b"\\u") {
                return Ok(taken);
            }
            let unit = unit_of(rest).map_err(|fault| fault.behind(taken))?;
            self.add_utf16(unit);
            taken = taken.saturating_add(LONGEST_ESCAPE);
        }
    }

    /// Counts a character that was written as a `\u` escape, as if it were written plainly.
    pub fn add_utf16(&mut self, unit: u16) {
        Plain::of(unit).bytes().iter().for_each(|byte| self.add_byte(*byte));
    }

    /// Ends a string: nothing stands before the next one.
    pub fn end_string(&mut self) {
        self.before = Before::default();
    }

    fn add_byte(&mut self, byte: u8) {
        self.add_classes(&Classes::of_byte(byte), 1);
        if byte >= 0xc0 {
            self.add_packed(lead(byte));
        }
    }

    /// Counts the first bytes of a block; `masks` of them alone, `escapes` among them.
    #[inline(always)]
    fn add_block(&mut self, block: &[u8; BLOCK], length: usize, masks: &Masks, escapes: Escapes) {
        let inside = if masks.foreign == 0 { 0 } else { block::inside(block, masks.foreign) };
        let classes = Classes::of_block(masks, inside, length, escapes);
        self.add_classes(&classes, length);
        if classes.lead != 0 {
            self.add_leads(block, classes.lead);
        }
    }

    /// Counts characters beyond ASCII, by where in a block they begin.
    #[inline(always)]
    fn add_leads(&mut self, block: &[u8; BLOCK], mut leads: u64) {
        let byte_of = |leads: u64| block.get(leads.trailing_zeros() as usize).copied().unwrap_or_default();
        if leads == u64::MAX {
            // One more than there is place for.
            self.add_packed(lead(byte_of(leads)));
            leads &= leads.wrapping_sub(1);
        }
        let mut sum = 0_u64;
        while leads != 0 {
            sum = sum.wrapping_add(lead(byte_of(leads)));
            leads &= leads.wrapping_sub(1);
        }
        self.add_packed(sum);
    }

    /// Adds counts of characters beyond ASCII, packed as by [`lead`].
    #[inline(always)]
    fn add_packed(&mut self, packed: u64) {
        let counts = self.counts.iter_mut().skip(FIRST_LEAD).take(LEAD_FEATURES);
        counts.enumerate().for_each(|(place, count)| {
            *count = count.wrapping_add(packed >> (LEAD_BITS * place as u32) & lowest(LEAD_BITS as usize));
        });
    }

    /// Counts the features of `length` bytes and moves on behind them. Here and below sums wrap where they cannot: no body has
    /// 2^64 bytes.
    #[inline(always)]
    fn add_classes(&mut self, classes: &Classes, length: usize) {
        let Classes { upper, lower, digit, sign, common, space, line, lead, inside, slash, .. } = *classes;
        let [
            words,
            capitals,
            long,
            opened,
            numbers,
            digits,
            signs,
            rare_signs,
            rules,
            indents,
            lines,
            fresh_lines,
            ..,
            foreign,
        ] = &mut self.counts;
        let add = |count: &mut u64, places: u64| *count = count.wrapping_add(ones(places));
        let before = &self.before;
        let letter = upper | lower;
        let letters_before = before.uppers | before.lowers;
        let capital = lower & last(upper, before.uppers) & last_but_one(upper, before.uppers);
        add(words, letter & !last(letter, letters_before) | upper & last(lower, before.lowers) | capital);
        add(capitals, capital);
        add(long, eight(letter, letters_before));
        add(numbers, digit & !last(digit, before.digits));
        add(digits, digit);

        let [one, two, three] = signs_before(classes, before.signs);
        // What looks two places back looks through a backslash.
        let blank = space | line;
        let blank = blank | slash & last(blank, before.blanks);
        add(opened, letter & last(sign, before.signs) & last_but_one(blank, before.blanks));
        add(signs, sign & !one);
        add(rare_signs, sign & !common);
        add(rules, sign & one & two & three);
        add(indents, space & last(space, before.spaces) & !last_but_one(space, before.spaces));
        add(lines, line);
        add(fresh_lines, line & !one);
        add(foreign, lead & !last(inside, before.inside));

        add(&mut self.blanks, space);
        self.bytes = self.bytes.wrapping_add((length as u64).wrapping_sub(ones(slash)));
        let top = |mask: u64| mask << BLOCK.saturating_sub(length) & 1 << 63;
        self.before = Before {
            uppers: behind(upper, before.uppers, length),
            lowers: behind(lower, before.lowers, length),
            digits: behind(digit, before.digits, length),
            signs: top(sign) | top(one) >> 1 | top(two) >> 2,
            spaces: behind(space, before.spaces, length),
            blanks: behind(blank, before.blanks, length),
            inside: behind(inside, before.inside, length),
        };
    }
}

/// The features that tell characters beyond ASCII apart stand side by side, from this one on.
const FIRST_LEAD: usize = Feature::Latin as usize;
const LEAD_FEATURES: usize = Feature::Foreign as usize - FIRST_LEAD;

/// Bits of a packed count.
const LEAD_BITS: u32 = 6;

const fn packed(feature: Feature) -> u64 {
    1 << (LEAD_BITS * (feature as u32 - FIRST_LEAD as u32))
}

/// By the first byte of a character beyond ASCII, one for each of its features, each in a place of its own.
#[allow(clippy::indexing_slicing, reason = "runs in the compiler")]
const LEADS: [u64; 64] = {
    let mut leads = [0; 64];
    let mut place = 0;
    while place < leads.len() {
        let byte = 0xc0 | place as u8;
        leads[place] = packed(Feature::of_lead(byte));
        if byte == 0xe9 {
            leads[place] |= packed(Feature::RareHan);
        }
        place += 1;
    }
    leads
};

#[inline(always)]
fn lead(byte: u8) -> u64 {
    LEADS.get(usize::from(byte & 0x3f)).copied().unwrap_or_default()
}

const fn ones(mask: u64) -> u64 {
    mask.count_ones() as u64
}

/// The lowest bits.
const fn lowest(count: usize) -> u64 {
    if count >= BLOCK { u64::MAX } else { (1_u64 << count).wrapping_sub(1) }
}

impl Masks {
    fn first(mut self, length: usize) -> Self {
        if length < BLOCK {
            let kept = lowest(length);
            for mask in [
                &mut self.letter,
                &mut self.digit,
                &mut self.space,
                &mut self.line,
                &mut self.common,
                &mut self.backslash,
                &mut self.foreign,
            ] {
                *mask &= kept;
            }
        }
        self
    }
}

impl Escapes {
    const fn first(self, length: usize) -> Self {
        let kept = lowest(length);
        Self { slash: self.slash & kept, escaped: self.escaped & kept }
    }
}

impl Classes {
    /// Each class in the lowest bit.
    fn of_byte(byte: u8) -> Self {
        let mut classes = Self::default();
        match byte {
            b'A'..=b'Z' => classes.upper = 1,
            b'a'..=b'z' => classes.lower = 1,
            b'0'..=b'9' => classes.digit = 1,
            b' ' => classes.space = 1,
            0..=0x1f => classes.line = 1,
            b',' | b'.' | b'"' => (classes.sign, classes.common) = (1, 1),
            0x21..=0x7f => classes.sign = 1,
            0x80..=0xbf => classes.inside = 1,
            _ => classes.lead = 1,
        }
        classes
    }

    #[inline(always)]
    fn of_block(masks: &Masks, inside: u64, length: usize, escapes: Escapes) -> Self {
        let Masks { letter, lower_bit, digit, space, line, common, foreign, .. } = *masks;
        let Escapes { slash, escaped } = escapes;
        let others = letter | digit | space | line | foreign | slash;
        // What letters mean behind a backslash are control characters; other characters mean themselves.
        let (letter, control) = (letter & !escaped, letter & escaped);
        Self {
            upper: letter & !lower_bit,
            lower: letter & lower_bit,
            digit,
            sign: lowest(length) & !others,
            common,
            space,
            line: line | control,
            lead: foreign & !inside,
            inside,
            slash,
            escaped,
        }
    }
}

/// The bytes before those of a mask, one place before each; `before` in the highest bit.
const fn last(mask: u64, before: u64) -> u64 {
    mask << 1 | before >> 63
}

const fn last_but_one(mask: u64, before: u64) -> u64 {
    mask << 2 | before >> 62
}

/// As [`last`], but behind a backslash what stands before it.
const fn last_through(mask: u64, before: u64, escaped: u64) -> u64 {
    last(mask, before) & !escaped | (mask << 2 | before >> 63 << 1) & escaped
}

/// Where letters end runs of eight.
const fn eight(letters: u64, before: u64) -> u64 {
    let (two, two_before) = (letters & last(letters, before), before & before << 1);
    let four = two & last_but_one(two, two_before);
    let four_before = two_before & two_before << 2;
    four & (four << 4 | four_before >> 60)
}

/// Whether the last character is a sign, the one before it, and the one before that.
#[inline(always)]
const fn signs_before(classes: &Classes, before: u64) -> [u64; 3] {
    let Classes { sign, escaped, .. } = *classes;
    if escaped == 0 {
        return [last(sign, before), last_but_one(sign, before), sign << 3 | before >> 61];
    }
    let one = last_through(sign, before, escaped);
    let two = last_through(one, before << 1, escaped);
    [one, two, last_through(two, before << 2, escaped)]
}

/// What stands before what follows the first `length` bytes of a mask.
#[inline(always)]
fn behind(mask: u64, before: u64, length: usize) -> u64 {
    if length >= BLOCK { mask } else { mask << BLOCK.saturating_sub(length) | before >> length }
}
