//! Tenants that are named by the certificate of their connection.

use std::io;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use wasm_tests::authority::{Authority, Identity, dns, uri};
use wasm_tests::bootstrap::{virtual_hosts, worker_routes};
use wasm_tests::caller::{CHAT, chat, request_bytes};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait};

/// Name of the proxy, by which callers know it.
const SERVER: &str = "proxy.test";

/// A caller's end of a connection, who trusts the authority and shows a certificate or none.
fn connector(authority: &Authority, identity: Option<&Identity>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(authority.der().to_vec())).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some(identity) => {
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(identity.key.serialize_der()));
            config
                .with_client_auth_cert(vec![CertificateDer::from(identity.der.clone())], key)
                .expect("a key that fits")
        }
    };
    TlsConnector::from(Arc::new(config))
}

/// Posts a chat request that claims to be of the tenant `from-header`; the beginning of the answer. What refuses a
/// certificate does so after the caller's part of the handshake, so that is an error while reading.
async fn post(rig: &Rig, connector: &TlsConnector) -> io::Result<String> {
    let body = chat(MODEL, 1, false).to_string();
    answer(rig, connector, &request_bytes(CHAT, &[("x-tenant-id", b"from-header")], body.as_bytes(), true)).await
}

/// The beginning of the answer to a request.
async fn answer(rig: &Rig, connector: &TlsConnector, request: &[u8]) -> io::Result<String> {
    let name = ServerName::try_from(SERVER).expect("a name");
    let mut stream = connector.connect(name, TcpStream::connect(rig.address).await?).await?;
    stream.write_all(request).await?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// The tenant that the worker was told of; the request must have been served.
async fn tenant(rig: &Rig, connector: &TlsConnector) -> String {
    let before = rig.worker.stats().requests;
    assert_eq!(post(rig, connector).await.expect("an answer"), "HTTP/1.1 200");
    let stats = rig.worker.stats();
    assert_eq!(stats.requests, before + 1, "it came to the worker");
    stats.last_headers["x-sluice-tenant"].clone()
}

async fn rig(authority: &Authority, sources: Value) -> Rig {
    let mut setup = Setup::new(1, Wait::Unread).with("/tenant", json!({"sources": sources, "default": "nobody"}));
    setup.transport_socket = Some(authority.transport_socket(SERVER, false));
    Rig::start(setup).await
}

#[tokio::test]
async fn a_certificate_names_its_tenant_and_a_header_cannot() {
    let authority = Authority::new();
    let rig = rig(&authority, json!([{"certificate": {"after": "spiffe://cluster.local/ns/"}}])).await;
    for (names, expected) in [
        (vec![uri("spiffe://cluster.local/ns/acme/sa/web")], "acme"),
        (vec![uri("spiffe://cluster.local/ns/zeta/sa/batch")], "zeta"),
        // A certificate may name hosts as well; only a URI is an identity.
        (vec![dns("acme.test"), uri("spiffe://cluster.local/ns/acme/sa/web")], "acme"),
        (vec![dns("spiffe.cluster.local")], "nobody"),
        (vec![uri("spiffe://elsewhere/ns/acme/sa/web")], "nobody"),
        (vec![uri("spiffe://cluster.local.elsewhere/ns/acme/sa/web")], "nobody"),
        (vec![uri("spiffe://cluster.local/ns/")], "nobody"),
    ] {
        let identity = authority.issue(&names);
        assert_eq!(tenant(&rig, &connector(&authority, Some(&identity))).await, expected, "{names:?}");
    }
    assert_eq!(tenant(&rig, &connector(&authority, None)).await, "nobody", "no certificate");
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn a_certificate_that_names_nobody_leaves_it_to_the_next_source() {
    let authority = Authority::new();
    let sources = json!([{"certificate": {"after": "spiffe://cluster.local/ns/"}}, {"header": "x-tenant-id"}]);
    let rig = rig(&authority, sources).await;
    let (ours, foreign) = ("spiffe://cluster.local/ns/acme/sa/web", "spiffe://elsewhere/ns/acme/sa/web");
    for (name, expected) in [(ours, "acme"), (foreign, "from-header")] {
        let identity = authority.issue(&[uri(name)]);
        assert_eq!(tenant(&rig, &connector(&authority, Some(&identity))).await, expected, "{name}");
    }
    assert_eq!(tenant(&rig, &connector(&authority, None)).await, "from-header", "no certificate");
    rig.nothing_trapped().await;
}

/// The whole URI is the name where the configuration does not say what stands before it.
#[tokio::test]
async fn a_whole_uri_is_a_name_and_a_forged_one_is_not_heard() {
    let authority = Authority::new();
    let rig = rig(&authority, json!([{"certificate": {}}])).await;
    let name = "spiffe://cluster.local/ns/acme/sa/web";
    let identity = authority.issue(&[uri(name)]);
    assert_eq!(tenant(&rig, &connector(&authority, Some(&identity))).await, name);

    let forged = Authority::new().issue(&[uri(name)]);
    let answer = post(&rig, &connector(&authority, Some(&forged))).await;
    assert!(answer.is_err(), "the proxy lets nobody in whom the authority does not vouch for: {answer:?}");
    assert_eq!(rig.worker.stats().requests, 1);
    rig.nothing_trapped().await;
}

/// Another proxy of ours in front puts headers on that a route matches. They are believed of it, and of no other peer.
#[tokio::test]
async fn headers_of_a_trusted_proxy_choose_routes_as_the_platforms_do() {
    let authority = Authority::new();
    let mut setup = Setup::new(1, Wait::Unread)
        .with("/tenant", json!({"sources": [{"header": "x-tenant-id"}]}))
        .with("/tenants", json!({"*": {"requests_per_minute": 1}}))
        .with("/tiers", json!({"wide": {"requests_per_minute": 3}}))
        .with("/trust_tags_from", json!({"spiffe": ["spiffe://cluster.local/ns/edge/*"]}));
    let mut matched = worker_routes()[1].clone();
    matched["match"] =
        json!({"prefix": "/", "headers": [{"name": "x-sluice-pool", "string_match": {"exact": "edge"}}]});
    matched["metadata"] = json!({"filter_metadata": {"sluice": {"tier": "wide"}}});
    setup.virtual_hosts = virtual_hosts(&[matched]);
    setup.transport_socket = Some(authority.transport_socket(SERVER, false));
    let rig = Rig::start(setup).await;
    for (peer, wide) in [
        ("spiffe://cluster.local/ns/edge/sa/gateway", true),
        ("spiffe://cluster.local/ns/edge-of-another/sa/gateway", false),
        ("spiffe://elsewhere/ns/edge/sa/gateway", false),
    ] {
        let connector = connector(&authority, Some(&authority.issue(&[uri(peer)])));
        let mut answers = Vec::new();
        for _ in 0..3 {
            let body = chat(MODEL, 1, false).to_string();
            let headers: [(&str, &[u8]); 2] = [("x-tenant-id", peer.as_bytes()), ("x-sluice-pool", b"edge")];
            answers
                .push(answer(&rig, &connector, &request_bytes(CHAT, &headers, body.as_bytes(), true)).await.unwrap());
        }
        let all = answers.iter().filter(|head| *head == "HTTP/1.1 200").count();
        assert_eq!(all, if wide { 3 } else { 1 }, "{peer}: {answers:?}");
    }
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}
