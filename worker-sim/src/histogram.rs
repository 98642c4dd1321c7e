//! A histogram as the metrics page shows it.

/// Counts per bucket, with their sum.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    bounds: Vec<f64>,
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Histogram {
    /// Empty, with these upper bounds in ascending order; the one at infinity comes by itself.
    pub(crate) fn new(bounds: Vec<f64>) -> Self {
        Self { counts: vec![0; bounds.len()], bounds, sum: 0.0, count: 0 }
    }

    /// vLLM's bounds for counts of tokens: 1, 2, 5, 10, … up to `max`.
    pub(crate) fn of_tokens(max: u32) -> Self {
        let decades = (0..).map(|exponent| 10_u64.pow(exponent));
        let bounds = decades.flat_map(|ten| [ten, 2 * ten, 5 * ten]).take_while(|bound| *bound <= u64::from(max));
        Self::new(bounds.map(|bound| bound as f64).collect())
    }

    /// vLLM's bounds for the time to the first token, in seconds.
    pub(crate) fn of_first_token_seconds() -> Self {
        Self::new(vec![
            0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
            80.0, 160.0, 640.0, 2560.0,
        ])
    }

    pub(crate) fn observe(&mut self, value: f64) {
        // What is above all bounds is in the count alone.
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum += value;
        self.count += 1;
    }

    /// Pairs of upper bound and how many were at most that.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        self.bounds.iter().zip(&self.counts).scan(0, |below, (bound, count)| {
            *below += count;
            Some((*bound, *below))
        })
    }

    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_every_bucket_at_or_above_it() {
        let mut histogram = Histogram::of_tokens(5);
        for value in [1.0, 2.0, 5.0, 5.1] {
            histogram.observe(value);
        }
        assert_eq!(histogram.cumulative().collect::<Vec<_>>(), [(1.0, 1), (2.0, 2), (5.0, 3)]);
        assert_eq!((histogram.count(), histogram.sum()), (4, 13.1));
    }
}
