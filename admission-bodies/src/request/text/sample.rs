//! Text that is counted as a whole while it is short, and by samples from some length on.
//!
//! The text of a request, as it is written, is cut into groups of blocks. Of each group one block is counted; where it stands
//! follows from a seed that callers cannot know, so nothing can be written where nobody looks. What the blocks say is
//! scaled to all that was passed over. In the rest only the end of the string is looked for.

use super::Features;
use super::block::{self, BLOCK};

/// Bytes of text that are counted before any are passed over: prompts of some thousand tokens.
pub const COUNTED_WHOLE: u64 = 16 * 1_024;

/// Blocks of which one is counted.
const GROUP: u64 = 8;

const BLOCK_BYTES: u64 = BLOCK as u64;

const GROUP_BYTES: u64 = GROUP * BLOCK_BYTES;

/// Digits of an escape by number, its backslash and its letter.
const LONGEST_ESCAPE: usize = 6;

/// Text of a request, some of which may be known by samples only.
#[derive(Clone, Debug, Default)]
pub struct Text {
    /// Of which blocks are counted; all are where it is absent.
    seed: Option<u64>,
    /// Bytes of strings so far, as they are written.
    at: u64,
    /// What was counted as a whole.
    whole: Features,
    /// What was counted in samples.
    sample: Features,
    /// Bytes of samples and of what was passed over, as they are written.
    sampled: u64,
    passed: u64,
}

/// What is done with the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zone {
    Whole,
    Sample,
    Passed,
}

impl Text {
    /// Text that is sampled by this seed, a random number that callers cannot know; or counted as a whole without one.
    pub fn new(seed: Option<u64>) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Counts the content of a JSON string as far as it can be read, as [`Features::add_json`] does. What is passed over is
    /// read no further than that its end is found.
    #[inline]
    pub fn add_json(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0_usize;
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            let (zone, length) = self.zone();
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let part = rest.get(..length).unwrap_or(rest);
            let read = match zone {
                Zone::Whole => self.whole.add_json(part),
                Zone::Sample => self.sample.add_json(part),
                Zone::Passed => within_string(part),
            };
            self.advance(zone, read);
            taken = taken.saturating_add(read);
            if read < part.len() {
                break;
            }
        }
        taken
    }

    /// Counts a character that was written as an escape of two bytes.
    pub fn add_escaped(&mut self, character: u8) {
        self.add_escape(2, |features| features.add_bytes(&[character]));
    }

    /// Counts a character that was written as an escape by number.
    pub fn add_utf16(&mut self, unit: u16) {
        self.add_escape(LONGEST_ESCAPE, |features| features.add_utf16(unit));
    }

    /// Counts bytes that stand in no string, or in one that is short: as a whole.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.whole.add_bytes(bytes);
    }

    /// Ends a string: nothing stands before the next one.
    pub fn end_string(&mut self) {
        self.whole.end_string();
        self.sample.end_string();
    }

    /// Takes the text out, and begins with none, which is sampled elsewhere.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let next = Self::new(self.seed.map(mixed));
        std::mem::replace(self, next)
    }

    /// Adds other text.
    pub fn add(&mut self, other: &Self) {
        self.whole.add(&other.whole);
        self.sample.add(&other.sample);
        self.sampled = self.sampled.saturating_add(other.sampled);
        self.passed = self.passed.saturating_add(other.passed);
    }

    /// What has been added since it was `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            seed: self.seed,
            at: 0,
            whole: self.whole.since(&before.whole),
            sample: self.sample.since(&before.sample),
            sampled: self.sampled.saturating_sub(before.sampled),
            passed: self.passed.saturating_sub(before.passed),
        }
    }

    /// Its bytes, of what was passed over as they are written.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.whole.bytes().saturating_add(self.sample.bytes()).saturating_add(self.passed)
    }

    /// What was counted, and for what was passed over what its samples say of it; where there are none, what `like` says, a
    /// text that is much like it.
    #[must_use]
    pub fn features(&self, like: &Features) -> Features {
        let mut all = self.whole.clone();
        all.add(&self.sample);
        if self.passed > 0 {
            let (like, of) = if self.sampled > 0 { (&self.sample, self.sampled) } else { (like, like.bytes()) };
            all.add(&like.scaled(self.passed, of));
        }
        all
    }

    /// All of its features by itself.
    #[must_use]
    pub fn own_features(&self) -> Features {
        self.features(&self.whole)
    }

    fn add_escape(&mut self, written: usize, add: impl FnOnce(&mut Features)) {
        let (zone, _) = self.zone();
        match zone {
            Zone::Whole => add(&mut self.whole),
            Zone::Sample => add(&mut self.sample),
            Zone::Passed => {}
        }
        self.advance(zone, written);
    }

    fn advance(&mut self, zone: Zone, written: usize) {
        let written = written as u64;
        self.at = self.at.saturating_add(written);
        match zone {
            Zone::Whole => {}
            Zone::Sample => self.sampled = self.sampled.saturating_add(written),
            Zone::Passed => self.passed = self.passed.saturating_add(written),
        }
    }

    /// What the next bytes are, and how many of them. It depends on nothing but the seed and how much stands before them, so
    /// how a body is cut into chunks changes nothing.
    fn zone(&self) -> (Zone, u64) {
        let (Some(seed), Some(at)) = (self.seed, self.at.checked_sub(COUNTED_WHOLE)) else {
            let left = if self.seed.is_some() { COUNTED_WHOLE.saturating_sub(self.at) } else { u64::MAX };
            return (Zone::Whole, left);
        };
        let (group, within) = (at / GROUP_BYTES, at % GROUP_BYTES);
        let begins = sample_of(seed, group);
        let ends = begins.saturating_add(BLOCK_BYTES);
        if within < begins {
            (Zone::Passed, begins.saturating_sub(within))
        } else if within < ends {
            (Zone::Sample, ends.saturating_sub(within))
        } else {
            let rest = GROUP_BYTES.saturating_sub(within);
            (Zone::Passed, rest.saturating_add(sample_of(seed, group.saturating_add(1))))
        }
    }
}

/// Where in a group its sample begins.
const fn sample_of(seed: u64, group: u64) -> u64 {
    mixed(seed.wrapping_add(group)) % GROUP * BLOCK_BYTES
}

/// The finalizer of SplitMix64, from which nobody tells numbers that follow each other.
const fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// How many bytes of a JSON string, which begin with no half of an escape, belong to it and end with none: up to the closing
/// quote, or an escape of which a part is missing.
fn within_string(bytes: &[u8]) -> usize {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let mut start = 0_usize;
    for block in blocks {
        if let Some(end) = closing(bytes, start, block::quotes(block)) {
            return end;
        }
        start = start.saturating_add(BLOCK);
    }
    let end = match bytes.last_chunk::<BLOCK>() {
        _ if rest.is_empty() => None,
        // Of the last whole block a part has been looked at.
        Some(block) => {
            let seen = BLOCK.saturating_sub(rest.len());
            closing(bytes, start.saturating_sub(seen), block::quotes(block) >> seen << seen)
        }
        None => closing(bytes, start, block::quotes(&block::padded(rest))),
    };
    end.unwrap_or_else(|| before_part_of_escape(bytes))
}

/// The first of some quotes that is not escaped.
#[inline(always)]
fn closing(bytes: &[u8], start: usize, mut quotes: u64) -> Option<usize> {
    while quotes != 0 {
        let place = start.saturating_add(quotes.trailing_zeros() as usize);
        if !is_escaped(bytes, place) {
            return Some(place);
        }
        quotes &= quotes.wrapping_sub(1);
    }
    None
}

/// Whether a backslash escapes the byte at a place.
#[inline(always)]
fn is_escaped(bytes: &[u8], place: usize) -> bool {
    let before = bytes.get(..place).unwrap_or_default();
    before.last() == Some(&b'\\') && before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// How many bytes stand before an escape at the end of which a part is missing; all where there is none.
fn before_part_of_escape(bytes: &[u8]) -> usize {
    let last = bytes.len().saturating_sub(LONGEST_ESCAPE.saturating_sub(1));
    let length = |place: usize| if bytes.get(place.saturating_add(1)) == Some(&b'u') { LONGEST_ESCAPE } else { 2 };
    let is_cut = |place: &usize| {
        bytes.get(*place) == Some(&b'\\')
            && place.saturating_add(length(*place)) > bytes.len()
            && !is_escaped(bytes, *place)
    };
    (last..bytes.len()).find(is_cut).unwrap_or(bytes.len())
}
