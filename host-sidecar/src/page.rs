//! A Prometheus or OpenMetrics text page, line by line.
//!
//! Written here because the crate that fits best, `prometheus-parse`, takes only letters, digits and underscores for a
//! name: every `vllm:` line would be dropped, and a `}` inside a label ends its labels early.
//!
//! A page is taken in as it comes, so that it is never held whole, and from one page of a server to the next little but the
//! values changes. So the samples of the page before are kept: a line that begins like the one that stood in its place is
//! read from its value on, and its labels, which come by the dozen, are taken apart once. What is not asked for by name costs
//! no more than finding where its name ends.
//!
//! A line counts only when it is a sample from its first to its last character, so that what was cut off or mixed up on
//! its way is skipped and not misread:
//!
//! - It ends with a line feed, as the format demands; `\r\n` will do. What stands behind the last line feed of a page may
//!   be half a number, so it is not read.
//! - Behind the value there may be a timestamp and an exemplar. Both say nothing that the time of the scrape does not.
//! - Comments, `# TYPE` and `# EOF` among them, are skipped. Names are compared whole, with the suffixes that OpenMetrics
//!   gives them (`_total`, `_created`, `_sum`, `_count`).
//! - A label that is set twice has no value.
//!
//! Whether a series that stands twice can be believed is for those to say who know what it means
//! ([`crate::engines`]).

use std::borrow::Cow;

use memchr::{memchr, memchr_iter};

mod sample;

pub use sample::Sample;
use sample::name_of;

/// Longest line, in bytes: settings of an engine take some thousand.
const LONGEST_LINE: usize = 64 << 10;

/// Most memory that the samples of a page may take, in bytes: those of a vLLM with the most ranks take a quarter of it.
const MOST_BYTES: usize = 4 << 20;

/// Most of it that is kept for the next page, in bytes: there are thousands of workers. A rank of vLLM takes some four thousand.
const KEPT_BYTES: usize = 256 << 10;

/// The samples of one page after another.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Those of this page, as far as it has come, and behind them what is left of the page before.
    samples: Vec<Sample>,
    /// How many are of this page.
    read: usize,
    /// Memory that these take.
    bytes: usize,
    /// A line whose end has not come yet.
    begun: Vec<u8>,
    is_too_long: bool,
}

impl Page {
    /// All of a page.
    ///
    /// ```
    /// use host_sidecar::page::Page;
    ///
    /// let text = "# TYPE engine:load gauge\nengine:load{rank=\"3\"} 1e+09\nengine:other 4\n";
    /// let page = Page::of(text, |name| name == b"engine:load");
    /// let (_, load) = page.samples(Some).next().unwrap();
    /// assert_eq!((load.label("rank").as_deref(), load.value), (Some("3"), 1e9));
    /// ```
    pub fn of(text: impl AsRef<[u8]>, wanted: impl Fn(&[u8]) -> bool) -> Self {
        let mut page = Self::default();
        page.push(text.as_ref(), wanted);
        page
    }

    /// Begins another page.
    pub fn begin(&mut self) {
        self.samples.truncate(if self.bytes > KEPT_BYTES { 0 } else { self.read });
        self.samples.shrink_to(KEPT_BYTES / size_of::<Sample>());
        self.begun.clear();
        self.begun.shrink_to(KEPT_BYTES);
        (self.read, self.bytes, self.is_too_long) = (0, 0, false);
    }

    /// Takes the next piece of it, and of that the samples whose name is `wanted`, or was on the page before.
    pub fn push(&mut self, mut piece: &[u8], wanted: impl Fn(&[u8]) -> bool) {
        if !self.begun.is_empty() {
            let end = memchr(b'\n', piece).map_or(piece.len(), |feed| feed + 1);
            let (line, rest) = piece.split_at_checked(end).unwrap_or((piece, &[]));
            self.append(line);
            piece = rest;
            if line.last() != Some(&b'\n') {
                return;
            }
            let mut line = std::mem::take(&mut self.begun);
            self.line(line.strip_suffix(b"\n").unwrap_or(&line), &wanted);
            line.clear();
            self.begun = line;
        }
        let mut begin = 0;
        // Lines of one name stand together, so most that are left out begin like the one before.
        let mut left_out: &[u8] = b"#";
        for feed in memchr_iter(b'\n', piece) {
            let line = piece.get(begin..feed).unwrap_or_default();
            begin = feed + 1;
            if !line.starts_with(left_out) && !self.line(line, &wanted) {
                left_out = head_of(line).unwrap_or(left_out);
            }
        }
        self.append(piece.get(begin..).unwrap_or_default());
    }

    /// The samples that have come so far and for which `pick` has a use, in the order of the page.
    pub fn samples<'a, K>(&'a self, pick: impl Fn(&'a str) -> Option<K>) -> impl Iterator<Item = (K, &'a Sample)> {
        self.samples.iter().take(self.read).filter_map(move |sample| Some((pick(sample.name())?, sample)))
    }

    /// Whether it breaks off in the middle of a sample. Half a comment, such as an end mark without its line feed, hides
    /// nothing.
    pub fn is_cut(&self) -> bool {
        !self.begun.trim_ascii().is_empty() && !self.begun.starts_with(b"#")
    }

    /// Whether there are more samples, or longer ones, than a page can have. None of them are kept then.
    pub fn is_too_long(&self) -> bool {
        self.is_too_long
    }

    /// Adds to the line whose end has not come. One byte more than a line can have shows that it is none.
    fn append(&mut self, bytes: &[u8]) {
        let room = (LONGEST_LINE + 1).saturating_sub(self.begun.len());
        self.begun.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    /// Takes a line, and says whether it is one of a series that is wanted.
    fn line(&mut self, line: &[u8], wanted: impl Fn(&[u8]) -> bool) -> bool {
        if self.is_too_long {
            return true;
        }
        let is_long = line.len() > LONGEST_LINE;
        if let Some(before) = self.samples.get_mut(self.read)
            && !is_long
            && before.read_again(line)
        {
            let bytes = before.bytes();
            self.grow(bytes);
            return true;
        }
        // A third of a page is comments, whose first word names nothing.
        let name = if line.starts_with(b"#") { None } else { name_of(line) };
        if !name.and_then(|name| line.get(name)).is_some_and(wanted) {
            return false;
        }
        if is_long {
            self.give_up();
        } else if let Some(sample) = Sample::read(&text(line)) {
            let bytes = sample.bytes();
            match self.samples.get_mut(self.read) {
                Some(before) => *before = sample,
                None => self.samples.push(sample),
            }
            self.grow(bytes);
        }
        true
    }

    /// One sample more is of this page.
    fn grow(&mut self, bytes: usize) {
        self.read += 1;
        self.bytes += bytes;
        if self.bytes > MOST_BYTES {
            self.give_up();
        }
    }

    /// Takes no sample more, and holds none until the next page begins.
    fn give_up(&mut self) {
        (self.samples, self.read, self.bytes) = (Vec::new(), 0, 0);
        self.is_too_long = true;
    }
}

/// The text of a line. Bytes that are no UTF-8 become the sign that says so, which is no part of any name or number.
///
/// Text that is sound, as nearly every line is, is checked several times faster at once than piece by piece.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// The name of a line that begins with it, and the byte behind: all lines that begin so have that name.
fn head_of(line: &[u8]) -> Option<&[u8]> {
    let name = name_of(line)?;
    line.get(..=name.end).filter(|_| name.start == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_wanted(name: &[u8]) -> bool {
        name == b"a" || name == b"b:c"
    }

    /// Names, labels and values of what a page holds that comes in pieces of such lengths and then all of the rest.
    fn in_pieces(page: &mut Page, text: &[u8], pieces: impl Iterator<Item = usize>) -> Vec<String> {
        let mut rest = text;
        page.begin();
        for length in pieces {
            let (piece, tail) = rest.split_at(length.min(rest.len()));
            page.push(piece, is_wanted);
            rest = tail;
        }
        page.push(rest, is_wanted);
        shown(page)
    }

    fn shown(page: &Page) -> Vec<String> {
        page.samples(Some).map(|(name, sample)| format!("{name}{{{}}} {}", sample.labels(), sample.value)).collect()
    }

    #[test]
    fn lines_are_read_whole_however_they_come() {
        let text = b"# HELP a b\na 1\nab 2\nab 3\n  b:c{x=\"a\"} 3\r\n\na{} 4\n\t{} 5\n\ta 6\nb 5\na\xff 6\na 7";
        let mut page = Page::default();
        for length in 1..=text.len() {
            let samples = in_pieces(&mut page, text, std::iter::repeat_n(length, text.len() / length));
            assert_eq!(samples, ["a{} 1", "b:c{x=\"a\"} 3", "a{} 4", "a{} 6"], "in pieces of {length}");
            assert!(page.is_cut(), "a may be 71");
        }
    }

    #[test]
    fn what_breaks_off_in_a_comment_is_whole() {
        for (text, is_cut) in
            [("", false), ("a 1\n", false), ("a 1\n# EOF", false), ("a 1\n \r", false), ("a 1\nb", true)]
        {
            assert_eq!(Page::of(text, is_wanted).is_cut(), is_cut, "{text:?}");
        }
    }

    #[test]
    fn what_was_read_before_changes_nothing() {
        let mut rng = fastrand::Rng::with_seed(8);
        let lines = [
            "a 1\n",
            "a{} 2\n",
            "a{x=\"b\"} 3\r\n",
            " b:c{x=\"}\\\"\"} 4\n",
            "b:c {x=\"a\"} 5 6\n",
            "c 7\n",
            "# a 8\n",
        ];
        let words = ["a", "b:c", "{", "}", "\"", "\\", " ", "\t", "\n", "1", "#", "\u{e9}"];
        let (mut page, mut text, mut found) = (Page::default(), String::new(), 0);
        for _ in 0..8_000 {
            // Mostly the page before with something else somewhere.
            if rng.u8(..8) == 0 {
                text = (0..rng.usize(..8)).map(|_| lines[rng.usize(..lines.len())]).collect();
            }
            let at = text.floor_char_boundary(rng.usize(..=text.len()));
            match text[at..].chars().next() {
                Some('0'..='9') => text.replace_range(at..=at, &rng.u8(..10).to_string()),
                Some(_) if rng.bool() => drop(text.remove(at)),
                _ => text.insert_str(at, words[rng.usize(..words.len())]),
            }
            let mut text = text.clone().into_bytes();
            if let Some(byte) = text.get_mut(rng.usize(..200)) {
                *byte = rng.u8(..);
            }
            // Of a line that is read again the text stays where it is.
            let places = |page: &Page| page.samples(Some).map(|(name, _)| name.as_ptr()).collect::<Vec<_>>();
            let before = places(&page);
            let again = in_pieces(&mut page, &text, std::iter::repeat_with(|| rng.usize(..20)).take(20));
            let anew = Page::of(&text, is_wanted);
            assert_eq!((&again, page.is_cut()), (&shown(&anew), anew.is_cut()), "{:?}", String::from_utf8_lossy(&text));
            found += places(&page).iter().filter(|place| before.contains(place)).count();
        }
        assert!(found > 2_000, "only {found}");
    }

    #[test]
    fn nothing_of_a_page_is_left_to_the_next() {
        let mut page = Page::default();
        page.push(b"a 1\na", |_| true);
        page.begin();
        page.push(b" 2\n", is_wanted);
        assert!(shown(&page).is_empty());
    }

    #[test]
    fn a_page_that_is_too_long_says_so() {
        let labels = |bytes: usize| format!("a{{{}}} 1\n", "=\"\",".repeat(bytes / 4));
        let mut page = Page::default();
        for text in [
            format!("a 1\n{}a 2\n", labels(LONGEST_LINE)),
            format!("a 1{}\na 2\n", " ".repeat(LONGEST_LINE)),
            labels(8 << 10).repeat(512),
            "a 1\n".repeat(1 << 20),
        ] {
            for length in [text.len(), 4_096] {
                page.begin();
                let mut most = 0;
                for piece in text.as_bytes().chunks(length) {
                    page.push(piece, is_wanted);
                    most = most.max(page.samples.iter().map(Sample::bytes).sum());
                }
                assert!(page.is_too_long() && page.begun.capacity() <= 2 * LONGEST_LINE);
                assert!(most <= MOST_BYTES && page.samples.capacity() == 0, "{most}");
            }
            assert_eq!(in_pieces(&mut page, b"a 3\n", std::iter::empty()), ["a{} 3"], "the next is read");
            assert!(!page.is_too_long());
        }
    }

    #[test]
    fn only_so_much_is_kept_for_the_next_page() {
        let held = |page: &Page| page.samples.iter().map(Sample::bytes).sum::<usize>();
        let line = format!("a{{{}}} 1\n", "=\"\",".repeat(1_000));
        let few = line.repeat(5);
        let mut page = Page::of(&few, is_wanted);
        assert!(held(&page) > 5 * line.len());
        page.begin();
        assert_eq!(page.samples.len(), 5);
        page.push(b"a 3\n", is_wanted);
        page.begin();
        assert_eq!(page.samples.len(), 1, "what that page did not have is not kept");
        page.push(few.repeat(20).as_bytes(), is_wanted);
        assert!(!page.is_too_long() && page.read == 100 && held(&page) > KEPT_BYTES);
        page.begin();
        assert_eq!((held(&page), page.bytes), (0, 0));
        assert!(page.samples.capacity() * size_of::<Sample>() <= KEPT_BYTES);
        assert_eq!(in_pieces(&mut page, b"a 3\n", std::iter::empty()), ["a{} 3"]);
    }
}
