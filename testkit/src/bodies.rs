//! Chat bodies of known shape and size, the same in every run.
//!
//! Text as people and programs send it: prose, code, data, lists, other scripts; with the escapes that JSON makes of line
//! ends and quotes. This file stands alone, so that benchmarks of other crates can include it.

/// That every body names.
const MODEL: &str = "llama-3.3-70b";

/// What prompts are put together from, in turn.
const PASSAGES: [&str; 12] = [
    "You are a careful assistant. Answer briefly, and say so when you do not know.\n",
    "Please summarise the incident report below for someone who was not on call that night.\n\n",
    "The first alert came at 02:14; by 02:31 three of the twelve workers had stopped answering \"health\" checks.\n",
    "fn main() {\n    let greeting = \"hello\";\n    println!(\"{greeting}, {}\", 6 * 7);\n}\n",
    "Über die Straße ging ein müder Bär; später, gegen 17 Uhr, kam er zurück. ",
    "| region | requests | p99 |\n|---|---|---|\n| eu-west | 182,044 | 1.93 s |\n| us-east | 97,310 | 2.41 s |\n",
    "请把下面的句子翻译成英文,并说明每个词的意思。",
    "{\"id\": 4711, \"tags\": [\"gpu\", \"queue\"], \"note\": \"retry\\tlater\"}\n",
    "- keep the tone friendly\n- no more than 200 words\n- quote the customer's own words where you can\n",
    "It's not a bug, it's a \"feature\" \u{1f642} — or so they said in the café on the corner. ",
    "Переведите, пожалуйста, этот абзац и сохраните все переносы строк.\n",
    "The quick brown fox jumps over the lazy dog, again and again, until somebody writes a longer sentence about it. ",
];

/// A body that benchmarks send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// As figures name it.
    pub name: &'static str,
    /// JSON of a chat completion.
    pub json: String,
}

/// What is compared, from the least to the most: a short question, conversations of 80 and of 500 messages, and one long
/// prompt.
#[must_use]
pub fn all() -> [Body; 4] {
    [
        Body { name: "small", json: chat(2, 262) },
        Body { name: "turns_38k", json: chat(80, 38_000) },
        Body { name: "turns_263k", json: chat(500, 263_000) },
        Body { name: "prompt_263k", json: chat(1, 263_000) },
    ]
}

/// A chat of so many messages that is so many bytes long. One that is too short for its messages is as long as they are.
fn chat(messages: usize, bytes: usize) -> String {
    let mut json = format!(r#"{{"model":"{MODEL}","max_tokens":64,"messages":["#);
    let frames: Vec<String> = (0..messages).map(frame).collect();
    let frame_bytes: usize = frames.iter().map(|frame| frame.len() + r#""},"#.len()).sum();
    let room = bytes.saturating_sub(json.len() + frame_bytes + "]}".len() - 1);
    let mut text = Text::default();
    for (number, frame) in frames.iter().enumerate() {
        // Shares of the room that add up to all of it.
        let share = room * (number + 1) / messages - room * number / messages;
        json.push_str(frame);
        text.fill(&mut json, share);
        json.push_str(if number + 1 == messages { r#""}"# } else { r#""},"# });
    }
    json.push_str("]}");
    json
}

/// The beginning of a message, up to its text.
fn frame(number: usize) -> String {
    let role = match number {
        0 => "system",
        number if number % 2 == 1 => "user",
        _ => "assistant",
    };
    format!(r#"{{"role":"{role}","content":""#)
}

/// Text without an end.
#[derive(Default)]
struct Text {
    next: usize,
}

impl Text {
    /// Writes exactly so many bytes of it as JSON writes them. The next piece begins with the next passage.
    fn fill(&mut self, json: &mut String, bytes: usize) {
        let end = json.len() + bytes;
        'full: loop {
            let passage = PASSAGES[self.next % PASSAGES.len()];
            self.next += 1;
            for sign in passage.chars() {
                let before = json.len();
                match sign {
                    '\n' => json.push_str("\\n"),
                    '\t' => json.push_str("\\t"),
                    '"' => json.push_str("\\\""),
                    '\\' => json.push_str("\\\\"),
                    sign => json.push(sign),
                }
                if json.len() >= end {
                    if json.len() > end {
                        json.truncate(before);
                    }
                    break 'full;
                }
            }
        }
        // Where a character of several bytes was too long.
        json.extend(std::iter::repeat_n('.', end - json.len()));
    }
}
