//! From the moment a worker shows a change to the moment the filter acts on it.
//!
//! The worker knows when its page was first asked for after the change: the scrape that saw it ends later. The filter acts
//! when a request is first answered by the new state; it decided earlier. So a sample is rather too long, by the scrape and
//! one round of the probe.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use testkit::statistics::Times;
use testkit::watch::Watch;

use super::stage::Stage;

/// Shares of KV blocks in use that are free and busy to the sidecar.
const FREE_AND_BUSY: [f64; 2] = [0.1, 0.95];

/// Between two requests of the probe, and between two looks at the worker.
const STEP: Duration = Duration::from_micros(500);

/// A change that has not come through by then never will.
const DEADLINE: Duration = Duration::from_secs(10);

/// A request without a body would pass unjudged.
const REQUEST: &str = r#"{"messages":[{"role":"user","content":"?"}],"max_tokens":1}"#;

/// This process is the workers and the probe: when it does not run, neither does, and the sample says nothing.
const TOLERATED_LAG: Duration = Duration::from_millis(5);

/// What was timed, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Effects {
    pub samples: usize,
    /// Samples not used because this process did not run when it should have.
    pub discarded: usize,
    pub p50_ms: Option<f64>,
    pub p90_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub max_ms: Option<f64>,
}

/// Turns the probe's worker busy and free again for so long.
///
/// # Errors
/// When a change does not come through.
pub async fn measure(stage: &Stage, window: Duration) -> Result<Effects> {
    let watch = Watch::start(Duration::from_millis(1), TOLERATED_LAG);
    let probe = Probe::of(stage.public)?;
    let worker = stage.probed()?;
    let mut random = fastrand::Rng::with_seed(20);
    let (mut times, end) = (Vec::new(), Instant::now() + window);
    worker.set_kv_usage(FREE_AND_BUSY[0]);
    probe.until(false).await?;
    for busy in [true, false].into_iter().cycle() {
        // At any time within the scrape interval, and after the view before has had its time.
        tokio::time::sleep(Duration::from_millis(random.u64(60..160))).await;
        if Instant::now() >= end {
            break;
        }
        worker.set_kv_usage(FREE_AND_BUSY[usize::from(busy)]);
        let deadline = Instant::now() + DEADLINE;
        let shown = loop {
            if let Some(shown) = worker.shown_at() {
                break shown;
            }
            ensure!(Instant::now() < deadline, "the sidecar has not read the worker for {DEADLINE:?}");
            tokio::time::sleep(STEP).await;
        };
        times.push((shown, probe.until(busy).await?));
    }
    Ok(Effects::of(&times, &watch))
}

impl Effects {
    fn of(times: &[(Instant, Instant)], watch: &Watch) -> Self {
        let stalls = watch.stalls();
        let disturbed = |from: Instant, to: Instant| {
            stalls.iter().any(|stall| stall.start.into_std() <= to && from <= stall.end.into_std())
        };
        let used = times.iter().filter(|(shown, seen)| !disturbed(*shown, *seen));
        let effects: Times = used.map(|(shown, seen)| *seen - *shown).collect();
        let samples = effects.count() as usize;
        Self {
            samples,
            discarded: times.len() - samples,
            p50_ms: effects.millis(0.5),
            p90_ms: effects.millis(0.9),
            p99_ms: effects.millis(0.99),
            max_ms: effects.millis(1.0),
        }
    }
}

/// Asks the proxy whether it would let a request in.
struct Probe {
    client: reqwest::Client,
    url: String,
}

impl Probe {
    fn of(address: SocketAddr) -> Result<Self> {
        Ok(Self { client: testkit::envoy::direct_client()?, url: format!("http://{address}/v1/chat/completions") })
    }

    /// When it first refuses because all workers are busy, or first does not.
    async fn until(&self, busy: bool) -> Result<Instant> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let answer = self.client.post(&self.url).body(REQUEST).send().await.context("the proxy has gone")?;
            let (seen, status) = (Instant::now(), answer.status().as_u16());
            let reason = answer.headers().get("x-sluice-reason").map(|reason| reason.as_bytes().to_vec());
            let all_busy = reason.as_deref() == Some(b"all_busy");
            if all_busy == busy && (busy || status == 200) {
                return Ok(seen);
            }
            let reason = reason.map(|reason| String::from_utf8_lossy(&reason).into_owned());
            ensure!(seen < deadline, "after {DEADLINE:?} the filter still answers {status}, {reason:?}");
            tokio::time::sleep(STEP).await;
        }
    }
}
