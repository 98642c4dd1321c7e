use serde_json::json;

use super::*;
use crate::arrival::Arrival;
use crate::budget::Rate;
use crate::policy::{Cap, Place, Plugin};
use crate::request::Api;
use crate::units::Millis;

fn policy() -> Policy {
    parsed(&policy_json())
}

fn parsed(json: &serde_json::Value) -> Policy {
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.to_string().as_bytes()) else { panic!("{json}") };
    *policy
}

fn policy_json() -> serde_json::Value {
    json!({
        "tiers": {
            "slow": {"max_in_flight": 2, "tokens_per_minute": 100, "max_lane": "standard"},
            "wide": {"max_in_flight": 64, "requests_per_minute": 10000, "tokens_per_minute": 10000},
            "strict": {"max_in_flight": 1, "requests_per_minute": 5, "mode": "shadow", "lane": "interactive"},
        },
        "tenants": {
            "acme": {"lane": "standard"}, "trial": {"mode": "shadow"}, "sure": {"mode": "enforce"},
            "slow": {"tier": "slow"},
        },
        "lanes": [{"name": "interactive", "priority": 100}, {"name": "standard"}, {"name": "batch", "priority": -10},
                  {"name": "last", "priority": -20}],
        "default_lane": "last",
        "objectives": {"nightly": "batch"},
        "lane_rules": [{"path_prefix": "/v1/embeddings", "lane": "batch"},
                       {"model": "chat-*", "path_prefix": "/v1/", "lane": "interactive"},
                       {"path_prefix": "/v1/chat", "lane": "standard"}],
        "pools": [{"name": "p", "max_in_flight": 9}, {"name": "cold", "models": ["cold"], "max_in_flight": 9}],
        "routes": [
            {"match": {"virtual_host": "reports.example"}, "lane": "batch", "mode": "shadow", "tier": "strict"},
            {"match": {"path_prefix": "/v1"}, "max_lane": "standard"},
            {"match": {"path_prefix": "/v1/completions"}, "pool": "cold"},
            {"match": {"route_name": "reports"}, "lane": "standard"},
            {"match": {"route_name": "reports"}, "lane": "last", "enabled": false},
        ],
    })
}

fn arrival(tenant: &str, lane: Option<&str>, objective: Option<&str>, path: &str) -> Arrival {
    let own = |text: Option<&str>| text.map(str::to_owned);
    let (tenant, path, api) = (tenant.to_owned(), path.to_owned(), Api::of_path(path));
    let objectives = own(objective).into_iter().collect();
    Arrival {
        tenant,
        asked_lane: own(lane),
        objectives,
        path,
        api,
        body_bytes: None,
        encoded: false,
        says_json: true,
        wrong_key: false,
        tier: None,
        spoofed: false,
        ttft_deadline: None,
        sub: None,
        no_queue: false,
    }
}

fn lane(policy: &Policy, arrival: &Arrival, route: &Route, model: Option<&str>) -> String {
    Terms::of(policy, arrival, route).lane(policy, model).name.clone()
}

#[test]
fn a_lane_is_asked_for_in_order() {
    let policy = policy();
    let nowhere = Route::default();
    let batch = policy.route_of_metadata(json!({"lane": "batch"})).unwrap();
    for (request, route, expected) in [
        (arrival("acme", Some("interactive"), Some("nightly"), "/x"), &batch, "interactive"),
        (arrival("acme", Some("no such lane"), Some("nightly"), "/x"), &nowhere, "batch"),
        (arrival("acme", None, Some("unknown"), "/x"), &batch, "batch"),
        (arrival("acme", None, None, "/v1/chat/completions"), &nowhere, "standard"),
        (arrival("zoe", None, None, "/v1/embeddings"), &nowhere, "batch"),
        (arrival("zoe", None, None, "/x"), &nowhere, "last"),
    ] {
        assert_eq!(lane(&policy, &request, route, None), expected, "{request:?}");
    }
}

#[test]
fn of_several_objectives_the_first_that_is_known_goes() {
    let objectives = vec!["unknown".to_owned(), "nightly".to_owned()];
    let request = Arrival { objectives, ..arrival("acme", None, None, "/x") };
    assert_eq!(lane(&policy(), &request, &Route::default(), None), "batch");
}

#[test]
fn of_a_route_that_the_caller_may_have_chosen_only_what_is_stricter_stands() {
    let policy = policy();
    let place = Place { route_name: Some("reports"), path: "/v1/completions", spoofed: true, ..Place::default() };
    let terms = |place, metadata, tenant, asked| {
        let route = policy.route(place, policy.route_of_metadata(metadata).unwrap());
        let terms = Terms::of(&policy, &arrival(tenant, asked, None, place.path), &route);
        let limit = |cap: &Option<Cap>| cap.as_ref().map(|cap| cap.limit);
        let rate = |rate: &Option<Rate>| rate.as_ref().map(|rate| (rate.amount, rate.burst));
        let limits = &terms.limits;
        let held_to = (limit(&limits.requests), rate(&limits.rates.requests), rate(&limits.rates.tokens));
        (route.enabled, terms.mode, terms.pool.clone(), held_to, terms.lane(&policy, None).name.clone())
    };
    let own = (Some(2), Some((10_000, 10_000)), Some((100, 100)));
    let loose = json!({"enabled": false, "mode": "shadow", "tier": "wide", "lane": "interactive", "max_lane": "interactive",
                       "pool": "p"});
    let (enabled, mode, pool, held_to, lane) = terms(place, loose, "slow", None);
    assert_eq!((enabled, mode, held_to), (None, Mode::Enforce, own), "its own limits, and where it has none those");
    assert_eq!(lane, "last", "the default lane, which is below those that its tenant and its path allow");
    assert_eq!(pool.unwrap().name, "p", "that is where the proxy sends it");
    let strict = json!({"enabled": true, "mode": "enforce", "tier": "strict", "lane": "batch", "max_lane": "batch"});
    let (enabled, mode, pool, held_to, lane) = terms(place, strict, "slow", Some("interactive"));
    assert_eq!((enabled, mode, lane.as_str()), (Some(true), Mode::Enforce, "batch"));
    assert_eq!(pool.unwrap().name, "cold", "paths are what they are, whatever headers say");
    assert_eq!(held_to, (Some(1), Some((5, 5)), own.2), "the smaller of each");
    let lower = || json!({"lane": "batch"});
    assert_eq!(terms(place, lower(), "acme", None).4, "batch", "a lane below its tenant's");
    assert_eq!(
        terms(place, lower(), "acme", Some("standard")).4,
        "standard",
        "asked for, which the route lets callers do"
    );
    // What the path says holds: a route's tier is compared with the path's, and its highest lane, too.
    let policy = with_a_strict_path(&policy_json());
    let route =
        policy.route(place, policy.route_of_metadata(json!({"tier": "wide", "max_lane": "interactive"})).unwrap());
    let terms = Terms::of(&policy, &arrival("acme", Some("interactive"), None, place.path), &route);
    assert_eq!(
        (terms.limits.requests.as_ref().unwrap().limit, terms.lane(&policy, None).name.as_str()),
        (1, "standard")
    );
}

fn with_a_strict_path(policy: &serde_json::Value) -> Policy {
    let mut policy = policy.clone();
    policy["routes"][1]["tier"] = json!("strict");
    parsed(&policy)
}

#[test]
fn a_rule_by_model_waits_for_the_model() {
    let policy = policy();
    let nowhere = Route::default();
    let chat = arrival("zoe", None, None, "/v1/chat/completions");
    assert!(Terms::of(&policy, &chat, &nowhere).lane_needs_model(&policy));
    assert_eq!(lane(&policy, &chat, &nowhere, Some("chat-7b")), "interactive");
    assert_eq!(lane(&policy, &chat, &nowhere, Some("other")), "standard");
    assert_eq!(lane(&policy, &chat, &nowhere, None), "standard");
    for settled in [
        arrival("zoe", None, None, "/v1/embeddings"),
        arrival("zoe", Some("batch"), None, "/v1/chat/completions"),
        arrival("zoe", None, None, "/elsewhere"),
    ] {
        assert!(!Terms::of(&policy, &settled, &nowhere).lane_needs_model(&policy), "{settled:?}");
    }
}

#[test]
fn a_lane_is_never_above_what_tenant_and_route_allow() {
    let policy = policy();
    let (nowhere, low) = (Route::default(), policy.route_of_metadata(json!({"max_lane": "batch"})).unwrap());
    let ask = |tenant| arrival(tenant, Some("interactive"), None, "/x");
    assert_eq!(lane(&policy, &ask("acme"), &nowhere, None), "interactive");
    assert_eq!(lane(&policy, &ask("slow"), &nowhere, None), "standard");
    assert_eq!(lane(&policy, &ask("slow"), &low, None), "batch");
    assert_eq!(
        lane(&policy, &arrival("slow", Some("last"), None, "/x"), &low, None),
        "last",
        "lower is always allowed"
    );
}

#[test]
fn the_more_specific_route_wins_field_by_field() {
    let policy = policy();
    let place = |route_name, virtual_host, path| Place { route_name, virtual_host, path, spoofed: false };
    let plain = Route::default;
    let route = policy.route(place(Some("reports"), Some("reports.example"), "/v1/completions"), plain());
    assert_eq!(route.enabled, Some(false));
    assert_eq!(route.lane, policy.lane_named("standard"), "of two entries of a name the first");
    assert_eq!((route.mode, route.pool.unwrap().name.as_str()), (Some(Mode::Shadow), "cold"));
    assert_eq!(route.max_lane, policy.lane_named("standard"));
    let own = policy.route_of_metadata(json!({"lane": "interactive", "enabled": true})).unwrap();
    let route = policy.route(place(Some("reports"), None, "/x"), own);
    assert_eq!((route.lane, route.enabled, route.mode), (policy.lane_named("interactive"), Some(true), None));
    assert_eq!(policy.route(place(None, Some("other"), "/x"), plain()), plain());
}

#[test]
fn a_tier_on_a_route_replaces_the_limits_it_has_and_nothing_else() {
    let policy = policy();
    let place = Place { virtual_host: Some("reports.example"), ..Place::default() };
    let route = policy.route(place, Route::default());
    let terms = Terms::of(&policy, &arrival("slow", Some("interactive"), None, "/x"), &route);
    assert_eq!(terms.limits.requests.as_ref().unwrap().knob.as_ref(), "tiers.strict.max_in_flight");
    assert_eq!(terms.limits.rates.requests.as_ref().unwrap().amount, 5);
    assert_eq!(terms.limits.rates.tokens.as_ref().unwrap().amount, 100, "the tenant's own");
    assert_eq!(terms.lane(&policy, None).name, "standard", "its own clamp");
}

#[test]
fn a_tenants_mode_stands_before_its_routes_and_that_before_the_filters() {
    let policy = policy();
    let (shadow, nowhere) = (policy.route_of_metadata(json!({"mode": "shadow"})).unwrap(), Route::default());
    let mode = |tenant, route| Terms::of(&policy, &arrival(tenant, None, None, "/x"), route).mode;
    assert_eq!((mode("acme", &nowhere), mode("acme", &shadow)), (Mode::Enforce, Mode::Shadow));
    assert_eq!((mode("trial", &nowhere), mode("sure", &shadow)), (Mode::Shadow, Mode::Enforce));
}

#[test]
fn metadata_that_is_no_route_is_refused_with_every_problem() {
    let problems = |metadata| {
        let problems = policy().route_of_metadata(metadata).unwrap_err();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let found = problems(json!({"lane": "gold", "pool": "none", "tier": "none", "mode": "maybe", "colour": "red"}));
    for start in ["lane: \"gold\"", "pool: \"none\"", "tier: \"none\"", "mode: ", "colour: unknown field"] {
        assert!(found.iter().any(|problem| problem.starts_with(start)), "{start} in {found:#?}");
    }
    assert!(problems(json!({}))[0].starts_with("changes nothing"));
    assert!(problems(json!({"match": {"route_name": "x"}, "lane": "batch"}))[0].starts_with("match: "));
}

#[test]
fn only_whole_milliseconds_make_a_deadline() {
    for (text, deadline) in [("1", 1), ("250", 250), ("1500.5", 1_500), ("1.999", 1), ("0099", 99)] {
        assert_eq!(Arrival::deadline(text), Some(Millis(deadline)), "{text}");
    }
    let others =
        ["", "0", "0.9", "-1", "+1", "1e3", "2s", "1.", ".5", "1.5.0", "1,5", "18446744073709551616", "NaN", "1 0"];
    for text in others {
        assert_eq!(Arrival::deadline(text), None, "{text}");
    }
}
