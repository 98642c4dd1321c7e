//! What differs on some routes, by the configuration and by a route's own metadata.

use serde_json::{Value, json};
use wasm_tests::bootstrap::{route_without_prefix, virtual_hosts, worker_routes};
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::jwt;
use wasm_tests::redirector::Redirector;
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, reason_of, text_of};

/// Lanes `standard`, which is the default, and others by these names.
fn with_lanes(names: &[&str]) -> Setup {
    let lanes: Vec<Value> = ["standard"].iter().chain(names).map(|name| json!({"name": name})).collect();
    Setup::new(1, Wait::Unread).with("/lanes", lanes.into()).with("/default_lane", json!("standard"))
}

/// A route `/NAME/` with this metadata for the filter.
fn route(name: &str, metadata: Value) -> Value {
    let mut route = route_without_prefix(&format!("/{name}/"), "workers");
    route["metadata"] = json!({"filter_metadata": {"sluice": metadata}});
    route
}

/// Posts a chat request on the route `/NAME/`.
async fn post(rig: &Rig, route: &str, tenant: &str) -> reqwest::Response {
    rig.post_to(&format!("/{route}{CHAT}"), tenant, &[], chat(MODEL, 1, false).to_string()).await
}

#[tokio::test]
async fn a_route_is_told_by_its_name_before_its_path_before_its_host() {
    let routes = json!([
        {"match": {"virtual_host": "guests"}, "lane": "by-host"},
        {"match": {"path_prefix": "/named/v1"}, "lane": "by-longer-path"},
        {"match": {"path_prefix": "/named"}, "lane": "by-path"},
        {"match": {"route_name": "night"}, "lane": "by-name"},
        {"match": {"route_name": "night", "virtual_host": "guests"}, "lane": "by-both"},
    ]);
    let mut setup = with_lanes(&["by-host", "by-longer-path", "by-path", "by-name", "by-both"]).with("/routes", routes);
    let named = |prefix: &str| {
        let mut route = route_without_prefix(prefix, "workers");
        route["name"] = json!("night");
        route
    };
    let by_path = [named("/night/"), named("/named/night/"), route_without_prefix("/named/", "workers")];
    setup.virtual_hosts = virtual_hosts(&by_path);
    let mut guests = virtual_hosts(&by_path)[0].clone();
    (guests["name"], guests["domains"]) = (json!("guests"), json!(["guests.test"]));
    setup.virtual_hosts.as_array_mut().unwrap().push(guests);
    let rig = Rig::start(setup).await;
    for (host, prefix, lane) in [
        ("else.test", "", "standard"),
        ("guests.test", "", "by-host"),
        ("else.test", "/named/other", "by-path"),
        ("guests.test", "/named/other", "by-path"),
        ("guests.test", "/named/other/..//", "by-longer-path"),
        ("guests.test", "/named", "by-longer-path"),
        ("else.test", "/named/night", "by-name"),
        ("else.test", "/night", "by-name"),
        ("guests.test", "/night", "by-both"),
    ] {
        let answer =
            rig.post_to(&format!("{prefix}{CHAT}"), "acme", &[("host", host)], chat(MODEL, 1, false).to_string()).await;
        let at = format!("{host} {prefix}");
        let known = !prefix.contains("other");
        assert!(answer.status() == 200 || !known, "{at}: {}", answer.status());
        eventually("it is counted", async || {
            let counted = rig.count("sluice_requests_total", &[("lane", lane)]).await;
            (counted > 0).then_some(()).ok_or(at.clone())
        })
        .await;
        if known {
            assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some(lane), "{at}");
        }
    }
}

#[tokio::test]
async fn every_field_holds_in_a_routes_own_metadata() {
    let mut setup = with_lanes(&["slow"])
        .with("/pools/0/models", json!(["nobody-names-it"]))
        .with("/tiers", json!({"closed": {"requests_per_minute": 1}, "slow": {"max_lane": "slow"}}));
    setup.policy["pools"].as_array_mut().unwrap().push(json!({"name": "any", "max_in_flight": 9}));
    let metadata = [
        ("lane", json!({"lane": "slow"})),
        ("highest", json!({"max_lane": "slow"})),
        ("pool", json!({"pool": "main"})),
        ("tier", json!({"tier": "closed"})),
        ("shadow", json!({"tier": "closed", "mode": "shadow"})),
        ("open", json!({"tier": "closed", "enabled": false})),
        ("judged", json!({"tier": "closed", "enabled": true, "mode": "enforce"})),
    ];
    let routes: Vec<Value> = metadata.into_iter().map(|(name, metadata)| route(name, metadata)).collect();
    setup.virtual_hosts = virtual_hosts(&routes);
    setup.wait = Wait::AtHeaders;
    let rig = Rig::start(setup).await;
    for (name, lane, pool) in [("lane", "slow", "any"), ("highest", "slow", "any"), ("pool", "standard", "main")] {
        assert_eq!(post(&rig, name, "acme").await.status(), 200);
        assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some(lane), "{name}");
        assert_eq!(rig.seen("x-sluice-pool").as_deref(), Some(pool), "{name}");
    }
    let asked = rig.post_to(&format!("/highest{CHAT}"), "acme", &[("x-sluice-lane", "standard")], "{}").await;
    assert_eq!(asked.status(), 400, "the worker's own");
    assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some("slow"), "whatever it asks for");
    let mut statuses = Vec::new();
    for name in ["tier", "tier", "judged", "shadow", "open"] {
        let answer = post(&rig, name, "limited").await;
        statuses.push((answer.status().as_u16(), text_of(&answer, "x-sluice-would-reject")));
    }
    let (ok, no) = ((200, String::new()), (429, String::new()));
    let would = (200, "tenant_request_rate".to_owned());
    assert_eq!(statuses, [ok.clone(), no.clone(), no, would, ok]);
    rig.counts("sluice_route_metadata_errors_total", &[], 0).await;
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn metadata_goes_before_the_configuration_field_by_field() {
    let routes = json!([{"match": {"path_prefix": "/"}, "lane": "configured", "mode": "shadow"}]);
    let mut setup = with_lanes(&["configured", "own"]).with("/routes", routes);
    setup.virtual_hosts = virtual_hosts(&[route("own", json!({"lane": "own"}))]);
    let rig = Rig::start(setup.with("/tenants/capped", json!({"requests_per_minute": 1}))).await;
    for (route, lane) in [("own", "own"), ("v1/..", "configured")] {
        let answer = post(&rig, route, "capped").await;
        assert_eq!(answer.status(), 200);
        assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some(lane), "{route}");
    }
    let answer = post(&rig, "own", "capped").await;
    assert_eq!(text_of(&answer, "x-sluice-would-reject"), "tenant_request_rate", "the mode of the configuration");
}

#[tokio::test]
async fn a_route_that_is_not_judged_counts_nothing_and_still_strips() {
    for wait in [Wait::Unread, Wait::AtHeaders, Wait::BodyHeld] {
        let mut setup =
            Setup::new(1, wait).with("/routes", json!([{"match": {"path_prefix": "/free/"}, "enabled": false}]));
        setup.virtual_hosts = virtual_hosts(&[route_without_prefix("/free/", "workers")]);
        let rig = Rig::start(setup.with("/tenants/capped", json!({"requests_per_minute": 1}))).await;
        let spoofed: [(&str, &[u8]); 5] = [
            ("x-tenant-id", b"capped"),
            ("x-sluice-tenant", b"me"),
            ("x-sluice-pool", b"mine"),
            ("x-gateway-destination-endpoint", b"10.0.0.1:80"),
            ("x-mine", b"stays"),
        ];
        let body = chat(MODEL, 1, false).to_string();
        let request = request_bytes(&format!("/free{CHAT}"), &spoofed, body.as_bytes(), wait == Wait::Unread);
        for _ in 0..3 {
            assert_eq!(RawCaller::send(rig.address, &request).await.status().await, Some(200), "{wait:?}");
        }
        let stats = rig.worker.stats();
        let ours: Vec<_> = stats.last_headers.keys().filter(|name| name.starts_with("x-")).collect();
        assert!(!ours.iter().any(|name| name.starts_with("x-sluice-") || name.starts_with("x-gateway-")), "{ours:?}");
        assert_eq!((stats.last_headers["x-mine"].as_str(), stats.last_body.as_str()), ("stays", body.as_str()));
        rig.counts("sluice_requests_total", &[], 0).await;
        assert_eq!(rig.state().await["members"], json!([]), "{wait:?}: nothing was decided");
        assert_eq!(rig.ask("capped", &[]).await.0, 200, "{wait:?}");
        assert_eq!(rig.ask("capped", &[]).await, (429, "tenant_request_rate".to_owned()), "elsewhere it is judged");
    }
}

/// Metadata that cannot be read, and where its problem is.
fn malformed() -> Vec<(Value, &'static str)> {
    let deep = (0..12).fold(json!("end"), |inner, _| json!({"deeper": [inner, null]}));
    let plain = (0..12).fold(json!("end"), |inner, _| json!({"deeper": [inner, 1]}));
    vec![
        (json!({"lane": "no-such"}), "lane"),
        (json!({"lane": 5}), "lane"),
        (json!({"lane": 1e308, "pool": "main"}), "lane"),
        (json!({"lane": {"name": "slow"}}), "lane"),
        (json!({"lane": ["slow"]}), "lane"),
        (json!({"lane": true}), "lane"),
        (json!({"lane": ""}), "lane"),
        (json!({"pool": "x".repeat(100_000)}), "pool"),
        (json!({"mode": "off"}), "mode"),
        (json!({"enabled": "no"}), "enabled"),
        (json!({"enabled": 0}), "enabled"),
        (json!({"enabled": {}}), "enabled"),
        (json!({"match": {"path_prefix": "/"}, "lane": "slow"}), "match"),
        (json!({"lanes": "slow"}), "lanes"),
        (json!({"": "", "\u{0}\u{7f}é": 1}), "unknown field"),
        (json!({}), "changes nothing"),
        (json!({"unknown": plain}), "unknown"),
        // The proxy hands on nothing of what holds a null.
        (json!({"lane": "slow", "pool": null, "other": deep}), "must be an object"),
    ]
}

#[tokio::test]
async fn metadata_that_cannot_be_read_is_left_aside_counted_and_told_once() {
    let mut setup = with_lanes(&["slow"]);
    let routes = malformed().into_iter().enumerate();
    let routes: Vec<Value> = routes.map(|(index, (metadata, _))| route(&format!("m{index}"), metadata)).collect();
    setup.virtual_hosts = virtual_hosts(&routes);
    let rig = Rig::start(setup).await;
    let line = "the metadata `sluice` of a route is left aside: ";
    for (index, (metadata, place)) in malformed().into_iter().enumerate() {
        let before = rig.envoy.log().matches(line).count();
        let mut told = Vec::new();
        for _ in 0..3 {
            let answer = post(&rig, &format!("m{index}"), "acme").await;
            assert_eq!((answer.status().as_u16(), reason_of(&answer).as_str()), (200, ""), "{metadata}");
            assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some("standard"), "{metadata}: the plugin's own policy");
            told.push(rig.envoy.log().split(line).skip(before + 1).map(str::to_owned).collect::<Vec<_>>());
        }
        rig.counts("sluice_route_metadata_errors_total", &[], 3 * (index as u64 + 1)).await;
        assert!(told[0].iter().any(|text| text.starts_with(place)), "{metadata}: {told:?}");
        assert_eq!((&told[1], &told[2]), (&told[0], &told[0]), "{metadata}: a content is told once");
    }
    let told = rig.envoy.log().matches(line).count();
    assert_eq!(post(&rig, "m0", "acme").await.status(), 200);
    assert_eq!(rig.envoy.log().matches(line).count(), told, "others between do not make it told again");
    rig.counts("sluice_requests_total", &[("lane", "standard")], 3 * malformed().len() as u64 + 1).await;
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// Metadata that is no struct, or is not ours, says nothing.
#[tokio::test]
async fn routes_without_metadata_or_a_route_are_no_errors() {
    let mut other = route_without_prefix("/other/", "workers");
    other["metadata"] = json!({"filter_metadata": {"other": {"lane": "slow"}}});
    let mut setup = with_lanes(&["slow"]).with("/routes", json!([{"match": {"route_name": "none"}, "lane": "slow"}]));
    setup.virtual_hosts = json!([{"name": "all", "domains": ["*"], "routes": [other, worker_routes()[1]]}]);
    setup.virtual_hosts[0]["routes"][1]["match"] = json!({"prefix": "/v1/"});
    let rig = Rig::start(setup).await;
    for (name, status) in [("other", 200), ("nowhere", 404)] {
        assert_eq!(post(&rig, name, "acme").await.status(), status);
    }
    assert_eq!(rig.ask("acme", &[]).await.0, 200);
    rig.counts("sluice_route_metadata_errors_total", &[], 0).await;
    rig.counts("sluice_requests_total", &[("lane", "standard")], 3).await;
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// A verified claim chooses the route, and with it the tier. The route before authentication counts unless a filter between asks for the new one.
#[tokio::test]
async fn a_route_chosen_by_a_claim_is_the_one_that_counts() {
    let asks: [(&str, Option<Value>); 3] = [
        ("nothing between", None),
        (
            "as shipped",
            Some(json!({
                "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
                "mutations": {"request_mutations": [{"remove": "x-sluice-nothing"}]},
            })),
        ),
        ("authorization", Some(json!({"@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"}))),
    ];
    for (between, filter) in asks {
        let mut setup = Setup::new(1, Wait::Unread)
            .with("/tiers", json!({"free": {"requests_per_minute": 1}, "paid": {"requests_per_minute": 3}}));
        let mut paid = worker_routes()[1].clone();
        paid["match"] = json!({"prefix": "/", "headers": [{"name": "x-plan", "string_match": {"exact": "paid"}}]});
        paid["metadata"] = json!({"filter_metadata": {"sluice": {"tier": "paid"}}});
        let mut free = worker_routes()[1].clone();
        free["metadata"] = json!({"filter_metadata": {"sluice": {"tier": "free"}}});
        setup.virtual_hosts = virtual_hosts(&[paid, free]);
        setup.filters_before = vec![jwt::filter(&json!({
            "clear_route_cache": true, "claim_to_headers": [{"claim_name": "plan", "header_name": "x-plan"}],
        }))];
        setup.filters_before.extend(filter.map(|config| json!({"name": "asks", "typed_config": config})));
        let rig = Rig::start(setup).await;
        let token = format!("Bearer {}", jwt::token(&json!({"iss": "test", "plan": "paid", "exp": 4_000_000_000_u64})));
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(rig.ask("acme", &[("authorization", &token)]).await.0);
        }
        let seen = if between == "nothing between" { [200, 429, 429, 429] } else { [200, 200, 200, 429] };
        assert_eq!(statuses, seen, "{between}");
        assert_eq!(
            rig.ask("acme", &[]).await.0,
            if seen[1] == 200 { 200 } else { 429 },
            "{between}: no token, so free"
        );
        rig.nothing_trapped().await;
    }
}

/// Two filters of one namespace in a chain would have a request wait for itself: the second one lets it pass, with what the first has put on.
#[tokio::test]
async fn a_filter_that_is_in_its_chain_twice_judges_once() {
    for wait in [Wait::Unread, Wait::AtHeaders, Wait::BodyHeld] {
        let mut setup = Setup::new(1, wait).with("/tenants/one", json!({"max_in_flight": 1, "requests_per_minute": 2}));
        setup.twice = true;
        let rig = Rig::start(setup).await;
        for _ in 0..2 {
            assert_eq!(rig.ask("one", &[("x-sluice-pool", "spoofed")]).await.0, 200, "{wait:?}");
            assert_eq!(rig.seen("x-sluice-tenant").as_deref(), Some("one"), "{wait:?}");
            rig.nothing_is_held().await;
        }
        assert_eq!(rig.ask("one", &[]).await, (429, "tenant_request_rate".to_owned()), "{wait:?}: counted once each");
        // Where headers go on first, those of the refused one did.
        rig.counts("sluice_judged_twice_total", &[], if wait == Wait::BodyHeld { 3 } else { 2 }).await;
        assert!(rig.envoy.log().contains("another filter of the namespace"), "{wait:?}");
        rig.nothing_trapped().await;
    }
}

/// After a redirect within the proxy the headers that the first pass has put on are no caller's: the second route's rules hold in full.
#[tokio::test]
async fn a_redirect_within_the_proxy_is_judged_by_its_route() {
    let tiers = json!({"first": {"requests_per_minute": 9}, "second": {"requests_per_minute": 5}});
    let mut setup =
        Setup::new(1, Wait::Unread).with("/tiers", tiers).with("/tenants/one", json!({"requests_per_minute": 1}));
    let mut first = route("first", json!({"tier": "first"}));
    first["route"]["internal_redirect_policy"] = json!({"redirect_response_codes": [307], "max_internal_redirects": 1});
    let redirector = Redirector::start(&format!("http://x/second{CHAT}")).await;
    first["route"]["cluster"] = json!("redirector");
    setup.clusters = vec![("redirector", redirector.address())];
    setup.virtual_hosts = virtual_hosts(&[first, route("second", json!({"tier": "second"}))]);
    let rig = Rig::start(setup).await;
    for number in 0..5 {
        assert_eq!(post(&rig, "first", "one").await.status(), 200, "{number}");
        assert_eq!(rig.seen("x-sluice-tenant").as_deref(), Some("one"));
        rig.nothing_is_held().await;
    }
    let refused = post(&rig, "first", "one").await;
    assert_eq!(
        (refused.status().as_u16(), reason_of(&refused).as_str()),
        (429, "tenant_request_rate"),
        "the second route's rate"
    );
    // What a caller sends is the caller's all the same.
    let answer = rig
        .post_to(&format!("/second{CHAT}"), "one", &[("x-sluice-pool", "main")], chat(MODEL, 1, false).to_string())
        .await;
    assert_eq!(answer.status(), 200, "the tenant's own rate, of which nothing was spent");
    rig.nothing_trapped().await;
}
