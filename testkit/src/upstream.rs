//! A worker that answers at once: it reads all of a request and says something fixed.
//!
//! It costs as little as it can, so that it is not what limits the proxy under test.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::stream;
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Header in which a request says how long its body is; one that has another length is answered with 400.
pub const BYTES_HEADER: &str = "x-bench-bytes";

/// Header in which a request asks for a stream of so many chunks.
pub const CHUNKS_HEADER: &str = "x-bench-chunks";

/// Between two chunks of a stream: long enough that a proxy has passed one on before the next comes.
const PACE: Duration = Duration::from_millis(2);

/// Rest after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

const ANSWER: &str = concat!(
    r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"llama-3.3-70b","choices":[{"index":0,"#,
    r#""message":{"role":"assistant","content":"Certainly."},"finish_reason":"stop"}],"#,
    r#""usage":{"prompt_tokens":70,"completion_tokens":2,"total_tokens":72}}"#
);

/// A worker that runs; it ends when this is dropped.
pub struct Upstream {
    address: SocketAddr,
    marked: Arc<AtomicU64>,
    _task: JoinSet<()>,
}

impl Upstream {
    /// Starts one on a free port. Requests that carry the header `mark` are counted.
    ///
    /// # Errors
    /// When there is no port.
    pub async fn start(mark: &'static str) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no port for the worker")?;
        let address = listener.local_addr()?;
        let marked = Arc::new(AtomicU64::new(0));
        let mut task = JoinSet::new();
        let tally = Arc::clone(&marked);
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => drop(connections.spawn(serve(stream, mark, Arc::clone(&tally)))),
                    // A connection that breaks here is its caller's loss; a lack of descriptors is to keep no core busy.
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, marked, _task: task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many requests have carried the mark.
    #[must_use]
    pub fn marked(&self) -> u64 {
        self.marked.load(Ordering::Relaxed)
    }
}

/// What it answers to a request that asks for no stream.
#[must_use]
pub fn answer() -> Bytes {
    Bytes::from_static(ANSWER.as_bytes())
}

/// What it answers to one that asks for a stream of so many chunks.
#[must_use]
pub fn streamed_answer(chunks: usize) -> Bytes {
    (0..chunks).flat_map(|number| chunk(number, chunks)).collect()
}

fn chunk(number: usize, chunks: usize) -> Bytes {
    let head = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"llama-3.3-70b","#;
    if number + 1 < chunks {
        let delta = r#""choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}],"usage":null}"#;
        return format!("{head}{delta}\n\n").into();
    }
    let usage = r#""choices":[],"usage":{"prompt_tokens":70,"completion_tokens":400,"total_tokens":470}}"#;
    format!("{head}{usage}\n\ndata: [DONE]\n\n").into()
}

async fn serve(stream: TcpStream, mark: &'static str, tally: Arc<AtomicU64>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let tally = Arc::clone(&tally);
        async move {
            if request.headers().contains_key(mark) {
                tally.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, Infallible>(respond(request).await)
        }
    });
    // What breaks a connection is seen by whoever is at its other end.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

type Answer = Either<Full<Bytes>, StreamBody<std::pin::Pin<Box<dyn stream::Stream<Item = Chunk> + Send>>>>;
type Chunk = Result<Frame<Bytes>, Infallible>;

async fn respond(request: Request<Incoming>) -> Response<Answer> {
    let (promised, chunks) = (number(request.headers(), BYTES_HEADER), number(request.headers(), CHUNKS_HEADER));
    let mut body = request.into_body();
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => received += frame.data_ref().map_or(0, Bytes::len),
            Err(_) => return plain(StatusCode::BAD_REQUEST, Bytes::from_static(b"the body broke off")),
        }
    }
    if promised.is_some_and(|promised| promised != received) {
        return plain(StatusCode::BAD_REQUEST, format!("{received} bytes came").into());
    }
    match chunks {
        None => plain(StatusCode::OK, answer()),
        Some(chunks) => {
            let mut response = Response::new(Either::Right(StreamBody::new(paced(chunks))));
            response.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static("text/event-stream"));
            response
        }
    }
}

fn number(headers: &HeaderMap, name: &str) -> Option<usize> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

fn plain(status: StatusCode, body: Bytes) -> Response<Answer> {
    let mut response = Response::new(Either::Left(Full::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static("application/json"));
    response
}

fn paced(chunks: usize) -> std::pin::Pin<Box<dyn stream::Stream<Item = Chunk> + Send>> {
    Box::pin(stream::unfold(0, move |number| async move {
        if number >= chunks {
            return None;
        }
        tokio::time::sleep(PACE).await;
        Some((Ok(Frame::data(chunk(number, chunks))), number + 1))
    }))
}
