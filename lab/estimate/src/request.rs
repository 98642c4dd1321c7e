//! Requests as clients send them, read by the core's own scanner.

use admission_core::estimate::Inputs;
use admission_core::request::{Api, Scanner};
use anyhow::{Result, anyhow};
use fastrand::Rng;
use serde_json::json;

use crate::texts::Text;
use crate::tokenizers::Counter;

/// What a chat template puts around each message, and before the answer: what OpenAI documents.
const AROUND: (u64, u64) = (4, 3);

/// Most bytes of a prompt's text.
const LONGEST: usize = 5_000;

/// Bytes of a long chat's text.
const LONG: (usize, usize) = (32_000, 160_000);

const SYSTEM: &str = "You are a helpful assistant. Answer in the language of the question.";

/// A chat: who says what.
pub struct Request {
    messages: Vec<(&'static str, String)>,
}

/// What the core makes of a request's body.
pub struct Read {
    /// What it counted.
    pub inputs: Inputs,
    /// How long the body was.
    pub bytes: u64,
}

impl Request {
    /// One question that is a stretch of a text, from an eighth of the longest up.
    pub fn about(blocks: &[&str], rng: &mut Rng) -> Self {
        let size = rng.usize(LONGEST / 8..LONGEST);
        let first = rng.usize(..blocks.len().max(1));
        let mut text = String::new();
        for block in blocks.iter().cycle().skip(first).take(blocks.len()) {
            text.push_str(block);
            if text.len() >= size {
                break;
            }
        }
        Self { messages: vec![("system", SYSTEM.to_owned()), ("user", text)] }
    }

    /// A question of one line.
    pub fn short(blocks: &[&str], rng: &mut Rng) -> Self {
        let block = blocks.get(rng.usize(..blocks.len().max(1))).copied().unwrap_or_default();
        let lines: Vec<&str> = block.lines().filter(|line| line.len() > 20).collect();
        let line = lines.get(rng.usize(..lines.len().max(1))).copied().unwrap_or("How are you today?");
        Self { messages: vec![("user", line.chars().take(240).collect())] }
    }

    /// A conversation: asks, answers in prose, lists and code.
    pub fn chat(texts: &Pools<'_>, rng: &mut Rng) -> Self {
        let mut messages = vec![("system", SYSTEM.to_owned())];
        let turns = rng.usize(2..7);
        Self::turns(texts, &mut messages, turns, rng);
        messages.push(("user", one(&texts.asks, rng).to_owned()));
        Self { messages }
    }

    /// A conversation that has become long, or has long documents in it.
    pub fn long(texts: &Pools<'_>, rng: &mut Rng) -> Self {
        let (bytes, mut messages) = (rng.usize(LONG.0..LONG.1), vec![("system", SYSTEM.to_owned())]);
        while messages.iter().map(|(_, text)| text.len()).sum::<usize>() < bytes {
            Self::turns(texts, &mut messages, 1, rng);
        }
        Self { messages }
    }

    fn turns(texts: &Pools<'_>, messages: &mut Vec<(&'static str, String)>, turns: usize, rng: &mut Rng) {
        for _ in 0..turns {
            let mut ask = one(&texts.asks, rng).to_owned();
            if rng.u8(..3) == 0 {
                ask = format!("{ask}\n\n```\n{}```", one(&texts.code, rng));
            }
            messages.push(("user", ask));
            let answer = match rng.u8(..6) {
                0 | 1 => one(&texts.prose, rng).to_owned(),
                2 => one(&texts.chinese, rng).to_owned(),
                3 => format!("Here you are:\n\n```\n{}```\n\nTell me if it does not work.", one(&texts.code, rng)),
                4 => format!("```json\n{}```", one(&texts.json, rng)),
                _ => one(&texts.lists, rng).to_owned(),
            };
            messages.push(("assistant", answer));
        }
    }

    /// What a worker with this tokenizer reports.
    pub fn tokens(&self, counter: &Counter) -> Result<u64> {
        let texts = self.messages.iter().map(|(_, text)| counter.count(text));
        let text = texts.sum::<Result<u64>>()?;
        Ok(text + AROUND.0 * self.messages.len() as u64 + AROUND.1)
    }

    /// As the core reads it, by samples where a seed says of which. Clients differ in what they escape.
    ///
    /// # Errors
    /// The scanner refuses the body.
    pub fn read(&self, model: &str, escaped: bool, seed: Option<u64>) -> Result<Read> {
        let messages: Vec<_> =
            self.messages.iter().map(|(role, text)| json!({"role": role, "content": text})).collect();
        let plain = json!({"model": model, "messages": messages, "stream": true}).to_string();
        let body = if escaped { ascii(&plain) } else { plain };
        let mut scanner = seed.map_or_else(Scanner::default, Scanner::sampling);
        scanner.feed(body.as_bytes());
        scanner.finish().map_err(|broken| anyhow!("{broken}"))?;
        let facts = scanner.facts();
        Ok(Read { inputs: Inputs::new(&facts.text, facts.messages, 0, Api::Chat), bytes: body.len() as u64 })
    }
}

/// Blocks that chats are put together from.
#[derive(Default)]
pub struct Pools<'a> {
    asks: Vec<&'a str>,
    lists: Vec<&'a str>,
    prose: Vec<&'a str>,
    code: Vec<&'a str>,
    json: Vec<&'a str>,
    chinese: Vec<&'a str>,
}

impl<'a> Pools<'a> {
    /// From the blocks, questions and lists that `takes` says yes to, by kind and place in the text.
    pub fn new(texts: &'a [Text], takes: impl Fn(&str, usize) -> bool) -> Self {
        let mut pools = Self::default();
        for text in texts {
            let blocks = || text.blocks.iter().map(String::as_str);
            let (into, all): (_, Vec<&str>) = match text.kind {
                "english" => (&mut pools.prose, blocks().collect()),
                "code" => (&mut pools.code, blocks().collect()),
                "json" => (&mut pools.json, blocks().collect()),
                "chinese" => (&mut pools.chinese, blocks().collect()),
                "chat" if text.whole().contains("---\n") => (&mut pools.lists, text.whole().split("---\n").collect()),
                "chat" => (&mut pools.asks, text.whole().lines().collect()),
                _ => continue,
            };
            into.extend(all.into_iter().enumerate().filter(|(at, _)| takes(text.kind, *at)).map(|(_, one)| one));
        }
        pools
    }
}

fn one<'a>(of: &[&'a str], rng: &mut Rng) -> &'a str {
    of.get(rng.usize(..of.len().max(1))).copied().unwrap_or_default()
}

/// JSON with all but ASCII as `\u` escapes, as Python writes it.
fn ascii(json: &str) -> String {
    let mut written = String::with_capacity(json.len() * 2);
    for char in json.chars() {
        if char.is_ascii() {
            written.push(char);
        } else {
            char.encode_utf16(&mut [0; 2]).iter().for_each(|unit| written.push_str(&format!("\\u{unit:04x}")));
        }
    }
    written
}
