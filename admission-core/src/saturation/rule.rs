//! How full a worker is, by the detector that its pool's policy names.

use super::{ConcurrencyLimits, Fullness, UtilizationThresholds, WorkerLoad};

/// How the saturation of a pool is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SaturationRule {
    /// By which numbers.
    pub detector: Detector,
    /// Share above full (≥ 0) from which a worker is given nothing while others take more; without it none is left out.
    pub headroom: Option<f64>,
}

/// By which numbers a worker is full.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Detector {
    /// Its queue and its KV cache.
    Utilization(UtilizationThresholds),
    /// What it has in hand.
    Concurrency(ConcurrencyLimits),
}

impl Default for SaturationRule {
    fn default() -> Self {
        Self { detector: Detector::Utilization(UtilizationThresholds::default()), headroom: None }
    }
}

impl SaturationRule {
    /// How full one worker is. One that does not tell what the detector counts is exactly full.
    pub fn fullness(&self, worker: &WorkerLoad<'_>) -> Fullness {
        match self.detector {
            Detector::Utilization(thresholds) => Fullness::new(thresholds.measured(worker.ranks), 1.0),
            Detector::Concurrency(limits) => limits.fullness(worker),
        }
    }

    /// Requests and KV blocks that alone would bring one worker from empty to full, each where the detector counts it and the
    /// worker reports it.
    pub fn full(&self, worker: &WorkerLoad<'_>) -> (Option<u64>, Option<u64>) {
        match self.detector {
            Detector::Utilization(thresholds) => (None, thresholds.full_blocks(worker.ranks)),
            Detector::Concurrency(limits) => limits.full(worker),
        }
    }

    /// Whether a worker that is `full` by [`Fullness::share`] has used up its headroom. One that had when last looked at has
    /// until it is below `1 - hysteresis` of that; `hysteresis` is 0 to 1.
    pub fn is_crowded(&self, full: f64, was_crowded: bool, hysteresis: f64) -> bool {
        let ease = if was_crowded { 1.0 - hysteresis } else { 1.0 };
        self.headroom.is_some_and(|headroom| full >= (1.0 + headroom) * ease)
    }
}

#[cfg(test)]
mod tests {
    use super::super::saturation;
    use super::*;
    use crate::view::{RankReport, Role};

    fn load(ranks: &[RankReport]) -> WorkerLoad<'_> {
        WorkerLoad { ranks, ..WorkerLoad::default() }
    }

    fn waiting(count: u64) -> [RankReport; 1] {
        [RankReport { waiting: Some(count), ..RankReport::default() }]
    }

    #[test]
    fn headroom_is_what_a_worker_may_be_overfull() {
        let is_crowded = |headroom, full, was| {
            let rule = SaturationRule { headroom, ..SaturationRule::default() };
            rule.is_crowded(full, was, 0.1)
        };
        assert!(!is_crowded(None, 50.0, true));
        assert!(is_crowded(Some(0.0), 1.0, false), "full is not below full");
        assert!(!is_crowded(Some(0.2), 1.19, false));
        assert!(is_crowded(Some(0.2), 1.2, false));
        assert!(is_crowded(Some(0.2), 1.09, true), "it was, and has not fallen to 1.08");
        assert!(!is_crowded(Some(0.2), 1.07, true));
    }

    #[test]
    fn a_worker_is_measured_by_what_its_detector_counts() {
        use super::super::ConcurrencyMode;
        let concurrency = |mode| {
            let limits = ConcurrencyLimits { mode, ..ConcurrencyLimits::default() };
            SaturationRule { detector: Detector::Concurrency(limits), headroom: None }
        };
        let queue = waiting(2);
        let blocks = [RankReport { kv_used_blocks: Some(3), ..RankReport::default() }];
        let [queue, blocks] = [load(&queue), load(&blocks)];
        let sized = WorkerLoad { block_size: Some(16), ..blocks };
        for (rule, of_queue, of_blocks, of_sized) in [
            (SaturationRule::default(), true, false, false),
            (concurrency(ConcurrencyMode::Requests), true, false, false),
            (concurrency(ConcurrencyMode::Tokens), false, false, true),
            (concurrency(ConcurrencyMode::Hybrid), false, false, false),
        ] {
            let measured = [queue, blocks, sized].map(|worker| rule.fullness(&worker).is_measured());
            assert_eq!(measured, [of_queue, of_blocks, of_sized], "{rule:?}");
        }
        let doubtful = WorkerLoad { doubts_requests: true, doubts_tokens: true, ..sized };
        let both = [RankReport { running: Some(0), kv_used_blocks: Some(0), ..RankReport::default() }];
        for mode in [ConcurrencyMode::Requests, ConcurrencyMode::Tokens, ConcurrencyMode::Hybrid] {
            let (sure, doubtful) = (WorkerLoad { ranks: &both, ..sized }, WorkerLoad { ranks: &both, ..doubtful });
            let [sure, doubtful] = [sure, doubtful].map(|worker| concurrency(mode).fullness(&worker));
            assert_eq!((sure.share(), sure.is_measured()), (0.0, true));
            assert_eq!((doubtful.share(), doubtful.is_measured()), (1.0, false));
        }
    }

    #[test]
    fn what_divides_beyond_any_number_is_the_fullest_there_is() {
        let tiny = UtilizationThresholds { queue_depth_threshold: f64::MIN_POSITIVE, ..Default::default() };
        let rule = SaturationRule { detector: Detector::Utilization(tiny), headroom: None };
        let full = rule.fullness(&load(&waiting(u64::MAX)));
        assert_eq!(saturation([(Role::Both, full)].into_iter()), f64::MAX);
    }
}
