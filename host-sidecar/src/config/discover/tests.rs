use super::*;
use crate::Config;

const REST: &str = "proxies: [{url: 'http://127.0.0.1:15010', token: t}]\n";

fn pool(fields: &str) -> Result<crate::config::Pool, Vec<String>> {
    let text = format!("{REST}pools: [{{name: p, {fields}}}]\n");
    match Config::parse(&text) {
        Ok(mut config) => Ok(config.pools.remove(0)),
        Err(errors) => Err(errors.iter().map(ToString::to_string).collect()),
    }
}

fn source(element: &str) -> Source {
    pool(&format!("discover: [{element}]")).unwrap().discover.remove(0)
}

fn errors(element: &str) -> Vec<String> {
    pool(&format!("discover: [{element}]")).unwrap_err()
}

#[test]
fn a_name_is_enough_of_dns() {
    let source = source("{dns: {name: llm.svc, port: 8000}}");
    let Origin::Dns(dns) = &source.origin else { panic!("{source:?}") };
    assert_eq!((dns.name.as_str(), dns.records, dns.servers.len()), ("llm.svc", Records::Addresses(8_000), 0));
    assert_eq!((source.role, source.name().as_str()), (Role::Both, "dns:llm.svc:8000"));
    assert_eq!(source.pages.urls("10.0.0.7:8000"), ("http://10.0.0.7:8000/metrics".into(), None));
}

#[test]
fn every_field_of_dns_is_read() {
    let source = source(
        "{dns: {name: _http._tcp.llm.svc., kind: srv, servers: ['10.0.0.2:53', '[fd00::2]:5353']}, role: decode,
          metrics: {scheme: https, path: '/m?x=1', port: 9000}, hardware: {path: /gpus}}",
    );
    let Origin::Dns(dns) = &source.origin else { panic!("{source:?}") };
    assert_eq!((dns.records, dns.servers[1].port()), (Records::Services, 5_353));
    assert_eq!((source.role, source.name().as_str()), (Role::Decode, "dns:_http._tcp.llm.svc."));
    let urls = ("https://[fd00::7]:9000/m?x=1".into(), Some("http://[fd00::7]:9400/gpus".into()));
    assert_eq!(source.pages.urls("[fd00::7]:8000"), urls);
}

#[test]
fn tls_is_for_pools_whose_workers_may_have_a_page_over_it() {
    let pool = |source: &str| {
        let text = format!(
            "{{proxies: [{{url: 'http://127.0.0.1:1', token: t}}], pools: [{{name: m, tls: {{ca_file: /ca.pem}}, discover: [{source}]}}]}}"
        );
        Config::parse(&text).map(|config| config.pools[0].tls.ca_file.clone()).map_err(|errors| errors[0].to_string())
    };
    let trusted = Ok(Some("/ca.pem".into()));
    assert_eq!(pool("{file: {path: /workers.yaml}}"), trusted, "its entries may say https");
    assert_eq!(pool("{dns: {name: llm.svc, port: 8000}, metrics: {scheme: https}}"), trusted);
    assert_eq!(pool("{dns: {name: llm.svc, port: 8000}, hardware: {scheme: https, port: 9443}}"), trusted);
    let refused = pool("{dns: {name: llm.svc, port: 8000}}").unwrap_err();
    assert!(refused.contains("pools[0].tls: is only for a URL that begins with https://"), "{refused}");
}

#[cfg(feature = "kubernetes")]
#[test]
fn kubernetes_is_asked_for_a_service_or_for_labels() {
    let by_service = source("{kubernetes: {namespace: prod, service: llm, port: http}}");
    let Origin::Kubernetes(kubernetes) = &by_service.origin else { panic!("{by_service:?}") };
    let Objects::Slices(select, Port::Name(port)) = &kubernetes.objects else { panic!("{kubernetes:?}") };
    assert_eq!((select.as_label_selector().as_str(), port.as_str()), ("kubernetes.io/service-name=llm", "http"));
    assert_eq!(by_service.name(), "kubernetes:prod/llm:http");

    let by_labels = source(
        "{kubernetes: {namespace: prod, labels: {tier: gpu, app.kubernetes.io/name: llm}, port: 8000,
          api_server: 'https://10.0.0.1:6443', token_file: /t, ca_file: /c}, role: prefill}",
    );
    let Origin::Kubernetes(kubernetes) = &by_labels.origin else { panic!("{by_labels:?}") };
    let Objects::Slices(select, Port::Number(8_000)) = &kubernetes.objects else { panic!("{kubernetes:?}") };
    assert_eq!(select.as_label_selector(), "app.kubernetes.io/name=llm,tier=gpu");
    assert_eq!(kubernetes.api_server.as_deref(), Some("https://10.0.0.1:6443"));
    assert_eq!(by_labels.name(), "kubernetes:prod/app.kubernetes.io/name=llm,tier=gpu:8000");

    let by_pool = source("{kubernetes: {namespace: prod, inference_pool: llm}}");
    let Origin::Kubernetes(kubernetes) = &by_pool.origin else { panic!("{by_pool:?}") };
    assert!(matches!(&kubernetes.objects, Objects::InferencePool(name) if name == "llm"));
    assert_eq!(by_pool.name(), "kubernetes:prod/inferencepool/llm");
    let dotted = source("{kubernetes: {namespace: prod, inference_pool: llama-3.1-8b}}");
    assert_eq!(dotted.name(), "kubernetes:prod/inferencepool/llama-3.1-8b");
}

#[cfg(not(feature = "kubernetes"))]
#[test]
fn without_the_feature_kubernetes_is_a_mistake_that_says_so() {
    let found = errors("{kubernetes: {namespace: prod, service: llm, port: http}}");
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("pools[0].discover[0].kubernetes: this sidecar was built without Kubernetes"),
        "{found:?}"
    );
}

#[test]
fn a_file_holds_workers_as_the_configuration_does() {
    let source = source("{file: {path: /etc/sluice/workers.yaml}, metrics: {port: 9000}, hardware: {}, role: prefill}");
    assert_eq!(source.name(), "file:/etc/sluice/workers.yaml");
    let workers = source
        .workers("- 10.0.0.7:8000\n- {address: 'gpu:1', role: decode, draining: true, metrics_url: 'http://gpu:2/m', hardware_url: 'http://node:1/g'}\n")
        .unwrap();
    let said: Vec<_> =
        workers.iter().map(|worker| (worker.metrics_url.as_str(), worker.role, worker.draining)).collect();
    assert_eq!(said, [("http://10.0.0.7:9000/metrics", Role::Prefill, false), ("http://gpu:2/m", Role::Decode, true)]);
    let gpus: Vec<_> = workers.iter().map(|worker| worker.hardware_url.as_deref()).collect();
    assert_eq!(gpus, [Some("http://10.0.0.7:9400/metrics"), Some("http://node:1/g")]);
    assert!(source.workers("[]").unwrap().is_empty(), "a list may be empty");
    assert!(source.workers(r#"["10.0.0.7:8000"]"#).is_ok(), "JSON is read too");
}

#[test]
fn every_mistake_in_a_file_is_found() {
    let source = source("{file: {path: f}}");
    let errors = source.workers("['10.0.0.7', 'w:1', 'w:1', {address: 'w:2', colour: red}, 7]").unwrap_err();
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    let expected = [
        "[4]: a worker is host:port or an object with `address`",
        "[0]: \"10.0.0.7\" is not host:port",
        "[2]: \"w:1\" is already taken by [1]",
        "[3].colour: no such field",
    ];
    assert_eq!(errors, expected);
    assert_eq!(source.workers("").unwrap_err().len(), 1, "a file that is being written is no empty list");
    assert_eq!(source.workers("{workers: []}").unwrap_err().len(), 1);
}

#[test]
fn listed_workers_and_sources_stand_beside_each_other() {
    let both =
        pool("workers: [{address: 'w:1', role: prefill}, 'w:2'], discover: [{file: {path: a}}, {file: {path: b}}]");
    let both = both.unwrap();
    assert_eq!((both.workers.len(), both.discover.len()), (2, 2));
    assert_eq!((both.workers[0].role, both.workers[1].role), (Role::Prefill, Role::Both));
    let problems = |fields| pool(fields).unwrap_err();
    assert_eq!(problems("model: m"), ["pools[0]: workers or discover must be set"]);
    assert_eq!(problems("discover: []"), ["pools[0].discover: must not be empty"]);
    assert_eq!(problems("workers: [], discover: [{file: {path: a}}]"), ["pools[0].workers: must not be empty"]);
    assert_eq!(
        problems("discover: [{file: {path: a}}, {file: {path: a}, role: decode}]"),
        ["pools[0].discover[1]: \"file:a\" is already taken by pools[0].discover[0]"]
    );
}

#[test]
fn mistakes_say_what_to_do() {
    let at = "pools[0].discover[0]";
    for (element, expected) in [
        ("{}", ": exactly one of dns, kubernetes and file must be set"),
        ("{dns: {name: a.b, port: 1}, file: {path: f}}", ": exactly one of"),
        ("{file: {path: f}, colour: red}", ".colour: no such field"),
        ("{file: {path: f}, role: encode}", ".role: unknown variant `encode`, expected one of `both`, `prefill`"),
        ("{file: {path: ''}}", ".file.path: must not be empty"),
        ("{file: {}}", ".file.path: missing"),
        ("{file: {path: f}, metrics: {path: metrics}}", ".metrics.path: \"metrics\" must begin with /"),
        ("{file: {path: f}, metrics: {path: '/a b'}}", ".metrics.path: \"/a b\" must begin with / and hold neither"),
        ("{file: {path: f}, metrics: {port: 0}}", ".metrics.port: must be at least 1"),
        ("{file: {path: f}, metrics: {port: 70000}}", ".metrics.port: invalid value"),
        ("{dns: {port: 1}}", ".dns.name: missing"),
        ("{dns: {name: a.b}}", ".dns.port: missing"),
        ("{dns: {name: a.b, port: 0}}", ".dns.port: must be at least 1"),
        ("{dns: {name: a.b, port: 1, kind: srv}}", ".dns.port: must not be set with kind srv"),
        ("{dns: {name: a.b, port: 1, kind: mx}}", ".dns.kind: unknown variant `mx`, expected `a` or `srv`"),
        ("{dns: {name: a.b, port: 1, servers: [ns1]}}", ".dns.servers[0]: invalid socket address"),
        ("{dns: {name: a.b, port: 1, servers: []}}", ".dns.servers: must not be empty"),
        ("{dns: {name: 10.0.0.7, port: 1}}", ".dns.name: \"10.0.0.7\" is not a domain name"),
        ("{dns: {name: 'a..b', port: 1}}", ".dns.name: \"a..b\" is not a domain name"),
        ("{dns: {name: 'http://a', port: 1}}", ".dns.name: \"http://a\" is not a domain name"),
    ] {
        let found = errors(element);
        assert_eq!(found.len(), 1, "{element}: {found:?}");
        assert!(found[0].starts_with(&format!("{at}{expected}")), "{element}: {found:?}");
    }
}

#[cfg(feature = "kubernetes")]
#[test]
fn mistakes_about_kubernetes_say_what_to_do() {
    for (fields, expected) in [
        ("service: s, port: http", "namespace: missing"),
        ("namespace: Prod, service: s, port: http", "namespace: \"Prod\" is no name in Kubernetes"),
        ("namespace: n, service: 's,x=y', port: http", "service: \"s,x=y\" is no name in Kubernetes"),
        ("namespace: n, service: s", "port: missing"),
        ("namespace: n, inference_pool: p, port: 1", "port: must not be set with inference_pool"),
        ("namespace: n, inference_pool: p, service: s", "service: must not be set with inference_pool"),
        ("namespace: n, inference_pool: a..b", "inference_pool: \"a..b\" is no name in Kubernetes"),
        ("namespace: n, inference_pool: P", "inference_pool: \"P\" is no name in Kubernetes"),
        ("namespace: n, service: s, port: 0", "port: must be at least 1"),
        ("namespace: n, service: s, port: '8000'", "port: is no name of a port; write a number without quotes"),
        ("namespace: n, service: s, port: [1]", "port: a port is a number or the name of a port"),
        ("namespace: n, labels: {}, port: 1", "labels: must not be empty"),
        ("namespace: n, labels: {'a,b': c}, port: 1", "labels: \"a,b: c\" is no label"),
        ("namespace: n, labels: {a: 'b,c'}, port: 1", "labels: \"a: b,c\" is no label"),
        (
            "namespace: n, service: s, port: 1, api_server: 'ftp://a'",
            "api_server: \"ftp://a\" must begin with https://",
        ),
        ("namespace: n, service: s, port: 1, api_server: 'https://a:b@c'", "api_server: a URL must not hold a user"),
        ("namespace: n, service: s, port: 1, api_server: 'https://a?b'", "api_server: \"https://a?b\" must end with"),
        (
            "namespace: n, service: s, port: 1, api_server: 'http://a', token_file: t",
            "api_server: a token is sent over",
        ),
    ] {
        let found = errors(&format!("{{kubernetes: {{{fields}}}}}"));
        assert_eq!(found.len(), 1, "{fields}: {found:?}");
        assert!(found[0].starts_with(&format!("pools[0].discover[0].kubernetes.{expected}")), "{fields}: {found:?}");
    }
    for fields in ["namespace: n, port: 1", "namespace: n, service: s, labels: {a: b}, port: 1"] {
        let found = errors(&format!("{{kubernetes: {{{fields}}}}}"));
        assert_eq!(
            found,
            ["pools[0].discover[0].kubernetes: exactly one of service, labels and inference_pool must be set"]
        );
    }
}
