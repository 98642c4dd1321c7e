//! Metrics pages of workers over TLS: whom the sidecar trusts, and certificates that are rotated.

mod common;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use admission_core::view::WorkerState;
use common::{FakeProxy, TOKEN, until};
use host_sidecar::{Config, Sidecar};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
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

/// A worker that answers every request with the same page, over TLS.
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
                    let _ = converse(stream, acceptor, &pages).await;
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

async fn converse(stream: TcpStream, acceptor: TlsAcceptor, pages: &AtomicU64) -> std::io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut head = Vec::new();
    loop {
        head.push(stream.read_u8().await?);
        if head.ends_with(b"\r\n\r\n") {
            pages.fetch_add(1, Ordering::Relaxed);
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{PAGE}", PAGE.len());
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
