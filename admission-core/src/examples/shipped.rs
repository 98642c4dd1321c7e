//! The shipped policy for many tenants, part by part: what happens with it, and no longer once the part is taken out.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Part of the policy and what it does.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// JSON pointer of the part.
    part: String,
    /// Value in place of the part's own, where that is also what its absence means.
    instead: Option<Value>,
    /// Values of other parts in this row, by pointer: limits so small that a few requests reach them.
    #[serde(default)]
    with: BTreeMap<String, Value>,
    view: Option<Value>,
    /// Steps that hold with the part, and not without it.
    then: Vec<Step>,
}

/// Part that no decision shows by itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Elsewhere {
    /// JSON pointer of the part; parts of it belong to it.
    part: String,
    /// Name of the test in `wasm-tests/tests/envoy` that shows what it does.
    test: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts {
    rows: Vec<Row>,
    elsewhere: Vec<Elsewhere>,
}

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn shipped() -> Value {
    serde_norway::from_str(&std::fs::read_to_string(root().join("envoy-config/policy.yaml")).unwrap()).unwrap()
}

fn parts() -> Parts {
    serde_norway::from_str(include_str!("shipped.yaml")).unwrap()
}

/// Pointers of everything in a document that has no parts itself.
fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
            fields.iter().for_each(|(name, value)| leaves(value, &format!("{at}/{}", escaped(name)), found));
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().enumerate().for_each(|(index, value)| leaves(value, &format!("{at}/{index}"), found));
        }
        _ => found.push(at.to_owned()),
    }
}

fn take_out(document: &mut Value, part: &str) {
    let (parent, last) = part.rsplit_once('/').unwrap();
    let last = last.replace("~1", "/").replace("~0", "~");
    let taken = match document.pointer_mut(parent).unwrap_or_else(|| panic!("{part} is no part")) {
        Value::Object(fields) => fields.remove(&last),
        Value::Array(items) => last.parse().ok().filter(|at| *at < items.len()).map(|at| items.remove(at)),
        _ => None,
    };
    assert!(taken.is_some(), "{part} is no part");
}

fn set(document: &mut Value, part: &str, value: &Value) {
    let (parent, last) = part.rsplit_once('/').unwrap();
    document.pointer_mut(parent).unwrap_or_else(|| panic!("{part}"))[last.replace("~1", "/").as_str()] = value.clone();
}

fn is_policy(document: &Value) -> bool {
    matches!(Plugin::parse(document.to_string().as_bytes()), Ok(Plugin::Filter(_)))
}

fn play(policy: Value, row: &Row) {
    let mut runner = Runner::new(&Example { policy, view: row.view.clone(), then: Vec::new() });
    for (index, step) in row.then.iter().enumerate() {
        println!("  step {}", index + 1);
        let model = step.model.clone().or_else(|| Some("llama-3.3-70b-instruct".to_owned()));
        runner.step(&Step { model, ..step.clone() });
    }
}

/// The steps of a row hold with its part, and one does not without it.
fn try_out(row: &Row) {
    println!("{}", row.part);
    let mut whole = shipped();
    row.with.iter().for_each(|(part, value)| set(&mut whole, part, value));
    let mut without = whole.clone();
    match &row.instead {
        Some(instead) => set(&mut without, &row.part, instead),
        None => take_out(&mut without, &row.part),
    }
    assert!(is_policy(&without), "{}: no policy without it, so no row is needed", row.part);
    play(whole, row);
    println!("without it");
    assert!(catch_unwind(AssertUnwindSafe(|| play(without, row))).is_err(), "{}: all steps hold without it", row.part);
}

#[test]
fn every_part_of_the_shipped_policy_does_something() {
    let rows = parts().rows;
    let wrong = rows.iter().filter(|row| catch_unwind(AssertUnwindSafe(|| try_out(row))).is_err());
    let wrong: Vec<&str> = wrong.map(|row| row.part.as_str()).collect();
    assert!(wrong.is_empty(), "what is wrong with each is said above: {wrong:#?}");
}

/// The least part around a leaf without which the rest is a policy; `None` where every part is needed.
fn least_part(shipped: &Value, leaf: &str) -> Option<String> {
    let ends = leaf.match_indices('/').map(|(at, _)| at).skip(1).chain([leaf.len()]);
    let parts: Vec<&str> = ends.map(|end| &leaf[..end]).collect();
    let can_go = |part: &&&str| {
        let mut without = shipped.clone();
        take_out(&mut without, part);
        is_policy(&without)
    };
    parts.iter().rev().find(can_go).map(|part| (*part).to_owned())
}

/// A part whose absence alone would be a mistake goes with the part around it.
#[test]
fn no_part_of_the_shipped_policy_is_without_a_row() {
    let (shipped, parts) = (shipped(), parts());
    let mut all = Vec::new();
    leaves(&shipped, "", &mut all);
    let is_within =
        |leaf: &str, part: &str| leaf.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let has_row = |leaf: &str, part: &str| {
        let rows = parts.rows.iter().map(|row| row.part.as_str());
        rows.clone().any(|row| row == part) || part != leaf && rows.clone().any(|row| is_within(row, part))
    };
    let missing: Vec<&String> = all
        .iter()
        .filter(|leaf| !parts.elsewhere.iter().any(|one| is_within(leaf, &one.part)))
        .filter(|leaf| least_part(&shipped, leaf).is_some_and(|part| !has_row(leaf, &part)))
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
    let tests: Vec<String> = std::fs::read_dir(root().join("wasm-tests/tests/envoy"))
        .unwrap()
        .filter_map(|file| std::fs::read_to_string(file.unwrap().path()).ok())
        .collect();
    for Elsewhere { part, test } in &parts.elsewhere {
        assert!(shipped.pointer(part).is_some(), "{part} is no part");
        assert!(tests.iter().any(|text| text.contains(&format!("async fn {test}()"))), "{part}: no test {test}");
    }
}
