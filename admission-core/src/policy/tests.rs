use super::*;
use crate::config::StalePolicy;
#[cfg(target_family = "wasm")]
use wasm_bindgen_test::wasm_bindgen_test as test;

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
    assert_ne!(policy.tenant_key("nobody-knows"), policy.keys.tenant("nobody-knows"));
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
fn a_callers_lane_is_clamped() {
    let policy = policy(FULL);
    let lane = |asked, tenant| policy.lane(asked, policy.limits(tenant)).name.as_str();
    assert_eq!(lane(Some("interactive"), "acme"), "interactive");
    assert_eq!(lane(Some("interactive"), "stranger"), "standard");
    assert_eq!(lane(Some("batch"), "stranger"), "batch");
    assert_eq!(lane(None, "acme"), "standard");
    assert_eq!(lane(Some("no such lane"), "acme"), "standard");
}

#[test]
fn the_smallest_configuration_has_one_lane_and_one_pool() {
    let policy = policy(r#"{"pools": [{"name": "p", "max_in_flight": 1}]}"#);
    assert_eq!(policy.only_pool().unwrap().name, "p");
    assert_eq!(policy.lane(None, policy.limits("x")).name, "default");
    assert_eq!(policy.lanes().count(), 1);
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
                {"metadata": ["one"]}, {"api_key": {"header": "authorization", "sha256": {"abc": "acme"}}}]},
            "tiers": {"free": {"max_in_flight": 0, "max_lane": "fast", "requests_per_minute": 0,
                "tokens_per_minute": {"rate": 1, "burst": 0}}},
            "tenants": {"acme": {"tier": "gold", "max_tokens_in_flight": 0}},
            "lanes": [{"name": "a"}, {"name": "a"}, {"name": "b", "priority": 5}], "default_lane": "c",
            "pools": [{"name": "p", "models": ["x", "*x"]}, {"name": "p", "models": ["x"], "max_in_flight": 0, "kv": {"block_size": 0, "headroom": 1.0}}],
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
        "tenant.sources[4].api_key.sha256.abc: ",
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
        "pools[1].kv.headroom: ",
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
