//! Reasons of refusals: a caller may get any, so each occurs in a test of the module in Envoy.

use admission_core::outcome::Reason;

use crate::files::File;

/// File that defines the reasons.
const DEFINITION: &str = "admission-core/src/outcome.rs";

/// Folder of the tests in Envoy.
const TESTS: &str = "wasm-tests/tests/";

pub fn check(files: &[File]) -> Vec<String> {
    missing(files, &Reason::ALL.map(Reason::label))
}

fn missing(files: &[File], labels: &[&str]) -> Vec<String> {
    let tests: Vec<_> = files.iter().filter(|file| file.path.starts_with(TESTS)).collect();
    let missing = labels.iter().filter(|label| !tests.iter().any(|file| names(&file.text, label)));
    let line = |label| {
        let quoted = format!("\"{label}\"");
        let mut lines = files.iter().filter(|file| file.path == DEFINITION).flat_map(File::lines);
        let number = lines.find(|(_, line)| line.contains(&quoted)).map_or(1, |(number, _)| number);
        format!("{DEFINITION}:{number}: no file under {TESTS} names {label:?}: write a test that sees it in an answer")
    };
    missing.map(line).collect()
}

/// Returns whether a test names a reason, quoted or as the answer's header. A quoted key of a configuration is something else.
fn names(text: &str, label: &str) -> bool {
    let quoted = format!("\"{label}\"");
    let mut values = text.match_indices(&quoted).filter(|(at, _)| !text[at + quoted.len()..].starts_with(':'));
    values.next().is_some() || text.contains(&format!("x-sluice-reason: {label}\""))
}

#[test]
fn a_reason_counts_where_it_is_a_value_in_a_test() {
    let find = |path: &str, text: &str| missing(&[crate::files::file(path, text)], &["evicted"]).is_empty();
    assert!(find("wasm-tests/tests/envoy/a.rs", "refused(429, \"evicted\")"));
    assert!(find("wasm-tests/tests/a.rs", "contains(\"x-sluice-reason: evicted\")"));
    assert!(!find("wasm-tests/tests/a.rs", "json!({\"evicted\": 1}); // evicted"));
    assert!(!find("src/a.rs", "\"evicted\""));
}
