//! The pages of one server, read again and again over a connection of its own.
//!
//! Whoever reads thousands of pages a second pays for every hand-over, so there is no pool of connections and no task
//! behind them: the task that wants the page moves its connection along itself. What comes in is bounded in size by the
//! reader and in time by whoever drops the future; a connection on which anything went wrong is never used again.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, StatusCode, Uri};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep};
use tower_service::Service;

use crate::fetch::{Cause, FetchError, Peer};

/// What one read may bring: a page of some 50 KB comes in four. It is also the longest head of an answer, and each open
/// connection keeps as much memory.
const READ_BYTES: usize = 16 << 10;

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// After the deadline, what has arrived by then is still taken: so often this goes on at once, without waiting for anything.
/// Otherwise a sidecar that was kept from running itself would take all workers for dead at once.
const LAST_TURNS: u32 = 16;

/// Reads pages of one server by GET; a redirect is an answer like any other.
#[derive(Debug)]
pub struct PageClient {
    server: Server,
    /// Put off for every exchange, which is much cheaper than one of its own for each.
    late: Pin<Box<Sleep>>,
}

#[derive(Debug)]
struct Server {
    uri: Uri,
    host: HeaderValue,
    /// On which nothing is under way. Boxed, since it changes hands with every page.
    kept: Option<Box<Connection>>,
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    driver: http1::Connection<Stream, Empty<Bytes>>,
    /// The driver has nothing more to do and must not be asked again.
    ended: bool,
}

/// Why an exchange failed, by when it did.
enum Failure {
    /// Before there was any answer.
    Unanswered(FetchError),
    /// Later.
    Answered(FetchError),
}

impl PageClient {
    /// Of the server of an absolute URL. Only within a runtime, whose clock it goes by.
    ///
    /// # Errors
    /// It is no such URL.
    pub fn new(url: &str) -> Result<Self, FetchError> {
        let uri: Uri = url.parse().map_err(connection)?;
        let host = uri.authority().map(|authority| HeaderValue::try_from(authority.as_str()));
        let host = host.ok_or_else(|| connection("the URL names no host"))?.map_err(connection)?;
        Ok(Self { server: Server { uri, host, kept: None }, late: Box::pin(sleep(Duration::ZERO)) })
    }

    /// The URL it was made of.
    pub fn url(&self) -> &Uri {
        &self.server.uri
    }

    /// Status of one exchange for the page at `path` that takes at most `deadline` and `limit` bytes; `take` is given the body
    /// piece by piece, as it comes. `peer` says how to connect, where there is no connection yet or it has gone.
    ///
    /// # Errors
    /// [`FetchError`]; any status is an answer.
    pub async fn get(
        &mut self,
        of: (&Peer, &PathAndQuery),
        deadline: Duration,
        limit: usize,
        take: impl FnMut(&[u8]),
    ) -> Result<StatusCode, FetchError> {
        let Self { server, late } = self;
        late.as_mut().reset(Instant::now() + deadline);
        let mut exchange = pin!(server.exchange(of, limit, take));
        let (mut is_late, mut turns) = (false, LAST_TURNS);
        poll_fn(|context| {
            if let Poll::Ready(answer) = exchange.as_mut().poll(context) {
                return Poll::Ready(answer);
            }
            is_late = is_late || late.as_mut().poll(context).is_ready();
            if is_late {
                if turns == 0 {
                    return Poll::Ready(Err(FetchError::Timeout));
                }
                turns -= 1;
                context.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await
    }
}

impl Server {
    async fn exchange(
        &mut self,
        (peer, path): (&Peer, &PathAndQuery),
        limit: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Result<StatusCode, FetchError> {
        // Taken out, so that it is closed when this is dropped half-way.
        if let Some(mut kept) = self.kept.take() {
            match kept.exchange(self.request(path), limit, &mut take).await {
                // Mostly since its other end closed it while nothing was under way: no fault of anybody.
                Err(Failure::Unanswered(_)) => {}
                Err(Failure::Answered(error)) => return Err(error),
                Ok(answer) => {
                    self.kept = (!kept.ended).then_some(kept);
                    return Ok(answer);
                }
            }
        }
        let mut fresh = Box::new(Connection::open(peer, self.uri.clone()).await.map_err(FetchError::Connection)?);
        match fresh.exchange(self.request(path), limit, &mut take).await {
            Err(Failure::Unanswered(error) | Failure::Answered(error)) => Err(error),
            Ok(answer) => {
                self.kept = (!fresh.ended).then_some(fresh);
                Ok(answer)
            }
        }
    }

    fn request(&self, path: &PathAndQuery) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = Uri::from(path.clone());
        request.headers_mut().insert(HOST, self.host.clone());
        request
    }
}

impl Connection {
    async fn open(peer: &Peer, uri: Uri) -> Result<Self, Cause> {
        let mut connector = peer.connector();
        poll_fn(|context| connector.poll_ready(context)).await?;
        let stream = connector.call(uri).await?;
        // A request is one piece, which a plain write takes more quickly than one of many pieces.
        let mut builder = http1::Builder::new();
        let (sender, driver) = builder.read_buf_exact_size(Some(READ_BYTES)).writev(false).handshake(stream).await?;
        Ok(Self { sender, driver, ended: false })
    }

    async fn exchange(
        &mut self,
        request: Request<Empty<Bytes>>,
        limit: usize,
        take: impl FnMut(&[u8]),
    ) -> Result<StatusCode, Failure> {
        let Self { sender, driver, ended } = self;
        // Taken at once: the driver has asked for it when it ended the exchange before.
        let sent = async { sender.send_request(request).await.map_err(connection) };
        let answer = driven(sent, driver, ended).await.map_err(Failure::Unanswered)?;
        let status = answer.status();
        driven(read(answer.into_body(), limit, take), driver, ended).await.map_err(Failure::Answered)?;
        Ok(status)
    }
}

/// What comes of a part of an exchange, for which the connection is moved along.
async fn driven<T>(
    part: impl Future<Output = Result<T, FetchError>>,
    driver: &mut http1::Connection<Stream, Empty<Bytes>>,
    ended: &mut bool,
) -> Result<T, FetchError> {
    // What has come is taken however much the task has done this turn: the driver may have ended behind it.
    let mut part = pin!(unconstrained(part));
    poll_fn(|context| {
        // First, so that the driver finds what is to be sent, or wanted.
        let (mut outcome, mut why) = (part.as_mut().poll(context), None);
        if outcome.is_pending() && !*ended {
            if let Poll::Ready(end) = Pin::new(&mut *driver).poll(context) {
                (*ended, why) = (true, end.err());
            }
            outcome = part.as_mut().poll(context);
        }
        match outcome {
            // A request that a closed connection has not taken hears nothing of that.
            Poll::Pending if *ended => {
                Poll::Ready(Err(why.map_or_else(|| connection("the connection was closed"), connection)))
            }
            outcome => outcome,
        }
    })
    .await
}

async fn read(mut body: Incoming, limit: usize, mut take: impl FnMut(&[u8])) -> Result<(), FetchError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(FetchError::TooLarge(limit));
    }
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(connection)?.into_data() else { continue };
        length += data.len();
        if length > limit {
            return Err(FetchError::TooLarge(limit));
        }
        take(&data);
    }
    Ok(())
}

fn connection(cause: impl Into<Cause>) -> FetchError {
    FetchError::Connection(cause.into())
}
