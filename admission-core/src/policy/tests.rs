use serde_json::json;

use super::*;
use crate::config::StalePolicy;

mod printing;
mod queues;

fn policy(json: &str) -> Policy {
    match Plugin::parse(json.as_bytes()) {
        Ok(Plugin::Filter(policy)) => *policy,
        other => panic!("{other:?}"),
    }
}

fn problems(json: &str) -> Vec<String> {
    Plugin::parse(json.as_bytes()).unwrap_err().iter().map(ToString::to_string).collect()
}

const FULL: &str = r#"{
    "namespace": "prod", "header_pause": true,
    "tenant": {"sources": [{"header": "X-Tenant-Id"}], "default": "nobody"},
    "tiers": {"free": {"max_in_flight": 1, "max_lane": "standard"}, "paid": {"max_in_flight": 12, "max_tokens_in_flight": 400000}},
    "tenants": {"acme": {"tier": "paid", "max_in_flight": 20}, "*": {"tier": "free"}},
    "lanes": [{"name": "interactive", "priority": 100}, {"name": "standard"}, {"name": "batch", "priority": -10}],
    "default_lane": "standard", "lane_header": "x-sluice-lane",
    "pools": [
        {"name": "llama", "models": ["llama-3.3-70b", "llama-*"], "max_in_flight_per_worker": 48, "max_model_len": 32768,
         "max_prompt_tokens": 16384, "kv": {"block_size": 32, "headroom": 0.15}, "stale": {"hold": "2s", "then": "reject"}},
        {"name": "llama-big", "models": ["llama-3.1-405b*"], "max_in_flight": 4},
        {"name": "rest", "max_in_flight": 8, "expected_output_tokens": 64}],
    "body": {"hold_limit": "256KiB"}, "reject": {"retry_after": {"min": "2s", "max": "1m"}}}"#;

#[test]
fn everything_said_is_kept() {
    let policy = policy(FULL);
    assert_eq!((policy.hold_limit, policy.reject.retry_after.max), (256 << 10, Millis(60_000)));
    assert!(matches!(&policy.tenant_sources[..], [Source::Header(header)] if header == "x-tenant-id"));
    let llama = policy.pool_for("llama-3.3-70b").unwrap();
    assert_eq!((llama.name.as_str(), llama.block_size, llama.stale.then), ("llama", 32, StalePolicy::Reject));
    assert_eq!(&*llama.max_in_flight_per_worker.as_ref().unwrap().knob, "pools[llama].max_in_flight_per_worker");
}

#[test]
fn a_tenants_own_limit_stands_before_its_tiers() {
    let policy = policy(FULL);
    let acme = policy.limits("acme");
    assert_eq!(policy.tenant_key("acme"), policy.keys.tenant("acme"));
    assert_eq!(acme.requests, Some(Cap { limit: 20, knob: "tenants.acme.max_in_flight".into() }));
    assert_eq!(acme.tokens, Some(Cap { limit: 400_000, knob: "tiers.paid.max_tokens_in_flight".into() }));
    assert_eq!(policy.tenant_key("nobody-knows"), policy.keys.unnamed_tenant("nobody-knows"));
    assert_eq!(policy.limits("nobody-knows").requests.as_ref().unwrap().limit, 1);
}

#[test]
fn pools_match_exactly_before_the_longest_beginning() {
    let policy = policy(FULL);
    let pool = |model| policy.pool_for(model).unwrap().name.as_str();
    assert_eq!(pool("llama-3.1-405b-instruct"), "llama-big");
    assert_eq!(pool("llama-3.1-8b"), "llama");
    assert_eq!(pool("qwen"), "rest");
    assert!(policy.only_pool().is_none());
}

#[test]
fn the_smallest_configuration_has_one_lane_and_one_pool() {
    let policy = policy(r#"{"pools": [{"name": "p", "max_in_flight": 1}]}"#);
    assert_eq!(policy.only_pool().unwrap().name, "p");
    assert_eq!(policy.lanes().map(|lane| lane.name.as_str()).collect::<Vec<_>>(), ["default"]);
}

#[test]
fn every_problem_of_shape_is_reported_with_its_path() {
    let found = problems(
        r#"{"header_pause": "yes", "tenannt": {}, "tiers": {"free": {"max_inflight": 1}},
            "tenants": {"acme": {"max_lane": "gold"}},
            "pools": [{"name": "p", "max_in_flight": -1}, {"max_in_flight": 1}, {"name": "q", "max_in_flight": 1, "stale": {"hold": "soon"}}]}"#,
    );
    for path in [
        "header_pause: ",
        "tenannt: unknown field",
        "tiers.free.max_inflight: unknown field",
        "pools[0].max_in_flight: ",
        "pools[1]: missing field `name`",
        "tenants.acme.max_lane: \"gold\" is not one of `lanes`",
        "pools[2].stale.hold: \"soon\" is not a duration",
    ] {
        assert!(found.iter().any(|problem| problem.starts_with(path)), "{path} in {found:#?}");
    }
}

#[test]
fn every_problem_of_meaning_is_reported_with_its_path() {
    let found = problems(
        r#"{"namespace": "a b", "tenant": {"sources": [{"header": "x-sluice-tenant"}, {"header": "a b"}, {"header": "a", "certificate": {}},
                {"metadata": ["one"]}, {"api_key": {"header": "authorization", "sha256": {"abc": "acme",
                    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855": "acme",
                    "ABababababababababababababababababababababababababababababababab": "acme",
                    "abababababababababababababababababababababababababababababababab": "acme"}}}]},
            "tiers": {"free": {"max_in_flight": 0, "max_lane": "fast", "requests_per_minute": 0,
                "tokens_per_minute": {"rate": 1, "burst": 0}}, "slow": {"requests_per_minute": 1, "on_rate": "wait"}},
            "tenants": {"acme": {"tier": "gold", "max_tokens_in_flight": 0}},
            "lanes": [{"name": "a"}, {"name": "a"}, {"name": "b", "priority": 5}], "default_lane": "c",
            "pools": [{"name": "p", "models": ["x", "*x"]}, {"name": "p", "models": ["x"], "max_in_flight": 0, "busy_statuses": [500, 200], "on_rate": "wait", "kv": {"block_size": 0, "headroom": 1.0, "max_share": 0.5}}],
            "body": {"hold_limit": "0B"}, "reject": {"retry_after": {"min": "1h", "jitter": 2}, "status": {"oversize": 200, "all_busy": 600}}}"#,
    );
    let paths = [
        "namespace: ",
        "tenant.sources[0].header: ",
        "tenant.sources[1].header: ",
        "tiers.free.max_in_flight: ",
        "tiers.free.max_lane: ",
        "tiers.free.requests_per_minute: ",
        "tiers.free.tokens_per_minute: ",
        "tenant.sources[2]: must have exactly one",
        "tenant.sources[3].metadata: ",
        "tenant.sources[4].api_key.sha256: that of \"acme\" must be 64",
        "tenant.sources[4].api_key.sha256: that of \"acme\" is the SHA-256 of no bytes",
        "tenant.sources[4].api_key.sha256: that of \"acme\" stands here twice",
        "tenants.acme.tier: ",
        "tenants.acme.max_tokens_in_flight: ",
        "lanes[1].name: ",
        "lanes[2].priority: ",
        "default_lane: ",
        "pools[0].models[1]: ",
        "pools[0]: `max_in_flight`",
        "pools[1].name: ",
        "pools[1].models[0]: ",
        "pools[1].max_in_flight: ",
        "pools[1].kv.block_size: ",
        "pools[1].on_rate: ",
        "pools[1].busy_statuses: 200 is not the status of an error",
        "tiers.slow.on_rate: ",
        "pools[1].kv.headroom: ",
        "pools[1].kv.max_share: ",
        "body.hold_limit: ",
        "reject.retry_after.min: ",
        "reject.retry_after.jitter: ",
        "reject.status.oversize: ",
        "reject.status.all_busy: ",
    ];
    for path in paths {
        assert!(found.iter().any(|problem| problem.starts_with(path)), "{path} in {found:#?}");
    }
    assert_eq!(found.len(), paths.len(), "{found:#?}");
}

#[test]
fn a_pool_that_only_others_lead_to_takes_no_model() {
    let json = |pools: &str| format!(r#"{{"pools": [{pools}]}}"#);
    let busy = r#""fallback_pool": "cold", "fallback_on": ["all_busy"]"#;
    let main = format!(r#"{{"name": "main", "max_in_flight": 1, {busy}}}"#);
    let cold = r#"{"name": "cold", "max_in_flight": 1, "fallback_only": true}"#;
    let policy = policy(&json(&format!("{main}, {cold}")));
    assert_eq!(
        policy.only_pool().map(|pool| pool.name.as_str()),
        Some("main"),
        "known from headers, without a pause there"
    );
    assert_eq!(policy.pool_for("any").map(|pool| pool.name.as_str()), Some("main"));
    let found = problems(&json(cold));
    assert!(found[0].starts_with("pools: at least one must not be `fallback_only`"), "{found:#?}");
    assert!(
        found[1].starts_with("pools[0].fallback_only: no `fallback_pool` and no route names this pool"),
        "{found:#?}"
    );
    let with_models = cold.replace("true", r#"true, "models": ["x"]"#);
    let found = problems(&json(&format!("{main}, {with_models}")));
    assert_eq!(found, ["pools[1].models: has no meaning with `fallback_only`: no model leads to this pool"]);
}

#[test]
fn every_problem_of_lanes_routes_and_classes_is_reported_with_its_path() {
    let found = problems(
        r#"{"tag_body": true, "force_usage": true,
            "tiers": {"gold": {"weight": 0, "cached_token_cost": 1.5, "lane": "none"}, "empty": {"lane": "a"}}, "tenants": {"acme": {"weight": 1001, "max_lane": "none"}, "*": {"weight": 2}},
            "lanes": [{"name": "a", "ceiling": 0}], "objectives": {"x": "none"},
            "lane_rules": [{"lane": "a"}, {"model": "*x", "lane": "none"}, {"path_prefix": "v1", "lane": "a"}],
            "routes": [{"match": {}, "lane": "a"}, {"match": {"path_prefix": "/x?y"}}, {"lane": "a"},
                {"match": {"route_name": "r"}, "lane": "none", "max_lane": "none", "pool": "none", "tier": "none"},
                {"match": {"route_name": "t"}, "pool": "t", "tier": "empty"}],
            "pools": [
                {"name": "p", "models": ["x"], "max_in_flight": 1, "fallback_pool": "q", "fallback_on": ["all_busy", "tenant_tokens"],
                 "classes": [{"name": "a b", "max_in_flight": 0}, {"name": "c", "models": [""]}, {"name": "c", "max_model_len": 1}]},
                {"name": "q", "models": ["y"], "max_in_flight": 1, "fallback_pool": "p"},
                {"name": "r", "models": ["z"], "max_in_flight": 1, "fallback_pool": "none", "fallback_on": ["all_busy"]},
                {"name": "t", "models": ["t"], "max_in_flight": 1, "fallback_pool": "s"},
                {"name": "s", "max_in_flight": 1, "fallback_on": ["all_busy"]}]}"#,
    );
    let paths = [
        "tag_body: needs `header_pause: true`",
        "force_usage: needs `header_pause: true`",
        "tiers.gold.cached_token_cost: ",
        "tiers.gold.weight: ",
        "tiers.gold.lane: \"none\" is not one of `lanes`",
        "tenants.acme.weight: ",
        "tenants.acme.max_lane: ",
        "lanes[0].ceiling: ",
        "objectives.x: ",
        "lane_rules[0]: ",
        "lane_rules[1].model: ",
        "lane_rules[1].lane: ",
        "lane_rules[2].path_prefix: ",
        "routes[0].match: ",
        "routes[1]: changes nothing",
        "routes[1].match.path_prefix: ",
        "routes[2].match: ",
        "routes[3].lane: ",
        "routes[3].max_lane: ",
        "routes[3].pool: ",
        "routes[3].tier: ",
        "routes[4].tier: \"empty\" has no limit",
        "pools[0].fallback_pool: leads back",
        "pools[0].fallback_on: tenant_tokens is no refusal by a pool",
        "pools[0].classes[0].name: ",
        "pools[0].classes[0].max_in_flight: ",
        "pools[0].classes[1]: limits nothing",
        "pools[0].classes[1].models[0]: ",
        "pools[0].classes[2].name: ",
        "pools[1].fallback_pool: leads back",
        "pools[0].fallback_pool: needs `header_pause: true`, or a route",
        "pools[1].fallback_pool: needs `header_pause: true`, or a route",
        "pools[2].fallback_pool: needs `header_pause: true`, or a route",
        "pools[3].fallback_pool: for `oversize` needs `header_pause: true`",
        "pools[2].fallback_pool: \"none\" is not one of `pools`",
        "pools[4].fallback_on: has no meaning without",
    ];
    for path in paths {
        assert!(found.iter().any(|problem| problem.starts_with(path)), "{path} in {found:#?}");
    }
    assert_eq!(found.len(), paths.len(), "{found:#?}");
}

/// All that a platform with many tenants says at once.
#[test]
fn a_whole_policy_is_taken_as_written() {
    let policy = policy(&serde_json::to_string(&whole()).unwrap());
    assert_eq!((policy.limits("acme").weight, policy.limits("nobody").weight), (4, 1));
    assert_eq!(policy.lane_of_objective("nightly-report"), policy.lane_named("batch"));
    let place = Place { route_name: Some("reports"), ..Place::default() };
    assert_eq!(policy.route(place, Route::default()).lane, policy.lane_named("batch"));
    assert_eq!(policy.reject.status(Reason::AllBusy), 503);
    let batch = policy.line_up().at(2);
    assert_eq!(batch.aging, Some(Aging { after: Millis(120_000), path: vec![1], most_of_last_starts: 5 }));
    assert_eq!(batch.queue.as_ref().map(|queue| (queue.max_requests.limit, queue.max_wait.0)), Some((512, 240_000)));
}

fn whole() -> Value {
    let key = "00".repeat(32);
    json!({
        "mode": "enforce", "namespace": "sluice", "header_pause": false,
        "tenant": {
            "sources": [
                {"metadata": ["envoy.filters.http.jwt_authn", "payload", "tenant"]},
                {"header": "x-tenant-id"},
                {"api_key": {"header": "authorization", "prefix": "Bearer ", "sha256": {key: "acme"}}},
            ],
            "default": "anonymous",
        },
        "tiers": {
            "enterprise": {"max_in_flight": 12, "max_tokens_in_flight": 400_000, "requests_per_minute": 600,
                           "tokens_per_minute": 2_000_000, "weight": 4, "max_lane": "interactive"},
            "free": {"max_in_flight": 1, "weight": 1, "max_lane": "standard"},
        },
        "tenants": {"acme": {"tier": "enterprise"}, "*": {"tier": "free"}},
        "lanes": [
            {"name": "interactive", "priority": 100, "reserve": 0.5, "ceiling": 1.2,
             "queue": {"max_requests": 64, "max_tokens": 2_000_000, "max_bytes": "64MiB", "max_wait": "2s", "order": "fcfs"}},
            {"name": "standard", "priority": 0, "queue": {"max_requests": 128, "max_wait": "10s"}},
            {"name": "batch", "priority": -10, "dispatch_budget": {"baseline": 0.1},
             "aging": {"after": "120s", "to": "standard"}, "queue": {"max_requests": 512, "max_wait": "240s"}},
        ],
        "default_lane": "standard", "lane_header": "x-sluice-lane",
        "objectives": {"nightly-report": "batch"},
        "pools": [{
            "name": "llama-70b", "models": ["llama-3.3-70b*"], "max_in_flight_per_worker": 48,
            "requests_per_second": {"rate": 50, "burst": 100}, "max_model_len": 32_768, "max_prompt_tokens": 16_384,
            "kv": {"block_size": 16, "headroom": 0.15}, "stale": {"hold": "5s", "then": "local_caps"},
            "pick_endpoint": false,
        }],
        "routes": [{"match": {"route_name": "reports"}, "lane": "batch"}],
        "reject": {"status": {"all_busy": 503, "queue_full": 429}, "retry_after": {"min": "1s", "max": "30s", "jitter": 0.2}},
    })
}

#[test]
fn a_key_in_place_of_its_digest_is_in_no_problem() {
    for tenant in [r#""acme""#, "7", r#""a b""#] {
        let json = format!(
            r#"{{"tenant": {{"sources": [{{"api_key": {{"header": "x", "sha256": {{"sk-secret": {tenant}}}}}}}]}},
                "pools": [{{"name": "p", "max_in_flight": 1}}]}}"#
        );
        let found = problems(&json);
        assert!(!found.is_empty() && !found.iter().any(|problem| problem.contains("sk-secret")), "{found:?}");
    }
}

#[test]
fn a_secret_in_a_wrong_shape_is_in_no_problem() {
    let filter = |more: &str| format!(r#"{{{more}, "pools": [{{"name": "p", "max_in_flight": 1}}]}}"#);
    let source = |api_key: &str| filter(&format!(r#""tenant": {{"sources": [{{"api_key": {api_key}}}]}}"#));
    let pull = |pull: &str| filter(&format!(r#""view": {{"pull": {pull}}}"#));
    for (place, config) in [
        ("tenant.sources[0].api_key:", source(r#""314159""#)),
        ("tenant.sources[0].api_key:", source(r#"["314159"]"#)),
        ("tenant.sources[0].api_key:", source(r#"{"header": "x", "314159": "acme", "sha256": {}}"#)),
        ("tenant.sources[0].api_key.sha256:", source(r#"{"header": "x", "sha256": "314159"}"#)),
        ("tenant.sources[0].api_key.sha256:", source(r#"{"header": "x", "sha256": {"314159": ["acme"]}}"#)),
        ("view.pull.token:", pull(r#"{"cluster": "c", "token": 314159}"#)),
        ("view.pull.token:", pull(r#"{"cluster": "c", "token": {"314159": 1}}"#)),
        ("token_sha256:", r#"{"role": "control", "token_sha256": 314159}"#.to_owned()),
        ("token_sha256:", r#"{"role": "control", "token_sha256": ["314159"]}"#.to_owned()),
    ] {
        let found = problems(&config);
        assert!(found.iter().any(|problem| problem.starts_with(place)), "{config}: {found:?}");
        assert!(!found.iter().any(|problem| problem.contains("314159")), "{config}: {found:?}");
    }
    let missing = problems(&source(r#"{"sha256": {}}"#));
    assert!(missing[0].contains("missing field `header`"), "what is missing is named: {missing:?}");
}

#[test]
fn a_stale_pool_without_any_cap_is_an_error_unless_asked_for() {
    assert_eq!(problems(r#"{"pools": [{"name": "p"}]}"#).len(), 1);
    policy(r#"{"pools": [{"name": "p", "stale": {"then": "admit"}}]}"#);
    policy(r#"{"pools": [{"name": "p", "stale": {"then": "reject"}}]}"#);
}

#[test]
fn what_is_no_configuration_says_so() {
    assert!(problems("")[0].contains("no configuration"));
    assert!(problems("{")[0].contains("not JSON"));
    assert!(problems("[]")[0].contains("a JSON object"));
    assert!(problems(r#"{"role": "boss", "pools": [{"name": "p", "max_in_flight": 1}]}"#)[0].starts_with("role: "));
    assert_eq!(problems("{}"), ["missing field `pools`"]);
}

#[test]
fn control_needs_a_whole_token_hash() {
    let token = "ab".repeat(32);
    let Ok(Plugin::Control(control)) =
        Plugin::parse(format!(r#"{{"role":"control","token_sha256":"{token}"}}"#).as_bytes())
    else {
        panic!("control");
    };
    assert_eq!((control.token_sha256, control.max_view, control.hold), ([0xab; 32], 4 << 20, Millis(5_000)));
    assert!(problems(r#"{"role":"control","token_sha256":"abc"}"#)[0].starts_with("token_sha256: "));
    assert!(problems(r#"{"role":"control","token_sha256":"é"}"#)[0].starts_with("token_sha256: "));
    for odd in ["+a".repeat(32), "E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855".to_owned()] {
        let json = format!(r#"{{"role":"control","token_sha256":"{odd}"}}"#);
        assert!(problems(&json)[0].starts_with("token_sha256: "), "{odd}");
    }
    assert!(problems(r#"{"role":"control"}"#)[0].contains("missing field `token_sha256`"));
}

/// A caller that leaves its key out gains nothing: not a cap, a rate, a lane, nor a shadow.
#[test]
fn a_caller_that_proves_nothing_has_the_smallest_of_each_limit() {
    let parse = |source: &str, tenants: &str| {
        let json = format!(
            r#"{{"tenant": {{"sources": [{source}]}}, "lanes": [{{"name": "high", "priority": 1}}, {{"name": "low"}}],
                "mode": "shadow", "tiers": {{"free": {{"tokens_per_minute": 60, "max_lane": "low"}}}},
                "tenants": {tenants}, "pools": [{{"name": "p", "max_in_flight": 9}}]}}"#
        );
        let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
        *policy
    };
    let proved = r#"{"metadata": ["envoy.filters.http.jwt_authn", "payload", "tenant"]}"#;
    let all = r#"{"a": {"max_in_flight": 3, "requests_per_minute": {"rate": 50, "burst": 1}, "mode": "enforce"},
                  "b": {"tier": "free", "lane": "low", "max_in_flight": 8, "max_tokens_in_flight": 7}, "*": {"requests_per_minute": 40}}"#;
    let policy = parse(proved, all);
    let limits = policy.limits("anonymous");
    let cap = |cap: &Option<Cap>| cap.as_ref().map(|cap| (cap.limit, cap.knob.to_string()));
    assert_eq!(cap(&limits.requests), Some((3, "the smallest max_in_flight of tenants".to_owned())));
    assert_eq!(cap(&limits.tokens).map(|(limit, _)| limit), Some(7));
    let rates: Vec<_> = [&limits.rates.requests, &limits.rates.tokens].map(|rate| rate.clone().unwrap()).into();
    assert_eq!(rates.iter().map(|rate| (rate.amount, rate.burst)).collect::<Vec<_>>(), [(40, 1), (60, 60)]);
    assert_eq!((limits.max_lane, limits.mode, limits.weight), (1, Some(Mode::Enforce), 1));
    assert_eq!(limits.lane, Some(1), "nor a lane that another gets unasked");
    assert_ne!(policy.tenant_key("anonymous"), policy.tenant_key("somebody"), "a record of its own");
    let listed = parse(proved, r#"{"a": {"max_in_flight": 3}, "anonymous": {"max_in_flight": 5}}"#);
    assert_eq!(cap(&listed.limits("anonymous").requests).map(|(limit, _)| limit), Some(5), "as listed");
    let by_header = parse(r#"{"header": "x-tenant-id"}"#, r#"{"a": {"max_in_flight": 3}}"#);
    assert_eq!((cap(&by_header.limits("anonymous").requests), by_header.unlimited.is_some()), (None, true));
    for tenants in [r#"{"a": {"max_in_flight": 3}, "*": {}}"#, r#"{"a": {"weight": 2}}"#, "{}"] {
        assert_eq!(parse(proved, tenants).unlimited, None, "{tenants}");
    }
    assert!(parse(proved, r#"{"b": {"tier": "free"}}"#).unlimited.is_some());
}

#[test]
fn a_source_gives_a_tier_to_tenants_that_are_not_listed() {
    let json = r#"{"tenant": {"sources": [{"header": "x-tenant-id"}], "tier_sources": [{"header": "X-Plan"}]},
        "tiers": {"paid": {"max_in_flight": 9, "requests_per_minute": 60, "weight": 3}, "free": {"max_in_flight": 1}},
        "tenants": {"acme": {"max_in_flight": 5}, "*": {"tier": "free"}}, "pools": [{"name": "p", "max_in_flight": 100}]}"#;
    let policy = policy(json);
    let cap = |tenant, tier| policy.limits_in(tenant, tier).requests.as_ref().map(|cap| (cap.limit, &*cap.knob));
    assert_eq!(cap("cust-076", Some("paid")), Some((9, "tiers.paid.max_in_flight")));
    assert_eq!(cap("cust-076", Some("gold")), Some((1, "tiers.free.max_in_flight")), "none of the tiers");
    assert_eq!(cap("acme", Some("paid")), Some((5, "tenants.acme.max_in_flight")), "its own entry");
    let paid = policy.limits_in("cust-076", Some("paid"));
    assert_eq!((paid.weight, paid.rates.requests.as_ref().unwrap().key), (3, None), "the tenant's own budget");
    assert_eq!((policy.asks_for_tier("cust-076"), policy.asks_for_tier("acme")), (true, false));
    let key = r#"{"api_key": {"header": "a", "prefix": "", "sha256": {}}}"#;
    let wrong = json.replace(r#"{"header": "X-Plan"}"#, key).replace(r#""tiers": {"#, r#""objectives": {"#);
    let Err(problems) = Plugin::parse(wrong.as_bytes()) else { panic!("it is taken") };
    let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert!(said.iter().any(|line| line.starts_with("tenant.tier_sources[0]: a tier comes from")), "{said:?}");
}

#[test]
fn a_pool_picks_workers_only_where_the_choice_is_ours() {
    let with = |whose: &str| {
        format!(
            r#"{{"endpoint_picker": "{whose}", "pools": [{{"name": "p", "max_in_flight": 1, "pick_endpoint": true}}]}}"#
        )
    };
    assert!(Plugin::parse(with("ours").as_bytes()).is_ok());
    for whose in ["theirs", "none"] {
        let found = problems(&with(whose));
        assert!(matches!(&found[..], [one] if one.starts_with("pools[0].pick_endpoint: needs")), "{found:?}");
    }
}
