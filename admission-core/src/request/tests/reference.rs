//! The scan against a JSON parser and a tree: what the tree says of a request, the scan must say, wherever it is cut.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
#[cfg(target_family = "wasm")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::super::literal::{switch, whole_number};
use super::super::text::Features;
use super::super::{Facts, Longest, Media, Scanner};

/// A JSON value; of an object all entries in their order, equal keys too.
#[derive(Debug)]
enum Node {
    Literal(String),
    Text(String),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Node;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Literal("null".to_owned()))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
                Ok(Node::Literal(value.to_string()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
                Ok(Node::Literal(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
                Ok(Node::Literal(value.to_string()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
                Ok(Node::Literal(Number::from_f64(value).map_or_else(String::new, |number| number.to_string())))
            }

            fn visit_str<E>(self, value: &str) -> Result<Node, E> {
                Ok(Node::Text(value.to_owned()))
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Node, S::Error> {
                let mut list = Vec::new();
                while let Some(node) = seq.next_element()? {
                    list.push(node);
                }
                Ok(Node::List(list))
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Node, M::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Node::Object(entries))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// By which the longest of several prompts is told.
fn weight(prompt: &Longest) -> u64 {
    prompt.text.bytes() + 4 * prompt.token_ids
}

/// What a request says, by its tree.
#[derive(Default)]
struct Reading {
    facts: Facts,
    limits: [Option<u64>; 5],
    prompts: Vec<Longest>,
}

const LIMITS: [&str; 5] = ["max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of"];

impl Reading {
    fn of(body: &[u8]) -> Option<Facts> {
        let Ok(Node::Object(entries)) = serde_json::from_slice::<Node>(body) else { return None };
        let mut reading = Self::default();
        for (key, value) in &entries {
            reading.field(key, value);
        }
        let Self { mut facts, limits: [a, b, c, n, best_of], prompts } = reading;
        facts.bytes = body.len() as u64;
        facts.max_tokens = a.max(b).max(c);
        facts.sequences = (prompts.len() as u64).max(1).saturating_mul(n.max(best_of).unwrap_or(1));
        if prompts.len() > 1 {
            let longest = prompts.into_iter().rev().max_by_key(weight);
            facts.longest_prompt = Some(longest.filter(|longest| weight(longest) > 0).unwrap_or_default());
        }
        Some(facts)
    }

    fn field(&mut self, key: &str, value: &Node) {
        let scalar = match value {
            Node::Literal(text) | Node::Text(text) => Some(text.as_bytes()),
            _ => None,
        };
        match key {
            "model" => {
                self.facts.model = match value {
                    Node::Text(name) => Some(name.clone()).filter(|name| name.len() <= 256),
                    _ => None,
                }
            }
            "stream" => self.facts.stream = scalar.and_then(switch),
            "stream_options" => self.options(value),
            "messages" => self.chat(value, (1, false), "messages"),
            "system" => self.chat(value, (1, false), "system"),
            "prompt" | "input" => {
                self.prompts.clear();
                self.chat(value, (1, false), "prompt");
            }
            "tools" | "functions" | "response_format" | "documents" => self.declared(key, value),
            "user" | "stop" | "stop_sequences" | "metadata" | "request_id" | "cache_salt" | "service_tier"
            | "encoding_format" => {}
            _ => match LIMITS.iter().position(|limit| *limit == key) {
                Some(index) => {
                    self.limits[index] = scalar.and_then(whole_number).filter(|limit| *limit > 0);
                }
                None => self.strings(value),
            },
        }
    }

    fn options(&mut self, value: &Node) {
        self.facts.include_usage = None;
        if let Node::Object(entries) = value {
            for (key, value) in entries.iter().filter(|(key, _)| key == "include_usage") {
                let (Node::Literal(text) | Node::Text(text)) = value else { continue };
                assert_eq!(key, "include_usage");
                self.facts.include_usage = switch(text.as_bytes());
            }
        }
    }

    fn weigh(&mut self, text: &str) {
        self.facts.text.add_bytes(text.as_bytes());
        self.facts.text.end_string();
    }

    fn strings(&mut self, value: &Node) {
        match value {
            Node::Text(text) => self.weigh(text),
            Node::List(list) => list.iter().for_each(|value| self.strings(value)),
            Node::Object(entries) => entries.iter().for_each(|(_, value)| self.strings(value)),
            Node::Literal(_) => {}
        }
    }

    /// Messages, or prompts, or blocks of them; `depth` of what the value stands in, and whether that is a list within lists.
    fn chat(&mut self, value: &Node, (depth, listed): (u32, bool), field: &str) {
        let is_prompt = field == "prompt";
        match value {
            Node::Text(text) => {
                let before = self.facts.text.clone();
                self.weigh(text);
                if is_prompt && depth == 2 && listed {
                    let text = self.facts.text.since(&before);
                    self.prompts.push(Longest { text, token_ids: 0 });
                }
            }
            Node::Literal(text) if is_prompt && matches!(depth, 2 | 3) => {
                if text.starts_with(|first: char| first.is_ascii_digit()) {
                    self.facts.token_ids += 1;
                }
            }
            Node::Literal(_) => {}
            Node::List(list) => {
                let before = Longest { text: self.facts.text.clone(), token_ids: self.facts.token_ids };
                list.iter().for_each(|value| self.chat(value, (depth + 1, depth == 1 || listed), field));
                if is_prompt && depth == 2 && listed {
                    let text = self.facts.text.since(&before.text);
                    self.prompts.push(Longest { text, token_ids: self.facts.token_ids - before.token_ids });
                }
            }
            Node::Object(entries) => {
                self.facts.messages += u64::from(depth == 2 && listed && field != "system");
                entries.iter().for_each(|(key, value)| self.part(key, value, depth + 1, field));
            }
        }
    }

    fn part(&mut self, key: &str, value: &Node, depth: u32, field: &str) {
        let Media { images, recordings, files } = &mut self.facts.media;
        match key {
            "image_url" => *images += 1,
            "input_audio" | "audio_url" => *recordings += 1,
            "file_data" | "file_id" | "file_url" | "video_url" => *files += 1,
            _ => {}
        }
        if matches!(key, "input" | "arguments" | "output" | "parameters")
            && matches!(value, Node::List(_) | Node::Object(_))
        {
            return self.declared(key, value);
        }
        let Node::Text(text) = value else {
            // A number of an object is no token id, whatever its depth.
            if !matches!(value, Node::Literal(_)) {
                self.chat(value, (depth, false), field);
            }
            return;
        };
        match (key, text.as_str()) {
            ("type", "image") => *images += 1,
            ("type", "document") => *files += 1,
            _ => {}
        }
        match key {
            "url" | "image_url" | "input_audio" | "audio_url" => {}
            "data" | "file_data" | "file_id" | "file_url" | "video_url" => {
                let gaps = text.bytes().filter(|byte| *byte <= b' ').count();
                if gaps * 64 > text.len() || !text.is_ascii() {
                    self.weigh(text);
                }
            }
            "detail" | "format" | "id" | "media_type" | "role" | "tool_call_id" | "type" => {
                let free = if key == "role" { 16 } else { 48 };
                let rest = text.as_bytes().get(free..).unwrap_or_default();
                self.facts.text.add_bytes(rest);
                self.facts.text.end_string();
            }
            _ => self.weigh(text),
        }
    }

    fn declared(&mut self, key: &str, value: &Node) {
        let mut written = String::new();
        write(value, &mut written);
        if matches!(value, Node::List(_) | Node::Object(_)) {
            written = written[1..written.len() - 1].to_owned();
        } else if let Node::Text(text) = value {
            written = text.clone();
        } else {
            written.clear();
        }
        self.weigh(&written);
        if let (Node::List(list), "tools" | "functions") = (value, key) {
            self.facts.tools += list.iter().filter(|tool| matches!(tool, Node::Object(_))).count() as u64;
        }
    }
}

/// Without blanks, strings as they read.
fn write(value: &Node, out: &mut String) {
    match value {
        Node::Literal(text) => out.push_str(text),
        Node::Text(text) => out.push_str(&format!("\"{text}\"")),
        Node::List(list) => {
            out.push('[');
            for (index, value) in list.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                write(value, out);
            }
            out.push(']');
        }
        Node::Object(entries) => {
            out.push('{');
            for (index, (key, value)) in entries.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                out.push_str(&format!("\"{key}\":"));
                write(value, out);
            }
            out.push('}');
        }
    }
}

const TOP: [&str; 24] = [
    "model",
    "stream",
    "stream_options",
    "messages",
    "system",
    "prompt",
    "input",
    "suffix",
    "tools",
    "functions",
    "response_format",
    "documents",
    "user",
    "metadata",
    "priority",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "best_of",
    "mod\\u0065l",
    "instructions",
    "x",
    "include_usage",
];

const INNER: [&str; 18] = [
    "role",
    "content",
    "type",
    "text",
    "image_url",
    "url",
    "data",
    "file_data",
    "input_audio",
    "id",
    "include_usage",
    "name",
    "parameters",
    "r\\u006fle",
    "video_url",
    "arguments",
    "output",
    "input",
];

const STRINGS: [&str; 22] = [
    "user",
    "image",
    "document",
    "plain words",
    "camelCase_and snake",
    "42",
    " ",
    "\\n\\n",
    "\\\"",
    "\\\\",
    "\\/\\b\\f\\t",
    "é",
    "\\u00e9",
    "世界",
    "\\u4e16",
    "😀",
    "\\ud83d\\ude00",
    "QUJDREVG",
    "true",
    "64",
    "<|x|> == {}[],:",
    "don't  stop 3.14159",
];

const LITERALS: [&str; 8] = ["0", "7", "-7", "1.5", "null", "true", "false", "18446744073709551615"];

struct Writer {
    rng: fastrand::Rng,
    out: String,
}

impl Writer {
    fn blanks(&mut self) {
        while self.rng.u8(..4) == 0 {
            self.out.push(*self.rng.choice(&[' ', '\t', '\r', '\n']).unwrap());
        }
    }

    fn string(&mut self) {
        let long = if self.rng.u8(..8) == 0 { 30 } else { 4 };
        self.out.push('"');
        for _ in 0..self.rng.usize(..long) {
            self.out.push_str(self.rng.choice(STRINGS).unwrap());
        }
        self.out.push('"');
    }

    fn value(&mut self, depth: u32) {
        match self.rng.u8(..6) {
            0 if depth < 6 => self.container(depth + 1, true),
            1 if depth < 6 => self.container(depth + 1, false),
            2 => self.out.push_str(LITERALS[self.rng.usize(..LITERALS.len())]),
            _ => self.string(),
        }
    }

    fn container(&mut self, depth: u32, object: bool) {
        self.out.push(if object { '{' } else { '[' });
        self.blanks();
        for entry in 0..self.rng.usize(..6) {
            if entry > 0 {
                self.out.push(',');
                self.blanks();
            }
            if object {
                let keys = if depth == 1 { &TOP[..] } else { &INNER[..] };
                let key = keys[self.rng.usize(..keys.len())];
                self.out.push_str(&format!("\"{key}\""));
                self.blanks();
                self.out.push(':');
                self.blanks();
            }
            self.value(depth);
            self.blanks();
        }
        self.out.push(if object { '}' } else { ']' });
    }
}

fn document(seed: u64) -> String {
    let mut writer = Writer { rng: fastrand::Rng::with_seed(seed), out: String::new() };
    writer.blanks();
    writer.container(1, true);
    writer.blanks();
    writer.out
}

fn scan_in_pieces(body: &[u8], rng: &mut fastrand::Rng) -> Option<Facts> {
    let mut scanner = Scanner::default();
    let mut rest = body;
    while !rest.is_empty() {
        let longest = if rng.bool() { 4 } else { 200 };
        let (piece, behind) = rest.split_at(rng.usize(1..=longest).min(rest.len()));
        scanner.feed(piece);
        rest = behind;
    }
    scanner.finish().ok().map(|()| scanner.facts())
}

#[test]
fn the_scan_says_what_a_tree_says_wherever_the_body_is_cut() {
    let mut rng = fastrand::Rng::with_seed(19);
    for seed in 0..6_000 {
        let body = document(seed);
        let tree = Reading::of(body.as_bytes()).unwrap_or_else(|| panic!("no JSON: {body}"));
        let mut whole = Scanner::default();
        whole.feed(body.as_bytes());
        assert_eq!(whole.finish(), Ok(()), "seed {seed}: {body}");
        assert_eq!(whole.facts(), tree, "seed {seed}: {body}");
        for _ in 0..3 {
            assert_eq!(scan_in_pieces(body.as_bytes(), &mut rng).as_ref(), Some(&tree), "seed {seed}: {body}");
        }
    }
}

#[test]
fn what_a_parser_takes_of_broken_documents_the_scan_takes_and_reads_alike() {
    let mut rng = fastrand::Rng::with_seed(23);
    let (mut read, mut refused) = (0, 0);
    for seed in 0..12_000 {
        let mut body = document(seed).into_bytes();
        for _ in 0..rng.usize(1..4) {
            let place = rng.usize(..body.len());
            match rng.u8(..4) {
                0 if body.len() > 1 => drop(body.remove(place)),
                1 => body[place] = rng.u8(..),
                2 => body.truncate(place + 1),
                _ => body.insert(place, b"{}[]\",:\\u0e1"[rng.usize(..12)]),
            }
        }
        let scanned = scan_in_pieces(&body, &mut rng);
        match Reading::of(&body) {
            // A number may be spelled otherwise than a tree writes it, and then it weighs otherwise where it is declared.
            Some(tree) => {
                let scanned = scanned.unwrap_or_else(|| panic!("refused: {}", String::from_utf8_lossy(&body)));
                let text = Features::default();
                let plain = |facts: Facts| Facts { text: text.clone(), longest_prompt: None, ..facts };
                assert_eq!(plain(scanned), plain(tree), "{}", String::from_utf8_lossy(&body));
                read += 1;
            }
            None => refused += 1,
        }
    }
    assert!(read > 1_000 && refused > 1_000, "{read} read, {refused} refused");
}
