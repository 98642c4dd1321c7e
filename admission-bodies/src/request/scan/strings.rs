//! Strings: keys, names and numbers that are compared, text that is weighed, data that is passed over.

use super::{Scanner, State};
use crate::find::quote_or_backslash;
use crate::request::MAX_MODEL_NAME;
use crate::request::field::{Field, usual_role};
use crate::request::text::{NO_NUMBER, Plain, UNKNOWN, before_part_of_escape, closing, unescaped};

/// Where in a string the scan stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InString {
    Plain,
    Escape,
    Unicode { digits: u8, unit: u16 },
}

/// What a string is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Use {
    Key,
    /// The top-level `model`.
    Model,
    /// A number or a switch in quotes: workers convert it.
    Short,
    /// A name, text from some length on.
    Name,
    /// The name that tells what a block of a message or its data is.
    Type,
    Text,
    /// Data, unless it proves to be text: files may be sent as plain text.
    Data,
    #[default]
    Nothing,
}

impl Scanner {
    /// Takes what follows within a string, to its end or to an escape, and returns how much that is.
    pub(super) fn plain(&mut self, bytes: &[u8]) -> usize {
        if matches!(self.string, Use::Text | Use::Data) {
            return self.weighed(bytes);
        }
        if self.string == Use::Name
            && let Some(length) = usual_role(bytes).filter(|length| *length <= self.free_bytes)
        {
            self.string_ended(length);
            return length;
        }
        let end = quote_or_backslash(bytes);
        let content = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        let closed = end.and_then(|end| bytes.get(end)) == Some(&b'"');
        if closed && self.string == Use::Key && self.short.is_empty() {
            // The whole key lies before us, so there is nothing to be kept of it.
            self.weigh_key(content);
            self.key_ended(content);
        } else {
            self.content(content);
            match end {
                None => return content.len(),
                Some(_) if closed => self.string_ended(content.len().saturating_add(1)),
                Some(_) => self.state = State::String(InString::Escape),
            }
        }
        if closed {
            self.weigh_quote();
        }
        content.len().saturating_add(1)
    }

    /// The same of text, which is read with its escapes: to its end, or to an escape that does not end before these bytes do.
    fn weighed(&mut self, bytes: &[u8]) -> usize {
        let end = closing(bytes);
        let length = end.unwrap_or_else(|| before_part_of_escape(bytes));
        if length > 0 {
            let counted = match self.string {
                Use::Text => self.text.add_json(bytes, length),
                _ => self.data.add_json(bytes, length),
            };
            if let Err(fault) = counted {
                self.fail_at(fault.what, fault.at);
                return bytes.len();
            }
        }
        if end.is_some() {
            self.string_ended(length.saturating_add(1));
            self.weigh_quote();
            length.saturating_add(1)
        } else if length < bytes.len() {
            self.state = State::String(InString::Escape);
            length.saturating_add(1)
        } else {
            length
        }
    }

    fn weigh_quote(&mut self) {
        if self.declaration {
            self.text.add_bytes(b"\"");
        }
    }

    fn content(&mut self, bytes: &[u8]) {
        match self.string {
            // Of these nothing is left to be taken plainly.
            Use::Text | Use::Data | Use::Nothing => {}
            Use::Key => {
                self.short.extend(bytes);
                self.weigh_key(bytes);
            }
            Use::Short => self.short.extend(bytes),
            Use::Model => self.model_bytes(bytes),
            Use::Name => self.name_bytes(bytes),
            Use::Type => {
                self.short.extend(bytes);
                self.name_bytes(bytes);
            }
        }
    }

    fn escaped_character(&mut self, plain: u8) {
        match self.string {
            Use::Text => self.text.add_escaped(plain),
            Use::Data => self.data.add_escaped(plain),
            _ => self.content(&[plain]),
        }
    }

    fn weigh_key(&mut self, bytes: &[u8]) {
        if self.declaration {
            self.text.add_bytes(bytes);
        }
    }

    fn name_bytes(&mut self, bytes: &[u8]) {
        let free = self.free_bytes.min(bytes.len());
        self.free_bytes = self.free_bytes.saturating_sub(free);
        if free < bytes.len() {
            self.text.add_bytes(bytes.get(free..).unwrap_or_default());
        }
    }

    fn model_bytes(&mut self, bytes: &[u8]) {
        self.model_too_long |= self.model.len().saturating_add(bytes.len()) > MAX_MODEL_NAME;
        if !self.model_too_long {
            self.model.extend_from_slice(bytes);
        }
    }

    /// Takes a byte of an escape.
    pub(super) fn escaped(&mut self, within: InString, byte: u8) {
        match within {
            InString::Escape if byte == b'u' => {
                self.state = State::String(InString::Unicode { digits: 0, unit: 0 });
            }
            InString::Escape => match unescaped(byte) {
                Some(plain) => {
                    self.escaped_character(plain);
                    self.state = State::String(InString::Plain);
                }
                None => self.fail(UNKNOWN),
            },
            InString::Unicode { digits, unit } => {
                let Some(digit) = char::from(byte).to_digit(16) else {
                    return self.fail(NO_NUMBER);
                };
                let unit = unit << 4 | digit as u16;
                if digits < 3 {
                    self.state = State::String(InString::Unicode { digits: digits.saturating_add(1), unit });
                } else {
                    self.utf16_unit(unit);
                    self.state = State::String(InString::Plain);
                }
            }
            InString::Plain => {}
        }
    }

    /// Text is weighed by the unit; the model's name is compared, so there the character is put together.
    fn utf16_unit(&mut self, unit: u16) {
        match self.string {
            Use::Text => self.text.add_utf16(unit),
            Use::Data => self.data.add_utf16(unit),
            Use::Model => self.model_unit(unit),
            // Names and keys that mean something have no such character, so the halves of a pair need not meet. But half of
            // one must leave a mark: workers take the key with it for another key.
            Use::Key | Use::Name | Use::Type | Use::Short => self.content(Plain::of(unit).bytes()),
            Use::Nothing => {}
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

    /// The string's closing quote is the last of the next `taken` bytes.
    fn string_ended(&mut self, taken: usize) {
        match self.string {
            Use::Key => {
                let key = self.short.clone();
                return self.key_ended(key.bytes());
            }
            Use::Model => {
                let name = std::mem::take(&mut self.model);
                self.high_surrogate = None;
                self.facts.model = String::from_utf8(name).ok().filter(|_| !self.model_too_long);
            }
            Use::Short => self.short_ended(),
            Use::Type => self.type_ended(),
            Use::Data => self.data_ended(),
            // Of a name that is no longer than names are nothing was counted.
            Use::Name if self.free_bytes > 0 => {}
            Use::Text | Use::Name if !self.declaration => self.text.end_string(),
            Use::Text | Use::Name | Use::Nothing => {}
        }
        if self.field == Field::Prompt && self.depth == 2 && !self.in_object() {
            self.end_prompt();
        }
        self.value_ended(self.facts.bytes.saturating_add(taken as u64));
    }
}
