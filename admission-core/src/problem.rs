//! What is wrong with a configuration: every problem at once, each with its place.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

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
    // Each turn takes at least one node out, so the loop ends with the document.
    loop {
        match serde_path_to_error::deserialize::<_, T>(value.clone()) {
            Ok(read) => return Some(read),
            Err(error) => {
                problems.push(Problem::new(place(error.path()), error.inner().to_string()));
                if !remove(&mut value, error.path()) {
                    return None;
                }
            }
        }
    }
}

fn place(path: &Path) -> String {
    match path.to_string() {
        root if root == "." => String::new(),
        path => path,
    }
}

fn remove(value: &mut Value, path: &Path) -> bool {
    let mut segments = path.iter().peekable();
    let mut node = value;
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        node = match (segment, node) {
            (Segment::Map { key }, Value::Object(map)) if last => return map.remove(key).is_some(),
            (Segment::Seq { index }, Value::Array(items)) if last => {
                return (*index < items.len()).then(|| items.remove(*index)).is_some();
            }
            (Segment::Map { key }, Value::Object(map)) => match map.get_mut(key) {
                Some(next) => next,
                None => return false,
            },
            (Segment::Seq { index }, Value::Array(items)) => match items.get_mut(*index) {
                Some(next) => next,
                None => return false,
            },
            _ => return false,
        };
    }
    false
}
