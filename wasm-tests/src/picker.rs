//! An endpoint picker as an inference gateway has one: a server of Envoy's `ext_proc`, which answers each request's headers with a worker.
//!
//! Only these messages of that protocol are read and written, so their few fields are taken apart by hand.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Headers of one request, by name.
pub type Seen = BTreeMap<String, String>;

/// A picker that picks whatever worker it was set to. Dropping it ends it.
pub struct Picker {
    /// Address that it serves at.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _server: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    picks: Mutex<String>,
    seen: Mutex<Vec<Seen>>,
}

impl Picker {
    /// Starts one that has no worker to pick yet.
    ///
    /// # Panics
    /// When no port is to be had.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (shared, mut server) = (Arc::<Shared>::default(), JoinSet::new());
        let all = Arc::clone(&shared);
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&all)));
            }
        });
        Self { address, shared, _server: server }
    }

    /// Picks this worker from now on.
    pub fn picks(&self, worker: SocketAddr) {
        *lock(&self.shared.picks) = worker.to_string();
    }

    /// Headers of all requests that it was asked about, in order.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// The proxy's filter that asks it, at a cluster of this name.
    #[must_use]
    pub fn filter(cluster: &str) -> Value {
        json!({"name": "picker", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": cluster}, "timeout": "5s"},
            "message_timeout": "5s",
            "processing_mode": {"request_header_mode": "SEND", "response_header_mode": "SKIP",
                                "request_body_mode": "NONE", "response_body_mode": "NONE"},
        }})
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let mut streams = JoinSet::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        streams.spawn(answer(request.into_body(), respond, Arc::clone(&shared)));
    }
}

async fn answer(mut body: h2::RecvStream, mut respond: h2::server::SendResponse<Bytes>, shared: Arc<Shared>) {
    let head = hyper::Response::builder().header("content-type", "application/grpc").body(()).expect("an answer");
    let Ok(mut send) = respond.send_response(head, false) else { return };
    let mut read = Vec::new();
    while let Some(Ok(chunk)) = body.data().await {
        let _ = body.flow_control().release_capacity(chunk.len());
        read.extend_from_slice(&chunk);
        // A message of gRPC: whether it is compressed, its length in four bytes, and itself.
        while let Some(length) = read.get(1..5).map(|it| it.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
            && read.len() >= 5 + length
        {
            let message: Vec<u8> = read.drain(..5 + length).skip(5).collect();
            lock(&shared.seen).push(headers_of(&message));
            let picked = pick(&lock(&shared.picks));
            if send.send_data(framed(&picked), false).is_err() {
                return;
            }
        }
    }
    let mut trailers = hyper::HeaderMap::new();
    trailers.insert("grpc-status", hyper::header::HeaderValue::from_static("0"));
    let _ = send.send_trailers(trailers);
}

fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
    [&[0], &length[..], message].concat().into()
}

/// A response that sets the header of the worker: `request_headers.response.header_mutation.set_headers`, overwriting what is there.
fn pick(worker: &str) -> Vec<u8> {
    let header = [field(1, b"x-gateway-destination-endpoint"), field(3, worker.as_bytes())].concat();
    // `append_action: OVERWRITE_IF_EXISTS_OR_ADD`.
    let option = [field(1, &header), vec![3 << 3, 2]].concat();
    field(1, &field(1, &field(2, &field(1, &option))))
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut left = bytes.len();
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
    out.extend_from_slice(bytes);
    out
}

/// Headers of a request: `request_headers.headers.headers[]`, each with a key and a value.
fn headers_of(request: &[u8]) -> Seen {
    let mut all = Seen::new();
    for headers in inside(request, 2).flat_map(|it| inside(it, 1)).flat_map(|it| inside(it, 1)) {
        let text = |number| inside(headers, number).next().map(|it| String::from_utf8_lossy(it).into_owned());
        let value = text(3).or_else(|| text(2)).unwrap_or_default();
        all.insert(text(1).unwrap_or_default(), value);
    }
    all
}

/// Fields of a message that have this number and a length.
fn inside(message: &[u8], wanted: u64) -> impl Iterator<Item = &[u8]> {
    let mut rest = message;
    std::iter::from_fn(move || {
        loop {
            let key = varint(&mut rest)?;
            let (number, value) = match key & 7 {
                0 => (0, varint(&mut rest).map(|_| &[][..])?),
                2 => {
                    let length = usize::try_from(varint(&mut rest)?).ok()?;
                    let (value, behind) = rest.split_at_checked(length)?;
                    rest = behind;
                    (key >> 3, value)
                }
                _ => return None,
            };
            if number == wanted {
                return Some(value);
            }
        }
    })
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
