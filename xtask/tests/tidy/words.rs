//! Words that people use of people, or that hide what happens: a message that somebody was "told" may have been sent,
//! received, acknowledged or stored.

use crate::baseline::{Findings, Found};
use crate::files::File;

/// Words to be replaced, and what they may stand for.
const WORDS: [(&str, &str); 12] = [
    ("told", "sent, received, acknowledged, distinguished"),
    ("stands", "is, is in, is stored"),
    ("nobody", "no request, no VM, nothing"),
    ("somebody", "a caller, an operator, another VM"),
    ("whoever", "the caller that, the VM that"),
    ("anew", "again"),
    ("amid", "during, between"),
    ("for ever", "without end, never ends"),
    ("at once", "immediately, together"),
    ("of them", "name the things"),
    ("is none", "does not exist, is absent"),
    ("knob", "setting"),
];

pub fn check(files: &[File]) -> Findings {
    // Why: the list of the words itself.
    let read = files.iter().filter(|file| !file.is_foreign() && !file.path.ends_with("tests/tidy/words.rs"));
    let found = read.map(|file| (file.path.clone(), Found::at(places(file))));
    found.filter(|(_, found)| found.count > 0).collect()
}

fn places(file: &File) -> Vec<(usize, String)> {
    let (mut places, mut fenced) = (Vec::new(), false);
    for (number, line) in file.lines() {
        let prose = match file.path.rsplit('.').next() {
            Some("rs") => comment(line, "//"),
            Some("toml" | "yaml" | "yml") => comment(line, "#"),
            Some("md") => {
                fenced ^= line.trim_start().starts_with("```");
                if fenced { "" } else { line }
            }
            _ => "",
        };
        let prose = without_code(prose).to_lowercase();
        for (word, instead) in WORDS {
            let advice = || (number, format!("{word:?}: write what happens instead, such as: {instead}"));
            places.extend((0..occurrences(&prose, word)).map(|_| advice()));
        }
    }
    places
}

/// Text of a line's comment; a marker behind an odd number of quotation marks is inside a string.
fn comment<'a>(line: &'a str, marker: &str) -> &'a str {
    match line.find(marker) {
        Some(at) if line[..at].matches('"').count().is_multiple_of(2) => &line[at..],
        _ => "",
    }
}

/// Text without its spans of code, which hold names and not words.
pub fn without_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.filter(|(index, _)| index.is_multiple_of(2)).map(|(_, part)| part).collect::<Vec<_>>().join("`")
}

/// Number of times a word or phrase occurs as a whole.
pub fn occurrences(text: &str, word: &str) -> usize {
    let is_edge = |sign: Option<char>| !sign.is_some_and(|sign| sign.is_alphanumeric() || sign == '_');
    let whole = |(at, found): &(usize, &str)| {
        is_edge(text[..*at].chars().next_back()) && is_edge(text[at + found.len()..].chars().next())
    };
    text.match_indices(word).filter(whole).count()
}

#[test]
fn whole_words_of_comments_and_pages_are_found() {
    let count = |path: &str, text: &str| places(&crate::files::file(path, text)).len();
    assert_eq!(count("a.rs", "/// A proxy is told.\nlet told = 1; // Told for ever.\n"), 3);
    assert_eq!(count("a.rs", "/// `told` is untold.\nlet a = \"// told\";\n"), 0);
    assert_eq!(count("a.md", "A VM is told.\n```\ntold\n```\nAnew.\n"), 2);
    assert_eq!(count("a.toml", "told = 1\n# told\n"), 1);
}
