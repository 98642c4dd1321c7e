use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

use self::server::ApiServer;
use super::*;
use crate::config::discover::{Origin, Page, Pages, Port, Role, Select};
use crate::discovery::Condition;
use crate::discovery::tests::{News, ready};

mod pools;
mod server;

const FAST: Pace = Pace {
    answer: Duration::from_secs(5),
    watch: Duration::from_secs(60),
    resume: Duration::from_millis(1),
    retry: (Duration::from_millis(5), Duration::from_millis(20)),
};

fn at(api_server: String) -> Kubernetes {
    Kubernetes {
        namespace: "prod".into(),
        objects: Objects::Slices(Select::Service("llm".into()), Port::Name("http".into())),
        api_server: Some(api_server),
        token_file: None,
        ca_file: None,
    }
}

fn news(kubernetes: Kubernetes, pace: &'static Pace) -> News {
    news_of(kubernetes, Pages::default(), pace)
}

fn news_of(kubernetes: Kubernetes, pages: Pages, pace: &'static Pace) -> News {
    let origin = Origin::Kubernetes(kubernetes.clone());
    let source = Source { origin, pages, role: Role::Both };
    News::of(|teller| async move { watch(&kubernetes, &source, teller, pace).await })
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn slice(name: &str, endpoints: Value) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": name},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8000}], "endpoints": endpoints,
    })
}

fn one(name: &str, ip: &str) -> Value {
    slice(name, json!([{"addresses": [ip]}]))
}

#[tokio::test]
async fn workers_come_change_and_go_as_their_slices_do() {
    let api = ApiServer::start().await;
    api.list(&[one("a", "10.0.0.7")]);
    let mut news = news(at(api.url()), &FAST);
    assert_eq!(news.members().await, [ready("10.0.0.7:8000")]);
    let query = api.query();
    assert!(query.contains("labelSelector=kubernetes.io%2Fservice-name%3Dllm"), "{query}");
    api.watched().await;

    api.event("ADDED", one("b", "10.0.0.8"));
    assert_eq!(news.addresses().await, ["10.0.0.7:8000", "10.0.0.8:8000"]);
    let conditions = json!({"ready": false, "serving": true, "terminating": true});
    api.event("MODIFIED", slice("b", json!([{"addresses": ["10.0.0.8"], "conditions": conditions}])));
    let draining = |address| crate::discovery::Member { condition: Condition::Draining, ..ready(address) };
    assert_eq!(news.members().await, [ready("10.0.0.7:8000"), draining("10.0.0.8:8000")]);
    api.event("MODIFIED", slice("b", json!([{"addresses": ["10.0.0.8"], "conditions": {"ready": false}}])));
    assert_eq!(news.members().await[1].condition, Condition::NotReady);
    api.event("DELETED", one("a", "10.0.0.7"));
    assert_eq!(news.addresses().await, ["10.0.0.8:8000"]);
    api.event("DELETED", one("b", "10.0.0.8"));
    assert_eq!(news.addresses().await, [""; 0], "that there is nobody is believed at once");
}

#[tokio::test]
async fn a_watch_that_ends_goes_on_where_it_was() {
    let api = ApiServer::start().await;
    api.list(&[one("a", "10.0.0.7")]);
    let mut news = news(at(api.url()), &FAST);
    news.members().await;
    assert_eq!(api.watched().await, "1", "from the version of the list");
    api.event("ADDED", one("b", "10.0.0.8"));
    assert_eq!(news.addresses().await.len(), 2);
    api.end_watch();
    assert_eq!(api.watched().await, "2", "from the version of the last event");
    api.bookmark("40");
    api.end_watch();
    assert_eq!(api.watched().await, "40", "from the version of the bookmark");
    api.send("{\"type\":");
    api.break_watch();
    assert_eq!(api.watched().await, "40", "though its connection was cut");
    assert_eq!(api.lists(), 1, "nothing is listed anew");
}

#[tokio::test]
async fn a_watch_that_makes_no_sense_is_told_and_made_good_by_a_list() {
    let api = ApiServer::start().await;
    api.list(&[one("a", "10.0.0.7")]);
    let mut news = news(at(api.url()), &FAST);
    news.members().await;
    for garbage in ["hello\n", "{\"type\":\"ADDED\",\"object\":7}\n"] {
        api.watched().await;
        api.send(garbage);
        let error = news.error().await;
        assert!(matches!(error, LookError::Unreadable(_)), "{error:?}");
        news.recovery().await;
    }
    api.watched().await;
    api.list(&[one("a", "10.0.0.7"), one("b", "10.0.0.8")]);
    api.send("hello\n");
    news.error().await;
    assert_eq!(news.addresses_despite_errors().await, ["10.0.0.7:8000", "10.0.0.8:8000"], "what was missed is there");
    news.recovery().await;
}

#[tokio::test]
async fn a_version_that_is_gone_is_listed_anew_without_a_word() {
    let api = ApiServer::start().await;
    api.list(&[one("a", "10.0.0.7")]);
    let mut news = news(at(api.url()), &FAST);
    news.members().await;
    api.watched().await;
    api.list(&[one("b", "10.0.0.8")]);
    let gone = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired",
        "message": "too old resource version"});
    api.event("ERROR", gone);
    assert_eq!(news.addresses().await, ["10.0.0.8:8000"], "in the stream");
    api.watched().await;
    api.refuse_watch(410);
    api.list(&[one("c", "10.0.0.9")]);
    api.end_watch();
    assert_eq!(news.addresses().await, ["10.0.0.9:8000"], "as an answer");
}

#[tokio::test]
async fn while_the_api_server_refuses_the_last_word_stands() {
    let api = ApiServer::start().await;
    api.refuse(403);
    let mut news = news(at(api.url()), &FAST);
    let error = news.error().await;
    assert!(matches!(&error, LookError::Refused(why) if why.contains("403 Forbidden: no")), "{error:?}");
    api.list(&[one("a", "10.0.0.7")]);
    assert_eq!(news.addresses_despite_errors().await, ["10.0.0.7:8000"]);
    api.watched().await;
    api.refuse(503);
    api.break_watch();
    let error = news.error().await;
    assert!(matches!(&error, LookError::Refused(why) if why.contains("503")), "{error:?}");
    api.list(&[one("a", "10.0.0.7")]);
    news.recovery().await;
}

#[tokio::test]
async fn who_may_list_but_not_watch_is_told_so_with_the_members() {
    let api = ApiServer::start().await;
    api.list(&[one("a", "10.0.0.7")]);
    api.refuse_watches(403);
    let mut news = news(at(api.url()), &FAST);
    assert_eq!(news.members().await, [ready("10.0.0.7:8000")]);
    for _ in 0..4 {
        let error = news.error().await;
        assert!(matches!(&error, LookError::Refused(why) if why.contains("403")), "{error:?}");
    }
    api.list(&[one("b", "10.0.0.8")]);
    assert_eq!(news.addresses_despite_errors().await, ["10.0.0.8:8000"], "lists alone still bring what is new");
}

#[tokio::test]
async fn an_api_server_that_is_away_or_silent_is_told() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = unused.local_addr().unwrap();
    static IMPATIENT: Pace = Pace { answer: Duration::from_millis(50), ..FAST };
    let mut silent = news(at(format!("http://{address}")), &IMPATIENT);
    assert_eq!(silent.error().await, LookError::Timeout, "it is never accepted");
    drop((silent, unused));
    let mut away = news(at(format!("http://{address}")), &FAST);
    let error = away.error().await;
    assert!(matches!(&error, LookError::Connection(why) if why.contains("refused")), "{error:?}");
}

#[tokio::test]
async fn a_named_port_that_is_missing_is_told_with_the_rest() {
    let api = ApiServer::start().await;
    let mut without = one("b", "10.0.0.8");
    without["ports"] = json!([{"name": "web", "port": 80}]);
    api.list(&[one("a", "10.0.0.7"), without]);
    let mut news = news(at(api.url()), &FAST);
    let found = news.next().await;
    assert_eq!(found.members, Some(vec![ready("10.0.0.7:8000")]));
    assert!(
        matches!(found.error, Some(LookError::Unreadable(why)) if why.contains("EndpointSlice b has no TCP port http"))
    );
}

#[tokio::test]
async fn a_slice_that_loses_its_port_keeps_its_workers() {
    let api = ApiServer::start().await;
    let renamed = |slice: &Value| {
        let mut slice = slice.clone();
        slice["ports"] = json!([{"name": "web", "port": 80}]);
        slice
    };
    let slice = one("a", "10.0.0.7");
    api.list(&[renamed(&slice)]);
    {
        let mut unknown = news(at(api.url()), &FAST);
        assert!(matches!(unknown.error().await, LookError::Unreadable(_)), "there is somebody, and nobody knows where");
        api.watched().await;
    }

    api.list(std::slice::from_ref(&slice));
    let mut news = news(at(api.url()), &FAST);
    assert_eq!(news.members().await, [ready("10.0.0.7:8000")]);
    api.watched().await;
    api.event("MODIFIED", renamed(&slice));
    let lost = news.error().await;
    assert!(matches!(&lost, LookError::Unreadable(why) if why.contains("no TCP port http")), "{lost:?}");
    api.event("MODIFIED", one("a", "10.0.0.8"));
    assert_eq!(news.addresses_despite_errors().await, ["10.0.0.8:8000"]);
}

#[tokio::test]
async fn over_tls_the_authority_is_checked_and_the_token_sent() {
    let folder = TempDir::new().unwrap();
    let own = authority();
    let (own_file, other_file) = (folder.path().join("own"), folder.path().join("other"));
    std::fs::write(&own_file, own.pem()).unwrap();
    std::fs::write(&other_file, authority().pem()).unwrap();
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "open-sesame\n").unwrap();
    let api = ApiServer::start_with_tls(&own, "open-sesame").await;
    api.list(&[one("a", "10.0.0.7")]);

    let with = |ca: &PathBuf, token: Option<&PathBuf>| Kubernetes {
        ca_file: Some(ca.clone()),
        token_file: token.cloned(),
        ..at(api.url())
    };
    assert_eq!(news(with(&own_file, Some(&token_file)), &FAST).members().await, [ready("10.0.0.7:8000")]);
    let error = news(with(&other_file, Some(&token_file)), &FAST).error().await;
    assert!(matches!(&error, LookError::Connection(why) if why.contains("certificate")), "{error:?}");
    let error = news(with(&own_file, None), &FAST).error().await;
    assert!(matches!(&error, LookError::Refused(why) if why.contains("401")), "{error:?}");
    let missing = folder.path().join("missing");
    for kubernetes in [with(&missing, Some(&token_file)), with(&own_file, Some(&missing))] {
        let error = news(kubernetes, &FAST).error().await;
        assert!(matches!(&error, LookError::Unreadable(why) if why.contains("missing")), "{error:?}");
    }
}

#[tokio::test]
async fn a_token_is_read_again_for_every_watch() {
    let folder = TempDir::new().unwrap();
    let issuer = authority();
    let (ca_file, token_file) = (folder.path().join("ca"), folder.path().join("token"));
    std::fs::write(&ca_file, issuer.pem()).unwrap();
    std::fs::write(&token_file, "first").unwrap();
    let api = ApiServer::start_with_tls(&issuer, "first").await;
    api.list(&[one("a", "10.0.0.7")]);
    let kubernetes = Kubernetes { ca_file: Some(ca_file), token_file: Some(token_file.clone()), ..at(api.url()) };
    let mut news = news(kubernetes, &FAST);
    news.members().await;
    api.watched().await;
    std::fs::write(&token_file, "second").unwrap();
    api.take_only("second");
    api.end_watch();
    api.watched().await;
    assert_eq!(api.lists(), 1, "it went on as if nothing had happened");
}

#[test]
fn a_pod_finds_its_own_cluster() {
    let inside = Kubernetes { api_server: None, ..at(String::new()) };
    let reached = |kubernetes: &Kubernetes, host: &str| {
        let environment = |name: &str| Some(if name == HOST { host.to_owned() } else { "6443".to_owned() });
        reach(kubernetes, environment).unwrap()
    };
    let (url, token, ca) = reached(&inside, "10.0.0.1");
    assert_eq!(url, "https://10.0.0.1:6443");
    assert_eq!((token, ca), (Some(TOKEN_FILE.into()), Some(CA_FILE.into())));
    assert_eq!(reached(&inside, "fd00::1").0, "https://[fd00::1]:6443");
    let other = Kubernetes { token_file: Some("/t".into()), ca_file: Some("/c".into()), ..inside.clone() };
    let (_, token, ca) = reached(&other, "10.0.0.1");
    assert_eq!((token, ca), (Some("/t".into()), Some("/c".into())));
    let (url, token, ca) = reached(&at("https://10.9.9.9".into()), "10.0.0.1");
    assert_eq!((url.as_str(), token, ca), ("https://10.9.9.9", None, None), "a pod's token stays in its cluster");
    let error = reach(&inside, |_| None).unwrap_err();
    assert!(error.to_string().contains("set api_server"), "{error}");
}
