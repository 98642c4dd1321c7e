//! Reads an InferencePool: the labels of its pods, and the ports at which they serve.

use std::collections::BTreeMap;

use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::Value;

use super::{Pace, answer, failure};
use crate::config::discover::Select;
use crate::discovery::LookError;

/// The pods that a pool selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    /// Labels of the pods.
    pub select: Select,
    /// Ports of each pod; each is a worker by itself, as the ranks of a data-parallel engine are.
    pub ports: Vec<u16>,
}

/// Asks the API server for the pool.
///
/// # Errors
/// When it does not answer, has no such pool, or the pool says neither which pods nor where.
pub async fn selected(client: &Client, namespace: &str, name: &str, pace: &Pace) -> Result<Selected, LookError> {
    let kind = GroupVersionKind::gvk("inference.networking.k8s.io", "v1", "InferencePool");
    let resource = ApiResource::from_gvk_with_plural(&kind, "inferencepools");
    let pools: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let pool = answer(pace, pools.get(name)).await?.map_err(|error| failure(&error))?;
    read(&pool.data).map_err(|problem| LookError::Unreadable(format!("InferencePool {name}: {problem}")))
}

fn read(pool: &Value) -> Result<Selected, String> {
    let labels = pool.pointer("/spec/selector/matchLabels").and_then(Value::as_object);
    let labels = labels.filter(|labels| !labels.is_empty()).ok_or("spec.selector.matchLabels selects nothing")?;
    let labels: Option<BTreeMap<String, String>> =
        labels.iter().map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
    let ports = pool.pointer("/spec/targetPorts").and_then(Value::as_array);
    let number = |port: &Value| u16::try_from(port.get("number")?.as_u64()?).ok().filter(|port| *port > 0);
    let ports: Option<Vec<u16>> = ports.into_iter().flatten().map(number).collect();
    Ok(Selected {
        select: Select::Labels(labels.ok_or("spec.selector.matchLabels has a value that is no text")?),
        ports: ports.filter(|ports| !ports.is_empty()).ok_or("spec.targetPorts names no port")?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_and_ports_are_read_and_a_pool_without_them_is_told() {
        let pool = |selector: Value, ports: Value| json!({"spec": {"selector": selector, "targetPorts": ports}});
        let good =
            pool(json!({"matchLabels": {"app": "llama", "tier": "gpu"}}), json!([{"number": 8000}, {"number": 8001}]));
        let Selected { select, ports } = read(&good).unwrap();
        assert_eq!((select.as_label_selector().as_str(), &ports[..]), ("app=llama,tier=gpu", &[8000, 8001][..]));
        for (bad, problem) in [
            (pool(json!({}), json!([{"number": 8000}])), "selects nothing"),
            (pool(json!({"matchLabels": {}}), json!([{"number": 8000}])), "selects nothing"),
            (pool(json!({"matchLabels": {"app": 7}}), json!([{"number": 8000}])), "no text"),
            (pool(json!({"matchLabels": {"app": "llama"}}), json!([])), "no port"),
            (pool(json!({"matchLabels": {"app": "llama"}}), json!([{"number": 70000}])), "no port"),
        ] {
            assert!(read(&bad).unwrap_err().contains(problem), "{bad}");
        }
    }
}
