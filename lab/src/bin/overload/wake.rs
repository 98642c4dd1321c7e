//! How long a free place stays free while a request waits for it in another thread of the proxy.
//!
//! The pool has one place, and requests wait for it on connections of both threads. The worker writes down when each
//! request came and left. What passes between the end of one and the arrival of the next is two hops through the proxy and
//! the wake-up. The hops alone are measured in the same way on one connection without the filter, on which many requests are
//! sent at once: there the proxy has the next one at hand when an answer ends.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use testkit::crowd::Crowd;
use testkit::envoy::Envoy;
use testkit::statistics::quantile;
use testkit::watch::Watch;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::Instant;
use worker_sim::{Arrival, Arrivals};

use super::scenario::{self, Pace, WAKE_CALLERS};
use testkit::parts::{Parts, Programs};

/// A client that was late by this may have been late with the next request too.
const STALL: Duration = Duration::from_millis(5);

/// Between two looks at that.
const LOOK: Duration = Duration::from_millis(2);

/// Longest time the requests are given.
const DEADLINE: Duration = Duration::from_secs(120);

/// Requests on one connection.
const HOPS: usize = 300;

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Wake {
    /// From the end of an answer to the arrival of a request that waited in the other thread.
    pub gap_p50_ms: Option<f64>,
    pub gap_p99_ms: Option<f64>,
    /// The same between requests of one thread.
    pub same_thread_gap_p99_ms: Option<f64>,
    /// From the end of an answer to the arrival of a request that did not wait.
    pub hop_p50_ms: Option<f64>,
    /// Gaps between the threads that count.
    pub samples: u64,
    /// Not used because the client was starved at the time.
    pub discarded: u64,
}

impl Wake {
    /// What the wake-up adds to the hop, of the slowest hundredth.
    pub fn p99_ms(&self) -> Option<f64> {
        Some((self.gap_p99_ms? - self.hop_p50_ms?).max(0.0))
    }
}

/// Measures it with parts of its own.
///
/// # Errors
/// When a part fails, a request is refused or the cap does not hold.
pub async fn measure(programs: &Programs, pace: Pace) -> Result<Wake> {
    let parts = Parts::start(programs, &scenario::WAKE).await?;
    println!("\none place, and {WAKE_CALLERS} connections on both threads of the proxy that wait for it …");
    let mut hops: Vec<f64> = gaps(&pipelined(&parts).await?)?.iter().map(Gap::ms).collect();
    let (watch, clock) = (Watch::start(LOOK, STALL), Clock::set(&parts).await?);
    let gaps = gaps(&contended(&parts, pace.wakes).await?)?;
    let stalls = watch.stalls();
    let starved = |gap: &&Gap| {
        let (from, to) = (clock.instant(gap.from_ms), clock.instant(gap.to_ms));
        stalls.iter().any(|stall| stall.start < to && from < stall.end)
    };
    let (discarded, usable): (Vec<&Gap>, Vec<&Gap>) = gaps.iter().partition(starved);
    let of = |other_thread| usable.iter().filter(move |gap| gap.other_thread == other_thread).map(|gap| gap.ms());
    let (mut between, mut within): (Vec<f64>, Vec<f64>) = (of(true).collect(), of(false).collect());
    // Why not a histogram: the clocks of two processes are compared, so a gap may be slightly negative.
    [&mut hops, &mut between, &mut within].into_iter().for_each(|gaps| gaps.sort_by(f64::total_cmp));
    let wake = Wake {
        gap_p50_ms: quantile(&between, 0.5),
        gap_p99_ms: quantile(&between, 0.99),
        same_thread_gap_p99_ms: quantile(&within, 0.99),
        hop_p50_ms: quantile(&hops, 0.5),
        samples: between.len() as u64,
        discarded: discarded.len() as u64,
    };
    println!("    {} wake-ups of the other thread, {} samples discarded", wake.samples, wake.discarded);
    Ok(wake)
}

/// From when a place was free to when it was taken.
struct Gap {
    from_ms: f64,
    to_ms: f64,
    other_thread: bool,
}

impl Gap {
    fn ms(&self) -> f64 {
        self.to_ms - self.from_ms
    }
}

fn gaps(arrivals: &[Arrival]) -> Result<Vec<Gap>> {
    let mut gaps = Vec::new();
    for pair in arrivals.windows(2) {
        let [before, after] = pair else { continue };
        let Some(from_ms) = before.left_ms else { continue };
        ensure!(from_ms <= after.came_ms, "a request came before the one ahead of it had left: {before:?} {after:?}");
        gaps.push(Gap { from_ms, to_ms: after.came_ms, other_thread: thread(before) != thread(after) });
    }
    Ok(gaps)
}

/// The thread that a caller's own id names.
fn thread(arrival: &Arrival) -> Option<&str> {
    arrival.id.as_deref()?.split_once('/').map(|(thread, _)| thread)
}

/// Requests of callers on both threads, until so many have been answered.
async fn contended(parts: &Parts, count: usize) -> Result<Vec<Arrival>> {
    let worker = parts.workers.first().context("no worker")?;
    let mut crowd = Crowd::new(parts.with, "/v1/chat/completions");
    let mut threads = BTreeSet::new();
    while crowd.len() < WAKE_CALLERS || threads.len() < 2 {
        ensure!(crowd.len() < 100, "the kernel has given all connections to one thread");
        let before = connections(&parts.envoy).await?;
        let connection = crowd.connect().await?;
        let thread = taken_by(&parts.envoy, &before).await?;
        threads.insert(thread);
        let (tenant, id) = (format!("tenant-{}", crowd.len() % 3), format!("{thread}/{}", crowd.len()));
        let headers = vec![("x-tenant-id", tenant), ("x-client-request-id", id)];
        crowd.join(connection, headers, scenario::small_request());
    }
    parts.forget_arrivals(worker).await?;
    let arrivals = until_arrived(parts, count).await?;
    let otherwise = crowd.tally().otherwise;
    ensure!(otherwise.is_empty(), "requests that wait went wrong: {otherwise:?}");
    Ok(arrivals)
}

/// Requests sent all at once on one connection, which the proxy answers one after the other.
async fn pipelined(parts: &Parts) -> Result<Vec<Arrival>> {
    let body = scenario::small_request();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: wake\r\ncontent-length: {}\r\n\r\n", body.len());
    let (mut answers, mut requests) = TcpStream::connect(parts.without).await?.into_split();
    requests.write_all(format!("{head}{body}").repeat(HOPS).as_bytes()).await?;
    let reading = tokio::spawn(async move { tokio::io::copy(&mut answers, &mut tokio::io::sink()).await });
    let arrivals = until_arrived(parts, HOPS).await?;
    reading.abort();
    Ok(arrivals)
}

async fn until_arrived(parts: &Parts, count: usize) -> Result<Vec<Arrival>> {
    let worker = parts.workers.first().context("no worker")?;
    let deadline = Instant::now() + DEADLINE;
    loop {
        let arrivals = parts.arrivals(worker).await?.requests;
        if arrivals.len() >= count {
            return Ok(arrivals);
        }
        ensure!(Instant::now() < deadline, "{} of {count} requests arrived within {DEADLINE:?}", arrivals.len());
        // Seldom, since asking takes the worker's time.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Open connections of the listener with the filter, by thread.
async fn connections(envoy: &Envoy) -> Result<Vec<u64>> {
    let mut connections = Vec::new();
    for thread in 0..scenario::WAKE.envoy_threads {
        connections.push(envoy.stat(&format!("listener.public.worker_{thread}.downstream_cx_active")).await?);
    }
    Ok(connections)
}

/// The thread that has one more now.
async fn taken_by(envoy: &Envoy, before: &[u64]) -> Result<usize> {
    let deadline = Instant::now() + DEADLINE;
    while Instant::now() < deadline {
        let now = connections(envoy).await?;
        if let Some(thread) = now.iter().zip(before).position(|(now, before)| now > before) {
            return Ok(thread);
        }
    }
    bail!("no thread has taken a connection")
}

/// The worker's clock on ours.
struct Clock {
    zero: Instant,
}

impl Clock {
    async fn set(parts: &Parts) -> Result<Self> {
        let worker = parts.workers.first().context("no worker")?;
        // With little to tell, it answers at once.
        parts.forget_arrivals(worker).await?;
        let asked = Instant::now();
        let Arrivals { now_ms, .. } = parts.arrivals(worker).await?;
        let answered = asked + asked.elapsed() / 2;
        let zero = answered.checked_sub(Duration::from_secs_f64(now_ms / 1_000.0));
        Ok(Self { zero: zero.context("the worker is older than time")? })
    }

    fn instant(&self, ms: f64) -> Instant {
        self.zero + Duration::from_secs_f64(ms / 1_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(id: &str, came_ms: f64, left_ms: f64) -> Arrival {
        Arrival { came_ms, left_ms: Some(left_ms), id: Some(id.to_owned()), ..Arrival::default() }
    }

    #[test]
    fn a_gap_lies_between_the_end_of_one_and_the_arrival_of_the_next() {
        let arrivals = [arrival("0/a", 1.0, 2.0), arrival("1/b", 2.5, 4.0), arrival("1/c", 4.25, 5.0)];
        let gaps = gaps(&arrivals).unwrap();
        let seen: Vec<_> = gaps.iter().map(|gap| (gap.ms(), gap.other_thread)).collect();
        assert_eq!(seen, [(0.5, true), (0.25, false)]);
    }

    #[test]
    fn two_at_once_are_no_gap_but_a_broken_cap() {
        assert!(gaps(&[arrival("0/a", 1.0, 2.0), arrival("1/b", 1.5, 4.0)]).is_err());
    }
}
