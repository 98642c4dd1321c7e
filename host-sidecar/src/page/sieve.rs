//! Of a page that comes in pieces, the lines that somebody has a use for.

use memchr::{memchr, memchr_iter};

use super::name_of;

/// A page has a few hundred bytes a rank that matter, and lines of up to some thousands.
const USUAL_BYTES: usize = 16 << 10;

/// Lets by what nobody asks for as it comes in, so that neither a page is ever held whole nor its text looked at twice. What
/// it keeps is the page as far as [`super::samples`] of wanted names can tell.
#[derive(Clone, Debug, Default)]
pub struct Sieve {
    kept: Vec<u8>,
    /// A line whose end has not come yet.
    begun: Vec<u8>,
}

impl Sieve {
    /// Forgets the page before, and gives back what an unusual one took.
    pub fn clear(&mut self) {
        for bytes in [&mut self.kept, &mut self.begun] {
            bytes.clear();
            bytes.shrink_to(USUAL_BYTES);
        }
    }

    /// Takes the next piece, and keeps the lines whose name is `wanted`.
    pub fn push(&mut self, mut piece: &[u8], wanted: impl Fn(&[u8]) -> bool) {
        if !self.begun.is_empty() {
            let end = memchr(b'\n', piece).map_or(piece.len(), |feed| feed + 1);
            let (line, rest) = piece.split_at_checked(end).unwrap_or((piece, &[]));
            self.begun.extend_from_slice(line);
            piece = rest;
            if !self.begun.ends_with(b"\n") {
                return;
            }
            if is_wanted(&self.begun, &wanted) {
                self.kept.append(&mut self.begun);
            }
            self.begun.clear();
        }
        let mut begin = 0;
        // Lines of one name stand together, so most that are left out begin like the one before.
        let mut left_out: &[u8] = b"#";
        for feed in memchr_iter(b'\n', piece) {
            let line = piece.get(begin..=feed).unwrap_or_default();
            begin = feed + 1;
            if line.starts_with(left_out) {
                continue;
            }
            if is_wanted(line, &wanted) {
                self.kept.extend_from_slice(line);
            } else if let Some(head) = head_of(line) {
                left_out = head;
            }
        }
        self.begun.extend_from_slice(piece.get(begin..).unwrap_or_default());
    }

    /// What was kept, in the order of the page, and what stands behind its last line feed.
    pub fn end(&mut self) -> &[u8] {
        self.kept.append(&mut self.begun);
        &self.kept
    }
}

/// The name of a line that begins with it, and the byte behind: all lines that begin so have that name.
fn head_of(line: &[u8]) -> Option<&[u8]> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return None;
    }
    line.get(..=name_of(line)?.len())
}

/// A third of a page is comments, whose first word names nothing.
fn is_wanted(line: &[u8], wanted: impl Fn(&[u8]) -> bool) -> bool {
    let name = if line.starts_with(b"#") { None } else { name_of(line) };
    name.is_some_and(wanted)
}

#[cfg(test)]
mod tests {
    use super::super::{samples, text};
    use super::*;

    fn sieved(page: &[u8], pieces: impl Iterator<Item = usize>) -> Vec<u8> {
        let (mut sieve, mut rest) = (Sieve::default(), page);
        for length in pieces {
            let (piece, tail) = rest.split_at(length.min(rest.len()));
            sieve.push(piece, |name| name == b"a" || name == b"b:c");
            rest = tail;
        }
        sieve.push(rest, |name| name == b"a" || name == b"b:c");
        sieve.end().to_vec()
    }

    #[test]
    fn lines_are_kept_whole_however_they_come() {
        let page = b"# HELP a b\na 1\nab 2\nab 3\n  b:c{x=\"a\"} 3\r\n\na{} 4\n\t{} 5\n\ta 6\nb 5\na\xff 6\na 7";
        for length in 1..=page.len() {
            let kept = sieved(page, std::iter::repeat_n(length, page.len() / length));
            assert_eq!(kept, b"a 1\n  b:c{x=\"a\"} 3\r\na{} 4\n\ta 6\na 7", "in pieces of {length}");
        }
    }

    #[test]
    fn samples_find_in_it_what_they_find_on_the_page() {
        let mut rng = fastrand::Rng::with_seed(8);
        let (mut found, words) =
            (0, ["a", "b:c", "a 1", "b:c{x=\"a\"} 2", "{", "}", "\"", " ", "\t", "\n", "\n", "1", "#", "\u{e9}"]);
        for _ in 0..4_000 {
            let mut page = Vec::new();
            for _ in 0..rng.usize(..40) {
                page.extend_from_slice(words[rng.usize(..words.len())].as_bytes());
                page.extend(std::iter::repeat_n(rng.u8(..), usize::from(rng.u8(..40) == 0)));
            }
            let kept = sieved(&page, std::iter::repeat_with(|| rng.usize(..20)).take(20));
            let (whole, kept) = (text(&page), text(&kept));
            let read = |page| {
                let pick = |name: &str| (name == "a" || name == "b:c").then(|| name.to_owned());
                samples(page, "", pick).map(|(name, sample)| (name, format!("{sample:?}"))).collect::<Vec<_>>()
            };
            assert_eq!(read(&kept), read(&whole), "{whole:?}");
            found += read(&whole).len();
        }
        assert!(found > 200, "only {found}");
    }

    #[test]
    fn nothing_of_a_page_is_left_to_the_next() {
        let mut sieve = Sieve::default();
        sieve.push(b"a 1\na", |_| true);
        sieve.clear();
        sieve.push(b" 2\n", |name| name == b"a");
        assert_eq!(sieve.end(), b"");
    }
}
