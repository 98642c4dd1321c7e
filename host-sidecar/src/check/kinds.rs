//! What a document is, by what stands in it, and the plugin configurations that it carries.

use admission_core::config::{self, Config, ControlConfig, PluginConfig};
use serde_json::Value;

use super::envoy::{self, Filter};
use super::node::Node;

/// What a document may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A plugin configuration of either role.
    Plugin,
    WasmPlugin,
    EnvoyFilter,
    Bootstrap,
    /// What Envoy reads as a discovery response, or one resource of it.
    Resources,
    /// The sidecar's own configuration.
    Sidecar,
}

/// Said of any other document.
pub const UNKNOWN: &str = "not recognised; understood are a plugin configuration of Sluice (either role), a WasmPlugin, an \
                           EnvoyFilter, an Envoy bootstrap, a file of Envoy resources (listeners or filters) and the \
                           sidecar's own configuration";

/// Said where every document is a manifest of something else.
pub const ONLY_OTHERS: &str = "nothing of Sluice is in these files: all of their documents are manifests of others";

impl Kind {
    /// By content; a file's name says nothing.
    pub fn of(document: &Value) -> Option<Self> {
        let has = |names: &[&str]| names.iter().any(|name| document.get(name).is_some());
        match document.get("kind").and_then(Value::as_str) {
            Some("WasmPlugin") => return is_ours(document).then_some(Self::WasmPlugin),
            Some("EnvoyFilter") => return Some(Self::EnvoyFilter),
            Some(_) => return None,
            None => {}
        }
        if has(&["static_resources", "staticResources", "dynamic_resources", "dynamicResources"]) {
            return Some(Self::Bootstrap);
        }
        if has(&["resources", "@type"]) {
            return Some(Self::Resources);
        }
        if has(&["proxies", "listen", "scrape", "push"]) {
            return Some(Self::Sidecar);
        }
        if document.as_object()?.keys().any(|name| name != "pools" && is_plugin_field(name)) {
            return Some(Self::Plugin);
        }
        // Both have pools; only the sidecar's say where workers are.
        let pools = document.get("pools")?.as_array();
        let has_workers = |pool: &Value| pool.get("workers").or(pool.get("discover")).is_some();
        let has_workers = pools.into_iter().flatten().any(has_workers);
        Some(if has_workers { Self::Sidecar } else { Self::Plugin })
    }
}

/// True for a WasmPlugin that is one of Sluice: by its name, its module, or what it is configured with.
fn is_ours(plugin: &Value) -> bool {
    let spec = plugin.get("spec");
    let config = spec.and_then(|spec| spec.get("pluginConfig"));
    let mut fields = config.and_then(Value::as_object).into_iter().flat_map(|fields| fields.keys());
    let is_configured = fields.any(|name| is_plugin_field(name));
    let names = [
        plugin.pointer("/metadata/name"),
        spec.and_then(|spec| spec.get("pluginName")),
        spec.and_then(|spec| spec.get("url")),
    ];
    let is_named = names.into_iter().flatten().filter_map(Value::as_str).any(|name| name.contains("sluice"));
    is_configured || is_named || plugin.get("apiVersion").is_none()
}

/// True for a manifest of Kubernetes that is not for Sluice.
pub fn is_of_others(document: &Value) -> bool {
    let is_text = |name: &str| document.get(name).is_some_and(Value::is_string);
    is_text("apiVersion") && is_text("kind") && Kind::of(document).is_none()
}

fn is_plugin_field(name: &str) -> bool {
    let schema = config::schema();
    let properties = ["/$defs/Config/properties", "/$defs/ControlConfig/properties"];
    properties.iter().filter_map(|role| schema.pointer(role)).any(|fields| fields.get(name).is_some())
}

/// A plugin configuration as it was written.
pub struct Written<'a> {
    /// Where it begins.
    pub path: String,
    /// What the filter is given.
    pub json: String,
    pub carrier: Carrier<'a>,
}

/// What a plugin configuration was written into.
pub enum Carrier<'a> {
    /// Nothing: it is the document.
    Alone,
    /// The `spec` of a WasmPlugin.
    WasmPlugin(Node<'a>),
    /// A filter of Envoy's.
    Filter(Filter<'a>),
}

impl Written<'_> {
    /// What it says, if its shape is right.
    pub fn config(&self) -> Option<PluginConfig> {
        // Only a control role reads as one: it must say so.
        match serde_json::from_str::<ControlConfig>(&self.json) {
            Ok(config) => Some(PluginConfig::Control(config)),
            Err(_) => {
                serde_json::from_str::<Config>(&self.json).ok().map(|config| PluginConfig::Filter(Box::new(config)))
            }
        }
    }
}

/// The plugin configurations of a document.
pub fn written<'a>(document: &Node<'a>, kind: Kind) -> Vec<Written<'a>> {
    let filters = match kind {
        Kind::Sidecar => return Vec::new(),
        Kind::Plugin => {
            return vec![Written { path: String::new(), json: document.value.to_string(), carrier: Carrier::Alone }];
        }
        Kind::WasmPlugin => {
            let Some(spec) = document.get("spec") else { return vec![absent(document.place("spec.pluginConfig"))] };
            let config = spec.get("pluginConfig").map(|config| config.value.to_string());
            let path = spec.place("pluginConfig");
            return vec![Written { path, json: config.unwrap_or_default(), carrier: Carrier::WasmPlugin(spec) }];
        }
        Kind::EnvoyFilter => envoy::patched_filters(document),
        Kind::Bootstrap | Kind::Resources => envoy::filters(document),
    };
    let written = filters.into_iter().map(|filter| {
        let (path, json) = filter.configuration();
        Written { path, json, carrier: Carrier::Filter(filter) }
    });
    written.collect()
}

fn absent<'a>(path: String) -> Written<'a> {
    Written { path, json: String::new(), carrier: Carrier::Alone }
}
