//! Age of docs/nightly.md, whose figures `cargo xtask nightly` writes.

use crate::baseline::note;
use crate::files::{File, git};

/// Page of the figures.
const PAGE: &str = "docs/nightly.md";

/// Commits and days that the page may be behind.
const MOST: Age = Age { commits: 30, days: 14 };

/// Lines of the page in which its commit is looked for.
const HEAD_OF_PAGE: usize = 20;

/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;

/// Distance from the page's commit to the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Age {
    commits: u64,
    days: u64,
}

/// Prints where the page is missing, names no commit that is known, or is old.
pub fn warn(files: &[File]) {
    let page = files.iter().find(|file| file.path == PAGE);
    let warning = match page.map(|page| commit(&page.text)) {
        None => Some("is missing".to_owned()),
        Some(None) => Some("has no line `Commit HASH, DATE` near its top".to_owned()),
        Some(Some(commit)) => match age(commit) {
            None => Some(format!("is of commit {commit}, which this checkout does not have")),
            Some(age) if age.commits > MOST.commits || age.days > MOST.days => {
                Some(format!("is {} commits and {} days old", age.commits, age.days))
            }
            Some(_) => None,
        },
    };
    if let Some(warning) = warning {
        note(&format!("tidy: warning: {PAGE} {warning}; `cargo xtask nightly` writes it"));
    }
}

/// The commit of a page: the first hexadecimal word behind "commit" near its top.
fn commit(page: &str) -> Option<&str> {
    let is_hash = |word: &&str| (7..=40).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let named = page.lines().take(HEAD_OF_PAGE).filter(|line| line.to_ascii_lowercase().contains("commit"));
    named.flat_map(|line| line.split(|sign: char| !sign.is_ascii_alphanumeric())).find(is_hash)
}

fn age(commit: &str) -> Option<Age> {
    let number = |arguments: &[&str]| {
        let output = git(arguments);
        let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
        text.trim().parse::<u64>().ok()
    };
    let time = |commit: &str| number(&["show", "-s", "--format=%ct", commit]);
    let commits = number(&["rev-list", "--count", &format!("{commit}..HEAD")])?;
    let seconds = time("HEAD")?.saturating_sub(time(commit)?);
    Some(Age { commits, days: seconds / DAY })
}

#[test]
fn the_commit_of_a_page_is_found_however_it_is_written() {
    let pages = [
        ("Commit e012903, 2026-11-22\n", Some("e012903")),
        ("# Nightly\n\n- **Commit:** [`e0129031`](x) of 2026-11-22\n", Some("e0129031")),
        ("# Nightly\n\nNo figures yet.\n", None),
        ("Commit unknown\n", None),
    ];
    for (page, expected) in pages {
        assert_eq!(commit(page), expected, "{page}");
    }
}

#[test]
fn the_newest_commit_has_no_age() {
    assert_eq!(age("HEAD"), Some(Age { commits: 0, days: 0 }));
    assert_eq!(age("0000000"), None);
}
