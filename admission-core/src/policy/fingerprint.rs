//! Fingerprint of a configuration, by which logs say which policy has decided.

use serde_json::Value;

use crate::hash;

/// The fingerprint of a configuration: 16 digits, whatever the order of its fields and the way its numbers are written, which control
/// planes change on the way. Empty for what is no JSON.
pub(super) fn of(json: &[u8]) -> String {
    let Ok(configuration) = serde_json::from_slice::<Value>(json) else { return String::new() };
    let mut text = String::new();
    write(&configuration, &mut text);
    format!("{:016x}", hash::stable(text.as_bytes()))
}

// Why not a value's own text: the order of its fields there hangs on a feature of the library, which a build may switch on.
fn write(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            for (name, value) in fields {
                text.push_str(name);
                text.push(':');
                write(value, text);
            }
            text.push('}');
        }
        Value::Array(values) => {
            values.iter().for_each(|value| write(value, text));
            text.push(']');
        }
        Value::Number(number) => text.push_str(&format!("{},", number.as_f64().unwrap_or_default())),
        other => text.push_str(&format!("{other},")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_hangs_on_what_is_said_and_not_on_how() {
        let one = of(br#"{"a": 1, "b": {"c": ["x", 2.50], "d": null}}"#);
        assert_eq!(one, of(br#"{ "b":{"d":null,"c":["x",2.5]}, "a":1.0 }"#));
        assert_eq!(one.len(), 16);
        for other in
            [r#"{"a": 2}"#, r#"{"a": "1"}"#, r#"{"a": [1]}"#, r#"{"a": {"b": 1}}"#, r#"{"b": 1}"#, r#"{"a": 1}"#]
        {
            assert_ne!(one, of(other.as_bytes()));
        }
        assert_ne!(of(br#"["a","b"]"#), of(br#"["ab"]"#));
        assert_ne!(of(br#"[[1],2]"#), of(br#"[[1,2]]"#));
        assert_eq!(of(b"{"), "");
    }
}
