//! Sends requests and notes how each ended.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::StreamExt;
use reqwest::{Client, RequestBuilder, Response};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::shots::{Leaves, Shot};

/// Longest time for a request, from sending it to the end of its answer: far above all time limits of the proxy and what
/// workers take.
pub const BOUND: Duration = Duration::from_secs(60);

/// By which workers and callers know a request.
const ID: &str = "x-client-request-id";

/// One request that was sent.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its number, from 0.
    pub id: usize,
    pub tenant: String,
    /// The lane that it asked for.
    pub lane: Option<&'static str>,
    /// Which proxy it was sent to.
    pub life: usize,
    /// Since the start, as is the other.
    pub sent: Duration,
    pub ended: Duration,
    pub outcome: Outcome,
    /// Its answer says that the filter had let it in.
    pub let_in: bool,
}

/// How a request ended, as its caller saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered to the end by a worker, with this status.
    Answered(u16),
    /// By the filter, for this reason.
    Refused(String),
    /// Its caller left.
    Left,
    Lost(Loss),
    /// Nothing had come of it when time was up.
    Unanswered,
}

/// How a request was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// The proxy could not be reached.
    NoConnection,
    /// The connection broke before the answer.
    NoAnswer,
    /// The proxy answered by itself, with this status.
    Status(u16),
    /// The answer broke off.
    CutShort,
}

/// Where requests are sent at present.
#[derive(Clone, Copy, Debug)]
pub struct Door {
    pub life: usize,
    pub address: SocketAddr,
}

/// Everybody who sends requests.
#[derive(Clone)]
pub struct Callers {
    clock: Instant,
    client: Client,
    door: watch::Receiver<Door>,
    records: Arc<Mutex<Vec<Record>>>,
}

impl Callers {
    /// Nobody has sent anything yet.
    ///
    /// # Errors
    /// When no client can be made.
    pub fn new(clock: Instant, door: watch::Receiver<Door>) -> Result<Self> {
        let client = Client::builder().no_proxy().build().context("cannot make an HTTP client")?;
        Ok(Self { clock, client, door, records: Arc::default() })
    }

    /// Sends all of them, each at its time whatever became of others, and waits until each has ended.
    pub async fn send(&self, shots: Vec<Shot>, begin: Instant) {
        let mut tasks = JoinSet::new();
        for (id, shot) in shots.into_iter().enumerate() {
            sleep_until(begin + shot.at).await;
            let callers = self.clone();
            tasks.spawn(async move { callers.call(id, shot).await });
            while tasks.try_join_next().is_some() {}
        }
        while tasks.join_next().await.is_some() {}
    }

    /// All requests that have ended.
    pub fn records(&self) -> Vec<Record> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn call(&self, id: usize, shot: Shot) {
        let door = *self.door.borrow();
        let mut request = self
            .client
            .post(format!("http://{}{}", door.address, shot.path()))
            .header("x-tenant-id", &shot.tenant)
            .header("content-type", "application/json")
            .header(ID, id.to_string());
        if let Some(lane) = shot.lane {
            request = request.header("x-sluice-lane", lane);
        }
        let request = request.body(shot.body());
        let sent = self.clock.elapsed();
        let mut let_in = false;
        let outcome = timeout(BOUND, exchange(request, shot.leaves, &mut let_in)).await;
        let outcome = outcome.unwrap_or(Outcome::Unanswered);
        let record = Record {
            id,
            tenant: shot.tenant,
            lane: shot.lane,
            life: door.life,
            sent,
            ended: self.clock.elapsed(),
            outcome,
            let_in,
        };
        self.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
    }
}

async fn exchange(request: RequestBuilder, leaves: Option<Leaves>, let_in: &mut bool) -> Outcome {
    let patience = match leaves {
        Some(Leaves::Unanswered(patience)) => patience,
        _ => BOUND,
    };
    let answer = match timeout(patience, request.send()).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) if error.is_connect() => return Outcome::Lost(Loss::NoConnection),
        Ok(Err(_)) => return Outcome::Lost(Loss::NoAnswer),
        Err(_) => return Outcome::Left,
    };
    // The filter tells only those it has let in how long their worker took.
    *let_in = answer.headers().contains_key("server-timing");
    let status = answer.status().as_u16();
    let reason =
        answer.headers().get("x-sluice-reason").map(|reason| String::from_utf8_lossy(reason.as_bytes()).into_owned());
    let from_worker = answer.headers().contains_key("x-envoy-upstream-service-time");
    let whole = match leaves {
        Some(Leaves::AmidAnswer(patience)) => match timeout(patience, read(answer)).await {
            Ok(whole) => whole,
            Err(_) => return Outcome::Left,
        },
        _ => read(answer).await,
    };
    match (reason, from_worker) {
        (Some(reason), _) => Outcome::Refused(reason),
        (None, true) if whole => Outcome::Answered(status),
        (None, true) => Outcome::Lost(Loss::CutShort),
        (None, false) => Outcome::Lost(Loss::Status(status)),
    }
}

/// Whether the answer came to its end.
async fn read(answer: Response) -> bool {
    let mut body = answer.bytes_stream();
    while let Some(piece) = body.next().await {
        if piece.is_err() {
            return false;
        }
    }
    true
}
