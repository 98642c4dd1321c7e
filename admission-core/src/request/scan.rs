//! The state machine behind [`Scanner::feed`].

use super::field::{Field, Limits, NAME_LENGTH, NAMES, NOT_TEXT};
use super::literal::{Buffer, whole_number};
use super::tag::Slots;
use super::text::Classes;
use super::{Broken, Facts, MAX_DEPTH, MAX_MODEL_NAME};
use crate::estimate;
use crate::units::Tokens;

/// Longest key compared; longer ones are none that matter.
const MAX_KEY: usize = 24;

/// Longest number compared; longer ones are none that a limit could be.
const MAX_LITERAL: usize = 40;

/// Reads a JSON request body chunk by chunk.
///
/// ```
/// use admission_core::request::Scanner;
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
    state: State,
    depth: u32,
    /// One bit for each open container: set for an object.
    objects: u128,
    field: Field,
    counted_as_text: bool,
    /// Bytes of the string being read that are not counted.
    free_bytes: usize,
    key: Buffer<MAX_KEY>,
    literal: Buffer<MAX_LITERAL>,
    model: Vec<u8>,
    model_too_long: bool,
    high_surrogate: Option<u16>,
    prompts: u64,
    /// Text and token ids of the prompt being read, where there is a list of them.
    this_prompt: (Classes, u64),
    longest_prompt: Tokens,
    limits: Limits,
    slots: Slots,
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
    String(Text, InString),
    Literal,
    /// After the body's `}`.
    Done,
    Broken(Broken),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    Key,
    Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InString {
    Plain,
    Escape,
    Unicode { digits: u8, unit: u16 },
}

impl Scanner {
    /// Takes the next bytes of the body.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            if let State::String(text, InString::Plain) = self.state {
                let end = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')).unwrap_or(rest.len());
                let (content, behind) = rest.split_at_checked(end).unwrap_or((rest, &[]));
                if !content.is_empty() {
                    self.content(text, content);
                    self.advance(content.len());
                    rest = behind;
                    continue;
                }
            }
            self.step(byte);
            self.advance(1);
            rest = after;
        }
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

    /// Bytes seen so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.facts.bytes
    }

    /// What was found so far.
    #[must_use]
    pub fn facts(&self) -> Facts {
        Facts {
            max_tokens: self.limits.max_tokens(),
            longest_prompt: (self.prompts > 1).then_some(self.longest_prompt),
            sequences: self.prompts.max(1).saturating_mul(self.limits.answers()),
            ..self.facts.clone()
        }
    }

    /// Where the body has, or lacks, a priority. Complete once [`Scanner::finish`] finds nothing wrong.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    fn advance(&mut self, bytes: usize) {
        self.facts.bytes = self.facts.bytes.saturating_add(bytes as u64);
    }

    fn step(&mut self, byte: u8) {
        match self.state {
            State::String(text, within) => self.state = self.string_byte(text, within, byte),
            State::Literal if !matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n') => {
                self.literal.push(byte)
            }
            State::Literal => {
                self.literal_ended();
                self.value_ended(self.facts.bytes);
                self.state = State::AfterValue;
                self.step(byte);
            }
            State::Broken(_) => {}
            _ if matches!(byte, b' ' | b'\t' | b'\r' | b'\n') => {}
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
            State::Done => self.fail("something follows the JSON object"),
        }
    }

    fn fail(&mut self, what: &'static str) {
        self.state = State::Broken(Broken { what, at: self.facts.bytes });
    }

    fn in_object(&self) -> bool {
        self.objects & 1 == 1
    }

    fn open(&mut self, object: bool) {
        if self.depth >= MAX_DEPTH {
            return self.fail("the body is nested too deeply");
        }
        self.depth = self.depth.saturating_add(1);
        self.objects = self.objects << 1 | u128::from(object);
        match (self.field, self.depth, object) {
            (Field::Messages, 3, true) => self.facts.messages = self.facts.messages.saturating_add(1),
            (Field::Prompt, 3, false) => self.begin_prompt(),
            _ => {}
        }
        self.state = if object { State::Key { or_end: true } } else { State::Value { or_end: true } };
    }

    fn close(&mut self, object: bool) {
        if self.in_object() != object {
            return self.fail("brackets do not match");
        }
        if self.field == Field::Prompt && self.depth == 3 {
            self.end_prompt();
        }
        self.depth = self.depth.saturating_sub(1);
        self.objects >>= 1;
        if self.depth == 0 {
            self.slots.object_ends(self.behind());
            self.state = State::Done;
        } else {
            self.value_ended(self.behind());
            self.state = State::AfterValue;
        }
    }

    /// The offset behind the byte being read.
    fn behind(&self) -> u64 {
        self.facts.bytes.saturating_add(1)
    }

    fn value_ended(&mut self, behind: u64) {
        if self.field == Field::Priority && self.depth == 1 {
            self.slots.value_ends(behind);
        }
    }

    fn begin_key(&mut self) {
        self.key.clear();
        if self.depth == 1 {
            self.slots.key_begins();
        }
        self.state = State::String(Text::Key, InString::Plain);
    }

    fn begin_value(&mut self, byte: u8) {
        if self.field == Field::Priority && self.depth == 1 {
            self.slots.value_begins(self.facts.bytes);
        }
        match byte {
            b'{' => self.open(true),
            b'[' => self.open(false),
            b'"' => {
                match (self.field, self.depth) {
                    (Field::Model, 1) => {
                        self.model.clear();
                        self.model_too_long = false;
                    }
                    (Field::Prompt, 2) => self.begin_prompt(),
                    _ => {}
                }
                self.literal.clear();
                self.counted_as_text = self.is_text();
                let named = self.field == Field::Messages && self.in_object() && NAMES.contains(&self.key.bytes());
                self.free_bytes = if named { NAME_LENGTH } else { 0 };
                self.state = State::String(Text::Value, InString::Plain);
            }
            b',' | b':' | b'}' | b']' => self.fail("a value was expected"),
            _ => {
                self.literal.clear();
                self.literal.push(byte);
                self.state = State::Literal;
            }
        }
    }

    fn after_value(&mut self, byte: u8) {
        match byte {
            b',' if self.in_object() => self.state = State::Key { or_end: false },
            b',' => self.state = State::Value { or_end: false },
            b'}' => self.close(true),
            b']' => self.close(false),
            _ => self.fail("`,` or a closing bracket was expected"),
        }
    }

    /// Whether the string about to be read is part of the prompt. One that stands in a list has no key of its own.
    fn is_text(&self) -> bool {
        match self.field {
            Field::Prompt | Field::Suffix | Field::Declarations | Field::Priority | Field::Other => true,
            Field::Messages => !self.in_object() || !NOT_TEXT.contains(&self.key.bytes()),
            _ => false,
        }
    }

    /// Whether the value being read is a top-level limit. A number in quotes is one: workers convert it.
    fn is_limit(&self) -> bool {
        self.depth == 1 && self.field.is_limit()
    }

    fn content(&mut self, text: Text, bytes: &[u8]) {
        match text {
            Text::Key => {
                bytes.iter().for_each(|byte| self.key.push(*byte));
                if self.field == Field::Declarations && self.depth > 1 {
                    self.facts.text.add_bytes(bytes);
                }
            }
            Text::Value if self.field == Field::Model && self.depth == 1 => self.model_bytes(bytes),
            Text::Value if self.is_limit() => bytes.iter().for_each(|byte| self.literal.push(*byte)),
            Text::Value if self.counted_as_text => {
                let free = self.free_bytes.min(bytes.len());
                self.free_bytes = self.free_bytes.saturating_sub(free);
                self.add_text(bytes.get(free..).unwrap_or_default());
            }
            Text::Value => {}
        }
    }

    fn add_text(&mut self, bytes: &[u8]) {
        self.facts.text.add_bytes(bytes);
        if self.field == Field::Prompt && self.depth >= 2 {
            self.this_prompt.0.add_bytes(bytes);
        }
    }

    fn begin_prompt(&mut self) {
        self.prompts = self.prompts.saturating_add(1);
        self.this_prompt = Default::default();
    }

    fn end_prompt(&mut self) {
        let (text, ids) = &self.this_prompt;
        self.longest_prompt = self.longest_prompt.max(estimate::text(text).plus(Tokens(*ids)));
    }

    fn model_bytes(&mut self, bytes: &[u8]) {
        self.model_too_long |= self.model.len().saturating_add(bytes.len()) > MAX_MODEL_NAME;
        if !self.model_too_long {
            self.model.extend_from_slice(bytes);
        }
    }

    fn string_byte(&mut self, text: Text, within: InString, byte: u8) -> State {
        match (within, byte) {
            (InString::Plain, b'"') => return self.string_ended(text),
            (InString::Plain, b'\\') => return State::String(text, InString::Escape),
            (InString::Plain, _) => self.content(text, &[byte]),
            (InString::Escape, b'u') => return State::String(text, InString::Unicode { digits: 0, unit: 0 }),
            (InString::Escape, _) => match unescaped(byte) {
                Some(plain) => self.content(text, &[plain]),
                None => return State::Broken(Broken { what: "an unknown escape", at: self.facts.bytes }),
            },
            (InString::Unicode { digits, unit }, _) => {
                let Some(digit) = char::from(byte).to_digit(16) else {
                    return State::Broken(Broken {
                        what: "an escape needs four hexadecimal digits",
                        at: self.facts.bytes,
                    });
                };
                let unit = unit << 4 | digit as u16;
                if digits < 3 {
                    return State::String(text, InString::Unicode { digits: digits.saturating_add(1), unit });
                }
                self.utf16_unit(text, unit);
            }
        }
        State::String(text, InString::Plain)
    }

    /// Text is weighed by the unit; the model's name is compared, so there the character is put together.
    fn utf16_unit(&mut self, text: Text, unit: u16) {
        let weighed = match text {
            Text::Key => self.field == Field::Declarations && self.depth > 1,
            Text::Value => self.counted_as_text,
        };
        if weighed {
            self.facts.text.add_utf16(unit);
            if self.field == Field::Prompt && self.depth >= 2 {
                self.this_prompt.0.add_utf16(unit);
            }
        }
        match text {
            // A key that means something has no such character, so the halves of a pair need not meet. But half of one
            // must leave a mark: workers take the key with it for another key.
            Text::Key => {
                let char = char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER);
                char.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| self.key.push(byte));
            }
            Text::Value if self.field == Field::Model && self.depth == 1 => self.model_unit(unit),
            Text::Value => {}
        }
    }

    fn model_unit(&mut self, unit: u16) {
        let units = self.high_surrogate.take().into_iter().chain([unit]);
        if (0xd800..0xdc00).contains(&unit) {
            self.high_surrogate = Some(unit);
            return;
        }
        for char in char::decode_utf16(units).map(|char| char.unwrap_or(char::REPLACEMENT_CHARACTER)) {
            self.model_bytes(char.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }

    fn string_ended(&mut self, text: Text) -> State {
        self.facts.text.end_string();
        self.high_surrogate = None;
        match text {
            Text::Key => {
                if self.depth == 1 {
                    self.field = Field::of_key(self.key.bytes());
                    self.field_begins();
                }
                State::Colon
            }
            Text::Value => {
                if self.field == Field::Model && self.depth == 1 {
                    let name = std::mem::take(&mut self.model);
                    self.facts.model = String::from_utf8(name).ok().filter(|_| !self.model_too_long);
                }
                if self.is_limit() {
                    self.literal_ended();
                }
                if self.field == Field::Prompt && self.depth == 2 {
                    self.end_prompt();
                }
                self.value_ended(self.behind());
                State::AfterValue
            }
        }
    }

    /// Of a key that stands twice, parsers take the last.
    fn field_begins(&mut self) {
        match self.field {
            Field::Model => self.facts.model = None,
            Field::Prompt => (self.prompts, self.longest_prompt) = (0, Tokens(0)),
            field => self.limits.set(field, None),
        }
    }

    fn literal_ended(&mut self) {
        let number = whole_number(self.literal.bytes());
        match (self.field, self.depth) {
            (field, 1) => self.limits.set(field, number),
            (Field::Prompt, 2 | 3) if number.is_some() => {
                self.facts.token_ids = self.facts.token_ids.saturating_add(1);
                self.this_prompt.1 = self.this_prompt.1.saturating_add(1);
            }
            _ => {}
        }
    }
}

const fn unescaped(byte: u8) -> Option<u8> {
    match byte {
        b'"' | b'\\' | b'/' => Some(byte),
        b'b' => Some(8),
        b'f' => Some(12),
        b'n' => Some(b'\n'),
        b'r' => Some(b'\r'),
        b't' => Some(b'\t'),
        _ => None,
    }
}
