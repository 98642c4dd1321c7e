//! What the sidecar says of itself. The table of metrics in the README lists every name here.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use admission_core::view::{KvBlocks, WorkerReport, WorkerState};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::Config;
use crate::courier::Outcome;
use crate::scrape;
use crate::table::{Table, WorkerRow};

const PREFIX: &str = "sluice_sidecar";

/// Upper bounds in seconds. Pages come within milliseconds, and none may take much longer than the interval.
const SCRAPE_SECONDS: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];

/// Label names and values of one series.
type Labels = Vec<(&'static str, String)>;
type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;

/// What is counted as it happens.
pub struct Counters {
    registry: Registry,
    scrapes: Family<Labels, Counter>,
    scrape_seconds: Family<Labels, Histogram, fn() -> Histogram>,
    pushes: Family<Labels, Counter>,
}

impl Counters {
    /// Every series the configuration can lead to, at zero.
    pub fn new(config: &Config) -> Self {
        let seconds: fn() -> Histogram = || Histogram::new(SCRAPE_SECONDS);
        let mut counters = Self {
            registry: Registry::with_prefix(PREFIX),
            scrapes: Family::default(),
            scrape_seconds: Family::new_with_constructor(seconds),
            pushes: Family::default(),
        };
        let registry = &mut counters.registry;
        registry.register("scrapes", "Scrapes of workers, by how they ended", counters.scrapes.clone());
        registry.register("scrape_seconds", "How long scrapes took", counters.scrape_seconds.clone());
        registry.register("pushes", "Views pushed to proxies, by what became of them", counters.pushes.clone());
        for pool in &config.pools {
            let _ = counters.scrape_seconds.get_or_create(&vec![("pool", pool.name.clone())]);
            for result in scrape::LABELS {
                let _ = counters.scrapes.get_or_create(&scrape_labels(&pool.name, result));
            }
        }
        for proxy in &config.proxies {
            for result in Outcome::LABELS {
                let _ = counters.pushes.get_or_create(&push_labels(&proxy.url, result));
            }
        }
        counters
    }

    /// One scrape ended.
    pub fn scraped(&self, pool: &str, result: &'static str, took: Duration) {
        self.scrapes.get_or_create(&scrape_labels(pool, result)).inc();
        self.scrape_seconds.get_or_create(&vec![("pool", pool.to_owned())]).observe(took.as_secs_f64());
    }

    /// One push ended.
    pub fn pushed(&self, proxy: &str, result: &'static str) {
        self.pushes.get_or_create(&push_labels(proxy, result)).inc();
    }

    /// The whole page, in the OpenMetrics text format.
    ///
    /// # Errors
    /// None: writing to a string does not fail.
    pub fn page(&self, config: &Config, table: &Table, now: Duration) -> Result<String, fmt::Error> {
        let mut page = String::new();
        encode_registry(&mut page, &self.registry)?;
        encode_registry(&mut page, &gauges(config, table, now))?;
        encode_eof(&mut page)?;
        Ok(page)
    }
}

fn scrape_labels(pool: &str, result: &'static str) -> Labels {
    vec![("pool", pool.to_owned()), ("result", result.to_owned())]
}

fn push_labels(proxy: &str, result: &'static str) -> Labels {
    vec![("proxy", proxy.to_owned()), ("result", result.to_owned())]
}

/// What stands now. Built for every page, so that no gauge is older than the page and none lingers.
fn gauges(config: &Config, table: &Table, now: Duration) -> Registry {
    let mut registry = Registry::with_prefix(PREFIX);
    let rows: Vec<_> = table.rows(now).collect();
    worker_gauges(&mut registry, &rows);
    pool_gauges(&mut registry, config, &rows);
    saturation_gauges(&mut registry, table, now);
    let help = "Time since the proxy last took a view, or since the start while it has taken none";
    let ages = registered(&mut registry, "push_last_success_age_seconds", help);
    for (at, proxy) in config.proxies.iter().enumerate() {
        let age = now.saturating_sub(table.taken_at(at).unwrap_or_default());
        ages.get_or_create(&vec![("proxy", proxy.url.clone())]).set(age.as_secs_f64());
    }
    registry
}

fn worker_gauges(registry: &mut Registry, rows: &[WorkerRow<'_>]) {
    let up = registered(registry, "worker_up", "1 while the worker answers, draining or not");
    let busy = registered(registry, "worker_busy", "1 while the worker is busy by the busy rule");
    let kv = registered(registry, "worker_kv_used_ratio", "KV blocks in use over all ranks; absent while unknown");
    let running = registered(registry, "worker_running", "Sequences in the running batches of all ranks");
    let waiting = registered(registry, "worker_waiting", "Requests waiting inside the engines of all ranks");
    let help = "Time since the last good scrape began, or since the start while there was none";
    let age = registered(registry, "worker_scrape_age_seconds", help);
    for WorkerRow { pool, report } in rows {
        let labels = vec![("pool", (*pool).to_owned()), ("worker", report.address.clone())];
        let set = |gauges: &Gauges, value: f64| gauges.get_or_create(&labels).set(value);
        set(&up, f64::from(report.state != WorkerState::Down));
        set(&busy, f64::from(report.busy));
        if let Some(ratio) = KvBlocks::of(&report.ranks).and_then(|kv| kv.used_share()) {
            set(&kv, ratio);
        }
        set(&running, report.ranks.iter().map(|rank| rank.running as f64).sum::<f64>());
        set(&waiting, report.ranks.iter().map(|rank| rank.waiting as f64).sum::<f64>());
        set(&age, report.scraped_ms_ago as f64 / 1_000.0);
    }
}

fn pool_gauges(registry: &mut Registry, config: &Config, rows: &[WorkerRow<'_>]) {
    let live = registered(registry, "pool_live_workers", "Workers that can be given work");
    let free = registered(registry, "pool_free_workers", "Workers that can be given work and are not busy");
    for pool in &config.pools {
        let is_live = |row: &&WorkerRow<'_>| row.pool == pool.name && row.report.state == WorkerState::Up;
        let count = |keep: fn(&WorkerReport) -> bool| {
            rows.iter().filter(is_live).filter(|row| keep(&row.report)).count() as f64
        };
        let labels = vec![("pool", pool.name.clone())];
        live.get_or_create(&labels).set(count(|_| true));
        free.get_or_create(&labels).set(count(|report| !report.busy));
    }
}

fn saturation_gauges(registry: &mut Registry, table: &Table, now: Duration) {
    let help = "How full the live workers are on average by the utilization rule; 1 is full, and it may be more";
    let full = registered(registry, "pool_saturation_ratio", help);
    for (pool, saturation) in table.saturations(now) {
        full.get_or_create(&vec![("pool", pool.to_owned())]).set(saturation);
    }
}

fn registered(registry: &mut Registry, name: &str, help: &str) -> Gauges {
    let gauges = Gauges::default();
    registry.register(name, help, gauges.clone());
    gauges
}

#[cfg(test)]
mod tests {
    use admission_core::view::RankReport;

    use super::*;

    fn page(scraped: bool) -> String {
        let config = Config::parse(
            r#"{proxies: [{url: "http://p:1", token: t}], pools: [{name: a, saturation: {kv_cache_util_threshold: 0.6}, workers: ["w:1", {address: "d:1", draining: true}]}]}"#,
        )
        .unwrap();
        let mut table = Table::new(&config.pools, 1, config.scrape.down_after);
        let rank =
            |used| RankReport { kv_used_blocks: used, kv_total_blocks: Some(100), running: 3, ..Default::default() };
        let counters = Counters::new(&config);
        if scraped {
            for (worker, ranks) in [(0, vec![rank(Some(20)), rank(Some(40))]), (1, vec![rank(None)])] {
                let scrape = table.begin_scrape(worker, Duration::ZERO);
                table.end_scrape(scrape, Some(ranks), Duration::ZERO);
            }
            counters.scraped("a", "ok", Duration::from_millis(3));
            counters.pushed("http://p:1", "refused");
        }
        counters.page(&config, &table, Duration::from_millis(1_500)).unwrap()
    }

    #[test]
    fn numbers_beyond_any_engine_break_nothing() {
        let config =
            Config::parse(r#"{proxies: [{url: "http://p:1", token: t}], pools: [{name: a, workers: ["w:1"]}]}"#)
                .unwrap();
        let mut table = Table::new(&config.pools, 1, config.scrape.down_after);
        let rank = RankReport { running: u64::MAX, waiting: u64::MAX, ..RankReport::default() };
        let scrape = table.begin_scrape(0, Duration::ZERO);
        table.end_scrape(scrape, Some(vec![rank.clone(), rank]), Duration::ZERO);
        let page = Counters::new(&config).page(&config, &table, Duration::from_millis(1)).unwrap();
        assert!(page.contains("sluice_sidecar_worker_running{pool=\"a\",worker=\"w:1\"} 36893488147419"), "{page}");
    }

    #[test]
    fn every_series_of_the_page() {
        let page = page(true);
        for line in [
            "sluice_sidecar_scrapes_total{pool=\"a\",result=\"ok\"} 1",
            "sluice_sidecar_scrapes_total{pool=\"a\",result=\"timeout\"} 0",
            "sluice_sidecar_scrape_seconds_bucket{le=\"0.005\",pool=\"a\"} 1",
            "sluice_sidecar_pushes_total{proxy=\"http://p:1\",result=\"refused\"} 1",
            "sluice_sidecar_worker_up{pool=\"a\",worker=\"d:1\"} 1.0",
            "sluice_sidecar_worker_busy{pool=\"a\",worker=\"w:1\"} 0.0",
            "sluice_sidecar_worker_kv_used_ratio{pool=\"a\",worker=\"w:1\"} 0.3",
            "sluice_sidecar_worker_running{pool=\"a\",worker=\"w:1\"} 6.0",
            "sluice_sidecar_worker_waiting{pool=\"a\",worker=\"w:1\"} 0.0",
            "sluice_sidecar_worker_scrape_age_seconds{pool=\"a\",worker=\"w:1\"} 1.5",
            "sluice_sidecar_push_last_success_age_seconds{proxy=\"http://p:1\"} 1.5",
            "sluice_sidecar_pool_live_workers{pool=\"a\"} 1.0",
            "sluice_sidecar_pool_free_workers{pool=\"a\"} 1.0",
            "sluice_sidecar_pool_saturation_ratio{pool=\"a\"} 0.5",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("kv_used_ratio{pool=\"a\",worker=\"d:1\"}"), "an unknown ratio is no ratio");
        assert!(page.ends_with("# EOF\n"));
    }

    #[test]
    fn series_are_there_from_the_start() {
        let page = page(false);
        assert!(page.contains("sluice_sidecar_pushes_total{proxy=\"http://p:1\",result=\"taken\"} 0"), "{page}");
        assert!(page.contains("sluice_sidecar_worker_up{pool=\"a\",worker=\"w:1\"} 0.0"), "{page}");
    }

    #[test]
    fn the_readme_lists_every_metric() {
        let readme = include_str!("../README.md");
        for line in page(true).lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
            assert!(readme.contains(&format!("| `{name}` |")), "{name} is not in the README");
        }
    }
}
