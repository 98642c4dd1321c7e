//! What is wrong with a configuration: every problem at once, each with its place.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::Value;

use placed::{Misfit, Placed, Step};

mod placed;

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, such as `pools[0].kv.headroom`; empty for the whole.
    pub path: String,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl Problem {
    /// A problem at a place.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => out.write_str(&self.message),
            path => write!(out, "{path}: {}", self.message),
        }
    }
}

/// Reads a value of type `T` and notes every problem of shape, not only the first: what is wrong is noted, taken out,
/// and the rest read again. `None` when what is left does not make a `T`.
pub fn read_all<T: DeserializeOwned>(mut value: Value, problems: &mut Vec<Problem>) -> Option<T> {
    let mut removed = Removed::default();
    // Each turn takes at least one node out, so the loop ends with the document.
    loop {
        match T::deserialize(Placed(&value)) {
            Ok(read) => return Some(read),
            Err(misfit) => {
                let (path, message) = Misfit::into_parts(misfit);
                problems.push(removed.problem(&path, message));
                if !remove(&mut value, &path) {
                    return None;
                }
                removed.note(&path);
            }
        }
    }
}

/// Which elements of which lists have been taken out, so that those behind them are still called by their own number.
#[derive(Default)]
struct Removed(BTreeMap<String, BTreeSet<usize>>);

/// Fields that hold a secret, or that an operator may take for the place of one; the inner ones first.
const SECRETS: [&str; 4] = ["sha256", "token", "token_sha256", "api_key"];

const NOT_REPEATED: &str =
    "is not of the form that docs/configuration.md shows; what stands here is not repeated, since it may be a secret";

impl Removed {
    /// The path as the operator counts.
    fn place(&self, path: &[Step]) -> String {
        path.iter().fold(String::new(), |place, step| self.behind(&place, step))
    }

    /// What is wrong, with the path as the operator counts. In a field of a secret both could quote what stands there.
    fn problem(&self, path: &[Step], message: String) -> Problem {
        let place_of = |secret: &&str| path.iter().position(|step| matches!(step, Step::Key(key) if key == *secret));
        let secret = SECRETS.iter().find_map(place_of);
        let named = secret.and_then(|place| path.get(..=place)).unwrap_or(path);
        // A field that is missing is one of ours.
        match secret {
            Some(_) if !message.starts_with("missing field") => Problem::new(self.place(named), NOT_REPEATED),
            _ => Problem::new(self.place(named), message),
        }
    }

    fn behind(&self, place: &str, step: &Step) -> String {
        match step {
            Step::Index(index) => format!("{place}[{}]", self.original(place, *index)),
            Step::Key(key) if place.is_empty() => key.clone(),
            Step::Key(key) => format!("{place}.{key}"),
        }
    }

    fn original(&self, list: &str, index: usize) -> usize {
        let gone = self.0.get(list).into_iter().flatten();
        gone.fold(index, |index, gone| if *gone <= index { index.saturating_add(1) } else { index })
    }

    fn note(&mut self, path: &[Step]) {
        if let Some((Step::Index(index), list)) = path.split_last() {
            let list = self.place(list);
            let index = self.original(&list, *index);
            self.0.entry(list).or_default().insert(index);
        }
    }
}

fn remove(value: &mut Value, path: &[Step]) -> bool {
    let Some((last, way)) = path.split_last() else { return false };
    let node = way.iter().try_fold(value, |node, step| match (step, node) {
        (Step::Key(key), Value::Object(map)) => map.get_mut(key),
        (Step::Index(index), Value::Array(items)) => items.get_mut(*index),
        _ => None,
    });
    match (last, node) {
        (Step::Key(key), Some(Value::Object(map))) => map.remove(key).is_some(),
        (Step::Index(index), Some(Value::Array(items))) if *index < items.len() => {
            items.remove(*index);
            true
        }
        _ => false,
    }
}
