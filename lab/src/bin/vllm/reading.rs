//! What the engine's page says beside what the proxy knows of it.
//!
//! Both change many times a second, so they are looked at again and again: what the proxy knows must have stood on the page
//! shortly before. The page is read here by other means than in the sidecar.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use super::stage::Stage;
use testkit::parts::POOL;

/// Between two looks at the page.
const LOOK: Duration = Duration::from_millis(25);

/// As old as a page may be that a view was made from: a scrape interval, a slow page and a push.
const MEMORY: Duration = Duration::from_millis(1_000);

/// Part of the views that must be found on a page: while the engine is full, its page takes longer than a step, and shows
/// something between two looks that is not seen here. What is read wrongly is hardly ever found.
const FOUND: f64 = 0.7;

/// What matters of vLLM's page, of an engine with one rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Page {
    pub running: u64,
    pub waiting: u64,
    pub kv_usage: f64,
    pub kv_blocks: u64,
    pub preemptions: u64,
}

/// What a proxy knows of it, by its state page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Told {
    /// Requests that run and wait.
    load: u64,
    /// KV blocks in use of a thousand.
    kv_permille: u64,
    busy: bool,
}

/// What the comparison has shown.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Reading {
    views: usize,
    /// Views whose numbers stood on the page shortly before.
    found: usize,
    /// One of these, where the engine was fullest.
    fullest: Option<(Page, Told)>,
    /// Views in which it was busy.
    busy: usize,
}

impl Page {
    /// # Errors
    /// When a number is missing.
    pub fn read(text: &str) -> Result<Self> {
        let line = |name: &str| {
            let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')));
            line.with_context(|| format!("vLLM's page has no {name}"))
        };
        let value = |name: &str| -> Result<f64> {
            let line = line(name)?;
            line.rsplit(' ').next().and_then(|value| value.parse().ok()).with_context(|| format!("no number: {line}"))
        };
        let (_, blocks) = line("vllm:cache_config_info")?.split_once("num_gpu_blocks=\"").context("no blocks")?;
        Ok(Self {
            running: value("vllm:num_requests_running")? as u64,
            waiting: value("vllm:num_requests_waiting")? as u64,
            kv_usage: value("vllm:kv_cache_usage_perc")?,
            kv_blocks: blocks.split('"').next().and_then(|blocks| blocks.parse().ok()).context("no blocks")?,
            preemptions: value("vllm:num_preemptions_total")? as u64,
        })
    }

    fn as_told(&self) -> Told {
        let used = (self.kv_usage * self.kv_blocks as f64).round() as u64;
        Told { load: self.running + self.waiting, kv_permille: used * 1_000 / self.kv_blocks.max(1), busy: false }
    }
}

impl Told {
    fn of(state: &Value) -> Result<Self> {
        let worker = &state["pools"][POOL]["workers"][0];
        let number = |name: &str| worker[name].as_u64().with_context(|| format!("the state has no {name}: {worker}"));
        Ok(Self { load: number("load")?, kv_permille: number("kv_permille")?, busy: worker["free"] == false })
    }
}

/// Looks at both for so long.
///
/// # Errors
/// When one of them cannot be read.
pub async fn compare(stage: &Stage, time: Duration) -> Result<Reading> {
    let (began, mut pages, mut reading) = (Instant::now(), VecDeque::new(), Reading::default());
    let mut before = None;
    while began.elapsed() < time {
        let told = Told::of(&stage.front.state().await?)?;
        pages.push_back((Instant::now(), stage.page().await?));
        while pages.front().is_some_and(|(seen, _): &(Instant, Page)| seen.elapsed() > MEMORY) {
            pages.pop_front();
        }
        if before.replace(told) != Some(told) && began.elapsed() > MEMORY {
            reading.add(told, pages.iter().map(|(_, page)| page));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(reading)
}

impl Reading {
    fn add<'a>(&mut self, told: Told, mut pages: impl Iterator<Item = &'a Page>) {
        self.views += 1;
        self.busy += usize::from(told.busy);
        let Some(page) = pages.find(|page| page.as_told() == Told { busy: false, ..told }) else { return };
        self.found += 1;
        if self.fullest.is_none_or(|(_, fullest)| fullest.kv_permille < told.kv_permille) {
            self.fullest = Some((*page, told));
        }
    }

    pub fn print(&self) {
        println!(
            "    {} of {} different views had stood on the page just before; busy in {}",
            self.found, self.views, self.busy
        );
        let Some((page, told)) = self.fullest else { return };
        println!("    the fullest of them      on the page   known to the proxy");
        println!("    running             {:>16}", page.running);
        println!("    waiting             {:>16}", page.waiting);
        println!("    both                {:>16}{:>21}", page.running + page.waiting, told.load);
        println!(
            "    KV use of {:>4} blocks {:>13.4}{:>21.3}",
            page.kv_blocks,
            page.kv_usage,
            told.kv_permille as f64 / 1e3
        );
        println!("    busy                {:>16}{:>21}", "", told.busy);
    }

    /// # Errors
    /// When the proxy knows something else than the page says.
    pub fn check(&self) -> Result<()> {
        let enough = self.views > 0 && self.found as f64 >= FOUND * self.views as f64;
        ensure!(enough, "only {} of {} views had stood on vLLM's page shortly before", self.found, self.views);
        Ok(())
    }
}

/// The state page's word on the pool, in lines.
///
/// # Errors
/// When it cannot be read.
pub async fn known(stage: &Stage) -> Result<Vec<String>> {
    let state = stage.front.state().await?;
    let pool = &state["pools"][POOL];
    Ok(vec![format!("pool    {}", pool["view"]), format!("worker  {}", pool["workers"][0])])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_simulated_fleet_is_read() {
        let text = include_str!("../../../../worker-sim/pages/vllm-0.32.prom");
        let page = Page::read(text).unwrap();
        assert_eq!((page.running, page.waiting, page.kv_blocks), (4, 4, 40));
        assert_eq!(page.as_told(), Told { load: 8, kv_permille: 925, busy: false }, "37 of 40 blocks");
        let state = serde_json::json!({"pools": {POOL: {"workers": [{"load": 8, "kv_permille": 925, "free": false}]}}});
        assert_eq!(Told::of(&state).unwrap(), Told { busy: true, ..page.as_told() });
        assert!(Page::read("vllm:num_requests_running 1\n").is_err());
    }
}
