//! What a request's headers say.
//!
//! The input is lines, one for each header, in the order of [`Lines`]; what is missing is empty.
//! - Headers laid out as a proxy does are found again.
//! - A path has the same plain form behind a detour, without a query and percent-encoded, and no empty or dotted segment.
//! - A tenant's name can be a header's value, is not empty, and is another one for another value.
//! - A name in a certificate's URI is a whole segment of it.
//! - A deadline is the whole part of a decimal number, or none.
//! - A lane is never above what its tenant may have; a tenant's record is one of those that the configuration makes.
//! - How an answer is written does not depend on the case of its headers.

use std::sync::OnceLock;

use admission_core::arrival::{Arrival, spoofed};
use admission_core::attributes::RequestAttributes;
use admission_core::headers::Headers;
use admission_core::identity::{UriName, tenant_name};
use admission_core::keys::{in_record, other_place};
use admission_core::pairs;
use admission_core::policy::{Plugin, Policy, Route};
use admission_core::request::{Api, plain_path};
use admission_core::terms::Terms;
use admission_core::usage::Form;

use crate::proxy;

/// The longest name of a tenant and what stands behind it when it was cut: a sign, a character's rest, 16 digits.
const LONGEST_NAME: usize = 128 + 4 + 17;

/// Values of headers.
struct Lines<'a> {
    path: &'a [u8],
    lane: &'a [u8],
    objective: &'a [u8],
    deadline: &'a [u8],
    tenant: &'a [u8],
    other_tenant: &'a [u8],
    uri: &'a [u8],
    content_type: &'a [u8],
    encoding: &'a [u8],
    model: &'a [u8],
}

/// See the head of this file.
pub fn target(data: &[u8]) {
    laid_out(data);
    let mut lines = data.split(|byte| *byte == b'\n');
    let mut next = || lines.next().unwrap_or_default();
    let lines = Lines {
        path: next(),
        lane: next(),
        objective: next(),
        deadline: next(),
        tenant: next(),
        other_tenant: next(),
        uri: next(),
        content_type: next(),
        encoding: next(),
        model: next(),
    };
    let path = String::from_utf8_lossy(lines.path);
    check_path(&path);
    check_tenants(lines.tenant, lines.other_tenant);
    check_uri(&String::from_utf8_lossy(lines.uri));
    let deadline = String::from_utf8_lossy(lines.deadline);
    check_deadline(deadline.trim_ascii());
    check_form(&String::from_utf8_lossy(lines.content_type), &String::from_utf8_lossy(lines.encoding));
    check_terms(&lines, &plain_path(&path));
}

/// As they are, and as lines make them.
fn laid_out(data: &[u8]) {
    for (name, value) in pairs::places(data).into_iter().flatten() {
        assert!(data.get(name).is_some() && data.get(value).is_some(), "beyond the end: {data:?}");
    }
    let lines: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
    let headers: Vec<_> = lines.iter().map(|line| (&line[..line.len() / 2], *line)).collect();
    let bytes = proxy::pairs(&headers);
    let places = pairs::places(&bytes).unwrap_or_default();
    let found: Vec<_> = places.into_iter().map(|(name, value)| (&bytes[name], &bytes[value])).collect();
    assert_eq!(found, headers);
}

fn check_path(path: &str) {
    let plain = plain_path(path);
    let segments: Vec<&str> = plain.split('/').collect();
    let (last, inner) = segments.split_last().map_or(("", &segments[..]), |(last, inner)| (*last, inner));
    assert!(inner.first() == Some(&""), "{path:?} is {plain:?}");
    assert!(inner.iter().skip(1).all(|segment| !["", ".", ".."].contains(segment)), "{path:?} is {plain:?}");
    assert!(![".", ".."].contains(&last), "{path:?} is {plain:?}");
    assert_eq!(plain_path(&format!("{path}?/../x")), plain, "{path:?}");
    assert_eq!(Api::of_path(path), Api::of_plain_path(&plain));
    if path.starts_with('/') {
        assert_eq!(plain_path(&format!("/a/./..{path}")), plain, "{path:?}");
    }
    if !path.contains(['%', '?', '#']) {
        let encoded: String = path.bytes().map(|byte| format!("%{byte:02x}")).collect();
        assert_eq!(plain_path(&encoded), plain, "{path:?}");
    }
}

fn check_tenants(one: &[u8], other: &[u8]) {
    let name = tenant_name(one);
    if let Some(name) = &name {
        assert!(!name.is_empty() && name.len() <= LONGEST_NAME, "{name:?}");
        assert!(!name.chars().any(char::is_control), "{name:?}");
    }
    assert_eq!(name.is_none(), one.trim_ascii().is_empty(), "{one:?}");
    let same = one.trim_ascii() == other.trim_ascii();
    assert_eq!(name == tenant_name(other), same, "{one:?} and {other:?}");
}

fn check_uri(uri: &str) {
    let whole = UriName { after: None };
    assert_eq!(whole.of(uri), Some(uri).filter(|uri| !uri.is_empty()));
    let prefix = "spiffe://cluster.local/ns/";
    if let Some(name) = (UriName { after: Some(prefix.to_owned()) }).of(uri) {
        let rest = uri.strip_prefix(prefix).and_then(|rest| rest.strip_prefix(name));
        assert!(!name.is_empty() && !name.contains('/'), "{uri:?}: {name:?}");
        assert!(rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')), "{uri:?}: {name:?}");
    }
}

fn check_deadline(text: &str) {
    let number = text.parse::<f64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'));
    match Arrival::deadline(text) {
        Some(millis) => {
            let number = number.unwrap_or_else(|| panic!("{text:?} is no number"));
            assert!(millis.0 >= 1 && (millis.0 as f64 - number.floor()).abs() <= number * 1e-15, "{text:?}: {millis}");
        }
        None => {
            let is_in_range = |number: f64| (1.0..1e18).contains(&number);
            assert!(text.starts_with('.') || text.ends_with('.') || !number.is_some_and(is_in_range), "{text:?}");
        }
    }
}

fn check_form(content_type: &str, encoding: &str) {
    let form = Form::of(Some(content_type), Some(encoding));
    let upper = (content_type.to_ascii_uppercase(), encoding.to_ascii_uppercase());
    assert_eq!(Form::of(Some(&upper.0), Some(&upper.1)), form, "{content_type:?} {encoding:?}");
    if encoding.is_empty() {
        assert_eq!(Form::of(Some(content_type), None), form, "{content_type:?}");
    }
}

fn check_terms(lines: &Lines<'_>, path: &str) {
    let policy = policy();
    let text = |line: &[u8]| String::from_utf8_lossy(line).into_owned();
    let given = |line: &[u8]| Some(text(line)).filter(|text| !text.is_empty());
    let arrival = read(policy, lines);
    let tenant = tenant_name(lines.tenant).unwrap_or_else(|| policy.default_tenant.clone());
    assert_eq!((&arrival.tenant, arrival.path.as_str()), (&tenant, path));
    assert_eq!(arrival.asked_lane.as_deref(), str::from_utf8(lines.lane).ok(), "a lane that is no text is none");
    assert_eq!(
        arrival.ttft_deadline,
        Arrival::deadline(str::from_utf8(lines.deadline).unwrap_or_default().trim_ascii())
    );
    assert!(!arrival.spoofed && !arrival.wrong_key, "{arrival:?}");
    let route = policy.route(arrival.place(None, None), Route::default());
    let terms = Terms::of(policy, &arrival, &route);
    let model = given(lines.model);
    let lane = terms.lane(policy, model.as_deref()).name.as_str();
    let highest = match arrival.tenant.as_str() {
        "acme" => "interactive",
        "night" => "batch",
        _ => "standard",
    };
    let rank = |name: &str| policy.lanes().position(|lane| lane.name == name);
    assert!(rank(lane) >= rank(highest), "{arrival:?} is in {lane}");
    if let Some(asked) = arrival.asked_lane.as_deref().filter(|asked| rank(asked) >= rank(highest)) {
        assert_eq!(lane, asked, "{arrival:?}");
    }
    let own = policy.keys.tenant(&arrival.tenant);
    let is_named = policy.tenant_names().any(|name| name == arrival.tenant);
    match in_record(&terms.tenant_key) {
        (_, Some(name)) => assert!(!is_named && name == arrival.tenant, "{}", terms.tenant_key),
        (record, None) => assert!(is_named && record == own, "{}", terms.tenant_key),
    }
    if let Some(other) = other_place(&terms.tenant_key) {
        assert_eq!(other_place(&other).as_deref(), Some(&*terms.tenant_key));
        assert_eq!(in_record(&other).1, None, "{other}");
    }
}

/// The arrival of a request with these headers, of which the proxy knows nothing more.
fn read(policy: &Policy, lines: &Lines<'_>) -> Arrival {
    let bytes = proxy::pairs(&[
        (b":path", lines.path),
        (b"x-lane", lines.lane),
        (b"x-llm-d-inference-objective", lines.objective),
        (b"x-llm-d-slo-ttft-ms", lines.deadline),
        (b"x-tenant", lines.tenant),
        (b"content-type", lines.content_type),
        (b"content-encoding", lines.encoding),
    ]);
    let headers = Headers::new(bytes);
    Arrival::read(policy, &headers, &Nothing, &spoofed(policy, &headers))
}

/// Attributes of a request of which the proxy knows none.
struct Nothing;

impl RequestAttributes for Nothing {
    fn dynamic_metadata(&self, _: &[String]) -> Option<Vec<u8>> {
        None
    }

    fn peer_uri(&self) -> Option<String> {
        None
    }

    fn route_metadata(&self) -> Option<Vec<u8>> {
        None
    }

    fn route_name(&self) -> Option<String> {
        None
    }

    fn virtual_host(&self) -> Option<String> {
        None
    }

    fn filter_state(&self, _: &str) -> Option<String> {
        None
    }
}

fn policy() -> &'static Policy {
    static POLICY: OnceLock<Policy> = OnceLock::new();
    POLICY.get_or_init(|| {
        let json = r#"{"tenant": {"sources": [{"header": "x-tenant"}]}, "lanes": [{"name": "interactive", "priority": 100}, {"name": "standard"}, {"name": "batch"}],
            "default_lane": "standard", "lane_header": "x-lane", "fairness_header": "x-user", "objectives": {"nightly": "batch", "chat": "interactive"},
            "lane_rules": [{"path_prefix": "/v1/embeddings", "lane": "batch"}, {"model": "chat-*", "lane": "interactive"}],
            "tiers": {"free": {"max_in_flight": 9, "max_lane": "standard"}},
            "tenants": {"acme": {"max_in_flight": 9}, "night": {"max_in_flight": 9, "max_lane": "batch"}, "*": {"tier": "free"}},
            "pools": [{"name": "llama", "max_in_flight": 100}]}"#;
        match Plugin::parse(json.as_bytes()) {
            Ok(Plugin::Filter(policy)) => *policy,
            other => panic!("{other:?}"),
        }
    })
}
