//! Load in a closed loop: some callers, each asking again as soon as it has been answered, over a connection of its own.
//!
//! Every answer is compared with the one expected; another one ends the measurement, since figures of requests that went
//! otherwise say nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{HeaderName, HeaderValue};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::statistics::Times;
use crate::watch::Watch;

/// Between two looks at how late this process runs.
const LOOK: Duration = Duration::from_millis(2);

/// A client that runs so late blames the proxy for it: latencies taken then are left out.
const TOLERATED_LAG: Duration = Duration::from_millis(5);

/// Longest time for one answer.
const DEADLINE: Duration = Duration::from_secs(30);

/// What callers ask, and what they expect to be told.
#[derive(Clone, Debug)]
pub struct Question {
    /// Of the request.
    pub path: String,
    /// Its headers, beside those that every request has.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Header that is different in each request.
    pub varied: HeaderName,
    /// Its values, in turn over all callers.
    pub values: Vec<HeaderValue>,
    /// Of the request.
    pub body: Bytes,
    /// The whole answer.
    pub answer: Bytes,
}

/// Callers with their connections.
pub struct Callers {
    address: SocketAddr,
    connections: Vec<Connection>,
    /// Requests so far, by which the varied header goes on from round to round.
    asked: usize,
}

/// What one round of asking has shown.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Requests, all answered as expected.
    pub requests: u64,
    /// Pieces that the answers' bodies came in.
    pub pieces: u64,
    /// From the first request to the last answer.
    pub elapsed: Duration,
    /// Times from request to answer.
    pub latencies: Times,
    /// Latencies that were left out, because this process did not run when it should have.
    pub discarded: u64,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

impl Round {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.pieces += other.pieces;
        self.discarded += other.discarded;
        self.latencies.add(&other.latencies);
    }
}

impl Callers {
    /// So many callers of a proxy.
    ///
    /// # Errors
    /// When there is no connection to be had.
    pub async fn connect(address: SocketAddr, count: usize) -> Result<Self> {
        let mut connections = Vec::new();
        for _ in 0..count {
            connections.push(Connection::open(address).await?);
        }
        Ok(Self { address, connections, asked: 0 })
    }

    /// Asks until some time has passed, and until everyone has been answered.
    ///
    /// # Errors
    /// When an answer is another one than expected.
    pub async fn ask(&mut self, question: &Arc<Question>, length: Duration) -> Result<Round> {
        ensure!(!question.values.is_empty(), "the varied header has no value");
        let watch = Watch::start(LOOK, TOLERATED_LAG);
        let (begin, step, asked) = (Instant::now(), self.connections.len(), self.asked);
        let mut tasks = JoinSet::new();
        for (number, mut connection) in self.connections.drain(..).enumerate() {
            let (question, lag) = (Arc::clone(question), watch.reading());
            tasks.spawn(async move {
                let mut round = Round::default();
                let mut turn = asked + number;
                // Why at least once: a caller that is not scheduled for so long would have asked nothing.
                while round.requests == 0 || begin.elapsed() < length {
                    let sent = Instant::now();
                    let pieces = connection.exchange(&question, turn).await?;
                    let took = sent.elapsed();
                    (round.requests, round.pieces, turn) = (round.requests + 1, round.pieces + pieces, turn + step);
                    if lag.now() < TOLERATED_LAG {
                        round.latencies.record(took);
                    } else {
                        round.discarded += 1;
                    }
                }
                Ok::<_, anyhow::Error>((connection, round))
            });
        }
        let mut whole = Round::default();
        while let Some(done) = tasks.join_next().await {
            let (connection, round) = done.context("a caller broke down")?.with_context(|| self.address.to_string())?;
            self.connections.push(connection);
            whole.add(round);
        }
        self.asked += usize::try_from(whole.requests).unwrap_or(usize::MAX);
        whole.elapsed = begin.elapsed();
        Ok(whole)
    }
}

impl Connection {
    async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("no connection to {address}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // What breaks a connection is told to the request on it.
            let _ = connection.await;
        });
        Ok(Self { sender, _driver: driver })
    }

    /// How many pieces the expected answer came in.
    async fn exchange(&mut self, question: &Question, turn: usize) -> Result<u64> {
        let exchange = self.try_exchange(question, turn);
        tokio::time::timeout(DEADLINE, exchange).await.context("no answer in time")?
    }

    async fn try_exchange(&mut self, question: &Question, turn: usize) -> Result<u64> {
        let mut request = Request::post(&question.path)
            .header("host", "bench")
            .header("content-type", "application/json")
            .header(&question.varied, &question.values[turn % question.values.len()]);
        for (name, value) in &question.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::from(question.body.clone()))?;
        self.sender.ready().await.context("the connection is gone")?;
        let answer = self.sender.send_request(request).await.context("no answer")?;
        let status = answer.status();
        let (mut body, mut pieces, mut text) = (answer.into_body(), 0, Vec::with_capacity(question.answer.len()));
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame.context("cut short")?.data_ref() {
                pieces += 1;
                text.extend_from_slice(data);
            }
        }
        if status != 200 || text != question.answer {
            bail!("answered with {status}: {}", String::from_utf8_lossy(&text));
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{self, BYTES_HEADER, CHUNKS_HEADER, Upstream};

    fn question(bytes: &'static str, answer: Bytes) -> Question {
        Question {
            path: "/v1/chat/completions".to_owned(),
            headers: vec![(HeaderName::from_static(BYTES_HEADER), HeaderValue::from_static(bytes))],
            varied: HeaderName::from_static("x-mark"),
            values: vec![HeaderValue::from_static("a"), HeaderValue::from_static("b")],
            body: Bytes::from_static(b"{}"),
            answer,
        }
    }

    #[tokio::test]
    async fn answers_are_counted_and_those_that_are_wrong_end_it() {
        let upstream = Upstream::start("x-mark").await.unwrap();
        let mut callers = Callers::connect(upstream.address(), 2).await.unwrap();
        let right = Arc::new(question("2", upstream::answer()));
        let round = callers.ask(&right, Duration::from_millis(20)).await.unwrap();
        assert!(round.requests >= 2);
        assert_eq!(upstream.marked(), round.requests);
        assert_eq!(round.latencies.count() + round.discarded, round.requests);
        assert!(callers.ask(&Arc::new(question("3", upstream::answer())), Duration::from_millis(1)).await.is_err());
    }

    #[tokio::test]
    async fn a_stream_comes_piece_by_piece() {
        let upstream = Upstream::start("x-mark").await.unwrap();
        let mut callers = Callers::connect(upstream.address(), 1).await.unwrap();
        let mut asked = question("2", upstream::streamed_answer(5));
        asked.headers.push((HeaderName::from_static(CHUNKS_HEADER), HeaderValue::from_static("5")));
        let round = callers.ask(&Arc::new(asked), Duration::from_millis(1)).await.unwrap();
        // Pieces may run together where this process does not run.
        assert!(round.requests == 1 && (2..=5).contains(&round.pieces), "{round:?}");
    }
}
