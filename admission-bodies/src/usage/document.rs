//! A JSON document of an answer, read as its bytes come: no tree, no copy.
//!
//! It is lenient: a worker's own mistakes cost no more than what they make unreadable.

use super::counts::{Count, Counts, Reported};
use super::{BYTES_PER_TOKEN, LONGEST_TOKEN, MOST_TOKENS};
use crate::find::{quote_backslash_or_line, quote_or_backslash};

mod names;

use names::{Key, Name, key_of};

/// Deepest nesting read; a deeper document is not read on.
const MAX_DEPTH: usize = 160;

/// Reads one document after another, and keeps what they say together.
#[derive(Clone, Debug)]
pub(super) struct Document {
    state: State,
    /// The last byte of a string was a backslash.
    escaped: bool,
    /// In an object, before a key's colon.
    awaits_key: bool,
    depth: usize,
    places: [Place; MAX_DEPTH],
    key: Key,
    name: Name,
    /// Bytes of the piece of output that is being read.
    piece: u64,
    number: u64,
    counts: Counts,
    /// Tokens of deltas, the one that is being read included.
    tokens: u64,
    reported: Reported,
    said_end: bool,
    /// One was of an error.
    said_error: bool,
    /// Documents begun.
    documents: u64,
    /// One was of an API that is read.
    known: bool,
    closed: bool,
    choices: Choices,
    reports: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Between,
    Key,
    /// In a string that nobody looks at.
    Skipped,
    /// In a piece of output.
    Output,
    /// In the value of the document's `type`.
    Kind,
    /// In digits of a count.
    Number,
    /// In a number or word that nobody looks at.
    Word,
    /// Too deep, or brackets that do not match.
    Broken,
}

/// Where in a document an object or array stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Root,
    Choices,
    Choice,
    /// What is added to an answer, and everything inside.
    Delta,
    /// What an event is about.
    Envelope,
    Usage,
    /// Of the prompt's tokens in a report.
    Details,
    OtherObject,
    OtherArray,
    /// An array inside [`Place::Delta`].
    DeltaArray,
}

impl Place {
    const fn is_object(self) -> bool {
        !matches!(self, Self::Choices | Self::OtherArray | Self::DeltaArray)
    }
}

/// Whether a document's `choices` hold any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choices {
    Unknown,
    None,
    Some,
}

impl Default for Document {
    fn default() -> Self {
        Self {
            state: State::Between,
            escaped: false,
            awaits_key: false,
            depth: 0,
            places: [Place::OtherArray; MAX_DEPTH],
            key: Key::Other,
            name: Name::default(),
            piece: 0,
            number: 0,
            counts: Counts::default(),
            tokens: 0,
            reported: Reported::default(),
            said_end: false,
            said_error: false,
            documents: 0,
            known: false,
            closed: false,
            choices: Choices::Unknown,
            reports: false,
        }
    }
}

/// What is known.
impl Document {
    pub(super) const fn reported(&self) -> &Reported {
        &self.reported
    }

    /// Tokens of the deltas so far.
    pub(super) const fn seen(&self) -> u64 {
        self.tokens
    }

    /// Its last bracket has come.
    pub(super) const fn closed(&self) -> bool {
        self.closed
    }

    /// A document was of the kind that ends a stream.
    pub(super) const fn said_end(&self) -> bool {
        self.said_end
    }

    /// A document holds an error, not merely room for one.
    pub(super) const fn said_error(&self) -> bool {
        self.said_error
    }

    /// A document was of an API that is read.
    pub(super) const fn is_known(&self) -> bool {
        self.known
    }

    /// Documents begun so far.
    pub(super) const fn count(&self) -> u64 {
        self.documents
    }

    /// The last one has choices, so it is no mere report.
    pub(super) fn has_choices(&self) -> bool {
        self.choices == Choices::Some
    }

    /// The last one is whole, and a report beside an empty list of choices.
    pub(super) fn is_usage_chunk(&self) -> bool {
        self.closed && self.choices == Choices::None && self.reports
    }
}

impl Document {
    /// Leaves a document that was not read to its end.
    pub(super) fn leave(&mut self) {
        (self.state, self.escaped, self.awaits_key, self.depth) = (State::Between, false, false, 0);
    }

    /// Takes the next bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.read::<false>(bytes);
    }

    /// Takes the next bytes up to the end of the line, which is given back with what follows it.
    pub(super) fn feed_line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        self.read::<true>(bytes)
    }

    fn read<'a, const LINE: bool>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let mut rest = bytes;
        while let Some((first, after)) = rest.split_first() {
            if LINE && *first == b'\n' {
                break;
            }
            rest = match self.state {
                State::Between => {
                    self.between(*first);
                    after
                }
                State::Key | State::Skipped | State::Output | State::Kind => self.string::<LINE>(rest),
                State::Number => self.number(*first, rest, after),
                State::Word => self.word(rest),
                State::Broken => {
                    let end = if LINE { rest.iter().position(|byte| *byte == b'\n') } else { None };
                    return end.and_then(|end| rest.get(end..)).unwrap_or_default();
                }
            };
        }
        rest
    }

    #[inline(always)]
    fn between(&mut self, byte: u8) {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b'"' if self.awaits_key => {
                self.name.length = 0;
                self.state = State::Key;
            }
            b'"' => self.state = self.value(),
            b':' => self.awaits_key = false,
            b',' => self.awaits_key = self.place().is_object(),
            b'{' | b'[' => self.open(byte == b'{'),
            b'}' | b']' => self.close(byte == b'}'),
            b'0'..=b'9' if self.counted().is_some() => {
                self.number = u64::from(byte - b'0');
                self.state = State::Number;
            }
            _ => {
                if byte != b'n' && self.counted().is_some() {
                    self.counts.disbelieve();
                }
                self.choice();
                self.state = State::Word;
            }
        }
    }

    /// Where the innermost object or array stands; outside all of them nothing counts.
    fn place(&self) -> Place {
        self.depth.checked_sub(1).and_then(|top| self.places.get(top)).copied().unwrap_or(Place::OtherArray)
    }

    /// What the value that follows counts.
    fn counted(&self) -> Option<Count> {
        match (self.place(), self.key) {
            (Place::Usage, Key::Count(count)) | (Place::Details, Key::Count(count @ Count::Cached)) => Some(count),
            _ => None,
        }
    }

    /// Something stands in a list of choices.
    fn choice(&mut self) {
        if self.place() == Place::Choices {
            self.choices = Choices::Some;
        }
    }

    /// How to read the string that begins.
    fn value(&mut self) -> State {
        self.choice();
        match (self.place(), self.key) {
            (Place::Choice | Place::Delta, Key::Text)
            | (Place::Delta | Place::DeltaArray, Key::Output)
            | (Place::Root, Key::Delta) => {
                self.piece = 0;
                State::Output
            }
            (Place::Root, Key::Kind) => {
                self.name.length = 0;
                State::Kind
            }
            _ => {
                if self.counted().is_some() {
                    self.counts.disbelieve();
                }
                State::Skipped
            }
        }
    }

    fn open(&mut self, object: bool) {
        self.choice();
        if self.counted().is_some() {
            self.counts.disbelieve();
        }
        self.said_error |= object && self.key == Key::Error && matches!(self.place(), Place::Root | Place::Envelope);
        let place = match (self.place(), self.key, object) {
            _ if self.depth == 0 && object => Place::Root,
            (Place::Root, Key::Choices, false) => Place::Choices,
            (Place::Choices, _, true) => Place::Choice,
            (Place::Root | Place::Choice, Key::Delta, true) => Place::Delta,
            (Place::Delta | Place::DeltaArray, _, true) => Place::Delta,
            (Place::Delta | Place::DeltaArray, _, false) => Place::DeltaArray,
            (Place::Root, Key::Envelope, true) => Place::Envelope,
            (Place::Root | Place::Envelope, Key::Usage, true) => Place::Usage,
            (Place::Usage, Key::Details, true) => Place::Details,
            (_, _, true) => Place::OtherObject,
            (_, _, false) => Place::OtherArray,
        };
        match place {
            Place::Root => {
                self.documents = self.documents.saturating_add(1);
                (self.closed, self.choices, self.reports) = (false, Choices::Unknown, false);
            }
            Place::Choices if self.choices == Choices::Unknown => self.choices = Choices::None,
            Place::Usage => self.counts = Counts::default(),
            _ => {}
        }
        let Some(slot) = self.places.get_mut(self.depth) else {
            self.state = State::Broken;
            return;
        };
        *slot = place;
        self.depth = self.depth.saturating_add(1);
        self.awaits_key = object;
        if object {
            self.key = Key::Other;
        }
    }

    fn close(&mut self, object: bool) {
        let place = self.place();
        if self.depth == 0 || place.is_object() != object {
            self.state = State::Broken;
            return;
        }
        if place == Place::Usage {
            self.reported.add(&self.counts, self.tokens);
            self.reports |= self.depth == 2;
        }
        self.depth = self.depth.saturating_sub(1);
        self.closed = self.depth == 0;
        // What follows is a comma and a key, or another bracket.
        (self.awaits_key, self.key) = (false, Key::Other);
    }

    /// Reads on in a string, to its end, to the next escape or to the end of the line.
    fn string<'a, const LINE: bool>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        if std::mem::take(&mut self.escaped) {
            let (escape, after) = rest.split_at_checked(1).unwrap_or((rest, &[]));
            // Of `\u0041` the digits are counted, of `\n` the letter: no more than the character's own bytes, nearly.
            if escape != b"u" {
                self.take(escape);
            }
            return after;
        }
        let end = if LINE { quote_backslash_or_line(rest) } else { quote_or_backslash(rest) }.unwrap_or(rest.len());
        let (run, after) = rest.split_at_checked(end).unwrap_or((rest, &[]));
        match after.split_first() {
            // Most names lie in one piece, which spares a copy.
            Some((b'"', after)) if self.state == State::Key && self.name.length == 0 => {
                self.end_key(key_of(run));
                self.at_once(after, b':')
            }
            Some((b'"', after)) => {
                self.take(run);
                self.end_string();
                self.at_once(after, b',')
            }
            Some((b'\\', after)) => {
                self.take(run);
                self.escaped = true;
                after
            }
            _ => {
                self.take(run);
                after
            }
        }
    }

    /// Takes a sign that mostly follows a string, if it does.
    #[inline(always)]
    fn at_once<'a>(&mut self, rest: &'a [u8], sign: u8) -> &'a [u8] {
        match rest.split_first() {
            Some((first, after)) if *first == sign => {
                self.between(sign);
                after
            }
            _ => rest,
        }
    }

    fn take(&mut self, run: &[u8]) {
        match self.state {
            State::Key | State::Kind => self.name.push(run),
            State::Output => {
                let before = tokens_of(self.piece);
                self.piece = self.piece.saturating_add(run.len() as u64);
                let more = tokens_of(self.piece).saturating_sub(before);
                self.tokens = self.tokens.saturating_add(more).min(MOST_TOKENS);
            }
            _ => {}
        }
    }

    fn end_string(&mut self) {
        match self.state {
            State::Key => return self.end_key(key_of(self.name.known())),
            State::Kind => self.said_end |= self.name.ends_a_stream(),
            _ => {}
        }
        self.state = State::Between;
    }

    fn end_key(&mut self, key: Key) {
        self.key = key;
        self.known |= matches!(key, Key::Choices | Key::Kind) && self.place() == Place::Root;
        self.state = State::Between;
    }

    fn number<'a>(&mut self, first: u8, rest: &'a [u8], after: &'a [u8]) -> &'a [u8] {
        match first {
            b'0'..=b'9' => {
                self.number = self.number.saturating_mul(10).saturating_add(u64::from(first - b'0'));
                return after;
            }
            _ if ends_word(first) => {
                if let Some(count) = self.counted() {
                    self.counts.set(count, self.number);
                }
                self.state = State::Between;
            }
            // A fraction or an exponent.
            _ => {
                self.counts.disbelieve();
                self.state = State::Word;
            }
        }
        rest
    }

    fn word<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        let Some(end) = rest.iter().position(|byte| ends_word(*byte)) else { return &[] };
        self.state = State::Between;
        rest.split_at_checked(end).map_or(&[], |(_, after)| after)
    }
}

/// Tokens of a piece of output.
const fn tokens_of(bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        1..=LONGEST_TOKEN => 1,
        _ => bytes.div_ceil(BYTES_PER_TOKEN),
    }
}

const fn ends_word(byte: u8) -> bool {
    matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n' | b'"' | b'{' | b'[' | b':')
}
