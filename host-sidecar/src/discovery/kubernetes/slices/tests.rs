use serde_json::{Value, json};

use super::*;
use crate::config::discover::{Origin, Pages};

/// No slice is left out by it here.
static SELECT: Select = Select::Service(String::new());

fn source() -> Source {
    Source { origin: Origin::File("unused".into()), pages: Pages::default(), role: Role::Both }
}

fn slice(name: &str, fields: Value) -> EndpointSlice {
    let mut slice = json!({
        "metadata": {"name": name, "resourceVersion": "7"},
        "addressType": "IPv4",
        "ports": [{"name": "metrics", "port": 9000}, {"name": "http", "port": 8000, "protocol": "TCP"}],
        "endpoints": [],
    });
    for (key, value) in fields.as_object().unwrap() {
        slice[key] = value.clone();
    }
    serde_json::from_value(slice).unwrap()
}

/// What `slices` name at the port `http`: address, condition and role of each.
fn members(slices: Vec<EndpointSlice>) -> Vec<(String, Condition, Role)> {
    let (source, port) = (source(), Port::Name("http".into()));
    let mut all = Slices::new(&source, &SELECT, &port);
    all.replace(slices);
    let (members, problem) = all.members();
    assert_eq!(problem, None);
    members.into_iter().map(|member| (member.address, member.condition, member.role)).collect()
}

#[test]
fn conditions_are_read_as_kubernetes_means_them() {
    let yes = Some(true);
    let no = Some(false);
    for (ready, serving, terminating, expected) in [
        (None, None, None, Condition::Ready),
        (yes, yes, no, Condition::Ready),
        (no, no, no, Condition::NotReady),
        (no, None, None, Condition::NotReady),
        (no, yes, yes, Condition::Draining),
        (no, None, yes, Condition::Draining),
        (no, no, yes, Condition::NotReady),
        // A Service that publishes pods that are not ready.
        (yes, yes, yes, Condition::Draining),
        (yes, no, no, Condition::Ready),
    ] {
        let said = EndpointConditions { ready, serving, terminating };
        assert_eq!(condition(Some(&said)), expected, "{said:?}");
    }
    assert_eq!(condition(None), Condition::Ready);
}

#[test]
fn an_endpoint_is_a_worker_by_its_first_address() {
    let endpoints = json!({"endpoints": [
        {"addresses": ["10.0.0.8", "10.0.0.9"], "conditions": {"ready": false}},
        {"addresses": ["10.0.0.7"]},
        {"addresses": ["worker.example"]},
        {"addresses": []},
    ]});
    let found = members(vec![slice("a", endpoints)]);
    let expected =
        [("10.0.0.7:8000", Condition::Ready, Role::Both), ("10.0.0.8:8000", Condition::NotReady, Role::Both)];
    assert_eq!(found, expected.map(|(address, condition, role)| (address.to_owned(), condition, role)));
}

#[test]
fn a_slice_says_what_its_workers_do() {
    let labelled = |name: &str, role: &str, address: &str| {
        let metadata = json!({"name": name, "labels": {"llm-d.ai/role": role}});
        slice(name, json!({"metadata": metadata, "endpoints": [{"addresses": [address]}]}))
    };
    let slices = vec![
        labelled("a", "prefill", "10.0.0.1"),
        labelled("b", "decode", "10.0.0.2"),
        labelled("c", "both", "10.0.0.3"),
        labelled("d", "encode", "10.0.0.4"),
    ];
    let source = Source { role: Role::Decode, ..source() };
    let mut all = Slices::new(&source, &SELECT, &Port::Number(1));
    all.replace(slices);
    let roles: Vec<_> = all.members().0.into_iter().map(|member| member.role).collect();
    assert_eq!(roles, [Role::Prefill, Role::Decode, Role::Both, Role::Decode], "who does not say has the source's");
}

#[test]
fn a_pod_in_several_slices_is_one_worker() {
    let pod = |address: &str, conditions: Value| json!({"endpoints": [{"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "uid": "u-1"}}]});
    let found =
        members(vec![slice("v6", pod("fd00::7", json!({}))), slice("v4", pod("10.0.0.7", json!({"ready": false})))]);
    assert_eq!(found, [("10.0.0.7:8000".to_owned(), Condition::NotReady, Role::Both)], "by its IPv4 address");
    let moved = vec![slice("a", pod("10.0.0.7", json!({"ready": false}))), slice("b", pod("10.0.0.7", json!({})))];
    assert_eq!(members(moved), [("10.0.0.7:8000".to_owned(), Condition::Ready, Role::Both)]);
    let v6 = members(vec![slice("v6", pod("fd00::7", json!({})))]);
    assert_eq!(v6[0].0, "[fd00::7]:8000");
}

#[test]
fn a_port_by_number_needs_no_list_and_one_by_name_must_be_there() {
    let endpoints = json!([{"addresses": ["10.0.0.7"]}]);
    let none = || slice("a", json!({"endpoints": endpoints, "ports": null}));
    let udp =
        || slice("b", json!({"endpoints": endpoints, "ports": [{"name": "http", "port": 53, "protocol": "UDP"}]}));
    let idle = || slice("c", json!({"ports": []}));
    let source = source();
    let found = |port: Port, slices: Vec<EndpointSlice>| {
        let mut all = Slices::new(&source, &SELECT, &port);
        all.replace(slices);
        let (members, problem) = all.members();
        (members.len(), problem.map(|problem| problem.to_string()))
    };
    assert_eq!(found(Port::Number(8_000), vec![none(), udp(), idle()]), (1, None));
    let name = || Port::Name("http".into());
    assert_eq!(found(name(), vec![idle()]), (0, None), "who names nobody needs no port");
    let good = slice("d", json!({"endpoints": [{"addresses": ["10.0.0.8"]}]}));
    let (members, problem) = found(name(), vec![udp(), good]);
    assert_eq!(
        (members, problem.unwrap().as_str()),
        (1, "EndpointSlice b has no TCP port http; set `port` to one it has")
    );
    assert!(found(name(), vec![none()]).1.is_some());
}

#[test]
fn slices_come_change_and_go_one_by_one() {
    let (source, port) = (source(), Port::Number(1));
    let mut all = Slices::new(&source, &SELECT, &port);
    let with = |name: &str, address: &str| slice(name, json!({"endpoints": [{"addresses": [address]}]}));
    let addresses = |all: &Slices<'_>| -> Vec<_> {
        let mut addresses: Vec<_> = all.members().0.into_iter().map(|member| member.address).collect();
        addresses.sort();
        addresses
    };
    all.replace(vec![with("a", "10.0.0.1"), with("b", "10.0.0.2")]);
    assert_eq!(all.set(with("b", "10.0.0.3")).as_deref(), Some("7"));
    assert_eq!(addresses(&all), ["10.0.0.1:1", "10.0.0.3:1"]);
    assert_eq!(all.remove(with("a", "10.0.0.1")).as_deref(), Some("7"));
    assert_eq!(addresses(&all), ["10.0.0.3:1"]);
    all.replace(vec![with("c", "10.0.0.4")]);
    assert_eq!(addresses(&all), ["10.0.0.4:1"]);
}
