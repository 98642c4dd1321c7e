//! HTTP that a bad peer cannot hold up or fill up, over TCP, TLS or a Unix socket.
//!
//! Connections are kept, no environment proxy is asked, and a redirect is an answer like any other, so that nobody sends a
//! token elsewhere.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::http::request::Builder;
use hyper::{Request as HttpRequest, StatusCode, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Serialize;
use tokio::net::UnixStream;
use tracing::{info, warn};

use crate::config::{Tls, TokenSource};

mod lookups;
mod tls;

use lookups::Lookups;
pub use tls::TlsError;

/// How often files are looked at that a client was built from.
const LOOK: Duration = Duration::from_secs(1);

/// Opens connections for `http://` and `https://` URLs.
pub type Connector = HttpsConnector<HttpConnector<Lookups>>;

type Body = Full<Bytes>;
/// What is wrong with a connection.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why an exchange gave no body.
#[derive(Debug)]
pub enum FetchError {
    /// The deadline passed.
    Timeout,
    /// No connection, or it broke.
    Connection(Cause),
    /// The body is longer than allowed.
    TooLarge(usize),
}

/// Sends requests; a clone shares its connections.
#[derive(Clone, Debug)]
pub struct Client(Way);

#[derive(Clone, Debug)]
enum Way {
    Net(legacy::Client<Connector, Body>),
    Unix(legacy::Client<UnixConnector, Body>),
}

fn connector(tls: &Tls, lookups: &Lookups) -> Result<Connector, TlsError> {
    let mut tcp = HttpConnector::new_with_resolver(lookups.clone());
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls::config(tls)?).https_or_http();
    let connector = match tls::server_name(tls) {
        Some(name) => builder.with_server_name_resolver(FixedServerNameResolver::new(name)).enable_http1(),
        None => builder.enable_http1(),
    };
    Ok(connector.wrap_connector(tcp))
}

impl Client {
    /// A GET of this URL.
    pub fn get(&self, url: &str) -> Request {
        Request { client: self.clone(), head: HttpRequest::get(url), body: Ok(Bytes::new()) }
    }

    /// A POST to this URL.
    pub fn post(&self, url: &str) -> Request {
        Request { client: self.clone(), head: HttpRequest::post(url), body: Ok(Bytes::new()) }
    }
}

/// A request that has not been sent.
#[derive(Debug)]
pub struct Request {
    client: Client,
    head: Builder,
    body: Result<Bytes, serde_json::Error>,
}

impl Request {
    /// With what proves that it is ours.
    pub fn bearer_auth(mut self, token: &str) -> Self {
        self.head = self.head.header("authorization", format!("Bearer {token}"));
        self
    }

    /// With a body.
    pub fn json(mut self, body: &impl Serialize) -> Self {
        self.head = self.head.header("content-type", "application/json");
        self.body = serde_json::to_vec(body).map(Bytes::from);
        self
    }

    async fn send(self, limit: usize) -> Result<(StatusCode, Vec<u8>), FetchError> {
        let body = self.body.map_err(|error| FetchError::Connection(error.into()))?;
        let request = self.head.body(Full::new(body)).map_err(|error| FetchError::Connection(error.into()))?;
        let answer = match self.client.0 {
            Way::Net(client) => client.request(request).await,
            Way::Unix(client) => client.request(request).await,
        };
        let answer = answer.map_err(|error| FetchError::Connection(error.into()))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), limit).collect().await.map_err(|error| {
            match error.is::<http_body_util::LengthLimitError>() {
                true => FetchError::TooLarge(limit),
                false => FetchError::Connection(error),
            }
        })?;
        Ok((status, body.to_bytes().into()))
    }
}

/// Status and body of one exchange that takes at most `deadline` and `limit` bytes.
///
/// # Errors
/// [`FetchError`]; any status is an answer.
pub async fn exchange(request: Request, deadline: Duration, limit: usize) -> Result<(StatusCode, Vec<u8>), FetchError> {
    tokio::time::timeout(deadline, request.send(limit)).await.unwrap_or(Err(FetchError::Timeout))
}

/// Longest time for a file with a token to be read.
const LONGEST_READ: Duration = Duration::from_secs(10);

/// The token now, read where a file system that hangs holds up nobody else.
///
/// # Errors
/// As [`TokenSource::read`], or the file does not come.
pub async fn token(source: &TokenSource) -> Result<String, String> {
    let TokenSource::File(path) = source else { return source.read() };
    let reading = source.clone();
    let read = tokio::task::spawn_blocking(move || reading.read());
    match tokio::time::timeout(LONGEST_READ, read).await {
        Ok(Ok(token)) => token,
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("cannot read {}: no answer in {LONGEST_READ:?}", path.display())),
    }
}

/// A client for `http://` and `https://` URLs, the latter under `tls`; or one whose every request goes to the socket at
/// `unix`, whatever host its `http://` URL names. It is built again when a file it was built from has changed, so that
/// certificates can be rotated.
#[derive(Debug)]
pub struct Peer {
    tls: Tls,
    unix: Option<PathBuf>,
    lookups: Lookups,
    state: Arc<Mutex<Built>>,
}

#[derive(Debug)]
struct Built {
    client: Client,
    connector: Connector,
    /// Of which content.
    files: Vec<Option<Vec<u8>>>,
    looked: Instant,
    /// The files are being looked at.
    is_looked: bool,
}

impl Peer {
    /// Builds it.
    ///
    /// # Errors
    /// A file of `tls` cannot be read or does not hold what it should.
    pub fn new(tls: &Tls, unix: Option<&Path>) -> Result<Self, TlsError> {
        let lookups = Lookups::new();
        let state = Arc::new(Mutex::new(Built::new(tls, unix, &lookups)?));
        Ok(Self { tls: tls.clone(), unix: unix.map(Path::to_owned), lookups, state })
    }

    /// The client of the files as they were when last looked at, a second ago at most. While they cannot be used, the one before
    /// stays.
    pub fn client(&self) -> Client {
        self.current().client.clone()
    }

    /// The same for connections that somebody else keeps; not over a Unix socket.
    pub fn connector(&self) -> Connector {
        self.current().connector.clone()
    }

    /// What stands. Where it is time to look again, that goes on beside: a file system may hang.
    fn current(&self) -> MutexGuard<'_, Built> {
        let mut state = lock(&self.state);
        if self.tls.files().next().is_some() && !state.is_looked && state.looked.elapsed() >= LOOK {
            state.is_looked = true;
            let (tls, unix, lookups) = (self.tls.clone(), self.unix.clone(), self.lookups.clone());
            let shared = Arc::clone(&self.state);
            tokio::task::spawn_blocking(move || look((&tls, unix.as_deref(), &lookups), &shared));
        }
        state
    }
}

/// Takes over the files if they have changed and can be used.
fn look((tls, unix, lookups): (&Tls, Option<&Path>, &Lookups), state: &Mutex<Built>) {
    let files = contents(tls);
    let built = (files != lock(state).files).then(|| Built::new(tls, unix, lookups));
    let mut state = lock(state);
    match built {
        None => {}
        Some(Ok(built)) => {
            *state = built;
            info!(files = ?tls.files().collect::<Vec<_>>(), "certificates read again");
        }
        Some(Err(error)) => {
            state.files = files;
            warn!(%error, "the old certificates stay in use");
        }
    }
    (state.looked, state.is_looked) = (Instant::now(), false);
}

/// Every change of what is built is a plain assignment, so one that panicked under the lock leaves it whole.
fn lock(state: &Mutex<Built>) -> MutexGuard<'_, Built> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Built {
    fn new(tls: &Tls, unix: Option<&Path>, lookups: &Lookups) -> Result<Self, TlsError> {
        let files = contents(tls);
        let connector = connector(tls, lookups)?;
        let builder = legacy::Client::builder(TokioExecutor::new());
        let way = match unix {
            Some(path) => Way::Unix(builder.build(UnixConnector { path: path.into() })),
            None => Way::Net(builder.build(connector.clone())),
        };
        Ok(Self { client: Client(way), connector, files, looked: Instant::now(), is_looked: false })
    }
}

/// Of every file; `None` for one that cannot be read.
fn contents(tls: &Tls) -> Vec<Option<Vec<u8>>> {
    tls.files().map(|path| std::fs::read(path).ok()).collect()
}

/// Connects to one socket, whatever it is asked for.
#[derive(Clone, Debug)]
struct UnixConnector {
    path: Arc<Path>,
}

impl tower_service::Service<Uri> for UnixConnector {
    type Response = TokioIo<UnixStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = Arc::clone(&self.path);
        Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
    }
}

impl fmt::Display for FetchError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => write!(out, "no answer in time"),
            Self::Connection(error) => {
                // The outer error only says that there was one; what happened stands at the end of the chain.
                let mut cause: &dyn std::error::Error = error.as_ref();
                while let Some(deeper) = cause.source() {
                    cause = deeper;
                }
                write!(out, "{cause}")
            }
            Self::TooLarge(limit) => write!(out, "more than {limit} bytes"),
        }
    }
}

impl std::error::Error for FetchError {}
