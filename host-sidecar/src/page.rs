//! A Prometheus text page, line by line.
//!
//! Written here because the crate that fits best, `prometheus-parse`, takes only letters, digits and underscores for a
//! name: every `vllm:` line would be dropped, and a `}` inside a label ends its labels early. Nothing here keeps state or
//! allocates, and a line that is no sample is skipped, so that garbage costs one pass over it.

/// One sample line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Name of the series.
    pub name: &'a str,
    /// The value; may be NaN or infinite.
    pub value: f64,
    labels: &'a str,
}

/// The samples of `page` whose name begins with `prefix`, in order.
///
/// ```
/// let page = "# TYPE engine:load gauge\nengine:load{rank=\"3\"} 1e+09\nother 4\n";
/// let load = host_sidecar::page::samples(page, "engine:").next().unwrap();
/// assert_eq!((load.name, load.label("rank"), load.value), ("engine:load", Some("3"), 1e9));
/// ```
pub fn samples<'a>(page: &'a str, prefix: &'a str) -> impl Iterator<Item = Sample<'a>> {
    page.lines().filter(move |line| line.starts_with(prefix)).filter_map(Sample::read)
}

impl<'a> Sample<'a> {
    /// The value of a label as the page writes it, its escapes unresolved.
    pub fn label(&self, key: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        while !rest.is_empty() {
            let pair = match find_unquoted(rest, ',') {
                Some(comma) => {
                    let (pair, tail) = rest.split_at_checked(comma)?;
                    rest = tail.strip_prefix(',')?;
                    pair
                }
                None => std::mem::take(&mut rest),
            };
            if let Some((name, value)) = pair.split_once('=')
                && name.trim() == key
            {
                return value.trim().strip_prefix('"')?.strip_suffix('"');
            }
        }
        None
    }

    fn read(line: &'a str) -> Option<Self> {
        let end = line.find(|sign: char| sign == '{' || sign.is_ascii_whitespace())?;
        let (name, rest) = line.split_at_checked(end)?;
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(inside) => {
                let (labels, rest) = inside.split_at_checked(find_unquoted(inside, '}')?)?;
                (labels, rest.strip_prefix('}')?)
            }
            None => ("", rest),
        };
        // What follows the value is a timestamp, which says nothing that the time of the scrape does not.
        let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Self { name, value, labels })
    }
}

/// Where `wanted` first stands outside double quotes.
fn find_unquoted(text: &str, wanted: char) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, sign) in text.char_indices() {
        match sign {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            sign if sign == wanted && !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Option<Sample<'_>> {
        samples(line, "").next()
    }

    #[test]
    fn reads_names_with_colons_exponents_and_timestamps() {
        let sample = one("a:b_c{x=\"1\",y=\"2\"} 1.5e+09 1700000000000").unwrap();
        assert_eq!((sample.name, sample.value), ("a:b_c", 1.5e9));
        assert_eq!((sample.label("x"), sample.label("y"), sample.label("z")), (Some("1"), Some("2"), None));
        assert_eq!(one("plain 3").unwrap().value, 3.0);
        assert_eq!(one("up{} +Inf").unwrap().value, f64::INFINITY);
        assert!(one("up NaN").unwrap().value.is_nan());
    }

    #[test]
    fn quotes_hide_braces_commas_and_escaped_quotes() {
        let sample = one(r#"m{a="{x},y=\"z\"",b="[]",c="7",} 1"#).unwrap();
        assert_eq!(sample.label("a"), Some(r#"{x},y=\"z\""#));
        assert_eq!((sample.label("b"), sample.label("c"), sample.label("y")), (Some("[]"), Some("7"), None));
    }

    #[test]
    fn lines_that_are_no_sample_are_skipped() {
        for line in
            ["", "name", "name{", "name{a=\"b\"}", "name{a=\"b} 1", "name x", "{} ", "# HELP a b", "\u{fffd}\u{fffd} é"]
        {
            assert_eq!(one(line), None, "{line:?}");
        }
        assert_eq!(one("m{a} 1").unwrap().label("a"), None);
        assert_eq!(one("m{a=b} 1").unwrap().label("a"), None);
    }
}
