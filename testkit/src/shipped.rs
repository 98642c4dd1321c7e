//! Reading and changing the shipped configurations.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::checkout;

/// Where the shipped configurations expect the module.
const MODULE: &str = "/etc/sluice/sluice.wasm";

/// Every document of a YAML file.
///
/// # Errors
/// When the file cannot be read or is no YAML.
pub fn documents(path: &Path) -> Result<Vec<Value>> {
    let explain = || format!("cannot read {}", path.display());
    let text = std::fs::read_to_string(path).with_context(explain)?;
    let documents = serde_norway::Deserializer::from_str(&text);
    documents.map(|document| Value::deserialize(document).with_context(explain)).collect()
}

/// The one document of a YAML file.
///
/// # Errors
/// When the file cannot be read, is no YAML or has no document.
pub fn document(path: &Path) -> Result<Value> {
    let first = documents(path)?.into_iter().next();
    first.with_context(|| format!("{} is empty", path.display()))
}

/// Makes every filter load the module from `path`.
pub fn set_module(value: &mut Value, path: &Path) {
    match value {
        Value::String(text) if text == MODULE => *text = path.to_string_lossy().into_owned(),
        Value::Array(items) => items.iter_mut().for_each(|item| set_module(item, path)),
        Value::Object(fields) => fields.values_mut().for_each(|field| set_module(field, path)),
        _ => {}
    }
}

/// The filter as the comment in `envoy.yaml` says to load it.
///
/// # Errors
/// When the comment cannot be read, or loads no filter.
pub fn watched_filter() -> Result<Value> {
    let text = std::fs::read_to_string(checkout::shipped("envoy.yaml")).context("cannot read envoy.yaml")?;
    let lines = text.lines().skip_while(|line| !line.contains("#   - name: sluice"));
    let lines = lines.map_while(|line| line.trim_start().strip_prefix("#   "));
    let comment = lines.collect::<Vec<_>>().join("\n");
    let watched: Value = serde_norway::from_str(&comment).context("the comment in envoy.yaml is not YAML")?;
    let filter = watched.get(0).filter(|filter| filter["config_discovery"].is_object());
    filter.cloned().context("the comment in envoy.yaml loads no filter")
}

/// The element of an array that has this `name`.
///
/// # Errors
/// When it is no array or has no such element.
pub fn named<'a>(array: &'a mut Value, name: &str) -> Result<&'a mut Value> {
    let items = array.as_array_mut().with_context(|| format!("no list with {name:?}"))?;
    items.iter_mut().find(|item| item["name"] == name).with_context(|| format!("nothing named {name:?}"))
}

/// The HTTP connection manager of a listener in a bootstrap.
///
/// # Errors
/// When there is no listener of that name.
pub fn http_manager<'a>(bootstrap: &'a mut Value, listener: &str) -> Result<&'a mut Value> {
    let listener = named(&mut bootstrap["static_resources"]["listeners"], listener)?;
    let manager = listener.pointer_mut("/filter_chains/0/filters/0/typed_config");
    manager.context("the listener has no HTTP connection manager")
}

/// Every plugin configuration in a document: those of WasmPlugins and of Envoy's wasm filters.
pub fn plugin_configs(value: &Value) -> Vec<Value> {
    // One that stands by itself; the sidecar's own has pools too, but no namespace.
    if value.get("pools").is_some() && value.get("namespace").is_some() {
        return vec![value.clone()];
    }
    if value["kind"] == "WasmPlugin" {
        return vec![value["spec"]["pluginConfig"].clone()];
    }
    if value.get("vm_config").is_some() {
        // Written as text that is JSON; what is not is left for the filter to complain about.
        let text = &value["configuration"]["value"];
        return vec![text.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(|| text.clone())];
    }
    match value {
        Value::Array(items) => items.iter().flat_map(plugin_configs).collect(),
        Value::Object(fields) => fields.values().flat_map(plugin_configs).collect(),
        _ => Vec::new(),
    }
}

/// Puts one object over another, as Istio merges a patch.
pub fn merge(base: &mut Value, patch: &Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (base, patch) => *base = patch.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use admission_core::policy::{Plugin, Policy};

    use super::*;

    fn shipped_file(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config").join(name)
    }

    fn plugins(name: &str) -> Vec<Plugin> {
        let documents = documents(&shipped_file(name)).unwrap();
        let configs = documents.iter().flat_map(plugin_configs);
        let read = |config: Value| Plugin::parse(config.to_string().as_bytes());
        configs.map(|config| read(config).unwrap_or_else(|problems| panic!("{name}: {problems:#?}"))).collect()
    }

    fn policy(name: &str) -> Policy {
        let filters = plugins(name).into_iter().find_map(|plugin| match plugin {
            Plugin::Filter(policy) => Some(*policy),
            Plugin::Control(_) => None,
        });
        filters.unwrap_or_else(|| panic!("{name} has no filter"))
    }

    #[test]
    fn the_filter_takes_every_shipped_plugin_configuration() {
        let roles = |name| plugins(name).iter().map(|plugin| matches!(plugin, Plugin::Control(_))).collect::<Vec<_>>();
        assert_eq!(roles("envoy.yaml"), [false, true]);
        assert_eq!(roles("istio.yaml"), [false, true]);
        assert_eq!(roles("istio-pull.yaml"), [false]);
        assert_eq!(roles("ecds/sluice.yaml"), [false]);
        assert_eq!(roles("policy.yaml"), [false]);
        assert_eq!(roles("pools.yaml"), [false]);
    }

    #[test]
    fn the_filter_takes_the_configurations_in_the_readme() {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap();
        let blocks = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
        let configs = blocks.flat_map(|block| plugin_configs(&serde_norway::from_str(block).unwrap()));
        let policies: Vec<String> =
            configs.map(|config| format!("{:?}", Plugin::parse(config.to_string().as_bytes()).unwrap())).collect();
        assert_eq!(policies.len(), 2);
        assert_eq!(policies[0], policies[1], "plain Envoy and Istio say the same");
    }

    #[test]
    fn all_forms_ship_the_same_policy() {
        let shipped = policy("envoy.yaml");
        let envoy = format!("{shipped:?}");
        assert_eq!(envoy, format!("{:?}", policy("ecds/sluice.yaml")));
        // In Istio a cluster takes the worker named with istio-steering.yaml alone.
        let steering = |name: &str| {
            let documents = documents(&shipped_file(name)).unwrap();
            let mut config =
                documents.iter().flat_map(plugin_configs).find(|config| config["pools"].is_array()).unwrap();
            assert_eq!(config["pools"][0]["pick_endpoint"], Value::Null);
            config["pools"][0]["pick_endpoint"] = true.into();
            match Plugin::parse(config.to_string().as_bytes()) {
                Ok(Plugin::Filter(policy)) => *policy,
                other => panic!("{name}: {other:?}"),
            }
        };
        assert_eq!(envoy, format!("{:?}", steering("istio.yaml")));
        let mut pulling = steering("istio-pull.yaml");
        assert!(pulling.pull.take().is_some() && pulling.fingerprint != shipped.fingerprint);
        pulling.fingerprint.clone_from(&shipped.fingerprint);
        assert_eq!(envoy, format!("{pulling:?}"), "but for how the view comes");
    }

    #[test]
    fn istio_steers_as_plain_envoy_does() {
        let mut plain = document(&shipped_file("envoy.yaml")).unwrap();
        let cluster = named(&mut plain["static_resources"]["clusters"], "workers").unwrap();
        let filter = document(&shipped_file("istio-steering.yaml")).unwrap();
        let patch = &filter["spec"]["configPatches"][0];
        assert_eq!(patch["applyTo"], "CLUSTER");
        assert_eq!(patch["patch"]["value"]["load_balancing_policy"], cluster["load_balancing_policy"]);
    }

    #[test]
    fn the_control_listener_can_hold_the_largest_view() {
        let bootstrap = document(&shipped_file("envoy.yaml")).unwrap();
        let listeners = bootstrap["static_resources"]["listeners"].as_array().unwrap();
        let control = listeners.iter().find(|listener| listener["name"] == "control").unwrap();
        let Some(Plugin::Control(role)) = plugins("envoy.yaml").pop() else { panic!("no control role") };
        assert!(control["per_connection_buffer_limit_bytes"].as_u64().unwrap() >= role.max_view);
    }

    #[test]
    fn the_proxy_can_hold_what_the_filter_may_hold_and_one_read_more() {
        let mut bootstrap = document(&shipped_file("envoy.yaml")).unwrap();
        let listeners = &mut bootstrap["static_resources"]["listeners"];
        let read = named(listeners, "public").unwrap()["per_connection_buffer_limit_bytes"].as_u64().unwrap();
        let least = policy("envoy.yaml").hold_limit + read;
        let manager = http_manager(&mut bootstrap, "public").unwrap();
        let route = &manager["route_config"]["virtual_hosts"][0]["routes"][0];
        assert!(route["request_body_buffer_limit"].as_u64().unwrap() >= least);
        let istio = documents(&shipped_file("istio.yaml")).unwrap();
        let patch = istio.iter().find(|document| document["metadata"]["name"] == "sluice-body-buffer").unwrap();
        let value = &patch["spec"]["configPatches"][0]["patch"]["value"];
        assert!(value["request_body_buffer_limit"].as_u64().unwrap() >= least);
    }

    #[test]
    fn the_sidecar_takes_its_shipped_configuration_and_knows_the_same_pool_and_workers() {
        let text = std::fs::read_to_string(shipped_file("sidecar.yaml")).unwrap();
        let sidecar = host_sidecar::Config::parse(&text).unwrap();
        assert_eq!(sidecar.warnings(), [""; 0]);
        assert_eq!(sidecar.pools[0].name, policy("envoy.yaml").only_pool().unwrap().name);
        let mut bootstrap = document(&shipped_file("envoy.yaml")).unwrap();
        let cluster = named(&mut bootstrap["static_resources"]["clusters"], "workers").unwrap();
        let endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"].as_array().unwrap().clone();
        let addresses = endpoints.iter().map(|endpoint| {
            let socket = &endpoint["endpoint"]["address"]["socket_address"];
            format!("{}:{}", socket["address"].as_str().unwrap(), socket["port_value"])
        });
        assert!(addresses.eq(sidecar.pools[0].workers.iter().map(|worker| worker.address.clone())));
    }

    #[test]
    fn a_patch_replaces_leaves_and_keeps_the_rest() {
        let mut base = serde_json::json!({"a": {"b": 1, "c": 2}, "d": [1]});
        merge(&mut base, &serde_json::json!({"a": {"b": 3}, "d": [2]}));
        assert_eq!(base, serde_json::json!({"a": {"b": 3, "c": 2}, "d": [2]}));
    }
}
