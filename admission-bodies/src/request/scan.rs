//! The state machine behind [`Scanner::feed`]: what the bytes of a JSON document are. What they mean is in [`meaning`].

use super::field::{Field, Inner, Limits};
use super::literal::Buffer;
use super::rewrite::Slots;
use super::text::{Data, Text};
use super::{Broken, FOLLOWED, Facts, Longest, MAX_DEPTH, TOO_DEEP};
use crate::BYTES_PER_TOKEN;
use crate::find::quote_or_backslash;

mod meaning;
mod strings;

use strings::{InString, Use};

/// Longest key, name or number compared; longer names are none that matter.
pub(super) const MAX_SHORT: usize = 40;

/// Reads a JSON request body chunk by chunk.
///
/// ```
/// use admission_bodies::request::Scanner;
///
/// let mut scanner = Scanner::default();
/// scanner.feed(br#"{"messages":[{"role":"user","content":"Hel"#);
/// scanner.feed(br#"lo"}],"model":"llama"}"#);
/// assert_eq!(scanner.finish(), Ok(()));
/// assert_eq!(scanner.facts().model.as_deref(), Some("llama"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Scanner {
    facts: Facts,
    /// Of the prompt.
    text: Text,
    state: State,
    depth: u32,
    /// One bit for each open container: set for an object.
    objects: u128,
    /// The same: set for what a picture or a document comes from.
    sources: u128,
    /// The same: set for an object that says its data is text.
    texts: u128,
    field: Field,
    /// The last key below the top level.
    inner: Inner,
    /// What is being read is declared to the model as it stands.
    declaration: bool,
    /// Depth of the container within a chat that is rendered as it stands; 0 outside any.
    declared_from: u32,
    /// What the string being read is for.
    string: Use,
    /// The key, name or number being read.
    short: Buffer<MAX_SHORT>,
    /// Bytes of the name being read that are not counted.
    free_bytes: usize,
    /// The string being read, or the one held, that is data unless it proves to be text.
    data: Data,
    /// Depth of the object in which such a string has ended, which may still say that it is text; 0 where there is none.
    held: u32,
    model: Vec<u8>,
    model_too_long: bool,
    high_surrogate: Option<u16>,
    /// Prompts of the list being read, or of the last one.
    prompts: u64,
    /// Most prompts of a list before it.
    most_prompts: u64,
    /// Text and token ids before the prompt being read, where there is a list of them.
    before: Prompt,
    longest: Prompt,
    /// All prompts of that list together.
    listed: Prompt,
    limits: Limits,
    /// The last key in an object of limits.
    parameter: Field,
    /// Limits of such objects.
    parameters: Limits,
    slots: Slots,
}

/// One of several prompts.
#[derive(Clone, Debug, Default)]
struct Prompt {
    text: Text,
    token_ids: u64,
}

impl Prompt {
    /// For comparison with others.
    fn weight(&self) -> u64 {
        self.text.bytes().saturating_add(self.token_ids.saturating_mul(BYTES_PER_TOKEN))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before the body's `{`.
    #[default]
    Start,
    /// A value, or the end of an array that may be empty.
    Value {
        or_end: bool,
    },
    /// A key, or the end of an object that may be empty.
    Key {
        or_end: bool,
    },
    Colon,
    /// A comma or the end of the container.
    AfterValue,
    String(InString),
    Literal,
    /// After the body's `}`.
    Done,
    Broken(Broken),
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

impl Scanner {
    /// A scan that counts long texts by samples, which a seed tells where to take: a random number, another for each request,
    /// that callers cannot know. By default every byte is counted.
    #[must_use]
    pub fn sampling(seed: u64) -> Self {
        Self { text: Text::new(Some(seed)), data: Data::new(Some(!seed)), ..Self::default() }
    }

    /// Takes the next bytes of the body.
    pub fn feed(&mut self, bytes: &[u8]) {
        let before = self.facts.bytes;
        let mut taken = 0_usize;
        while let Some(rest) = bytes.get(taken..)
            && let Some(byte) = rest.first()
        {
            // Where the scan stands is only written here: to count on from what was written would hold up each step.
            self.facts.bytes = before.saturating_add(taken as u64);
            let more = match self.state {
                State::String(InString::Plain) => self.plain(rest),
                State::String(within) => {
                    self.escaped(within, *byte);
                    1
                }
                State::Literal => self.literal(rest),
                State::Broken(_) => break,
                _ => self.between(*byte, rest),
            };
            taken = taken.saturating_add(more);
        }
        self.facts.bytes = before.saturating_add(bytes.len() as u64);
    }

    /// Says that the body has ended.
    ///
    /// # Errors
    /// [`Broken`] when the body is not one JSON object.
    pub fn finish(&self) -> Result<(), Broken> {
        match self.state {
            State::Done => Ok(()),
            State::Broken(broken) => Err(broken),
            _ => Err(Broken { what: "the body ends too early", at: self.facts.bytes }),
        }
    }

    /// What is wrong with what was seen so far, if anything is.
    #[must_use]
    pub fn broken(&self) -> Option<Broken> {
        match self.state {
            State::Broken(broken) => Some(broken),
            _ => None,
        }
    }

    /// The `model`, as far as it was read.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.facts.model.as_deref()
    }

    /// Says whether something was found so far that a model may be asked.
    #[must_use]
    pub fn holds_prompt(&self) -> bool {
        self.facts.holds_prompt
    }

    /// Says whether the worker is to go on after it has answered.
    #[must_use]
    pub fn in_background(&self) -> bool {
        self.facts.background == Some(true)
    }

    /// Bytes seen so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.facts.bytes
    }

    /// What was found so far.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let text = self.text.own_features();
        // A worker may read all that stands beside its prompts into each of them.
        let longest = || {
            let mut one = self.text.since(&self.listed.text);
            one.add(&self.longest.text);
            let beside = self.facts.token_ids.saturating_sub(self.listed.token_ids);
            Longest { text: one.features(&text), token_ids: beside.saturating_add(self.longest.token_ids) }
        };
        let prompts = self.prompts.max(self.most_prompts);
        let answers = self.limits.answers().max(self.parameters.answers()).unwrap_or(1);
        Facts {
            max_tokens: self.limits.max_tokens(),
            limit_elsewhere: self.limits.elsewhere().max(self.parameters.max_tokens()),
            longest_prompt: (prompts > 1).then(longest),
            answers,
            sequences: prompts.max(1).saturating_mul(answers),
            text,
            ..self.facts.clone()
        }
    }

    /// Where the body has, or lacks, what may have to be written into it. Complete once [`Scanner::finish`] finds nothing
    /// wrong.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Takes what stands between strings and literals, and returns how much that is.
    #[inline(always)]
    fn between(&mut self, byte: u8, bytes: &[u8]) -> usize {
        if is_blank(byte) {
            return 1;
        }
        if self.declaration {
            self.structure(byte);
            if self.declaration {
                self.text.add_bytes(&[byte]);
            }
            return 1;
        }
        match (self.state, byte) {
            (State::Key { .. }, b'"') => return self.key(bytes),
            (State::Value { .. }, b'"') => self.begin_string(byte),
            (State::AfterValue, b',') => self.next(),
            (State::AfterValue, b'}') => self.close(true),
            (State::Value { .. }, b'{') => self.begin_value(byte),
            (State::Colon, b':') => self.state = State::Value { or_end: false },
            _ => self.structure(byte),
        }
        1
    }

    /// Takes a key that nothing is declared by, and the colon behind it, as far as they are there.
    fn key(&mut self, bytes: &[u8]) -> usize {
        let content = bytes.get(1..).unwrap_or_default();
        if self.depth > 1
            && self.field.is_chat()
            && let Some((inner, length)) = Inner::usual(content)
        {
            self.inner = inner;
            self.state = State::Value { or_end: false };
            return length.saturating_add(1);
        }
        self.begin_key();
        match quote_or_backslash(content) {
            Some(end) if content.get(end) == Some(&b'"') => {
                self.key_ended(content.get(..end).unwrap_or_default());
                let behind = end.saturating_add(2);
                if bytes.get(behind) != Some(&b':') {
                    return behind;
                }
                self.state = State::Value { or_end: false };
                behind.saturating_add(1)
            }
            _ => 1,
        }
    }

    fn structure(&mut self, byte: u8) {
        match self.state {
            State::Start if byte == b'{' => {
                self.slots.object_begins(self.behind());
                self.open(true);
            }
            State::Start => self.fail("a JSON object was expected"),
            State::Value { or_end: true } if byte == b']' => self.close(false),
            State::Value { .. } => self.begin_value(byte),
            State::Key { or_end: true } if byte == b'}' => self.close(true),
            State::Key { .. } if byte == b'"' => self.begin_key(),
            State::Key { .. } => self.fail("a key was expected"),
            State::Colon if byte == b':' => self.state = State::Value { or_end: false },
            State::Colon => self.fail("`:` was expected"),
            State::AfterValue => self.after_value(byte),
            State::Done => self.fail(FOLLOWED),
            State::String(_) | State::Literal | State::Broken(_) => {}
        }
    }

    fn fail(&mut self, what: &'static str) {
        self.fail_at(what, 0);
    }

    fn fail_at(&mut self, what: &'static str, offset: usize) {
        self.state = State::Broken(Broken { what, at: self.facts.bytes.saturating_add(offset as u64) });
    }

    fn in_object(&self) -> bool {
        self.objects & 1 == 1
    }

    fn open(&mut self, object: bool) {
        if self.depth >= MAX_DEPTH {
            return self.fail(TOO_DEEP);
        }
        let inner = self.inner();
        let declares = self.field.is_chat() && inner == Inner::Declared && self.declared_from == 0;
        self.sources = self.sources << 1 | u128::from(object && inner == Inner::Source);
        self.texts <<= 1;
        self.depth = self.depth.saturating_add(1);
        self.objects = self.objects << 1 | u128::from(object);
        if declares {
            self.declared_from = self.depth;
        }
        self.see_declaration();
        self.opened(object);
        self.state = if object { State::Key { or_end: true } } else { State::Value { or_end: true } };
    }

    fn close(&mut self, object: bool) {
        if self.in_object() != object {
            return self.fail("brackets do not match");
        }
        self.closes(object);
        self.depth = self.depth.saturating_sub(1);
        self.objects >>= 1;
        self.sources >>= 1;
        self.texts >>= 1;
        self.see_declaration();
        if self.depth == 0 {
            self.slots.object_ends(self.behind());
            self.state = State::Done;
        } else {
            self.value_ended(self.behind());
        }
    }

    /// The offset behind the byte being read.
    fn behind(&self) -> u64 {
        self.facts.bytes.saturating_add(1)
    }

    fn begin_key(&mut self) {
        self.short.clear();
        match (self.depth, self.field) {
            (1, _) => self.slots.key_begins(),
            (2, Field::StreamOptions) => self.slots.option_begins(),
            _ => {}
        }
        self.string = Use::Key;
        self.state = State::String(InString::Plain);
    }

    fn begin_value(&mut self, byte: u8) {
        if byte == b'"' {
            return self.begin_string(byte);
        }
        self.value_begins(byte);
        match byte {
            b'{' => self.open(true),
            b'[' => self.open(false),
            b',' | b':' | b'}' | b']' => self.fail("a value was expected"),
            _ => {
                self.short.clear();
                self.short.extend(&[byte]);
                self.literal_begins(byte);
                self.state = State::Literal;
            }
        }
    }

    #[inline(always)]
    fn begin_string(&mut self, quote: u8) {
        self.value_begins(quote);
        self.short.clear();
        self.string_begins();
        self.state = State::String(InString::Plain);
    }

    /// A comma has followed a value.
    fn next(&mut self) {
        self.state = if self.in_object() { State::Key { or_end: false } } else { State::Value { or_end: false } };
    }

    fn after_value(&mut self, byte: u8) {
        match byte {
            b',' => self.next(),
            b'}' => self.close(true),
            b']' => self.close(false),
            _ => self.fail("`,` or a closing bracket was expected"),
        }
    }

    /// Takes what follows of a number or a name such as `true`, and returns how much that is.
    fn literal(&mut self, bytes: &[u8]) -> usize {
        let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']') || is_blank(*byte);
        let end = bytes.iter().position(ends);
        let more = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        self.short.extend(more);
        if self.declaration {
            self.text.add_bytes(more);
        }
        if end.is_some() {
            self.literal_ends();
            self.value_ended(self.facts.bytes.saturating_add(more.len() as u64));
        }
        more.len()
    }
}
