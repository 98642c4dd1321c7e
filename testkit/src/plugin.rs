//! The filter as a plugin of Envoy's.

use std::path::Path;

use serde_json::{Value, json};

/// A plugin of the filter's code.
#[derive(Clone, Debug)]
pub struct Plugin<'a> {
    /// Its name, and the id of its root.
    pub name: &'a str,
    /// The module.
    pub code: &'a Path,
    /// Its configuration.
    pub configuration: &'a str,
    /// The proxy lets body callbacks run while headers are held; Istio cannot say so.
    pub header_pause: bool,
}

impl Plugin<'_> {
    /// As the wasm filter's configuration.
    #[must_use]
    pub fn typed_config(&self) -> Value {
        let mut config = json!({
            "name": self.name,
            "root_id": self.name,
            "failure_policy": "FAIL_RELOAD",
            "vm_config": {
                "runtime": "envoy.wasm.runtime.v8",
                "code": {"local": {"filename": self.code}},
            },
            "configuration": {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": self.configuration},
        });
        if self.header_pause {
            config["allow_on_headers_stop_iteration"] = json!(true);
        }
        json!({"@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm", "config": config})
    }

    /// As the content of an ECDS file.
    #[must_use]
    pub fn ecds(&self, version: u32) -> Value {
        json!({
            "version_info": version.to_string(),
            "resources": [{
                "@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
                "name": self.name,
                "typed_config": self.typed_config(),
            }],
        })
    }
}

/// A filter that comes by ECDS from a file.
#[must_use]
pub fn discovered(name: &str, file: &Path) -> Value {
    json!({
        "name": name,
        "config_discovery": {
            "config_source": {
                "path_config_source": {"path": file, "watched_directory": {"path": file.parent()}},
                "resource_api_version": "V3",
            },
            "type_urls": ["type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"],
        },
    })
}
