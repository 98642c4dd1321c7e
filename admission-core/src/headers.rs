//! Headers, read from the proxy by one call and written back by one: a call costs more than looking through all headers here.

use std::borrow::Cow;
use std::ops::Range;

use crate::pairs::{self, Pair};

/// Headers of a request or an answer, by names in lower case.
///
/// ```
/// use admission_core::headers::Headers;
///
/// let laid_out = [&[1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0][..], b"a\0bc\0"].concat();
/// let mut headers = Headers::new(laid_out);
/// assert_eq!(headers.text("a").as_deref(), Some("bc"));
/// headers.set("a", "d".to_owned());
/// assert_eq!(headers.text("a").as_deref(), Some("d"));
/// ```
#[derive(Debug, Default)]
pub struct Headers {
    /// Bytes as the proxy lays headers out, see [`pairs`].
    fetched: Vec<u8>,
    /// Places of each name and value among those bytes.
    places: Vec<Pair>,
    added: Vec<(&'static str, String)>,
}

impl Headers {
    /// Headers as the proxy lays them out; none of bytes that it does not lay out so.
    #[must_use]
    pub fn new(fetched: Vec<u8>) -> Self {
        let places = pairs::places(&fetched).unwrap_or_default();
        Self { fetched, places, added: Vec::new() }
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

    /// Names of all headers, each as often as it has copies.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.all().filter_map(|(name, _)| str::from_utf8(name).ok())
    }

    /// Value of a header, its copies joined by commas as the proxy joins them.
    #[must_use]
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

    /// Value of a header that is UTF-8; one that is not counts as absent.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        match self.get(name)? {
            Cow::Borrowed(value) => str::from_utf8(value).ok().map(Cow::Borrowed),
            Cow::Owned(value) => String::from_utf8(value).ok().map(Cow::Owned),
        }
    }

    /// Bytes of all headers as the proxy lays them out.
    #[must_use]
    pub fn laid_out(&self) -> Vec<u8> {
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

    fn all(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let at = |place: &Range<usize>| self.fetched.get(place.clone()).unwrap_or_default();
        let fetched = self.places.iter().map(move |(name, value)| (at(name), at(value)));
        fetched.chain(self.added.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    }
}

#[cfg(test)]
impl<'a, V: AsRef<[u8]> + 'a> FromIterator<(&'a str, V)> for Headers {
    /// Headers in the order given, as a proxy would bring them.
    fn from_iter<I: IntoIterator<Item = (&'a str, V)>>(pairs: I) -> Self {
        let mut fetched = Vec::new();
        let mut places = Vec::new();
        let mut put = |bytes: &[u8]| {
            let start = fetched.len();
            fetched.extend_from_slice(bytes);
            start..fetched.len()
        };
        for (name, value) in pairs {
            places.push((put(name.as_bytes()), put(value.as_ref())));
        }
        Self { fetched, places, added: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers() -> Headers {
        Headers::from_iter([("host", "a"), ("via", "b"), ("via", "c"), ("x-odd", "")])
    }

    #[test]
    fn copies_are_joined_and_what_is_no_text_counts_as_absent() {
        let mut headers = headers();
        assert_eq!(headers.text("via").as_deref(), Some("b,c"));
        assert_eq!(headers.text("x-odd").as_deref(), Some(""));
        assert_eq!(headers.text("x-none"), None);
        headers.add("via", "d".into());
        assert_eq!(headers.text("via").as_deref(), Some("b,c,d"));
        let odd = Headers::from_iter([("x-odd", [0xff])]);
        assert_eq!((odd.text("x-odd"), odd.get("x-odd").as_deref()), (None, Some(&[0xff][..])));
    }

    #[test]
    fn what_is_set_takes_the_place_of_all_copies() {
        let mut headers = headers();
        headers.set("via", "d".into());
        headers.set("via", "e".into());
        assert_eq!(headers.text("via").as_deref(), Some("e"));
        headers.remove("via");
        assert_eq!(headers.names().collect::<Vec<_>>(), ["host", "x-odd"]);
    }

    #[test]
    fn what_is_laid_out_is_read_again() {
        let mut headers = headers();
        headers.set("x-odd", "f".into());
        headers.add("x-more", "g".into());
        let read = Headers::new(headers.laid_out());
        let all =
            |headers: &Headers| headers.all().map(|(name, value)| (name.to_vec(), value.to_vec())).collect::<Vec<_>>();
        assert_eq!((all(&read), read.names().count()), (all(&headers), 5));
        assert_eq!(Headers::new(b"no headers".to_vec()).names().count(), 0);
    }
}
