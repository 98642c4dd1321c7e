//! Reads one worker for ever.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::http::uri::PathAndQuery;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::client::PageClient;
use crate::config::{self, Config};
use crate::engines::{Engine, PageError, Reader};
use crate::excerpt::{Excerpts, Held, TRIAL};
use crate::fetch::{FetchError, Peer, exchange};
use crate::metrics::ScrapeCounters;
use crate::reading::Reading;
use crate::shared::Shared;
use crate::table::Target;

/// Longest metrics page, in bytes. vLLM's has some 50 KB an engine.
pub const MAX_PAGE_BYTES: usize = 4 << 20;

/// Why a scrape gave no numbers.
#[derive(Debug)]
pub enum ScrapeError {
    Fetch(FetchError),
    Status(StatusCode),
    Page(PageError),
}

/// One worker's scrapes.
struct Scraper {
    target: Target,
    source: Option<Source>,
    reader: Reader,
    /// What the log was last told, and when.
    said: Option<(Seen, Instant)>,
    counters: ScrapeCounters,
}

/// Where its pages come from.
struct Source {
    client: PageClient,
    excerpts: Excerpts,
    peer: Arc<Peer>,
    /// What the excerpts are read by.
    config: Arc<Config>,
}

/// What a scrape comes to, as far as the log is told.
#[derive(PartialEq)]
enum Seen {
    Page {
        engine: &'static str,
        doubts: Vec<&'static str>,
    },
    /// No page, by why. Connections break in too many ways to tell them apart.
    Nothing(String),
}

/// The log is told of a worker that changes without end no more often than this.
const QUIET: Duration = Duration::from_secs(1);

/// The configuration is looked at no less often than this: an interval that was long may be short now.
const LOOK: Duration = Duration::from_secs(1);

/// Scrapes at every interval, until the worker or its pool is no longer there. A scrape that takes longer delays only
/// the next of the same worker. Workers are spread over the interval, so that their pages do not all come at once; and when all
/// have been kept waiting, as by a pause of the whole process, they are not all due together ever after.
pub async fn run(shared: Arc<Shared>, target: Target) {
    let counters = shared.counters.of_scrapes(&target.worker.pool);
    let mut scraper = Scraper { target, source: None, reader: Reader::default(), said: None, counters };
    let mut wait = pin!(sleep(Duration::ZERO));
    let mut interval = Duration::ZERO;
    let mut next = Instant::now();
    loop {
        wait.as_mut().reset(next.min(Instant::now() + LOOK));
        wait.as_mut().await;
        let Some((config, at, peer)) = shared.pool(&scraper.target.worker.pool) else { return };
        if std::mem::replace(&mut interval, config.scrape.interval) != config.scrape.interval {
            next = Instant::now() + interval.mul_f64(phase(&scraper.target));
        }
        let began = Instant::now();
        if began < next {
            continue;
        }
        let Some(pool) = config.pools.get(at) else { return };
        if !scraper.once(&shared, &config, pool, &peer).await {
            return;
        }
        next = after(next, interval, began).max(Instant::now());
    }
}

/// When the next scrape is due after one that was at `due` and `began` later: so many whole intervals behind `due` that it is
/// behind `began` too.
fn after(due: Instant, interval: Duration, began: Instant) -> Instant {
    let missed = began.saturating_duration_since(due).as_nanos() / interval.as_nanos().max(1);
    due + interval * u32::try_from(missed).unwrap_or(u32::MAX).saturating_add(1)
}

/// A share of the interval that is the worker's own.
fn phase(target: &Target) -> f64 {
    let mut hasher = DefaultHasher::new();
    target.worker.address.hash(&mut hasher);
    f64::from(hasher.finish() as u32) / f64::from(u32::MAX)
}

impl Scraper {
    /// One scrape; returns whether the worker is still there.
    async fn once(&mut self, shared: &Shared, config: &Arc<Config>, pool: &config::Pool, peer: &Arc<Peer>) -> bool {
        let began = shared.now();
        let worker = &self.target.worker;
        let scrape = shared.read(|table| table.begin_scrape(worker, began));
        let result = self.fetch(config, pool, peer).await;
        let now = shared.now();
        self.counters.scraped(label(&result), now.saturating_sub(began));
        self.log_change(&result);
        let result = result.map_err(|error| error.label());
        shared.update(|table| table.end_scrape(scrape, result, now))
    }

    /// An excerpt where the worker gives one, else the whole page, together within the time for a scrape.
    async fn fetch(
        &mut self,
        config: &Arc<Config>,
        pool: &config::Pool,
        peer: &Arc<Peer>,
    ) -> Result<Reading, ScrapeError> {
        let (began, engine, deadline) = (Instant::now(), pool.engine.as_ref(), config.scrape.timeout);
        let Self { target, source, reader, counters, .. } = self;
        let Source { client, excerpts, .. } = Source::kept(source, &target.metrics_url, config, peer)?;
        let held = |reader: &mut Reader, reading: &Reading, names: &[&'static str]| Held {
            names: reader.found(names),
            ranks: reading.ranks.iter().map(|rank| rank.rank).collect(),
        };
        let mut reserved = None;
        if let Some((path, share)) = excerpts.excerpt() {
            reserved = Some(deadline.mul_f64(1.0 - share));
            match read(client, (peer, path), deadline.mul_f64(share), (engine, reader), counters).await {
                Ok(reading) if excerpts.read_excerpt(|names| held(reader, &reading, names)) => return Ok(reading),
                Err(error) if !excerpts.failed(error.is_timeout()) => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        // What a trial has left for the whole page is there for it, also where this process was kept from running meanwhile.
        let left = deadline.saturating_sub(began.elapsed()).max(reserved.unwrap_or_default());
        let result = read(client, (peer, excerpts.whole()), left, (engine, reader), counters).await;
        match &result {
            Ok(reading) => {
                let is_quick = began.elapsed() < deadline.mul_f64(TRIAL);
                excerpts.read_whole(reading.engine.names(), is_quick, |names| held(reader, reading, names));
            }
            // After an excerpt there may have been too little time for it.
            Err(error) if error.is_timeout() && reserved.is_some() => {}
            Err(_) => excerpts.forget(),
        }
        result
    }

    fn log_change(&mut self, result: &Result<Reading, ScrapeError>) {
        let Target { worker, metrics_url, .. } = &self.target;
        let seen = Seen::of(result);
        if self.said.as_ref().is_some_and(|(said, at)| *said == seen || at.elapsed() < QUIET) {
            return;
        }
        let (pool, worker, url) = (&*worker.pool, &*worker.address, config::without_secrets(metrics_url));
        match result {
            Ok(Reading { engine, doubts, .. }) if !doubts.is_empty() => {
                let (engine, numbers) = (engine.name(), doubts.join(", "));
                warn!(pool, worker, url, engine, numbers, "worker tells what cannot be believed and counts as unknown");
            }
            Ok(Reading { engine, ranks, .. }) => {
                info!(pool, worker, engine = engine.name(), ranks = ranks.len(), "worker answers");
            }
            Err(error) => warn!(pool, worker, url, %error, "worker cannot be read"),
        }
        self.said = Some((seen, Instant::now()));
    }
}

impl Source {
    /// The one at hand, as far as it is still as configured. Another configuration may read a page by other series.
    fn kept<'a>(
        source: &'a mut Option<Self>,
        url: &str,
        config: &Arc<Config>,
        peer: &Arc<Peer>,
    ) -> Result<&'a mut Self, ScrapeError> {
        if source.as_ref().is_some_and(|kept| !Arc::ptr_eq(&kept.peer, peer)) {
            *source = None;
        }
        let source = match source {
            Some(kept) => kept,
            none => {
                let client = PageClient::new(url).map_err(ScrapeError::Fetch)?;
                let excerpts = Excerpts::of(client.url());
                none.insert(Self { client, excerpts, peer: Arc::clone(peer), config: Arc::clone(config) })
            }
        };
        if !Arc::ptr_eq(&source.config, config) {
            source.config = Arc::clone(config);
            source.excerpts.forget();
        }
        Ok(source)
    }
}

/// What the page below one path says.
async fn read(
    client: &mut PageClient,
    of: (&Peer, &PathAndQuery),
    deadline: Duration,
    (engine, reader): (Option<&Engine>, &mut Reader),
    counters: &ScrapeCounters,
) -> Result<Reading, ScrapeError> {
    reader.begin();
    let take = |piece: &[u8]| {
        counters.received(piece.len());
        reader.push(engine, piece);
    };
    let status = client.get(of, deadline, MAX_PAGE_BYTES, take).await.map_err(ScrapeError::Fetch)?;
    ok(status)?;
    reader.end(engine).map_err(ScrapeError::Page)
}

impl Seen {
    fn of(result: &Result<Reading, ScrapeError>) -> Self {
        match result {
            Ok(Reading { engine, doubts, .. }) => Self::Page { engine: engine.name(), doubts: doubts.clone() },
            Err(error @ ScrapeError::Fetch(FetchError::Connection(_))) => Self::Nothing(error.label().into()),
            Err(error) => Self::Nothing(error.to_string()),
        }
    }
}

/// A page that is read too seldom for a connection of its own.
pub async fn page(peer: &Peer, url: &str, deadline: Duration) -> Result<Vec<u8>, ScrapeError> {
    let (status, body) =
        exchange(peer.client().get(url), deadline, MAX_PAGE_BYTES).await.map_err(ScrapeError::Fetch)?;
    ok(status).map(|()| body)
}

fn ok(status: StatusCode) -> Result<(), ScrapeError> {
    if status == StatusCode::OK { Ok(()) } else { Err(ScrapeError::Status(status)) }
}

/// Every value of the metric label `result`.
pub const LABELS: [&str; 7] = ["ok", "timeout", "connection", "too_large", "status", "server_error", "page"];

fn label(result: &Result<Reading, ScrapeError>) -> &'static str {
    result.as_ref().map_or_else(ScrapeError::label, |_| "ok")
}

impl ScrapeError {
    fn is_timeout(&self) -> bool {
        matches!(self, Self::Fetch(FetchError::Timeout))
    }

    /// The value of the metric label `result`.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Fetch(FetchError::Timeout) => "timeout",
            Self::Fetch(FetchError::Connection(_)) => "connection",
            Self::Fetch(FetchError::TooLarge(_)) => "too_large",
            // Why apart: a proxy before a worker that is gone answers so too.
            Self::Status(status) if status.is_server_error() => "server_error",
            Self::Status(_) => "status",
            Self::Page(_) => "page",
        }
    }
}

impl fmt::Display for ScrapeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetch(error) => error.fmt(out),
            Self::Status(status) => write!(out, "status {status}"),
            Self::Page(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for ScrapeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_keeps_its_place_in_the_interval_however_late_a_scrape_begins() {
        let (due, ms) = (Instant::now(), Duration::from_millis);
        for (late, next) in [(0, 100), (30, 100), (99, 100), (100, 200), (101, 200), (1_234, 1_300)] {
            assert_eq!(after(due, ms(100), due + ms(late)), due + ms(next), "{late} ms late");
        }
    }
}
