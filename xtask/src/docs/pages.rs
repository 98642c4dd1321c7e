//! Tests of the pages that are written by hand.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What stands in a text between a mark and the next sign that is none of a metric's name.
fn names<'a>(text: &'a str, mark: &'a str) -> BTreeSet<&'a str> {
    let of_name = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
    let found = text.split(mark).skip(1).filter_map(|rest| rest.split(|sign| !of_name(sign)).next());
    found.filter(|name| name.starts_with("sluice_")).collect()
}

#[test]
fn the_table_of_metrics_is_what_the_filter_counts() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (code, page) = (read("src/metrics.rs"), read("docs/metrics.md"));
    let counted = names(&code, "= \"");
    assert!(counted.len() > 5, "{counted:?}");
    assert_eq!(names(&page, "| `"), counted);
}

/// Every page of the repository with its text.
fn pages() -> Vec<(PathBuf, String)> {
    let folders = ["", "docs", "docs/engines", "envoy-config", "envoy-config/schemas", "host-sidecar", "worker-sim"];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    let pages = paths.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn every_link_to_a_file_leads_somewhere() {
    let pages = pages();
    assert!(pages.len() > 10);
    for (path, text) in &pages {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap();
            let outside = link.contains("://") || file.is_empty();
            assert!(outside || path.parent().unwrap().join(file).exists(), "{}: {link}", path.display());
        }
    }
}
