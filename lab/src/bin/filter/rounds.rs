//! Measuring proxies in turn, round after round, so that what else the machine does falls on all of them alike.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::closed::Question;
use testkit::statistics::Times;

use super::stage::{Measured, Stage};
use super::variants::Variant;

/// How long everything takes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Many short rounds rather than few long ones: what disturbs one proxy then disturbs those it is compared with.
    pub rounds: usize,
    pub round: Duration,
    pub stream_rounds: usize,
    /// No shorter than a stream.
    pub stream_round: Duration,
    pub warm_up: Duration,
}

impl Pace {
    /// More and shorter rounds than the whole benchmark has: two builds are to be distinguished that differ by a few percent.
    pub fn of_builds(quick: bool) -> Self {
        let millis = Duration::from_millis;
        let usual = Self::new(quick);
        if quick { usual } else { Self { rounds: 48, round: millis(200), ..usual } }
    }

    /// Enough for figures, or as little as shows that everything works.
    pub fn new(quick: bool) -> Self {
        let millis = Duration::from_millis;
        if quick {
            let stream_round = millis(500);
            Self { rounds: 5, round: millis(200), stream_rounds: 3, stream_round, warm_up: millis(200) }
        } else {
            let stream_round = millis(2_000);
            Self { rounds: 21, round: millis(350), stream_rounds: 7, stream_round, warm_up: millis(700) }
        }
    }
}

/// What is asked at one proxy.
pub type Turn = (Variant, Arc<Question>);

/// What the rounds at one proxy have shown, in their order.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// CPU time of the proxy for each unit, in µs.
    pub cpu_us: Vec<f64>,
    /// Latencies of all rounds.
    pub latencies: Times,
    pub requests: u64,
    /// Latencies left out because the client was starved.
    pub discarded: u64,
}

/// Asks each in turn, as often as the pace says. With `chunks`, answers are streams of so many, and a chunk is the unit;
/// otherwise a request is.
///
/// # Errors
/// When an answer is wrong, or the chunks of a stream run together.
pub async fn measure(
    stage: &mut Stage,
    turns: &[Turn],
    chunks: Option<usize>,
    pace: Pace,
) -> Result<BTreeMap<Variant, Samples>> {
    let (rounds, length) = match chunks {
        Some(_) => (pace.stream_rounds, pace.stream_round),
        None => (pace.rounds, pace.round),
    };
    for (variant, question) in turns {
        stage.side(*variant)?.ask(question, chunks.is_some(), pace.warm_up).await?;
    }
    let mut samples: BTreeMap<Variant, Samples> = BTreeMap::new();
    for round in 0..rounds {
        for place in 0..turns.len() {
            // Another one begins each round, and every second one goes the other way: none always comes after the same.
            let place = if round % 2 == 0 { place } else { turns.len() - 1 - place };
            let (variant, question) = turns.get((round + place) % turns.len()).context("no turns")?;
            let measured = stage.side(*variant)?.ask(question, chunks.is_some(), length).await?;
            let units = units(*variant, &measured, chunks)?;
            let sample = samples.entry(*variant).or_default();
            sample.cpu_us.push(measured.cpu.as_secs_f64() * 1e6 / units);
            sample.requests += measured.round.requests;
            sample.discarded += measured.round.discarded;
            sample.latencies.add(&measured.round.latencies);
        }
    }
    Ok(samples)
}

impl Stage {
    /// Asks a proxy until it has answered so many requests.
    ///
    /// # Errors
    /// When an answer is wrong.
    pub async fn ask_until(
        &mut self,
        variant: Variant,
        question: &Arc<Question>,
        requests: u64,
        pace: Pace,
    ) -> Result<()> {
        let mut answered = 0;
        while answered < requests {
            answered += self.side(variant)?.ask(question, false, pace.warm_up).await?.round.requests;
        }
        Ok(())
    }
}

fn units(variant: Variant, measured: &Measured, chunks: Option<usize>) -> Result<f64> {
    let requests = measured.round.requests as f64;
    let Some(chunks) = chunks else { return Ok(requests) };
    let sent = requests * chunks as f64;
    let came = measured.round.pieces as f64 / sent;
    // Those that run together cost the filter one callback instead of two.
    ensure!(
        came >= 0.9,
        "only {:.0} % of the chunks went through the proxy with {:?} one by one: the machine is too busy, try again",
        came * 100.0,
        variant.name()
    );
    Ok(sent)
}
