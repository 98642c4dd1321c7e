//! Callers that ask again as soon as they have been answered, each over a connection of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Rest of a caller who was not answered with 200.
const REST: Duration = Duration::from_millis(100);

/// A crowd that asks until it is dropped.
pub struct Crowd {
    address: SocketAddr,
    path: String,
    tally: Arc<Mutex<Tally>>,
    callers: JoinSet<()>,
}

/// What became of the requests of a crowd so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Answered with 200, to the end.
    pub answered: u64,
    /// Anything else, by what it was.
    pub otherwise: BTreeMap<String, u64>,
}

/// What one caller asks, again and again.
struct Question {
    address: SocketAddr,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
}

/// One connection. Dropping it closes it.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

impl Crowd {
    /// Nobody yet, who will post to this path.
    #[must_use]
    pub fn new(address: SocketAddr, path: &str) -> Self {
        Self { address, path: path.to_owned(), tally: Arc::default(), callers: JoinSet::new() }
    }

    /// A connection for one more.
    ///
    /// # Errors
    /// When there is none to be had.
    pub async fn connect(&self) -> Result<Connection> {
        Connection::open(self.address).await
    }

    /// One more, who begins to ask over this connection.
    pub fn join(&mut self, connection: Connection, headers: Vec<(&'static str, String)>, body: String) {
        let question = Question { address: self.address, path: self.path.clone(), headers, body: body.into() };
        self.callers.spawn(ask(question, connection, Arc::clone(&self.tally)));
    }

    /// How many have joined.
    #[must_use]
    pub fn len(&self) -> usize {
        self.callers.len()
    }

    /// Whether nobody has joined.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }

    /// What became of its requests so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        lock(&self.tally).clone()
    }
}

async fn ask(question: Question, connection: Connection, tally: Arc<Mutex<Tally>>) {
    let mut connection: Result<Connection> = Ok(connection);
    loop {
        // A refusal may close the connection, and one that broke is of no use: the next question goes over another.
        let otherwise = match connection {
            Ok(connection) => converse(&question, connection, &tally).await,
            Err(error) => error.to_string(),
        };
        *lock(&tally).otherwise.entry(otherwise).or_default() += 1;
        tokio::time::sleep(REST).await;
        connection = Connection::open(question.address).await;
    }
}

/// Asks until something else comes than an answer; what that is.
async fn converse(question: &Question, mut connection: Connection, tally: &Mutex<Tally>) -> String {
    loop {
        match connection.post(question).await {
            Ok(200) => lock(tally).answered += 1,
            Ok(status) => return format!("status {status}"),
            Err(error) => return error.to_string(),
        }
    }
}

impl Connection {
    async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.context("no connection")?;
        stream.set_nodelay(true)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // What breaks a connection is told to the request on it.
            let _ = connection.await;
        });
        Ok(Self { sender, _driver: driver })
    }

    /// The status of an answer that was read to its end.
    async fn post(&mut self, question: &Question) -> Result<u16> {
        let mut request =
            Request::post(&question.path).header("host", "crowd").header("content-type", "application/json");
        for (name, value) in &question.headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::from(question.body.clone()))?;
        self.sender.ready().await.context("the connection is gone")?;
        let answer = self.sender.send_request(request).await.context("no answer")?;
        let status = answer.status().as_u16();
        answer.into_body().collect().await.context("cut short")?;
        Ok(status)
    }
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}
