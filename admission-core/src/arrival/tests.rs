use serde_json::{Value, json};

use super::*;
use crate::policy::Plugin;
use crate::routes::Routes;

/// Attributes of a request besides its headers.
#[derive(Default)]
struct Proxy {
    metadata: Option<&'static str>,
    peer: Option<&'static str>,
    route_metadata: Option<Vec<u8>>,
    route_name: Option<&'static str>,
}

impl RequestAttributes for Proxy {
    fn dynamic_metadata(&self, path: &[String]) -> Option<Vec<u8>> {
        assert_eq!(path, ["jwt", "tenant"]);
        self.metadata.map(Into::into)
    }

    fn peer_uri(&self) -> Option<String> {
        self.peer.map(Into::into)
    }

    fn route_metadata(&self) -> Option<Vec<u8>> {
        self.route_metadata.clone()
    }

    fn route_name(&self) -> Option<String> {
        self.route_name.map(Into::into)
    }

    fn virtual_host(&self) -> Option<String> {
        None
    }

    fn filter_state(&self, _: &str) -> Option<String> {
        None
    }
}

fn policy(more: &Value) -> Policy {
    let mut json = json!({
        "lanes": [{"name": "chat", "priority": 1}, {"name": "batch"}],
        "tenant": {"sources": [
            {"metadata": ["jwt", "tenant"]}, {"certificate": {"after": "spiffe://cluster.local/ns/"}}, {"header": "x-tenant"},
            // The digest of "change-me".
            {"api_key": {"header": "x-key", "sha256": {"e2186dbdb1bb4193608605e84f33208765b5693b55edd4f730a719a100eeea6f": "keyed"}}},
        ], "default": "anonymous"},
        "lane_header": "x-sluice-lane",
        "pools": [{"name": "p", "max_in_flight": 9}],
    });
    let fields = json.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.to_string().as_bytes()) else { panic!("{json}") };
    *policy
}

fn read(policy: &Policy, headers: &Headers, proxy: &Proxy) -> Arrival {
    Arrival::read(policy, headers, proxy, &spoofed(policy, headers))
}

#[test]
fn the_first_source_that_names_a_tenant_wins() {
    let policy = policy(&json!({}));
    let headers = Headers::from_iter([("x-tenant", "by-header"), ("x-key", "change-me")]);
    let keyed = Headers::from_iter([("x-key", "change-me")]);
    let peer = Some("spiffe://cluster.local/ns/by-peer/sa/web");
    for (headers, proxy, expected) in [
        (&headers, Proxy { metadata: Some("by-filter"), peer, ..Proxy::default() }, "by-filter"),
        (&headers, Proxy { peer, ..Proxy::default() }, "by-peer"),
        (&headers, Proxy { peer: Some("spiffe://elsewhere/ns/a"), ..Proxy::default() }, "by-header"),
        (&keyed, Proxy::default(), "keyed"),
        (&Headers::default(), Proxy::default(), "anonymous"),
    ] {
        let arrival = read(&policy, headers, &proxy);
        assert_eq!((arrival.tenant.as_str(), arrival.wrong_key), (expected, false));
    }
    let arrival = read(&policy, &Headers::from_iter([("x-key", "guessed")]), &Proxy::default());
    assert_eq!((arrival.tenant.as_str(), arrival.wrong_key), ("anonymous", true));
}

#[test]
fn headers_describe_the_body_and_the_wishes() {
    let policy = policy(&json!({}));
    let headers = Headers::from_iter([
        (":path", "/v1//chat/./completions?x=1"),
        ("content-type", "Application/JSON; charset=utf-8"),
        ("content-length", "300"),
        ("content-encoding", "identity"),
        ("x-sluice-lane", "batch"),
        ("x-sluice-no-queue", "TRUE"),
        ("x-slo-ttft-ms", " 900 "),
        ("x-llm-d-slo-ttft-ms", "1500.5"),
        ("x-gateway-inference-objective", "older"),
        ("x-llm-d-inference-objective", "newer"),
    ]);
    let arrival = read(&policy, &headers, &Proxy::default());
    assert_eq!((arrival.path.as_str(), arrival.api), ("/v1/chat/completions", Api::Chat));
    assert_eq!((arrival.says_json, arrival.body_bytes, arrival.encoded), (true, Some(300), false));
    assert_eq!((arrival.asked_lane.as_deref(), arrival.no_queue, arrival.spoofed), (Some("batch"), true, false));
    assert_eq!(arrival.ttft_deadline, Some(Millis(1_500)));
    assert_eq!(arrival.objectives, ["newer", "older"]);
    let headers =
        Headers::from_iter([("content-encoding", "gzip"), ("content-type", "text/plain"), ("x-sluice-pool", "p")]);
    let arrival = read(&policy, &headers, &Proxy::default());
    assert_eq!((arrival.encoded, arrival.says_json, arrival.spoofed), (true, false, true));
}

#[test]
fn a_callers_headers_for_the_platform_go_and_a_pickers_stay() {
    let all = [
        "x-sluice-pool",
        "x_sluice_pool",
        "x-gateway-destination-endpoint",
        "x-llm-d-inference-objective",
        "accept",
        "x-gateway-inference-fairness-id",
    ];
    let headers = Headers::from_iter(all.map(|name| (name, "a")));
    assert_eq!(spoofed(&policy(&json!({})), &headers), all[..3]);
    let theirs = policy(&json!({"endpoint_picker": "theirs"}));
    assert_eq!(spoofed(&theirs, &headers), [all[0], all[1], all[3], all[5]]);
    assert!(has_picker(&theirs));
}

#[test]
fn an_upgrade_or_a_connect_is_for_another_protocol() {
    let of = |pairs: &[(&'static str, &'static str)]| {
        let headers: Headers = pairs.iter().copied().collect();
        (is_tunnel(&headers), has_body_too(&headers))
    };
    assert_eq!(of(&[(":method", "POST")]), (false, true));
    assert_eq!(of(&[(":method", "GET"), ("upgrade", "websocket")]), (true, false));
    assert_eq!(of(&[(":method", "GET"), ("upgrade", "")]), (false, false));
    assert_eq!(of(&[(":method", "CONNECT"), ("content-length", "0")]), (true, false));
    assert_eq!(of(&[(":method", "GET"), ("upgrade", "h2c"), ("content-length", "5")]), (true, true));
    assert_eq!(of(&[(":method", "GET"), ("upgrade", "h2c"), ("transfer-encoding", "chunked")]), (true, true));
}

#[test]
fn only_trusted_peers_may_have_set_headers_of_ours() {
    let trusting = policy(&json!({"trust_tags_from": {"spiffe": ["spiffe://cluster.local/ns/edge/sa/gateway"]}}));
    for (peer, expected) in [("spiffe://cluster.local/ns/edge/sa/gateway", true), ("spiffe://elsewhere", false)] {
        let proxy = Proxy { peer: Some(peer), ..Proxy::default() };
        assert_eq!(comes_from_trusted(&trusting, &proxy), expected);
        assert!(!comes_from_trusted(&policy(&json!({})), &proxy), "nobody is trusted by default");
    }
}

#[test]
fn what_is_wrong_with_a_routes_metadata_is_said_once_and_seen_each_time() {
    let policy = policy(&json!({"routes": [{"match": {"route_name": "reports"}, "lane": "batch"}]}));
    let routes = Routes::default();
    let arrival = read(&policy, &Headers::default(), &Proxy::default());
    let find = |proxy: &Proxy| {
        let found = routes.find(&policy, &arrival, &routes.locate(&policy, proxy));
        (found.route.lane, found.is_unread, found.problems)
    };
    let named = |metadata: &[(&str, &str)]| {
        let route_metadata = Some(metadata.iter().copied().collect::<Headers>().laid_out());
        Proxy { route_metadata, route_name: Some("reports"), ..Proxy::default() }
    };
    let lane_of = |lane| policy.lane_named(lane);
    assert_eq!(find(&Proxy::default()), (None, false, vec![]));
    let by_name = Proxy { route_name: Some("reports"), ..Proxy::default() };
    assert_eq!(find(&by_name), (lane_of("batch"), false, vec![]));
    assert_eq!(find(&named(&[("lane", "chat")])), (lane_of("chat"), false, vec![]));
    let wrong = named(&[("lane", "none")]);
    let (lane, is_unread, problems) = find(&wrong);
    assert_eq!((lane, is_unread, problems.len()), (lane_of("batch"), true, 1), "{problems:?}");
    assert_eq!(find(&wrong), (lane_of("batch"), true, vec![]));
}
