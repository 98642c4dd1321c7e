//! What a request did cost, as its worker reports it.

use serde::Deserialize;
use serde_json::Value;

use crate::units::Tokens;

/// Begins a report, in a plain answer as in a chunk of a stream. Inside a string its quotes would be escaped.
const MARK: &[u8] = b"\"usage\"";

/// Longest report read, in bytes.
const LONGEST: usize = 4_096;

/// Most tokens believed of one answer; a number above it is a worker's mistake.
const MOST_TOKENS: u64 = 1 << 32;

/// Tokens of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of its prompt.
    pub prompt: Tokens,
    /// Of its answers.
    pub output: Tokens,
}

impl Usage {
    /// Both together.
    #[must_use]
    pub const fn total(self) -> Tokens {
        self.prompt.plus(self.output)
    }
}

/// Finds the last report in an answer that comes in chunks, without keeping the answer.
#[derive(Debug, Default)]
pub struct UsageReader {
    state: State,
    after_backslash: bool,
    report: Vec<u8>,
    last: Option<Usage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// So many bytes of the mark have been seen.
    Looking(usize),
    /// The mark has been seen; a colon and an object should follow.
    Marked { colon: bool },
    /// Inside the object, so deep.
    Inside(u32),
}

impl Default for State {
    fn default() -> Self {
        Self::Looking(0)
    }
}

#[derive(Deserialize)]
struct Report {
    #[serde(alias = "input_tokens")]
    prompt_tokens: Option<Value>,
    #[serde(alias = "output_tokens")]
    completion_tokens: Option<Value>,
}

impl UsageReader {
    /// Takes the next bytes of the answer.
    pub fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.state = self.step(*byte);
            self.after_backslash = *byte == b'\\';
        }
    }

    /// The last report seen, if it was one.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.last
    }

    fn step(&mut self, byte: u8) -> State {
        match self.state {
            State::Looking(0) if byte == b'"' && self.after_backslash => State::Looking(0),
            State::Looking(seen) => match MARK.get(seen) {
                Some(expected) if *expected == byte && seen.saturating_add(1) == MARK.len() => {
                    State::Marked { colon: false }
                }
                Some(expected) if *expected == byte => State::Looking(seen.saturating_add(1)),
                _ => State::Looking(usize::from(byte == b'"' && !self.after_backslash)),
            },
            State::Marked { colon } => match byte {
                b' ' | b'\t' | b'\r' | b'\n' => State::Marked { colon },
                b':' if !colon => State::Marked { colon: true },
                b'{' if colon => {
                    self.report.clear();
                    self.report.push(byte);
                    State::Inside(1)
                }
                _ => State::Looking(usize::from(byte == b'"')),
            },
            State::Inside(depth) => self.inside(byte, depth),
        }
    }

    /// A report holds numbers and objects of numbers; braces inside strings are not expected, and cost only this report.
    fn inside(&mut self, byte: u8, depth: u32) -> State {
        if self.report.len() >= LONGEST {
            return State::Looking(0);
        }
        self.report.push(byte);
        let depth = match byte {
            b'{' => depth.saturating_add(1),
            b'}' => depth.saturating_sub(1),
            _ => depth,
        };
        if depth > 0 {
            return State::Inside(depth);
        }
        if let Ok(report) = serde_json::from_slice::<Report>(&self.report) {
            self.last = report.believed().or(self.last);
        }
        State::Looking(0)
    }
}

impl Report {
    /// Nothing of a report whose numbers cannot be counts.
    fn believed(&self) -> Option<Usage> {
        let count = |value: &Option<Value>| match value {
            None | Some(Value::Null) => Some(Tokens(0)),
            Some(value) => value.as_u64().filter(|count| *count <= MOST_TOKENS).map(Tokens),
        };
        let usage = Usage { prompt: count(&self.prompt_tokens)?, output: count(&self.completion_tokens)? };
        (usage.total() > Tokens(0)).then_some(usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_family = "wasm")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn read(answer: &str) -> Option<(u64, u64)> {
        let mut whole = UsageReader::default();
        whole.feed(answer.as_bytes());
        let mut by_byte = UsageReader::default();
        answer.as_bytes().iter().for_each(|byte| by_byte.feed(&[*byte]));
        assert_eq!(whole.usage(), by_byte.usage(), "{answer}");
        whole.usage().map(|usage| (usage.prompt.0, usage.output.0))
    }

    #[test]
    fn plain_and_streamed_reports_are_read() {
        assert_eq!(
            read(
                r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":6,"total_tokens":18,"completion_tokens":12,"prompt_tokens_details":{"cached_tokens":2}}}"#
            ),
            Some((6, 12))
        );
        let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n\
                      data: {\"choices\":[],\"usage\": {\"prompt_tokens\": 6, \"completion_tokens\": 3}}\n\ndata: [DONE]\n\n";
        assert_eq!(read(stream), Some((6, 3)));
        assert_eq!(read(r#""usage":{"input_tokens":4,"output_tokens":9}"#), Some((4, 9)));
    }

    #[test]
    fn the_last_report_counts() {
        assert_eq!(
            read(
                r#""usage":{"prompt_tokens":1,"completion_tokens":1} "usage":{"prompt_tokens":1,"completion_tokens":7}"#
            ),
            Some((1, 7))
        );
    }

    #[test]
    fn text_about_usage_is_no_report() {
        assert_eq!(read(r#"{"content":"say \"usage\":{\"prompt_tokens\":9} please"}"#), None);
        assert_eq!(read(r#"{"content":"\\"usage":{"prompt_tokens":5,"completion_tokens":0}"#), None, "as if escaped");
        assert_eq!(read(r#""usage" "usage":{"prompt_tokens":5}"#), Some((5, 0)));
    }

    #[test]
    fn absurd_reports_are_not_believed() {
        for usage in [
            r#"{"prompt_tokens":-1}"#,
            r#"{"prompt_tokens":1e18}"#,
            r#"{"completion_tokens":18446744073709551615}"#,
            "{}",
            "null",
            "[1]",
            r#"{"prompt_tokens":"9"}"#,
        ] {
            assert_eq!(read(&format!(r#"{{"usage":{usage}}}"#)), None, "{usage}");
        }
        assert_eq!(read(&format!(r#""usage":{{"x":"{}"}}"#, "y".repeat(9_000))), None);
        assert_eq!(read(r#""usage":{"prompt_tokens":3"#), None, "cut off");
    }
}
