//! Parts of a metrics page, as Python's Prometheus client gives them to who asks for series by `name[]`.
//!
//! vLLM has it answer below `/metrics/` only; `/metrics` is always the whole page.

use std::collections::BTreeSet;

use axum::extract::Query;
use hyper::Uri;

/// Names of the series that a request asks for; `None` where it asks for all.
pub(crate) fn names(uri: &Uri) -> Option<BTreeSet<String>> {
    if !uri.path().ends_with('/') {
        return None;
    }
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri).ok()?;
    let names: BTreeSet<_> = pairs.into_iter().filter(|(key, _)| key == "name[]").map(|(_, name)| name).collect();
    (!names.is_empty()).then_some(names)
}

/// The samples of a page that have one of these names, and the heads of their families.
pub(crate) fn of(page: &str, names: &BTreeSet<String>) -> String {
    let (mut excerpt, mut head) = (String::new(), String::new());
    for line in page.split_inclusive('\n') {
        if line.starts_with("# HELP") {
            head.clear();
        }
        if line.starts_with('#') {
            head.push_str(line);
        } else if line.split(['{', ' ']).next().is_some_and(|name| names.contains(name)) {
            excerpt.push_str(&head);
            head.clear();
            excerpt.push_str(line);
        }
    }
    excerpt
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str) -> Option<Vec<String>> {
        names(&path.parse().unwrap()).map(|names| names.into_iter().collect())
    }

    #[test]
    fn only_below_the_slash_are_names_heeded() {
        assert_eq!(asked("/metrics/?name%5B%5D=vllm:a&x=1&name[]=b"), Some(vec!["b".into(), "vllm:a".into()]));
        assert_eq!(asked("/metrics?name%5B%5D=vllm:a"), None);
        assert_eq!(asked("/metrics/"), None);
        assert_eq!(asked("/metrics/?name=vllm:a"), None);
    }

    #[test]
    fn samples_come_with_the_heads_of_their_families() {
        let page = "# HELP a A.\n# TYPE a gauge\na{x=\"1\"} 1\na{x=\"2\"} 2\n# HELP b B.\n# TYPE b histogram\n\
                    b_bucket{le=\"1\"} 1\nb_sum 3\n# HELP c C.\n# TYPE c gauge\nc 4\n";
        let names = ["a", "b_sum", "d"].map(String::from).into();
        assert_eq!(
            of(page, &names),
            "# HELP a A.\n# TYPE a gauge\na{x=\"1\"} 1\na{x=\"2\"} 2\n# HELP b B.\n# TYPE b histogram\nb_sum 3\n"
        );
    }
}
