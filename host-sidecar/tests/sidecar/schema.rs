//! The schema that `sluice-sidecar schema` prints: published as it is, and fit for what is shipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_json::{Value, json};

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(shipped(name)).unwrap()
}

#[test]
fn the_published_schema_is_what_the_types_say() {
    let printed = Command::new(env!("CARGO_BIN_EXE_sluice-sidecar")).arg("schema").output().unwrap();
    assert!(printed.status.success());
    assert!(
        String::from_utf8(printed.stdout).unwrap() == read("schemas/plugin.schema.json"),
        "envoy-config/schemas/plugin.schema.json is out of date: `cargo xtask docs` renews it"
    );
}

#[test]
fn shipped_policies_fit() {
    let mut found = 0;
    for name in ["envoy.yaml", "istio.yaml", "istio-pull.yaml", "ecds/sluice.yaml"] {
        let text = read(name);
        for document in serde_norway::Deserializer::from_str(&text) {
            for config in plugin_configs(&Value::deserialize(document).unwrap()) {
                assert_eq!(misfits(&config), [""; 0], "{name}");
                found += 1;
            }
        }
    }
    assert_eq!(found, 6);
}

#[test]
fn what_is_wrong_does_not_fit() {
    let pool = json!({"name": "llama", "max_in_flight": 4});
    for (config, place) in [
        (json!({"pools": [pool], "tenannt": {}}), "/tenannt"),
        (json!({"pools": [{"max_in_flight": 4}]}), "/pools/0"),
        (json!({"pools": [{"name": "llama", "max_in_flight": "4"}]}), "/pools/0/max_in_flight"),
        (json!({"pools": [pool], "mode": "shadows"}), "/mode"),
        (json!({"pools": [pool], "reject": {"status": {"all_bussy": 429}}}), "/reject/status/all_bussy"),
        (
            json!({"pools": [pool], "tiers": {"free": {"requests_per_minute": {"rate": 1}}}}),
            "/tiers/free/requests_per_minute",
        ),
        (json!({"pools": [pool], "body": {"hold_limit": "much"}}), "/body/hold_limit"),
        (json!({"role": "control"}), ""),
        (json!({"role": "control", "token_sha256": "", "pools": [pool]}), "/pools"),
    ] {
        assert_eq!(misfits(&config), [place], "{config}");
    }
}

/// Every plugin configuration in a document, however deep.
fn plugin_configs(value: &Value) -> Vec<Value> {
    if value["kind"] == "WasmPlugin" {
        return vec![value["spec"]["pluginConfig"].clone()];
    }
    if value.get("vm_config").is_some() {
        return vec![serde_json::from_str(value["configuration"]["value"].as_str().unwrap()).unwrap()];
    }
    match value {
        Value::Array(items) => items.iter().flat_map(plugin_configs).collect(),
        Value::Object(fields) => fields.values().flat_map(plugin_configs).collect(),
        _ => Vec::new(),
    }
}

/// Where a configuration does not fit the schema.
fn misfits(config: &Value) -> Vec<String> {
    let root = admission_core::config::schema();
    let mut places = Vec::new();
    fit(&root, &root, config, "", &mut places);
    places
}

/// Understands the keywords that the schema uses. `cargo xtask test` asks a complete validator about the same files.
fn fit(root: &Value, schema: &Value, value: &Value, place: &str, misfits: &mut Vec<String>) {
    let fits = |schema: &Value| {
        let mut inner = Vec::new();
        fit(root, schema, value, place, &mut inner);
        inner.is_empty()
    };
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.strip_prefix('#').unwrap()).expect(reference);
        fit(root, target, value, place, misfits);
    }
    if schema.get("if").is_some() {
        let branch = if fits(&schema["if"]) { "then" } else { "else" };
        fit(root, &schema[branch], value, place, misfits);
    }
    let choices = |keyword: &str| schema[keyword].as_array().is_none_or(|choices| choices.iter().any(fits));
    let is_const = schema.get("const").is_none_or(|only| only == value);
    if !choices("anyOf") || !choices("oneOf") || !is_const || !has_type(&schema["type"], value) {
        misfits.push(place.to_owned());
        return;
    }
    if schema["pattern"].is_string()
        && !value.as_str().unwrap().trim_start().starts_with(|first: char| first.is_ascii_digit())
    {
        misfits.push(place.to_owned());
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        fit(root, &schema["items"], item, &format!("{place}/{index}"), misfits);
    }
    if let Some(object) = value.as_object() {
        fit_object(root, schema, object, place, misfits);
    }
}

fn fit_object(
    root: &Value,
    schema: &Value,
    object: &serde_json::Map<String, Value>,
    place: &str,
    misfits: &mut Vec<String>,
) {
    let required = schema["required"].as_array().into_iter().flatten();
    if required.into_iter().any(|name| !object.contains_key(name.as_str().unwrap())) {
        misfits.push(place.to_owned());
    }
    for (key, value) in object {
        let place = format!("{place}/{key}");
        fit(root, &schema["propertyNames"], &Value::String(key.clone()), &place, misfits);
        match (&schema["properties"][key], &schema["additionalProperties"]) {
            (Value::Null, Value::Bool(false)) => misfits.push(place),
            (Value::Null, others) => fit(root, others, value, &place, misfits),
            (known, _) => fit(root, known, value, &place, misfits),
        }
    }
}

fn has_type(types: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str().unwrap() {
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        other => panic!("{other}"),
    };
    match types {
        Value::Null => true,
        Value::Array(types) => types.iter().any(is),
        one => is(one),
    }
}
