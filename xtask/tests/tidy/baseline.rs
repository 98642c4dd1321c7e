//! Ratchets: a committed count for each file that breaks a rule; a count may only shrink.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;

/// Environment variable that asks for the baselines to be written from what is found.
const WRITE: &str = "TIDY_WRITE";

/// Most findings that are printed for one file.
const SHOWN: usize = 12;

/// Findings of a rule in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Number that the baseline limits.
    pub count: usize,
    /// Line and advice of each finding.
    pub places: Vec<(usize, String)>,
}

impl Found {
    /// Counts each place once.
    pub fn at(places: Vec<(usize, String)>) -> Self {
        Self { count: places.len(), places }
    }
}

/// Counts by path.
type Counts = BTreeMap<String, usize>;

/// Findings by path.
pub type Findings = BTreeMap<String, Found>;

/// Compares findings with the committed baseline of a rule, or writes it where that is asked for.
pub fn check(rule: &str, findings: &Findings) -> Vec<String> {
    let baseline = read(rule);
    let counts: Counts = findings.iter().map(|(path, found)| (path.clone(), found.count)).collect();
    let (allowed, found) = (baseline.as_ref().map(total), total(&counts));
    if std::env::var_os(WRITE).is_some() && allowed.is_none_or(|allowed| found <= allowed) {
        fs::write(path(rule), written(&counts)).expect("the baseline can be written");
        note(&format!("tidy: {rule}: {found} now, {} before", allowed.unwrap_or(found)));
        return Vec::new();
    }
    let baseline = baseline.unwrap_or_default();
    let grown = grown(&baseline, findings);
    let (shrunk, command) = (shrunk(&baseline, &counts), format!("{WRITE}=1 cargo test -p xtask --test tidy"));
    if grown.is_empty() {
        if shrunk > 0 {
            note(&format!("tidy: {rule}: {shrunk} fewer than in the baseline; `{command}` writes that down"));
        }
        return grown;
    }
    let way_out = format!(
        "{rule}: {found} in all, {} in xtask/tests/tidy/baseline/{rule}.txt. Mend the lines above. Where a file was only \
         moved, `{command}` writes the baseline again; it does so while the sum has not grown",
        total(&baseline)
    );
    grown.into_iter().chain([way_out]).collect()
}

/// Prints past the capture of the test harness, so that the lines of a passing test are seen.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Places in files with more findings than the baseline has for them.
fn grown(baseline: &Counts, findings: &Findings) -> Vec<String> {
    let mut lines = Vec::new();
    for (path, found) in findings {
        let allowed = baseline.get(path).copied().unwrap_or(0);
        if found.count > allowed {
            lines.push(format!("{path}: {} where the baseline has {allowed}", found.count));
            let shown = found.places.iter().take(SHOWN);
            lines.extend(shown.map(|(line, advice)| format!("    {path}:{line}: {advice}")));
            lines.extend((found.places.len() > SHOWN).then(|| format!("    … {} in all", found.places.len())));
        }
    }
    lines
}

/// Sum of what the baseline has beyond what is found.
fn shrunk(baseline: &Counts, counts: &Counts) -> usize {
    let fewer = |(path, allowed): (&String, &usize)| allowed.saturating_sub(counts.get(path).copied().unwrap_or(0));
    baseline.iter().map(fewer).sum()
}

fn total(counts: &Counts) -> usize {
    counts.values().sum()
}

fn path(rule: &str) -> PathBuf {
    PathBuf::from(format!("{}/tests/tidy/baseline/{rule}.txt", env!("CARGO_MANIFEST_DIR")))
}

/// The committed baseline, a count and a path on each line.
fn read(rule: &str) -> Option<Counts> {
    let text = fs::read_to_string(path(rule)).ok()?;
    Some(parsed(&text))
}

fn parsed(text: &str) -> Counts {
    let entry = |line: &str| {
        let (count, path) = line.split_once(' ')?;
        Some((path.to_owned(), count.parse().ok()?))
    };
    text.lines().filter_map(entry).collect()
}

fn written(counts: &Counts) -> String {
    counts.iter().filter(|(_, count)| **count > 0).fold(String::new(), |mut text, (path, count)| {
        let _ = writeln!(text, "{count} {path}");
        text
    })
}

#[test]
fn a_count_may_shrink_and_not_grow() {
    let baseline = parsed("2 a.rs\n1 b.rs\n");
    let places = |count| Found::at((1..=count).map(|line| (line, "advice".to_owned())).collect());
    let findings = |a, b| Findings::from([("a.rs".to_owned(), places(a)), ("b.rs".to_owned(), places(b))]);
    assert!(grown(&baseline, &findings(2, 1)).is_empty());
    assert!(grown(&baseline, &findings(0, 1)).is_empty());
    let lines = grown(&baseline, &findings(2, 2));
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[2], "    b.rs:2: advice");
    assert_eq!(shrunk(&baseline, &parsed("1 a.rs")), 2);
}

#[test]
fn a_baseline_is_read_as_it_was_written() {
    let counts = parsed("12 docs/a page.md\n3 src/lib.rs\n");
    assert_eq!(total(&counts), 15);
    assert_eq!(parsed(&written(&counts)), counts);
}
