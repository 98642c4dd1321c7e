//! Of headers that name a tenant: whether anything but the caller writes them.

use admission_core::config::{Config, EndpointPicker, TenantSource};
use admission_core::platform::{ENDPOINT, SUBSET};
use serde_json::Value;

use crate::check::Notes;
use crate::check::envoy::{Filter, typed};
use crate::check::node::{Node, join};

/// Filters that may write any header without naming it in their configuration.
const OPAQUE: [&str; 7] = ["ext_authz", "ext_proc", "lua", "wasm", "golang", "dynamic_modules", "composite"];

/// A tenant's header that callers may set, as far as what stands before the filter is written beside it.
pub fn unguarded(config: &Config, path: &str, filter: &Filter<'_>, notes: &mut Notes) {
    let (Some(manager), Some(earlier)) = (&filter.manager, filter.earlier()) else { return };
    for (place, header) in headers(config) {
        if earlier.iter().any(|filter| is_opaque(filter) || filter.mentions(header)) || strips_first(manager, header) {
            continue;
        }
        let mut message = format!(
            "nothing before this filter sets or removes {header:?}, so callers may name any tenant or tier; put what authenticates \
             them before it, or take the header off with envoy.filters.http.header_mutation"
        );
        if removed_too_late(manager, header) {
            message.push_str(
                "; `request_headers_to_remove` and `_to_add` of routes work only after this filter has read it",
            );
        }
        notes.warn(join(path, &place), message);
    }
}

/// Callers' own choices of worker, which look like an endpoint picker's.
pub fn callers_pick(config: &Config, path: &str, filter: &Filter<'_>, notes: &mut Notes) {
    let (Some(manager), Some(earlier)) = (&filter.manager, filter.earlier()) else { return };
    let removes = |filter: &Node<'_>| {
        let any = filter.get("typed_config");
        let is_mutation = any.as_ref().and_then(typed).is_some_and(|(name, _)| name.contains("header_mutation"));
        is_mutation && removes_endpoints(filter)
    };
    if config.endpoint_picker == EndpointPicker::Theirs && !removes_first(manager) && !earlier.iter().any(removes) {
        let message = format!(
            "nothing takes a caller's own {ENDPOINT:?} off before the picker, so callers may choose their worker; remove it, and \
             {ENDPOINT}-subset, in `early_header_mutation_extensions` of the connection manager, or by a header_mutation filter before both"
        );
        notes.warn(join(path, "endpoint_picker"), message);
    }
}

/// Both headers of a choice of worker are taken off before any filter.
fn removes_first(manager: &Node<'_>) -> bool {
    manager.get("early_header_mutation_extensions").is_some_and(|early| removes_endpoints(&early))
}

/// Both headers of a choice of worker are named somewhere inside, each as a whole text: the one begins the other.
fn removes_endpoints(node: &Node<'_>) -> bool {
    fn names(value: &Value, header: &str) -> bool {
        match value {
            Value::String(text) => text.eq_ignore_ascii_case(header),
            Value::Array(items) => items.iter().any(|item| names(item, header)),
            Value::Object(fields) => fields.values().any(|field| names(field, header)),
            _ => false,
        }
    }
    names(node.value, ENDPOINT) && names(node.value, SUBSET)
}

/// Before Istio authenticates, a header is whatever the caller sent.
pub fn too_early(config: &Config, spec: &Node<'_>, notes: &mut Notes) {
    let mut sources = config.tenant.sources.iter().chain(&config.tenant.tier_sources);
    let trusted = sources.any(|source| source.header.is_some() || source.metadata.is_some());
    if trusted && spec.text("phase") == Some("AUTHN") {
        let message = "AUTHN stands before Istio authenticates, so the tenant's name is what the caller sent, or missing; \
                       AUTHZ and STATS stand after it";
        notes.warn(spec.place("phase"), message);
    }
}

fn headers<'a>(config: &'a Config) -> impl Iterator<Item = (String, &'a str)> {
    let of = |field: &'static str, sources: &'a [TenantSource]| {
        let place = move |index| format!("tenant.{field}[{index}].header");
        sources.iter().enumerate().filter_map(move |(index, source)| Some((place(index), source.header.as_deref()?)))
    };
    of("sources", &config.tenant.sources).chain(of("tier_sources", &config.tenant.tier_sources))
}

pub(super) fn is_opaque(filter: &Node<'_>) -> bool {
    // One that is loaded from elsewhere may be anything.
    let any = filter.get("typed_config");
    let Some((name, _)) = any.as_ref().and_then(typed) else { return true };
    OPAQUE.iter().any(|kind| name.split('.').any(|part| part == *kind))
}

/// What the connection manager does before any filter.
pub(super) fn strips_first(manager: &Node<'_>, header: &str) -> bool {
    let early = manager.get("early_header_mutation_extensions");
    let internal = manager.down(&["route_config", "internal_only_headers"]);
    early.into_iter().chain(internal).any(|node| node.mentions(header))
}

/// The router does this, and it comes last.
fn removed_too_late(manager: &Node<'_>, header: &str) -> bool {
    fn anywhere(node: &Node<'_>, header: &str) -> bool {
        let here = ["request_headers_to_remove", "request_headers_to_add"];
        here.iter().filter_map(|name| node.get(name)).any(|list| list.mentions(header))
            || node.children().iter().any(|child| anywhere(child, header))
    }
    manager.get("route_config").is_some_and(|config| anywhere(&config, header))
}
