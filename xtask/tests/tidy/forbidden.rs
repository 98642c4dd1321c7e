//! Words that must not occur at all: marks of unfinished work, and hosts of package registries, which differ from one
//! place of building to another.

use crate::files::File;
use crate::words::occurrences;

/// Forbidden words and the way out. They are put together from halves, so that this file is no finding of its own.
const FORBIDDEN: [(&str, &str); 8] = [
    (concat!("TO", "DO"), "finish it, or write an issue"),
    (concat!("FIX", "ME"), "finish it, or write an issue"),
    (concat!("dbg", "!"), "take it out"),
    (concat!("crates", ".io"), "name the package and its version only"),
    (concat!("pypi", ".org"), "name the package and its version only"),
    (concat!("pythonhosted", ".org"), "name the package and its version only"),
    (concat!("registry.npmjs", ".org"), "name the package and its version only"),
    (concat!("deb.debian", ".org"), "name the package and its version only"),
];

/// The name by which cargo's own files mean the registry, wherever it is.
const CARGO_INDEX: &str = concat!("github.com/rust-lang/crates", ".io-index");

pub fn check(files: &[File]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| !file.is_foreign()) {
        for (number, line) in file.lines() {
            let line = line.replace(CARGO_INDEX, "");
            let found = FORBIDDEN.iter().filter(|(word, _)| occurrences(&line, word) > 0);
            findings.extend(found.map(|(word, way_out)| format!("{}:{number}: {word}: {way_out}", file.path)));
        }
    }
    findings
}

#[test]
fn unfinished_work_and_registries_are_found() {
    let find = |path: &str, line: &str| check(&[crate::files::file(path, line)]).len();
    let [(unfinished, _), .., (registry, _)] = FORBIDDEN;
    assert_eq!(find("a.rs", &format!("// {unfinished}: more")), 1);
    assert_eq!(find("a.yaml", &format!("url: https://{registry}/debian")), 1);
    assert_eq!(find("a.rs", &format!("let {unfinished}S = 1;")), 0);
    assert_eq!(find("Cargo.lock", &format!("source = \"{registry}\"")), 0);
    assert_eq!(find("deny.toml", &format!("allow-registry = [\"https://{CARGO_INDEX}\"]")), 0);
}
