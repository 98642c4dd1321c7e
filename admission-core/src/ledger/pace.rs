//! How fast a lane moves while somebody waits for it.

use crate::record::{Reader, Writer};
use crate::units::Millis;

/// Time over starts, both fading: starts come in bursts, as the steps of the engines end, of which a mean of single gaps
/// would see the last alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pace {
    micros: u64,
    /// In thousandths.
    starts: u64,
    /// Starts ever seen, as far as it matters.
    seen: u16,
}

/// What is this old counts half, or as old as so many starts, if those took longer: a lane that moves seldom is to be judged by
/// more than its last pause.
const FADING: (Millis, u64) = (Millis(10_000), 16);

/// Starts from which a lane is judged by them alone.
const ENOUGH: u16 = 8;

impl Pace {
    /// Time passes without a start.
    pub(super) fn after(self, pause: Millis) -> Self {
        let (least, starts) = FADING;
        // Microseconds over thousandths of starts are milliseconds.
        let half = least.0.max(starts.saturating_mul(self.micros / self.starts.max(1)));
        let fade = |value: u64| {
            let faded = u128::from(value) * u128::from(half) / (u128::from(half) + u128::from(pause.0));
            u64::try_from(faded).unwrap_or(u64::MAX)
        };
        let micros = fade(self.micros).saturating_add(pause.0.saturating_mul(1_000));
        Self { micros, starts: fade(self.starts), ..self }
    }

    pub(super) fn start(&mut self, pause: Millis) {
        let faded = self.after(pause);
        *self = Self { starts: faded.starts.saturating_add(1_000), seen: self.seen.saturating_add(1), ..faded };
    }

    /// Mean time between starts in microseconds. `guess` is what the pool's own pace suggests; it counts as a few starts,
    /// fewer with each that is seen. `None` without either.
    pub(super) fn mean_us(self, guess: Option<u64>) -> Option<u64> {
        let guessed = u64::from(ENOUGH.saturating_sub(self.seen).div_ceil(2));
        if guessed > 0 && guess.is_none() {
            return None;
        }
        let micros = self.micros.saturating_add(guess.unwrap_or_default().saturating_mul(guessed));
        let starts = self.starts.saturating_add(guessed * 1_000).max(1);
        Some(u64::try_from(u128::from(micros) * 1_000 / u128::from(starts)).unwrap_or(u64::MAX))
    }

    /// How long until so many start.
    pub(super) fn time_for(self, count: u64, guess: Option<u64>) -> Option<Millis> {
        let micros = u128::from(self.mean_us(guess)?) * u128::from(count);
        Some(Millis(u64::try_from(micros.div_ceil(1_000)).unwrap_or(u64::MAX)))
    }

    pub(super) fn write(self, out: &mut Writer) {
        out.u64(self.micros);
        out.u64(self.starts);
        out.u16(self.seen);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { micros: reader.u64()?, starts: reader.u64()?, seen: reader.u16()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(wait: Option<Millis>, expected: u64) {
        let wait = wait.expect("a prediction").0;
        assert!((expected * 9 / 10..=expected * 11 / 10).contains(&wait), "{wait} ms instead of {expected}");
    }

    #[test]
    fn bursts_count_as_what_they_are_in_the_mean() {
        let mut pace = Pace::default();
        for start in 0..200 {
            // Four at the end of every second.
            pace.start(Millis(if start % 4 == 0 { 1_000 } else { 0 }));
        }
        within(pace.time_for(400, None), 100_000);
        within(pace.after(Millis(900)).time_for(400, None), 108_000);
        assert!(pace.after(Millis(100_000)).time_for(1, None) > Some(Millis(20_000)), "it has all but stopped");
    }

    #[test]
    fn what_has_not_been_seen_is_guessed_and_corrected_by_what_does_not_happen() {
        assert_eq!(Pace::default().time_for(1, None), None);
        within(Pace::default().time_for(100, Some(40_000)), 4_000);
        within(Pace::default().after(Millis(1_000)).time_for(100, Some(40_000)), 29_000);
        let mut slow = Pace::default();
        (0..ENOUGH).for_each(|_| slow.start(Millis(500)));
        assert_eq!(slow.time_for(9, Some(1)), slow.time_for(9, None), "seen often enough");
    }

    #[test]
    fn no_wait_is_too_long_for_it() {
        let mut pace = Pace::default();
        (0..ENOUGH).for_each(|_| pace.start(Millis(u64::MAX)));
        assert_eq!(pace.after(Millis(u64::MAX)).time_for(u64::MAX, Some(u64::MAX)), Some(Millis(u64::MAX)));
    }
}
