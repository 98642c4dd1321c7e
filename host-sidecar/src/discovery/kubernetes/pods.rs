//! Turns the pods of an InferencePool into workers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Pod;
use kube::Client;

use super::inference_pool::{self, Selected};
use super::{Named, Pace, name_of, role_of};
use crate::config::discover::Source;
use crate::discovery::{Condition, LookError, Member};

/// Annotations by which a pod says at which of the pool's ports it serves; pickers heed them too.
const ACTIVE_PORTS: [&str; 2] = ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"];

/// All pods there are of one pool.
pub struct Pods<'a> {
    source: &'a Source,
    pool: &'a str,
    /// Labels and ports by the pool; `None` before it has been read.
    selected: Option<Selected>,
    by_name: BTreeMap<String, Pod>,
}

impl<'a> Pods<'a> {
    /// None yet.
    pub fn new(source: &'a Source, pool: &'a str) -> Self {
        Self { source, pool, selected: None, by_name: BTreeMap::new() }
    }
}

impl Named for Pods<'_> {
    type Object = Pod;

    async fn look_up(&mut self, client: &Client, namespace: &str, pace: &Pace) -> Result<bool, LookError> {
        let selected = Some(inference_pool::selected(client, namespace, self.pool, pace).await?);
        let has_changed = self.selected != selected;
        self.selected = selected;
        Ok(has_changed)
    }

    fn selector(&self) -> String {
        self.selected.as_ref().map(|selected| selected.select.as_label_selector()).unwrap_or_default()
    }

    fn replace(&mut self, pods: Vec<Pod>) {
        let names: BTreeSet<_> = pods.iter().map(|pod| name_of(&pod.metadata)).collect();
        self.by_name.retain(|name, _| names.contains(name));
        for pod in pods {
            self.set(pod);
        }
    }

    fn set(&mut self, pod: Pod) -> Option<String> {
        let version = pod.metadata.resource_version.clone();
        self.by_name.insert(name_of(&pod.metadata), pod);
        version
    }

    fn remove(&mut self, pod: Pod) -> Option<String> {
        self.by_name.remove(&name_of(&pod.metadata));
        pod.metadata.resource_version
    }

    fn members(&self) -> (Vec<Member>, Option<LookError>) {
        let ports = self.selected.as_ref().map(|selected| selected.ports.as_slice()).unwrap_or_default();
        // Why no worker: each port would be one with the numbers of all ports.
        if ports.len() > 1 && self.source.pages.metrics.port.is_some() {
            let name = self.pool;
            let message = format!(
                "InferencePool {name} has several targetPorts, and `metrics.port` gives them one page; take it out"
            );
            return (Vec::new(), Some(LookError::Unreadable(message)));
        }
        let of_pod = |pod| ports.iter().filter_map(move |port| self.worker(pod, *port));
        (self.by_name.values().flat_map(of_pod).collect(), None)
    }
}

impl Pods<'_> {
    /// `None` for a pod that has no address yet, for one that has ended, and for a port that it does not serve at.
    fn worker(&self, pod: &Pod, port: u16) -> Option<Member> {
        if !serves_at(pod, port) {
            return None;
        }
        let ip: IpAddr = pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok()?;
        let condition = condition(pod)?;
        let address = SocketAddr::new(ip, port).to_string();
        let (metrics_url, hardware_url) = self.source.pages.urls(&address);
        let role = role_of(&pod.metadata, self.source);
        Some(Member { address, condition, metrics_url, hardware_url, role })
    }
}

/// Says whether the pod serves at a port of its pool: at all ports, unless an annotation lists some.
fn serves_at(pod: &Pod, port: u16) -> bool {
    let annotation = |name: &&str| pod.metadata.annotations.as_ref()?.get(*name);
    let Some(active) = ACTIVE_PORTS.iter().find_map(annotation) else { return true };
    active.split(',').any(|active| active.trim().parse() == Ok(port))
}

/// The condition that an EndpointSlice would say of the pod; `None` when all of its containers have ended.
fn condition(pod: &Pod) -> Option<Condition> {
    let status = pod.status.as_ref()?;
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let mut conditions = status.conditions.iter().flatten();
    let is_ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    Some(match pod.metadata.deletion_timestamp.is_some() {
        true if is_ready => Condition::Draining,
        false if is_ready => Condition::Ready,
        _ => Condition::NotReady,
    })
}
