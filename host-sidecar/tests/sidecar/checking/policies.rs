//! Warnings of what a policy says.

use serde_json::{Value, json};

use super::shipped::{Bootstrap, FILTER, POLICY, istio_named};
use super::{assert_silent, assert_warns, said};

fn policy(pools: Value) -> Value {
    json!({"pools": pools})
}

#[test]
fn a_cap_above_all_pools_together() {
    let mut config =
        policy(json!([{"name": "a", "max_in_flight": 8}, {"name": "b", "models": ["b"], "max_in_flight": 16}]));
    config["tiers"] = json!({"paid": {"max_in_flight": 24}});
    config["tenants"] = json!({"acme": {"tier": "paid", "max_in_flight": 9}, "*": {"max_in_flight": 1}});
    assert_silent(&config);
    config["tiers"]["paid"]["max_in_flight"] = 25.into();
    assert_warns(&config, "tiers.paid.max_in_flight", "25 never binds: all `pools` together let in 24");
    config["tiers"]["paid"]["max_in_flight"] = 1.into();
    config["tenants"]["acme"]["max_in_flight"] = 25.into();
    assert_warns(&config, "tenants.acme.max_in_flight", "25 never binds");
    // With so many workers as nobody knows, nothing can be said.
    config["pools"][0] = json!({"name": "a", "max_in_flight_per_worker": 8});
    assert_silent(&config);
}

#[test]
fn a_ceiling_above_that_of_a_higher_lane() {
    let lanes = |standard: f64, batch: i32| {
        let mut config = policy(json!([{"name": "a", "max_in_flight": 8}]));
        config["lanes"] = json!([
            {"name": "chat", "priority": 100, "ceiling": 1.2}, {"name": "standard", "ceiling": standard},
            {"name": "batch", "priority": batch},
        ]);
        config
    };
    assert_silent(&lanes(1.2, -10));
    assert_silent(&lanes(0.8, 0));
    let message = "1.3 never binds: \"chat\" has a higher priority and a ceiling of 1.2";
    assert_warns(&lanes(1.3, -10), "lanes[1].ceiling", message);
}

#[test]
fn aging_and_eviction_among_lanes_of_one_priority() {
    let lanes = |batch: i32| {
        let mut config = policy(json!([{"name": "a", "max_in_flight": 8}]));
        config["lanes"] = json!([
            {"name": "chat", "queue": {}},
            {"name": "batch", "priority": batch, "preemptible": true, "queue": {}, "aging": {"after": "5s"}},
        ]);
        config
    };
    assert_silent(&lanes(-10));
    let [aging, preemptible] = &said(&lanes(0))[..] else { panic!("two warnings: {:?}", said(&lanes(0))) };
    let message = "does nothing: no lane has a higher priority than 0";
    assert!(aging.contains(&format!("lanes[1].aging: {message}")), "{aging}");
    assert!(preemptible.contains(&format!("lanes[1].preemptible: {message}")), "{preemptible}");
}

#[test]
fn a_route_in_shadow_under_a_policy_that_binds() {
    let policy = |mode: &str, route: &str| {
        json!({
            "mode": mode, "tiers": {"strict": {"max_in_flight": 2}}, "pools": [{"name": "llama", "max_in_flight": 9}],
            "routes": [{"match": {"route_name": "agents"}, "tier": "strict", "mode": route}],
        })
    };
    let [lifted] = &said(&policy("enforce", "shadow"))[..] else { panic!("{:?}", said(&policy("enforce", "shadow"))) };
    assert!(lifted.contains("routes[0].mode: lifts what is in force") && lifted.contains("\"strict\""), "{lifted}");
    assert_eq!(said(&policy("shadow", "shadow")).len() + said(&policy("enforce", "enforce")).len(), 0);
}

#[test]
fn a_route_whose_tier_waits_for_its_rate() {
    let policy = |on_rate: &str| {
        json!({
            "tiers": {"slow": {"requests_per_minute": 6, "on_rate": on_rate}}, "pools": [{"name": "llama", "max_in_flight": 9}],
            "lanes": [{"name": "chat", "queue": {"max_wait": "9s"}}],
            "routes": [{"match": {"route_name": "agents"}, "tier": "slow"}],
        })
    };
    assert_warns(
        &policy("wait"),
        "routes[0].tier",
        "its budgets refuse: `on_rate: wait` of \"slow\" holds for tenants",
    );
    assert_silent(&policy("refuse"));
}

#[test]
fn aging_that_begins_when_the_wait_is_over() {
    let config = |after: &str| {
        let mut config = policy(json!([{"name": "a", "max_in_flight": 8}]));
        let queue = json!({"max_wait": "5s"});
        config["lanes"] = json!([
            {"name": "chat", "priority": 10}, {"name": "batch", "queue": queue, "aging": {"after": after}},
        ]);
        config
    };
    assert_silent(&config("4s"));
    let message = "does nothing: a request of \"batch\" waits 5000 ms at most, and climbs after 5000 ms";
    assert_warns(&config("5s"), "lanes[1].aging.after", message);
}

#[test]
fn a_goal_for_first_tokens_that_keeps_nothing_back() {
    let config = |lower: i32| {
        let mut config = policy(json!([{"name": "a", "max_in_flight": 8}]));
        config["lanes"] =
            json!([{"name": "chat", "priority": 10, "ttft_goal": "1s"}, {"name": "other", "priority": lower}]);
        config
    };
    assert_silent(&config(9));
    assert_warns(&config(10), "lanes[0].ttft_goal", "does nothing: no lane of a lower priority");
}

#[test]
fn a_fallback_that_takes_nothing_larger() {
    let config = |longest: Value, on: &[&str]| {
        let mut config = policy(json!([
            {"name": "a", "max_in_flight": 8, "max_prompt_tokens": 1_000, "fallback_pool": "cold", "fallback_on": on},
            {"name": "cold", "fallback_only": true, "max_in_flight": 8},
        ]));
        config["header_pause"] = json!(true);
        config["pools"][1]["max_prompt_tokens"] = longest;
        config
    };
    assert_silent(&config(json!(1_001), &[]));
    assert_silent(&config(Value::Null, &[]));
    assert_silent(&config(json!(1_000), &["pool_requests"]));
    for on in [&["oversize", "pool_requests"][..], &[]] {
        assert_warns(&config(json!(1_000), on), "pools[0].fallback_pool", "does nothing for `oversize`: \"cold\"");
    }
}

#[test]
fn a_fairness_header_where_no_request_waits() {
    let config = |lane: Value| {
        let mut config = policy(json!([{"name": "a", "max_in_flight": 8}]));
        config["lanes"] = json!([lane]);
        config["fairness_header"] = json!("x-user");
        config
    };
    assert_silent(&config(json!({"name": "chat", "queue": {}})));
    assert_warns(&config(json!({"name": "chat"})), "fairness_header", "does nothing: it orders waiting requests");
}

#[test]
fn a_reserve_that_does_nothing() {
    let lanes = |first: Value, last: Value| {
        let mut config = policy(json!([{"name": "a", "max_in_flight": 8}]));
        config["lanes"] = json!([
            {"name": "chat", "priority": 100, "queue": {}}, {"name": "standard", "queue": {}},
            {"name": "batch", "priority": -10, "queue": {}},
        ]);
        for (place, reserve) in [(0, first), (2, last)].into_iter().filter(|(_, reserve)| !reserve.is_null()) {
            config["lanes"][place]["reserve"] = reserve;
        }
        config
    };
    let (kept, lent) = (json!({"share": 0.2}), json!({"share": 0.2, "lend": true}));
    assert_silent(&lanes(kept.clone(), lent.clone()));
    assert_silent(&lanes(Value::Null, kept.clone()));
    assert_warns(&lanes(lent, Value::Null), "lanes[0].reserve", "does nothing: no lane goes before this one");
    let [form, idle] = &said(&lanes(json!(0.2), Value::Null))[..] else { panic!("two warnings") };
    assert!(
        form.contains("0.2 alone is read as {share: 0.2, lend: true}") && idle.contains("does nothing"),
        "{form} {idle}"
    );
    let mut alone = lanes(kept, Value::Null);
    alone["lanes"] = json!([alone["lanes"][0]]);
    assert_warns(&alone, "lanes[0].reserve", "does nothing: no lane of a lower priority");
    let floors = lanes(json!({"requests": 8}), json!({"requests": 2}));
    let floors = said(&floors);
    assert!(
        floors[0].contains("lanes[2].reserve: keeps nothing in pool \"a\": of its 8 requests none is left"),
        "{floors:#?}"
    );
    for (place, lane) in [(1, "lanes[1]"), (2, "lanes[2]")] {
        let words = format!("{lane}: starts nothing in pool \"a\": all of its 8 requests are kept");
        assert!(floors[place].contains(&words), "{floors:#?}");
    }
    let whole = said(&lanes(json!({"share": 1.0}), Value::Null));
    assert!(whole[0].contains("lanes[1]: starts nothing in pool \"a\"") && whole.len() == 2, "{whole:#?}");
    let mut small = lanes(json!({"share": 0.9}), json!({"share": 0.05, "lend": true}));
    small["pools"][0]["max_in_flight"] = 1.into();
    let small = said(&small);
    assert!(small.iter().all(|line| line.contains(".reserve: keeps nothing in pool")), "{small:#?}");
}

#[test]
fn a_keys_tenant_that_is_named_nowhere() {
    let mut config = policy(json!([{"name": "a", "max_in_flight": 8}]));
    let key = "ab".repeat(32);
    config["tenant"] = json!({"sources": [{"api_key": {"header": "x-api-key", "sha256": {key: "acme"}}}]});
    assert_warns(&config, "tenant.sources[0].api_key.sha256", "\"acme\" is not one of `tenants`");
    config["tenants"] = json!({"acme": {"max_in_flight": 1}, "*": {}});
    assert_silent(&config);
}

#[test]
fn limits_for_some_tenants_alone() {
    let mut config = policy(json!([{"name": "a", "max_in_flight": 8}]));
    config["tenants"] = json!({"acme": {"max_in_flight": 1}});
    let said = said(&config);
    assert!(
        matches!(&said[..], [one] if one.starts_with("f: tenants: those that it does not list have no limit")),
        "{said:?}"
    );
    config["tenants"] = json!({"acme": {"max_in_flight": 1}, "*": {}});
    assert_silent(&config);
}

#[test]
fn a_lane_that_its_own_clamp_takes_away() {
    let mut config = policy(json!([{"name": "a", "max_in_flight": 8}]));
    config["lanes"] = json!([{"name": "fast"}, {"name": "slow"}]);
    config["tiers"] = json!({"low": {"max_in_flight": 1, "max_lane": "slow"}});
    config["tenants"] = json!({"acme": {"tier": "low", "lane": "slow"}, "*": {}});
    assert_silent(&config);
    config["tenants"]["acme"]["lane"] = "fast".into();
    assert_warns(&config, "tenants.acme.lane", "is above its `max_lane`");
}

#[test]
fn a_class_above_its_pool() {
    let class = |cap: u32| json!([{"name": "a", "max_in_flight": 8, "classes": [{"name": "c", "max_in_flight": cap}]}]);
    assert_silent(&policy(class(8)));
    let place = "pools[0].classes[0].max_in_flight";
    assert_warns(&policy(class(9)), place, "9 never binds: the pool's own `max_in_flight` is 8");
}

#[test]
fn fields_that_need_the_headers_to_wait_are_named_once() {
    let mut config = policy(json!([
        {"name": "a", "max_in_flight": 8, "pick_endpoint": true,
         "classes": [{"name": "long", "min_prompt_tokens": 9, "max_in_flight": 1},
                     {"name": "big", "models": ["big*"], "max_in_flight": 1}]},
        {"name": "b", "models": ["b"], "max_in_flight": 8},
    ]));
    config["lanes"] = json!([{"name": "fast"}]);
    config["lane_rules"] = json!([{"path_prefix": "/v1", "lane": "fast"}, {"model": "small", "lane": "fast"}]);
    let fields = "lane_rules[1].model, pools[0].classes[1].models, pools[0].pick_endpoint. Set it";
    assert_warns(&config, "header_pause", fields);
    config["header_pause"] = true.into();
    assert_silent(&config);
    // A route that names its pool needs no body to know it.
    config["header_pause"] = false.into();
    config["routes"] = json!([{"match": {"path_prefix": "/"}, "pool": "a"}]);
    config["lane_rules"] = json!([]);
    config["pools"][0]["classes"] = json!([]);
    assert_silent(&config);
}

#[test]
fn headers_that_wait_without_the_proxys_leave() {
    let mut bootstrap = Bootstrap::shipped();
    bootstrap.change_policy(|policy| policy["header_pause"] = true.into());
    let place = format!("{POLICY}.header_pause");
    assert_warns(&bootstrap.0, &place, "the filter lacks `allow_on_headers_stop_iteration: true`");
    bootstrap.filter()["allow_on_headers_stop_iteration"] = true.into();
    assert_silent(&bootstrap.0);
    bootstrap.change_policy(|policy| policy["header_pause"] = false.into());
    let place = format!("{FILTER}.allow_on_headers_stop_iteration");
    assert_warns(&bootstrap.0, &place, "the policy does not use it");
}

#[test]
fn headers_that_wait_in_a_wasm_plugin() {
    let mut plugin = istio_named("WasmPlugin", "sluice");
    assert_silent(&plugin);
    plugin["spec"]["pluginConfig"]["header_pause"] = true.into();
    assert_warns(
        &plugin,
        "spec.pluginConfig.header_pause",
        "a WasmPlugin cannot set `allow_on_headers_stop_iteration`",
    );
}

#[test]
fn mistakes_leave_the_warnings_that_can_still_be_given() {
    let said_of_shape = said(&json!({"kind": "WasmPlugin", "spec": {"pluginConfig": {"pools": 1}}}));
    assert!(said_of_shape[0].starts_with("f: spec.pluginConfig.pools: invalid type"), "{said_of_shape:?}");
    assert!(said_of_shape.last().unwrap().starts_with("warning: f: spec.failStrategy: "), "{said_of_shape:?}");
    let config = policy(json!([{"name": "a", "max_in_flight": 8, "kv": {"headroom": 1},
                                "classes": [{"name": "c", "max_in_flight": 9}]}]));
    let said = said(&config);
    assert!(
        said[0].starts_with("f: pools[0].kv.headroom: ") && said[1].starts_with("warning: f: pools[0].classes[0]"),
        "{said:?}"
    );
}
