//! Sizes of requests.

use std::f64::consts::TAU;
use std::ops::RangeInclusive;

/// A distribution of sizes.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// Every number in the range is equally likely.
    Even(RangeInclusive<u32>),
    /// Logarithms are distributed normally: half of all sizes are below the median, and a few are many times as large.
    HeavyTail {
        /// Half of all are below.
        median: u32,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// The largest size; larger ones are cut to it.
        most: u32,
    },
}

impl From<RangeInclusive<u32>> for Sizes {
    fn from(range: RangeInclusive<u32>) -> Self {
        Self::Even(range)
    }
}

impl Sizes {
    /// The mean of all; of a heavy tail what it would be without the cut.
    pub fn mean(&self) -> f64 {
        match self {
            Self::Even(range) => f64::from(range.start() + range.end()) / 2.0,
            Self::HeavyTail { median, sigma, .. } => f64::from(*median) * (sigma * sigma / 2.0).exp(),
        }
    }

    /// True where there is a size to draw.
    pub(super) fn are_some(&self) -> bool {
        match self {
            Self::Even(range) => !range.is_empty(),
            Self::HeavyTail { median, sigma, most } => (1..=*most).contains(median) && *sigma >= 0.0,
        }
    }

    /// Draws one, at least 1 where the tail is heavy.
    pub(super) fn draw(&self, random: &mut fastrand::Rng) -> u32 {
        match self {
            Self::Even(range) => random.u32(range.clone()),
            Self::HeavyTail { median, sigma, most } => {
                let size = f64::from(*median) * (sigma * normal(random)).exp();
                // Why the cast: beyond u32 it saturates, and the cut comes after it.
                (size.round() as u32).clamp(1, *most)
            }
        }
    }
}

/// Draws from the standard normal distribution (Box and Muller, 1958).
fn normal(random: &mut fastrand::Rng) -> f64 {
    // 1 - u lies in (0, 1], so its logarithm is finite.
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (TAU * random.f64()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heavy_tail_has_its_median_and_its_mean_and_is_cut() {
        let mut random = fastrand::Rng::with_seed(3);
        let sizes = Sizes::HeavyTail { median: 1_000, sigma: 0.8, most: 20_000 };
        let mut drawn: Vec<u32> = (0..20_000).map(|_| sizes.draw(&mut random)).collect();
        drawn.sort_unstable();
        let median = drawn[drawn.len() / 2];
        let mean = drawn.iter().map(|size| f64::from(*size)).sum::<f64>() / drawn.len() as f64 / sizes.mean();
        assert!((970..=1_030).contains(&median), "{median}");
        assert!((0.97..=1.03).contains(&mean), "{mean}");
        let cut = Sizes::HeavyTail { median: 10, sigma: 3.0, most: 12 };
        assert!((0..1_000).all(|_| (1..=12).contains(&cut.draw(&mut random))));
    }
}
