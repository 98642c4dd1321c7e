//! SGLang's metrics page; the server must run with `--enable-metrics`.
//!
//! - Ranks stand by the label `dp_rank`; a page without it has one, rank 0.
//! - Every process of a rank (`tp_rank`, `pp_rank`, `moe_ep_rank`) may tell the same numbers: those of the lowest are taken,
//!   never a sum. Where requests are counted by `priority` too, the series without a priority is the whole count.
//! - KV use is `token_usage`, in which prefixes that are only kept for reuse do not count. Blocks are SGLang's pages: gauges
//!   since 0.5.11, labels of `cache_config_info` before; without either only the share is known.
//! - It tells no prefill tokens. They are worked out: waiting requests × mean prompt of all requests that finished, which
//!   takes the counters `prompt_tokens_total` and `num_requests_total`, each over all its series.
//! - Of its limits it tells the page size and, since 0.5.11, the context length.

use super::sheet::{Limit, Load, Order, Sheet, Sum, number_in, rank_of};
use super::{PageError, in_table};
use crate::page::{Page, Sample};

/// What a series tells.
#[derive(Clone, Copy)]
enum Series {
    Load(Load),
    Limit(Limit),
    CacheConfig,
    /// A counter of the whole page.
    PromptTokens,
    /// Another.
    Prompts,
}

/// Notes what the page says.
///
/// # Errors
/// It names more ranks than a worker can have.
pub fn note(sheet: &mut Sheet, page: &Page) -> Result<(), PageError> {
    let (mut prompt_tokens, mut prompts) = (Sum::default(), Sum::default());
    for (series, sample) in page.samples(series) {
        let (Some(rank), Some(order)) = (rank_of(sample, "dp_rank"), order_of(sample)) else { continue };
        if sample.label("priority").is_some_and(|priority| !priority.is_empty()) {
            continue;
        }
        match series {
            Series::Load(load) => sheet.note_ordered(rank, load, sample.value, order)?,
            Series::Limit(limit) => sheet.limit(limit, sample.value),
            Series::CacheConfig => {
                if let Some(pages) = number_in(sample, "num_pages") {
                    sheet.note_ordered(rank, Load::KvTotal, pages, order)?;
                }
                if let Some(size) = number_in(sample, "page_size") {
                    sheet.limit(Limit::BlockSize, size);
                }
            }
            Series::PromptTokens => prompt_tokens.note(sample),
            Series::Prompts => prompts.note(sample),
        }
    }
    for rank in sheet.ranks().collect::<Vec<_>>() {
        for (load, sum) in [(Load::PromptTokens, &prompt_tokens), (Load::Prompts, &prompts)] {
            if let Some(total) = sum.total() {
                sheet.note(rank, load, total)?;
            }
        }
    }
    Ok(())
}

/// The series that matter, by their names.
const SERIES: [(&str, Series); 9] = [
    ("sglang:num_running_reqs", Series::Load(Load::Running)),
    ("sglang:num_queue_reqs", Series::Load(Load::Waiting)),
    ("sglang:token_usage", Series::Load(Load::KvShare)),
    ("sglang:num_pages", Series::Load(Load::KvTotal)),
    ("sglang:page_size", Series::Limit(Limit::BlockSize)),
    ("sglang:context_len", Series::Limit(Limit::MaxModelLen)),
    ("sglang:cache_config_info", Series::CacheConfig),
    ("sglang:prompt_tokens_total", Series::PromptTokens),
    ("sglang:num_requests_total", Series::Prompts),
];

/// Names of the series that are read.
pub fn names() -> impl Iterator<Item = &'static str> {
    SERIES.iter().map(|(name, _)| *name)
}

/// Whether a series of this name is read.
pub fn wants(name: &str) -> bool {
    name.starts_with("sglang:") && series(name).is_some()
}

fn series(name: &str) -> Option<Series> {
    in_table(&SERIES, name)
}

/// Which of a rank's processes a sample is from.
fn order_of(sample: &Sample) -> Option<Order> {
    Some([rank_of(sample, "pp_rank")?, rank_of(sample, "tp_rank")?, rank_of(sample, "moe_ep_rank")?])
}
