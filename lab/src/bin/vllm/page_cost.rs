//! What it costs the engine to write its page, whole and as far as the sidecar reads it.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use testkit::statistics::Times;

use super::stage::Stage;

/// Times each is asked for.
const ASKED: usize = 100;

/// What the sidecar asks for.
const NAMES: [&str; 7] = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "gpu_cache_usage_perc",
    "request_prompt_tokens_sum",
    "request_prompt_tokens_count",
    "cache_config_info",
];

/// One way to ask.
#[derive(Clone, Copy, Debug, Serialize)]
struct Asked {
    /// Median time of an answer, in milliseconds.
    ms: f64,
    bytes: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct PageCost {
    whole: Asked,
    excerpt: Asked,
    /// Of the sidecar, that could be read.
    scrapes: u64,
    bytes_a_scrape: f64,
}

impl PageCost {
    /// Asks while the engine has nothing to do, and counts what the sidecar has been sent so far.
    ///
    /// # Errors
    /// When one of them does not answer.
    pub async fn measure(stage: &Stage) -> Result<Self> {
        stage.until_idle().await?;
        let names: Vec<_> = NAMES.iter().map(|name| format!("name[]=vllm:{name}")).collect();
        let (whole, excerpt) = (stage.engine_url("/metrics"), stage.engine_url("/metrics/?") + &names.join("&"));
        let sidecar = stage.front.sidecar_page().await?;
        let count = |series: &str| -> Result<u64> {
            let line = sidecar.lines().find(|line| line.starts_with(series));
            let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
            value.with_context(|| format!("the sidecar counts no {series}"))
        };
        let scrapes = count(&format!("sluice_sidecar_scrapes_total{{pool=\"{}\",result=\"ok\"", testkit::parts::POOL))?;
        let bytes = count("sluice_sidecar_scraped_bytes_total{")?;
        ensure!(scrapes > 0, "the sidecar has read no page");
        Ok(Self {
            whole: Asked::of(stage, &whole).await?,
            excerpt: Asked::of(stage, &excerpt).await?,
            scrapes,
            bytes_a_scrape: bytes as f64 / scrapes as f64,
        })
    }

    pub fn print(&self) {
        let row = |what, asked: &Asked| println!("    {what:<20}{:>7.1} ms{:>9} bytes", asked.ms, asked.bytes);
        row("the whole page", &self.whole);
        row("an excerpt", &self.excerpt);
        println!("    the sidecar was sent {:.0} bytes in each of {} scrapes", self.bytes_a_scrape, self.scrapes);
    }

    /// # Errors
    /// When the sidecar has mostly been sent whole pages.
    pub fn check(&self) -> Result<()> {
        let whole = self.whole.bytes as f64;
        ensure!(self.bytes_a_scrape < whole / 4.0, "a scrape brings {:.0} bytes of {whole}", self.bytes_a_scrape);
        Ok(())
    }
}

impl Asked {
    async fn of(stage: &Stage, url: &str) -> Result<Self> {
        let (mut times, mut bytes) = (Times::default(), 0);
        for _ in 0..ASKED {
            let began = Instant::now();
            let answer = stage.front.client.get(url).send().await.context("vLLM has gone")?.error_for_status()?;
            bytes = answer.bytes().await?.len();
            times.record(began.elapsed());
        }
        Ok(Self { ms: times.millis(0.5).context("nothing was timed")?, bytes })
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_names_are_those_that_the_sidecar_asks_for() {
        let names = host_sidecar::engines::Engine::Vllm.names();
        assert_eq!(super::NAMES.map(|name| format!("vllm:{name}")).as_slice(), names);
    }
}
