//! What runs: the engine, the sidecar that reads it, and the shipped proxy before it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::envoy::{Envoy, Options};

use super::engine::{Engine, Installed};
use super::reading::Page;
use super::scenario;
use testkit::parts::{self, Program, Programs, TOKEN};

/// Longest time that anything is given to come about.
const DEADLINE: Duration = Duration::from_secs(120);

const GLANCE: Duration = Duration::from_millis(100);

/// Everything that runs. It ends when this is dropped.
pub struct Stage {
    pub client: reqwest::Client,
    /// Listener with the filter.
    pub with: SocketAddr,
    /// Listener without it.
    pub without: SocketAddr,
    control: SocketAddr,
    engine: Engine,
    sidecar: Program,
    envoy: Envoy,
    _folder: TempDir,
}

impl Stage {
    /// Starts everything and waits until the proxy has been told of the engine.
    ///
    /// # Errors
    /// When a part does not start.
    pub async fn start(programs: &Programs, installed: &Installed) -> Result<Self> {
        let client = reqwest::Client::builder().no_proxy().timeout(DEADLINE).build()?;
        let engine = Engine::start(installed, &client).await?;
        let shape = parts::Stage {
            workers: 1,
            worker_flags: &[],
            envoy_threads: 1,
            policy: scenario::policy,
            bootstrap: |_| Ok(()),
        };
        let bootstrap = parts::bootstrap(programs, &shape, &[engine.address])?;
        let envoy = Envoy::start(Options { program: &programs.envoy, bootstrap: &bootstrap, concurrency: 1 }).await?;
        let (with, without) = (envoy.listener("public").await?, envoy.listener("without").await?);
        let control = envoy.listener("control").await?;
        println!("    Envoy     {with} with the filter, {without} without, control {control}");

        let folder = tempfile::Builder::new().prefix("sluice-vllm-parts-").tempdir()?;
        let file = folder.path().join("sidecar.json");
        let mut config = parts::sidecar_config(&programs.sidecar_config, control, &[engine.address])?;
        // The page is written on the core that also computes, so it may be late.
        config["scrape"] = json!({"interval": "100ms", "timeout": "1s", "down_after": "3s"});
        std::fs::write(&file, config.to_string())?;
        let path = file.to_str().context("the temporary folder has a name that is not UTF-8")?;
        let log = folder.path().join("sidecar.log");
        let sidecar = Program::start(&programs.sidecar, &["run", "--config", path], &log).await?;
        println!("    sidecar   {}", sidecar.address);
        let stage = Self { client, with, without, control, engine, sidecar, envoy, _folder: folder };
        stage.until_ready().await?;
        Ok(stage)
    }

    /// The engine's own page.
    ///
    /// # Errors
    /// When it does not answer, or not as vLLM does.
    pub async fn page(&self) -> Result<Page> {
        let answer = self.client.get(self.engine_url("/metrics")).send().await;
        Page::read(&answer.context("vLLM has gone")?.error_for_status()?.text().await?)
    }

    /// Where the engine serves this.
    pub fn engine_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.engine.address)
    }

    /// What the sidecar says of itself.
    ///
    /// # Errors
    /// When it does not.
    pub async fn sidecar_page(&self) -> Result<String> {
        let answer = self.client.get(format!("http://{}/metrics", self.sidecar.address)).send().await;
        Ok(answer.context("the sidecar has gone")?.error_for_status()?.text().await?)
    }

    /// What the filter knows, as its control listener tells.
    ///
    /// # Errors
    /// When it does not.
    pub async fn state(&self) -> Result<Value> {
        let url = format!("http://{}/sluice/v1/state", self.control);
        let answer = self.client.get(url).bearer_auth(TOKEN).send().await.context("the proxy has gone")?;
        answer.error_for_status()?.json().await.context("the state is no JSON")
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

    async fn until_ready(&self) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        let url = format!("http://{}/v1/chat/completions", self.with);
        let small = json!({"model": parts::MODEL, "messages": [{"role": "user", "content": "?"}], "max_tokens": 1});
        loop {
            // A pool is on the state page when a request has asked for it, whatever has become of that.
            self.client.post(&url).json(&small).send().await.context("the proxy has gone")?;
            let state = self.state().await?;
            let told = state["pools"][parts::POOL]["workers"][0]["live"] == true;
            // The proxy sends nothing to an engine that it has not found healthy.
            let healthy = self.envoy.stat("cluster.workers.membership_healthy").await?;
            if told && healthy == 1 {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "after {DEADLINE:?} the proxy finds {healthy} engines healthy and knows: {state}"
            );
            tokio::time::sleep(GLANCE).await;
        }
    }
}
