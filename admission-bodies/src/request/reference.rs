//! What a request says by a parser and its tree: slow and obvious. The scan is held against it, in tests and by fuzz targets.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use super::literal::{begins_a_count, switch, whole_number};
use super::scan::MAX_SHORT;
use super::{Facts, Longest, Media};

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// `null`, a switch or a number.
    Literal(Literal),
    /// A string as it reads.
    Text(String),
    /// An array.
    List(Vec<Self>),
    /// All entries of an object in their order, equal keys too.
    Object(Vec<(String, Self)>),
}

/// `null`, a switch or a number.
#[derive(Clone, Debug, PartialEq)]
pub struct Literal {
    /// As a parser writes it back.
    pub value: String,
    /// As the document writes it.
    pub spelled: String,
}

impl Literal {
    fn of(value: String) -> Node {
        Node::Literal(Self { spelled: value.clone(), value })
    }
}

impl Node {
    /// The tree of a document, if it is JSON.
    #[must_use]
    pub fn of(document: &[u8]) -> Option<Self> {
        let mut node: Self = serde_json::from_slice(document).ok()?;
        node.spell(&mut numbers(document).into_iter());
        Some(node)
    }

    /// Gives each number the next spelling.
    fn spell(&mut self, numbers: &mut impl Iterator<Item = String>) {
        match self {
            Self::Literal(literal)
                if literal.value.starts_with(|first: char| first == '-' || first.is_ascii_digit()) =>
            {
                literal.spelled = numbers.next().unwrap_or_default();
            }
            Self::Literal(_) | Self::Text(_) => {}
            Self::List(list) => list.iter_mut().for_each(|node| node.spell(numbers)),
            Self::Object(entries) => entries.iter_mut().for_each(|(_, node)| node.spell(numbers)),
        }
    }
}

/// The numbers of a document that is JSON, in their order.
fn numbers(document: &[u8]) -> Vec<String> {
    let (mut numbers, mut number) = (Vec::new(), String::new());
    let (mut in_string, mut escaped) = (false, false);
    for byte in document {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'-' | b'0'..=b'9' if !in_string => number.push(char::from(*byte)),
            b'+' | b'.' | b'e' | b'E' if !number.is_empty() => number.push(char::from(*byte)),
            _ if !number.is_empty() => numbers.push(std::mem::take(&mut number)),
            _ => {}
        }
    }
    numbers.extend(Some(number).filter(|number| !number.is_empty()));
    numbers
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
                Ok(Literal::of("null".to_owned()))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
                Ok(Literal::of(value.to_string()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
                Ok(Literal::of(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
                Ok(Literal::of(value.to_string()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
                Ok(Literal::of(Number::from_f64(value).map_or_else(String::new, |number| number.to_string())))
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
    limits: [Option<u64>; 7],
    /// Among `parameters` or `sampling_params`.
    parameters: [Option<u64>; 7],
    prompts: Vec<Longest>,
    /// Prompts before the field being read.
    before: usize,
    most_prompts: usize,
    /// Written as data, in an object of that depth.
    held: Option<(String, u32)>,
}

const LIMITS: [&str; 7] =
    ["max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict", "n", "best_of"];

/// What a body says; `None` of one that is no JSON object.
#[must_use]
pub fn facts(body: &[u8]) -> Option<Facts> {
    let Node::Object(entries) = Node::of(body)? else { return None };
    let mut reading = Reading::default();
    for (key, value) in &entries {
        reading.field(key, value);
    }
    let Reading { mut facts, limits, parameters, prompts, most_prompts, .. } = reading;
    facts.bytes = body.len() as u64;
    let largest =
        |of: std::ops::Range<usize>| limits[of.clone()].iter().chain(&parameters[of]).flatten().copied().max();
    facts.max_tokens = limits[0..3].iter().flatten().copied().max();
    facts.limit_elsewhere = limits[3..5].iter().chain(&parameters[0..5]).flatten().copied().max();
    facts.answers = largest(5..7).unwrap_or(1);
    facts.sequences = (most_prompts as u64).max(1).saturating_mul(facts.answers);
    if most_prompts > 1 {
        let mut listed = Longest::default();
        for prompt in &prompts {
            listed.text.add(&prompt.text);
            listed.token_ids += prompt.token_ids;
        }
        let mut one = Longest { text: facts.text.since(&listed.text), token_ids: facts.token_ids - listed.token_ids };
        let longest = prompts.into_iter().rev().max_by_key(weight).unwrap_or_default();
        one.text.add(&longest.text);
        one.token_ids += longest.token_ids;
        facts.longest_prompt = Some(one);
    }
    Some(facts)
}

impl Reading {
    fn field(&mut self, key: &str, value: &Node) {
        let scalar = match value {
            Node::Literal(Literal { value: text, .. }) | Node::Text(text) => Some(text.as_bytes()),
            _ => None,
        };
        self.facts.holds_prompt |= !is_null(value)
            && match key {
                "messages" | "prompt" | "input" | "inputs" | "text_input" | "input_ids" | "token_ids"
                | "prompt_token_ids" => true,
                "text" => !matches!(value, Node::Object(_)),
                _ => false,
            };
        match key {
            "model" => {
                self.facts.model = match value {
                    Node::Text(name) => Some(name.clone()).filter(|name| name.len() <= 256),
                    _ => None,
                }
            }
            "stream" => self.facts.stream = scalar.and_then(switch),
            "background" => self.facts.background = scalar.and_then(switch),
            "parameters" | "sampling_params" => self.parameters(value, 1),
            "stream_options" => self.options(value),
            "messages" => self.chat(value, (1, false), "messages"),
            "system" => self.chat(value, (1, false), "system"),
            "text" if matches!(value, Node::Object(_)) => self.strings(value),
            "prompt" | "input" | "inputs" | "text_input" | "text" => {
                self.before = self.prompts.len();
                self.facts.elsewhere |= matches!(value, Node::Object(_));
                self.chat(value, (1, false), "prompt");
                self.most_prompts = self.most_prompts.max(self.prompts.len() - self.before);
            }
            "input_ids" | "token_ids" | "prompt_token_ids" => {
                self.before = self.prompts.len();
                self.token_ids(value, 1, true);
                self.most_prompts = self.most_prompts.max(self.prompts.len() - self.before);
            }
            "previous_response_id" | "conversation" | "truncate_prompt_tokens" => {
                self.facts.elsewhere |= !is_null(value);
                self.strings(value);
            }
            "tools" | "functions" | "response_format" | "documents" => self.declared(key, value),
            "user" | "stop" | "stop_sequences" | "metadata" | "request_id" | "cache_salt" | "service_tier"
            | "encoding_format" => {}
            _ => match LIMITS.iter().position(|limit| *limit == key) {
                Some(index) => {
                    self.limits[index] = limit(value).filter(|limit| *limit > 0);
                }
                None => self.strings(value),
            },
        }
    }

    /// Limits in objects at the second and third depth; `depth` is that of the container around the value.
    fn parameters(&mut self, value: &Node, depth: u32) {
        match value {
            Node::List(list) => list.iter().for_each(|value| self.parameters(value, depth + 1)),
            Node::Object(entries) => {
                for (key, value) in entries {
                    match LIMITS.iter().position(|limit| limit == key).filter(|_| depth < 3) {
                        Some(index) if !matches!(value, Node::List(_) | Node::Object(_)) => {
                            let number = limit(value).filter(|limit| *limit > 0);
                            self.parameters[index] = self.parameters[index].max(number);
                        }
                        _ => self.parameters(value, depth + 1),
                    }
                }
            }
            other => self.strings(other),
        }
    }

    fn options(&mut self, value: &Node) {
        self.facts.include_usage = None;
        if let Node::Object(entries) = value {
            for (_, value) in entries.iter().filter(|(key, _)| key == "include_usage") {
                let (Node::Literal(Literal { value: text, .. }) | Node::Text(text)) = value else { continue };
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
            Node::Literal(literal) if is_prompt && depth > 1 => {
                self.facts.token_ids += u64::from(literal.value != "null");
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
                self.object(entries, (depth + 1, false), field);
            }
        }
    }

    fn object(&mut self, entries: &[(String, Node)], (depth, is_source): (u32, bool), field: &str) {
        for (key, value) in entries {
            self.part(key, value, (depth, is_source), field);
        }
        let says_text = |(key, value): &(String, Node)| match (key.as_str(), value) {
            ("type", Node::Text(kind)) => kind == "text",
            ("media_type", Node::Text(kind)) => kind.starts_with("text/"),
            _ => false,
        };
        if let Some((data, _)) = self.held.take_if(|(_, held)| *held == depth)
            && entries.iter().any(says_text)
        {
            self.weigh(&data);
        }
    }

    /// What stands under a key of an object; `depth` of what it stands in there, and whether the object is a `source`.
    fn part(&mut self, key: &str, value: &Node, (depth, in_source): (u32, bool), field: &str) {
        let Media { images, recordings, files } = &mut self.facts.media;
        match key {
            _ if is_null(value) => {}
            "image_url" => *images += 1,
            "input_audio" | "audio_url" => *recordings += 1,
            "file_data" | "file_id" | "file_url" | "video_url" if !in_source => *files += 1,
            _ => {}
        }
        if let ("source", Node::Object(entries)) = (key, value) {
            return self.object(entries, (depth + 1, true), field);
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
            "url" | "image_url" | "input_audio" | "audio_url" | "file_id" | "file_url" | "video_url" => {}
            "data" | "file_data" => {
                if let Some((data, _)) = self.held.take() {
                    self.weigh(&data);
                }
                let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(byte);
                let odd = text.len() - text.bytes().filter(is_base64).count();
                if odd * 32 > text.len() || !text.is_ascii() {
                    self.weigh(text);
                } else {
                    self.held = Some((text.clone(), depth));
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

    /// Token ids; `depth` of the container around the value, and whether that is the field's own list.
    fn token_ids(&mut self, value: &Node, depth: u32, listed: bool) {
        match value {
            Node::Text(text) => self.weigh(text),
            Node::Literal(_) => self.facts.token_ids += u64::from(depth > 1 && !is_null(value)),
            Node::List(list) => {
                let before = Longest { text: self.facts.text.clone(), token_ids: self.facts.token_ids };
                list.iter().for_each(|value| self.token_ids(value, depth + 1, depth == 1));
                if depth == 2 && listed {
                    let text = self.facts.text.since(&before.text);
                    self.prompts.push(Longest { text, token_ids: self.facts.token_ids - before.token_ids });
                }
            }
            Node::Object(entries) => {
                let values = entries.iter().map(|(_, value)| value).filter(|value| !matches!(value, Node::Literal(_)));
                values.for_each(|value| self.token_ids(value, depth + 1, false));
            }
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

fn is_null(value: &Node) -> bool {
    matches!(value, Node::Literal(literal) if literal.value == "null")
}

/// A limit; one that is written longer than any honest one is the largest.
fn limit(value: &Node) -> Option<u64> {
    let (spelled, value) = match value {
        Node::Literal(literal) => (&literal.spelled, &literal.value),
        Node::Text(text) => (text, text),
        _ => return None,
    };
    if spelled.len() > MAX_SHORT {
        return begins_a_count(&spelled.as_bytes()[..MAX_SHORT]).then_some(u64::MAX);
    }
    whole_number(value.as_bytes())
}

/// Without blanks, strings as they read.
fn write(value: &Node, out: &mut String) {
    match value {
        Node::Literal(literal) => out.push_str(&literal.spelled),
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
