//! The proxies that are compared, all of them up at once, and the worker behind them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::header::{HeaderName, HeaderValue};
use serde_json::Value;
use testkit::bodies::Body;
use testkit::checkout;
use testkit::closed::{Callers, Question, Round};
use testkit::envoy::{Envoy, Options};
use testkit::upstream::{self, BYTES_HEADER, CHUNKS_HEADER, Upstream};

use super::variants::{Modules, PROBE, TENANT_HEADER, Variant, tenant};

/// Header that the modules of `lab/floor` and `lab/naive` set.
const MARK: &str = "x-bench-mark";

/// Connections that ask for whole answers.
const CALLERS: usize = 8;

/// Connections that ask for streams. Chunks come by the clock, so many streams at once make what they cost visible.
const STREAM_CALLERS: usize = 48;

/// Several ticks of the filter.
const SETTLED: Duration = Duration::from_millis(500);

/// One proxy, and those who ask it.
pub struct Side {
    pub variant: Variant,
    pub envoy: Envoy,
    address: SocketAddr,
    callers: Callers,
    stream_callers: Callers,
    answered: u64,
}

/// What one round at one proxy has cost.
pub struct Measured {
    /// CPU time of the proxy.
    pub cpu: Duration,
    pub round: Round,
}

/// Everything that runs.
pub struct Stage {
    pub sides: Vec<Side>,
    upstream: Upstream,
}

impl Side {
    async fn start(variant: Variant, program: &std::path::Path, bootstrap: &Value) -> Result<Self> {
        let explain = || format!("the proxy with {:?} does not start", variant.name());
        let options = Options { program, bootstrap, concurrency: 1 };
        let envoy = Envoy::start(options).await.with_context(explain)?;
        let address = envoy.listener("public").await.with_context(explain)?;
        let callers = Callers::connect(address, CALLERS).await?;
        let stream_callers = Callers::connect(address, STREAM_CALLERS).await?;
        Ok(Self { variant, envoy, address, callers, stream_callers, answered: 0 })
    }

    /// Asks for so long, and measures what it costs the proxy.
    ///
    /// # Errors
    /// When an answer is not what it should be.
    pub async fn ask(&mut self, question: &Arc<Question>, streams: bool, length: Duration) -> Result<Measured> {
        let callers = if streams { &mut self.stream_callers } else { &mut self.callers };
        let explain = || format!("a request to the proxy with {:?} went wrong", self.variant.name());
        let before = self.envoy.fine_cpu_time()?;
        let round = callers.ask(question, length).await.with_context(explain)?;
        let cpu = self.envoy.fine_cpu_time()?.saturating_sub(before);
        ensure!(round.requests > 0, "the proxy with {:?} has answered nothing", self.variant.name());
        self.answered += round.requests;
        Ok(Measured { cpu, round })
    }
}

impl Stage {
    /// Starts the worker and every proxy, and makes sure that each does what it is there for.
    ///
    /// # Errors
    /// When one does not.
    pub async fn start(modules: &Modules, variants: &[Variant], small: &Body) -> Result<Self> {
        let upstream = Upstream::start(MARK).await?;
        let mut sides = Vec::new();
        for &variant in variants {
            let bootstrap = variant.bootstrap(modules, upstream.address());
            sides.push(Side::start(variant, &checkout::envoy(), &bootstrap).await?);
        }
        let stage = Self { sides, upstream };
        stage.probe(small).await?;
        Ok(stage)
    }

    /// The proxy of a variant.
    pub fn side(&mut self, variant: Variant) -> Result<&mut Side> {
        let side = self.sides.iter_mut().find(|side| side.variant == variant);
        side.with_context(|| format!("no proxy runs with {:?}", variant.name()))
    }

    /// Envoy's own pair must count the tokens of a body: the second one is too many for the probe.
    async fn probe(&self, small: &Body) -> Result<()> {
        let Some(side) = self.sides.iter().find(|side| side.variant == Variant::Native) else { return Ok(()) };
        let url = format!("http://{}/v1/chat/completions", side.address);
        let client = testkit::envoy::direct_client()?;
        let mut statuses = Vec::new();
        for _ in 0..2 {
            let request = client.post(&url).header(TENANT_HEADER, PROBE).body(small.json.clone());
            statuses.push(request.send().await?.status().as_u16());
        }
        ensure!(
            statuses == [200, 429],
            "Envoy's own filters do not count tokens: the probe was answered with {statuses:?}, not 200 and then 429. Is \
             target/tools/envoy the pinned version? `cargo xtask tools` installs it"
        );
        Ok(())
    }

    /// Whether every filter has done its work on every request, as far as the proxy and the worker can tell.
    ///
    /// # Errors
    /// Which has not.
    pub async fn check(&self) -> Result<()> {
        // What the filter has counted last becomes the proxy's with its next tick.
        tokio::time::sleep(SETTLED).await;
        let marks = |side: &&Side| side.variant.marks_requests();
        let sent_with_mark: u64 = self.sides.iter().filter(marks).map(|side| side.answered).sum();
        for side in &self.sides {
            let seen = match side.variant {
                Variant::None => side.answered,
                // The worker cannot tell one of these modules from another.
                marked if marked.marks_requests() && self.upstream.marked() == sent_with_mark => side.answered,
                Variant::Floor | Variant::FloorReading | Variant::FloorCalls | Variant::Naive => self.upstream.marked(),
                // The probe was read twice.
                Variant::Native => {
                    side.envoy.stat("ai_protocol_manager.request_info.published").await?.saturating_sub(2)
                }
                Variant::Sluice
                | Variant::SluiceHeld
                | Variant::SluiceManyTenants
                | Variant::SluiceUnnamed
                | Variant::Ours(_)
                | Variant::Theirs(_) => admitted(&side.envoy).await?,
            };
            let (name, answered) = (side.variant.name(), side.answered);
            ensure!(seen == answered, "the filter of {name:?} has judged {seen} of {answered} requests");
        }
        Ok(())
    }
}

/// Requests that the filter says it has let in.
async fn admitted(envoy: &Envoy) -> Result<u64> {
    let answer = envoy.admin("/stats?format=json&filter=sluice_requests_total").await?;
    let answer: Value = serde_json::from_str(&answer).context("the proxy's statistics are no JSON")?;
    let stats = answer["stats"].as_array().context("the proxy has no statistics")?;
    let admitted = stats.iter().filter(|stat| stat["name"].as_str().is_some_and(|name| name.contains("admitted")));
    Ok(admitted.filter_map(|stat| stat["value"].as_u64()).sum())
}

/// What callers ask with a body, each time another of so many tenants. With `chunks` the answer is a stream of so many.
///
/// # Errors
/// When a header is none.
pub fn question(body: &Body, tenants: usize, chunks: Option<usize>) -> Result<Arc<Question>> {
    let header = |name, value: String| Ok::<_, anyhow::Error>((HeaderName::from_static(name), value.parse()?));
    let mut headers = vec![header(BYTES_HEADER, body.json.len().to_string())?];
    if let Some(chunks) = chunks {
        headers.push(header(CHUNKS_HEADER, chunks.to_string())?);
    }
    let values: Result<Vec<HeaderValue>, _> = (0..tenants).map(|number| tenant(number).parse()).collect();
    Ok(Arc::new(Question {
        path: "/v1/chat/completions".to_owned(),
        headers,
        varied: HeaderName::from_static(TENANT_HEADER),
        values: values?,
        body: body.json.clone().into(),
        answer: chunks.map_or_else(upstream::answer, upstream::streamed_answer),
    }))
}
