//! A request's headers: what they say, what is taken off, what is put on.

use admission_core::hash;
use admission_core::identity::Source;
use admission_core::intake::Arrival;
use admission_core::policy::{Lane, Policy, Pool};
use admission_core::request::Api;
use admission_core::units::Tokens;

use sha2::{Digest, Sha256};

use crate::host;

/// Headers beginning so are ours alone.
const OUR_PREFIX: &str = "x-sluice-";

/// Headers by which the platform, and nobody else, chooses a worker.
const ENDPOINT_HEADERS: [&str; 3] = [
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-served",
    "x-gateway-destination-endpoint-subset",
];

/// Longest name of a tenant that is told to workers as it is, in bytes.
const LONGEST_TENANT: usize = 128;

/// Reads the current request's headers; they cannot be read again later.
pub fn read(policy: &Policy) -> Arrival {
    let named = policy.tenant_sources.iter().find_map(tenant);
    let encoding = host::request_header("content-encoding").unwrap_or_default();
    Arrival {
        tenant: named.unwrap_or_else(|| policy.default_tenant.clone()),
        asked_lane: policy.lane_header.as_ref().and_then(|header| host::request_header_text(header)),
        api: Api::of_path(&String::from_utf8_lossy(&host::request_header(":path").unwrap_or_default())),
        body_bytes: host::request_header_text("content-length").and_then(|length| length.parse().ok()),
        encoded: !encoding.is_empty() && !encoding.eq_ignore_ascii_case(b"identity"),
    }
}

fn tenant(source: &Source) -> Option<String> {
    match source {
        Source::Metadata(path) => tenant_name(&host::dynamic_metadata(path)?),
        Source::Certificate(name) => tenant_name(name.of(&host::peer_uri()?)?.as_bytes()),
        Source::Header(header) => tenant_name(&host::request_header(header)?),
        Source::ApiKey(keys) => {
            let value = host::request_header(&keys.header)?;
            let key = value.strip_prefix(keys.prefix.as_bytes())?;
            keys.tenant(&Sha256::digest(key).into()).map(str::to_owned)
        }
    }
}

/// Whatever is no plain text is escaped: it still tells one tenant from another, and cannot break the header that tells
/// the worker.
fn tenant_name(value: &[u8]) -> Option<String> {
    let value = value.trim_ascii();
    let plain = str::from_utf8(value).ok().filter(|text| !text.chars().any(char::is_control));
    let name = plain.map_or_else(|| value.escape_ascii().to_string(), str::to_owned);
    match name.char_indices().find(|(end, _)| *end >= LONGEST_TENANT) {
        // The rest still tells one tenant from another.
        Some((end, _)) => Some(format!("{}#{:016x}", name.get(..end)?, hash::stable(value))),
        None => (!name.is_empty()).then_some(name),
    }
}

/// Whether the request asks for another protocol. Only by GET: workers take a POST for what its path says, whatever
/// else its headers ask for.
pub fn is_upgrade() -> bool {
    host::request_header(":method").is_some_and(|method| method == b"GET") && host::request_header("upgrade").is_some()
}

/// Takes off everything that a caller must not say for the platform.
pub fn strip_spoofed() {
    for name in host::request_header_names() {
        if name.starts_with(OUR_PREFIX) || ENDPOINT_HEADERS.contains(&name.as_str()) {
            host::remove_request_header(&name);
        }
    }
}

/// Tells the worker who sends the request and how urgent it is.
pub fn tag_sender(tenant: &str, lane: &Lane) {
    host::set_request_header("x-sluice-tenant", tenant);
    host::set_request_header("x-sluice-lane", &lane.name);
    host::set_request_header("x-sluice-priority", &lane.priority.to_string());
}

/// Tells the worker, and the proxy's routes, where the request goes.
pub fn tag_pool(pool: &Pool) {
    host::set_request_header("x-sluice-pool", &pool.name);
}

/// Tells the worker what the prompt was taken to be.
pub fn tag_prompt(prompt: Tokens) {
    host::set_request_header("x-sluice-prompt-tokens", &prompt.0.to_string());
}
