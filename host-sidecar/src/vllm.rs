//! vLLM's metrics page as rank reports.

use std::collections::BTreeMap;
use std::fmt;

use admission_core::view::RankReport;

use crate::page::{Sample, samples};

/// More ranks than this on one page are taken for garbage: a page may not blow up the view for everybody.
const MAX_RANKS: usize = 256;

/// Why a page says nothing of a worker's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageError {
    /// Not one of the gauges for running or waiting requests or KV use is on it.
    NoLoadGauge,
    /// It names more engines than a worker can have.
    TooManyRanks,
}

impl fmt::Display for PageError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLoadGauge => write!(out, "the page holds none of vLLM's load gauges"),
            Self::TooManyRanks => write!(out, "the page names more than {MAX_RANKS} engines"),
        }
    }
}

impl std::error::Error for PageError {}

/// One report per value of the label `engine`, by rising rank; a page without that label is rank 0.
///
/// vLLM tells the share of KV blocks that each engine uses, but only how many blocks all engines of the page have
/// together, on every one of them: `kv_total_blocks` is an equal part of that, and `kv_used_blocks` the rounded product.
/// It tells no prefill tokens: `prefill_tokens` is the number of waiting requests times the mean prompt of all requests finished
/// so far, and absent until one has finished. A number that is NaN, infinite or negative counts as absent.
///
/// # Errors
/// The page is not vLLM's, or cannot be believed.
pub fn ranks(page: &str) -> Result<Vec<RankReport>, PageError> {
    let mut seen = BTreeMap::<u32, Seen>::new();
    for sample in samples(page, "vllm:") {
        let Some(number) = Number::of(&sample) else { continue };
        let Ok(rank) = sample.label("engine").unwrap_or("0").parse() else { continue };
        if seen.len() >= MAX_RANKS && !seen.contains_key(&rank) {
            return Err(PageError::TooManyRanks);
        }
        seen.entry(rank).or_default().note(number, &sample);
    }
    if !seen.values().any(Seen::has_load) {
        return Err(PageError::NoLoadGauge);
    }
    let engines = seen.len() as u64;
    Ok(seen.into_iter().map(|(rank, seen)| seen.report(rank, engines)).collect())
}

/// The series that matter.
#[derive(Clone, Copy)]
enum Number {
    Running,
    Waiting,
    KvUsage,
    CacheConfig,
    PromptSum,
    PromptCount,
}

impl Number {
    fn of(sample: &Sample<'_>) -> Option<Self> {
        Some(match sample.name {
            "vllm:num_requests_running" => Self::Running,
            "vllm:num_requests_waiting" => Self::Waiting,
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" => Self::KvUsage,
            "vllm:cache_config_info" => Self::CacheConfig,
            "vllm:request_prompt_tokens_sum" => Self::PromptSum,
            "vllm:request_prompt_tokens_count" => Self::PromptCount,
            _ => return None,
        })
    }
}

/// What a page says of one engine.
#[derive(Default)]
struct Seen {
    running: Option<f64>,
    waiting: Option<f64>,
    kv_usage: Option<f64>,
    /// Of all engines of the page.
    num_gpu_blocks: Option<u64>,
    prompt_sum: Option<f64>,
    prompt_count: Option<f64>,
}

impl Seen {
    fn note(&mut self, number: Number, sample: &Sample<'_>) {
        let value = Some(sample.value).filter(|value| value.is_finite() && *value >= 0.0);
        match number {
            Number::Running => self.running = value,
            Number::Waiting => self.waiting = value,
            Number::KvUsage => self.kv_usage = value,
            // The label reads "None" while vLLM is still sizing its cache.
            Number::CacheConfig => {
                self.num_gpu_blocks = sample.label("num_gpu_blocks").and_then(|blocks| blocks.parse().ok());
            }
            Number::PromptSum => self.prompt_sum = value,
            Number::PromptCount => self.prompt_count = value,
        }
    }

    fn has_load(&self) -> bool {
        self.running.or(self.waiting).or(self.kv_usage).is_some()
    }

    fn report(self, rank: u32, engines: u64) -> RankReport {
        let total = self.num_gpu_blocks.and_then(|blocks| blocks.checked_div(engines));
        RankReport {
            rank,
            kv_used_blocks: total.and_then(|total| self.kv_used_blocks(total)),
            kv_total_blocks: total,
            running: self.running.map_or(0, whole),
            waiting: self.waiting.map_or(0, whole),
            prefill_tokens: self.prefill_tokens(),
        }
    }

    fn kv_used_blocks(&self, total: u64) -> Option<u64> {
        Some(whole(self.kv_usage? * total as f64).min(total))
    }

    fn prefill_tokens(&self) -> Option<u64> {
        let finished = self.prompt_count.filter(|count| *count > 0.0)?;
        Some(whole(self.waiting? * self.prompt_sum? / finished))
    }
}

/// Rounded; beyond the largest number it is the largest.
fn whole(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: &str = include_str!("../tests/pages/idle.prom");
    const BUSY: &str = include_str!("../tests/pages/busy.prom");
    const TWO_RANKS: &str = include_str!("../tests/pages/two_ranks.prom");
    const OLDER: &str = include_str!("../tests/pages/older_name.prom");
    const NAN: &str = include_str!("../tests/pages/nan.prom");
    const GARBAGE: &str = include_str!("../tests/pages/garbage.prom");

    fn report(rank: u32, kv: (Option<u64>, Option<u64>), requests: (u64, u64), prefill: Option<u64>) -> RankReport {
        RankReport {
            rank,
            kv_used_blocks: kv.0,
            kv_total_blocks: kv.1,
            running: requests.0,
            waiting: requests.1,
            prefill_tokens: prefill,
        }
    }

    #[test]
    fn an_idle_engine_has_zero_use_and_no_known_prefill() {
        assert_eq!(ranks(IDLE), Ok(vec![report(0, (Some(0), Some(2_048)), (0, 0), None)]));
    }

    #[test]
    fn a_busy_engine_waits_with_mean_prompts() {
        // 0.9 of 640 blocks; six waiting, 48,000 prompt tokens over 32 finished requests.
        assert_eq!(ranks(BUSY), Ok(vec![report(0, (Some(576), Some(640)), (8, 6), Some(9_000))]));
    }

    #[test]
    fn each_engine_is_a_rank_with_its_part_of_the_blocks() {
        assert_eq!(
            ranks(TWO_RANKS),
            Ok(vec![
                report(0, (Some(450), Some(500)), (5, 2), Some(200)),
                report(1, (Some(55), Some(500)), (1, 0), None),
            ])
        );
    }

    #[test]
    fn the_older_name_without_an_engine_label_is_rank_0() {
        assert_eq!(ranks(OLDER), Ok(vec![report(0, (Some(300), Some(1_200)), (3, 1), Some(64))]));
    }

    #[test]
    fn a_number_that_is_none_is_absent() {
        assert_eq!(ranks(NAN), Ok(vec![report(0, (None, Some(400)), (2, 0), None)]));
    }

    #[test]
    fn other_pages_are_refused() {
        assert_eq!(ranks(GARBAGE), Err(PageError::NoLoadGauge));
        assert_eq!(ranks(""), Err(PageError::NoLoadGauge));
        assert_eq!(ranks("vllm:num_preemptions_total 3\n"), Err(PageError::NoLoadGauge));
        let many: String = (0..300).map(|rank| format!("vllm:num_requests_running{{engine=\"{rank}\"}} 1\n")).collect();
        assert_eq!(ranks(&many), Err(PageError::TooManyRanks));
    }

    #[test]
    fn a_page_cut_anywhere_never_panics() {
        for end in 0..BUSY.len() {
            let _ = ranks(BUSY.get(..end).unwrap_or_default());
        }
    }

    #[test]
    fn numbers_beyond_reason_stay_in_range() {
        let page = "vllm:num_requests_running 1e300\nvllm:kv_cache_usage_perc 87\n\
                    vllm:cache_config_info{num_gpu_blocks=\"100\"} 1\n";
        assert_eq!(ranks(page), Ok(vec![report(0, (Some(100), Some(100)), (u64::MAX, 0), None)]));
    }
}
