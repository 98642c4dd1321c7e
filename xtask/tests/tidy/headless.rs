//! Doc comments that make no sense alone: their first sentence has no subject, or a pronoun for one.
//!
//! `pub pool` with the comment "It goes to." is understood by a reader who has name, type and comment in front of him. In a
//! hover, a list of fields or a search result the comment appears by itself and says nothing.

use crate::baseline::{Findings, Found};
use crate::files::File;

/// First words of a comment that continues the name below it.
const HEADLESS: [&str; 35] = [
    "As", "By", "For", "From", "He", "His", "How", "In", "It", "Its", "Likewise", "Of", "She", "Such", "Their", "Them",
    "These", "They", "This", "Those", "To", "Under", "What", "Whatever", "When", "Where", "Whether", "Which", "Who",
    "Whoever", "Whom", "Whose", "With", "That", "Same",
];

pub fn check(files: &[File]) -> Findings {
    let code = files.iter().filter(|file| file.is("rs"));
    let found = code.map(|file| (file.path.clone(), Found::at(headless(file))));
    found.filter(|(_, found)| found.count > 0).collect()
}

fn headless(file: &File) -> Vec<(usize, String)> {
    let (mut places, mut before) = (Vec::new(), None);
    for (number, line) in file.lines() {
        let comment = doc_comment(line);
        if let Some((marker, text)) = comment
            && before != Some(marker)
            && HEADLESS.contains(&first_word(text))
        {
            places.push((number, format!("begin with the subject, so that the sentence stands alone: {text:?}")));
        }
        before = comment.map(|(marker, _)| marker);
    }
    places
}

/// Marker and text of a line of a doc comment.
fn doc_comment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let (marker, text) = line.split_at_checked(3)?;
    let is_doc = matches!(marker, "///" | "//!") && !text.starts_with('/');
    is_doc.then_some((marker, text.trim()))
}

fn first_word(text: &str) -> &str {
    text.split(|sign: char| !sign.is_alphabetic()).next().unwrap_or_default()
}

#[test]
fn a_headless_comment_is_found_and_a_good_one_is_not() {
    let lines = |text: &str| -> Vec<usize> {
        headless(&crate::files::file("a.rs", text)).into_iter().map(|(line, _)| line).collect()
    };
    assert_eq!(lines("struct A {\n    /// Of its tenant.\n    a: u8,\n    /// It goes to.\n    b: u8,\n}\n"), [2, 4]);
    assert_eq!(lines("//! What a proxy has taken.\n"), [1]);
    assert_eq!(lines("//! Views.\n/// It's one.\n"), [2]);
    assert_eq!(lines("/// Limits of the request's tenant.\n///\n/// It may be empty.\nfn a() {}\n"), [0; 0]);
    assert_eq!(lines("/// Forwards a request.\n// For now.\n//// Of no kind.\nfn a() {}\n"), [0; 0]);
}
