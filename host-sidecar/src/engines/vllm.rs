//! vLLM's metrics page.
//!
//! - Ranks stand by the label `engine`; a page without it has one, rank 0.
//! - Each engine tells the share of its KV blocks in use, but how many blocks **all** engines of the page have together:
//!   `kv_total_blocks` is an equal part of that, and `kv_used_blocks` the rounded product. Without that number, which is
//!   `None` while vLLM sizes its cache, only the share is known.
//! - It tells no prefill tokens. They are worked out: waiting requests × mean prompt of all requests that finished, so
//!   unknown until one has, and without prompts that are already in prefill.
//! - Of its limits it tells the block size alone.

use super::sheet::{Limit, Load, Sheet, number_in, rank_of};
use super::{PageError, in_table};
use crate::page::Page;

/// What a series tells.
#[derive(Clone, Copy)]
enum Series {
    Load(Load),
    CacheConfig,
}

/// Notes what the page says.
///
/// # Errors
/// It names more engines than a worker can have.
pub fn note(sheet: &mut Sheet, page: &Page) -> Result<(), PageError> {
    let mut blocks = Vec::new();
    for (series, sample) in page.samples(series) {
        match series {
            Series::Load(load) => {
                if let Some(rank) = rank_of(sample, "engine") {
                    sheet.note(rank, load, sample.value)?;
                }
            }
            Series::CacheConfig => {
                let Some(rank) = rank_of(sample, "engine") else { continue };
                sheet.declare(rank)?;
                blocks.extend(number_in(sample, "num_gpu_blocks").map(|blocks| (rank, blocks)));
                if let Some(size) = number_in(sample, "block_size") {
                    sheet.limit(Limit::BlockSize, size);
                }
            }
        }
    }
    let engines = sheet.ranks().len() as f64;
    for (rank, blocks) in blocks {
        sheet.note(rank, Load::KvTotal, (blocks / engines).floor())?;
    }
    Ok(())
}

/// The series that matter, by their names.
const SERIES: [(&str, Series); 7] = [
    ("vllm:num_requests_running", Series::Load(Load::Running)),
    ("vllm:num_requests_waiting", Series::Load(Load::Waiting)),
    ("vllm:kv_cache_usage_perc", Series::Load(Load::KvShare)),
    ("vllm:gpu_cache_usage_perc", Series::Load(Load::KvShare)),
    ("vllm:request_prompt_tokens_sum", Series::Load(Load::PromptTokens)),
    ("vllm:request_prompt_tokens_count", Series::Load(Load::Prompts)),
    ("vllm:cache_config_info", Series::CacheConfig),
];

/// Names of the series that are read.
pub fn names() -> impl Iterator<Item = &'static str> {
    SERIES.iter().map(|(name, _)| *name)
}

/// Whether a series of this name is read.
pub fn wants(name: &str) -> bool {
    name.starts_with("vllm:") && series(name).is_some()
}

fn series(name: &str) -> Option<Series> {
    in_table(&SERIES, name)
}
