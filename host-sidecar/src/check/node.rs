//! A place in a document: what stands there, and its path as the operator wrote it.

use std::time::Duration;

use serde_json::Value;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    pub path: String,
    pub value: &'a Value,
}

impl<'a> Node<'a> {
    pub fn root(value: &'a Value) -> Self {
        Self { path: String::new(), value }
    }

    /// A field that is there and not null. Envoy takes names in snake case and in camel case.
    pub fn get(&self, name: &str) -> Option<Self> {
        let camel = camel_case(name);
        [name, camel.as_str()].into_iter().find_map(|name| {
            let value = self.value.get(name).filter(|value| !value.is_null())?;
            Some(Self { path: join(&self.path, name), value })
        })
    }

    /// A field of a field.
    pub fn down(&self, names: &[&str]) -> Option<Self> {
        names.iter().try_fold(self.clone(), |node, name| node.get(name))
    }

    /// Where a field stands, or would.
    pub fn place(&self, name: &str) -> String {
        self.get(name).map_or_else(|| join(&self.path, name), |node| node.path)
    }

    /// The elements of a list; none where there is no list.
    pub fn items(&self, name: &str) -> Vec<Self> {
        self.get(name).map(|list| list.children()).unwrap_or_default()
    }

    /// What is directly inside.
    pub fn children(&self) -> Vec<Self> {
        match self.value {
            Value::Array(items) => items
                .iter()
                .enumerate()
                .map(|(index, value)| Self { path: format!("{}[{index}]", self.path), value })
                .collect(),
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| Self { path: join(&self.path, name), value }).collect()
            }
            _ => Vec::new(),
        }
    }

    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.get(name)?.value.as_str()
    }

    /// A whole number, which Envoy also takes as text.
    pub fn number(&self, name: &str) -> Option<u64> {
        let value = self.get(name)?.value;
        value.as_u64().or_else(|| value.as_str()?.parse().ok())
    }

    /// Such as `0.5s`.
    pub fn duration(&self, name: &str) -> Option<Duration> {
        let seconds = self.text(name)?.strip_suffix('s')?.parse().ok()?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    pub fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|node| node.value == true)
    }

    /// Whether a text stands anywhere inside, in any case.
    pub fn mentions(&self, text: &str) -> bool {
        self.value.to_string().to_ascii_lowercase().contains(&text.to_ascii_lowercase())
    }
}

/// The path of something inside.
pub fn join(path: &str, inner: &str) -> String {
    match (path, inner) {
        ("", inner) => inner.to_owned(),
        (path, "") => path.to_owned(),
        (path, inner) if inner.starts_with('[') => format!("{path}{inner}"),
        (path, inner) => format!("{path}.{inner}"),
    }
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let mut letters = word.chars();
        let capital = letters.next().map(|letter| letter.to_ascii_uppercase());
        name + &capital.into_iter().chain(letters).collect::<String>()
    })
}
