//! An answer: what it has cost, and the report that is taken out of a stream.
//!
//! The first byte says where the rest, the answer, is cut into chunks.
//! - However it is cut, the reader knows the same at its end, whether it is one document or a stream, and the same goes on.
//! - Of a stream of whole events each goes on as it is or not at all, and only a report beside an empty list of choices goes
//!   not, as a JSON parser reads it.
//! - A report put between two events goes, and leaves all others as they would be without it.
//! - Of one whole JSON document the reader knows what the parser's tree says of its usage.

use admission_core::ask::MOST_TOKENS;
use admission_core::request::reference::{Literal, Node};
use admission_core::units::Tokens;
use admission_core::usage::{AnswerReader, Form, Served, UsageChunkFilter};

use crate::cut;

const REPORT: &[u8] =
    b"data: {\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":6,\"total_tokens\":9,\"completion_tokens\":3}}\n\n";

/// Longest event that is held back as a whole. Of a longer one it depends on the chunks.
const LONGEST: usize = 8_192;

/// Deepest nesting that the reader follows.
const DEEPEST: usize = 160;

/// See the head of this file.
pub fn target(data: &[u8]) {
    let Some((seed, answer)) = cut::split(data) else { return };
    let shown = || String::from_utf8_lossy(answer);
    for form in [Form::Plain, Form::Stream, Form::Encoded] {
        let whole = known(form, [answer].into_iter());
        assert_eq!(known(form, cut::chunks(seed, answer)), whole, "cut by {seed}: {}", shown());
        assert_eq!(known(form, answer.chunks(1)), whole, "byte by byte: {}", shown());
    }
    document(answer);
    let events = events(answer);
    if events.iter().any(|event| event.len() > LONGEST) {
        return;
    }
    let passed = passed([answer].into_iter());
    assert_eq!(self::passed(cut::chunks(seed, answer)), passed, "cut by {seed}: {}", shown());
    assert_eq!(self::passed(answer.chunks(1)), passed, "byte by byte: {}", shown());
    stream(&events, &passed);
    between(seed, &events, &passed);
}

type Known = (Served, Tokens, bool, bool);

fn known<'a>(form: Form, chunks: impl Iterator<Item = &'a [u8]>) -> Known {
    let mut reader = AnswerReader::new(form);
    chunks.for_each(|chunk| reader.feed(chunk));
    (reader.served(), reader.output(), reader.has_output(), reader.ended())
}

fn passed<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut filter, mut out, mut taken) = (UsageChunkFilter::default(), Vec::new(), 0);
    for chunk in chunks {
        taken += chunk.len();
        out.extend_from_slice(&filter.feed(chunk));
        assert!(out.len() + filter.held().len() <= taken);
    }
    out.extend(filter.finish());
    out
}

/// A stream cut behind its blank lines; the last part may lack its own.
fn events(stream: &[u8]) -> Vec<&[u8]> {
    let (mut events, mut begin, mut line) = (Vec::new(), 0, 0);
    for (at, _) in stream.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
        let is_blank = stream[line..at].iter().all(|byte| *byte == b'\r');
        line = at + 1;
        if is_blank {
            events.push(&stream[begin..line]);
            begin = line;
        }
    }
    events.push(&stream[begin..]);
    events
}

/// Holds what went on against what a parser says of each event. One with several lines of data, or with data that is no JSON
/// object, may go either way, as long as it goes whole.
fn stream(events: &[&[u8]], passed: &[u8]) {
    let mut rest = passed;
    for event in events {
        let may_go = match verdict(event) {
            Some(is_report) => is_report,
            None => !rest.starts_with(event),
        };
        if !may_go {
            let after = rest.strip_prefix(*event);
            rest = after.unwrap_or_else(|| panic!("missing: {}", String::from_utf8_lossy(event)));
        }
    }
    assert!(rest.is_empty(), "not taken out: {}", String::from_utf8_lossy(rest));
}

/// Whether an event is a report beside an empty list of choices; nothing where that is not for a parser to say.
fn verdict(event: &[u8]) -> Option<bool> {
    let lines = event.split(|byte| *byte == b'\n');
    let lines = lines.map(|line| line.iter().position(|byte| *byte != b'\r').map_or(&[][..], |begin| &line[begin..]));
    let mut data = lines.filter_map(|line| line.strip_prefix(b"data:"));
    let Some(document) = data.next() else { return Some(false) };
    if data.next().is_some() {
        return None;
    }
    let entries = tree(document)?;
    let lists = || entries.iter().filter(|(key, _)| key == "choices");
    let is_empty = |(_, node): &(String, Node)| matches!(node, Node::List(list) if list.is_empty());
    let has_some = lists().any(|(_, node)| matches!(node, Node::List(list) if !list.is_empty()));
    let reports = entries.iter().any(|(key, node)| key == "usage" && matches!(node, Node::Object(_)));
    Some(lists().any(is_empty) && !has_some && reports)
}

/// A report at the border of two events leaves what is passed of the others as it is.
fn between(seed: u8, events: &[&[u8]], passed: &[u8]) {
    let at = usize::from(seed) % events.len();
    let (before, behind) = events.split_at(at);
    let with_report = [before.concat().as_slice(), REPORT, behind.concat().as_slice()].concat();
    let shown = || String::from_utf8_lossy(&with_report);
    assert_eq!(self::passed(cut::chunks(seed, &with_report)), passed, "event {at} of {}", shown());
    let (served, output, ..) = known(Form::Stream, cut::chunks(seed, &with_report));
    assert!(served.prompt >= Some(Tokens(6)) && output >= Tokens(3), "{served:?}: {}", shown());
}

/// What one whole document says of its usage.
fn document(answer: &[u8]) {
    let Some(root) = tree(answer) else { return };
    let mut usage = Usage::default();
    for (key, node) in &root {
        match (key.as_str(), node) {
            ("usage", Node::Object(report)) => usage.report(report),
            ("message" | "response", Node::Object(envelope)) => {
                for (key, node) in envelope {
                    if let ("usage", Node::Object(report)) = (key.as_str(), node) {
                        usage.report(report);
                    }
                }
            }
            _ => {}
        }
    }
    let (served, _, _, ended) = known(Form::Plain, [answer].into_iter());
    assert!(ended, "{}", String::from_utf8_lossy(answer));
    let Usage { prompt, cached, output } = usage;
    let output = output.or(prompt.map(|_| 0));
    let expected = Served { prompt: prompt.map(Tokens), cached: Tokens(cached), output: output.map(Tokens) };
    assert_eq!(served, expected, "{}", String::from_utf8_lossy(answer));
}

/// The most that reports say.
#[derive(Debug, Default)]
struct Usage {
    prompt: Option<u64>,
    cached: u64,
    output: Option<u64>,
}

impl Usage {
    /// A report is believed as a whole or not at all.
    fn report(&mut self, report: &[(String, Node)]) {
        let Some(counts) = Counts::of(report) else { return };
        let input = counts.input.map(|input| input + counts.cache_read + counts.cache_written);
        let prompt = counts.prompt.or(input);
        let says_nothing = prompt.unwrap_or(0) == 0 && counts.output.unwrap_or(0) == 0;
        if says_nothing || prompt.is_some_and(|prompt| prompt > MOST_TOKENS.0) {
            return;
        }
        self.prompt = self.prompt.max(prompt.filter(|prompt| *prompt > 0));
        self.cached = self.cached.max(counts.cached).max(counts.cache_read).min(self.prompt.unwrap_or(0));
        self.output = self.output.max(counts.output);
    }
}

/// The numbers of one report, the last of each name.
#[derive(Debug, Default)]
struct Counts {
    prompt: Option<u64>,
    input: Option<u64>,
    output: Option<u64>,
    cached: u64,
    cache_read: u64,
    cache_written: u64,
}

impl Counts {
    /// Nothing where one of them cannot be a count.
    fn of(report: &[(String, Node)]) -> Option<Self> {
        let mut counts = Self::default();
        for (key, node) in report {
            match key.as_str() {
                "prompt_tokens" => counts.prompt = count(node)?.or(counts.prompt),
                "input_tokens" => counts.input = count(node)?.or(counts.input),
                "completion_tokens" | "output_tokens" => counts.output = count(node)?.or(counts.output),
                "cached_tokens" => counts.cached = count(node)?.unwrap_or(counts.cached),
                "cache_read_input_tokens" => counts.cache_read = count(node)?.unwrap_or(counts.cache_read),
                "cache_creation_input_tokens" => counts.cache_written = count(node)?.unwrap_or(counts.cache_written),
                "prompt_tokens_details" | "input_tokens_details" => {
                    let Node::Object(details) = node else { continue };
                    for (_, node) in details.iter().filter(|(key, _)| key == "cached_tokens") {
                        counts.cached = count(node)?.unwrap_or(counts.cached);
                    }
                }
                _ => {}
            }
        }
        Some(counts)
    }
}

/// A count; nothing within for `null`, nothing at all for what is no count.
fn count(node: &Node) -> Option<Option<u64>> {
    match node {
        Node::Literal(Literal { value, .. }) if value == "null" => Some(None),
        Node::Literal(Literal { spelled, .. }) => {
            spelled.parse().ok().filter(|count| *count <= MOST_TOKENS.0).map(Some)
        }
        _ => None,
    }
}

fn depth(node: &Node) -> usize {
    let inner = match node {
        Node::Literal(_) | Node::Text(_) => return 0,
        Node::List(list) => list.iter().map(depth).max(),
        Node::Object(entries) => entries.iter().map(|(_, node)| depth(node)).max(),
    };
    inner.unwrap_or(0) + 1
}

/// A name that is written in escapes means nothing to the reader, which workers do not write.
fn has_odd_names(document: &[u8], node: &Node) -> bool {
    fn any(node: &Node) -> bool {
        match node {
            Node::Literal(_) | Node::Text(_) => false,
            Node::List(list) => list.iter().any(any),
            Node::Object(entries) => entries.iter().any(|(key, node)| key.contains(char::is_control) || any(node)),
        }
    }
    document.windows(2).any(|pair| pair == br"\u") || any(node)
}

/// A document that the reader follows to its end.
fn tree(document: &[u8]) -> Option<Vec<(String, Node)>> {
    let node = Node::of(document).filter(|node| depth(node) <= DEEPEST && !has_odd_names(document, node))?;
    match node {
        Node::Object(entries) => Some(entries),
        _ => None,
    }
}
