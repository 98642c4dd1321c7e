//! The JSON Schema of a plugin configuration, told by the types themselves.

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::{Value, json};

use super::PluginConfig;

/// JSON Schema, draft 2020-12, of a plugin configuration of either role.
#[must_use]
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with_transform(RecursiveTransform(unwrap_description));
    let mut schema = settings.into_generator().into_root_schema_for::<PluginConfig>();
    schema.insert("title".to_owned(), "Sluice plugin configuration".into());
    schema.to_value()
}

/// A comment's line breaks say how wide the source is, nothing else.
fn unwrap_description(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
}

/// Which role's shape holds follows from `role`: with a plain `anyOf`, a mistake in one role would be reported as not
/// fitting either.
pub(super) fn by_role(schema: &mut Schema) {
    let Some(Value::Array(roles)) = schema.remove("anyOf") else { return };
    if let [filter, control] = roles.as_slice() {
        let is_control = json!({"properties": {"role": {"const": "control"}}, "required": ["role"]});
        for (keyword, value) in [("if", is_control), ("then", control.clone()), ("else", filter.clone())] {
            schema.insert(keyword.to_owned(), value);
        }
    }
}
