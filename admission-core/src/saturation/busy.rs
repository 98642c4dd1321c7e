//! The busy rule.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::view::RankReport;

/// Taken for a worker that does not say how many tokens it batches at most: large enough that no share of it binds.
pub const UNKNOWN_MAX_NUM_BATCHED_TOKENS: u64 = 10_000_000;

/// The ranks of one worker that were busy when last looked at, by what they were busy by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latch {
    kv: BTreeSet<u32>,
    prefill: BTreeSet<u32>,
}

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
        self.latched(&mut Latch::default(), 0.0, ranks, max_num_batched_tokens)
    }

    /// The same of a worker that has been looked at before: a rank that was busy stays so until all it is busy by have
    /// fallen to `1 - hysteresis` of their thresholds, or below. What it was never busy by does not hold it. `hysteresis` is 0
    /// to 1.
    pub fn latched(
        &self,
        latch: &mut Latch,
        hysteresis: f64,
        ranks: &[RankReport],
        max_num_batched_tokens: Option<u64>,
    ) -> bool {
        let batched = max_num_batched_tokens.unwrap_or(UNKNOWN_MAX_NUM_BATCHED_TOKENS);
        let ease = |was_busy: bool| if was_busy { 1.0 - hysteresis } else { 1.0 };
        let by_kv = |rank: &RankReport| self.kv_is_busy(rank, ease(latch.kv.contains(&rank.rank)));
        let by_prefill =
            |rank: &RankReport| self.prefill_is_busy(rank, batched, ease(latch.prefill.contains(&rank.rank)));
        let all = !ranks.is_empty() && ranks.iter().all(|rank| by_kv(rank) || by_prefill(rank));
        let which = |is_busy: &dyn Fn(&RankReport) -> bool| {
            ranks.iter().filter(|rank| is_busy(rank)).map(|rank| rank.rank).collect()
        };
        *latch = Latch { kv: which(&by_kv), prefill: which(&by_prefill) };
        all
    }

    /// KV blocks with which every rank of a worker would be busy, beyond those in use, if it took them where they are missing:
    /// `Σ (⌊threshold × total⌋ + 1 − used)` over the ranks that are not busy. `None` where no number of blocks makes it busy: without a
    /// threshold, and while a rank reports no blocks. `latch` is that of the last look.
    #[must_use]
    pub fn blocks_until_busy(&self, latch: &Latch, ranks: &[RankReport]) -> Option<u64> {
        let share = self.active_decode_blocks_threshold.filter(|_| !ranks.is_empty())?;
        let not_busy =
            ranks.iter().filter(|rank| !latch.kv.contains(&rank.rank) && !latch.prefill.contains(&rank.rank));
        not_busy.into_iter().try_fold(0_u64, |sum, rank| {
            let (total, used) = (rank.kv_total_blocks?, rank.kv_used_blocks?);
            let used = used.max(rank.active_decode_blocks.unwrap_or(0));
            // Why a little more: 0.29 of 100 comes to less than 29.
            let limit = (total as f64 * share + 1e-6).floor() as u64;
            (limit < total).then_some(sum.saturating_add(limit.saturating_add(1).saturating_sub(used)))
        })
    }

    /// Prompt tokens that a worker of so many ranks may have to read and is not busy by them: the smaller of both thresholds, for each rank.
    /// `None` without a threshold, and where one is a share of what the worker does not say.
    #[must_use]
    pub fn prefill_limit(&self, ranks: usize, max_num_batched_tokens: Option<u64>) -> Option<u64> {
        let share = self.active_prefill_tokens_threshold_frac.zip(max_num_batched_tokens);
        let share = share.map(|(share, batched)| (share * batched as f64) as u64);
        let limit = self.active_prefill_tokens_threshold.into_iter().chain(share).min()?;
        Some(limit.saturating_mul(ranks.max(1) as u64))
    }

    /// Names of the thresholds by which a worker is busy that was last looked at with that latch, of those that are set.
    #[must_use]
    pub fn busy_by(&self, latch: &Latch, max_num_batched_tokens: Option<u64>) -> Vec<&'static str> {
        let mut names = Vec::new();
        if !latch.kv.is_empty() {
            names.push("active_decode_blocks_threshold");
        }
        if !latch.prefill.is_empty() {
            let share_alone = BusyThresholds { active_prefill_tokens_threshold: None, ..*self };
            let by_share = share_alone.prefill_limit(1, max_num_batched_tokens);
            let by_tokens = self.active_prefill_tokens_threshold;
            names.push(if by_share.is_some_and(|share| by_tokens.is_none_or(|tokens| share < tokens)) {
                "active_prefill_tokens_threshold_frac"
            } else {
                "active_prefill_tokens_threshold"
            });
        }
        names
    }

    /// By either of two signals: what the engine uses, and what a router in front of it believes to be in use.
    fn kv_is_busy(&self, rank: &RankReport, ease: f64) -> bool {
        let Some(share) = self.active_decode_blocks_threshold else { return false };
        [rank.kv_share(), rank.active_decode_share()].into_iter().flatten().any(|used| used > share * ease)
    }

    fn prefill_is_busy(&self, rank: &RankReport, batched: u64, ease: f64) -> bool {
        let Some(tokens) = rank.prefill_tokens else { return false };
        let over = |limit: u64| tokens > (limit as f64 * ease) as u64;
        let share = self.active_prefill_tokens_threshold_frac.map(|share| (share * batched as f64) as u64);
        self.active_prefill_tokens_threshold.is_some_and(over) || share.is_some_and(over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_prompts_that_a_worker_may_have_are_those_of_its_smallest_threshold_for_each_rank() {
        let both = BusyThresholds { active_prefill_tokens_threshold_frac: Some(0.8), ..thresholds(0.5, 10_000) };
        let only_share = BusyThresholds { active_prefill_tokens_threshold: None, ..both };
        assert_eq!((both.prefill_limit(1, Some(8_192)), both.prefill_limit(2, None)), (Some(6_553), Some(20_000)));
        assert_eq!((only_share.prefill_limit(2, Some(8_192)), only_share.prefill_limit(1, None)), (Some(13_106), None));
        assert_eq!(BusyThresholds::default().prefill_limit(1, Some(8_192)), None);
    }

    #[test]
    fn the_threshold_that_makes_a_worker_busy_is_named() {
        let rule = BusyThresholds { active_prefill_tokens_threshold_frac: Some(0.8), ..thresholds(0.5, 10_000) };
        let by = |rule: &BusyThresholds, used, prefill, batched| {
            let mut latch = Latch::default();
            rule.latched(&mut latch, 0.0, &[rank(used, 100, prefill)], batched);
            rule.busy_by(&latch, batched)
        };
        assert_eq!(by(&rule, 50, 6_000, Some(8_192)), [""; 0]);
        assert_eq!(
            by(&rule, 51, 7_000, Some(8_192)),
            ["active_decode_blocks_threshold", "active_prefill_tokens_threshold_frac"]
        );
        assert_eq!(by(&rule, 0, 10_001, None), ["active_prefill_tokens_threshold"]);
        let only_share = BusyThresholds { active_prefill_tokens_threshold: None, ..rule };
        assert_eq!(by(&only_share, 0, 7_000, Some(8_192)), ["active_prefill_tokens_threshold_frac"]);
    }

    #[test]
    fn nothing_known_is_never_busy() {
        let rule = thresholds(0.0, 0);
        assert!(!rule.worker_is_busy(&[], None), "no ranks");
        assert!(!rule.worker_is_busy(&[rank(5, 0, 0)], None), "no blocks in total");
        assert!(!BusyThresholds::default().worker_is_busy(&[rank(100, 100, 1 << 40)], None), "no threshold set");
    }

    #[test]
    fn a_busy_rank_stays_so_until_it_is_clearly_below() {
        let rule = thresholds(0.8, 1_000);
        let mut latch = Latch::default();
        let mut look = |used, prefill| rule.latched(&mut latch, 0.1, &[rank(used, 100, prefill)], None);
        assert!(!look(80, 0), "at the threshold and never above it");
        assert!(look(81, 0));
        assert!(look(80, 0) && look(73, 0), "above 0.72 still");
        assert!(!look(72, 0) && !look(80, 0), "clear, and at the threshold again");
        assert!(look(0, 1_001) && look(0, 901));
        assert!(!look(0, 900));
        assert!(look(81, 950), "by its blocks");
        assert!(!look(0, 950), "what it was not busy by does not keep it busy");
        assert!(look(81, 1_001) && look(73, 0) && look(73, 950), "one of two is enough");
        assert!(!look(72, 950));
    }

    #[test]
    fn either_of_two_signals_makes_busy_and_both_must_clear() {
        let rule = thresholds(0.8, 1_000);
        let both = |used, active| RankReport { active_decode_blocks: Some(active), ..rank(used, 100, 0) };
        let mut latch = Latch::default();
        let mut look = |used, active| rule.latched(&mut latch, 0.0, &[both(used, active)], None);
        assert!(look(0, 81), "the router's belief alone");
        assert!(look(81, 0), "the engine's use alone");
        assert!(!look(80, 80));
    }

    #[test]
    fn each_rank_has_its_own_memory() {
        let rule = thresholds(0.8, 1_000);
        let ranks = |first, second| [rank(first, 100, 0), RankReport { rank: 1, ..rank(second, 100, 0) }];
        let mut latch = Latch::default();
        let mut look = |first, second| rule.latched(&mut latch, 0.1, &ranks(first, second), None);
        assert!(!look(81, 0), "one of two");
        assert!(look(75, 81), "the first is held, the second is over");
        assert!(!look(75, 70));
    }

    #[test]
    fn so_many_blocks_more_make_a_worker_busy() {
        let rule = thresholds(0.29, 1_000);
        let more = |ranks: &[RankReport]| {
            let mut latch = Latch::default();
            rule.latched(&mut latch, 0.0, ranks, None);
            rule.blocks_until_busy(&latch, ranks)
        };
        assert_eq!(more(&[rank(20, 100, 0)]), Some(10), "29 of 100 are not busy, 30 are");
        assert_eq!(more(&[rank(29, 100, 0)]), Some(1));
        assert_eq!(more(&[rank(30, 100, 0)]), Some(0), "busy as it is");
        assert_eq!(
            more(&[rank(20, 100, 0), RankReport { rank: 1, ..rank(25, 100, 0) }]),
            Some(15),
            "each rank has to be"
        );
        assert_eq!(
            more(&[rank(20, 100, 1_001), RankReport { rank: 1, ..rank(25, 100, 0) }]),
            Some(5),
            "one is by its prefill"
        );
        let believed = RankReport { active_decode_blocks: Some(28), ..rank(20, 100, 0) };
        assert_eq!(more(&[believed]), Some(2), "the larger of both signals");
        assert_eq!(more(&[rank(20, 100, 0), RankReport::default()]), None, "a rank without blocks never is");
        assert_eq!(more(&[]), None);
        assert_eq!(BusyThresholds::default().blocks_until_busy(&Latch::default(), &[rank(20, 100, 0)]), None);
        assert_eq!(
            thresholds(1.0, 0).blocks_until_busy(&Latch::default(), &[rank(20, 100, 0)]),
            None,
            "none is above 1"
        );
    }

    #[test]
    fn a_rank_that_stays_busy_needs_no_more_blocks() {
        let (rule, ranks) = (thresholds(0.8, 1_000), [rank(75, 100, 0)]);
        let mut latch = Latch::default();
        rule.latched(&mut latch, 0.1, &[rank(81, 100, 0)], None);
        assert!(rule.latched(&mut latch, 0.1, &ranks, None));
        assert_eq!(rule.blocks_until_busy(&latch, &ranks), Some(0));
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
