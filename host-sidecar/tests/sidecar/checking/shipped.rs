//! The shipped configurations, which have no fault, to be given one.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

/// Where the public listener's connection manager stands.
pub const MANAGER: &str = "static_resources.listeners[0].filter_chains[0].filters[0].typed_config";
/// Its filter of ours.
pub const FILTER: &str =
    "static_resources.listeners[0].filter_chains[0].filters[0].typed_config.http_filters[2].typed_config.config";
/// The policy inside that.
pub const POLICY: &str = "static_resources.listeners[0].filter_chains[0].filters[0].typed_config.http_filters[2].typed_config.config.configuration.value";

pub fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config").join(name)
}

fn documents(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path_of(name)).unwrap();
    serde_norway::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap()).collect()
}

/// The documents of istio.yaml.
pub fn istio() -> Vec<Value> {
    documents("istio.yaml")
}

/// The one of a kind and a name.
pub fn istio_named(kind: &str, name: &str) -> Value {
    let mut documents = istio().into_iter();
    documents.find(|document| document["kind"] == kind && document["metadata"]["name"] == name).unwrap()
}

/// envoy.yaml.
pub struct Bootstrap(pub Value);

impl Bootstrap {
    pub fn shipped() -> Self {
        Self(documents("envoy.yaml").remove(0))
    }

    /// The same with lanes in which nobody waits.
    pub fn without_queues() -> Self {
        let mut bootstrap = Self::shipped();
        bootstrap.change_policy(|policy| {
            for lane in policy["lanes"].as_array_mut().unwrap() {
                for field in ["queue", "reserve", "aging"] {
                    lane.as_object_mut().unwrap().remove(field);
                }
            }
        });
        bootstrap
    }

    pub fn listener(&mut self, index: usize) -> &mut Value {
        &mut self.0["static_resources"]["listeners"][index]
    }

    pub fn manager(&mut self) -> &mut Value {
        self.listener(0).pointer_mut("/filter_chains/0/filters/0/typed_config").unwrap()
    }

    pub fn filters(&mut self) -> &mut Vec<Value> {
        self.manager()["http_filters"].as_array_mut().unwrap()
    }

    /// What Envoy calls the plugin's configuration.
    pub fn filter(&mut self) -> &mut Value {
        &mut self.filters()[2]["typed_config"]["config"]
    }

    pub fn route(&mut self) -> &mut Value {
        self.manager().pointer_mut("/route_config/virtual_hosts/0/routes/0").unwrap()
    }

    pub fn cluster(&mut self) -> &mut Value {
        &mut self.0["static_resources"]["clusters"][0]
    }

    pub fn change_policy(&mut self, change: impl FnOnce(&mut Value)) {
        let text = &mut self.filter()["configuration"]["value"];
        let mut policy: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        change(&mut policy);
        *text = policy.to_string().into();
    }
}
