//! Text that is counted as a whole while it is short, and by samples from some length on.
//!
//! The text of a request, as it is written, is cut into groups of blocks. Of each group one block is counted; where it stands
//! follows from a seed that callers cannot know, so nothing can be written where nobody looks. What the blocks say is
//! scaled to all that was passed over. In the rest only the end of the string is looked for.
//!
//! How far an estimate is off depends on how many blocks are counted, so that the longer a text is the fewer of its blocks
//! need to be: from some length on groups are larger.

use std::ops::Range;

use super::Features;
use super::block::BLOCK;
use super::escape::{Fault, LONGEST_ESCAPE, behind_escape};

/// Bytes of text that are counted before any are passed over: prompts of some thousand tokens.
pub const COUNTED_WHOLE: u64 = 16 * 1_024;

const BLOCK_BYTES: u64 = BLOCK as u64;
const BLOCK_BITS: u32 = BLOCK.trailing_zeros();

/// From where to where text is cut into groups of so many blocks, as a power of two.
#[derive(Clone, Copy)]
struct Stage {
    begins: u64,
    ends: u64,
    blocks: u32,
}

const STAGES: [Stage; 2] = [
    Stage { begins: COUNTED_WHOLE, ends: 128 * 1_024, blocks: 3 },
    Stage { begins: 128 * 1_024, ends: u64::MAX, blocks: 4 },
];

/// Text of a request, some of which may be known by samples only.
#[derive(Clone, Debug, Default)]
pub struct Text {
    /// Of which blocks are counted; all are where it is absent.
    seed: Option<u64>,
    /// Bytes of strings so far, as they are written.
    at: u64,
    /// What was counted as a whole.
    whole: Features,
    /// Text of each stage, once there is any: most texts end before, and every request has several.
    stages: Option<Box<[Sampled; STAGES.len()]>>,
}

/// Text of one stage.
#[derive(Clone, Debug, Default)]
struct Sampled {
    /// What was counted in samples.
    features: Features,
    /// Bytes of samples and of what was passed over, as they are written.
    counted: u64,
    passed: u64,
    /// Where in the text the next sample begins, if that is not behind.
    next: u64,
}

impl Text {
    /// Text that is sampled by this seed, a random number that callers cannot know; or counted as a whole without one.
    pub fn new(seed: Option<u64>) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Counts the content of a JSON string, or a part of it: the first `length` of these bytes, in which each escape is whole.
    /// What is passed over is not looked at. How a body is cut into chunks changes nothing, since which bytes are counted
    /// depends on nothing but the seed and how much stands before them.
    ///
    /// # Errors
    /// The first escape that is none.
    pub fn add_json(&mut self, bytes: &[u8], length: usize) -> Result<(), Fault> {
        let Some(seed) = self.seed else { return self.whole.add_json(bytes, length) };
        let mut known = 0_usize;
        if self.at < COUNTED_WHOLE {
            known = behind(bytes, 0, moved(0, COUNTED_WHOLE.saturating_sub(self.at)), length);
            self.whole.add_json(bytes, known)?;
            self.at = self.at.saturating_add(known as u64);
        }
        if known >= length {
            return Ok(());
        }
        for (stage, sampled) in STAGES.iter().zip(self.stages.get_or_insert_default().iter_mut()) {
            if known < length && self.at < stage.ends {
                let end = behind(bytes, known, moved(known, stage.ends.saturating_sub(self.at)), length);
                sampled.add_json(stage, seed, self.at, bytes, known..end)?;
                self.at = self.at.saturating_add(end.saturating_sub(known) as u64);
                known = end;
            }
        }
        Ok(())
    }

    /// Counts a character that was written as an escape of two bytes.
    pub fn add_escaped(&mut self, character: u8) {
        self.add_escape(2, |features| features.add_bytes(&[character]));
    }

    /// Counts a character that was written as an escape by number.
    pub fn add_utf16(&mut self, unit: u16) {
        self.add_escape(LONGEST_ESCAPE as u64, |features| features.add_utf16(unit));
    }

    /// Counts bytes that stand in no string, or in one that is short: as a whole.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.whole.add_bytes(bytes);
    }

    /// Ends a string: nothing stands before the next one.
    pub fn end_string(&mut self) {
        self.whole.end_string();
        self.stages.as_deref_mut().into_iter().flatten().for_each(|stage| stage.features.end_string());
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
        let Some(others) = &other.stages else { return };
        for (stage, more) in self.stages.get_or_insert_default().iter_mut().zip(others.iter()) {
            stage.features.add(&more.features);
            stage.counted = stage.counted.saturating_add(more.counted);
            stage.passed = stage.passed.saturating_add(more.passed);
        }
    }

    /// What has been added since it was `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut stages = self.stages.clone();
        let former = before.stages.as_deref().into_iter().flatten();
        for (stage, before) in stages.as_deref_mut().into_iter().flatten().zip(former) {
            stage.features = stage.features.since(&before.features);
            stage.counted = stage.counted.saturating_sub(before.counted);
            stage.passed = stage.passed.saturating_sub(before.passed);
        }
        // Why the stages may keep where their next samples begin: nothing is counted on a difference.
        Self { seed: self.seed, at: 0, whole: self.whole.since(&before.whole), stages }
    }

    /// Its bytes, of what was passed over as they are written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.stages.as_deref().into_iter().flatten().fold(self.whole.bytes(), |bytes, stage| {
            bytes.saturating_add(stage.features.bytes()).saturating_add(stage.passed)
        })
    }

    /// What was counted, and for what was passed over what its samples say of it; where there are none, what `like` says, a
    /// text that is much like it.
    #[must_use]
    pub fn features(&self, like: &Features) -> Features {
        let mut all = self.whole.clone();
        for stage in self.stages.as_deref().into_iter().flatten() {
            if stage.counted > 0 {
                all.add(&stage.features);
            }
            if stage.passed > 0 {
                let (like, of) =
                    if stage.counted > 0 { (&stage.features, stage.counted) } else { (like, like.bytes()) };
                all.add(&like.scaled(stage.passed, of));
            }
        }
        all
    }

    /// All of its features by itself.
    #[must_use]
    pub fn own_features(&self) -> Features {
        self.features(&self.whole)
    }

    fn add_escape(&mut self, written: u64, add: impl FnOnce(&mut Features)) {
        let at = self.at;
        self.at = at.saturating_add(written);
        let Some(seed) = self.seed.filter(|_| at >= COUNTED_WHOLE) else {
            return add(&mut self.whole);
        };
        let mut stages = STAGES.iter().zip(self.stages.get_or_insert_default().iter_mut());
        let Some((stage, sampled)) = stages.find(|(stage, _)| at < stage.ends) else { return };
        sampled.next = stage.next(seed, at, sampled.next);
        if sampled.next <= at {
            add(&mut sampled.features);
            sampled.counted = sampled.counted.saturating_add(written);
        } else {
            sampled.passed = sampled.passed.saturating_add(written);
        }
    }
}

impl Stage {
    /// Where in the text the sample of a group begins.
    #[inline(always)]
    const fn sample(&self, seed: u64, group: u64) -> u64 {
        let begins = self.begins.wrapping_add(group << self.blocks << BLOCK_BITS);
        let place = mixed(seed.wrapping_add(begins)) & lowest(self.blocks);
        begins.wrapping_add(place << BLOCK_BITS)
    }

    /// In which group something of the text stands.
    #[inline(always)]
    const fn group(&self, at: u64) -> u64 {
        at.saturating_sub(self.begins) >> BLOCK_BITS >> self.blocks
    }

    /// Where the first sample begins that ends behind a place; `known` if that does.
    #[inline(always)]
    fn next(&self, seed: u64, at: u64, known: u64) -> u64 {
        let ends_behind = |sample: &u64| sample.saturating_add(BLOCK_BYTES) > at;
        let group = self.group(at);
        let of_group = || Some(self.sample(seed, group)).filter(ends_behind);
        Some(known).filter(ends_behind).or_else(of_group).unwrap_or_else(|| self.sample(seed, group.saturating_add(1)))
    }
}

impl Sampled {
    /// Counts what is in samples of a part of some bytes, before which stand `at` bytes of text.
    #[inline(always)]
    fn add_json(&mut self, stage: &Stage, seed: u64, at: u64, bytes: &[u8], part: Range<usize>) -> Result<(), Fault> {
        let place = |in_text: u64| moved(part.start, in_text.saturating_sub(at));
        let ends = at.saturating_add(part.len() as u64);
        let (mut known, mut counted) = (part.start, 0_usize);
        let mut sample = stage.next(seed, at, self.next);
        while sample < ends {
            // Worked out before it is needed, while the sample is counted.
            let following = stage.sample(seed, stage.group(sample).saturating_add(1));
            let sample_ends = sample.saturating_add(BLOCK_BYTES);
            // An escape belongs where it begins.
            let from = behind(bytes, known, place(sample), part.end);
            known = behind(bytes, from, place(sample_ends), part.end);
            if from < known {
                let rest = bytes.get(from..).unwrap_or_default();
                self.features.add_json(rest, known.saturating_sub(from)).map_err(|fault| fault.behind(from))?;
                counted = counted.saturating_add(known.saturating_sub(from));
            }
            if sample_ends > ends {
                break;
            }
            sample = following;
        }
        self.next = sample;
        self.counted = self.counted.saturating_add(counted as u64);
        self.passed = self.passed.saturating_add(part.len().saturating_sub(counted) as u64);
        Ok(())
    }
}

/// The lowest so many bits.
const fn lowest(bits: u32) -> u64 {
    (1_u64 << bits).wrapping_sub(1)
}

/// A place so many bytes further on.
fn moved(place: usize, bytes: u64) -> usize {
    place.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// A place, or where an escape ends that reaches beyond it; at most `end`. Nothing reaches beyond `known`.
#[inline(always)]
fn behind(bytes: &[u8], known: usize, place: usize, end: usize) -> usize {
    if place >= end {
        end
    } else if place <= known {
        known
    } else {
        behind_escape(bytes, known, place).min(end)
    }
}

/// The finalizer of SplitMix64, from which nobody tells numbers that follow each other.
#[inline(always)]
const fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
