//! Length of files.

use crate::baseline::{Findings, Found};
use crate::files::File;

/// Most lines of a file of code.
const MOST: usize = 500;

pub fn check(files: &[File]) -> Findings {
    let code = files.iter().filter(|file| file.is("rs"));
    let lengths = code.map(|file| (file, file.text.lines().count())).filter(|(_, lines)| *lines > MOST);
    let found = lengths.map(|(file, count)| {
        let advice = format!("{count} lines: move what belongs together into a module, {MOST} are the most");
        (file.path.clone(), Found { count, places: vec![(MOST + 1, advice)] })
    });
    found.collect()
}

#[test]
fn only_files_of_code_beyond_the_limit_are_found() {
    let text = |lines: usize| "x\n".repeat(lines);
    let files = [("a.rs", MOST), ("b.rs", MOST + 1), ("c.md", MOST + 1)];
    let found = check(&files.map(|(path, lines)| crate::files::file(path, &text(lines))));
    assert_eq!(found.into_keys().collect::<Vec<_>>(), ["b.rs"]);
}
