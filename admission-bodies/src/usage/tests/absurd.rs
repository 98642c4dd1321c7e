//! Reports that are not believed, and answers that are none.

use super::*;

const GOOD: &str = r#"{"choices":[],"usage":{"prompt_tokens":6,"completion_tokens":3}}"#;

#[test]
fn absurd_reports_are_not_believed_and_take_nothing_away() {
    for usage in [
        r#"{"prompt_tokens":-1,"completion_tokens":3}"#,
        r#"{"prompt_tokens":1e18}"#,
        r#"{"prompt_tokens":12.5}"#,
        r#"{"completion_tokens":18446744073709551615}"#,
        r#"{"completion_tokens":99999999999999999999999999}"#,
        r#"{"prompt_tokens":"9","completion_tokens":9}"#,
        r#"{"prompt_tokens":{"a":9},"completion_tokens":9}"#,
        r#"{"prompt_tokens":[9],"completion_tokens":9}"#,
        r#"{"prompt_tokens":true,"completion_tokens":9}"#,
        r#"{"input_tokens":4294967296,"cache_read_input_tokens":1}"#,
        r#"{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":-2}}"#,
        r#"{"prompt_tokens":0,"completion_tokens":0}"#,
        r#"{"prompt_tokens":null}"#,
        "{}",
        "null",
        "[1]",
        "7",
        r#""usage""#,
    ] {
        let bad = format!(r#"{{"choices":[],"usage":{usage}}}"#);
        assert_eq!(read(Form::Plain, &bad).0, Served::default(), "{usage}");
        assert_eq!(read(Form::Stream, &format!("data: {bad}\n\n")).0, by_deltas(0), "{usage}");
        let stream = format!("data: {GOOD}\n\ndata: {bad}\n\n");
        assert_eq!(read(Form::Stream, &stream).0, served(6, 0, 3), "{usage}");
        let stream = format!("data: {bad}\n\ndata: {GOOD}\n\n");
        assert_eq!(read(Form::Stream, &stream).0, served(6, 0, 3), "{usage}");
    }
}

#[test]
fn counts_only_grow() {
    let event = |usage: &str| format!("data: {{\"choices\":[],\"usage\":{{{usage}}}}}\n\n");
    let three = [
        event(r#""prompt_tokens":6,"completion_tokens":1"#),
        event(r#""completion_tokens":9"#),
        event(r#""prompt_tokens":0,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":900}"#),
    ];
    assert_eq!(read(Form::Stream, &three.concat()).0, served(6, 6, 9), "no more is cached than there is");
    let backwards: String = three.iter().rev().map(String::as_str).collect();
    let expected = Served { cached: Tokens(0), ..served(6, 0, 9) };
    assert_eq!(read(Form::Stream, &backwards).0, expected, "what is cached of nothing is nothing");
}

#[test]
fn what_comes_after_the_last_report_counts_by_deltas() {
    let delta = |text: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    let both = r#"data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}"#;
    let stream = format!("{both}\n\n{}{}", delta("b"), delta("c"));
    assert_eq!(read(Form::Stream, &stream).0, served(5, 0, 3));
    let fewer = format!("{}{}{GOOD_EVENT}", delta("a"), delta(&"b".repeat(400)));
    assert_eq!(read(Form::Stream, &fewer).0, served(6, 0, 3), "a report after all deltas is right");
}

const GOOD_EVENT: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":6,\"completion_tokens\":3}}\n\n";

#[test]
fn text_about_usage_is_no_report() {
    for answer in [
        r#"{"choices":[{"message":{"content":"say \"usage\":{\"prompt_tokens\":9,\"completion_tokens\":9}"}}]}"#,
        r#"{"choices":[{"message":{"content":"\\\"usage\":{\"prompt_tokens\":9}"}}]}"#,
        r#"{"choices":[{"message":{"usage":{"prompt_tokens":9}}}]}"#,
        r#"{"output":[{"usage":{"input_tokens":9}}]}"#,
        r#"{"x":{"usage":{"input_tokens":9}}}"#,
        r#"[{"usage":{"input_tokens":9}}]"#,
        r#""usage":{"input_tokens":9}"#,
    ] {
        assert_eq!(read(Form::Plain, answer).0, Served::default(), "{answer}");
    }
}

#[test]
fn an_answer_that_is_cut_off_says_what_it_has_said() {
    let plain = r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":6,"completion_tokens":12"#;
    assert_eq!(read(Form::Plain, plain), (Served::default(), Tokens(0), false));
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\" a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"conte";
    assert_eq!(read(Form::Stream, event), (by_deltas(1), Tokens(1), false));
    assert_eq!(read(Form::Stream, ""), (by_deltas(0), Tokens(0), false), "left before the first event");
    assert_eq!(read(Form::Plain, ""), (Served::default(), Tokens(0), false));
}

#[test]
fn what_cannot_be_read_says_nothing() {
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    for answer in [deep.as_str(), "", "<html>", "}{", "]", "{]", "{\"a\":}", "\u{0}\u{1}", "\"\\"] {
        assert_eq!(read(Form::Plain, answer).0, Served::default(), "{answer:.20}");
    }
    for stream in ["data: hello\n\n", "data: [1, 2]\n\n", "data: \"x\"\n\n", "data: {\"token\":{\"text\":\"a\"}}\n\n"] {
        assert_eq!(read(Form::Stream, stream).0, Served::default(), "{stream}");
    }
    let encoded = read(Form::Encoded, GOOD);
    assert_eq!(encoded, (Served::default(), Tokens(0), false));
    let broken_between = format!("data: {{\"choices\":[{{]\n\ndata: {{\"a\":\"\n\n{GOOD_EVENT}");
    assert_eq!(read(Form::Stream, &broken_between).0, served(6, 0, 3), "an event does not spoil the next");
}

#[test]
fn no_bytes_break_the_reader() {
    let alphabet: Vec<&[u8]> = vec![
        b"data: ",
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b"\"",
        b"\\",
        b"\"usage\":",
        b"\"choices\":",
        b"\"delta\":",
        b"\"content\":",
        b"\"prompt_tokens\":",
        b"\"type\":",
        b"9",
        b"-",
        b"1e9",
        b"null",
        b"\n",
        b"\r\n",
        b"\n\n",
        b"[DONE]",
        b"u",
        b"\xff",
        b"\x00",
        b" ",
    ];
    for seed in 0..2_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let bytes: Vec<u8> =
            (0..rng.usize(1..200)).flat_map(|_| alphabet[rng.usize(..alphabet.len())].to_vec()).collect();
        for form in [Form::Plain, Form::Stream] {
            let mut whole = AnswerReader::new(form);
            whole.feed(&bytes);
            let mut in_pieces = AnswerReader::new(form);
            pieces(&bytes, seed).for_each(|piece| in_pieces.feed(piece));
            assert_eq!(known(&whole), known(&in_pieces), "seed {seed}");
        }
        let mut whole = UsageChunkFilter::default();
        let mut all = whole.feed(&bytes).into_owned();
        all.extend(whole.finish());
        let mut filter = UsageChunkFilter::default();
        let mut parts: Vec<u8> = pieces(&bytes, seed).flat_map(|piece| filter.feed(piece).into_owned()).collect();
        parts.extend(filter.finish());
        assert_eq!(all.len(), parts.len(), "seed {seed}: {:?}", String::from_utf8_lossy(&bytes));
        assert_eq!(all, parts, "seed {seed}");
    }
}
