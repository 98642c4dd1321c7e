//! Pages of workers and answers of a Prometheus over TLS: whom the sidecar trusts, and certificates that are rotated.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{FakeProxy, FakeWorker, Page, TOKEN, until};
use admission_core::view::WorkerState;
use host_sidecar::{Config, Sidecar};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

const PAGE: &str = "vllm:num_requests_running{engine=\"0\"} 3.0\n";

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn acceptor(authority: &Authority, address: SocketAddr) -> TlsAcceptor {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::IpAddress(address.ip())];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap().der().clone();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// A server that answers every request with the same body, over TLS: that of a worker's page where nothing else is said.
struct Secured {
    address: SocketAddr,
    acceptor: Arc<Mutex<TlsAcceptor>>,
    connections: Arc<AtomicU64>,
    pages: Arc<AtomicU64>,
    /// Connections that are open end with it.
    open: Arc<Mutex<JoinSet<()>>>,
    _listening: JoinSet<()>,
}

impl Secured {
    async fn start(authority: &Authority) -> Self {
        Self::with(authority, PAGE).await
    }

    async fn with(authority: &Authority, body: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let worker = Self {
            address,
            acceptor: Arc::new(Mutex::new(acceptor(authority, address))),
            connections: Arc::default(),
            pages: Arc::default(),
            open: Arc::default(),
            _listening: JoinSet::new(),
        };
        let (acceptor, connections) = (Arc::clone(&worker.acceptor), Arc::clone(&worker.connections));
        let (pages, open) = (Arc::clone(&worker.pages), Arc::clone(&worker.open));
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                let (acceptor, pages) = (acceptor.lock().unwrap().clone(), Arc::clone(&pages));
                open.lock().unwrap().spawn(async move {
                    let _ = converse(stream, acceptor, &pages, body).await;
                });
            }
        });
        Self { _listening: listening, ..worker }
    }

    /// Another certificate from now on, and no connection that knows the one before.
    fn rotate(&self, authority: &Authority) {
        *self.acceptor.lock().unwrap() = acceptor(authority, self.address);
        self.open.lock().unwrap().abort_all();
    }

    fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }
}

async fn converse(stream: TcpStream, acceptor: TlsAcceptor, pages: &AtomicU64, body: &str) -> std::io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut head = Vec::new();
    loop {
        head.push(stream.read_u8().await?);
        if head.ends_with(b"\r\n\r\n") {
            pages.fetch_add(1, Ordering::Relaxed);
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await?;
            stream.flush().await?;
            head.clear();
        }
    }
}

/// One pool, `p`, of one worker that is listed and one that a file names, both with pages over TLS.
async fn sidecar(proxy: &FakeProxy, listed: &Secured, found: &Secured, trusted: &Path) -> Sidecar {
    let file = trusted.with_file_name("workers.yaml");
    std::fs::write(&file, format!("['{}']", found.address)).unwrap();
    let text = format!(
        "{{listen: '127.0.0.1:0', scrape: {{interval: 20ms, timeout: 5s}}, \
         proxies: [{{url: 'http://{}', token: {TOKEN}}}], \
         pools: [{{name: p, tls: {{ca_file: '{}'}}, \
                   workers: [{{address: 'LISTED', metrics_url: 'https://LISTED/metrics'}}], \
                   discover: [{{file: {{path: '{}'}}, metrics: {{scheme: https}}}}]}}]}}",
        proxy.server.address,
        trusted.display(),
        file.display(),
    );
    let text = text.replace("LISTED", &listed.address.to_string());
    Sidecar::start(Config::parse(&text).unwrap()).await.unwrap()
}

#[tokio::test]
async fn pages_come_over_tls_and_rotated_certificates_are_found() {
    let (first, second) = (authority(), authority());
    let (listed, found) = (Secured::start(&first).await, Secured::start(&first).await);
    let folder = tempfile::tempdir().unwrap();
    let trusted = folder.path().join("ca.pem");
    std::fs::write(&trusted, first.pem()).unwrap();
    let proxy = FakeProxy::start();
    let _sidecar = sidecar(&proxy, &listed, &found, &trusted).await;
    for worker in [&listed, &found] {
        let report = until("it is up", || proxy.worker(&worker.address.to_string())).await;
        assert_eq!((report.state, report.ranks[0].running), (WorkerState::Up, Some(3)));
        until("it is read on", || (worker.pages() > 5).then_some(())).await;
        assert_eq!(worker.connections.load(Ordering::Relaxed), 1, "one connection carries every page");
    }

    listed.rotate(&second);
    found.rotate(&second);
    let cause = |worker: &Secured| proxy.worker(&worker.address.to_string())?.cause;
    until("the new certificates are not trusted", || cause(&listed).and(cause(&found))).await;
    let pages = (listed.pages(), found.pages());
    std::fs::write(&trusted, first.pem() + &second.pem()).unwrap();
    until("both are read again", || (listed.pages() > pages.0 && found.pages() > pages.1).then_some(())).await;
    until("and told so", || (cause(&listed).is_none() && cause(&found).is_none()).then_some(())).await;
}

#[tokio::test]
async fn a_stranger_is_not_asked_for_its_page() {
    let (trusted, stranger) = (authority(), authority());
    let worker = Secured::start(&stranger).await;
    let other = Secured::start(&trusted).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, trusted.pem()).unwrap();
    let proxy = FakeProxy::start();
    let _sidecar = sidecar(&proxy, &worker, &other, &file).await;
    let report = until("it is told of", || proxy.worker(&worker.address.to_string())).await;
    assert_eq!((report.state, report.cause.as_deref()), (WorkerState::Down, Some("connection")));
    assert_eq!(worker.pages(), 0);
    assert_eq!(until("the other is too", || proxy.worker(&other.address.to_string())).await.state, WorkerState::Up);
}

#[tokio::test]
async fn a_prometheus_behind_an_authority_of_its_own_is_asked() {
    let (trusted, stranger) = (authority(), authority());
    let answer = r#"{"status":"success","data":{"resultType":"scalar","result":[1,"0.25"]}}"#;
    let (known, unknown) = (Secured::with(&trusted, answer).await, Secured::with(&stranger, answer).await);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, trusted.pem()).unwrap();
    let (proxy, workers) = (FakeProxy::start(), [(); 2].map(|()| FakeWorker::start(Page::Steady { used: 1 })));
    let pool = |name: &str, worker: &FakeWorker, prometheus: &Secured| {
        let query = json!({"url": format!("https://{}", prometheus.address), "query": "q", "interval": "20ms",
                           "timeout": "5s", "tls": {"ca_file": file}});
        json!({"name": name, "workers": [worker.address()], "dispatch_budget": {"prometheus": query}})
    };
    let config = json!({
        "listen": "127.0.0.1:0",
        "push": {"heartbeat": "50ms"},
        "proxies": [{"url": format!("http://{}", proxy.server.address), "token": TOKEN}],
        "pools": [pool("p", &workers[0], &known), pool("q", &workers[1], &unknown)],
    });
    let _sidecar = Sidecar::start(Config::from_value(config.clone()).unwrap()).await.unwrap();
    let budget = |pool: &str| proxy.with(|control| control.taken.last()?.pools.get(pool)?.dispatch_budget);
    until("its number is told", || budget("p").filter(|budget| *budget == 0.25)).await;
    until("the other source is asked", || budget("q").filter(|budget| *budget > 0.9)).await;
    let asked_again = || (unknown.connections.load(Ordering::Relaxed) >= 2).then_some(());
    until("the unknown one was tried in vain", asked_again).await;
    assert_eq!(unknown.pages(), 0);

    std::fs::write(&file, "no certificate").unwrap();
    let refused = Sidecar::start(Config::from_value(config).unwrap()).await.err().unwrap().to_string();
    assert!(refused.contains("pools[0].dispatch_budget.prometheus.tls"), "{refused}");
}
