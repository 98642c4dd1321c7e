//! The page of TensorRT-LLM's own server, `trtllm-serve`, under `/prometheus/metrics`: one rank.
//!
//! - Where attention runs data-parallel it shows rank 0 alone.
//! - Prefill tokens are those of the step under way; prompts that wait are not in them.
//! - Of its limits it tells all but the longest sequence. Older builds tell shares and requests alone.

use super::sheet::{Limit, Load, Sheet};
use super::{PageError, in_table};
use crate::page::Page;

/// What a series tells.
#[derive(Clone, Copy)]
enum Series {
    Load(Load),
    Limit(Limit),
}

/// Notes what the page says.
///
/// # Errors
/// None: one rank is never too many.
pub fn note(sheet: &mut Sheet, page: &Page) -> Result<(), PageError> {
    for (series, sample) in page.samples(series) {
        match series {
            Series::Load(load) => sheet.note(0, load, sample.value)?,
            Series::Limit(limit) => sheet.limit(limit, sample.value),
        }
    }
    Ok(())
}

/// The series that matter, by their names.
const SERIES: [(&str, Series); 9] = [
    ("trtllm_num_requests_running", Series::Load(Load::Running)),
    ("trtllm_num_requests_waiting", Series::Load(Load::Waiting)),
    ("trtllm_kv_cache_utilization", Series::Load(Load::KvShare)),
    ("trtllm_kv_cache_used_blocks", Series::Load(Load::KvUsed)),
    ("trtllm_kv_cache_max_blocks", Series::Load(Load::KvTotal)),
    ("trtllm_total_context_tokens", Series::Load(Load::PrefillTokens)),
    ("trtllm_kv_cache_tokens_per_block", Series::Limit(Limit::BlockSize)),
    ("trtllm_max_batch_size_runtime", Series::Limit(Limit::MaxNumSeqs)),
    ("trtllm_max_num_tokens_runtime", Series::Limit(Limit::MaxNumBatchedTokens)),
];

/// Names of the series that are read.
pub fn names() -> impl Iterator<Item = &'static str> {
    SERIES.iter().map(|(name, _)| *name)
}

/// Whether a series of this name is read.
pub fn wants(name: &str) -> bool {
    name.starts_with("trtllm_") && series(name).is_some()
}

fn series(name: &str) -> Option<Series> {
    in_table(&SERIES, name)
}
