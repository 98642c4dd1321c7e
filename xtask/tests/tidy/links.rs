//! Links of pages to files of the repository and to headings.

use std::collections::{BTreeMap, BTreeSet};

use crate::files::File;
use crate::words::without_code;

pub fn check(files: &[File]) -> Vec<String> {
    let pages: BTreeMap<&str, BTreeSet<String>> =
        files.iter().filter(|file| file.is("md")).map(|file| (file.path.as_str(), anchors(&file.text))).collect();
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is("md")) {
        for (number, link) in links(&file.text) {
            if let Some(wrong) = wrong(&file.path, &link, files, &pages) {
                findings.push(format!("{}:{number}: ({link}): {wrong}", file.path));
            }
        }
    }
    findings
}

/// Describes what is wrong with a link of a page; `None` where it leads somewhere.
fn wrong(page: &str, link: &str, files: &[File], pages: &BTreeMap<&str, BTreeSet<String>>) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = if path.is_empty() { page.to_owned() } else { resolved(page, path)? };
    let folder = format!("{target}/");
    let exists = target.is_empty() || files.iter().any(|file| file.path == target || file.path.starts_with(&folder));
    if !exists {
        return Some(format!("{target} is not a tracked file or folder: mend the link, or `git add` the file"));
    }
    let headings = pages.get(target.as_str())?;
    let anchor = anchor.filter(|anchor| !headings.contains(*anchor))?;
    Some(format!(
        "{target} has no heading #{anchor}; it has {}",
        headings.iter().cloned().collect::<Vec<_>>().join(", ")
    ))
}

/// Path from the root of a link in a page.
fn resolved(page: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Lines outside of blocks of code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().map(|(index, line)| (index + 1, line)).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// Targets of links, `[text](target)` and `[name]: target`, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        // A link's text may be code, but not its target.
        let line = without_code(line);
        let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        links.extend(inline.map(|link| (number, link.to_owned())));
        let defined = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        links.extend(defined.map(|(_, link)| (number, link.trim().to_owned())));
    }
    links
}

/// Anchors that a page offers, as GitHub makes them from headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() < line.len() && heading.starts_with(' ') {
            let anchor = anchor(heading.trim());
            let numbered = (1..).map(|number| format!("{anchor}-{number}"));
            let free = std::iter::once(anchor.clone()).chain(numbered).find(|anchor| !anchors.contains(anchor));
            anchors.extend(free);
        }
        let named = line.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next());
        anchors.extend(named.map(str::to_owned));
    }
    anchors
}

fn anchor(heading: &str) -> String {
    // Of a link in a heading its text counts.
    let heading = heading.split("](").enumerate().map(|(index, part)| match index {
        0 => part,
        _ => part.split_once(')').map_or("", |(_, rest)| rest),
    });
    let signs = heading.collect::<String>().to_lowercase();
    let kept = signs.chars().filter(|sign| sign.is_alphanumeric() || matches!(sign, ' ' | '-' | '_'));
    kept.map(|sign| if sign == ' ' { '-' } else { sign }).collect()
}

#[test]
fn dead_links_and_anchors_are_found() {
    let page = "# Top\n\n[a](../README.md) [b](#top) [c](other.md#what-it-finds-1) [d](../src) [e](https://example.com/x)\n\
                ```\n[f](nothing.md)\n```\n`[g](nothing.md)`\n";
    let other = "## What it finds\n## What it finds\n";
    let check = |page: &str| {
        let files = [("docs/page.md", page), ("docs/other.md", other), ("README.md", ""), ("src/lib.rs", "")];
        check(&files.map(|(path, text)| crate::files::file(path, text)))
    };
    assert_eq!(check(page), [""; 0]);
    let dead = check("# Top\n[a](nothing.md)\n[b](#bottom) [c](other.md#nothing)\n[d]: nothing.md\n");
    let places: Vec<&str> = dead.iter().filter_map(|finding| finding.split(" (").next()).collect();
    assert_eq!(places, ["docs/page.md:2:", "docs/page.md:3:", "docs/page.md:3:", "docs/page.md:4:"]);
}

#[test]
fn an_anchor_is_what_github_makes_of_a_heading() {
    let pairs = [
        ("What is promised, and what is not", "what-is-promised-and-what-is-not"),
        ("`pools.*.models`", "poolsmodels"),
        ("The [view](view.md) of now", "the-view-of-now"),
    ];
    for (heading, expected) in pairs {
        assert_eq!(anchor(heading), expected);
    }
}
