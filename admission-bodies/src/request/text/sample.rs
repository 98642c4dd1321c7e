//! Text that is counted as a whole while it is short, and by samples from some length on.
//!
//! The text of a request, as it is written, is cut into groups of blocks. Of each group one block is counted; where it stands
//! follows from a seed that callers cannot know, so nothing can be written where nobody looks. What the blocks say is
//! scaled to all that was passed over. In the rest only the end of the string is looked for.

use super::Features;
use super::block::BLOCK;
use super::escape::{Fault, LONGEST_ESCAPE, behind_escape};

/// Bytes of text that are counted before any are passed over: prompts of some thousand tokens.
pub const COUNTED_WHOLE: u64 = 16 * 1_024;

/// Blocks of which one is counted.
const GROUP: u64 = 8;

const BLOCK_BYTES: u64 = BLOCK as u64;

const GROUP_BYTES: u64 = GROUP * BLOCK_BYTES;

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

    /// Counts the content of a JSON string, or a part of it: the first `length` of these bytes, in which each escape is whole.
    /// What is passed over is not looked at.
    ///
    /// # Errors
    /// The first escape that is none.
    pub fn add_json(&mut self, bytes: &[u8], length: usize) -> Result<(), Fault> {
        let Some(seed) = self.seed else { return self.whole.add_json(bytes, length) };
        let mut known = 0_usize;
        let left = COUNTED_WHOLE.saturating_sub(self.at);
        if left > 0 {
            known = behind_escape(bytes, 0, usize::try_from(left).unwrap_or(usize::MAX).min(length)).min(length);
            self.whole.add_json(bytes, known)?;
            self.at = self.at.saturating_add(known as u64);
        }
        if known < length { self.add_samples(seed, bytes, known, length) } else { Ok(()) }
    }

    /// Counts what is in samples of the bytes from `known` to `end`.
    fn add_samples(&mut self, seed: u64, bytes: &[u8], known: usize, end: usize) -> Result<(), Fault> {
        let mut known = known;
        let mut at = self.at.saturating_sub(COUNTED_WHOLE);
        let mut group = at / GROUP_BYTES;
        while known < end {
            let begins = group.saturating_mul(GROUP_BYTES).saturating_add(sample_of(seed, group));
            let before = begins.saturating_sub(at);
            // An escape belongs where it begins.
            let from = if before > 0 { behind(bytes, known, before, end) } else { known };
            self.passed = self.passed.saturating_add(from.saturating_sub(known) as u64);
            at = at.saturating_add(from.saturating_sub(known) as u64);
            let ends = begins.saturating_add(BLOCK_BYTES);
            let to = if ends > at { behind(bytes, from, ends.saturating_sub(at), end) } else { from };
            let sampled = to.saturating_sub(from);
            if sampled > 0 {
                self.sample
                    .add_json(bytes.get(from..).unwrap_or_default(), sampled)
                    .map_err(|fault| fault.behind(from))?;
            }
            self.sampled = self.sampled.saturating_add(sampled as u64);
            at = at.saturating_add(sampled as u64);
            known = to;
            group = group.saturating_add(1);
        }
        self.at = at.saturating_add(COUNTED_WHOLE);
        Ok(())
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

/// The place so many bytes behind `known`, or behind an escape that reaches beyond it; at most `end`.
#[inline(always)]
fn behind(bytes: &[u8], known: usize, more: u64, end: usize) -> usize {
    let place = known.saturating_add(usize::try_from(more).unwrap_or(usize::MAX));
    if place >= end { end } else { behind_escape(bytes, known, place).min(end) }
}
