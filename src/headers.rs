//! Headers, fetched from the proxy at once and written back at once: each call to it costs more than looking through all of
//! them here.

use std::borrow::Cow;
use std::ops::Range;

use admission_core::pairs::{self, Pair};

use crate::host;

/// Names, in lower case, and values of headers.
pub struct Headers {
    /// As the proxy lays them out, see [`admission_core::pairs`].
    fetched: Vec<u8>,
    /// Where in that each name and value stands.
    places: Vec<Pair>,
    added: Vec<(&'static str, String)>,
}

impl Headers {
    /// Of the current request. Only while its headers have not gone on.
    pub fn of_request() -> Self {
        Self::of(host::request_headers())
    }

    /// Of the current answer. Only while its headers have not gone on.
    pub fn of_answer() -> Self {
        Self::of(host::response_headers())
    }

    fn of(fetched: Vec<u8>) -> Self {
        let places = pairs::places(&fetched).unwrap_or_default();
        Self { fetched, places, added: Vec::new() }
    }

    /// Makes these the headers of the current answer; not when they could not be read before.
    pub fn write_to_answer(&self) {
        if self.get(":status").is_some() {
            host::set_response_headers(&self.laid_out());
        }
    }

    /// Puts a value in place of all that a header has.
    pub fn set(&mut self, name: &'static str, value: String) {
        self.remove(name);
        self.add(name, value);
    }

    /// Adds a value beside those that a header has.
    pub fn add(&mut self, name: &'static str, value: String) {
        self.added.push((name, value));
    }

    /// Removes every copy of a header.
    pub fn remove(&mut self, name: &str) {
        let fetched = &self.fetched;
        self.places.retain(|(place, _)| fetched.get(place.clone()) != Some(name.as_bytes()));
        self.added.retain(|(other, _)| *other != name);
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.all().filter_map(|(name, _)| str::from_utf8(name).ok())
    }

    /// A header, its copies joined by commas as the proxy joins them.
    pub fn get(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let mut copies = self.all().filter(|(other, _)| *other == name.as_bytes()).map(|(_, value)| value);
        let mut joined = Cow::Borrowed(copies.next()?);
        for copy in copies {
            let joined = joined.to_mut();
            joined.push(b',');
            joined.extend_from_slice(copy);
        }
        Some(joined)
    }

    /// A header that is UTF-8; one that is not counts as absent.
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        match self.get(name)? {
            Cow::Borrowed(value) => str::from_utf8(value).ok().map(Cow::Borrowed),
            Cow::Owned(value) => String::from_utf8(value).ok().map(Cow::Owned),
        }
    }

    fn all(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let at = |place: &Range<usize>| self.fetched.get(place.clone()).unwrap_or_default();
        let fetched = self.places.iter().map(move |(name, value)| (at(name), at(value)));
        fetched.chain(self.added.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    }

    fn laid_out(&self) -> Vec<u8> {
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
        let bytes =
            self.all().fold(4_usize, |bytes, (name, value)| bytes.saturating_add(name.len() + value.len() + 10));
        let mut out = Vec::with_capacity(bytes);
        out.extend(number(self.places.len().saturating_add(self.added.len())));
        for (name, value) in self.all() {
            out.extend(number(name.len()));
            out.extend(number(value.len()));
        }
        for (name, value) in self.all() {
            out.extend_from_slice(name);
            out.push(0);
            out.extend_from_slice(value);
            out.push(0);
        }
        out
    }
}
