//! What samples say.

use serde::Serialize;

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
    /// Of samples in any order; all zero when there are none.
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
