//! Which workers EndpointSlices name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointSlice};
use kube::Client;

use super::{Named, Pace, name_of, role_of};
use crate::config::discover::{Port, Role, Select, Source};
use crate::discovery::{Condition, LookError, Member};

/// All slices there are.
pub struct Slices<'a> {
    source: &'a Source,
    select: &'a Select,
    port: &'a Port,
    by_name: BTreeMap<String, Known>,
}

/// One slice.
struct Known {
    /// As it was when it last said where its workers serve.
    slice: EndpointSlice,
    /// It names workers and no longer says where they serve: then its last word stands.
    lacks_port: bool,
}

impl<'a> Slices<'a> {
    /// None yet.
    pub fn new(source: &'a Source, select: &'a Select, port: &'a Port) -> Self {
        Self { source, select, port, by_name: BTreeMap::new() }
    }
}

impl Named for Slices<'_> {
    type Object = EndpointSlice;

    /// Nothing changes which slices are meant.
    async fn look_up(&mut self, _: &Client, _: &str, _: &Pace) -> Result<bool, LookError> {
        Ok(false)
    }

    fn selector(&self) -> String {
        self.select.as_label_selector()
    }

    fn replace(&mut self, slices: Vec<EndpointSlice>) {
        let names: BTreeSet<_> = slices.iter().map(|slice| name_of(&slice.metadata)).collect();
        self.by_name.retain(|name, _| names.contains(name));
        for slice in slices {
            self.set(slice);
        }
    }

    fn set(&mut self, slice: EndpointSlice) -> Option<String> {
        let version = slice.metadata.resource_version.clone();
        let (name, lacks_port) =
            (name_of(&slice.metadata), self.port_of(&slice).is_none() && !slice.endpoints.is_empty());
        match self.by_name.get_mut(&name) {
            Some(known) if lacks_port => known.lacks_port = true,
            _ => {
                self.by_name.insert(name, Known { slice, lacks_port });
            }
        }
        version
    }

    fn remove(&mut self, slice: EndpointSlice) -> Option<String> {
        self.by_name.remove(&name_of(&slice.metadata));
        slice.metadata.resource_version
    }

    /// A pod that stands in slices of both families is one worker, by its IPv4 address; one that is moved from a slice to
    /// another is one worker, by the better of both conditions.
    fn members(&self) -> (Vec<Member>, Option<LookError>) {
        let mut problem = None;
        let mut workers = BTreeMap::new();
        for (name, Known { slice, lacks_port }) in &self.by_name {
            if *lacks_port {
                let port = self.port;
                let message = format!("EndpointSlice {name} has no TCP port {port}; set `port` to one it has");
                problem = Some(LookError::Unreadable(message));
            }
            let Some(port) = self.port_of(slice) else { continue };
            let role = role_of(&slice.metadata, self.source);
            for endpoint in &slice.endpoints {
                let Some((key, candidate)) = self.worker(endpoint, port, role) else { continue };
                let best = workers.entry(key).or_insert_with(|| candidate.clone());
                if candidate < *best {
                    *best = candidate;
                }
            }
        }
        (workers.into_values().map(|candidate| candidate.member).collect(), problem)
    }
}

impl Slices<'_> {
    fn port_of(&self, slice: &EndpointSlice) -> Option<u16> {
        let wanted = match self.port {
            Port::Number(port) => return Some(*port),
            Port::Name(name) => name.as_str(),
        };
        let mut ports = slice.ports.iter().flatten();
        let port = ports.find(|port| {
            port.name.as_deref() == Some(wanted) && matches!(port.protocol.as_deref(), None | Some("TCP"))
        })?;
        port.port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
    }

    /// By what names the pod, else by its address. Only the first address counts, as for all of Kubernetes.
    fn worker<'b>(&self, endpoint: &'b Endpoint, port: u16, role: Role) -> Option<(&'b str, Candidate)> {
        let first = endpoint.addresses.first()?;
        let ip: IpAddr = first.parse().ok()?;
        let address = SocketAddr::new(ip, port).to_string();
        let condition = condition(endpoint.conditions.as_ref());
        let (metrics_url, hardware_url) = self.source.pages.urls(&address);
        let pod = endpoint.target_ref.as_ref().and_then(|target| target.uid.as_deref());
        let member = Member { address, condition, metrics_url, hardware_url, role };
        Some((pod.unwrap_or(first), Candidate { is_v6: ip.is_ipv6(), condition, member }))
    }
}

/// One word on a worker. Of several the least counts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    is_v6: bool,
    condition: Condition,
    member: Member,
}

/// What is not said means that it serves. A pod that ends is no longer given work, whatever else is said of it: Services may
/// be told to publish pods that are not ready.
fn condition(said: Option<&EndpointConditions>) -> Condition {
    let Some(said) = said else { return Condition::Ready };
    let (ready, serving) = (said.ready.unwrap_or(true), said.serving.unwrap_or(true));
    match said.terminating.unwrap_or(false) {
        true if serving => Condition::Draining,
        false if ready => Condition::Ready,
        _ => Condition::NotReady,
    }
}

#[cfg(test)]
mod tests;
