//! Pages that went wrong, `tests/corpus/exposition`, and good ones that are cut off: what is read of them. That no page at all
//! makes an adapter panic, or report what no worker can have, is what the fuzz target `exposition` tries.

use std::path::Path;

use admission_core::view::RankReport;
use host_sidecar::engines::{Engine, Reader};

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

#[test]
fn pages_that_went_wrong_are_read_for_what_they_are_worth() {
    let running = |rank: &RankReport| rank.running;
    let waiting = |rank: &RankReport| rank.waiting;
    let kv = |rank: &RankReport| rank.kv_used_blocks.or(rank.kv_total_blocks);
    for (name, page) in pages("corpus/exposition") {
        let read = Reader::default().read(None, &page);
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
    for (name, page) in pages("pages") {
        let whole = Reader::default().read(None, &page).ok();
        // Some five hundred places of every page.
        for end in (0..page.len()).step_by(1 + page.len() / 500) {
            let what = format!("{name} cut at {end}");
            let cut = &page[..end];
            let cut = Reader::default().read(None, cut);
            if let (Some(whole), Ok(cut)) = (&whole, cut)
                && whole.ranks.len() == 1
                && whole.engine == cut.engine
            {
                check_part(&cut.ranks[0], &whole.ranks[0], &what);
            }
        }
    }
}

#[test]
fn a_page_that_comes_in_pieces_says_what_the_whole_does() {
    for (name, page) in [pages("pages"), pages("corpus/exposition")].concat() {
        for configured in Engine::NAMED.iter().map(Some).chain([None]) {
            let whole = Reader::default().read(configured, &page);
            let mut reader = Reader::default();
            // Of no scrape that was broken off is anything left.
            reader.push(configured, b"vllm:num_requests_running 77\nvllm:num_requests_wait");
            for size in [1, 7, 1_000, 16_384, page.len().max(1)] {
                reader.begin();
                page.chunks(size).for_each(|piece| reader.push(configured, piece));
                assert_eq!(reader.end(configured), whole, "{name} in pieces of {size} as {configured:?}");
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
