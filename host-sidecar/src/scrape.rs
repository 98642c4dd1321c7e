//! Reads one worker for ever.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use admission_core::view::RankReport;
use reqwest::{Client, StatusCode};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::fetch::{FetchError, exchange};
use crate::shared::Shared;
use crate::vllm::{self, PageError};

/// Longest metrics page, in bytes. vLLM's has some 50 KB an engine.
const MAX_PAGE_BYTES: usize = 4 << 20;

/// Which worker of which pool a task reads.
pub struct Target {
    /// Position among all workers, in the order of the configuration.
    pub index: usize,
    /// Name of its pool.
    pub pool: String,
    /// Names it in the log.
    pub address: String,
    /// Its page.
    pub url: String,
}

/// Why a scrape gave no numbers.
#[derive(Debug)]
enum ScrapeError {
    Fetch(FetchError),
    Status(StatusCode),
    Page(PageError),
}

/// Scrapes at every interval. A scrape that takes longer delays only the next of the same worker.
pub async fn run(shared: Arc<Shared>, client: Client, target: Target) {
    let mut ticks = interval(shared.config.scrape.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut was_good = None;
    loop {
        ticks.tick().await;
        let began = shared.now();
        let scrape = shared.read(|table| table.begin_scrape(target.index, began));
        let result = page(&client, &target.url, shared.config.scrape.timeout).await;
        let now = shared.now();
        shared.counters.scraped(&target.pool, label(&result), now.saturating_sub(began));
        log_change(&target, &mut was_good, &result);
        shared.update(|table| table.end_scrape(scrape, result.ok(), now));
    }
}

async fn page(client: &Client, url: &str, deadline: Duration) -> Result<Vec<RankReport>, ScrapeError> {
    let (status, body) = exchange(client.get(url), deadline, MAX_PAGE_BYTES).await.map_err(ScrapeError::Fetch)?;
    if status != StatusCode::OK {
        return Err(ScrapeError::Status(status));
    }
    vllm::ranks(&String::from_utf8_lossy(&body)).map_err(ScrapeError::Page)
}

fn log_change(target: &Target, was_good: &mut Option<bool>, result: &Result<Vec<RankReport>, ScrapeError>) {
    let Target { pool, address, url, .. } = target;
    if was_good.replace(result.is_ok()) == Some(result.is_ok()) {
        return;
    }
    match result {
        Ok(ranks) => info!(pool, worker = address, ranks = ranks.len(), "worker answers"),
        Err(error) => warn!(pool, worker = address, url, %error, "worker cannot be read"),
    }
}

/// Every value of the metric label `result`.
pub const LABELS: [&str; 6] = ["ok", "timeout", "connection", "too_large", "status", "page"];

fn label(result: &Result<Vec<RankReport>, ScrapeError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(ScrapeError::Fetch(FetchError::Timeout)) => "timeout",
        Err(ScrapeError::Fetch(FetchError::Connection(_))) => "connection",
        Err(ScrapeError::Fetch(FetchError::TooLarge(_))) => "too_large",
        Err(ScrapeError::Status(_)) => "status",
        Err(ScrapeError::Page(_)) => "page",
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
