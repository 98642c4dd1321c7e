//! The pods of an InferencePool.

use super::*;
use crate::discovery::Member;

fn of_pool(api: &ApiServer) -> News {
    news(Kubernetes { objects: Objects::InferencePool("llama".into()), ..at(api.url()) }, &FAST)
}

fn pool(app: &str, ports: &[u16]) -> Value {
    let ports: Vec<Value> = ports.iter().map(|port| json!({"number": port})).collect();
    json!({"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "llama"},
        "spec": {"selector": {"matchLabels": {"app": app}}, "targetPorts": ports, "endpointPickerRef": {"name": "epp"}}})
}

fn pod(name: &str, ip: &str, is_ready: bool) -> Value {
    let ready = if is_ready { "True" } else { "False" };
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "llama"}},
        "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": ready}]}})
}

#[tokio::test]
async fn its_pods_are_workers_as_they_come_drain_and_go() {
    let api = ApiServer::start().await;
    api.pool(pool("llama", &[8000]));
    let mut decoding = pod("b", "10.0.0.8", true);
    decoding["metadata"]["labels"]["llm-d.ai/role"] = "decode".into();
    api.list(&[pod("a", "10.0.0.7", true), decoding]);
    let mut news = of_pool(&api);
    let decode = Member { role: Role::Decode, ..ready("10.0.0.8:8000") };
    assert_eq!(news.members().await, [ready("10.0.0.7:8000"), decode]);
    let query = api.query();
    assert!(query.contains("labelSelector=app%3Dllama"), "{query}");
    api.watched().await;

    let mut starting = pod("c", "10.0.0.9", false);
    starting["status"].as_object_mut().unwrap().remove("podIP");
    api.event("ADDED", starting);
    api.event("MODIFIED", pod("c", "10.0.0.9", false));
    let conditions = |members: Vec<Member>| members.into_iter().map(|member| member.condition).collect::<Vec<_>>();
    assert_eq!(conditions(news.members().await), [Condition::Ready, Condition::Ready, Condition::NotReady]);
    api.event("MODIFIED", pod("c", "10.0.0.9", true));
    assert_eq!(conditions(news.members().await), [Condition::Ready; 3]);
    let mut ending = pod("a", "10.0.0.7", true);
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    api.event("MODIFIED", ending);
    assert_eq!(conditions(news.members().await), [Condition::Draining, Condition::Ready, Condition::Ready]);
    api.event("DELETED", pod("a", "10.0.0.7", true));
    assert_eq!(news.addresses().await, ["10.0.0.8:8000", "10.0.0.9:8000"]);
    let mut failed = pod("c", "10.0.0.9", false);
    failed["status"]["phase"] = "Failed".into();
    api.event("MODIFIED", failed);
    assert_eq!(news.addresses().await, ["10.0.0.8:8000"]);
}

#[tokio::test]
async fn each_port_of_a_pod_is_a_worker() {
    let api = ApiServer::start().await;
    api.pool(pool("llama", &[8000, 8001]));
    api.list(&[pod("a", "10.0.0.7", true)]);
    let mut news = of_pool(&api);
    assert_eq!(news.addresses().await, ["10.0.0.7:8000", "10.0.0.7:8001"]);
    api.watched().await;
    let mut one_port = pod("a", "10.0.0.7", true);
    one_port["metadata"]["annotations"]["inference.networking.k8s.io/active-ports"] = "8001, 8002".into();
    api.event("MODIFIED", one_port);
    assert_eq!(news.addresses().await, ["10.0.0.7:8001"]);
}

#[tokio::test]
async fn several_ports_have_pages_of_their_own() {
    let api = ApiServer::start().await;
    api.pool(pool("llama", &[8000, 8001]));
    api.list(&[pod("a", "10.0.0.7", true)]);
    let metrics = Page { port: Some(9100), ..Page::default() };
    let kubernetes = Kubernetes { objects: Objects::InferencePool("llama".into()), ..at(api.url()) };
    let mut news = news_of(kubernetes, Pages { metrics, ..Pages::default() }, &FAST);
    let error = news.error().await;
    assert!(matches!(&error, LookError::Unreadable(why) if why.contains("several targetPorts")), "{error:?}");
}

#[tokio::test]
async fn a_pool_that_selects_others_is_followed_with_the_next_watch() {
    let api = ApiServer::start().await;
    api.pool(pool("llama", &[8000]));
    api.list(&[pod("a", "10.0.0.7", true)]);
    let mut news = of_pool(&api);
    news.members().await;
    api.watched().await;
    api.pool(pool("qwen", &[9000]));
    api.list(&[pod("q", "10.0.0.9", true)]);
    api.end_watch();
    assert_eq!(news.addresses().await, ["10.0.0.9:9000"]);
    assert!(api.query().contains("labelSelector=app%3Dqwen"));
}

#[tokio::test]
async fn without_the_pool_its_former_workers_are_kept() {
    let api = ApiServer::start().await;
    api.pool(pool("llama", &[8000]));
    api.list(&[pod("a", "10.0.0.7", true)]);
    let mut news = of_pool(&api);
    assert_eq!(news.addresses().await, ["10.0.0.7:8000"]);
    api.watched().await;
    api.no_pool();
    api.end_watch();
    let lost = news.next().await;
    assert!(matches!(&lost.error, Some(LookError::Refused(why)) if why.contains("404")), "{lost:?}");
    assert_eq!(lost.members, None, "nothing is said of workers");
    api.pool(pool("llama", &[]));
    let error = loop {
        match news.error().await {
            LookError::Refused(_) => {}
            other => break other,
        }
    };
    assert!(
        matches!(&error, LookError::Unreadable(why) if why.contains("spec.targetPorts names no port")),
        "{error:?}"
    );
    api.list(&[pod("b", "10.0.0.8", true)]);
    api.pool(pool("llama", &[8000]));
    assert_eq!(news.addresses_despite_errors().await, ["10.0.0.8:8000"]);
}
