//! Warnings of what stands around a filter.

use serde_json::{Value, json};

use super::shipped::{Bootstrap, FILTER, MANAGER, POLICY, istio_named};
use super::{assert_silent, assert_warns, said, said_of};

#[test]
fn a_filter_that_is_not_loaded_again() {
    let place = format!("{FILTER}.failure_policy");
    let mut bootstrap = Bootstrap::shipped();
    bootstrap.filter()["failure_policy"] = "FAIL_OPEN".into();
    assert_warns(&bootstrap.0, &place, "FAIL_OPEN: after one trap a worker thread lets every request by");
    bootstrap.filter().as_object_mut().unwrap().remove("failure_policy");
    assert_warns(&bootstrap.0, &place, "FAIL_CLOSED (the default): after one trap a worker thread answers 503");
    let mut plugin = istio_named("WasmPlugin", "sluice");
    plugin["spec"]["failStrategy"] = "FAIL_CLOSE".into();
    assert_warns(&plugin, "spec.failStrategy", "FAIL_CLOSE: after one trap");
    let mut control = istio_named("EnvoyFilter", "sluice-control");
    let config =
        "/spec/configPatches/0/patch/value/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config/config";
    control.pointer_mut(config).unwrap()["failure_policy"] = "FAIL_CLOSED".into();
    assert_warns(&control, &format!("{}.failure_policy", CONTROL), "FAIL_CLOSED: after one trap");
}

const CONTROL: &str =
    "spec.configPatches[0].patch.value.filter_chains[0].filters[0].typed_config.http_filters[0].typed_config.config";

#[test]
fn a_filter_from_elsewhere_without_a_default() {
    let mut bootstrap = Bootstrap::shipped();
    let types =
        ["wasm.v3.Wasm", "lua.v3.Lua"].map(|kind| format!("type.googleapis.com/envoy.extensions.filters.http.{kind}"));
    let discovery = json!({"type_urls": types, "default_config": {"@type": types[1]}});
    let watched = json!({"name": "sluice", "config_discovery": discovery});
    let filters =
        bootstrap.0.pointer_mut(&format!("{}/http_filters", pointer(MANAGER))).unwrap().as_array_mut().unwrap();
    let place = filters.iter().position(|filter| filter["name"] == "sluice").unwrap();
    filters[place] = watched;
    assert_silent(&bootstrap.0);
    let discovery = format!("{MANAGER}.http_filters[{place}].config_discovery.default_config");
    bootstrap.0.pointer_mut(&pointer(&discovery)).unwrap().take();
    assert_warns(&bootstrap.0, &discovery, "the proxy is live and answers 500");
}

/// A path as JSON pointers write it.
fn pointer(path: &str) -> String {
    format!("/{}", path.replace(['.', '['], "/").replace(']', ""))
}

#[test]
fn a_body_that_the_proxy_cannot_hold() {
    let place = format!("{MANAGER}.route_config.virtual_hosts[0].routes[0].request_body_buffer_limit");
    let least = (1 << 20) + (1 << 20);
    let mut bootstrap = Bootstrap::shipped();
    bootstrap.route()["request_body_buffer_limit"] = least.into();
    assert_silent(&bootstrap.0);
    bootstrap.route()["request_body_buffer_limit"] = (least - 1).into();
    assert_warns(&bootstrap.0, &place, "2097151 is too little: a body that the filter holds would get 413");
    bootstrap.listener(0)["per_connection_buffer_limit_bytes"] = 32_768.into();
    assert_silent(&bootstrap.0);
    bootstrap.change_policy(|policy| policy["body"] = json!({"hold_limit": "4MiB"}));
    assert_warns(&bootstrap.0, &place, "at least 4227072 are needed, `body.hold_limit` (4194304) + one read");
    bootstrap.route().as_object_mut().unwrap().remove("request_body_buffer_limit");
    assert_warns(&bootstrap.0, &place, "is not set, so the connection's 32768 bytes hold");
    let host = bootstrap.manager().pointer_mut("/route_config/virtual_hosts/0").unwrap();
    host["request_body_buffer_limit"] = "5000000".into();
    assert_silent(&bootstrap.0);
}

#[test]
fn a_buffer_that_istio_patches_by_the_policy_beside_it() {
    let patch = istio_named("EnvoyFilter", "sluice-body-buffer");
    let idle = istio_named("EnvoyFilter", "sluice-idle-timeout");
    let mut plugin = istio_named("WasmPlugin", "sluice");
    assert_eq!(said_of(&format!("{patch}\n---\n{idle}\n---\n{plugin}")), [""; 0]);
    plugin["spec"]["pluginConfig"]["body"] = json!({"hold_limit": "2MiB"});
    let said = said_of(&format!("{patch}\n---\n{idle}\n---\n{plugin}"));
    let start =
        "warning: f, document 1: spec.configPatches[0].patch.value.request_body_buffer_limit: 2228224 is too little";
    assert!(matches!(&said[..], [one] if one.starts_with(start)), "{said:?}");
    // Alone it may belong to any policy.
    assert_silent(&patch);
}

#[test]
fn an_idle_timeout_that_is_too_short_or_none() {
    let place = format!("{MANAGER}.stream_idle_timeout");
    let route = format!("{MANAGER}.route_config.virtual_hosts[0].routes[0].route.idle_timeout");
    let mut bootstrap = Bootstrap::without_queues();
    for (timeout, words) in [("15s", "15s is too short"), ("0s", "0 means never")] {
        bootstrap.route()["route"]["idle_timeout"] = timeout.into();
        assert_warns(&bootstrap.0, &route, words);
    }
    // A route's own goes before the manager's.
    bootstrap.route()["route"]["idle_timeout"] = "15.5s".into();
    bootstrap.manager()["stream_idle_timeout"] = "0s".into();
    assert_silent(&bootstrap.0);
    bootstrap.route()["route"].as_object_mut().unwrap().remove("idle_timeout");
    assert_warns(&bootstrap.0, &place, "0 means never: a held request whose VM has died would hang for ever");
    bootstrap.manager()["stream_idle_timeout"] = "0.5s".into();
    assert_warns(&bootstrap.0, &place, "500ms is too short");
    // Five minutes unless set.
    bootstrap.manager().as_object_mut().unwrap().remove("stream_idle_timeout");
    assert_silent(&bootstrap.0);
}

#[test]
fn an_idle_timeout_that_ends_requests_while_they_wait() {
    let route = format!("{MANAGER}.route_config.virtual_hosts[0].routes[0].route.idle_timeout");
    let mut bootstrap = Bootstrap::without_queues();
    let policy = |bootstrap: &mut Bootstrap, hold: Value| {
        bootstrap.change_policy(|policy| {
            policy["lanes"][0]["queue"] = json!({});
            policy["lanes"][1]["queue"] = json!({"max_wait": "40s"});
            policy["pools"][0]["hold_when_empty"] = hold;
        });
    };
    bootstrap.route()["route"]["idle_timeout"] = "55s".into();
    policy(&mut bootstrap, Value::Null);
    assert_warns(
        &bootstrap.0,
        &route,
        "55s is too short: the proxy would end requests that may still wait; set it above 55s",
    );
    bootstrap.route()["route"]["idle_timeout"] = "56s".into();
    assert_silent(&bootstrap.0);
    policy(&mut bootstrap, "39s".into());
    assert_silent(&bootstrap.0);
    policy(&mut bootstrap, "45s".into());
    assert_warns(&bootstrap.0, &route, "the longest wait (45s) + 15s");
}

#[test]
fn an_idle_timeout_that_istio_patches_by_the_policies_beside_it() {
    let mut patch = istio_named("EnvoyFilter", "sluice-idle-timeout");
    patch["spec"]["configPatches"][0]["patch"]["value"]["typed_config"]["stream_idle_timeout"] = "60s".into();
    let mut plugin = istio_named("WasmPlugin", "sluice");
    plugin["spec"]["pluginConfig"]["lanes"][2]["aging"] = Value::Null;
    plugin["spec"]["pluginConfig"]["lanes"][2]["queue"] = json!({"max_wait": "44s"});
    assert_eq!(said_of(&format!("{patch}\n---\n{plugin}")), [""; 0]);
    plugin["spec"]["pluginConfig"]["lanes"][2]["queue"] = json!({"max_wait": "45s"});
    let said = said_of(&format!("{patch}\n---\n{plugin}"));
    assert!(matches!(&said[..], [one] if one.contains("stream_idle_timeout: 60s is too short")), "{said:?}");
}

#[test]
fn an_idle_timeout_that_no_patch_sets() {
    let plugin = istio_named("WasmPlugin", "sluice");
    let mut patch = istio_named("EnvoyFilter", "sluice-body-buffer");
    let control = istio_named("EnvoyFilter", "sluice-control");
    let said = said_of(&format!("{control}\n---\n{plugin}\n---\n{patch}"));
    let start =
        "warning: f, document 2: spec: no EnvoyFilter of this file sets `stream_idle_timeout`, and Istio sets none";
    assert!(matches!(&said[..], [one] if one.starts_with(start)), "{said:?}");
    patch["spec"]["configPatches"][0]["patch"]["value"]["route"] = json!({"idle_timeout": "300s"});
    assert_eq!(said_of(&format!("{plugin}\n---\n{patch}")), [""; 0], "a route's own");
    // Alone it may have its patches in another file.
    assert_silent(&plugin);
}

#[test]
fn an_idle_timeout_that_istio_patches() {
    let place = "spec.configPatches[0].patch.value";
    let mut patch = istio_named("EnvoyFilter", "sluice-idle-timeout");
    patch["spec"]["configPatches"][0]["patch"]["value"]["typed_config"]["stream_idle_timeout"] = "0s".into();
    assert_warns(&patch, &format!("{place}.typed_config.stream_idle_timeout"), "0 means never");
    let mut patch = istio_named("EnvoyFilter", "sluice-body-buffer");
    patch["spec"]["configPatches"][0]["patch"]["value"]["route"] = json!({"idle_timeout": "1s"});
    assert_warns(&patch, &format!("{place}.route.idle_timeout"), "1s is too short");
}

#[test]
fn circuit_breakers_below_what_the_pools_let_in() {
    let place = "static_resources.clusters[0].circuit_breakers";
    let mut bootstrap = Bootstrap::shipped();
    let pool = |bootstrap: &mut Bootstrap, field: &str, limit: u32| {
        bootstrap.change_policy(|policy| policy["pools"] = json!([{"name": "llama", field: limit}]));
    };
    // Three workers.
    pool(&mut bootstrap, "max_in_flight_per_worker", 1_365);
    assert_silent(&bootstrap.0);
    pool(&mut bootstrap, "max_in_flight_per_worker", 1_366);
    assert_warns(
        &bootstrap.0,
        place,
        "below the 4098 requests that the pools let in: max_connections (4096), max_pending",
    );
    bootstrap.cluster().as_object_mut().unwrap().remove("circuit_breakers");
    pool(&mut bootstrap, "max_in_flight", 1_024);
    assert_silent(&bootstrap.0);
    pool(&mut bootstrap, "max_in_flight", 1_025);
    assert_warns(&bootstrap.0, place, "max_requests (1024). Each is 1024 unless set");
    bootstrap.change_policy(|policy| {
        policy["pools"] =
            json!([{"name": "a", "max_in_flight": 1_000}, {"name": "b", "models": ["b"], "max_in_flight": 25}]);
    });
    assert_warns(&bootstrap.0, place, "below the 1025 requests");
    // Only what has priority HIGH is raised; HTTP/2 needs few connections.
    bootstrap.cluster()["circuit_breakers"] = json!({"thresholds": [{"priority": "HIGH", "max_connections": 9_999}]});
    assert_warns(&bootstrap.0, place, "max_connections (1024)");
    bootstrap.cluster()["circuit_breakers"] =
        json!({"thresholds": [{"max_pending_requests": 2_000, "max_requests": 2_000}]});
    assert_warns(&bootstrap.0, place, ": max_connections (1024). Each");
    bootstrap.cluster()["http2_protocol_options"] = json!({});
    assert_silent(&bootstrap.0);
    // A cluster that no route leads to carries nothing.
    let mut other = bootstrap.cluster().clone();
    other["name"] = "other".into();
    other.as_object_mut().unwrap().remove("circuit_breakers");
    bootstrap.0["static_resources"]["clusters"].as_array_mut().unwrap().push(other);
    assert_silent(&bootstrap.0);
    bootstrap.route()["route"] =
        json!({"weighted_clusters": {"clusters": [{"name": "other", "weight": 1}]}, "idle_timeout": "300s"});
    assert_warns(
        &bootstrap.0,
        "static_resources.clusters[1].circuit_breakers",
        "max_pending_requests (1024), max_requests",
    );
}

#[test]
fn a_route_that_callers_could_choose() {
    let mut bootstrap = Bootstrap::shipped();
    let by = |name: &str| json!([{"name": name, "string_match": {"exact": "cold"}}]);
    bootstrap.route()["match"]["headers"] = by("x-team");
    assert_silent(&bootstrap.0);
    bootstrap.route()["match"]["headers"] = by("X-Sluice-Pool");
    let place = format!("{MANAGER}.route_config.virtual_hosts[0].routes[0].match.headers[0].name");
    assert_warns(&bootstrap.0, &place, "callers who send \"x-sluice-pool\" are judged by this route");
    bootstrap.manager()["early_header_mutation_extensions"] =
        json!([{"typed_config": {"mutations": [{"remove": "x-sluice-pool"}]}}]);
    assert_silent(&bootstrap.0);
}

#[test]
fn a_tenants_header_that_callers_may_set() {
    let place = format!("{}.tenant.sources[0].header", POLICY.replace("http_filters[2]", "http_filters[1]"));
    let mut bare = Bootstrap::shipped();
    bare.filters().remove(0);
    assert_warns(&bare.0, &place, "nothing before this filter sets or removes \"x-tenant-id\"");
    let with = |filter: Value| {
        let mut bootstrap = Bootstrap::shipped();
        bootstrap.filters()[0] = filter;
        bootstrap.0
    };
    let filter = |kind: &str, fields: Value| {
        let mut config = fields;
        config["@type"] = format!("type.googleapis.com/envoy.extensions.filters.http.{kind}").into();
        json!({"name": "before", "typed_config": config})
    };
    assert_silent(&with(filter(
        "jwt_authn.v3.JwtAuthentication",
        json!({"claim_to_headers": [{"header_name": "X-Tenant-Id"}]}),
    )));
    assert_silent(&with(filter("ext_authz.v3.ExtAuthz", json!({}))));
    assert_silent(&with(filter("lua.v3.Lua", json!({}))));
    assert_silent(&with(filter("wasm.v3.Wasm", json!({"config": {"name": "theirs"}}))));
    assert_silent(&with(json!({"name": "from-elsewhere", "config_discovery": {}})));
    let place = format!("{POLICY}.tenant.sources[0].header");
    assert_warns(&with(filter("cors.v3.Cors", json!({}))), &place, "callers may name any tenant");
    let other = filter(
        "header_mutation.v3.HeaderMutation",
        json!({"mutations": {"request_mutations": [{"remove": "x-other"}]}}),
    );
    assert_warns(&with(other), &place, "callers may name any tenant");
}

#[test]
fn what_the_connection_manager_and_the_router_do_with_a_tenants_header() {
    let place = format!("{}.tenant.sources[0].header", POLICY.replace("http_filters[2]", "http_filters[1]"));
    let bare = || {
        let mut bootstrap = Bootstrap::shipped();
        bootstrap.filters().remove(0);
        bootstrap
    };
    // The router takes headers off last, when this filter has believed them.
    let mut bootstrap = bare();
    bootstrap.route()["request_headers_to_remove"] = json!(["x-tenant-id"]);
    assert_warns(&bootstrap.0, &place, "work only after this filter has read it");
    let mut bootstrap = bare();
    bootstrap.manager()["route_config"]["internal_only_headers"] = json!(["x-tenant-id"]);
    assert_silent(&bootstrap.0);
    let mut bootstrap = bare();
    bootstrap.manager()["early_header_mutation_extensions"] =
        json!([{"typed_config": {"mutations": [{"remove": "x-tenant-id"}]}}]);
    assert_silent(&bootstrap.0);
}

#[test]
fn a_wasm_plugin_before_authentication() {
    let mut plugin = istio_named("WasmPlugin", "sluice");
    plugin["spec"]["phase"] = "AUTHZ".into();
    assert_silent(&plugin);
    plugin["spec"]["phase"] = "AUTHN".into();
    assert_warns(&plugin, "spec.phase", "stands before Istio authenticates");
    plugin["spec"]["pluginConfig"]["tenant"]["sources"] = json!([]);
    assert_silent(&plugin);
}

#[test]
fn a_choice_of_worker_that_is_not_heeded() {
    let place = format!("{POLICY}.pools[0].pick_endpoint");
    let mut bootstrap = Bootstrap::shipped();
    let cluster = bootstrap.0["static_resources"]["clusters"][0].as_object_mut().unwrap();
    cluster.remove("load_balancing_policy").expect("the shipped cluster heeds it");
    assert_warns(&bootstrap.0, &place, "not heeded by static_resources.clusters[0]");
    let policy = |header: &str| {
        json!({"policies": [{"typed_extension_config": {"name": "envoy.load_balancing_policies.override_host", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
            "override_host_sources": [{"header": header}]}}}]})
    };
    bootstrap.cluster()["load_balancing_policy"] = policy("x-other");
    assert_warns(&bootstrap.0, &place, "x-gateway-destination-endpoint among its sources");
    bootstrap.cluster()["load_balancing_policy"] = policy("x-gateway-destination-endpoint");
    assert_silent(&bootstrap.0);
}

#[test]
fn a_control_role_that_others_reach_or_that_cannot_work() {
    let mut bootstrap = Bootstrap::shipped();
    let listener = "static_resources.listeners[1]";
    let filter = format!("{listener}.filter_chains[0].filters[0].typed_config.http_filters[0].typed_config.config");
    bootstrap.listener(1)["address"]["socket_address"]["address"] = "0.0.0.0".into();
    assert_warns(&bootstrap.0, &format!("{listener}.address"), "others than this machine may reach it");
    bootstrap.listener(1)["address"] = json!({"pipe": {"path": "/run/sluice.sock"}});
    assert_silent(&bootstrap.0);
    bootstrap.listener(1)["address"] = json!({"socket_address": {"address": "::1", "port_value": 15010}});
    assert_silent(&bootstrap.0);
    bootstrap.listener(1)["additional_addresses"] =
        json!([{"address": {"socket_address": {"address": "10.0.0.1", "port_value": 15010}}}]);
    assert_warns(&bootstrap.0, &format!("{listener}.additional_addresses[0].address"), "others than this machine");
    let mut bootstrap = Bootstrap::shipped();
    bootstrap.listener(1).as_object_mut().unwrap().remove("per_connection_buffer_limit_bytes");
    let place = format!("{listener}.per_connection_buffer_limit_bytes");
    assert_warns(&bootstrap.0, &place, "1048576 is too little");
    let mut bootstrap = Bootstrap::shipped();
    let config = "/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config/config";
    let config = bootstrap.listener(1).pointer_mut(config).unwrap().as_object_mut().unwrap();
    config.remove("allow_on_headers_stop_iteration");
    assert_warns(&bootstrap.0, &format!("{filter}.allow_on_headers_stop_iteration"), "every push would hang");
}

#[test]
fn a_control_role_in_a_wasm_plugin() {
    let mut plugin = istio_named("WasmPlugin", "sluice");
    plugin["spec"]["pluginConfig"] = json!({"role": "control", "token_sha256": "ab".repeat(32)});
    assert_warns(&plugin, "spec.pluginConfig", "the control role needs a listener of its own");
}

/// A route that `change` makes of the shipped one, in front of the latter.
fn with_route(change: impl FnOnce(&mut Value)) -> Bootstrap {
    let mut bootstrap = Bootstrap::shipped();
    let mut route = bootstrap.route().clone();
    route["name"] = "special".into();
    change(&mut route);
    let routes = bootstrap.manager().pointer_mut("/route_config/virtual_hosts/0/routes").unwrap();
    routes.as_array_mut().unwrap().insert(0, route);
    bootstrap
}

#[test]
fn a_route_that_loosens_for_any_who_choose_it() {
    let metadata = |says: Value| json!({"filter_metadata": {"sluice": says}});
    let by_header = json!({"prefix": "/", "headers": [{"name": "x-plan", "string_match": {"exact": "paid"}}]});
    let by_query = json!({"prefix": "/", "query_parameters": [{"name": "plan", "string_match": {"exact": "paid"}}]});
    let route = format!("{MANAGER}.route_config.virtual_hosts[0].routes[0]");
    let place = format!("{route}.metadata.filter_metadata.sluice");
    let loose =
        [json!({"enabled": false}), json!({"mode": "shadow"}), json!({"tier": "paid"}), json!({"background": true})];
    for says in loose {
        let of = |matched: &Value| {
            with_route(|route| (route["match"], route["metadata"]) = (matched.clone(), metadata(says.clone())))
        };
        assert_warns(&of(&by_header).0, &place, "callers choose this route by the header \"x-plan\"");
        assert_warns(&of(&by_query).0, &place, "callers choose this route by the query parameter \"plan\"");
        assert_silent(&of(&json!({"prefix": "/reports/"})).0);
        // An authentication filter writes the header.
        let mut set = of(&by_header);
        set.filters()[0]["typed_config"]["mutations"]["request_mutations"] =
            json!([{"remove": "x-tenant-id"}, {"remove": "x-plan"}]);
        assert_silent(&set.0);
        let mut host = of(&json!({"prefix": "/"}));
        host.manager()["route_config"]["virtual_hosts"][0]["domains"] = json!(["internal.example"]);
        assert_warns(&host.0, &place, "callers choose this route by their Host header");
    }
    for strict in [json!({"mode": "enforce", "max_lane": "batch"}), json!({"pool": "llama"})] {
        assert_silent(
            &with_route(|route| (route["match"], route["metadata"]) = (by_header.clone(), metadata(strict))).0,
        );
    }
    let mut named = with_route(|route| route["match"] = by_header.clone());
    named.change_policy(|policy| policy["routes"] = json!([{"match": {"route_name": "special"}, "mode": "shadow"}]));
    let [lifted, chosen] = &said(&named.0)[..] else { panic!("{:?}", said(&named.0)) };
    assert!(lifted.contains("routes[0].mode: lifts what is in force"), "{lifted}");
    assert!(
        chosen.contains(&format!("{route}.name: ")) && chosen.contains("so `mode: shadow` holds for any"),
        "{chosen}"
    );
    let mut hosts = Bootstrap::shipped();
    hosts.change_policy(|policy| policy["routes"] = json!([{"match": {"virtual_host": "internal"}, "enabled": false}]));
    assert_warns(
        &hosts.0,
        &format!("{POLICY}.routes[0].match.virtual_host"),
        "so `enabled: false` holds for any who write it",
    );
}

#[test]
fn a_route_that_the_filter_sees_too_early() {
    let place = |index: usize| format!("{MANAGER}.http_filters[{index}]");
    let jwt = |clears: bool| {
        json!({"name": "jwt", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
            "providers": {"own": {"issuer": "own", "clear_route_cache": clears, "claim_to_headers": [{"header_name": "x-tenant-id"}]}},
        }})
    };
    let lua = || json!({"name": "lua", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"}});
    let chain = |filter: Value, asked: bool, by_name: bool| {
        let mut bootstrap = Bootstrap::shipped();
        bootstrap.filters()[0] = filter;
        bootstrap.change_policy(|policy| {
            let matches = if by_name { json!({"route_name": "inference"}) } else { json!({"path_prefix": "/"}) };
            policy["routes"] = json!([{"match": matches, "lane": "batch"}]);
        });
        if !asked {
            bootstrap.filters().remove(1);
        }
        bootstrap.0
    };
    assert_warns(&chain(jwt(true), false, true), &place(0), "`clear_route_cache` has the proxy choose the route again");
    assert_warns(
        &chain(lua(), false, true),
        &place(0),
        "envoy.extensions.filters.http.lua.v3.Lua, where it changes a header,",
    );
    assert_silent(&chain(jwt(true), true, true));
    assert_silent(&chain(lua(), true, true));
    assert_silent(&chain(jwt(false), false, true));
    assert_silent(&chain(jwt(true), false, false));
}

#[test]
fn a_filter_that_is_in_its_chain_twice() {
    let mut bootstrap = Bootstrap::shipped();
    let second = bootstrap.filters()[2].clone();
    bootstrap.filters().insert(3, second);
    let place = FILTER.replace("http_filters[2]", "http_filters[3]");
    assert_warns(&bootstrap.0, &place, "a filter before it has the namespace \"sluice\" as well");
    bootstrap.change_policy(|policy| {
        policy["namespace"] = "other".into();
        policy["pools"][0]["max_in_flight"] = 96.into();
    });
    assert_silent(&bootstrap.0);
}

#[test]
fn two_listeners_whose_filters_have_one_name() {
    let mut bootstrap = Bootstrap::shipped();
    let mut second = bootstrap.0["static_resources"]["listeners"][0].clone();
    second["name"] = "second".into();
    bootstrap.0["static_resources"]["listeners"].as_array_mut().expect("listeners").push(second);
    assert_silent(&bootstrap.0);
    let last = bootstrap.0["static_resources"]["listeners"].as_array().expect("listeners").len() - 1;
    bootstrap.change_policy(|policy| policy["pools"][0]["max_in_flight"] = 90.into());
    let place = FILTER.replace("listeners[0]", &format!("listeners[{last}]"));
    assert_warns(&bootstrap.0, &place, "has the `root_id` \"sluice\" as ");
    let plugin = &mut bootstrap.filters()[2]["typed_config"]["config"];
    plugin["root_id"] = "first".into();
    assert_silent(&bootstrap.0);
}

#[test]
fn callers_that_pick_their_worker_beside_a_picker() {
    let mut bootstrap = Bootstrap::shipped();
    bootstrap.change_policy(|policy| {
        policy["endpoint_picker"] = "theirs".into();
        policy["pools"][0]["pick_endpoint"] = false.into();
    });
    assert_silent(&bootstrap.0);
    bootstrap.manager().as_object_mut().unwrap().remove("early_header_mutation_extensions");
    assert_warns(&bootstrap.0, &format!("{POLICY}.endpoint_picker"), "callers may choose their worker");
    let removes = json!({"name": "callers", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
        "mutations": {"request_mutations": [{"remove": "x-gateway-destination-endpoint-subset"}]}}});
    bootstrap.filters().insert(0, removes);
    let place = POLICY.replace("http_filters[2]", "http_filters[3]");
    assert_warns(&bootstrap.0, &format!("{place}.endpoint_picker"), "callers may choose their worker");
    let mutations = &mut bootstrap.filters()[0]["typed_config"]["mutations"]["request_mutations"];
    mutations.as_array_mut().unwrap().push(json!({"remove": "x-gateway-destination-endpoint"}));
    assert_silent(&bootstrap.0);
}
