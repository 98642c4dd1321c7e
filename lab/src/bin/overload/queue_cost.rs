//! What a request costs the proxy while few wait, and while ten thousand do.
//!
//! As many callers as there are places and waiters ask again as soon as they are answered, so the queue keeps its length.
//! Cost is the CPU time of the whole proxy over the requests answered meanwhile. The worker sets the pace, which is the same
//! in both queues, so what the proxy does by the clock weighs the same in both.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use testkit::crowd::Crowd;
use tokio::time::Instant;

use super::scenario::{self, Pace, QUEUE_PLACES, QUEUE_TENANTS, QUEUES};
use testkit::parts::{Parts, Programs};

/// File descriptors that are needed: a connection for each waiter, and others.
const DESCRIPTORS: u64 = QUEUES[1] as u64 + 1_000;

/// Longest time a queue is given to come to its length.
const DEADLINE: Duration = Duration::from_secs(60);

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct QueueCost {
    pub with: Costs,
    /// Envoy's own queue of requests that have no connection to the worker.
    pub without: Costs,
}

/// CPU time of the proxy for each request, with the short queue, the long one, and the short one again.
#[derive(Clone, Debug, Serialize)]
pub struct Costs {
    pub short_us: [f64; 2],
    pub long_us: f64,
}

impl Costs {
    /// The long queue's in multiples of the short one's, which is the mean of before and after.
    pub fn ratio(&self) -> f64 {
        self.long_us / (self.short_us.iter().sum::<f64>() / 2.0)
    }
}

/// Measures it with parts of its own.
///
/// # Errors
/// When a part fails or a request is refused.
pub async fn measure(programs: &Programs, pace: Pace) -> Result<QueueCost> {
    allow_descriptors()?;
    let parts = Parts::start(programs, &scenario::LONG_QUEUE).await?;
    let with = costs(&parts, parts.with, "in the filter", pace).await?;
    let without = costs(&parts, parts.without, "in Envoy's own queue, without the filter", pace).await?;
    Ok(QueueCost { with, without })
}

async fn costs(parts: &Parts, listener: SocketAddr, place: &str, pace: Pace) -> Result<Costs> {
    let [short, long] = QUEUES;
    println!("\n{short}, {long} and again {short} requests that wait {place} …");
    let mut measured = [0.0; 3];
    for (waiters, cost) in [short, long, short].into_iter().zip(&mut measured) {
        *cost = cost_us(parts, listener, waiters, pace.queue_window).await?;
        println!("    {waiters:>6} wait: {cost:.0} µs of CPU time a request");
        parts.until_idle().await?;
    }
    let [before, long_us, after] = measured;
    Ok(Costs { short_us: [before, after], long_us })
}

async fn cost_us(parts: &Parts, listener: SocketAddr, waiters: usize, window: Duration) -> Result<f64> {
    let mut crowd = Crowd::new(listener, "/v1/chat/completions");
    while crowd.len() < waiters + QUEUE_PLACES {
        let connection = crowd.connect().await?;
        let tenant = format!("tenant-{}", crowd.len() % QUEUE_TENANTS);
        crowd.join(connection, vec![("x-tenant-id", tenant)], scenario::small_request());
    }
    until_all_ask(parts, listener, &crowd).await?;
    let (answered, used) = (crowd.tally().answered, parts.envoy.cpu_time()?);
    tokio::time::sleep(window).await;
    let (answered, used) = (crowd.tally().answered - answered, parts.envoy.cpu_time()? - used);
    let otherwise = crowd.tally().otherwise;
    ensure!(otherwise.is_empty(), "requests that wait went wrong: {otherwise:?}");
    ensure!(answered > 0, "none of {waiters} was answered in {window:?}");
    Ok(used.as_secs_f64() * 1e6 / answered as f64)
}

/// Waits until the proxy has a request of everyone in hand.
async fn until_all_ask(parts: &Parts, listener: SocketAddr, crowd: &Crowd) -> Result<()> {
    let name = if listener == parts.with { "public" } else { "without" };
    let deadline = Instant::now() + DEADLINE;
    loop {
        let in_hand = parts.envoy.stat(&format!("listener.{name}.downstream_cx_active")).await?;
        if in_hand >= crowd.len() as u64 {
            break;
        }
        ensure!(Instant::now() < deadline, "the proxy has only {in_hand} of {} connections", crowd.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // What all of them have sent at first is behind the proxy then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}

/// Raises the limit of this process and of those that it starts, as far as it may.
fn allow_descriptors() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < DESCRIPTORS) {
        let raised = Rlimit { current: Some(DESCRIPTORS), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).with_context(|| {
            format!("{DESCRIPTORS} open files are needed: raise the limit (`ulimit -Hn`), then try again")
        })?;
    }
    Ok(())
}
