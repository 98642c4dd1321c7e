//! What the sidecar says of itself and of what it sees. docs/metrics.md lists every name here.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::Config;
use crate::courier::Outcome;
use crate::discovery::Found;
use crate::pull;
use crate::reading::Gpu;
use crate::scrape;
use crate::table::Snapshot;

mod gauges;

const PREFIX: &str = "sluice_sidecar";

/// Upper bounds in seconds. Pages come within milliseconds, and none may take much longer than the interval.
const SCRAPE_SECONDS: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];

/// Label names and values of one series.
type Labels = Vec<(&'static str, String)>;
type Counts = Family<Labels, Counter>;

/// What is counted as it happens.
pub struct Counters {
    registry: Registry,
    scrapes: Counts,
    scrape_seconds: Family<Labels, Histogram, fn() -> Histogram>,
    scraped_bytes: Counts,
    lookups: Counts,
    queries: Counts,
    pushes: Counts,
    configurations: Counts,
    unauthorized: Counter,
    /// Labels of the series of the standing configuration.
    standing: Mutex<Vec<Series>>,
}

/// A series that a configuration leads to.
#[derive(Clone, PartialEq)]
enum Series {
    Scrapes(Labels),
    ScrapeSeconds(Labels),
    ScrapedBytes(Labels),
    Lookups(Labels),
    Queries(Labels),
    Pushes(Labels),
}

impl Counters {
    /// Every series the configuration can lead to, at zero.
    pub fn new(config: &Config) -> Self {
        let seconds: fn() -> Histogram = || Histogram::new(SCRAPE_SECONDS);
        let mut registry = Registry::with_prefix(PREFIX);
        let counters = Self {
            scrapes: counts(&mut registry, "scrapes", "Scrapes of workers, by how they ended"),
            scrape_seconds: Family::new_with_constructor(seconds),
            scraped_bytes: counts(&mut registry, "scraped_bytes", "Bytes of metrics pages received from workers"),
            lookups: counts(&mut registry, "discovery_lookups", "Looks for workers, by how they ended"),
            queries: counts(&mut registry, "budget_queries", "Questions for a dispatch budget, by how they ended"),
            pushes: counts(&mut registry, "pushes", "Views pushed to proxies, by what became of them"),
            configurations: counts(
                &mut registry,
                "configurations",
                "Configurations read while running, by what became of them",
            ),
            unauthorized: Counter::default(),
            standing: Mutex::default(),
            registry,
        };
        counters.finish(config)
    }

    fn finish(mut self, config: &Config) -> Self {
        self.registry.register("scrape_seconds", "How long scrapes took", self.scrape_seconds.clone());
        let help = "Requests to the sidecar with a missing or wrong token";
        self.registry.register("unauthorized_requests", help, self.unauthorized.clone());
        for result in ["taken", "refused"] {
            let _ = self.configurations.get_or_create(&vec![("result", result.to_owned())]);
        }
        self.configure(config);
        self
    }

    /// Begins the series of another configuration, and ends those that nothing in it leads to.
    pub fn configure(&self, config: &Config) {
        let wanted = series(config);
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in standing.iter().filter(|known| !wanted.contains(known)) {
            match gone {
                Series::Scrapes(labels) => self.scrapes.remove(labels),
                Series::ScrapeSeconds(labels) => self.scrape_seconds.remove(labels),
                Series::ScrapedBytes(labels) => self.scraped_bytes.remove(labels),
                Series::Lookups(labels) => self.lookups.remove(labels),
                Series::Queries(labels) => self.queries.remove(labels),
                Series::Pushes(labels) => self.pushes.remove(labels),
            };
        }
        for new in &wanted {
            match new {
                Series::Scrapes(labels) => drop(self.scrapes.get_or_create(labels)),
                Series::ScrapeSeconds(labels) => drop(self.scrape_seconds.get_or_create(labels)),
                Series::ScrapedBytes(labels) => drop(self.scraped_bytes.get_or_create(labels)),
                Series::Lookups(labels) => drop(self.lookups.get_or_create(labels)),
                Series::Queries(labels) => drop(self.queries.get_or_create(labels)),
                Series::Pushes(labels) => drop(self.pushes.get_or_create(labels)),
            }
        }
        *standing = wanted;
    }

    /// What one worker's scrapes are counted in; shown nowhere if its pool has just gone.
    pub fn of_scrapes(&self, pool: &str) -> ScrapeCounters {
        let result = |result| {
            let counter = self.scrapes.get(&with(("pool", pool), "result", result));
            (result, counter.map(|counter| counter.clone()).unwrap_or_default())
        };
        let pool = vec![("pool", pool.to_owned())];
        let (seconds, bytes) = (self.scrape_seconds.get(&pool), self.scraped_bytes.get(&pool));
        ScrapeCounters {
            results: scrape::LABELS.map(result),
            seconds: seconds.map_or_else(|| Histogram::new(SCRAPE_SECONDS), |seconds| seconds.clone()),
            bytes: bytes.map(|bytes| bytes.clone()).unwrap_or_default(),
        }
    }

    /// A source of workers was looked at.
    pub fn looked(&self, pool: &str, source: &str, result: &'static str) {
        count(&self.lookups, &lookup(pool, source, result));
    }

    /// A Prometheus was asked for a pool's dispatch budget.
    pub fn queried(&self, pool: &str, is_answered: bool) {
        let result = if is_answered { "ok" } else { "failed" };
        count(&self.queries, &with(("pool", pool), "result", result));
    }

    /// One push ended.
    pub fn pushed(&self, proxy: &str, result: &'static str) {
        count(&self.pushes, &with(("proxy", proxy), "result", result));
    }

    /// Another configuration was read.
    pub fn configured(&self, is_taken: bool) {
        let result = if is_taken { "taken" } else { "refused" };
        count(&self.configurations, &vec![("result", result.to_owned())]);
    }

    /// Somebody asked for what the token is needed for, without it.
    pub fn unauthorized(&self) {
        self.unauthorized.inc();
    }

    /// The whole page, in the OpenMetrics text format.
    ///
    /// # Errors
    /// None: writing to a string does not fail.
    pub fn page(&self, snapshot: &Snapshot, local_gpus: &[Gpu], now: Duration) -> Result<String, fmt::Error> {
        let mut page = String::new();
        encode_registry(&mut page, &self.registry)?;
        encode_registry(&mut page, &gauges::gauges(snapshot, local_gpus, now))?;
        encode_eof(&mut page)?;
        Ok(page)
    }
}

/// What the scrapes of one worker are counted in, looked up once.
pub struct ScrapeCounters {
    results: [(&'static str, Counter); scrape::LABELS.len()],
    seconds: Histogram,
    bytes: Counter,
}

impl ScrapeCounters {
    /// Some of a page has come.
    pub fn received(&self, bytes: usize) {
        self.bytes.inc_by(bytes as u64);
    }

    /// One scrape ended.
    pub fn scraped(&self, result: &'static str, took: Duration) {
        if let Some((_, counter)) = self.results.iter().find(|(label, _)| *label == result) {
            counter.inc();
        }
        self.seconds.observe(took.as_secs_f64());
    }
}

fn counts(registry: &mut Registry, name: &str, help: &str) -> Counts {
    let counts = Counts::default();
    registry.register(name, help, counts.clone());
    counts
}

/// What happens for a pool or a proxy that the configuration no longer has is not counted: its series must not come back.
fn count(counts: &Counts, labels: &Labels) {
    if let Some(counter) = counts.get(labels) {
        counter.inc();
    }
}

fn with(first: (&'static str, &str), name: &'static str, value: &str) -> Labels {
    vec![(first.0, first.1.to_owned()), (name, value.to_owned())]
}

fn lookup(pool: &str, source: &str, result: &str) -> Labels {
    vec![("pool", pool.to_owned()), ("source", source.to_owned()), ("result", result.to_owned())]
}

/// All that `config` leads to.
fn series(config: &Config) -> Vec<Series> {
    let mut all = Vec::new();
    for pool in &config.pools {
        all.push(Series::ScrapeSeconds(vec![("pool", pool.name.clone())]));
        all.push(Series::ScrapedBytes(vec![("pool", pool.name.clone())]));
        all.extend(scrape::LABELS.map(|result| Series::Scrapes(with(("pool", &pool.name), "result", result))));
        for source in &pool.discover {
            let lookup = |result| Series::Lookups(lookup(&pool.name, &source.name(), result));
            all.extend(Found::LABELS.map(lookup));
        }
        if pool.dispatch_budget.as_ref().is_some_and(|budget| budget.prometheus.is_some()) {
            all.extend(["ok", "failed"].map(|result| Series::Queries(with(("pool", &pool.name), "result", result))));
        }
    }
    // Nobody can ask without the token.
    let pulling = config.api_token.as_ref().map(|_| pull::LABEL);
    for proxy in config.proxies.iter().map(|proxy| proxy.url.as_str()).chain(pulling) {
        all.extend(Outcome::LABELS.map(|result| Series::Pushes(with(("proxy", proxy), "result", result))));
    }
    all
}

#[cfg(test)]
mod tests;
