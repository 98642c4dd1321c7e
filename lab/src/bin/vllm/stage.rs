//! The engine, and the shipped proxy and sidecar before it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::parts::{self, Front, Programs};

use super::engine::{Engine, Installed};
use super::reading::Page;
use super::scenario;

/// Longest time that anything is given to come about.
const DEADLINE: Duration = Duration::from_secs(120);

const GLANCE: Duration = Duration::from_millis(100);

/// Everything that runs. It ends when this is dropped.
pub struct Stage {
    pub front: Front,
    engine: Engine,
}

impl Stage {
    /// Starts everything and waits until requests would be decided on what the sidecar has read of the engine.
    ///
    /// # Errors
    /// When a part does not start.
    pub async fn start(programs: &Programs, installed: &Installed) -> Result<Self> {
        let client = testkit::envoy::direct_client()?;
        let engine = Engine::start(installed, &client).await?;
        let shape = parts::Stage {
            workers: 1,
            worker_flags: &[],
            envoy_threads: 1,
            policy: scenario::policy,
            bootstrap: |_| Ok(()),
        };
        let workers = [engine.address];
        let front = Front::start(programs, &shape, &workers, slow_page).await?;
        // Why: a pool is on the state page once a request has asked for it, whatever becomes of that.
        let small = json!({"model": parts::MODEL, "messages": [{"role": "user", "content": "?"}], "max_tokens": 1});
        let url = format!("http://{}/v1/chat/completions", front.with);
        front.client.post(url).json(&small).send().await.context("the proxy has gone")?;
        Ok(Self { front, engine })
    }

    /// Address of the engine.
    pub fn engine_address(&self) -> SocketAddr {
        self.engine.address
    }

    /// The engine's own page.
    ///
    /// # Errors
    /// When it does not answer, or not as vLLM does.
    pub async fn page(&self) -> Result<Page> {
        let answer = self.front.client.get(self.engine_url("/metrics")).send().await;
        Page::read(&answer.context("vLLM has gone")?.error_for_status()?.text().await?)
    }

    /// URL of a path of the engine.
    pub fn engine_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.engine.address)
    }

    /// Waits until the engine has nothing to do.
    ///
    /// # Errors
    /// When it does not come to that.
    pub async fn until_idle(&self) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let page = self.page().await?;
            if page.running + page.waiting == 0 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "vLLM still works after {DEADLINE:?}: {page:?}");
            tokio::time::sleep(GLANCE).await;
        }
    }
}

/// Gives the sidecar more patience with the engine's page, which is written on the core that also computes.
pub fn slow_page(sidecar: &mut Value) {
    sidecar["scrape"] = json!({"interval": "100ms", "timeout": "1s", "down_after": "3s"});
}
