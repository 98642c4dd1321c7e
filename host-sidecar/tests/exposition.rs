//! Whatever a worker sends: every adapter reads it without a panic, and reports nothing that no worker can have.
//!
//! `tests/corpus/exposition` holds pages that went wrong in one way each, `tests/pages` good ones. All are played as they
//! are, cut off and mutated by seed; a failure names the page and the seed.

use std::path::Path;
use std::sync::Arc;

use admission_core::view::RankReport;
use host_sidecar::engines::custom::Source;
use host_sidecar::engines::sheet::{Limit, Load};
use host_sidecar::engines::{Engine, Mapping, PageError, Reader, dcgm, read, recognise};
use host_sidecar::page::text;
use host_sidecar::reading::{Gpu, Reading};

/// Every page of a folder with its name, in the order of the names.
fn pages(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|end| end == "prom"))
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap()))
        .collect();
    pages.sort();
    pages
}

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

/// Reads a page in every way and holds what comes out against what can be.
fn try_all(page: &[u8], engines: &[Engine], what: &str) {
    let page = text(page);
    for engine in engines {
        if let Ok(reading) = read(engine, &page) {
            check(&reading, what);
        }
    }
    if let Ok(gpus) = dcgm::read(&page) {
        assert!(!gpus.is_empty() && gpus.len() <= 256, "{what}");
        gpus.iter().for_each(|gpu| check_gpu(gpu, what));
    }
    if let Some(engine) = recognise(&page) {
        let read = Reader::default().read(None, &page);
        assert!(!matches!(read, Err(PageError::UnknownEngine)), "{what}: {engine:?} {read:?}");
    }
}

fn check(reading: &Reading, what: &str) {
    let ranks = &reading.ranks;
    assert!(!ranks.is_empty() && ranks.len() <= 256, "{what}: {} ranks", ranks.len());
    assert!(ranks.is_sorted_by(|left, right| left.rank < right.rank), "{what}: {ranks:?}");
    ranks.iter().for_each(|rank| check_rank(rank, what));
    let limits = reading.limits;
    for limit in [limits.block_size, limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len] {
        assert!(limit.is_none_or(|limit| limit > 0 && limit < 1 << 40), "{what}: {limits:?}");
    }
    reading.hardware.iter().for_each(|gpu| check_gpu(gpu, what));
}

fn check_rank(rank: &RankReport, what: &str) {
    let share = rank.kv_used_share;
    assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{what}: {rank:?}");
    if let (Some(used), Some(total)) = (rank.kv_used_blocks, rank.kv_total_blocks) {
        assert!(used <= total && total > 0 && share.is_none(), "{what}: {rank:?}");
    }
    for count in [rank.kv_used_blocks, rank.kv_total_blocks, rank.running, rank.waiting, rank.prefill_tokens] {
        assert!(count.is_none_or(|count| count <= 1_000_000_000_000), "{what}: {rank:?}");
    }
}

fn check_gpu(gpu: &Gpu, what: &str) {
    assert!(gpu.utilization.is_none_or(|share| (0.0..=1.0).contains(&share)), "{what}: {gpu:?}");
    for bytes in [gpu.memory_used_bytes, gpu.memory_total_bytes] {
        assert!(bytes.is_none_or(|bytes| bytes <= 3 << 50), "{what}: {gpu:?}");
    }
}

#[test]
fn pages_that_went_wrong_are_read_for_what_they_are_worth() {
    let running = |rank: &RankReport| rank.running;
    let waiting = |rank: &RankReport| rank.waiting;
    let kv = |rank: &RankReport| rank.kv_used_blocks.or(rank.kv_total_blocks);
    for (name, page) in pages("corpus/exposition") {
        try_all(&page, &engines(), &name);
        let read = Reader::default().read(None, &text(&page));
        let first =
            |of: fn(&RankReport) -> Option<u64>| read.as_ref().map(|reading| of(&reading.ranks[0])).ok().flatten();
        let found = (first(running), first(waiting), first(kv));
        let expected = match name.as_str() {
            "bad-gateway" | "empty" | "html" | "json" | "too-many-ranks" => (None, None, None),
            "openmetrics" | "crlf" | "blanks" | "bytes-that-are-no-text" => (Some(3), Some(2), Some(40)),
            "cut-off-in-a-number" => (Some(3), None, None),
            "mixed-up-lines" => (None, Some(2), None),
            "negative" | "not-a-number" | "infinite" => (None, Some(2), None),
            "contradictory" => (None, Some(2), Some(40)),
            "repeated" => (Some(3), Some(2), Some(40)),
            "percent-for-a-share" => (Some(3), Some(2), Some(80)),
            "numbers-beyond-reason" => (None, None, None),
            "quotes-without-end" => (None, Some(2), None),
            other => panic!("say here what {other} is worth"),
        };
        assert_eq!(found, expected, "{name}: {read:?}");
    }
}

#[test]
fn pages_cut_anywhere_say_nothing_that_the_whole_does_not() {
    let engines = engines();
    for (name, page) in pages("pages") {
        let whole = Reader::default().read(None, &text(&page)).ok();
        // Some five hundred places of every page.
        for end in (0..page.len()).step_by(1 + page.len() / 500) {
            let what = format!("{name} cut at {end}");
            let cut = &page[..end];
            try_all(cut, &engines, &what);
            let cut = Reader::default().read(None, &text(cut));
            if let (Some(whole), Ok(cut)) = (&whole, cut)
                && whole.ranks.len() == 1
                && whole.engine == cut.engine
            {
                check_part(&cut.ranks[0], &whole.ranks[0], &what);
            }
        }
    }
}

/// What a part of a page says, the whole says too. Shares apart: a page without its number of blocks has one.
fn check_part(cut: &RankReport, whole: &RankReport, what: &str) {
    let numbers = |rank: &RankReport| {
        [rank.running, rank.waiting, rank.kv_used_blocks, rank.kv_total_blocks, rank.prefill_tokens]
    };
    for (cut, whole) in numbers(cut).into_iter().zip(numbers(whole)) {
        assert!(cut.is_none() || cut == whole, "{what}: {cut:?} of {whole:?}");
    }
}

#[test]
fn mutated_pages_break_nothing() {
    let engines = engines();
    let corpus = [pages("corpus/exposition"), pages("pages")].concat();
    let short: Vec<_> = corpus.iter().filter(|(_, page)| page.len() < 8_192).collect();
    for seed in 0..2_500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (name, page) = short[rng.usize(..short.len())];
        let mut page = page.clone();
        for _ in 0..rng.usize(1..6) {
            mutate(&mut rng, &mut page, &short[..]);
        }
        try_all(&page, &engines, &format!("{name} by seed {seed}"));
    }
}

fn mutate(rng: &mut fastrand::Rng, page: &mut Vec<u8>, others: &[&(String, Vec<u8>)]) {
    const TELLING: [&[u8]; 12] = [
        b"{",
        b"}",
        b"\"",
        b"\\",
        b"\n",
        b" NaN\n",
        b" -1\n",
        b" 1e308\n",
        b" 9223372036854775794\n",
        b"\xff",
        b",",
        b"=",
    ];
    let (from, to) = (rng.usize(..=page.len()), rng.usize(..=page.len()));
    let (from, to) = (from.min(to), from.max(to));
    match rng.u8(..5) {
        0 => page.truncate(from),
        1 => page.insert(from, rng.u8(..)),
        2 => drop(page.splice(from..from, TELLING[rng.usize(..TELLING.len())].iter().copied())),
        3 => {
            let piece = page[from..to.min(from + 300)].to_vec();
            let at = rng.usize(..=page.len());
            page.splice(at..at, piece);
        }
        _ => {
            let (_, other) = others[rng.usize(..others.len())];
            let from = rng.usize(..=other.len());
            page.extend_from_slice(&other[from..other.len().min(from + 500)]);
        }
    }
}
