//! The bodies that benchmarks send are what their names say.

use testkit::bodies::all;

#[test]
fn every_body_is_as_long_as_its_name_says_and_reads_as_json() {
    let sizes: Vec<usize> = all().iter().map(|body| body.json.len()).collect();
    assert_eq!(sizes, [262, 38_000, 263_000, 263_000]);
    for (body, messages) in all().iter().zip([2, 80, 500, 1]) {
        let value: serde_json::Value = serde_json::from_str(&body.json).unwrap();
        assert_eq!(value["messages"].as_array().unwrap().len(), messages, "{}", body.name);
        assert_eq!(value["model"], "llama-3.3-70b");
    }
}

#[test]
fn long_bodies_have_escapes_and_other_scripts() {
    for body in &all()[1..] {
        let escapes = body.json.matches('\\').count();
        assert!(escapes * 200 > body.json.len(), "{}: {escapes} escapes", body.name);
        assert!(!body.json.is_ascii());
    }
    assert_eq!(all(), all(), "the same every time");
}
