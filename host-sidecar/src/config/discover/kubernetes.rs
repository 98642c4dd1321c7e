//! `pools[].discover[].kubernetes`, as it is written and as it is meant.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use url::Url;

use crate::config::checks::{Errors, join};
use crate::config::raw::{Part, Unknown};

/// Objects of one namespace that name workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    /// The namespace.
    pub namespace: String,
    /// The objects.
    pub objects: Objects,
    /// Base URL of the API server; without one the pod's own cluster is asked.
    pub api_server: Option<String>,
    /// Bearer token; a pod's own is the default in the pod's own cluster.
    pub token_file: Option<PathBuf>,
    /// PEM of who may have signed the API server's certificate; the default is the pod's own in the pod's own cluster,
    /// the system's elsewhere.
    pub ca_file: Option<PathBuf>,
}

/// Kinds of objects that name workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objects {
    /// EndpointSlices, and their port at which workers serve.
    Slices(Select, Port),
    /// The pods that the InferencePool of this name selects, which says where they serve as well.
    InferencePool(String),
}

/// A choice of EndpointSlices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// The slices of this Service.
    Service(String),
    /// The slices that have all these labels, of which there is at least one.
    Labels(BTreeMap<String, String>),
}

/// A port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a port is a number or the name of a port")]
pub enum Port {
    /// A number, whatever ports the slice lists.
    Number(u16),
    /// A name that the slice has for it.
    Name(String),
}

impl fmt::Display for Objects {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slices(select, port) => write!(out, "{select}:{port}"),
            Self::InferencePool(name) => write!(out, "inferencepool/{name}"),
        }
    }
}

impl Select {
    /// The choice in the form that the API takes.
    pub fn as_label_selector(&self) -> String {
        match self {
            Self::Service(service) => format!("kubernetes.io/service-name={service}"),
            labels @ Self::Labels(_) => labels.to_string(),
        }
    }
}

impl fmt::Display for Select {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(service) => write!(out, "{service}"),
            Self::Labels(labels) => {
                let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
                write!(out, "{}", labels.join(","))
            }
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(port) => write!(out, "{port}"),
            Self::Name(name) => write!(out, "{name}"),
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct RawKubernetes {
    namespace: Option<Part<String>>,
    service: Option<Part<String>>,
    labels: Option<Part<BTreeMap<String, String>>>,
    inference_pool: Option<Part<String>>,
    port: Option<Part<Port>>,
    api_server: Option<Part<String>>,
    token_file: Option<Part<PathBuf>>,
    ca_file: Option<Part<PathBuf>>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// The meaning of `discover[].kubernetes`.
pub(super) fn read(errors: &mut Errors, path: &str, part: Part<RawKubernetes>) -> Option<Kubernetes> {
    let raw = errors.take(path, Some(part))?;
    errors.unknown(path, &raw.unknown);
    if !cfg!(feature = "kubernetes") {
        errors.add(path, "this sidecar was built without Kubernetes; build it with `--features kubernetes`");
    }
    let namespace = object_name(errors, &join(path, "namespace"), raw.namespace);
    let objects = match raw.inference_pool {
        None => {
            let select = select(errors, path, raw.service, raw.labels);
            let port = port(errors, &join(path, "port"), raw.port);
            select.zip(port).map(|(select, port)| Objects::Slices(select, port))
        }
        Some(pool) => {
            for (name, is_set) in
                [("service", raw.service.is_some()), ("labels", raw.labels.is_some()), ("port", raw.port.is_some())]
            {
                if is_set {
                    errors.add(join(path, name), "must not be set with inference_pool, which says it itself");
                }
            }
            resource_name(errors, &join(path, "inference_pool"), pool).map(Objects::InferencePool)
        }
    };
    let token_file = errors.take(&join(path, "token_file"), raw.token_file);
    let ca_file = errors.take(&join(path, "ca_file"), raw.ca_file);
    let api_server = errors.take(&join(path, "api_server"), raw.api_server);
    if let Some(url) = &api_server {
        api_url(errors, &join(path, "api_server"), url, token_file.is_some());
    }
    Some(Kubernetes { namespace: namespace?, objects: objects?, api_server, token_file, ca_file })
}

fn port(errors: &mut Errors, path: &str, part: Option<Part<Port>>) -> Option<Port> {
    errors.require(path, part).filter(|port| {
        let problem = match port {
            Port::Number(0) => "must be at least 1",
            Port::Name(name) if !is_port_name(name) => "is no name of a port; write a number without quotes",
            _ => return true,
        };
        errors.add(path, problem);
        false
    })
}

fn api_url(errors: &mut Errors, path: &str, text: &str, has_token: bool) {
    let problem = match Url::parse(text) {
        Err(error) => format!("{text:?} is not a URL: {error}"),
        Ok(url) if !matches!(url.scheme(), "http" | "https") => format!("{text:?} must begin with https:// or http://"),
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            "a URL must not hold a user or a password; use token_file".to_owned()
        }
        Ok(url) if url.query().is_some() || url.fragment().is_some() => {
            format!("{text:?} must end with its path; the paths of the API are added to it")
        }
        Ok(url) if url.scheme() == "http" && has_token => {
            "a token is sent over https only; leave token_file out, or begin with https://".to_owned()
        }
        Ok(_) => return,
    };
    errors.add(path, problem);
}

fn select(
    errors: &mut Errors,
    path: &str,
    service: Option<Part<String>>,
    labels: Option<Part<BTreeMap<String, String>>>,
) -> Option<Select> {
    if service.is_some() == labels.is_some() {
        errors.add(path, "exactly one of service, labels and inference_pool must be set");
        return None;
    }
    if service.is_some() {
        return object_name(errors, &join(path, "service"), service).map(Select::Service);
    }
    let path = join(path, "labels");
    let labels = errors.take(&path, labels)?;
    if labels.is_empty() {
        errors.add(&path, "must not be empty");
    }
    let is_word = |text: &str, more: &[u8]| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte) || more.contains(&byte))
    };
    for (key, value) in &labels {
        if key.is_empty() || !is_word(key, b"/") || !is_word(value, b"") {
            errors.add(&path, format!("\"{key}: {value}\" is no label of Kubernetes"));
        }
    }
    Some(Select::Labels(labels))
}

fn object_name(errors: &mut Errors, path: &str, part: Option<Part<String>>) -> Option<String> {
    let name = errors.require(path, part)?;
    let is_name = (1..=63).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !is_name {
        errors.add(path, format!("{name:?} is no name in Kubernetes: at most 63 small letters, digits and -"));
        return None;
    }
    Some(name)
}

/// A name of a resource that is no DNS label: dots are allowed in it.
fn resource_name(errors: &mut Errors, path: &str, part: Part<String>) -> Option<String> {
    let name = errors.take(path, Some(part))?;
    let is_inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if !(1..=253).contains(&name.len()) || !name.bytes().all(is_inside) || name.split('.').any(str::is_empty) {
        errors.add(path, format!("{name:?} is no name in Kubernetes: at most 253 small letters, digits, - and ."));
        return None;
    }
    Some(name)
}

fn is_port_name(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}
