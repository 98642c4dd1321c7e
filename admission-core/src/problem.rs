//! What is wrong with a configuration: every problem at once, each with its place.

use std::collections::{BTreeMap, BTreeSet};
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
    let mut removed = Removed::default();
    // Each turn takes at least one node out, so the loop ends with the document.
    loop {
        match serde_path_to_error::deserialize::<_, T>(value.clone()) {
            Ok(read) => return Some(read),
            Err(error) => {
                problems.push(Problem::new(removed.place(error.path()), error.inner().to_string()));
                if !remove(&mut value, error.path()) {
                    return None;
                }
                removed.note(error.path());
            }
        }
    }
}

/// Which elements of which lists have been taken out, so that those behind them are still called by their own number.
#[derive(Default)]
struct Removed(BTreeMap<String, BTreeSet<usize>>);

impl Removed {
    /// The path as the operator counts.
    fn place(&self, path: &Path) -> String {
        path.iter().fold(String::new(), |place, segment| self.step(place, segment))
    }

    fn step(&self, place: String, segment: &Segment) -> String {
        match segment {
            Segment::Seq { index } => format!("{place}[{}]", self.original(&place, *index)),
            Segment::Map { key } if place.is_empty() => key.clone(),
            Segment::Map { key } => format!("{place}.{key}"),
            Segment::Enum { .. } | Segment::Unknown => place,
        }
    }

    fn original(&self, list: &str, index: usize) -> usize {
        let gone = self.0.get(list).into_iter().flatten();
        gone.fold(index, |index, gone| if *gone <= index { index.saturating_add(1) } else { index })
    }

    fn note(&mut self, path: &Path) {
        let mut list = String::new();
        let mut last = None;
        for segment in path.iter() {
            last = match segment {
                Segment::Seq { index } => Some((list.clone(), self.original(&list, *index))),
                _ => None,
            };
            list = self.step(list, segment);
        }
        if let Some((list, index)) = last {
            self.0.entry(list).or_default().insert(index);
        }
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
