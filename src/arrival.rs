//! A request's headers: what they say, what is taken off, what is put on.

use std::borrow::Cow;

use admission_core::config::EndpointPicker;
use admission_core::decide::Ask;
use admission_core::endpoint::Endpoint;
use admission_core::identity::{Source, tenant_name};
use admission_core::platform;
use admission_core::policy::{Lane, Policy, Pool};
use admission_core::request::{Api, plain_path};
use admission_core::terms::Arrival;

use sha2::{Digest, Sha256};

use crate::headers::Headers;
use crate::host;

/// Headers in which a caller may say in how many milliseconds it wants the first token, the one that is asked first
/// before the older one.
const DEADLINE_HEADERS: [&str; 2] = ["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"];

/// What a request's headers say, some of which are [`spoofed`].
pub fn read(policy: &Policy, headers: &Headers, spoofed: &[String]) -> Arrival {
    let named = policy.tenant_sources.iter().find_map(|source| tenant(source, headers));
    let tier = |source| tenant(source, headers).filter(|name| policy.has_tier(name));
    let asking = named.as_deref().is_some_and(|name| policy.asks_for_tier(name));
    let encoding = headers.get("content-encoding").unwrap_or_default();
    let path = headers.get(":path").unwrap_or_default();
    let path = plain_path(&String::from_utf8_lossy(&path));
    let for_callers =
        |name: &String| policy.lane_header.as_ref() == Some(name) || policy.fairness_headers.contains(name);
    Arrival {
        wrong_key: named.is_none() && policy.tenant_sources.iter().any(|source| has_key(source, headers)),
        tier: asking.then(|| policy.tier_sources.iter().find_map(tier)).flatten(),
        tenant: named.unwrap_or_else(|| policy.default_tenant.clone()),
        asked_lane: policy.lane_header.as_ref().and_then(|header| headers.text(header)).map(Cow::into_owned),
        objectives: platform::OBJECTIVE.iter().filter_map(|header| headers.text(header)).map(Cow::into_owned).collect(),
        api: Api::of_plain_path(&path),
        path,
        says_json: headers.text("content-type").is_none_or(|kind| kind.to_ascii_lowercase().contains("json")),
        body_bytes: headers.text("content-length").and_then(|length| length.parse().ok()),
        encoded: !encoding.is_empty() && !encoding.eq_ignore_ascii_case(b"identity"),
        spoofed: spoofed.iter().any(|name| platform::chooses_routes(name) && !for_callers(name)),
        ttft_deadline: DEADLINE_HEADERS.iter().find_map(|header| Arrival::deadline(headers.text(header)?.trim_ascii())),
        sub: policy.sub_flow(policy.fairness_headers.iter().find_map(|header| headers.get(header)).as_deref()),
        no_queue: headers.get(platform::NO_QUEUE).is_some_and(|value| value.eq_ignore_ascii_case(b"true")),
    }
}

/// Says whether a source of keys finds one, whose ever it is.
fn has_key(source: &Source, headers: &Headers) -> bool {
    let Source::ApiKey(keys) = source else { return false };
    headers.get(&keys.header).is_some_and(|value| keys.key(&value).is_some())
}

fn tenant(source: &Source, headers: &Headers) -> Option<String> {
    match source {
        Source::Metadata(path) => tenant_name(&host::dynamic_metadata(path)?),
        Source::Certificate(name) => tenant_name(name.of(&host::peer_uri()?)?.as_bytes()),
        Source::Header(header) => tenant_name(&headers.get(header)?),
        Source::ApiKey(keys) => {
            let value = headers.get(&keys.header)?;
            let key = keys.key(&value)?;
            keys.tenant(&Sha256::digest(key).into()).map(str::to_owned)
        }
    }
}

/// Says whether the connection is that of a proxy whose headers of ours are the platform's.
pub fn comes_from_trusted(policy: &Policy) -> bool {
    !policy.trusted_peers.is_empty() && host::peer_uri().is_some_and(|uri| policy.trusts(&uri))
}

/// Says whether the request is for another protocol. Envoy makes an upgrade of whatever method has the header.
// Why its bytes need no care before the worker has agreed: Envoy keeps them until 101, or to a CONNECT 2xx, and closes the tunnel after any other answer.
pub fn is_tunnel(headers: &Headers) -> bool {
    is_method(headers, b"CONNECT") || headers.get("upgrade").is_some_and(|upgrade| !upgrade.is_empty())
}

/// Says whether a request for another protocol has a body too, which its worker may take for what its path says.
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
pub fn spoofed(policy: &Policy, headers: &Headers) -> Vec<String> {
    if !has_picker(policy) {
        return headers.names().filter(|name| platform::is_ours(name)).map(str::to_owned).collect();
    }
    let is_stamped = |name: &str| platform::FAIRNESS.contains(&name) || platform::OBJECTIVE.contains(&name);
    let is_spoofed = |name: &str| is_stamped(name) || platform::is_ours(name) && !platform::chooses_workers(name);
    headers.names().filter(|name| is_spoofed(name)).map(str::to_owned).collect()
}

/// Says whether an endpoint picker of the same chain chooses workers.
pub fn has_picker(policy: &Policy) -> bool {
    policy.endpoint_picker == EndpointPicker::Theirs
}

/// Takes headers off.
pub fn strip(names: &[String]) {
    names.iter().for_each(|name| host::remove_request_header(name));
}

/// Tells the worker, and an endpoint picker, who sends the request.
pub fn tag_tenant(policy: &Policy, tenant: &str) {
    host::set_request_header(platform::TENANT, tenant);
    if has_picker(policy) {
        platform::FAIRNESS.iter().for_each(|header| host::set_request_header(header, tenant));
    }
}

/// Tells the worker, and an endpoint picker, how urgent it is.
pub fn tag_lane(policy: &Policy, lane: &Lane) {
    host::set_request_header(platform::LANE, &lane.name);
    host::set_request_header(platform::PRIORITY, &lane.priority.to_string());
    if has_picker(policy) {
        platform::OBJECTIVE.iter().for_each(|header| host::set_request_header(header, &lane.name));
    }
}

/// Tells the worker, and the proxy's routes, where the request goes.
pub fn tag_pool(pool: &Pool) {
    host::set_request_header(platform::POOL, &pool.name);
}

/// Tells the worker what the request was taken for.
pub fn tag_estimate(ask: &Ask) {
    host::set_request_header(platform::PROMPT_TOKENS, &ask.prompt.0.to_string());
    host::set_request_header(platform::OUTPUT_TOKENS, &ask.output.0.to_string());
}

/// Tells the proxy's cluster which worker to take.
pub fn tag_endpoint(endpoint: &Endpoint) {
    host::set_request_header(platform::ENDPOINT, &endpoint.header);
}

/// Tells the worker that the request would have been refused.
pub fn tag_would_reject(reason: &str) {
    host::set_request_header(platform::WOULD_REJECT, reason);
}
