//! `pools[].discover`: where workers are found, as it is written and as it is meant.

use std::net::SocketAddr;
use std::path::PathBuf;

pub use admission_core::view::Role;
use serde::Deserialize;
use serde_norway::Value;

use super::checks::{self, Errors, Once, join};
use super::raw::{self, Part, Unknown};
use super::{ConfigError, Worker};

mod kubernetes;

use kubernetes::RawKubernetes;
pub use kubernetes::{Kubernetes, Objects, Port, Select};

/// Where a DCGM exporter serves if nothing else is said.
const EXPORTER_PORT: u16 = 9400;

/// Where workers are found, and what holds for those that do not say it themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// What says which workers there are.
    pub origin: Origin,
    /// Where on each of them its pages are.
    pub pages: Pages,
    /// What they do.
    pub role: Role,
}

/// What says which workers there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A name, looked up again as its records grow old.
    Dns(Dns),
    /// EndpointSlices or the pods of an InferencePool, watched.
    Kubernetes(Kubernetes),
    /// A file of workers as under `pools[].workers`, read again and again.
    File(PathBuf),
}

/// A name in DNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// Without a dot at its end the search list of `/etc/resolv.conf` applies.
    pub name: String,
    /// What is asked for.
    pub records: Records,
    /// Asked in place of those of `/etc/resolv.conf`, without a search list; empty for the system's.
    pub servers: Vec<SocketAddr>,
}

/// Which records name workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Records {
    /// A, or AAAA where there is no A; all serve on this port.
    Addresses(u16),
    /// SRV: a target and a port each.
    Services,
}

/// Where the pages of workers are that do not say it themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Those of their metrics.
    pub metrics: Page,
    /// Those of the exporters that tell of their GPUs, if there are any.
    pub hardware: Option<Page>,
}

/// Where a page of a worker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// How it is asked for.
    pub scheme: Scheme,
    /// Begins with a slash; may have a query.
    pub path: String,
    /// The port on which the worker serves if not said.
    pub port: Option<u16>,
}

/// How a page is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// In the clear.
    #[default]
    Http,
    /// Over TLS.
    Https,
}

impl Source {
    /// Whether a worker that it finds may have a page at an `https://` URL: a file may name one itself.
    pub fn may_take_tls(&self) -> bool {
        let Pages { metrics, hardware } = &self.pages;
        let is_https =
            [Some(metrics), hardware.as_ref()].into_iter().flatten().any(|page| page.scheme == Scheme::Https);
        is_https || matches!(self.origin, Origin::File(_))
    }

    /// Names it in logs and metrics: short, and no two sources of a configuration have the same.
    pub fn name(&self) -> String {
        match &self.origin {
            Origin::Dns(Dns { name, records: Records::Addresses(port), .. }) => format!("dns:{name}:{port}"),
            Origin::Dns(Dns { name, records: Records::Services, .. }) => format!("dns:{name}"),
            Origin::Kubernetes(Kubernetes { namespace, objects, .. }) => format!("kubernetes:{namespace}/{objects}"),
            Origin::File(path) => format!("file:{}", path.display()),
        }
    }

    /// Reads a file of workers: YAML or JSON, a list as under `pools[].workers`, which may be empty.
    ///
    /// # Errors
    /// Every mistake there is, each with its path. Text that is no list has one.
    pub fn workers(&self, text: &str) -> Result<Vec<Worker>, Vec<ConfigError>> {
        let mistake = |message: String| vec![ConfigError::new("", message)];
        let list: Value = serde_norway::from_str(text).map_err(|error| mistake(error.to_string()))?;
        // An empty file may be one that is being written; it must not be taken for nobody.
        if !list.is_sequence() {
            return Err(mistake("must be a list of workers; write [] for none".into()));
        }
        let list: Vec<Part<raw::Worker>> =
            serde_norway::from_value(list).map_err(|error| mistake(error.to_string()))?;
        let mut errors = Errors::default();
        let parts = list.into_iter().enumerate();
        let parts: Vec<_> =
            parts.filter_map(|(at, part)| checks::part_of(&mut errors, format!("[{at}]"), part)).collect();
        let workers = checks::workers(&mut errors, parts, &mut Once::default(), &self.pages, self.role);
        errors.or(workers)
    }
}

impl Pages {
    /// The URLs of both on the worker that serves at `address`, which is `host:port`.
    pub fn urls(&self, address: &str) -> (String, Option<String>) {
        (self.metrics.url(address), self.hardware.as_ref().map(|page| page.url(address)))
    }
}

impl Page {
    /// Its URL on the worker that serves at `address`, which is `host:port`.
    pub fn url(&self, address: &str) -> String {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        match self.port {
            Some(port) => format!("{scheme}://{host}:{port}{}", self.path),
            None => format!("{scheme}://{address}{}", self.path),
        }
    }
}

impl Default for Page {
    fn default() -> Self {
        Self { scheme: Scheme::default(), path: "/metrics".into(), port: None }
    }
}

/// One element of `pools[].discover` as it is written.
#[derive(Debug, Deserialize)]
pub(super) struct RawSource {
    dns: Option<Part<RawDns>>,
    kubernetes: Option<Part<RawKubernetes>>,
    file: Option<Part<RawFile>>,
    metrics: Option<Part<RawPage>>,
    hardware: Option<Part<RawPage>>,
    role: Option<Part<Role>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct RawDns {
    name: Option<Part<String>>,
    kind: Option<Part<RawKind>>,
    port: Option<Part<u16>>,
    servers: Option<Part<Vec<Part<SocketAddr>>>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawKind {
    #[default]
    A,
    Srv,
}

#[derive(Debug, Deserialize)]
struct RawFile {
    path: Option<Part<PathBuf>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Default, Deserialize)]
struct RawPage {
    scheme: Option<Part<Scheme>>,
    path: Option<Part<String>>,
    port: Option<Part<u16>>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// The meaning of one element of `pools[].discover`.
pub(super) fn source(errors: &mut Errors, path: &str, raw: RawSource) -> Option<Source> {
    errors.unknown(path, &raw.unknown);
    let metrics = page(errors, &join(path, "metrics"), raw.metrics);
    let hardware = raw.hardware.is_some().then(|| page(errors, &join(path, "hardware"), raw.hardware));
    let hardware = hardware.map(|page| Page { port: page.port.or(Some(EXPORTER_PORT)), ..page });
    let role = errors.take(&join(path, "role"), raw.role).unwrap_or_default();
    let origin = match (raw.dns, raw.kubernetes, raw.file) {
        (Some(part), None, None) => dns(errors, &join(path, "dns"), part).map(Origin::Dns),
        (None, Some(part), None) => kubernetes::read(errors, &join(path, "kubernetes"), part).map(Origin::Kubernetes),
        (None, None, Some(part)) => file(errors, &join(path, "file"), part).map(Origin::File),
        _ => {
            errors.add(path, "exactly one of dns, kubernetes and file must be set");
            None
        }
    };
    Some(Source { origin: origin?, pages: Pages { metrics, hardware }, role })
}

fn page(errors: &mut Errors, path: &str, part: Option<Part<RawPage>>) -> Page {
    let raw = errors.take(path, part).unwrap_or_default();
    errors.unknown(path, &raw.unknown);
    let at = join(path, "path");
    let text = errors.take(&at, raw.path).unwrap_or_else(|| Page::default().path);
    let is_path = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if !is_path {
        errors.add(at, format!("{text:?} must begin with / and hold neither spaces nor #"));
    }
    let scheme = errors.take(&join(path, "scheme"), raw.scheme).unwrap_or_default();
    Page { scheme, path: text, port: port(errors, &join(path, "port"), raw.port) }
}

fn port(errors: &mut Errors, path: &str, part: Option<Part<u16>>) -> Option<u16> {
    let port = errors.take(path, part)?;
    if port == 0 {
        errors.add(path, "must be at least 1");
    }
    Some(port)
}

fn dns(errors: &mut Errors, path: &str, part: Part<RawDns>) -> Option<Dns> {
    let raw = errors.take(path, Some(part))?;
    errors.unknown(path, &raw.unknown);
    let at = join(path, "name");
    let name = errors.require(&at, raw.name).filter(|name| {
        let is_good = is_domain_name(name);
        if !is_good {
            errors.add(&at, format!("{name:?} is not a domain name"));
        }
        is_good
    });
    let servers = match raw.servers {
        Some(list) => {
            errors.elements(&join(path, "servers"), Some(list)).into_iter().map(|(_, server)| server).collect()
        }
        None => Vec::new(),
    };
    let kind = errors.take(&join(path, "kind"), raw.kind).unwrap_or_default();
    let at = join(path, "port");
    let records = match (kind, raw.port) {
        (RawKind::Srv, None) => Some(Records::Services),
        (RawKind::Srv, Some(_)) => {
            errors.add(at, "must not be set with kind srv: the records name the port");
            None
        }
        (RawKind::A, None) => {
            errors.add(at, "missing");
            None
        }
        (RawKind::A, port_of_all) => port(errors, &at, port_of_all).map(Records::Addresses),
    };
    Some(Dns { name: name?, records: records?, servers })
}

fn is_domain_name(text: &str) -> bool {
    let labels = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    labels.len() <= 253 && labels.split('.').all(is_label) && !labels.rsplit('.').next().is_none_or(is_number)
}

fn file(errors: &mut Errors, path: &str, part: Part<RawFile>) -> Option<PathBuf> {
    let raw = errors.take(path, Some(part))?;
    errors.unknown(path, &raw.unknown);
    let at = join(path, "path");
    let file = errors.require(&at, raw.path)?;
    if file.as_os_str().is_empty() {
        errors.add(at, "must not be empty");
        return None;
    }
    Some(file)
}

#[cfg(test)]
mod tests;
