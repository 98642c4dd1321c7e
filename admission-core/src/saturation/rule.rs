//! How full a pool is, by the detector that its policy names.

use super::{ConcurrencyLimits, UNKNOWN, UtilizationThresholds};
use crate::view::{RankReport, Role};

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

/// What is known of one live worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerLoad<'a> {
    /// Which stage it belongs to.
    pub role: Role,
    /// As last scraped; empty while nothing has been.
    pub ranks: &'a [RankReport],
    /// Tokens of one KV block.
    pub block_size: Option<u64>,
    /// Most sequences one rank runs at once.
    pub max_num_seqs: Option<u64>,
    /// Its page tells how many requests it has, and what it tells cannot be believed.
    pub doubts_requests: bool,
    /// The same of tokens.
    pub doubts_tokens: bool,
}

impl Default for SaturationRule {
    fn default() -> Self {
        Self { detector: Detector::Utilization(UtilizationThresholds::default()), headroom: None }
    }
}

impl SaturationRule {
    /// Saturation of a pool, given its live workers: that of the fuller stage. Always finite.
    pub fn saturation<'a>(&self, live: impl Iterator<Item = WorkerLoad<'a>> + Clone) -> f64 {
        let stage = |takes_part: fn(Role) -> bool| {
            let workers = live.clone().filter(move |worker| takes_part(worker.role));
            match self.detector {
                Detector::Utilization(thresholds) => mean(workers.map(|worker| thresholds.worker(worker.ranks))),
                Detector::Concurrency(limits) => limits.pool(workers),
            }
        };
        let prefills = stage(Role::prefills);
        // Mostly both stages are the same workers, which are gone through often.
        let is_one_stage = live.clone().all(|worker| worker.role == Role::Both);
        let fuller = if is_one_stage { prefills } else { prefills.max(stage(Role::decodes)) };
        // A threshold close to nothing divides beyond what a number holds; that is the fullest there is, not unknown.
        fuller.min(f64::MAX)
    }

    /// How full one worker is.
    pub fn worker(&self, worker: WorkerLoad<'_>) -> f64 {
        match self.detector {
            Detector::Utilization(thresholds) => thresholds.worker(worker.ranks),
            Detector::Concurrency(limits) => limits.worker(&worker),
        }
    }

    /// Whether a worker tells what the detector measures. One that does not counts as exactly full.
    pub fn measures(&self, worker: &WorkerLoad<'_>) -> bool {
        match self.detector {
            Detector::Utilization(thresholds) => thresholds.measured(worker.ranks).is_some(),
            Detector::Concurrency(limits) => limits.measures(worker),
        }
    }

    /// Whether a worker that is `full` by [`Self::worker`] has used up its headroom. One that had when last looked at has
    /// until it is below `1 - hysteresis` of that; `hysteresis` is 0 to 1.
    pub fn is_crowded(&self, full: f64, was_crowded: bool, hysteresis: f64) -> bool {
        let ease = if was_crowded { 1.0 - hysteresis } else { 1.0 };
        self.headroom.is_some_and(|headroom| full >= (1.0 + headroom) * ease)
    }
}

/// [`UNKNOWN`] of nothing.
pub(super) fn mean(shares: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for share in shares {
        sum += share;
        count += 1.0;
    }
    if count > 0.0 { sum / count } else { UNKNOWN }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_family = "wasm")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn load(role: Role, ranks: &[RankReport]) -> WorkerLoad<'_> {
        WorkerLoad { role, ranks, ..WorkerLoad::default() }
    }

    fn waiting(count: u64) -> [RankReport; 1] {
        [RankReport { waiting: Some(count), ..RankReport::default() }]
    }

    #[test]
    fn a_pool_is_as_full_as_its_fuller_stage() {
        let rule = SaturationRule::default();
        let (idle, half, full) = (waiting(0), waiting(5), waiting(10));
        let of =
            |workers: &[(Role, &[RankReport])]| rule.saturation(workers.iter().map(|(role, ranks)| load(*role, ranks)));
        assert_eq!(of(&[(Role::Both, &idle), (Role::Both, &full)]), 1.0, "one stage: the mean of 0 and 2");
        assert_eq!(of(&[(Role::Prefill, &full), (Role::Decode, &idle)]), 2.0);
        assert_eq!(of(&[(Role::Prefill, &idle), (Role::Decode, &half)]), 1.0);
        assert_eq!(of(&[(Role::Prefill, &idle), (Role::Decode, &idle), (Role::Both, &full)]), 1.0, "it is in both");
        assert_eq!(of(&[(Role::Decode, &idle)]), 1.0, "nobody reads prompts");
        assert_eq!(of(&[]), 1.0);
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
        let [queue, blocks] = [load(Role::Both, &queue), load(Role::Both, &blocks)];
        let sized = WorkerLoad { block_size: Some(16), ..blocks };
        for (rule, of_queue, of_blocks, of_sized) in [
            (SaturationRule::default(), true, false, false),
            (concurrency(ConcurrencyMode::Requests), true, false, false),
            (concurrency(ConcurrencyMode::Tokens), false, false, true),
            (concurrency(ConcurrencyMode::Hybrid), false, false, false),
        ] {
            let measured = [queue, blocks, sized].map(|worker| rule.measures(&worker));
            assert_eq!(measured, [of_queue, of_blocks, of_sized], "{rule:?}");
        }
        let doubtful = WorkerLoad { doubts_requests: true, doubts_tokens: true, ..sized };
        let both = [RankReport { running: Some(0), kv_used_blocks: Some(0), ..RankReport::default() }];
        for mode in [ConcurrencyMode::Requests, ConcurrencyMode::Tokens, ConcurrencyMode::Hybrid] {
            let (sure, doubtful) = (WorkerLoad { ranks: &both, ..sized }, WorkerLoad { ranks: &both, ..doubtful });
            assert!(concurrency(mode).measures(&sure) && !concurrency(mode).measures(&doubtful));
            assert_eq!((concurrency(mode).worker(sure), concurrency(mode).worker(doubtful)), (0.0, 1.0));
        }
    }

    #[test]
    fn what_divides_beyond_any_number_is_the_fullest_there_is() {
        let tiny = UtilizationThresholds { queue_depth_threshold: f64::MIN_POSITIVE, ..Default::default() };
        let rule = SaturationRule { detector: Detector::Utilization(tiny), headroom: None };
        assert_eq!(rule.saturation([load(Role::Both, &waiting(u64::MAX))].into_iter()), f64::MAX);
    }
}
