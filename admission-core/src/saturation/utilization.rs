//! How full a pool is, as one number.

use serde::{Deserialize, Serialize};

use crate::view::{KvBlocks, RankReport};

/// What a worker counts of which nothing is known, and a pool without a live worker: exactly full.
const UNKNOWN: f64 = 1.0;

/// At which queue and which use of its KV cache a worker is exactly full.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UtilizationThresholds {
    /// Requests waiting in a rank's own queue, above 0.
    pub queue_depth_threshold: f64,
    /// Share of KV blocks in use, above 0 and at most 1.
    pub kv_cache_util_threshold: f64,
}

impl Default for UtilizationThresholds {
    fn default() -> Self {
        Self { queue_depth_threshold: 5.0, kv_cache_util_threshold: 0.8 }
    }
}

impl UtilizationThresholds {
    /// Names the first threshold that is out of its range.
    ///
    /// # Errors
    /// A sentence with the field, its value and what is allowed.
    pub fn validate(&self) -> Result<(), String> {
        let Self { queue_depth_threshold: depth, kv_cache_util_threshold: share } = *self;
        if !(depth.is_finite() && depth > 0.0) {
            return Err(format!("queue_depth_threshold is {depth}; it must be a finite number above 0"));
        }
        if !(share > 0.0 && share <= 1.0) {
            return Err(format!("kv_cache_util_threshold is {share}; it must be above 0 and at most 1"));
        }
        Ok(())
    }

    /// Saturation of a pool, given the ranks of each of its live workers: the mean over the workers, where 1 is full and
    /// more is overfull. Always finite.
    pub fn saturation<'a>(&self, live_workers: impl IntoIterator<Item = &'a [RankReport]>) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for ranks in live_workers {
            sum += self.worker_saturation(ranks);
            count += 1.0;
        }
        // A threshold close to nothing divides beyond what a number holds; that is the fullest there is, not unknown.
        if count > 0.0 { (sum / count).min(f64::MAX) } else { UNKNOWN }
    }

    /// The worse of queue and KV cache. Every rank has a queue of its own, so their mean is what the threshold is
    /// measured against. An engine that does not say how full its KV cache is has only its queue.
    fn worker_saturation(&self, ranks: &[RankReport]) -> f64 {
        if ranks.is_empty() {
            return UNKNOWN;
        }
        let waiting = ranks.iter().map(|rank| rank.waiting as f64).sum::<f64>() / ranks.len() as f64;
        let queue = waiting / self.queue_depth_threshold;
        let kv = KvBlocks::of(ranks).and_then(|kv| kv.used_share());
        kv.map_or(queue, |used| queue.max(used / self.kv_cache_util_threshold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_family = "wasm")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const RULE: fn() -> UtilizationThresholds = UtilizationThresholds::default;

    /// A rank of 100 blocks.
    fn rank(waiting: u64, used: u64) -> RankReport {
        RankReport { waiting, kv_used_blocks: Some(used), kv_total_blocks: Some(100), ..RankReport::default() }
    }

    fn of(workers: &[&[RankReport]]) -> f64 {
        RULE().saturation(workers.iter().copied())
    }

    #[test]
    fn golden_vectors_of_the_utilization_rule() {
        let (queued, half) = ([rank(5, 20)], [rank(0, 40)]);
        assert_eq!(of(&[&queued]), 1.0, "5 waiting at 5, 0.2 used at 0.8");
        assert_eq!(of(&[&half]), 0.5, "none waiting, 0.4 used at 0.8");
        assert_eq!(of(&[&queued, &half]), 0.75, "the mean of both");
        assert_eq!(of(&[&[]]), 1.0, "nothing known of the only worker");
        assert_eq!(of(&[]), 1.0, "no live worker");
    }

    #[test]
    fn more_than_full_is_not_cut_off() {
        assert_eq!(of(&[&[rank(50, 0)]]), 10.0);
        assert_eq!(of(&[&[rank(0, 100)]]), 1.25);
        assert_eq!(of(&[&[rank(50, 0)], &[rank(0, 0)]]), 5.0);
    }

    #[test]
    fn an_unknown_worker_counts_as_full_beside_others() {
        assert_eq!(of(&[&[], &[rank(0, 0)]]), 0.5);
    }

    #[test]
    fn queues_are_averaged_over_ranks_and_blocks_are_summed() {
        assert_eq!(of(&[&[rank(10, 0), rank(0, 0)]]), 1.0, "10 and 0 waiting are 5 a rank");
        let small = RankReport { kv_used_blocks: Some(300), kv_total_blocks: Some(300), ..RankReport::default() };
        assert_eq!(of(&[&[rank(0, 20), small]]), 1.0, "320 of 400 blocks at 0.8");
    }

    #[test]
    fn without_a_kv_number_only_the_queue_counts() {
        let silent = RankReport { waiting: 1, kv_total_blocks: Some(100), ..RankReport::default() };
        assert_eq!(of(&[std::slice::from_ref(&silent)]), 0.2);
        assert_eq!(of(&[&[silent, rank(1, 100)]]), 0.2, "one silent rank makes the worker's use unknown");
        let none = RankReport { kv_used_blocks: Some(0), kv_total_blocks: Some(0), ..RankReport::default() };
        assert_eq!(of(&[&[none]]), 0.0, "no blocks at all are no use of them");
    }

    #[test]
    fn the_thresholds_are_what_full_means() {
        let rule = UtilizationThresholds { queue_depth_threshold: 0.5, kv_cache_util_threshold: 1.0 };
        assert_eq!(rule.saturation([[rank(1, 0)].as_slice()]), 2.0);
        assert_eq!(rule.saturation([[rank(0, 100)].as_slice()]), 1.0);
        let tiny = UtilizationThresholds { queue_depth_threshold: f64::MIN_POSITIVE, ..RULE() };
        assert_eq!(tiny.saturation([[rank(u64::MAX, 0)].as_slice()]), f64::MAX);
    }

    #[test]
    fn thresholds_out_of_range_are_named() {
        assert_eq!(RULE().validate(), Ok(()));
        for depth in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let rule = UtilizationThresholds { queue_depth_threshold: depth, ..RULE() };
            assert!(rule.validate().unwrap_err().contains("queue_depth_threshold"), "{depth}");
        }
        for share in [0.0, -0.1, 1.01, f64::NAN] {
            let rule = UtilizationThresholds { kv_cache_util_threshold: share, ..RULE() };
            assert!(rule.validate().unwrap_err().contains("kv_cache_util_threshold"), "{share}");
        }
        assert_eq!(UtilizationThresholds { kv_cache_util_threshold: 1.0, ..RULE() }.validate(), Ok(()));
    }
}
