//! Reading of a request's headers, and the headers that only the platform may set.

use std::borrow::Cow;

use crate::attributes::RequestAttributes;
use crate::config::EndpointPicker;
use crate::headers::Headers;
use crate::identity::{Source, tenant_name};
use crate::ledger::SubFlow;
use crate::platform;
use crate::policy::{Place, Policy, Route};
use crate::request::{Api, plain_path};
use crate::units::Millis;

/// Headers in which a caller may say in how many milliseconds it wants the first token, the one that is asked first
/// before the older one.
const DEADLINE_HEADERS: [&str; 2] = ["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"];

/// A request as its headers describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Name of the tenant that sends the request.
    pub tenant: String,
    /// True where nothing says who sends the request, but it has a key that is no tenant's.
    pub wrong_key: bool,
    /// Tier that a source names, where the tenant is not listed.
    pub tier: Option<String>,
    /// Name of the lane that the request asks for.
    pub asked_lane: Option<String>,
    /// Names of the objectives that the request asks for; the first one that is known counts.
    pub objectives: Vec<String>,
    /// See [`crate::request::plain_path`].
    pub path: String,
    /// API that the path is of, unless a route names another one.
    pub api: Api,
    /// Size of the body in bytes, where the headers have it.
    pub body_bytes: Option<u64>,
    /// True where the headers say that the body is encoded, so that perhaps nothing in it can be read.
    pub encoded: bool,
    /// True where the headers say that the body is JSON, or do not say what it is.
    pub says_json: bool,
    /// True where there are headers that only the platform may set, other than a lane asked for.
    pub spoofed: bool,
    /// Time within which the caller wants the first token, see [`Arrival::deadline`].
    pub ttft_deadline: Option<Millis>,
    /// True where the caller would rather be refused than wait in a queue.
    pub no_queue: bool,
    /// Part of its tenant's requests that its fairness header names, where the policy reads one.
    pub sub: Option<SubFlow>,
}

impl Arrival {
    /// A request as these headers and attributes describe it, some of whose headers are [`spoofed`].
    #[must_use]
    pub fn read(policy: &Policy, headers: &Headers, attributes: &dyn RequestAttributes, spoofed: &[String]) -> Self {
        let named = policy.tenant_sources.iter().find_map(|source| tenant(source, headers, attributes));
        let tier = |source| tenant(source, headers, attributes).filter(|name| policy.has_tier(name));
        let asking = named.as_deref().is_some_and(|name| policy.asks_for_tier(name));
        let encoding = headers.get("content-encoding").unwrap_or_default();
        let path = headers.get(":path").unwrap_or_default();
        let path = plain_path(&String::from_utf8_lossy(&path));
        let for_callers =
            |name: &String| policy.lane_header.as_ref() == Some(name) || policy.fairness_headers.contains(name);
        Self {
            wrong_key: named.is_none() && policy.tenant_sources.iter().any(|source| has_key(source, headers)),
            tier: asking.then(|| policy.tier_sources.iter().find_map(tier)).flatten(),
            tenant: named.unwrap_or_else(|| policy.default_tenant.clone()),
            asked_lane: policy.lane_header.as_ref().and_then(|header| headers.text(header)).map(Cow::into_owned),
            objectives: platform::OBJECTIVE
                .iter()
                .filter_map(|header| headers.text(header))
                .map(Cow::into_owned)
                .collect(),
            api: Api::of_plain_path(&path),
            path,
            says_json: headers.text("content-type").is_none_or(|kind| kind.to_ascii_lowercase().contains("json")),
            body_bytes: headers.text("content-length").and_then(|length| length.parse().ok()),
            encoded: !encoding.is_empty() && !encoding.eq_ignore_ascii_case(b"identity"),
            spoofed: spoofed.iter().any(|name| platform::chooses_routes(name) && !for_callers(name)),
            ttft_deadline: DEADLINE_HEADERS
                .iter()
                .find_map(|header| Self::deadline(headers.text(header)?.trim_ascii())),
            sub: policy.sub_flow(policy.fairness_headers.iter().find_map(|header| headers.get(header)).as_deref()),
            no_queue: headers.get(platform::NO_QUEUE).is_some_and(|value| value.eq_ignore_ascii_case(b"true")),
        }
    }

    /// Time within which a header asks for the first token: milliseconds, a fraction of which is left out. `None` for
    /// anything else, and for less than one.
    ///
    /// ```
    /// use admission_core::arrival::Arrival;
    /// use admission_core::units::Millis;
    ///
    /// assert_eq!(Arrival::deadline("1500.5"), Some(Millis(1500)));
    /// assert_eq!(Arrival::deadline("soon"), None);
    /// ```
    #[must_use]
    pub fn deadline(text: &str) -> Option<Millis> {
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let whole = (digits(whole) && digits(fraction)).then(|| whole.parse().ok()).flatten();
        whole.filter(|millis| *millis > 0).map(Millis)
    }

    /// The request as one of the API that its route names, where that names one.
    #[must_use]
    pub fn on(self, route: &Route) -> Self {
        Self { api: route.api.unwrap_or(self.api), ..self }
    }

    /// Place of the request among routes, by the names that the proxy has given or not.
    #[must_use]
    pub fn place<'a>(&'a self, route_name: Option<&'a str>, virtual_host: Option<&'a str>) -> Place<'a> {
        Place { route_name, virtual_host, path: &self.path, spoofed: self.spoofed }
    }
}

/// Says whether a source of keys finds one, whose ever it is.
fn has_key(source: &Source, headers: &Headers) -> bool {
    let Source::ApiKey(keys) = source else { return false };
    headers.get(&keys.header).is_some_and(|value| keys.key(&value).is_some())
}

fn tenant(source: &Source, headers: &Headers, attributes: &dyn RequestAttributes) -> Option<String> {
    match source {
        Source::Metadata(path) => tenant_name(&attributes.dynamic_metadata(path)?),
        Source::Certificate(name) => tenant_name(name.of(&attributes.peer_uri()?)?.as_bytes()),
        Source::Header(header) => tenant_name(&headers.get(header)?),
        Source::ApiKey(keys) => keys.tenant_of(&headers.get(&keys.header)?).map(str::to_owned),
    }
}

/// Says whether the connection is that of a proxy whose headers of ours are the platform's.
#[must_use]
pub fn comes_from_trusted(policy: &Policy, attributes: &dyn RequestAttributes) -> bool {
    !policy.trusted_peers.is_empty() && attributes.peer_uri().is_some_and(|uri| policy.trusts(&uri))
}

/// Says whether the request is for another protocol. Envoy makes an upgrade of whatever method has the header.
// Why its bytes need no care before the worker has agreed: Envoy keeps them until 101, or to a CONNECT 2xx, and closes the tunnel after any other answer.
#[must_use]
pub fn is_tunnel(headers: &Headers) -> bool {
    is_method(headers, b"CONNECT") || headers.get("upgrade").is_some_and(|upgrade| !upgrade.is_empty())
}

/// Says whether a request for another protocol has a body too, which its worker may take for what its path says.
#[must_use]
pub fn has_body_too(headers: &Headers) -> bool {
    let plain = is_method(headers, b"CONNECT") || is_method(headers, b"GET");
    !plain
        || headers.get("content-length").is_some_and(|length| *length != *b"0")
        || headers.get("transfer-encoding").is_some()
}

fn is_method(headers: &Headers, method: &[u8]) -> bool {
    headers.get(":method").is_some_and(|found| *found == *method)
}

/// Names of the request's headers that callers must not set for the platform. A picker's own may stay, and what it is sent is not a caller's to say.
#[must_use]
pub fn spoofed(policy: &Policy, headers: &Headers) -> Vec<String> {
    if !has_picker(policy) {
        return headers.names().filter(|name| platform::is_ours(name)).map(str::to_owned).collect();
    }
    let is_stamped = |name: &str| platform::FAIRNESS.contains(&name) || platform::OBJECTIVE.contains(&name);
    let is_spoofed = |name: &str| is_stamped(name) || platform::is_ours(name) && !platform::chooses_workers(name);
    headers.names().filter(|name| is_spoofed(name)).map(str::to_owned).collect()
}

/// Says whether an endpoint picker of the same chain chooses workers.
#[must_use]
pub fn has_picker(policy: &Policy) -> bool {
    policy.endpoint_picker == EndpointPicker::Theirs
}

#[cfg(test)]
mod tests;
