//! How fast what is held comes back.

use crate::units::Millis;

/// How long requests are held, as a moving mean. With `n` of them in flight one ends every `mean ÷ n`, whoever comes or
/// stays away in the meantime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drain {
    pub(super) mean_us: u64,
}

/// One event moves the mean by this part of its distance.
const WEIGHT: u64 = 8;

impl Drain {
    /// How long until `count` of those in flight have ended; `None` before one has.
    #[must_use]
    pub fn time_for(&self, count: u64, in_flight: u64) -> Option<Millis> {
        let whole = self.mean_us.saturating_mul(count) / in_flight.max(1);
        (self.mean_us > 0).then(|| Millis(whole.div_ceil(1_000)))
    }

    pub(super) fn note(&mut self, held_for: Millis) {
        self.mean_us = moved(self.mean_us, held_for);
    }
}

/// A moving mean in microseconds after one more sample.
fn moved(mean_us: u64, sample: Millis) -> u64 {
    let sample_us = sample.0.saturating_mul(1_000).max(1);
    match mean_us {
        0 => sample_us,
        mean => mean.saturating_sub(mean / WEIGHT).saturating_add(sample_us / WEIGHT).max(1),
    }
}
