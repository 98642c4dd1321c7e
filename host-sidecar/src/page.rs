//! A Prometheus or OpenMetrics text page, line by line.
//!
//! Written here because the crate that fits best, `prometheus-parse`, takes only letters, digits and underscores for a
//! name: every `vllm:` line would be dropped, and a `}` inside a label ends its labels early. Nothing here keeps state,
//! and what is not asked for by name costs no more than finding where its name ends.
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

use memchr::{memchr, memchr_iter, memchr2, memchr3};

mod sieve;

pub use sieve::Sieve;

/// The text of a page. Bytes that are no UTF-8 become the sign that says so, which is no part of any name or number.
///
/// Text that is sound, as nearly every page is, is checked several times faster at once than piece by piece.
pub fn text(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// Whether a page breaks off in the middle of a sample. Half a comment, such as an end mark without its line feed, hides
/// nothing.
pub fn is_cut(page: &str) -> bool {
    let last = page.rsplit('\n').next().unwrap_or_default();
    !last.trim_ascii().is_empty() && !last.starts_with('#')
}

/// One sample line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// The value; may be NaN or infinite.
    pub value: f64,
    labels: &'a str,
}

/// The samples of `page`, in order, whose name begins with `prefix` and for which `pick` has a use.
///
/// ```
/// use host_sidecar::page::samples;
///
/// let page = "# TYPE engine:load gauge\nengine:load{rank=\"3\"} 1e+09\nengine:other 4\n";
/// let (_, load) = samples(page, "engine:", |name| (name == "engine:load").then_some(())).next().unwrap();
/// assert_eq!((load.label("rank").as_deref(), load.value), (Some("3"), 1e9));
/// ```
pub fn samples<'a, K>(
    page: &'a str,
    prefix: &'a str,
    pick: impl Fn(&'a str) -> Option<K>,
) -> impl Iterator<Item = (K, Sample<'a>)> {
    lines(page).filter_map(move |line| {
        let line = if line.starts_with([' ', '\t']) { line.trim_ascii_start() } else { line };
        if !line.starts_with(prefix) {
            return None;
        }
        let (name, rest) = line.split_at_checked(name_of(line.as_bytes())?.len())?;
        Some((pick(name)?, Sample::read(rest)?))
    })
}

/// What a line begins with, blanks apart, up to its labels or its value.
fn name_of(line: &[u8]) -> Option<&[u8]> {
    let line = if line.starts_with(b" ") || line.starts_with(b"\t") { line.trim_ascii_start() } else { line };
    line.get(..memchr3(b'{', b' ', b'\t', line)?)
}

/// What stands before each line feed.
fn lines(page: &str) -> impl Iterator<Item = &str> {
    let mut begin = 0;
    memchr_iter(b'\n', page.as_bytes()).filter_map(move |end| {
        let line = page.get(begin..end);
        begin = end + 1;
        line
    })
}

impl<'a> Sample<'a> {
    /// The labels as the page writes them: what tells two series of one name apart.
    pub fn labels(&self) -> &'a str {
        self.labels
    }

    /// The value of a label, its escapes resolved; `None` when it is not set, or set twice.
    pub fn label(&self, key: &str) -> Option<Cow<'a, str>> {
        let [value] = self.all_of([key]);
        value
    }

    /// The values of several labels, each as of [`Self::label`].
    pub fn all_of<const N: usize>(&self, keys: [&str; N]) -> [Option<Cow<'a, str>>; N] {
        let mut found = keys.map(|key| (key, None, 0));
        for (name, value) in pairs(self.labels) {
            for (_, first, times) in found.iter_mut().filter(|(key, ..)| *key == name) {
                first.get_or_insert(value);
                *times += 1;
            }
        }
        found.map(|(_, value, times)| value.filter(|_| times == 1).map(unescaped))
    }

    /// What follows a name.
    fn read(rest: &'a str) -> Option<Self> {
        let (labels, rest) = match rest.trim_start().strip_prefix('{') {
            Some(inside) => {
                let (labels, rest) = inside.split_at_checked(find_unquoted(inside, b'}')?)?;
                (labels, rest.strip_prefix('}')?)
            }
            None => ("", rest),
        };
        let mut words = rest.split_ascii_whitespace();
        let value = words.next()?.parse().ok()?;
        let is_whole = match words.next() {
            None | Some("#") => true,
            Some(timestamp) => timestamp.parse::<f64>().is_ok() && matches!(words.next(), None | Some("#")),
        };
        is_whole.then_some(Self { value, labels })
    }
}

/// Names and values, the latter without their quotes and with their escapes.
fn pairs(labels: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = labels;
    std::iter::from_fn(move || {
        if let Some((pair, tail)) = plain_pair(rest) {
            rest = tail;
            return Some(pair);
        }
        let pair = match find_unquoted(rest, b',') {
            Some(comma) => {
                let (pair, tail) = rest.split_at_checked(comma)?;
                rest = tail.strip_prefix(',')?;
                pair
            }
            None if rest.is_empty() => return None,
            None => std::mem::take(&mut rest),
        };
        // A pair that is none has an empty name, which no label has.
        let (name, value) = pair.split_once('=').unwrap_or_default();
        let value = value.trim().strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        Some(value.map_or(("", ""), |value| (name.trim(), value)))
    })
}

/// The first pair and what is behind it, where it is written without any blank, as nearly all are: settings come by the dozen, and
/// whoever wants one reads them all.
fn plain_pair(labels: &str) -> Option<((&str, &str), &str)> {
    let equals = memchr3(b'=', b'"', b',', labels.as_bytes())?;
    let (name, rest) = labels.split_at_checked(equals)?;
    let quoted = rest.strip_prefix("=\"")?;
    let (value, rest) = quoted.split_at_checked(end_of_quote(quoted.as_bytes())?)?;
    let rest = if rest.is_empty() { rest } else { rest.strip_prefix(',')? };
    Some(((name.trim(), value.strip_suffix('"')?), rest))
}

/// The three escapes of the format. Another one stays as it is.
fn unescaped(value: &str) -> Cow<'_, str> {
    if memchr(b'\\', value.as_bytes()).is_none() {
        return Cow::Borrowed(value);
    }
    let mut text = String::with_capacity(value.len());
    let mut signs = value.chars();
    while let Some(sign) = signs.next() {
        match sign {
            '\\' => match signs.next() {
                Some('n') => text.push('\n'),
                Some(sign @ ('\\' | '"')) => text.push(sign),
                other => text.extend([sign].into_iter().chain(other)),
            },
            sign => text.push(sign),
        }
    }
    Cow::Owned(text)
}

/// Where `wanted` first stands outside double quotes.
fn find_unquoted(text: &str, wanted: u8) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    loop {
        at += memchr2(wanted, b'"', bytes.get(at..)?)?;
        if bytes.get(at) == Some(&wanted) {
            return Some(at);
        }
        // Labels may be long, as those of settings are, so what is quoted is passed over in leaps too.
        at += 1;
        at += end_of_quote(bytes.get(at..)?)?;
    }
}

/// Behind the quote that ends what `bytes` begins in.
fn end_of_quote(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            _ => at += 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<'a>(page: &'a str) -> Vec<(&'a str, Sample<'a>)> {
        samples(page, "", Some).collect()
    }

    /// The only sample of a page of one line.
    fn one(line: &str) -> Option<(String, f64, Vec<Option<String>>)> {
        let page = format!("{line}\n");
        let (name, sample) = all(&page).first().copied()?;
        let labels = ["a", "b", "c"].map(|key| sample.label(key).map(Cow::into_owned));
        Some((name.to_owned(), sample.value, labels.to_vec()))
    }

    fn value(line: &str) -> Option<f64> {
        one(line).map(|(_, value, _)| value)
    }

    #[test]
    fn names_with_colons_exponents_timestamps_and_exemplars_are_read() {
        let (name, value_of, labels) = one("a:b_c{a=\"1\",b=\"2\"} 1.5e+09 1700000000000").unwrap();
        assert_eq!((name.as_str(), value_of), ("a:b_c", 1.5e9));
        assert_eq!(labels, [Some("1".into()), Some("2".into()), None]);
        assert_eq!(value("plain 3"), Some(3.0));
        assert_eq!(value("plain\t3\t"), Some(3.0));
        assert_eq!(value("  indented 3"), Some(3.0));
        assert_eq!(value("apart {a=\"1\"} 3"), Some(3.0));
        assert_eq!(value("up{} +Inf"), Some(f64::INFINITY));
        assert!(value("up NaN").unwrap().is_nan());
        assert_eq!(value("m_bucket{le=\"1\"} 5 # {trace_id=\"x y\"} 0.5 1.6e9"), Some(5.0));
        assert_eq!(value("m_bucket{le=\"1\"} 5 1.7e9 # {trace_id=\"x\"} 0.5"), Some(5.0));
        assert_eq!(value("m 5 -1"), Some(5.0), "a timestamp before 1970");
    }

    #[test]
    fn quotes_hide_braces_commas_and_escaped_quotes() {
        let (_, _, labels) = one(r#"m{a="{x},y=\"z\"", b="[]",c="7",} 1"#).unwrap();
        assert_eq!(labels, [Some(r#"{x},y="z""#.into()), Some("[]".into()), Some("7".into())]);
    }

    #[test]
    fn escapes_are_resolved() {
        let (_, _, labels) = one(r#"m{a="C:\\DIR\\n",b="one\ntwo",c="\t\"é"} 1"#).unwrap();
        assert_eq!(labels, [Some(r"C:\DIR\n".into()), Some("one\ntwo".into()), Some("\\t\"é".into())]);
    }

    #[test]
    fn lines_that_are_no_sample_are_skipped() {
        for line in [
            "",
            "name",
            "name{",
            "name{a=\"b\"}",
            "name{a=\"b} 1",
            "name x",
            "{} ",
            "# HELP a b",
            "# EOF",
            "\u{fffd}\u{fffd} é",
            "name 1 2 3",
            "name 4name 5",
            "name 4 other 5",
            "name 1,5",
        ] {
            assert_eq!(value(line), None, "{line:?}");
        }
    }

    #[test]
    fn labels_that_are_none_or_set_twice_have_no_value() {
        for labels in ["a", "a=b", "a=\"1\",a=\"2\"", "a=\"1\",b=\"2\",a=\"1\"", "=\"1\"", "a=\"1"] {
            let found = one(&format!("m{{{labels}}} 1")).map(|(_, _, labels)| labels[0].clone());
            assert!(matches!(found, None | Some(None)), "{labels:?} {found:?}");
        }
    }

    #[test]
    fn plain_pairs_are_what_all_pairs_are() {
        let (mut rng, mut plain) = (fastrand::Rng::with_seed(3), 0);
        let words = ["a", "b", "=\"", "\"", "\",", "=", ",", "\\", "\\\"", " ", "{", "\u{e9}", "\u{b}", "\u{a0}"];
        for _ in 0..20_000 {
            let labels: String = (0..rng.usize(1..12)).map(|_| words[rng.usize(..words.len())]).collect();
            if plain_pair(&labels).is_none() {
                continue;
            }
            plain += 1;
            let spaced = labels.replacen('=', "= ", 1);
            assert_eq!(plain_pair(&spaced), None, "the blank makes it another way: {spaced:?}");
            assert_eq!(pairs(&labels).collect::<Vec<_>>(), pairs(&spaced).collect::<Vec<_>>(), "{labels:?}");
        }
        assert!(plain > 500, "only {plain}");
    }

    #[test]
    fn a_last_line_without_its_end_is_not_read() {
        assert_eq!(all("a 1\nb 12").len(), 1, "b may be 123");
        assert_eq!(all("a 1\r\nb 2\r\n").len(), 2);
        assert!(all("a 1").is_empty());
    }

    #[test]
    fn only_what_is_asked_for_is_read() {
        let page = "vllm:a 1\nvllm:ab 2\nsglang:a 3\n#vllm:a 4\n";
        let found: Vec<_> = samples(page, "vllm:", |name| (name == "vllm:a").then_some(())).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1.value, 1.0);
    }
}
