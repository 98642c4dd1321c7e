//! Files that are checked together.

use host_sidecar::check;
use serde_json::{Value, json};

use super::shipped::{Bootstrap, MANAGER, POLICY, istio, istio_named};

const TOKEN: &str = "change-me";

/// Everything said of files that are called a, b and so on.
fn said(files: &[&Value]) -> Vec<String> {
    said_of(&files.iter().map(|file| file.to_string()).collect::<Vec<_>>())
}

fn said_of(files: &[String]) -> Vec<String> {
    let texts: Vec<&str> = files.iter().map(String::as_str).collect();
    let reports = check::files(&texts, &|token| token.read().ok());
    let lines = reports.iter().zip(["a", "b", "c"]).flat_map(|(report, name)| report.lines(name).collect::<Vec<_>>());
    lines.collect()
}

#[track_caller]
fn assert_warns(files: &[&Value], start: &str, words: &str) {
    let said = said(files);
    assert!(
        matches!(&said[..], [one] if one.starts_with(&format!("warning: {start}: ")) && one.contains(words)),
        "{start}: {words}\n{said:#?}"
    );
}

fn sidecar(pool: &str) -> Value {
    json!({"proxies": [{"url": "http://127.0.0.1:15010", "token": TOKEN}], "pools": [{"name": pool, "workers": ["10.0.0.7:8000"]}]})
}

#[test]
fn a_pool_has_one_name_in_policy_and_sidecar() {
    let envoy = Bootstrap::shipped().0;
    assert_eq!(said(&[&envoy, &sidecar("llama")]), [""; 0]);
    let said = said(&[&envoy, &sidecar("lama")]);
    let [of_policy, of_sidecar] = &said[..] else { panic!("{said:#?}") };
    let start = format!("warning: a: {POLICY}.pools[0].name: no sidecar of these files has a pool \"llama\"");
    assert!(of_policy.starts_with(&start) && of_policy.ends_with("they have \"lama\""), "{of_policy}");
    assert!(
        of_sidecar.starts_with("warning: b: pools[0].name: no policy of these files has a pool \"lama\""),
        "{of_sidecar}"
    );
    let without = json!({"pools": [{"name": "external", "max_in_flight": 9}, {"name": "llama", "models": ["a"], "max_in_flight": 9}]});
    assert_eq!(super::said_of(&without.to_string()), [""; 0]);
    assert_eq!(self::said(&[&without, &sidecar("llama")]), [""; 0], "a pool that needs no view may have none");
}

#[test]
fn a_sidecar_shows_the_token_that_is_asked_of_it() {
    let envoy = Bootstrap::shipped().0;
    let mut other = sidecar("llama");
    other["proxies"][0]["token"] = "another".into();
    assert_warns(&[&envoy, &other], "b: proxies[0].token", "answered 401");
    other["proxies"][0] = json!({"url": "http://127.0.0.1:15010", "token_file": "/run/secrets/no-such-token"});
    assert_eq!(said(&[&envoy, &other]), [""; 0], "what cannot be read here is no mistake");
    let pulling = json!({"view": {"pull": {"cluster": "sidecar", "token": TOKEN}}, "pools": [{"name": "llama", "max_in_flight_per_worker": 4}]});
    let answering = |api: Value| json!({"api": api, "pools": [{"name": "llama", "workers": ["10.0.0.7:8000"]}]});
    assert_eq!(said(&[&pulling, &answering(json!({"token": TOKEN}))]), [""; 0]);
    assert_warns(&[&pulling, &answering(json!({"token": "another"}))], "a: view.pull.token", "answered 401");
    assert_warns(&[&pulling, &sidecar("llama")], "a: view.pull.token", "`api` token");
}

#[test]
fn a_filter_that_needs_a_view_has_one_from_somewhere() {
    let plugin = istio_named("WasmPlugin", "sluice");
    assert_eq!(said(&[&plugin]), [""; 0], "its proxy's listeners are in other files");
    assert_warns(&[&plugin, &sidecar("llama")], "a: spec.pluginConfig.pools[0]", "stale_view");
    let mut capped = plugin.clone();
    capped["spec"]["pluginConfig"]["pools"][0]["max_in_flight"] = 100.into();
    assert_eq!(said(&[&capped, &sidecar("llama")]), [""; 0]);
    let all: Vec<String> = istio().iter().map(ToString::to_string).collect();
    let with_sidecar = [all.join("\n---\n"), sidecar("llama").to_string()];
    assert_eq!(said_of(&with_sidecar), [""; 0], "its control listener is another document");
    let mut envoy = Bootstrap::shipped();
    envoy.0["static_resources"]["listeners"].as_array_mut().unwrap().pop();
    assert_warns(&[&envoy.0], &format!("a: {POLICY}.pools[0]"), "neither a control role");
}

#[test]
fn waits_of_a_policy_in_another_file_are_held_against_the_proxys_timeouts() {
    let ecds = std::fs::read_to_string(super::path_of("ecds/sluice.yaml")).unwrap();
    let mut envoy = Bootstrap::shipped();
    envoy.filters()[2] = json!({"name": "sluice", "config_discovery": {
        "type_urls": ["type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"], "default_config": {}}});
    assert_eq!(said_of(&[envoy.0.to_string(), ecds.clone()]), [""; 0]);
    envoy.manager()["stream_idle_timeout"] = "20s".into();
    envoy.route()["route"].as_object_mut().unwrap().remove("idle_timeout");
    let said = said_of(&[envoy.0.to_string(), ecds]);
    let start = format!("warning: a: {MANAGER}.stream_idle_timeout: ");
    assert!(matches!(&said[..], [one] if one.starts_with(&start)), "{said:#?}");
}

#[test]
fn a_wasm_plugin_cannot_route_by_models() {
    let plugin = |routes: Value| {
        let pools = json!([{"name": "a", "models": ["a*"], "max_in_flight": 4}, {"name": "b", "models": ["b*"], "max_in_flight": 4}]);
        json!({"apiVersion": "extensions.istio.io/v1alpha1", "kind": "WasmPlugin", "metadata": {"name": "sluice"}, "spec": {
            "failStrategy": "FAIL_RELOAD", "phase": "STATS", "pluginConfig": {"pools": pools, "routes": routes}}})
    };
    assert_warns(&[&plugin(json!([]))], "a: spec.pluginConfig.pools", "cluster of its route");
    let routed = json!([{"match": {"route_name": "a"}, "pool": "a"}, {"match": {"route_name": "b"}, "pool": "b"}]);
    assert_eq!(said(&[&plugin(routed)]), [""; 0]);
}

#[test]
fn manifests_of_others_are_passed_over() {
    let other = |kind: &str| json!({"apiVersion": "security.istio.io/v1", "kind": kind, "metadata": {"name": "jwt"}, "spec": {}});
    let policy = json!({"pools": [{"name": "llama", "max_in_flight": 4}]});
    let of_others = json!({"apiVersion": "extensions.istio.io/v1alpha1", "kind": "WasmPlugin", "metadata": {"name": "waf"},
                           "spec": {"url": "oci://registry/waf", "pluginConfig": {"rules": []}}});
    let text =
        [other("RequestAuthentication"), policy, of_others, other("Service")].map(|it| it.to_string()).join("\n---\n");
    let reports = check::files(&[&text], &|_| None);
    assert_eq!((reports[0].documents, reports[0].passed_over, &reports[0].findings[..]), (4, 3, &[][..]));
    let mut totals = check::Totals::default();
    totals.add(&reports[0]);
    assert_eq!(totals.to_string(), "1 file, 4 documents (3 passed over): no errors, no warnings");
    let only = other("Service").to_string();
    assert!(
        matches!(&said_of(&[only.clone(), only])[..], [one] if one.contains("nothing of Sluice")),
        "nothing of ours"
    );
}

#[test]
fn a_choice_of_worker_in_istio_needs_a_cluster_that_heeds_it() {
    let picks = istio().into_iter().map(|mut document| {
        if document["kind"] == "WasmPlugin" {
            document["spec"]["pluginConfig"]["pools"][0]["pick_endpoint"] = true.into();
        }
        document.to_string()
    });
    let picks = picks.collect::<Vec<_>>().join("\n---\n");
    let said = said_of(&[picks.clone(), sidecar("llama").to_string()]);
    let start = "warning: a, document 1: spec.pluginConfig.pools[0].pick_endpoint: pools that choose a worker: 1, EnvoyFilters of these files by which a cluster heeds that: 0";
    assert!(matches!(&said[..], [one] if one.starts_with(start)), "{said:#?}");
    let steering = std::fs::read_to_string(super::path_of("istio-steering.yaml")).unwrap();
    assert_eq!(said_of(&[picks, sidecar("llama").to_string(), steering.clone()]), [""; 0]);
    let shipped = istio().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n---\n");
    let said = said_of(&[shipped, sidecar("llama").to_string(), steering]);
    let start = "warning: c: spec.configPatches[0].patch.value: no pool of these files says `pick_endpoint: true`";
    assert!(matches!(&said[..], [one] if one.starts_with(start)), "{said:#?}");
}
