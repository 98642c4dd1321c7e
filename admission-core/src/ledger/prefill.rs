//! Prompts that workers are reading, and how fast they read.

use super::{Ledger, TallyKey};
use crate::hash;
use crate::members::Members;
use crate::record::{Reader, Writer};
use crate::units::{Millis, Tokens};

/// Requests from which the rate is known: four, less what has faded.
const ENOUGH: f64 = 3.5;

/// Prompt tokens over which what was measured fades to a third.
const MEMORY: f64 = 400_000.0;

/// Part of it that one prompt makes fade at most, so that a few of the longest are enough too.
const MOST_FADING: f64 = 0.1;

/// Spread of the work, as a part of its mean, from which the time that it takes can be distinguished from what every request takes.
const LEAST_SPREAD: f64 = 0.25;

/// Multiple of the time expected that a request counts for at most.
const MOST_LATE: f64 = 3.0;

/// Mean work from which what every request takes besides is little.
const MUCH_WORK: f64 = 1_000.0;

/// Most by which a token may prove quicker than the mean with all that a request takes besides.
const MOST_QUICKER: f64 = 20.0;

impl TallyKey {
    /// Prompt tokens that workers are reading.
    pub(crate) fn prompts() -> Self {
        Self(hash::stable(b"prompts"))
    }

    /// Prompt tokens that the workers of a pool are reading whose requests the proxy has distributed by itself.
    pub(crate) fn prompts_sent() -> Self {
        Self(hash::stable(b"prompts/sent"))
    }

    /// Prompt tokens that one worker is reading.
    pub(crate) fn prompts_at(worker: Self) -> Self {
        Self(hash::spread(worker.0 ^ Self::prompts().0))
    }

    /// Prompts of lanes that a goal binds.
    pub(crate) fn bound_prompts() -> Self {
        Self(hash::stable(b"prompts/bound"))
    }
}

impl Ledger {
    /// Prompts of lanes that a goal binds, which have been sent to workers whose answers have not begun.
    #[must_use]
    pub fn bound_prompts(&self, members: &Members) -> u64 {
        self.tallied(TallyKey::bound_prompts(), members)
    }

    /// Prompt tokens that have been sent to workers whose answers have not begun.
    #[must_use]
    pub fn prompts_being_read(&self, members: &Members) -> Tokens {
        Tokens(self.tallied(TallyKey::prompts(), members))
    }

    /// Prompt tokens that were ever read, in order to tell what was read in a time.
    #[must_use]
    pub fn prompts_read(&self) -> u64 {
        self.reading.read
    }

    /// Counts a prompt as read.
    pub fn count_prompt_read(&mut self, tokens: Tokens) {
        self.reading.read = self.reading.read.saturating_add(tokens.0);
    }

    /// Notes the time from a request's start to its first token, in which its worker has read so many prompt tokens.
    pub fn note_prompt_read(&mut self, work: Tokens, time: Millis) {
        self.reading.note(work.0 as f64, time.0 as f64);
    }

    /// Time in which one worker reads so many tokens; `None` before enough was measured.
    #[must_use]
    pub fn time_to_read(&self, tokens: Tokens) -> Option<Millis> {
        self.reading.per_token().map(|per_token| Millis((tokens.0 as f64 * per_token).round() as u64))
    }

    /// Prompt tokens that one worker reads in a second; `None` before enough was measured.
    #[must_use]
    pub fn tokens_read_in_a_second(&self) -> Option<u64> {
        self.reading.per_token().map(|per_token| (1_000.0 / per_token) as u64)
    }
}

/// Prompt tokens read, and the sums of a regression of the time to the first token on the prompt tokens read in it, all fading.
///
/// Why a line and not a mean: what every request takes, whatever its prompt is, would make workers look as slow as they are with the shortest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Reading {
    read: u64,
    count: f64,
    work: f64,
    time: f64,
    work_squared: f64,
    work_by_time: f64,
}

impl Reading {
    fn note(&mut self, work: f64, time: f64) {
        if work < 1.0 {
            return;
        }
        // Why no more: one request that waited for something else would turn the line, for thousands of others.
        let most = self.expected(work).map_or(f64::INFINITY, |expected| expected * MOST_LATE);
        let time = time.max(1.0).min(most);
        let keep = 1.0 - (work / MEMORY).min(MOST_FADING);
        self.count = self.count * keep + 1.0;
        self.work = self.work * keep + work;
        self.time = self.time * keep + time;
        self.work_squared = self.work_squared * keep + work * work;
        self.work_by_time = self.work_by_time * keep + work * time;
    }

    /// Time of a request in which so much is read, by what was measured.
    fn expected(&self, work: f64) -> Option<f64> {
        let per_token = self.per_token()?;
        let besides = ((self.time - per_token * self.work) / self.count).max(0.0);
        Some(besides + per_token * work)
    }

    /// Milliseconds for each token: the slope of the line; the mean where all were much the same, and long.
    fn per_token(&self) -> Option<f64> {
        if self.count < ENOUGH {
            return None;
        }
        let (mean, squared) = (self.time / self.work, self.work * self.work);
        let spread = self.count * self.work_squared - squared;
        if spread < squared * LEAST_SPREAD * LEAST_SPREAD {
            return (self.work >= self.count * MUCH_WORK).then_some(mean);
        }
        let slope = (self.count * self.work_by_time - self.work * self.time) / spread;
        Some(slope.clamp(mean / MOST_QUICKER, mean))
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.u64(self.read);
        for sum in [self.count, self.work, self.time, self.work_squared, self.work_by_time] {
            out.u64(sum.to_bits());
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let read = reader.u64()?;
        // Why checked: the record outlives builds, and a sum that is no number would stay one.
        let mut sum = || reader.u64().map(f64::from_bits).filter(|sum| sum.is_finite() && *sum >= 0.0);
        Some(Self { read, count: sum()?, work: sum()?, time: sum()?, work_squared: sum()?, work_by_time: sum()? })
    }
}

impl Eq for Reading {}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(found: Option<u64>, expected: u64) {
        let found = found.expect("a rate");
        assert!((expected * 9 / 10..=expected * 11 / 10).contains(&found), "{found} instead of {expected}");
    }

    #[test]
    fn a_rate_is_known_from_four_requests_and_leaves_out_what_each_takes_besides() {
        let mut ledger = Ledger::default();
        for (work, time) in [(20, 21), (2_000, 120), (20, 21)] {
            ledger.note_prompt_read(Tokens(work), Millis(time));
        }
        assert_eq!(ledger.tokens_read_in_a_second(), None);
        ledger.note_prompt_read(Tokens(4_000), Millis(220));
        within(ledger.tokens_read_in_a_second(), 20_000);
        for _ in 0..10_000 {
            ledger.note_prompt_read(Tokens(20), Millis(21));
        }
        within(ledger.tokens_read_in_a_second(), 20_000);
        assert_eq!(ledger.time_to_read(Tokens(10_000)).map(|time| time.0 / 50), Some(10));
    }

    #[test]
    fn long_prompts_of_one_size_tell_the_mean_and_short_ones_nothing() {
        let mut ledger = Ledger::default();
        (0..9).for_each(|_| ledger.note_prompt_read(Tokens(40), Millis(30)));
        assert_eq!(ledger.tokens_read_in_a_second(), None);
        let mut ledger = Ledger::default();
        (0..9).for_each(|_| ledger.note_prompt_read(Tokens(1_000), Millis(100)));
        within(ledger.tokens_read_in_a_second(), 10_000);
    }

    #[test]
    fn workers_that_become_slower_are_known_after_some_prompts() {
        let mut ledger = Ledger::default();
        for rate in [20, 5] {
            for at in 1..400 {
                let work = 1_000 * (1 + at % 4);
                ledger.note_prompt_read(Tokens(work), Millis(20 + work / rate));
            }
            within(ledger.tokens_read_in_a_second(), rate * 1_000);
        }
    }

    #[test]
    fn one_request_that_waited_for_something_else_changes_little() {
        for (work, time) in [(60, 10_000), (350, 2_000), (4_000, 30_000)] {
            let mut ledger = Ledger::default();
            for at in 0..200 {
                let work = 50 + at * 37 % 300;
                ledger.note_prompt_read(Tokens(work), Millis(20 + work / 20));
            }
            ledger.note_prompt_read(Tokens(work), Millis(time));
            let after = ledger.tokens_read_in_a_second().expect("a rate");
            assert!((6_000..32_000).contains(&after), "{after} after {time} ms for {work}");
        }
    }

    #[test]
    fn nothing_measured_makes_a_rate_that_is_no_number() {
        let mut ledger = Ledger::default();
        for (work, time) in [(0, 0), (u64::MAX, 0), (1, u64::MAX), (u64::MAX, u64::MAX), (1, 0)] {
            (0..9).for_each(|_| ledger.note_prompt_read(Tokens(work), Millis(time)));
            let _ = ledger.time_to_read(Tokens(u64::MAX));
        }
        assert!(ledger.tokens_read_in_a_second().is_some());
    }
}
