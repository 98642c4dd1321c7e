//! A steady load whose every answer tells under which policy it was decided.
//!
//! Policies are numbered. An admission tells its policy's number in `x-ratelimit-limit-requests`, since each policy gives
//! the tenant a budget of its own, too large ever to bind; a refusal tells the knob that bound.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Response;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::caller::{KeptAlive, chat, is_last};
use crate::rig::{MODEL, Rig, eventually};

/// A tenant without a cap, whose callers are always admitted.
pub const STEADY: &str = "steady";

/// A tenant with a cap, of which more callers come than it lets in.
pub const CAPPED: &str = "capped";

/// Budget of the policy 0.
const BUDGET: u64 = 1_000_000;

/// Rest of a caller who was refused.
const REST: Duration = Duration::from_millis(5);

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a whole answer of the worker's, admitted by this policy.
    Served(u64),
    /// By Sluice, with 429 for this limit.
    Refused(Knob),
    /// In any other way.
    Failed(String),
}

/// A limit that bound: its place in the configuration, and what it allows.
pub type Knob = (String, u64);

/// One request of the load.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whose it was.
    pub tenant: &'static str,
    /// From the policy that was in force everywhere when it was sent, to the last one written when its answer began.
    pub policies: RangeInclusive<u64>,
    /// The newest policy that had decided anything when its answer was whole.
    pub newest: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// A load that goes on until it is stopped or dropped. Each of its callers posts over a connection of its own, one
/// request after the other.
pub struct Load {
    address: SocketAddr,
    shared: Arc<Shared>,
    callers: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    written: AtomicU64,
    in_force: AtomicU64,
    answers: Mutex<Vec<Answer>>,
    /// Of each steady caller, the policy that its last answer told of.
    told: Mutex<Vec<u64>>,
}

impl Shared {
    fn answers(&self) -> MutexGuard<'_, Vec<Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, Vec<u64>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a caller does.
#[derive(Clone, Copy)]
struct Part {
    tenant: &'static str,
    stream: bool,
    max_tokens: u32,
    /// Its place in `told`.
    place: Option<usize>,
}

/// Gives a policy its number.
pub fn number(policy: &mut Value, number: u64) {
    for tenant in [STEADY, CAPPED] {
        policy["tenants"][tenant]["requests_per_minute"] = json!(BUDGET + number);
    }
}

impl Load {
    /// Starts steady callers, until every worker thread has some, and callers of a capped tenant.
    pub async fn start(rig: &Rig, capped: usize) -> Self {
        let mut load = Self { address: rig.address, shared: Arc::default(), callers: JoinSet::new() };
        let before = rig.connections().await;
        let mut everywhere = false;
        while load.callers.len() < 6 || !everywhere {
            // Which thread takes a connection is the kernel's choice.
            assert!(load.callers.len() < 100, "the kernel never chose some thread");
            let place = load.callers.len();
            let stream = place.is_multiple_of(2);
            let max_tokens = if stream { 20 } else { 2 };
            load.shared.told().push(0);
            load.call(Part { tenant: STEADY, stream, max_tokens, place: Some(place) }).await;
            eventually("the new caller's connection is taken", async || {
                let now = rig.connections().await;
                let more = now.iter().sum::<u64>().saturating_sub(before.iter().sum());
                (more > place as u64).then_some(()).ok_or(format!("{now:?}, before {before:?}"))
            })
            .await;
            everywhere = rig.connections().await.iter().zip(&before).all(|(now, before)| now > before);
        }
        for caller in 0..capped {
            let stream = caller.is_multiple_of(2);
            load.call(Part { tenant: CAPPED, stream, max_tokens: 2, place: None }).await;
        }
        load
    }

    async fn call(&mut self, part: Part) {
        let connection = KeptAlive::open(self.address).await;
        self.callers.spawn(run(self.address, connection, part, Arc::clone(&self.shared)));
    }

    /// What has been answered so far.
    #[must_use]
    pub fn answers(&self) -> Vec<Answer> {
        self.shared.answers().clone()
    }

    /// Changes the policy; the new one, whose number this is, is in force on every worker thread when this returns.
    pub async fn change(&self, rig: &mut Rig, change: impl FnOnce(&mut Value)) -> u64 {
        let next = self.next();
        rig.reconfigure(|policy| {
            change(policy);
            number(policy, next);
        });
        self.in_force(next).await
    }

    /// Changes the code of the filter, and of its policy nothing but the number.
    pub async fn change_code(&self, rig: &mut Rig, code: PathBuf) -> u64 {
        let next = self.next();
        rig.change_code(code, |policy| number(policy, next));
        self.in_force(next).await
    }

    /// Number of the policy that is about to be written.
    fn next(&self) -> u64 {
        self.shared.written.fetch_add(1, Ordering::SeqCst) + 1
    }

    async fn in_force(&self, number: u64) -> u64 {
        eventually("the new policy is in force", async || {
            self.nothing_failed();
            let told = self.shared.told().clone();
            told.iter().all(|told| *told == number).then_some(()).ok_or(format!("{told:?} of {number}"))
        })
        .await;
        self.shared.in_force.store(number, Ordering::SeqCst);
        number
    }

    /// Waits until this limit has refused somebody.
    pub async fn refused_by(&self, knob: &Knob) {
        let before = self.refusals(knob);
        eventually("the cap of the policy in force refuses somebody", async || {
            self.nothing_failed();
            (self.refusals(knob) > before).then_some(()).ok_or(format!("{knob:?}"))
        })
        .await;
    }

    /// A caller whose request fails is gone, so whoever waits for its answers would wait in vain.
    fn nothing_failed(&self) {
        let answers = self.shared.answers();
        let failed = answers.iter().find(|answer| matches!(answer.outcome, Outcome::Failed(_)));
        assert!(failed.is_none(), "{failed:?}");
    }

    fn refusals(&self, knob: &Knob) -> usize {
        self.answers().iter().filter(|answer| matches!(&answer.outcome, Outcome::Refused(by) if by == knob)).count()
    }

    /// Lets every request come to its end and sends no more; all answers.
    pub async fn stop(mut self) -> Vec<Answer> {
        self.shared.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.callers.join_next().await {
            ended.expect("a caller");
        }
        self.answers()
    }
}

async fn run(address: SocketAddr, mut connection: KeptAlive, part: Part, shared: Arc<Shared>) {
    let body = chat(MODEL, part.max_tokens, part.stream).to_string();
    let headers = [("x-tenant-id", part.tenant), ("x-sluice-lane", STEADY)];
    while !shared.stop.load(Ordering::SeqCst) {
        let from = shared.in_force.load(Ordering::SeqCst);
        let response = connection.post(&headers, body.clone()).await;
        let to = shared.written.load(Ordering::SeqCst);
        let closing = response.as_ref().is_ok_and(is_last);
        let outcome = match response {
            Ok(response) => outcome(response, part.stream).await,
            Err(error) => Outcome::Failed(error),
        };
        match (&outcome, part.place) {
            (Outcome::Served(policy), Some(place)) => shared.told()[place] = *policy,
            (Outcome::Refused(_), _) => {
                if closing {
                    connection = KeptAlive::open(address).await;
                }
                tokio::time::sleep(REST).await;
            }
            _ => {}
        }
        let failed = matches!(outcome, Outcome::Failed(_));
        let newest = shared.told().iter().copied().max().unwrap_or_default();
        shared.answers().push(Answer { tenant: part.tenant, policies: from..=to, newest, outcome });
        if failed {
            return;
        }
    }
}

/// What an answer comes to, read to its end.
async fn outcome(response: Response<hyper::body::Incoming>, stream: bool) -> Outcome {
    let (head, body) = response.into_parts();
    let body = match body.collect().await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        Err(error) => return Outcome::Failed(format!("{head:?}, cut short: {error}")),
    };
    let policy = head.headers.get("x-ratelimit-limit-requests").and_then(|limit| limit.to_str().ok()?.parse().ok());
    let answer: Value = serde_json::from_str(&body).unwrap_or_default();
    let limit = &answer["error"]["limit"];
    let whole = if stream { body.ends_with("data: [DONE]\n\n") } else { answer["choices"].is_array() };
    match (head.status.as_u16(), policy, limit["knob"].as_str(), limit["allowed"].as_u64()) {
        (200, Some(budget), ..) if whole => Outcome::Served(u64::wrapping_sub(budget, BUDGET)),
        (429, _, Some(knob), Some(allowed)) if head.headers.contains_key("x-sluice-reason") => {
            Outcome::Refused((knob.to_owned(), allowed))
        }
        _ => Outcome::Failed(format!("{head:?} {body}")),
    }
}
