//! What is shipped for finding workers in Kubernetes.

use std::path::{Path, PathBuf};

use host_sidecar::Config;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use serde::Deserialize;

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap()
}

#[test]
fn the_shipped_configuration_has_neither_errors_nor_warnings() {
    let config = Config::parse(&read("envoy-config/sidecar-discovery.yaml")).unwrap();
    assert_eq!(config.warnings(), [""; 0]);
    let names: Vec<_> = config.pools.iter().flat_map(|pool| &pool.discover).map(|source| source.name()).collect();
    let expected = [
        "kubernetes:inference/llama-70b-prefill:http",
        "kubernetes:inference/llama-70b-decode:http",
        "dns:llama-8b.inference.svc.cluster.local.:8000",
        "kubernetes:inference/inferencepool/mistral",
        "dns:_http._tcp.qwen.gpu.example.com.",
        "file:/etc/sluice/qwen.yaml",
    ];
    assert_eq!(names, expected);
}

#[test]
fn the_shipped_role_allows_what_the_sidecar_asks_for_and_no_more() {
    let text = read("envoy-config/rbac.yaml");
    assert!(read("docs/discovery.md").contains(&text), "the page shows another role");
    let mut documents = serde_norway::Deserializer::from_str(&text);
    let role = Role::deserialize(documents.next().unwrap()).unwrap();
    let binding = RoleBinding::deserialize(documents.next().unwrap()).unwrap();
    assert!(documents.next().is_none());
    let rules = role.rules.unwrap().into_iter();
    let rules: Vec<_> = rules.map(|rule| (rule.api_groups.unwrap(), rule.resources.unwrap(), rule.verbs)).collect();
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let expected: [(&str, &str, &[&str]); 3] = [
        ("discovery.k8s.io", "endpointslices", &["list", "watch"]),
        ("inference.networking.k8s.io", "inferencepools", &["get"]),
        ("", "pods", &["list", "watch"]),
    ];
    assert_eq!(rules, expected.map(|(group, what, verbs)| (words(&[group]), words(&[what]), words(verbs))));
    assert_eq!(Some(binding.role_ref.name), role.metadata.name);
    assert_eq!(binding.metadata.namespace, role.metadata.namespace);
}
