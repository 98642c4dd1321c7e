use super::text::Feature;
use super::*;

mod reference;

fn scan(body: &[u8]) -> Result<Facts, Broken> {
    let mut scanner = Scanner::default();
    scanner.feed(body);
    scanner.finish().map(|()| scanner.facts())
}

fn facts(body: &str) -> Facts {
    scan(body.as_bytes()).unwrap()
}

const CHAT: &str = r#" {"messages": [ {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": [{"type": "text", "text": "Caf\u00e9 42 \ud83d\ude00 世界"},
      {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}]}],
    "temperature": 0.5, "stop": ["\n\n", null], "max_tokens": 64, "n": 2, "stream": true,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "model": "llama-3.3-70b"} "#;

#[test]
fn reads_a_chat_request_in_any_key_order() {
    let facts = facts(CHAT);
    assert_eq!(facts.model.as_deref(), Some("llama-3.3-70b"));
    assert_eq!((facts.max_tokens, facts.sequences, facts.messages), (Some(64), 2, 2));
    assert_eq!(facts.bytes, CHAT.len() as u64);
    let count = |feature| facts.text.count(feature);
    assert_eq!((count(Feature::Latin), count(Feature::Han), count(Feature::Emoji)), (1, 2, 1));
    assert_eq!((count(Feature::Digit), count(Feature::Line)), (2, 1), "no data of the image, no role, no stop");
    assert_eq!(facts.text.count(Feature::Word), 3 + 6, "Be brief Caf + the tools with their keys");
}

#[test]
fn what_templates_may_render_counts_wherever_it_stands() {
    let words = |body: &str| facts(body).text.count(Feature::Word);
    let part = r#"{"text": "hi", "type": "text"}"#;
    assert_eq!(words(&format!(r#"{{"messages": [{{"content": [{part}, "three bare words"]}}]}}"#)), 4);
    assert_eq!(words(r#"{"chat_template_kwargs": {"context": "two words"}}"#), 2);
    assert_eq!(words(r#"{"documents": [{"text": "a"}]}"#), 2, "with its keys");
    assert_eq!(words(r#"{"user": "a b c", "stop": ["x"], "metadata": {"k": "v"}}"#), 0);
}

#[test]
fn a_name_is_free_only_as_long_as_a_name() {
    let words = |role: &str| {
        facts(&format!(r#"{{"messages": [{{"role": "{role}", "content": "x"}}]}}"#)).text.count(Feature::Word)
    };
    assert_eq!((words("assistant"), words(&"a b ".repeat(100))), (1, 1 + 200 - 8));
}

#[test]
fn the_longest_prompt_is_known_whatever_stands_beside_it() {
    let longest = |body: &str| facts(body).longest_prompt.map(|longest| (longest.text.bytes(), longest.token_ids));
    assert_eq!(longest(r#"{"prompt": "one"}"#), None);
    assert_eq!(longest(r#"{"prompt": [[1, 2, 3], [4]]}"#), Some((0, 3)));
    assert_eq!(longest(r#"{"input": ["a", "bcd", "ef"]}"#), Some((3, 0)));
    let big = "word ".repeat(100);
    let padded = format!(r#"{{"prompt": ["{big}"{}], "suffix": ["", ""]}}"#, r#", "a""#.repeat(200));
    assert_eq!(longest(&padded), Some((500, 0)));
    let beside = format!(r#"{{"messages": [{{"content": "{big}"}}], "prompt": ["a", "b", [7, 8, 9]]}}"#);
    assert_eq!(longest(&beside), Some((500, 3)), "what stands beside them may be read into each");
    assert_eq!(longest(&format!(r#"{{"prompt": "{big}", "input": ["a", "bc"]}}"#)), Some((502, 0)));
    assert_eq!(longest(&format!(r#"{{"prompt": ["a", "bc"], "suffix": "{big}"}}"#)), Some((502, 0)));
    let twice = format!(r#"{{"prompt": ["a", "b"], "prompt": "{big}"}}"#);
    assert_eq!((longest(&twice), facts(&twice).sequences), (Some((501, 0)), 2), "the list with most counts");
}

#[test]
fn messages_of_every_api_are_read() {
    let anthropic = facts(
        r#"{"model": "m", "system": [{"type": "text", "text": "brief"}], "max_tokens": 9, "tools": [{"name": "f", "input_schema": {}}],
        "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
          {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain words count"}},
          {"type": "tool_result", "tool_use_id": "t1", "content": "done"}]}], "stream": true}"#,
    );
    assert_eq!((anthropic.messages, anthropic.tools, anthropic.stream), (1, 1, Some(true)));
    assert_eq!(anthropic.media, Media { images: 1, recordings: 0, files: 1 });
    let text = |facts: &Facts, more: u64| assert_eq!(facts.text.bytes(), more);
    text(
        &anthropic,
        ("brief".len() + "plain words count".len() + "t1done".len() + r#"{"name":"f","input_schema":{}}"#.len()) as u64,
    );
    let responses = facts(
        r#"{"input": [{"role": "user", "content": [{"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA"}, {"type": "input_file", "file_data": "QUJD", "filename": "x"}]},
        {"type": "function_call_output", "call_id": "c", "output": "4"}], "instructions": "be kind", "max_output_tokens": 7}"#,
    );
    assert_eq!((responses.messages, responses.max_tokens, responses.sequences), (2, Some(7), 1));
    assert_eq!(responses.media, Media { images: 1, recordings: 0, files: 1 });
    text(&responses, "lookxc4be kind".len() as u64);
    let chat = facts(
        r#"{"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f-1"}}, {"type": "video_url", "video_url": {"url": "x"}}]}]}"#,
    );
    assert_eq!(chat.media, Media { images: 0, recordings: 1, files: 2 });
    text(&chat, 0);
    let by_id = facts(
        r#"{"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        {"source": {"file_id": "file_2", "type": "file"}, "type": "document"}, {"type": "container_upload", "file_id": "file_3"}]}]}"#,
    );
    assert_eq!(by_id.media, Media { images: 1, recordings: 0, files: 2 }, "each once");
    let embeddings = facts(r#"{"input": [[5, 6], [7]], "encoding_format": "float"}"#);
    assert_eq!((embeddings.token_ids, embeddings.sequences), (3, 2));
}

#[test]
fn switches_are_read_as_workers_read_them() {
    let stream = |value: &str| facts(&format!(r#"{{"stream": {value}}}"#)).stream;
    assert_eq!((stream("true"), stream("\"True\""), stream("1")), (Some(true), Some(true), Some(true)));
    assert_eq!((stream("false"), stream("0"), stream("null"), stream("{}")), (Some(false), Some(false), None, None));
    let usage = |options: &str| facts(&format!(r#"{{"stream_options": {options}}}"#)).include_usage;
    assert_eq!((usage(r#"{"include_usage": true}"#), usage(r#"{"include_usage": false}"#)), (Some(true), Some(false)));
    assert_eq!((usage(r#"{"x": {"include_usage": true}}"#), usage("{}"), usage("null")), (None, None, None));
}

#[test]
fn chunk_borders_anywhere_change_nothing() {
    let whole = facts(CHAT);
    for border in 0..CHAT.len() {
        let mut scanner = Scanner::default();
        let (first, second) = CHAT.as_bytes().split_at(border);
        scanner.feed(first);
        scanner.feed(second);
        assert_eq!(scanner.finish(), Ok(()), "border at {border}");
        assert_eq!(scanner.facts(), whole, "border at {border}");
    }
    let mut scanner = Scanner::default();
    CHAT.as_bytes().iter().for_each(|byte| scanner.feed(&[*byte]));
    assert_eq!(scanner.facts(), whole);
}

#[test]
fn prompts_are_text_a_list_or_token_ids() {
    let read = |prompt: &str| facts(&format!(r#"{{"prompt": {prompt}, "best_of": 3}}"#));
    let text = read(r#""two words""#);
    assert_eq!((text.text.count(Feature::Word), text.sequences, text.token_ids), (2, 3, 0));
    assert_eq!(read(r#"["a", "b"]"#).sequences, 6);
    let ids = read("[1, 2, 30000]");
    assert_eq!((ids.token_ids, ids.sequences), (3, 3));
    let lists = read("[[1, 2], [3]]");
    assert_eq!((lists.token_ids, lists.sequences), (3, 6));
    assert_eq!(read("[]").token_ids, 0);
    assert_eq!(read("[true, false, -0, -0.0, 5.0, 1e2, null]").token_ids, 6, "workers take these for numbers");
    let tensor = facts(r#"{"inputs": [{"name": "input_ids", "shape": [1, 3], "data": [[7, 8, 9]]}]}"#);
    assert_eq!((tensor.token_ids, tensor.holds_prompt), (5, true), "its shape counts as two more");
    let batch = facts(r#"{"input_ids": [[1, 2], [3], []], "n": 2}"#);
    assert_eq!(
        (batch.token_ids, batch.sequences, batch.longest_prompt.map(|longest| longest.token_ids)),
        (3, 6, Some(2))
    );
    let in_place = facts(r#"{"messages": [{"role": "user", "content": "x"}], "input_ids": [1, 2, 3, "four"]}"#);
    assert_eq!((in_place.token_ids, in_place.text.bytes()), (3, 5));
}

#[test]
fn of_several_fields_of_prompts_the_one_with_most_counts() {
    let read = |fields: &str| facts(&format!("{{{fields}}}"));
    for field in ["prompt", "input", "inputs", "text_input", "text"] {
        let listed = read(&format!(r#""{field}": ["a", "b", "c"]"#));
        assert_eq!((listed.sequences, listed.holds_prompt), (3, true), "{field}");
        let hidden = read(&format!(r#""{field}": ["a", "b", "c"], "prompt": "x", "input": ["y"], "inputs": null"#));
        assert_eq!((hidden.sequences, hidden.text.bytes()), (3, 5), "{field}");
    }
    assert!(!read(r#""text": {"format": {"type": "text"}}, "prompt": null, "documents": ["x"]"#).holds_prompt);
    assert!(read(r#""input_ids": [1]"#).holds_prompt && read(r#""messages": []"#).holds_prompt);
}

#[test]
fn limits_of_other_engines_count_wherever_they_are_read() {
    let read = |fields: &str| facts(&format!(r#"{{"inputs": "x", {fields}}}"#));
    for (fields, max_tokens, answers) in [
        (r#""max_new_tokens": 5"#, Some(5), 1),
        (r#""n_predict": 6, "n": 2"#, Some(6), 2),
        (r#""n_predict": -1"#, None, 1),
        (r#""parameters": {"max_new_tokens": 7, "best_of": 3}"#, Some(7), 3),
        (r#""sampling_params": [{"n": "4"}, {"n": 2, "max_new_tokens": 8}], "n": null"#, Some(8), 4),
        (r#""sampling_params": {"n": 9}, "sampling_params": {"n": 1}"#, None, 9),
        (r#""x": {"n": 9}"#, None, 1),
    ] {
        let facts = read(fields);
        assert_eq!((facts.limit_elsewhere, facts.answers, facts.max_tokens), (max_tokens, answers, None), "{fields}");
    }
    assert_eq!(read(r#""parameters": {"stop": ["word"]}"#).text.bytes(), 5, "what else is there may be rendered");
    for (written, in_background) in [("true", Some(true)), (r#""Yes""#, Some(true)), ("0", Some(false)), ("null", None)]
    {
        assert_eq!(read(&format!(r#""background": {written}"#)).background, in_background, "{written}");
    }
}

#[test]
fn of_a_chat_there_is_one_prompt() {
    let both = facts(r#"{"messages": [{"content": "x"}], "prompt": ["a", "b"], "n": 3}"#);
    assert_eq!((both.sequences_of(Api::Completions), both.sequences_of(Api::Chat)), (6, 3));
}

#[test]
fn what_the_body_does_not_hold_is_known_to_be_elsewhere() {
    let elsewhere = |field: &str| facts(&format!(r#"{{"input": "x", {field}}}"#)).elsewhere;
    for field in [
        r#""previous_response_id": "resp_1""#,
        r#""conversation": {"id": "conv_1"}"#,
        r#""truncate_prompt_tokens": 5"#,
        r#""prompt": {"id": "pmpt_1"}"#,
    ] {
        assert!(elsewhere(field), "{field}");
    }
    assert!(!elsewhere(r#""previous_response_id": null"#) && !elsewhere(r#""x": {"conversation": 1}, "prompt": "y""#));
}

#[test]
fn null_is_no_picture() {
    let parts = r#"{"image_url": "u", "file_id": null}, {"image_url": null, "input_audio": null, "file_data": "QUJD"}"#;
    let media = facts(&format!(r#"{{"input": [{{"content": [{parts}]}}]}}"#)).media;
    assert_eq!(media, Media { images: 1, recordings: 0, files: 1 });
}

#[test]
fn the_last_of_equal_keys_counts_and_escaped_keys_are_the_same_keys() {
    let facts = facts(r#"{"model": "a", "max_tokens": 5, "mod\u0065l": "b", "max_tokens": 7, "model\u0000": "c"}"#);
    assert_eq!((facts.model.as_deref(), facts.max_tokens), (Some("b"), Some(7)));
    assert_eq!(scan(r#"{"model": "a", "model": null}"#.as_bytes()).unwrap().model, None);
}

#[test]
fn a_key_with_half_a_character_is_another_key() {
    for key in [r"model\ud83d", r"\ud83dmodel", r"mo\ude00del", r"model\ud83d\ud83d", r"model\ud83d\ude00"] {
        assert_eq!(facts(&format!(r#"{{"model": "a", "{key}": "b"}}"#)).model.as_deref(), Some("a"), "{key}");
    }
    assert_eq!(facts(r#"{"\ud83d": 1, "mo\u0064el": "a"}"#).model.as_deref(), Some("a"), "the next is not touched");
}

#[test]
fn model_names_are_decoded_and_bounded() {
    assert_eq!(facts(r#"{"model": "\ud83d\ude00\/é"}"#).model.as_deref(), Some("😀/é"));
    assert_eq!(facts(r#"{"model": "\ud83dx"}"#).model.as_deref(), Some("x"), "half a pair is dropped");
    assert_eq!(facts(&format!(r#"{{"model": "{}"}}"#, "m".repeat(256))).model.map(|name| name.len()), Some(256));
    assert_eq!(facts(&format!(r#"{{"model": "{}"}}"#, "m".repeat(257))).model, None);
    assert_eq!(scan(b"{\"model\": \"\xff\xfe\"}").unwrap().model, None, "invalid UTF-8 names no model");
}

#[test]
fn limits_are_counts_or_nothing() {
    let limit = |number: &str| facts(&format!(r#"{{"max_tokens": {number}}}"#)).max_tokens;
    assert_eq!((limit("16"), limit("16.0"), limit("1e3")), (Some(16), Some(16), Some(1_000)));
    assert_eq!((limit("\"64\""), limit("\" 1_000\"")), (Some(64), Some(1_000)), "workers convert numbers in quotes");
    assert_eq!((limit("18446744073709551615"), limit("1e300")), (Some(u64::MAX), Some(u64::MAX)));
    let zeros = "0".repeat(50);
    for none in
        ["0", "1e999", "-1", "-1e999", "null", "true", "\"x\"", "{}", "NaN", &format!("-1.{zeros}"), &"x".repeat(41)]
    {
        assert_eq!(limit(none), None, "{none}");
    }
    // 5 to workers, and 5 answers if `n` says so.
    for long in [format!("5.{zeros}"), format!("\"{zeros}5\""), format!("\"{}5\"", " ".repeat(50)), "9".repeat(400)] {
        assert_eq!(limit(&long), Some(u64::MAX), "{long}");
    }
    assert_eq!(facts(r#"{"max_completion_tokens": 3, "max_tokens": 9}"#).max_tokens, Some(9), "whichever counts");
    assert_eq!(facts(r#"{"n": 1e30, "prompt": ["a", "b"]}"#).sequences, u64::MAX, "nothing wraps");
}

#[test]
fn only_the_top_level_is_read_for_limits_and_model() {
    let facts = facts(r#"{"metadata": {"model": "no", "max_tokens": 9, "messages": [{}]}, "x": [{"n": 5}]}"#);
    assert_eq!((facts.model, facts.max_tokens, facts.messages, facts.sequences), (None, None, 0, 1));
}

#[test]
fn what_is_no_json_object_is_broken_where_it_breaks() {
    let cases: [(&[u8], &str, u64); 14] = [
        (b"", "ends too early", 0),
        (b"[1]", "object was expected", 0),
        (b"\xef\xbb\xbf{}", "object was expected", 0),
        (b"{\"a\":1", "ends too early", 6),
        (b"{\"a\":\"b", "ends too early", 7),
        (b"{\"a\" 1}", "`:` was expected", 5),
        (b"{\"a\":}", "a value was expected", 5),
        (b"{\"a\":1,}", "a key was expected", 7),
        (b"{\"a\":[1}", "brackets", 7),
        (b"{\"a\":[1 2]}", "closing bracket", 8),
        (b"{\"a\":\"\\x\"}", "unknown escape", 7),
        (b"{\"a\":\"\\u12g4\"}", "hexadecimal", 10),
        (b"{} {}", "follows", 3),
        (b"{,}", "a key was expected", 1),
    ];
    for (body, what, at) in cases {
        let broken = scan(body).unwrap_err();
        assert!(broken.what.contains(what) && broken.at == at, "{:?}: {broken}", String::from_utf8_lossy(body));
    }
}

#[test]
fn nesting_is_read_to_a_depth_and_refused_beyond() {
    let nested = |depth: usize| format!(r#"{{"a":{}1{}}}"#, "[".repeat(depth), "]".repeat(depth));
    assert!(scan(nested(126).as_bytes()).is_ok());
    assert!(scan(nested(127).as_bytes()).unwrap_err().what.contains("too deeply"));
    assert!(scan("[{".repeat(100_000).as_bytes()).is_err());
    let objects = format!(r#"{}1{}"#, r#"{"a":"#.repeat(127), "}".repeat(127));
    assert!(scan(objects.as_bytes()).is_ok());
}

#[test]
fn no_bytes_break_the_scanner() {
    let mut rng = fastrand::Rng::with_seed(7);
    let alphabet = b"{}[]\",:\\u0d8model\xff\xc3 1e-";
    for _ in 0..20_000 {
        let body: Vec<u8> = (0..rng.usize(..60)).map(|_| alphabet[rng.usize(..alphabet.len())]).collect();
        let _ = scan(&body);
    }
}

/// serde_json is the reference for what is well formed: everything it takes, the scanner takes, with the same fields.
#[test]
fn agrees_with_a_json_parser_on_mutated_requests() {
    let mut rng = fastrand::Rng::with_seed(11);
    for _ in 0..20_000 {
        let mut body = CHAT.as_bytes().to_vec();
        for _ in 0..rng.usize(..3) {
            let place = rng.usize(..body.len());
            match rng.u8(..3) {
                0 => drop(body.remove(place)),
                1 => body[place] = rng.u8(32..127),
                _ => body.insert(place, b"{}[]\",:\\"[rng.usize(..8)]),
            }
        }
        let Ok(serde_json::Value::Object(reference)) = serde_json::from_slice(&body) else { continue };
        let facts = scan(&body).unwrap_or_else(|broken| panic!("{broken}: {}", String::from_utf8_lossy(&body)));
        assert_eq!(facts.model.as_deref(), reference.get("model").and_then(serde_json::Value::as_str));
        let number = |value: &serde_json::Value| value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
        let limit = reference.get("max_tokens").and_then(number).filter(|limit| *limit >= 1.0);
        assert_eq!(facts.max_tokens, limit.map(|limit| limit as u64), "{}", String::from_utf8_lossy(&body));
    }
}

/// Each of these was made to hide a long prompt where nothing was counted.
#[test]
fn what_tools_were_called_with_and_gave_back_counts_whatever_it_is_made_of() {
    let text = |part: &str| facts(&format!(r#"{{"messages": [{{"role": "x", "content": [{part}]}}]}}"#)).text.bytes();
    let (numbers, words) = ("12345,".repeat(1_000), "word ".repeat(1_000));
    assert!(text(&format!(r#"{{"type": "tool_use", "input": {{"rows": [{numbers}0]}}}}"#)) > 6_000);
    assert!(text(&format!(r#"{{"type": "tool_use", "input": {{"{words}": 1, "url": "{words}"}}}}"#)) > 10_000);
    let output = format!(r#"{{"input": [{{"type": "function_call_output", "output": {{"data": "{words}"}}}}]}}"#);
    assert!(facts(&output).text.bytes() > 5_000);
}

#[test]
fn text_that_is_sent_as_data_counts() {
    let text = |source: &str| {
        facts(&format!(r#"{{"messages": [{{"content": [{{"type": "document", "source": {{{source}}}}}]}}]}}"#))
            .text
            .bytes()
    };
    let data = |data: &str| text(&format!(r#""type": "base64", "data": "{data}""#));
    assert!(data(&"世界".repeat(1_000)) == 6_000 && data(&"12,5\\n".repeat(1_000)) == 5_000);
    assert_eq!(data(&"Hello.World\\u002e".repeat(1_000)), 12_000, "without a blank");
    let file = "QUJD+/==-_".repeat(1_000);
    assert_eq!(data(&file), 0, "that is data");
    assert_eq!(data(&format!("data:application/pdf;base64,{file}")), 0);
    let lines = "QUJD".repeat(19) + "\\r\\n";
    assert_eq!((data(&lines.repeat(100)), data(&"QUJ\\u002b\\/".repeat(100))), (0, 0), "however it is written");
    for kind in [r#""type": "text""#, r#""media_type": "text/plain; charset=utf-8; and what else fits""#] {
        let both = [format!(r#"{kind}, "data": "{file}""#), format!(r#""data": "{file}", {kind}"#)];
        assert_eq!(both.map(|source| text(&source)), [10_000; 2], "{kind}");
    }
    assert_eq!(text(&format!(r#""data": "{file}", "x": {{"data": "QUJD"}}, "type": "text""#)), 10_000);
    assert_eq!(text(&format!(r#""data": "{file}", "x": {{"type": "text"}}, "y": [{{"media_type": "text/x"}}]"#)), 0);
    let two = format!(r#"{{"source": {{"data": "{file}"}}}}, {{"source": {{"type": "text", "data": "QUJD"}}}}"#);
    assert_eq!(facts(&format!(r#"{{"messages": [{{"content": [{two}]}}]}}"#)).text.bytes(), 4);
}
