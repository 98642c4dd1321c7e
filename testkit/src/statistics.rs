//! Statistics of samples: durations in a histogram, and few values of any sign by their order.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Significant digits that a histogram keeps of a duration.
const DIGITS: u8 = 4;

/// Longest duration that a histogram distinguishes from longer ones.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Durations of one kind, each to four significant digits of its nanoseconds.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        // Why: four digits are within the library's range of 0 to 5, so this cannot fail; without samples it is empty.
        Self(Histogram::new(DIGITS).unwrap_or_else(|error| unreachable!("{DIGITS} digits: {error}")))
    }
}

impl Times {
    /// Adds a duration.
    pub fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.min(LONGEST).as_nanos()).unwrap_or(u64::MAX);
        // Why: a histogram that resizes itself takes whatever is no longer than the longest; one that saturates would not grow.
        self.0.record(nanos).unwrap_or_else(|error| unreachable!("{time:?}: {error}"));
    }

    /// Adds all durations of another one.
    pub fn add(&mut self, other: &Self) {
        // Why: a histogram that resizes itself takes whatever another of the same digits holds.
        self.0.add(&other.0).unwrap_or_else(|error| unreachable!("{error}"));
    }

    /// Number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The smallest duration that a share of all do not exceed; none where there are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        // Why: the histogram names the upper end of a bucket, which may lie above the largest sample.
        let nanos = self.0.value_at_quantile(share).min(self.0.max());
        (!self.0.is_empty()).then(|| Duration::from_nanos(nanos))
    }

    /// The quantile in milliseconds.
    #[must_use]
    pub fn millis(&self, share: f64) -> Option<f64> {
        self.quantile(share).map(|time| time.as_secs_f64() * 1e3)
    }

    /// The quantile in microseconds.
    #[must_use]
    pub fn micros(&self, share: f64) -> Option<f64> {
        self.quantile(share).map(|time| time.as_secs_f64() * 1e6)
    }
}

impl FromIterator<Duration> for Times {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        let mut all = Self::default();
        times.into_iter().for_each(|time| all.record(time));
        all
    }
}

/// The middle of some samples and how far they lie apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Half of the samples are not above it.
    pub median: f64,
    /// A quarter of them is not above this.
    pub lower_quartile: f64,
    /// Three quarters of them are not above this.
    pub upper_quartile: f64,
    /// How many there are.
    pub samples: usize,
}

impl Summary {
    /// Summary of samples in any order, which may be negative as differences are; all zero when there are none.
    #[must_use]
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share| quantile(&sorted, share).unwrap_or_default();
        Self { median: at(0.5), lower_quartile: at(0.25), upper_quartile: at(0.75), samples: sorted.len() }
    }

    /// Distance of the quartiles.
    #[must_use]
    pub fn spread(&self) -> f64 {
        self.upper_quartile - self.lower_quartile
    }
}

/// The sample below which a share of them lies, between two neighbours in proportion; `None` when there are none. They must
/// be sorted.
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = share.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(below + (above - below) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_durations_are_samples() {
        let all: Times = (1..=100).map(Duration::from_millis).collect();
        for (share, millis) in [(0.5, 50.0), (0.95, 95.0), (1.0, 100.0)] {
            let found = all.millis(share).unwrap();
            assert!((found - millis).abs() / millis < 1e-4, "{share}: {found}");
        }
        let mut one = Times::default();
        assert_eq!((one.quantile(0.5), one.count()), (None, 0));
        one.record(Duration::from_micros(1_500));
        assert!((one.micros(0.99).unwrap() - 1_500.0).abs() < 0.2 && one.count() == 1, "{one:?}");
        one.add(&all);
        assert_eq!(one.count(), 101);
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        let sorted = [1.0, 2.0, 4.0, 8.0];
        assert_eq!(quantile(&sorted, 0.0), Some(1.0));
        assert_eq!(quantile(&sorted, 0.5), Some(3.0));
        assert_eq!(quantile(&sorted, 1.0), Some(8.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn a_summary_does_not_mind_the_order_or_one_stray() {
        let summary = Summary::of(&[5.0, 1_000.0, 3.0, 4.0, 2.0]);
        assert_eq!((summary.median, summary.lower_quartile, summary.upper_quartile), (4.0, 3.0, 5.0));
        assert_eq!((summary.spread(), summary.samples), (2.0, 5));
        assert_eq!(Summary::of(&[]), Summary::default());
    }
}
