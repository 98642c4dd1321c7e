//! Writes what is published of the configuration's types: their JSON Schema and their reference page.

use std::fmt::Write as _;
use std::fs;
use std::process::ExitCode;

use admission_core::config;
use admission_core::outcome::Reason;
use anyhow::{Context, Result};
use serde_json::Value;

use testkit::checkout;

mod fields;
mod sections;

use sections::{HEAD, Object, REASONS, SECTIONS};

fn main() -> ExitCode {
    lab::exit(write())
}

/// Writes the schema and the reference again.
fn write() -> Result<()> {
    let schema = config::schema();
    let reference = reference(&schema);
    let files = [
        (checkout::shipped("schemas/plugin.schema.json"), format!("{schema:#}\n")),
        (checkout::root().join("docs/configuration.md"), reference),
    ];
    for (path, text) in files {
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// The reference page of a schema.
fn reference(schema: &Value) -> String {
    let types = Types(&schema["$defs"]);
    let mut page = HEAD.to_owned();
    for section in &SECTIONS {
        let _ = write!(page, "\n## {}\n", section.title);
        if !section.text.is_empty() {
            let _ = write!(page, "\n{}\n", section.text.trim());
        }
        for object in section.objects {
            page.push_str(&types.table(object));
        }
    }
    page.push_str(&reasons(&schema["$defs"]["Reason"]));
    page
}

/// The table of reasons, with the statuses that the core gives them.
fn reasons(reason: &Value) -> String {
    let mut text = format!("\n## Reasons\n\n{}\n\n| Reason | Status | Meaning |\n|---|---|---|\n", REASONS.trim());
    for value in reason["oneOf"].as_array().into_iter().flatten() {
        let label = self::text(&value["const"]);
        let status = Reason::ALL.iter().find(|reason| reason.label() == label).map(|reason| reason.status());
        let _ = writeln!(text, "| `{label}` | {} | {} |", status.unwrap_or_default(), cell(&value["description"]));
    }
    text
}

/// The types of a schema by name.
struct Types<'a>(&'a Value);

impl Types<'_> {
    fn table(&self, object: &Object) -> String {
        let schema = &self.0[object.name];
        let heading = if object.place.is_empty() { String::new() } else { format!("\n### {}\n", object.place) };
        let mut text = format!("{heading}\n{}\n\n", text(&schema["description"]));
        text.push_str("| Field | Type | Default | Meaning |\n|---|---|---|---|\n");
        for field in (object.fields)() {
            let property = &schema["properties"][field];
            let required = schema["required"].as_array().is_some_and(|names| names.iter().any(|name| name == field));
            let default = if required { "required".to_owned() } else { self.default(property) };
            let (kind, meaning) = (self.kind(property), self.meaning(property));
            let _ = writeln!(text, "| `{field}` | {kind} | {default} | {meaning} |");
        }
        text
    }

    /// What may be written, in words.
    fn kind(&self, property: &Value) -> String {
        if let Some(choices) = property["anyOf"].as_array() {
            let choices = choices.iter().filter(|choice| choice["type"] != "null");
            return one_of(choices.map(|choice| self.kind(choice)).collect());
        }
        if let Some(name) = definition(property) {
            return self.named_kind(name);
        }
        match type_name(property) {
            "string" => "text".to_owned(),
            "integer" => "whole number".to_owned(),
            "number" => "number".to_owned(),
            "boolean" => "`true` or `false`".to_owned(),
            "array" => format!("list of {}", self.kind(&property["items"])),
            "object" => {
                let keys = property.get("propertyNames").map_or("text".to_owned(), |keys| self.kind(keys));
                format!("map from {keys} to {}", self.kind(&property["additionalProperties"]))
            }
            other => other.to_owned(),
        }
    }

    fn named_kind(&self, name: &str) -> String {
        if name == "Reason" {
            return "[reason](#reasons)".to_owned();
        }
        if let Some(object) = sections::object(name) {
            return format!("[{}](#{})", object.word, sections::anchor(object.place));
        }
        match &self.0[name] {
            schema if schema.get("anyOf").is_some() => self.kind(schema),
            schema => match schema["oneOf"].as_array() {
                Some(values) => one_of(values.iter().map(|value| format!("`{}`", text(&value["const"]))).collect()),
                None => name.to_lowercase(),
            },
        }
    }

    /// The description; and that of each value, unless the field only overrides another one, which has said it.
    fn meaning(&self, property: &Value) -> String {
        let mut text = cell(&property["description"]);
        let values = definition(property).and_then(|name| self.0[name]["oneOf"].as_array());
        for value in values.into_iter().flatten().filter(|_| values.is_some_and(|values| values.len() > 1)) {
            let _ = write!(text, " `{}`: {}", self::text(&value["const"]), cell(&value["description"]));
        }
        text
    }

    fn default(&self, property: &Value) -> String {
        match &property["default"] {
            Value::Null => "none".to_owned(),
            Value::String(text) if text.is_empty() => "nothing".to_owned(),
            Value::String(text) => format!("`{text}`"),
            // The object's own table has it.
            Value::Object(_) => "below".to_owned(),
            other => format!("`{other}`"),
        }
    }
}

/// The name in `#/$defs/NAME`.
fn definition(property: &Value) -> Option<&str> {
    property["$ref"].as_str()?.strip_prefix("#/$defs/")
}

/// `a`, `a or b`, `a, b or c`.
fn one_of(mut choices: Vec<String>) -> String {
    let last = choices.pop().unwrap_or_default();
    if choices.is_empty() { last } else { format!("{} or {last}", choices.join(", ")) }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The type of a property, `null` apart.
fn type_name(property: &Value) -> &str {
    match &property["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap_or_default(),
        one => text(one),
    }
}

/// A text that may stand in a table.
fn cell(text: &Value) -> String {
    self::text(text).replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_reference_is_what_the_types_say() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
        let published = fs::read_to_string(path).unwrap();
        assert!(
            published == reference(&config::schema()),
            "docs/configuration.md is out of date: `cargo xtask docs` renews it"
        );
    }

    #[test]
    fn every_object_and_every_field_has_its_row() {
        let schema = config::schema();
        let mut shown: Vec<&str> =
            SECTIONS.iter().flat_map(|section| section.objects).map(|object| object.name).collect();
        shown.sort_unstable();
        let definitions = schema["$defs"].as_object().unwrap().iter();
        let objects = definitions.filter(|(_, schema)| schema.get("properties").is_some());
        assert!(objects.map(|(name, _)| name).eq(shown.iter()), "{shown:?}");
        for object in SECTIONS.iter().flat_map(|section| section.objects) {
            let mut fields = (object.fields)().to_vec();
            fields.sort_unstable();
            let properties = schema["$defs"][object.name]["properties"].as_object().unwrap();
            assert!(fields.iter().eq(properties.keys()), "{}: {fields:?}", object.name);
        }
    }

    #[test]
    fn every_link_inside_the_page_leads_somewhere() {
        let page = reference(&config::schema());
        let headings: Vec<String> = page
            .lines()
            .filter_map(|line| line.strip_prefix("## ").or(line.strip_prefix("### ")))
            .map(sections::anchor)
            .collect();
        for link in page.split("](#").skip(1) {
            let target = link.split(')').next().unwrap();
            assert!(headings.iter().any(|heading| heading == target), "#{target} of {headings:?}");
        }
    }

    #[test]
    fn every_reason_has_a_status() {
        assert!(!reasons(&config::schema()["$defs"]["Reason"]).contains("| 0 |"));
    }
}
