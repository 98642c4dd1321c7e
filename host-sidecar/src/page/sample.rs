//! One line of a page.

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr, memchr2, memchr3};

/// A sample: the value of a series at one moment, and what names the series.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The value; may be NaN or infinite.
    pub value: f64,
    /// The line as far as its value.
    head: Box<str>,
    name: Range<usize>,
    /// Between its braces; `None` of a line without.
    labels: Option<Range<usize>>,
    pairs: Box<[Pair]>,
}

/// Where in the head a label stands: its name, and its value without quotes and with its escapes.
#[derive(Clone, Debug, PartialEq)]
struct Pair {
    name: Range<usize>,
    value: Range<usize>,
}

impl Sample {
    /// The sample that a line is, without its line feed.
    pub fn read(line: &str) -> Option<Self> {
        let name = name_of(line.as_bytes())?;
        let rest = line.get(name.end..)?;
        let (labels, head, rest) = match rest.trim_start().strip_prefix('{') {
            Some(inside) => {
                let (labels, rest) = inside.split_at_checked(find_unquoted(inside, b'}')?)?;
                let rest = rest.strip_prefix('}')?;
                (Some(labels), line.get(..line.len() - rest.len())?, rest)
            }
            None => (None, line.get(..name.end)?, rest),
        };
        let value = value_of(rest)?;
        let place = |part: &str| {
            let begin = part.as_ptr().addr() - line.as_ptr().addr();
            begin..begin + part.len()
        };
        let pairs = pairs(labels.unwrap_or_default()).flatten();
        let pairs = pairs.map(|(name, value)| Pair { name: place(name), value: place(value) }).collect();
        Some(Self { value, head: head.into(), name, labels: labels.map(place), pairs })
    }

    /// Takes the value of another line if that is one of the same series, written the same way.
    pub fn read_again(&mut self, line: &[u8]) -> bool {
        let Some(rest) = line.strip_prefix(self.head.as_bytes()) else { return false };
        // Without braces the name might go on.
        let begins = self.labels.is_some() || matches!(rest.first(), Some(b' ' | b'\t'));
        let value = str::from_utf8(rest).ok().filter(|_| begins).and_then(value_of);
        if let Some(value) = value {
            self.value = value;
        }
        value.is_some()
    }

    /// The name of its series.
    pub fn name(&self) -> &str {
        self.at(&self.name)
    }

    /// The labels as the page writes them: what tells two series of one name apart.
    pub fn labels(&self) -> &str {
        self.labels.as_ref().map_or("", |labels| self.at(labels))
    }

    /// The value of a label, its escapes resolved; `None` when it is not set, or set twice.
    pub fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        // By their lengths first: settings come by the dozen, and few are read.
        let is_named = |pair: &&Pair| pair.name.len() == key.len() && self.at(&pair.name) == key;
        let mut found = self.pairs.iter().filter(is_named);
        let value = self.at(&found.next()?.value);
        found.next().is_none().then(|| unescaped(value))
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.head.len() + self.pairs.len() * size_of::<Pair>()
    }

    fn at(&self, place: &Range<usize>) -> &str {
        self.head.get(place.clone()).unwrap_or_default()
    }
}

/// Where the name of its series stands on a line: behind blanks, up to its labels or its value.
pub fn name_of(line: &[u8]) -> Option<Range<usize>> {
    let is_indented = matches!(line.first(), Some(b' ' | b'\t'));
    let begin = if is_indented { line.len() - line.trim_ascii_start().len() } else { 0 };
    let name = line.get(begin..)?;
    Some(begin..begin + memchr3(b'{', b' ', b'\t', name)?)
}

/// The value that stands behind a name and its labels.
fn value_of(rest: &str) -> Option<f64> {
    let mut words = rest.split_ascii_whitespace();
    let value = words.next()?.parse().ok()?;
    let is_whole = match words.next() {
        None | Some("#") => true,
        Some(timestamp) => timestamp.parse::<f64>().is_ok() && matches!(words.next(), None | Some("#")),
    };
    is_whole.then_some(value)
}

/// Names and values, the latter without their quotes and with their escapes; `None` for what stands where a pair should and is none.
fn pairs(labels: &str) -> impl Iterator<Item = Option<(&str, &str)>> {
    let mut rest = labels;
    std::iter::from_fn(move || {
        let pair = match find_unquoted(rest, b',') {
            Some(comma) => {
                let (pair, tail) = rest.split_at_checked(comma)?;
                rest = tail.strip_prefix(',')?;
                pair
            }
            None if rest.is_empty() => return None,
            None => std::mem::take(&mut rest),
        };
        let (name, value) = pair.split_once('=').unwrap_or_default();
        let value = value.trim().strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        Some(value.map(|value| (name.trim(), value)))
    })
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

    /// Name, value and three labels of a line.
    fn one(line: &str) -> Option<(String, f64, Vec<Option<String>>)> {
        let sample = Sample::read(line)?;
        let labels = ["a", "b", "c"].map(|key| sample.label(key).map(Cow::into_owned));
        Some((sample.name().to_owned(), sample.value, labels.to_vec()))
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
    fn a_line_of_the_same_series_is_read_by_the_one_before() {
        let again = |first: &str, line: &str| {
            let mut sample = Sample::read(first).unwrap();
            sample.read_again(line.as_bytes()).then_some(sample.value)
        };
        let first = r#"  m {a="x}",b="\"y"} 1"#;
        assert_eq!(again(first, r#"  m {a="x}",b="\"y"} 2.5e3 1700000000 # {} 1"#), Some(2_500.0));
        assert_eq!(again(first, r#"  m {a="x}",b="\"y"}3"#), Some(3.0));
        for other in [r#"  m {a="x}",b="\"z"} 2"#, r#" m {a="x}",b="\"y"} 2"#, r#"  m {a="x}",b="\"y"} 2 x"#, "m 2", ""]
        {
            assert_eq!(again(first, other), None, "{other}");
        }
        assert_eq!(again("m 1", "m\t2\r"), Some(2.0));
        for other in ["m2 3", "m{} 2", "m {a=\"1\"} 2", "m:a 2", "m", "m ", " m 2", "m \u{a0}{} 2"] {
            assert_eq!(again("m 1", other), None, "{other}");
        }
    }

    #[test]
    fn whatever_is_read_by_the_line_before_is_what_is_read_anew() {
        let (mut rng, mut read) = (fastrand::Rng::with_seed(4), 0);
        let words = ["a", "b", "{", "}", "=\"", "\"", ",", "\\", " ", "\t", " 1", "2", "#", "\u{e9}", "\u{a0}"];
        let mut known: Vec<Sample> =
            ["a 1", "a{} 1", "a{b=\"a\"} 1", " b {a=\"}\"} 1"].map(|line| Sample::read(line).unwrap()).to_vec();
        for round in 0..40_000 {
            let head = known[rng.usize(..known.len())].head.clone();
            let tail: String = (0..rng.usize(1..6)).map(|_| words[rng.usize(..words.len())]).collect();
            let line = format!("{}{tail}", head.get(..head.len() - rng.usize(..2)).unwrap_or_default());
            let anew = Sample::read(&line);
            for known in &known {
                let mut known = known.clone();
                if known.read_again(line.as_bytes()) {
                    assert_eq!(Some(&known), anew.as_ref(), "{line:?}");
                    read += 1;
                }
            }
            if let Some(anew) = anew.filter(|_| round < 4_000 && known.len() < 40) {
                known.push(anew);
            }
        }
        assert!(read > 2_000, "only {read}");
    }
}
