//! When a worker counts as busy, and how full a pool is.
//!
//! **Busy rule**, [`BusyThresholds`]: a rank is busy when its KV blocks in use exceed a share of its total, or its prefill tokens exceed a number, or a
//! share of the most it batches. Every comparison is strict. A worker is busy only when **all** of its ranks are.
//!
//! **Utilization rule**, [`UtilizationThresholds`]: a live worker is as full as the worse of its mean queue against a depth
//! and its KV blocks in use against a share; a pool is as full as its live workers on average. 1 is full, and there may be
//! more. A worker of which nothing is known is full, and so is a pool without a live worker.

use serde::{Deserialize, Serialize};

use crate::view::RankReport;

mod utilization;

pub use utilization::UtilizationThresholds;

/// Taken for a worker that does not say how many tokens it batches at most: large enough that no share of it binds.
pub const UNKNOWN_MAX_NUM_BATCHED_TOKENS: u64 = 10_000_000;

/// Above which a rank counts as busy; a threshold that is not set never binds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BusyThresholds {
    /// Share of KV blocks in use, 0 to 1.
    pub active_decode_blocks_threshold: Option<f64>,
    /// Prompt tokens waiting for or in prefill.
    pub active_prefill_tokens_threshold: Option<u64>,
    /// The same as a share (≥ 0, may exceed 1) of the most tokens the worker batches in one step.
    pub active_prefill_tokens_threshold_frac: Option<f64>,
}

impl BusyThresholds {
    /// Names the first threshold that is out of its range.
    ///
    /// # Errors
    /// A sentence with the field, its value and what is allowed.
    pub fn validate(&self) -> Result<(), String> {
        if let Some(share) = self.active_decode_blocks_threshold
            && !(0.0..=1.0).contains(&share)
        {
            return Err(format!("active_decode_blocks_threshold is {share}; it must be between 0 and 1"));
        }
        if let Some(share) = self.active_prefill_tokens_threshold_frac
            && !(share.is_finite() && share >= 0.0)
        {
            return Err(format!(
                "active_prefill_tokens_threshold_frac is {share}; it must be a finite number of at least 0"
            ));
        }
        Ok(())
    }

    /// Whether every rank is busy. A worker with no rank is not: nothing is known of it.
    pub fn worker_is_busy(&self, ranks: &[RankReport], max_num_batched_tokens: Option<u64>) -> bool {
        !ranks.is_empty() && ranks.iter().all(|rank| self.rank_is_busy(rank, max_num_batched_tokens))
    }

    fn rank_is_busy(&self, rank: &RankReport, max_num_batched_tokens: Option<u64>) -> bool {
        self.kv_is_busy(rank) || self.prefill_is_busy(rank, max_num_batched_tokens)
    }

    fn kv_is_busy(&self, rank: &RankReport) -> bool {
        let (Some(share), Some(used), Some(total)) =
            (self.active_decode_blocks_threshold, rank.kv_used_blocks, rank.kv_total_blocks)
        else {
            return false;
        };
        total > 0 && used as f64 > share * total as f64
    }

    fn prefill_is_busy(&self, rank: &RankReport, max_num_batched_tokens: Option<u64>) -> bool {
        let Some(tokens) = rank.prefill_tokens else { return false };
        let batched = max_num_batched_tokens.unwrap_or(UNKNOWN_MAX_NUM_BATCHED_TOKENS);
        let over_number = self.active_prefill_tokens_threshold.is_some_and(|limit| tokens > limit);
        let over_share =
            self.active_prefill_tokens_threshold_frac.is_some_and(|share| tokens > (share * batched as f64) as u64);
        over_number || over_share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_family = "wasm")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn rank(used: u64, total: u64, prefill: u64) -> RankReport {
        RankReport {
            kv_used_blocks: Some(used),
            kv_total_blocks: Some(total),
            prefill_tokens: Some(prefill),
            ..RankReport::default()
        }
    }

    fn thresholds(share: f64, tokens: u64) -> BusyThresholds {
        BusyThresholds {
            active_decode_blocks_threshold: Some(share),
            active_prefill_tokens_threshold: Some(tokens),
            active_prefill_tokens_threshold_frac: None,
        }
    }

    #[test]
    fn golden_vectors_of_the_busy_rule() {
        let rule = thresholds(0.85, 10_000);
        assert!(rule.worker_is_busy(&[rank(87, 100, 0)], None), "87 % used at 0.85");
        assert!(rule.worker_is_busy(&[rank(0, 100, 12_000)], None), "12,000 prefill tokens at 10,000");
        assert!(!rule.worker_is_busy(&[rank(85, 100, 10_000)], None), "exactly equal is free");
        assert!(!rule.worker_is_busy(&[rank(87, 100, 0), rank(10, 100, 0)], None), "one of two ranks busy is free");
        assert!(
            !rule.worker_is_busy(&[rank(87, 100, 0), RankReport::default()], None),
            "a declared rank without data is free"
        );
        assert!(rule.worker_is_busy(&[rank(87, 100, 0), rank(0, 100, 12_000)], None), "both ranks busy");
    }

    #[test]
    fn the_prefill_share_is_floored_and_strict() {
        let rule = BusyThresholds { active_prefill_tokens_threshold_frac: Some(0.8), ..BusyThresholds::default() };
        assert!(!rule.worker_is_busy(&[rank(0, 100, 6_553)], Some(8_192)));
        assert!(rule.worker_is_busy(&[rank(0, 100, 6_554)], Some(8_192)));
        assert!(!rule.worker_is_busy(&[rank(0, 100, 7_999_999)], None), "an unknown batch size is 10,000,000 tokens");
        assert!(rule.worker_is_busy(&[rank(0, 100, 8_000_001)], None));
    }

    #[test]
    fn nothing_known_is_never_busy() {
        let rule = thresholds(0.0, 0);
        assert!(!rule.worker_is_busy(&[], None), "no ranks");
        assert!(!rule.worker_is_busy(&[rank(5, 0, 0)], None), "no blocks in total");
        assert!(!BusyThresholds::default().worker_is_busy(&[rank(100, 100, 1 << 40)], None), "no threshold set");
    }

    #[test]
    fn thresholds_out_of_range_are_named() {
        assert!(thresholds(0.0, 0).validate().is_ok());
        assert!(thresholds(1.01, 0).validate().unwrap_err().contains("active_decode_blocks_threshold"));
        assert!(thresholds(f64::NAN, 0).validate().is_err());
        let share = BusyThresholds { active_prefill_tokens_threshold_frac: Some(-0.1), ..BusyThresholds::default() };
        assert!(share.validate().unwrap_err().contains("threshold_frac"));
    }
}
