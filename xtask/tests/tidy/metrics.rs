//! The table of metrics and the metrics of the filter name the same.

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
    let (code, page) = (read("admission-core/src/metrics.rs"), read("docs/metrics.md"));
    let pools = read("admission-core/src/metrics/pools.rs");
    let counted = &names(&code, "= \"") | &names(&pools, "= \"");
    assert!(counted.len() > 5, "{counted:?}");
    assert_eq!(names(&page, "| `"), counted);
}
