//! The pages of NVIDIA Dynamo: of a worker (its system port) and of a frontend.
//!
//! - A worker tells KV use and blocks by `dp_rank`, and how many requests it has: `dynamo_component_inflight_requests` of the
//!   endpoint `generate`. It does not tell those that wait apart from those that run.
//! - A frontend tells how many requests it has, and of these how many have had no token yet: these are waiting, the others
//!   running; without the second number nobody knows how many run. It tells all four limits.
//! - What is told of the page as a whole belongs to its only rank. Where there are several nobody knows which has it, so it
//!   is left out.
//! - A worker by itself reports neither prefill tokens nor its router's count of blocks. A frontend reports both of each worker behind it: the
//!   frontend is busy by them when all of its workers are, so what counts is the least: of prompts that of the prefill workers where there
//!   are any, of blocks that of all others.

use super::PageError;
use super::sheet::{Cells, Limit, Load, Order, Sheet, rank_of};
use crate::page::{Page, Sample};

/// The series that matter.
#[derive(Clone, Copy)]
enum Series {
    /// Of a rank.
    Load(Load),
    Limit(Limit),
    Whole(Whole),
}

/// What is told of the page as a whole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whole {
    /// Requests at a worker.
    AtWorker,
    /// Requests at a frontend.
    AtFrontend,
    /// Of these, those without a token.
    Queued,
    /// Prompt tokens in prefill of one worker behind a frontend.
    Prefill,
    /// KV blocks that the router believes to be in use at one worker behind a frontend.
    ActiveBlocks,
    /// KV blocks of each worker behind a frontend.
    BlocksOfEach,
}

/// The least that a frontend says of its workers.
// Why not noted on a sheet one by one: numbers of several workers are no contradiction.
#[derive(Default)]
struct Least {
    /// Prompt tokens of workers that only read prompts.
    prefill: Option<f64>,
    /// Prompt tokens of all others.
    prefill_of_others: Option<f64>,
    blocks: Option<f64>,
}

impl Least {
    fn note_prefill(&mut self, sample: &Sample) {
        lower(if reads_prompts_only(sample) { &mut self.prefill } else { &mut self.prefill_of_others }, sample.value);
    }

    fn note_blocks(&mut self, sample: &Sample) {
        if !reads_prompts_only(sample) {
            lower(&mut self.blocks, sample.value);
        }
    }
}

fn lower(least: &mut Option<f64>, value: f64) {
    *least = Some(least.map_or(value, |least| least.min(value)));
}

fn reads_prompts_only(sample: &Sample) -> bool {
    sample.label("worker_type").is_some_and(|kind| kind == "prefill")
}

/// Notes what the page says.
///
/// # Errors
/// It names more ranks than a worker can have.
pub fn note(sheet: &mut Sheet, page: &Page) -> Result<(), PageError> {
    let (mut whole, mut least) = (Cells::default(), Least::default());
    for (series, sample) in page.samples(series) {
        match series {
            Series::Load(load) => {
                if let Some(rank) = rank_of(sample, "dp_rank") {
                    sheet.note(rank, load, sample.value)?;
                }
            }
            Series::Limit(limit) => sheet.limit(limit, sample.value),
            Series::Whole(Whole::AtWorker)
                if sample.label("dynamo_endpoint").is_some_and(|name| name != "generate") => {}
            Series::Whole(Whole::Prefill) => least.note_prefill(sample),
            Series::Whole(Whole::ActiveBlocks) => least.note_blocks(sample),
            Series::Whole(what) => whole.note(what, sample.value, Order::default()),
        }
    }
    note_whole(sheet, &whole, &least)
}

fn note_whole(sheet: &mut Sheet, whole: &Cells<Whole>, least: &Least) -> Result<(), PageError> {
    let mut ranks = sheet.ranks();
    let rank = ranks.next().unwrap_or(0);
    if ranks.next().is_some() {
        return Ok(());
    }
    drop(ranks);
    let loads = [
        (Load::PrefillTokens, least.prefill.or(least.prefill_of_others)),
        (Load::ActiveDecodeBlocks, least.blocks),
        (Load::KvTotal, whole.told(Whole::BlocksOfEach)),
    ];
    for (load, number) in loads {
        if let Some(number) = number {
            sheet.note(rank, load, number)?;
        }
    }
    let queued = whole.told(Whole::Queued);
    if let Some(queued) = queued {
        sheet.note(rank, Load::Waiting, queued)?;
    }
    // The two gauges are not read at one instant, so the smaller one may be the larger for a moment. What cannot be believed stays so.
    let behind_frontend =
        whole.told(Whole::AtFrontend).zip(queued).map(|(all, queued)| (all - queued).clamp(0.0, f64::MAX));
    if let Some(running) = whole.told(Whole::AtWorker).or(behind_frontend) {
        sheet.note(rank, Load::Running, running)?;
    }
    Ok(())
}

/// Whether a series of this name is read.
pub fn wants(name: &str) -> bool {
    name.starts_with("dynamo_") && series(name).is_some()
}

/// Whether a metric says how loaded something is.
pub fn is_load(name: &str) -> bool {
    matches!(
        series(name),
        Some(Series::Whole(Whole::AtWorker | Whole::AtFrontend | Whole::Queued) | Series::Load(Load::KvShare))
    )
}

fn series(name: &str) -> Option<Series> {
    Some(match name {
        "dynamo_component_gpu_cache_usage_percent" | "dynamo_component_kvstats_gpu_cache_usage_percent" => {
            Series::Load(Load::KvShare)
        }
        "dynamo_component_total_blocks" | "dynamo_component_kvstats_total_blocks" => Series::Load(Load::KvTotal),
        "dynamo_component_kvstats_active_blocks" => Series::Load(Load::KvUsed),
        "dynamo_component_inflight_requests" => Series::Whole(Whole::AtWorker),
        "dynamo_frontend_inflight_requests" => Series::Whole(Whole::AtFrontend),
        "dynamo_frontend_queued_requests" => Series::Whole(Whole::Queued),
        "dynamo_frontend_worker_active_prefill_tokens" => Series::Whole(Whole::Prefill),
        "dynamo_frontend_worker_active_decode_blocks" => Series::Whole(Whole::ActiveBlocks),
        "dynamo_frontend_model_total_kv_blocks" => Series::Whole(Whole::BlocksOfEach),
        "dynamo_frontend_model_kv_cache_block_size" => Series::Limit(Limit::BlockSize),
        "dynamo_frontend_model_max_num_seqs" => Series::Limit(Limit::MaxNumSeqs),
        "dynamo_frontend_model_max_num_batched_tokens" => Series::Limit(Limit::MaxNumBatchedTokens),
        "dynamo_frontend_model_context_length" => Series::Limit(Limit::MaxModelLen),
        _ => return None,
    })
}
