//! The page of a Triton server with the TensorRT-LLM backend: one rank.
//!
//! - What a series tells stands in a label, `…_metrics{…_type="waiting"}`.
//! - Prefill tokens are those of the step under way (`total_context_tokens`); prompts that wait are not in them.
//! - Of its limits it tells the block size and the most requests.
//! - Two models on one server tell two values for everything, which makes all of it unknown: map one of them with
//!   [`super::custom`].
//! - Triton tells of its GPUs on the same page.

use super::PageError;
use super::gpus::{Fact, Gpus};
use super::sheet::{Limit, Load, Sheet};
use crate::page::Page;
use crate::reading::Gpu;

/// What a value is of.
enum Meaning {
    Load(Load),
    Limit(Limit),
}

/// Notes what the page says of the model.
///
/// # Errors
/// None: one rank is never too many.
pub fn note(sheet: &mut Sheet, page: &Page) -> Result<(), PageError> {
    for (label, sample) in page.samples(label) {
        match sample.label(label).and_then(|kind| meaning(label, &kind)) {
            Some(Meaning::Load(load)) => sheet.note(0, load, sample.value)?,
            Some(Meaning::Limit(limit)) => sheet.limit(limit, sample.value),
            None => {}
        }
    }
    Ok(())
}

/// The GPUs of the page.
///
/// # Errors
/// There are more than a server can have.
pub fn gpus(page: &Page) -> Result<Vec<Gpu>, PageError> {
    let mut gpus = Gpus::default();
    for (fact, sample) in page.samples(fact) {
        if let Some(uuid) = sample.label("gpu_uuid") {
            gpus.note((None, Some(uuid.into_owned()), None), fact, sample.value)?;
        }
    }
    Ok(gpus.list())
}

/// Whether a series of this name is read.
pub fn wants(name: &str) -> bool {
    name.starts_with("nv_") && (label(name).is_some() || fact(name).is_some())
}

/// The label in which a metric says what its value is of.
fn label(name: &str) -> Option<&'static str> {
    Some(match name {
        "nv_trt_llm_request_metrics" => "request_type",
        "nv_trt_llm_kv_cache_block_metrics" => "kv_cache_block_type",
        "nv_trt_llm_inflight_batcher_metrics" => "inflight_batcher_specific_metric",
        _ => return None,
    })
}

fn meaning(label: &str, kind: &str) -> Option<Meaning> {
    Some(match (label, kind) {
        ("request_type", "scheduled") => Meaning::Load(Load::Running),
        ("request_type", "waiting") => Meaning::Load(Load::Waiting),
        ("request_type", "max") => Meaning::Limit(Limit::MaxNumSeqs),
        ("kv_cache_block_type", "fraction") => Meaning::Load(Load::KvShare),
        ("kv_cache_block_type", "used") => Meaning::Load(Load::KvUsed),
        ("kv_cache_block_type", "max") => Meaning::Load(Load::KvTotal),
        ("kv_cache_block_type", "tokens_per") => Meaning::Limit(Limit::BlockSize),
        ("inflight_batcher_specific_metric", "total_context_tokens") => Meaning::Load(Load::PrefillTokens),
        _ => return None,
    })
}

fn fact(name: &str) -> Option<Fact> {
    Some(match name {
        "nv_gpu_utilization" => Fact::Utilization,
        "nv_gpu_memory_used_bytes" => Fact::UsedBytes,
        "nv_gpu_memory_total_bytes" => Fact::TotalBytes,
        _ => return None,
    })
}
