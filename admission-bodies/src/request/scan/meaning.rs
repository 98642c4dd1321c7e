//! What keys, values and containers of a request mean.

use super::strings::Use;
use super::{Prompt, Scanner, State};
use crate::request::field::{Field, Inner, NAME_LENGTH, ROLE_LENGTH};
use crate::request::literal::switch;
use crate::request::rewrite::Place;

impl Scanner {
    /// Notes whether what is being read is declared to the model as it stands.
    pub(super) fn see_declaration(&mut self) {
        self.declaration =
            self.field.is_declared() && self.depth > 1 || self.declared_from > 0 && self.depth >= self.declared_from;
    }

    /// The key of the value being read, if it has one below the top level.
    pub(super) fn inner(&self) -> Inner {
        if self.in_object() && self.depth > 1 { self.inner } else { Inner::Plain }
    }

    /// Whether what is open at the third depth stands in a list that is the field's value.
    fn in_list_of_field(&self) -> bool {
        self.objects & 0b10 == 0
    }

    pub(super) fn opened(&mut self, object: bool) {
        match (self.field, self.depth, object) {
            (Field::Messages | Field::Prompt, 3, true) if self.in_list_of_field() => {
                self.facts.messages = self.facts.messages.saturating_add(1);
            }
            (Field::Prompt | Field::TokenIds, 3, false) if self.in_list_of_field() => self.begin_prompt(),
            (Field::Tools, 3, true) if self.in_list_of_field() => self.facts.tools = self.facts.tools.saturating_add(1),
            (Field::StreamOptions, 2, true) => self.slots.options_begin(self.behind()),
            _ => {}
        }
    }

    /// The innermost container is about to close.
    pub(super) fn closes(&mut self, object: bool) {
        if self.declared_from == self.depth {
            self.declared_from = 0;
            self.text.end_string();
        }
        if self.held == self.depth {
            self.held = 0;
            drop(self.data.take());
        }
        match (self.field, self.depth, object) {
            (Field::Prompt | Field::TokenIds, 3, false) if self.in_list_of_field() => self.end_prompt(),
            (Field::StreamOptions, 2, true) => self.slots.options_end(),
            _ => {}
        }
    }

    pub(super) fn key_ended(&mut self, key: &[u8]) {
        self.state = State::Colon;
        if self.depth == 1 {
            self.field = Field::of_key(key);
            self.see_declaration();
            return self.field_begins();
        }
        if self.field == Field::Parameters {
            self.parameter = Field::of_key(key);
        }
        self.inner = Inner::of_key(key);
    }

    /// Of a key that stands twice, parsers take the last.
    fn field_begins(&mut self) {
        match self.field {
            Field::Model => self.facts.model = None,
            Field::Stream => self.facts.stream = None,
            Field::Background => self.facts.background = None,
            Field::StreamOptions => self.facts.include_usage = None,
            // Why not the last: which of several keys of prompts counts is the worker's affair.
            Field::Prompt | Field::Text | Field::TokenIds => {
                self.most_prompts = self.most_prompts.max(self.prompts);
                self.prompts = 0;
            }
            field => self.limits.set(field, None),
        }
    }

    pub(super) fn value_begins(&mut self, byte: u8) {
        if self.field == Field::Text && self.depth == 1 {
            self.field = if byte == b'{' { Field::Other } else { Field::Prompt };
        }
        if byte != b'n' {
            self.something_begins(byte);
        }
        let place = match (self.field, self.depth) {
            (Field::Priority, 1) => Place::Priority,
            (Field::StreamOptions, 1) if byte != b'{' => Place::Options,
            (Field::StreamOptions, 2) if self.inner() == Inner::IncludeUsage => Place::IncludeUsage,
            _ => return,
        };
        self.slots.value_begins(self.facts.bytes, self.depth, place);
    }

    /// A value that is not null, which says that there is none.
    fn something_begins(&mut self, byte: u8) {
        let is_elsewhere = self.field == Field::Elsewhere || self.field == Field::Prompt && byte == b'{';
        self.facts.elsewhere |= self.depth == 1 && is_elsewhere;
        self.facts.holds_prompt |= self.depth == 1 && self.field.is_asked();
        if self.depth > 1 && self.in_object() && self.field.is_chat() && !self.declaration {
            let media = &mut self.facts.media;
            match self.inner {
                Inner::Image => media.images = media.images.saturating_add(1),
                Inner::Audio => media.recordings = media.recordings.saturating_add(1),
                Inner::File | Inner::FileLink if self.sources & 1 == 0 => media.files = media.files.saturating_add(1),
                _ => {}
            }
        }
    }

    /// The last byte of a value is the one before `behind`.
    pub(super) fn value_ended(&mut self, behind: u64) {
        if self.depth <= 2 && matches!(self.field, Field::Priority | Field::StreamOptions) {
            self.slots.value_ends(self.depth, behind);
        }
        // What is declared is one text with all its signs; any other string stands by itself.
        if self.depth == 1 && self.field.is_declared() {
            self.text.end_string();
        }
        self.state = State::AfterValue;
    }

    pub(super) fn string_begins(&mut self) {
        match (self.field, self.depth) {
            (Field::Model, 1) => {
                self.model.clear();
                self.model_too_long = false;
            }
            (Field::Prompt, 2) if !self.in_object() => self.begin_prompt(),
            _ => {}
        }
        self.string = self.use_of_string();
        // No object has data twice, so nobody knows what is to be made of both.
        if self.string == Use::Data && self.held > 0 {
            self.charge_data();
        }
        self.free_bytes = if self.inner() == Inner::Role { ROLE_LENGTH } else { NAME_LENGTH };
    }

    /// What the string about to be read is for. One that stands in a list has no key of its own.
    fn use_of_string(&self) -> Use {
        let inner = self.inner();
        match self.field {
            Field::Model if self.depth == 1 => Use::Model,
            Field::StreamOptions if self.depth == 2 && inner == Inner::IncludeUsage => Use::Short,
            field if self.depth == 1 && (field.is_limit() || field.is_switch()) => Use::Short,
            Field::Parameters if self.is_parameter() => Use::Short,
            _ if self.declaration => Use::Text,
            Field::Messages | Field::System | Field::Prompt => match inner {
                Inner::Link | Inner::Image | Inner::Audio | Inner::FileLink => Use::Nothing,
                Inner::Data | Inner::File => Use::Data,
                Inner::Name | Inner::Role => Use::Name,
                Inner::Type | Inner::MediaType => Use::Type,
                Inner::Plain | Inner::Source | Inner::IncludeUsage | Inner::Declared => Use::Text,
            },
            Field::Suffix
            | Field::Tools
            | Field::Declarations
            | Field::Priority
            | Field::TokenIds
            | Field::Elsewhere
            | Field::Parameters
            | Field::Other => Use::Text,
            _ => Use::Nothing,
        }
    }

    pub(super) fn short_ended(&mut self) {
        if self.field.is_limit() {
            self.limits.set(self.field, self.short.whole_number());
        } else if self.field == Field::Parameters {
            self.parameters.raise(self.parameter, self.short.whole_number());
        } else {
            self.switched(switch(self.short.bytes()));
        }
    }

    fn switched(&mut self, on: Option<bool>) {
        match self.field {
            Field::Stream => self.facts.stream = on,
            Field::Background => self.facts.background = on,
            _ => self.facts.include_usage = on,
        }
    }

    /// Blocks of Anthropic's messages say so what they are, and what their data is.
    pub(super) fn type_ended(&mut self) {
        let (inner, media) = (self.inner(), &mut self.facts.media);
        match (inner, self.short.bytes()) {
            (Inner::Type, b"image") => media.images = media.images.saturating_add(1),
            (Inner::Type, b"document") => media.files = media.files.saturating_add(1),
            (Inner::Type, b"text") => self.data_is_text(),
            (Inner::MediaType, _) if self.short.begins_with(b"text/") => self.data_is_text(),
            _ => {}
        }
        self.text.end_string();
    }

    /// The object says so, before or behind its data.
    fn data_is_text(&mut self) {
        self.texts |= 1;
        if self.held == self.depth {
            self.charge_data();
        }
    }

    /// A string that is written as data may be text all the same, of which its object says so.
    pub(super) fn data_ended(&mut self) {
        if self.texts & 1 == 1 || self.data.is_text() {
            self.charge_data();
        } else {
            self.held = self.depth;
        }
    }

    fn charge_data(&mut self) {
        self.held = 0;
        self.text.add(&self.data.take());
    }

    pub(super) fn literal_begins(&mut self, byte: u8) {
        let may_be_token_ids = matches!(self.field, Field::Prompt | Field::TokenIds);
        // At any depth: tensors of tokens are lists in objects of a list.
        let is_listed = self.depth > 1 && !self.in_object() && !self.declaration;
        // Workers take `true` and `-0` for numbers too.
        if may_be_token_ids && is_listed && byte != b'n' {
            self.facts.token_ids = self.facts.token_ids.saturating_add(1);
        }
    }

    pub(super) fn literal_ends(&mut self) {
        match (self.field, self.depth) {
            (field, 1) if field.is_limit() => self.limits.set(field, self.short.whole_number()),
            (field, 1) if field.is_switch() => self.switched(switch(self.short.bytes())),
            (Field::Parameters, _) if self.is_parameter() => {
                self.parameters.raise(self.parameter, self.short.whole_number());
            }
            (Field::StreamOptions, 2) if self.inner() == Inner::IncludeUsage => {
                self.switched(switch(self.short.bytes()));
            }
            _ => {}
        }
    }

    /// Says whether the value is a limit of an object of limits, or of one in a list of such objects.
    fn is_parameter(&self) -> bool {
        matches!(self.depth, 2 | 3) && self.in_object() && self.parameter.is_limit()
    }

    fn begin_prompt(&mut self) {
        self.prompts = self.prompts.saturating_add(1);
        self.before = Prompt { text: self.text.clone(), token_ids: self.facts.token_ids };
    }

    pub(super) fn end_prompt(&mut self) {
        let text = self.text.since(&self.before.text);
        let token_ids = self.facts.token_ids.saturating_sub(self.before.token_ids);
        let this = Prompt { text, token_ids };
        self.listed.text.add(&this.text);
        self.listed.token_ids = self.listed.token_ids.saturating_add(token_ids);
        if this.weight() > self.longest.weight() {
            self.longest = this;
        }
    }
}
