//! Taking the report out of a stream.

use std::borrow::Cow;

use super::recorded::{CHAT, DONE, REPORT};
use super::*;

fn filtered<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> String {
    let mut filter = UsageChunkFilter::default();
    let mut out: Vec<u8> = pieces.flat_map(|piece| filter.feed(piece).into_owned()).collect();
    out.extend(filter.finish());
    String::from_utf8(out).unwrap()
}

/// However it is split.
fn strip(stream: &str) -> String {
    let whole = filtered([stream.as_bytes()].into_iter());
    assert_eq!(whole, filtered(stream.as_bytes().chunks(1)), "byte by byte");
    for seed in 0..200 {
        assert_eq!(whole, filtered(pieces(stream.as_bytes(), seed)), "seed {seed}");
    }
    whole
}

#[test]
fn the_report_goes_and_all_else_stays_byte_for_byte() {
    assert_eq!(strip(&format!("{CHAT}{REPORT}{DONE}")), format!("{CHAT}{DONE}"));
    assert_eq!(strip(&format!("{CHAT}{REPORT}")), CHAT);
    assert_eq!(strip(&format!("{REPORT}{CHAT}{DONE}")), format!("{CHAT}{DONE}"), "wherever it stands");
    let crlf = |text: &str| text.replace('\n', "\r\n");
    assert_eq!(strip(&crlf(&format!("{CHAT}{REPORT}{DONE}"))), crlf(&format!("{CHAT}{DONE}")));
    let without_blank_line = format!("{CHAT}{}", REPORT.trim_end());
    assert_eq!(strip(&without_blank_line), CHAT);
}

#[test]
fn what_is_no_report_stays() {
    for event in [
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: {\"choices\":[],\"usage\":null}\n\n",
        "data: {\"choices\":[],\"prompt_filter_results\":[{}]}\n\n",
        "data: {\"x\":{\"choices\":[],\"usage\":{}}}\n\n",
        "data: {\"choices\":[1],\"usage\":{}}\n\n",
        "data: {\"usage\":{\"prompt_tokens\":1}}\n\n",
        ": {\"choices\":[],\"usage\":{}}\n\n",
        "data: {\"choices\":[],\"usage\":{\n\n",
        "data: {}\ndata: {\"choices\":[],\"usage\":{}}\n\n",
        "\n\n\n",
        "data: [DONE]",
        "data: [DONE]\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"choices\\\":[],\\\"usage\\\":{}\"}}]}\n\n",
    ] {
        let stream = format!("{CHAT}{event}");
        assert_eq!(strip(&stream), stream, "{event}");
    }
}

#[test]
fn whole_events_pass_without_a_copy() {
    let mut filter = UsageChunkFilter::default();
    for event in CHAT.split_inclusive("\n\n") {
        assert!(matches!(filter.feed(event.as_bytes()), Cow::Borrowed(_)), "{event}");
    }
    let (begun, rest) = CHAT.split_once("\"delta\"").unwrap();
    assert_eq!(filter.feed(begun.as_bytes()).len(), begun.len(), "its choices have begun, so nothing is held back");
    assert!(matches!(filter.feed(rest.as_bytes()), Cow::Borrowed(_)));
    assert_eq!(filter.feed(b"data: {\"id\":1").len(), 0, "this may be a report");
    assert_eq!(&*filter.feed(b",\"choices\":[{"), b"data: {\"id\":1,\"choices\":[{");
    assert_eq!(&*filter.feed(b"}]}\n\ndata: [DONE]"), b"}]}\n\ndata: [DONE]", "nor is the end");
}

#[test]
fn no_more_is_held_back_than_a_report_can_be() {
    let mut filter = UsageChunkFilter::default();
    let long = format!("data: {{\"id\":\"{}", "x".repeat(20_000));
    let out: usize = long.as_bytes().chunks(100).map(|piece| filter.feed(piece).len()).sum();
    assert!(out > 10_000 && out + filter.finish().len() == long.len());
}
