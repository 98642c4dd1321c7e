//! Tests that pages name as the guards of a promise: each must exist.

use std::collections::BTreeSet;

use crate::files::File;

/// Pages whose tables name tests.
const PAGES: [&str; 2] = ["ARCHITECTURE.md", "docs/reliability.md"];

pub fn check(files: &[File]) -> Vec<String> {
    let mut findings = Vec::new();
    for page in files.iter().filter(|file| PAGES.contains(&file.path.as_str())) {
        let names = named_tests(page);
        if names.is_empty() {
            findings.push(format!("{}:1: its tables name no test: has a heading with \"test\" gone?", page.path));
        }
        for (number, name) in names {
            if !exists(&name, files) {
                let advice = "no tracked file has this test: mend the name, or say what guards the promise now";
                findings.push(format!("{}:{number}: `{name}`: {advice}", page.path));
            }
        }
    }
    findings
}

/// Names in the columns that are about tests, and module paths of tests anywhere, with their lines.
fn named_tests(page: &File) -> Vec<(usize, String)> {
    let (mut names, mut columns) = (Vec::new(), BTreeSet::new());
    let mut is_table = false;
    for (number, line) in page.lines() {
        let is_row = line.starts_with('|');
        let cells: Vec<&str> = line.split('|').collect();
        if is_row && !is_table {
            let is_about_tests = |cell: &str| cell.to_lowercase().contains("test");
            columns = (0..cells.len()).filter(|index| is_about_tests(cells[*index])).collect();
        } else if is_row {
            let in_column = columns.iter().filter_map(|index| cells.get(*index)).flat_map(|cell| code_spans(cell));
            names.extend(in_column.filter(|span| is_name(span)).map(|name| (number, name.to_owned())));
        } else {
            let paths = code_spans(line).into_iter().filter(|span| is_name(span) && span.contains("::tests::"));
            names.extend(paths.map(|name| (number, name.to_owned())));
        }
        is_table = is_row;
    }
    names
}

fn code_spans(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Returns whether a span of code can be a test or a module of tests, perhaps with a wildcard at its end.
fn is_name(span: &str) -> bool {
    let segment = |segment: &str| {
        let begins = segment.starts_with(|sign: char| sign.is_ascii_lowercase() || sign == '_');
        begins && segment.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    span.strip_suffix('*').unwrap_or(span).split("::").all(segment)
}

/// Returns whether a file has a function or module of the last segment, and the segments before in its path or modules.
fn exists(name: &str, files: &[File]) -> bool {
    let mut segments: Vec<&str> = name.split("::").collect();
    let last = segments.pop().unwrap_or_default();
    let code = files.iter().filter(|file| file.is("rs"));
    let mut holding = code.filter(|file| has_test(file, last) || has_module(file, last));
    holding.any(|file| segments.iter().all(|segment| has_module(file, segment)))
}

/// Returns whether a file has a test function, or a test that a macro makes as `name => …`.
fn has_test(file: &File, name: &str) -> bool {
    let (name, is_wild) = name.strip_suffix('*').map_or((name, false), |stem| (stem, true));
    let ends = |rest: &str| is_wild || !rest.starts_with(|sign: char| sign.is_alphanumeric() || sign == '_');
    let mut defined = file.text.match_indices(name).filter(|(at, _)| {
        let (before, rest) = (&file.text[..*at], &file.text[at + name.len()..]);
        let by_macro = before.trim_end_matches(' ').ends_with('\n') && rest.starts_with(" =>");
        ends(rest) && (by_macro || before.ends_with("fn ") && is_marked(before))
    });
    defined.next().is_some()
}

/// Returns whether the attributes above the line that a text ends in make its function a test.
fn is_marked(before: &str) -> bool {
    let above = before.lines().rev().skip(1).map(str::trim);
    let mut attributes = above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    attributes.any(|line| line.starts_with("#[test]") || line.contains("::test"))
}

/// Returns whether a module of that name is the file, a folder above it, or inside it.
fn has_module(file: &File, name: &str) -> bool {
    let path = file.path.trim_end_matches(".rs");
    path.split('/').any(|part| part == name) || file.text.contains(&format!("mod {name} {{"))
}

#[test]
fn missing_tests_are_found_and_those_that_exist_are_not() {
    let code = "mod tests {\n    #[test]\n    fn every_wait_ends() {}\n    fn helper() {}\n}\neach! {\n    a_cap_holds => cap,\n}\n";
    let page = "Guarded by `vm::tests::gone`.\n\n\
                | | What | Test that fails |\n|---|---|---|\n\
                | I1 | `not_a_test` | `vm::tests::every_wait_ends`, `a_cap_holds`, `wasm-tests` `every_wait_*`, `vm` |\n\
                | I2 | x | `every_wait`, `helper`, `queue::every_wait_ends`, `nothing_*` |\n";
    let findings = check(&[crate::files::file("core/src/vm.rs", code), crate::files::file("ARCHITECTURE.md", page)]);
    let names: Vec<&str> = findings.iter().filter_map(|finding| finding.split('`').nth(1)).collect();
    assert_eq!(names, ["vm::tests::gone", "every_wait", "helper", "queue::every_wait_ends", "nothing_*"]);
    assert!(findings[1].starts_with("ARCHITECTURE.md:6: "), "{findings:?}");
}
