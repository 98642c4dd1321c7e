//! Headers, fetched from the proxy at once and written back at once: each call to it costs more than looking through all of
//! them here.

use crate::host;

/// Names, in lower case, and values of headers.
pub struct Headers(Vec<(String, Vec<u8>)>);

impl Headers {
    /// Of the current request. Only while its headers have not gone on.
    pub fn of_request() -> Self {
        Self(host::request_headers())
    }

    /// Of the current answer. Only while its headers have not gone on.
    pub fn of_answer() -> Self {
        Self(host::response_headers())
    }

    /// Makes these the headers of the current answer; not when they could not be read before.
    pub fn write_to_answer(&self) {
        if self.get(":status").is_none() {
            return;
        }
        let pairs = self.0.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        host::set_response_headers(pairs);
    }

    /// Puts a value in place of all that a header has.
    pub fn set(&mut self, name: &str, value: String) {
        self.remove(name);
        self.add(name, value);
    }

    /// Adds a value beside those that a header has.
    pub fn add(&mut self, name: &str, value: String) {
        self.0.push((name.to_owned(), value.into_bytes()));
    }

    /// Removes every copy of a header.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(other, _)| other != name);
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// A header, its copies joined by commas as the proxy joins them.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        let mut copies = self.0.iter().filter(|(other, _)| other == name).map(|(_, value)| value);
        let mut joined = copies.next()?.clone();
        for copy in copies {
            joined.push(b',');
            joined.extend_from_slice(copy);
        }
        Some(joined)
    }

    /// A header that is UTF-8; one that is not counts as absent.
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name).and_then(|value| String::from_utf8(value).ok())
    }
}
