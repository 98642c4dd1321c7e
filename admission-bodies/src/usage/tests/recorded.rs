//! Answers of each API, in the shapes that its vendor documents.

use super::*;

/// As vLLM streams a chat.
pub(super) const CHAT: &str = concat!(
    r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795187205,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}"#,
    "\n\n",
    r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795187205,"model":"tiny","choices":[{"index":0,"delta":{"content":" except"},"logprobs":null,"finish_reason":null,"token_ids":null}]}"#,
    "\n\n",
    r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795187205,"model":"tiny","choices":[{"index":0,"delta":{"content":" \"usage\":{"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}]}"#,
    "\n\n",
);

/// The chunk with the usage.
pub(super) const REPORT: &str = concat!(
    r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795187205,"model":"tiny","choices":[],"usage":{"prompt_tokens":6,"total_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}},"system_fingerprint":"vllm-0.32.0"}"#,
    "\n\n",
);

pub(super) const DONE: &str = "data: [DONE]\n\n";

/// As Anthropic streams a message.
const MESSAGE: &str = concat!(
    "event: message_start\n",
    r#"data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":10,"cache_read_input_tokens":100,"output_tokens":1}}}"#,
    "\n\nevent: content_block_start\n",
    r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
    "\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\nevent: content_block_delta\n",
    r#"data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}"#,
    "\n\nevent: content_block_delta\n",
    r#"data: {"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"a\":"}}"#,
    "\n\nevent: content_block_stop\n",
    "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
);

const MESSAGE_END: &str = concat!(
    "event: message_delta\n",
    r#"data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}"#,
    "\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

/// As OpenAI streams a response.
const RESPONSE: &str = concat!(
    "event: response.created\n",
    r#"data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","output":[],"usage":null}}"#,
    "\n\nevent: response.output_text.delta\n",
    r#"data: {"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"In"}"#,
    "\n\nevent: response.function_call_arguments.delta\n",
    r#"data: {"type":"response.function_call_arguments.delta","item_id":"fc_1","output_index":0,"delta":"{ \"a"}"#,
    "\n\n",
);

const RESPONSE_END: &str = concat!(
    "event: response.output_text.done\n",
    r#"data: {"type":"response.output_text.done","item_id":"msg_1","output_index":0,"content_index":0,"text":"In a shady grove"}"#,
    "\n\nevent: response.completed\n",
    r#"data: {"type":"response.completed","response":{"id":"resp_1","object":"response","status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"\"usage\":{\"input_tokens\":1}"}]}],"usage":{"input_tokens":37,"input_tokens_details":{"cached_tokens":32},"output_tokens":11,"output_tokens_details":{"reasoning_tokens":3},"total_tokens":48}}}"#,
    "\n\n",
);

#[test]
fn plain_answers() {
    for (answer, expected) in [
        (
            r#"{"id":"chatcmpl-2","choices":[{"index":0,"message":{"role":"assistant","content":"hi","refusal":null},"finish_reason":"length"}],"usage":{"prompt_tokens":6,"total_tokens":18,"completion_tokens":12,"prompt_tokens_details":null,"completion_tokens_details":null},"metrics":null}"#,
            served(6, 0, 12),
        ),
        (
            r#"{"object":"text_completion","choices":[{"text":"\"usage\":{\"prompt_tokens\":1}"}],"usage":{"prompt_tokens":6,"completion_tokens":12,"prompt_tokens_details":{"audio_tokens":1,"cached_tokens":5}}}"#,
            served(6, 5, 12),
        ),
        (
            r#"{"usage":{"prompt_tokens":6,"completion_tokens":1},"choices":[{"text":"as long as several tokens are"}]}"#,
            served(6, 0, 1),
        ),
        (
            r#"{"object":"list","data":[{"embedding":[0.1,-2e-3,7]}],"model":"e","usage":{"prompt_tokens":8,"total_tokens":8}}"#,
            served(8, 0, 0),
        ),
        (
            r#"{"object":"response","output":[{"content":[{"text":"x"}]}],"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":30},"output_tokens":87,"total_tokens":123}}"#,
            served(36, 30, 87),
        ),
        (
            r#"{"type":"message","content":[{"type":"text","text":"Hi"}],"usage":{"input_tokens":2095,"cache_creation_input_tokens":5,"cache_read_input_tokens":100,"cache_creation":{"ephemeral_5m_input_tokens":5},"output_tokens":503}}"#,
            served(2_200, 100, 503),
        ),
        (
            r#"{"usage":{"prompt_tokens":100,"cache_read_input_tokens":80,"prompt_tokens_details":{"cached_tokens":80},"completion_tokens":7}}"#,
            served(100, 80, 7),
        ),
    ] {
        let (got, output, ended) = read(Form::Plain, answer);
        assert_eq!((got, Some(output), ended), (expected, expected.output, true), "{answer}");
        let pretty = serde_json::to_string_pretty(&serde_json::from_str::<serde_json::Value>(answer).unwrap()).unwrap();
        assert_eq!(read(Form::Plain, &pretty).0, expected, "{pretty}");
    }
}

#[test]
fn a_chat_is_counted_by_its_deltas_until_it_reports() {
    assert_eq!(read(Form::Stream, CHAT), (by_deltas(2), Tokens(2), false));
    let reported = format!("{CHAT}{REPORT}");
    assert_eq!(read(Form::Stream, &reported), (served(6, 4, 3), Tokens(3), false));
    assert_eq!(read(Form::Stream, &format!("{reported}{DONE}")), (served(6, 4, 3), Tokens(3), true));
    assert_eq!(read(Form::Stream, &format!("{CHAT}{DONE}")), (by_deltas(2), Tokens(2), true), "none was asked for");
}

#[test]
fn the_halves_of_a_message_belong_together() {
    let (begun, output, ended) = read(Form::Stream, MESSAGE);
    assert_eq!((begun, output, ended), (served(135, 100, 2), Tokens(2), false), "cut off: by its deltas");
    let whole = format!("{MESSAGE}{MESSAGE_END}");
    assert_eq!(read(Form::Stream, &whole), (served(135, 100, 15), Tokens(15), true));
}

#[test]
fn a_response_reports_when_it_is_completed() {
    assert_eq!(read(Form::Stream, RESPONSE), (by_deltas(2), Tokens(2), false));
    let whole = format!("{RESPONSE}{RESPONSE_END}");
    assert_eq!(read(Form::Stream, &whole), (served(37, 32, 11), Tokens(11), true));
    let cut_short = whole.replace("response.completed", "response.incomplete");
    assert_eq!(read(Form::Stream, &cut_short), (served(37, 32, 11), Tokens(11), true));
}

#[test]
fn a_stream_of_an_error_has_failed_unless_something_came_before() {
    let failed = |answer: &str| {
        let mut reader = AnswerReader::new(Form::Stream);
        pieces(answer.as_bytes(), 3).for_each(|piece| reader.feed(piece));
        reader.failed()
    };
    let error = "data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\ndata: [DONE]\n\n";
    let typed = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    let response =
        "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\"},\"usage\":null}}\n\n";
    for alone in [error, typed, response] {
        assert!(failed(alone), "{alone}");
        assert!(!failed(&format!("{CHAT}{alone}")), "{alone} behind output");
        assert!(!failed(&format!("{REPORT}{alone}")), "{alone} behind a report");
    }
    let mut plain = AnswerReader::new(Form::Plain);
    plain.feed(b"{\"error\":{},\"choices\":[{\"message\":{\"content\":\"a\"}}]}");
    assert!(!plain.failed(), "it has an answer beside the error");
    for none in [CHAT, RESPONSE, "data: {\"choices\":[],\"error\":null}\n\n", "data: {\"x\":{\"error\":{}}}\n\n", ""] {
        assert!(!failed(none), "{none}");
    }
}

#[test]
fn lines_may_end_with_crlf_and_stand_among_comments() {
    let stream = format!(": a comment\n\n{CHAT}: another {{\n{REPORT}{DONE}");
    let expected = read(Form::Stream, &stream);
    assert_eq!(expected, (served(6, 4, 3), Tokens(3), true));
    assert_eq!(read(Form::Stream, &stream.replace('\n', "\r\n")), expected);
    assert_eq!(read(Form::Stream, &stream.replace("data: ", "data:")), expected, "a blank is a matter of taste");
    assert_eq!(read(Form::Stream, &stream.replace("\n\n", "\n")), expected, "as are blank lines");
    let in_two_lines = stream.replace(",\"choices\"", ",\ndata: \"choices\"");
    assert_eq!(read(Form::Stream, &in_two_lines), expected, "data may have several lines");
}

#[test]
fn every_kind_of_output_counts() {
    for delta in [
        r#"{"choices":[{"delta":{"content":"a"}}]}"#,
        r#"{"choices":[{"delta":{"reasoning_content":"a","content":null}}]}"#,
        r#"{"choices":[{"delta":{"reasoning":"a"}}]}"#,
        r#"{"choices":[{"delta":{"refusal":"a"}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\""}}]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]}}]}"#,
        r#"{"choices":[{"delta":{"content":[{"type":"text","text":"a"}]}}]}"#,
        r#"{"choices":[{"index":0,"text":"a","logprobs":{"tokens":["a"]}}]}"#,
        r#"{"type":"response.reasoning_summary_text.delta","delta":"a"}"#,
        r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"a"}}"#,
    ] {
        let (got, ..) = read(Form::Stream, &format!("data: {delta}\n\n"));
        assert_eq!(got, by_deltas(1), "{delta}");
    }
    for nothing in [
        r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
        r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
        r#"{"choices":[{"text":""}]}"#,
        r#"{"choices":[],"usage":null}"#,
        r#"{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"EqQBCgIYAhIM1gbcDa9GJwZA"}}"#,
        r#"{"type":"response.output_text.done","text":"all of it again"}"#,
    ] {
        let (got, ..) = read(Form::Stream, &format!("data: {nothing}\n\n"));
        assert_eq!(got, by_deltas(0), "{nothing}");
    }
}

#[test]
fn a_long_delta_is_as_many_tokens_as_its_bytes_make() {
    let of = |text: &str| {
        let (got, ..) =
            read(Form::Stream, &format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"));
        got.output.unwrap().0
    };
    assert_eq!([of("a"), of(&"a".repeat(16)), of(&"a".repeat(17)), of(&"a".repeat(400))], [1, 1, 5, 100]);
    assert_eq!(of(&r"\n".repeat(40)), 10, "an escape is one byte");
    assert_eq!(of(&r"\u00e4".repeat(40)), 40, "or at most four");
    assert_eq!(of(r#"\"\\\""#), 1);
}

#[test]
fn each_choice_of_a_chunk_counts() {
    let (got, ..) =
        read(Form::Stream, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}},{\"delta\":{\"content\":\"b\"}}]}\n\n");
    assert_eq!(got, by_deltas(2));
}
