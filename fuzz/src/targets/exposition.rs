//! A worker's metrics page.
//!
//! - Every adapter reads it for something that a worker can have, or says why not.
//! - It is read the same in pieces, and after another page.
//! - A page whose engine is recognised is read as that engine's, or refused as such.

use std::sync::Arc;

use admission_core::view::RankReport;
use host_sidecar::engines::custom::Source;
use host_sidecar::engines::sheet::{Limit, Load};
use host_sidecar::engines::{Engine, Mapping, PageError, Reader, dcgm, read, recognise};
use host_sidecar::reading::{Gpu, Reading};

/// Pages that are there for other tests.
pub const PAGES: &[&str] = &["host-sidecar/tests/corpus/exposition", "host-sidecar/tests/pages"];

/// Every adapter.
fn engines() -> Vec<Engine> {
    let source = |metric: &str, label: Option<&str>, scale| Source {
        metric: metric.to_owned(),
        labels: [].into(),
        value_label: label.map(str::to_owned),
        scale,
    };
    let mapping = Mapping {
        rank_label: Some("engine".to_owned()),
        loads: [
            (Load::Running, source("vllm:num_requests_running", None, 1e6)),
            (Load::KvUsed, source("llamacpp:kv_cache_tokens", None, 0.5)),
            (Load::KvTotal, source("vllm:cache_config_info", Some("num_gpu_blocks"), 1.0)),
        ]
        .into(),
        limits: [(Limit::MaxModelLen, source("vllm:cache_config_info", Some("kv_cache_size_tokens"), 1.0))].into(),
    };
    Engine::NAMED.into_iter().chain([Engine::Custom(Arc::new(mapping))]).collect()
}

/// See the head of this file.
pub fn target(data: &[u8]) {
    for engine in engines() {
        if let Ok(reading) = read(&engine, data) {
            check(&reading);
        }
    }
    if let Ok(gpus) = dcgm::read(data) {
        assert!(!gpus.is_empty() && gpus.len() <= 256, "{} GPUs", gpus.len());
        gpus.iter().for_each(check_gpu);
    }
    let mut pieces = Reader::default();
    data.chunks(7).for_each(|piece| pieces.push(None, piece));
    let whole = Reader::default().read(None, data);
    assert_eq!(pieces.end(None), whole, "in pieces");
    pieces.begin();
    let other: Vec<u8> = data.iter().map(|byte| if *byte == b'1' { b'7' } else { *byte }).collect();
    pieces.begin();
    pieces.push(None, &other);
    assert_eq!(pieces.read(None, data), whole, "after the same with other numbers");
    pieces.begin();
    data.split_inclusive(|byte| *byte == b'\n').step_by(2).for_each(|line| pieces.push(None, line));
    assert_eq!(pieces.read(None, data), whole, "after half of its lines");
    if let Some(engine) = recognise(data) {
        assert!(!matches!(whole, Err(PageError::UnknownEngine)), "{engine:?} {whole:?}");
    }
}

fn check(reading: &Reading) {
    let ranks = &reading.ranks;
    assert!(!ranks.is_empty() && ranks.len() <= 256, "{} ranks", ranks.len());
    assert!(ranks.is_sorted_by(|left, right| left.rank < right.rank), "{ranks:?}");
    ranks.iter().for_each(check_rank);
    let limits = reading.limits;
    for limit in [limits.block_size, limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len] {
        assert!(limit.is_none_or(|limit| limit > 0 && limit < 1 << 40), "{limits:?}");
    }
    reading.hardware.iter().for_each(check_gpu);
}

fn check_rank(rank: &RankReport) {
    let share = rank.kv_used_share;
    assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{rank:?}");
    if let (Some(used), Some(total)) = (rank.kv_used_blocks, rank.kv_total_blocks) {
        assert!(used <= total && total > 0 && share.is_none(), "{rank:?}");
    }
    for count in [rank.kv_used_blocks, rank.kv_total_blocks, rank.running, rank.waiting, rank.prefill_tokens] {
        assert!(count.is_none_or(|count| count <= 1_000_000_000_000), "{rank:?}");
    }
}

fn check_gpu(gpu: &Gpu) {
    assert!(gpu.utilization.is_none_or(|share| (0.0..=1.0).contains(&share)), "{gpu:?}");
    for bytes in [gpu.memory_used_bytes, gpu.memory_total_bytes] {
        assert!(bytes.is_none_or(|bytes| bytes <= 3 << 50), "{gpu:?}");
    }
}
