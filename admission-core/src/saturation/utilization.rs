//! How full a worker is by its queue and its KV cache.

use serde::{Deserialize, Serialize};

use crate::view::{KvBlocks, RankReport, kv_used_share};

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

    /// KV blocks in use at which a worker is full.
    pub(super) fn full_blocks(&self, ranks: &[RankReport]) -> Option<u64> {
        let total = KvBlocks::of(ranks)?.total.0;
        Some((total as f64 * self.kv_cache_util_threshold) as u64)
    }

    /// How full a worker is, 1 being full: the worse of queue and KV cache. Every rank has a queue of its own, so their mean is
    /// what the threshold is measured against. An engine that tells only one of the two is judged by that, and of one that
    /// tells neither nothing is known.
    pub(super) fn measured(&self, ranks: &[RankReport]) -> Option<f64> {
        if ranks.is_empty() {
            return None;
        }
        let waiting = ranks.iter().try_fold(0.0, |sum, rank| Some(sum + rank.waiting? as f64));
        let queue = waiting.map(|sum| sum / ranks.len() as f64 / self.queue_depth_threshold);
        let kv = kv_used_share(ranks).map(|used| used / self.kv_cache_util_threshold);
        match (queue, kv) {
            (Some(queue), Some(kv)) => Some(queue.max(kv)),
            (queue, kv) => queue.or(kv),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fullness, saturation};
    use super::*;
    use crate::view::Role;

    const RULE: fn() -> UtilizationThresholds = UtilizationThresholds::default;

    /// A rank of 100 blocks.
    fn rank(waiting: u64, used: u64) -> RankReport {
        RankReport {
            waiting: Some(waiting),
            kv_used_blocks: Some(used),
            kv_total_blocks: Some(100),
            ..RankReport::default()
        }
    }

    fn of(workers: &[&[RankReport]]) -> f64 {
        saturation(workers.iter().map(|ranks| (Role::Both, Fullness::new(RULE().measured(ranks), 1.0))))
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
        let small = RankReport {
            waiting: Some(0),
            kv_used_blocks: Some(300),
            kv_total_blocks: Some(300),
            ..RankReport::default()
        };
        assert_eq!(of(&[&[rank(0, 20), small]]), 1.0, "320 of 400 blocks at 0.8");
    }

    #[test]
    fn without_a_kv_number_only_the_queue_counts() {
        let silent = RankReport { waiting: Some(1), kv_total_blocks: Some(100), ..RankReport::default() };
        assert_eq!(of(&[std::slice::from_ref(&silent)]), 0.2);
        assert_eq!(of(&[&[silent, rank(1, 100)]]), 0.2, "one silent rank makes the worker's use unknown");
        let none = RankReport { kv_used_blocks: Some(0), kv_total_blocks: Some(0), ..RankReport::default() };
        assert_eq!(of(&[&[none]]), 1.0, "no blocks at all are no use of them, and no queue is told");
    }

    #[test]
    fn a_share_stands_in_for_blocks_and_without_a_queue_only_it_counts() {
        let share = |used| RankReport { kv_used_share: Some(used), ..RankReport::default() };
        assert_eq!(of(&[&[share(0.4)]]), 0.5);
        assert_eq!(of(&[&[share(0.2), share(0.6)]]), 0.5, "ranks of unknown size count alike");
        assert_eq!(of(&[&[RankReport { waiting: Some(5), ..share(0.4) }]]), 1.0, "the worse of both");
        assert_eq!(of(&[&[RankReport::default()]]), 1.0, "nothing is told");
    }

    #[test]
    fn the_thresholds_are_what_full_means() {
        let rule = UtilizationThresholds { queue_depth_threshold: 0.5, kv_cache_util_threshold: 1.0 };
        assert_eq!(rule.measured(&[rank(1, 0)]), Some(2.0));
        assert_eq!(rule.measured(&[rank(0, 100)]), Some(1.0));
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
