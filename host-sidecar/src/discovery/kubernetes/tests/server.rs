//! As much of an API server as watching EndpointSlices, or the pods of an InferencePool, takes.

use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use rcgen::SanType;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::server::TlsStream;

use super::*;

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices";
const PODS: &str = "/api/v1/namespaces/prod/pods";
const POOL: &str = "/apis/inference.networking.k8s.io/v1/namespaces/prod/inferencepools/llama";

type Line = io::Result<Bytes>;

pub struct ApiServer {
    shared: Shared,
    url: String,
    watches: tokio::sync::Mutex<UnboundedReceiver<String>>,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Shared {
    told: UnboundedSender<String>,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    /// Who has no such token is refused.
    token: Option<String>,
    /// Slices or pods.
    objects: Vec<Value>,
    pool: Option<Value>,
    version: u64,
    /// How often a list was answered, and the last query for one.
    lists: usize,
    query: String,
    refuse_all: Option<u16>,
    refuse_watches: Option<u16>,
    refuse_one_watch: Option<u16>,
    watch: Option<UnboundedSender<Line>>,
}

impl ApiServer {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        Self::serve(listener, url, None)
    }

    pub async fn start_with_tls(authority: &CertifiedIssuer<'static, KeyPair>, token: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.subject_alt_names = vec![SanType::IpAddress(address.ip())];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, authority).unwrap().der().clone();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
        let listener = TlsListener { listener, acceptor: TlsAcceptor::from(Arc::new(config)) };
        Self::serve(listener, format!("https://{address}"), Some(token.into()))
    }

    fn serve<L: axum::serve::Listener<Addr: std::fmt::Debug>>(listener: L, url: String, token: Option<String>) -> Self {
        let (told, watches) = unbounded_channel();
        let shared = Shared { told, inner: Arc::new(Mutex::new(Inner { token, ..Inner::default() })) };
        let router = Router::new()
            .route(SLICES, get(answer))
            .route(PODS, get(answer))
            .route(POOL, get(pool))
            .with_state(shared.clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { shared, url, watches: watches.into(), task }
    }

    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Sets the pool.
    pub fn pool(&self, pool: Value) {
        self.change(|inner| inner.pool = Some(pool));
    }

    /// Takes the pool away.
    pub fn no_pool(&self) {
        self.change(|inner| inner.pool = None);
    }

    /// Sets all slices, or pods, for the lists that follow; a watch that is open is sent nothing of it.
    pub fn list(&self, objects: &[Value]) {
        self.change(|inner| {
            inner.version += 1;
            inner.objects = objects.to_vec();
            inner.refuse_all = None;
        });
    }

    /// Answers everything with this status until there is a list again.
    pub fn refuse(&self, code: u16) {
        self.change(|inner| inner.refuse_all = Some(code));
    }

    /// Answers every watch with this status.
    pub fn refuse_watches(&self, code: u16) {
        self.change(|inner| inner.refuse_watches = Some(code));
    }

    /// Answers the next watch with this status.
    pub fn refuse_watch(&self, code: u16) {
        self.change(|inner| inner.refuse_one_watch = Some(code));
    }

    pub fn take_only(&self, token: &str) {
        self.change(|inner| inner.token = Some(token.into()));
    }

    pub fn lists(&self) -> usize {
        self.shared.inner.lock().unwrap().lists
    }

    /// The query of the last list.
    pub fn query(&self) -> String {
        self.shared.inner.lock().unwrap().query.clone()
    }

    /// Waits for the next watch to begin, and the version it begins at.
    pub async fn watched(&self) -> String {
        timeout(Duration::from_secs(20), async { self.watches.lock().await.recv().await.unwrap() }).await.unwrap()
    }

    /// Tells who watches.
    pub fn event(&self, kind: &str, mut object: Value) {
        let version = self.change(|inner| {
            inner.version += 1;
            inner.version
        });
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        self.send(&format!("{}\n", json!({"type": kind, "object": object})));
    }

    pub fn bookmark(&self, version: &str) {
        let object = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"resourceVersion": version, "creationTimestamp": null}, "endpoints": null, "addressType": ""});
        self.send(&format!("{}\n", json!({"type": "BOOKMARK", "object": object})));
    }

    pub fn send(&self, text: &str) {
        self.push(Ok(Bytes::copy_from_slice(text.as_bytes())));
    }

    pub fn end_watch(&self) {
        self.change(|inner| inner.watch = None);
    }

    /// Cuts the connection in the middle of the answer.
    pub fn break_watch(&self) {
        self.push(Err(io::Error::other("broken")));
        self.end_watch();
    }

    fn push(&self, line: Line) {
        self.change(|inner| inner.watch.as_ref().expect("nobody watches").send(line).expect("nobody watches"));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        change(&mut self.shared.inner.lock().unwrap())
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pool(State(shared): State<Shared>) -> Response {
    let pool = shared.inner.lock().unwrap().pool.clone();
    pool.map_or_else(|| refusal(404), |pool| axum::Json(pool).into_response())
}

async fn answer(State(shared): State<Shared>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let sent = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
    let query = query.unwrap_or_default();
    let parameter = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let mut inner = shared.inner.lock().unwrap();
    if sent != inner.token.as_ref().map(|token| format!("Bearer {token}")) {
        return refusal(401);
    }
    if let Some(code) = inner.refuse_all {
        return refusal(code);
    }
    if parameter("watch") != Some("true") {
        inner.lists += 1;
        inner.query.clone_from(&query);
        let metadata = json!({"resourceVersion": inner.version.to_string()});
        return axum::Json(json!({"metadata": metadata, "items": inner.objects})).into_response();
    }
    if let Some(code) = inner.refuse_one_watch.take().or(inner.refuse_watches) {
        return refusal(code);
    }
    let (send, lines) = unbounded_channel();
    inner.watch = Some(send);
    shared.told.send(parameter("resourceVersion").unwrap_or_default().to_owned()).unwrap();
    let lines = stream::unfold(lines, |mut lines| async move { lines.recv().await.map(|line| (line, lines)) });
    Body::from_stream(lines).into_response()
}

fn refusal(code: u16) -> Response {
    let status = StatusCode::from_u16(code).unwrap();
    let reason = status.canonical_reason().unwrap();
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "no",
        "reason": reason, "code": code});
    (status, axum::Json(body)).into_response()
}

struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
