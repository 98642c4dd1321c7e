//! The running parts: workers, Envoy, sidecar. All end when this is dropped.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use worker_sim::{Arrivals, Stats};

use crate::envoy::{Envoy, Options};
use crate::{checkout, shipped, state_page};

/// The model that the shipped policy's pool serves.
pub const MODEL: &str = "llama-3.3-70b";

/// The shipped policy's pool.
pub const POOL: &str = "llama";

/// Bearer token between sidecar and control listener; the shipped one.
pub const TOKEN: &str = "change-me";

/// Longest time any part is given to get ready.
const DEADLINE: Duration = Duration::from_secs(120);

/// Between two looks at whether it is.
const GLANCE: Duration = Duration::from_millis(50);

/// How many workers of which kind there are, and what of the shipped configuration is changed.
pub struct Stage {
    /// Workers to start.
    pub workers: usize,
    /// Flags that each worker is started with.
    pub worker_flags: &'static [&'static str],
    /// Worker threads of Envoy.
    pub envoy_threads: u32,
    /// Changes the filter's configuration.
    pub policy: fn(&mut Value) -> Result<()>,
    /// Changes Envoy's, when all else is in it.
    pub bootstrap: fn(&mut Value) -> Result<()>,
}

/// What is to be started.
#[derive(Clone, Debug)]
pub struct Programs {
    /// worker-sim.
    pub worker: PathBuf,
    /// The sidecar.
    pub sidecar: PathBuf,
    /// Envoy.
    pub envoy: PathBuf,
    /// The module of the filter.
    pub filter: PathBuf,
    /// The shipped bootstrap.
    pub bootstrap: PathBuf,
    /// The shipped sidecar configuration.
    pub sidecar_config: PathBuf,
}

impl Programs {
    /// Programs and files of this checkout, where `cargo xtask` puts them.
    ///
    /// # Errors
    /// When the system does not say which program asks.
    pub fn built() -> Result<Self> {
        Ok(Self {
            worker: checkout::beside_this("worker-sim")?,
            sidecar: checkout::beside_this("sluice-sidecar")?,
            envoy: checkout::envoy(),
            filter: checkout::filter(),
            bootstrap: checkout::shipped("envoy.yaml"),
            sidecar_config: checkout::shipped("sidecar.yaml"),
        })
    }
}

/// Simulated workers, and the front before them.
pub struct Parts {
    /// Workers that run.
    pub workers: Vec<Program>,
    front: Front,
}

/// The shipped proxy, and the sidecar that reads workers for it.
pub struct Front {
    /// Client for questions to the parts themselves.
    pub client: reqwest::Client,
    /// Sidecar that reads the workers.
    pub sidecar: Program,
    /// Proxy between callers and workers.
    pub envoy: Envoy,
    /// Listener with the filter.
    pub with: SocketAddr,
    /// Listener without it.
    pub without: SocketAddr,
    /// Where views are pushed.
    pub control: SocketAddr,
    _folder: TempDir,
}

// Why: whoever has the parts asks their front for most of what it wants.
impl Deref for Parts {
    type Target = Front;

    fn deref(&self) -> &Front {
        &self.front
    }
}

/// A program of ours that serves HTTP and says where.
pub struct Program {
    /// Address that the program serves at.
    pub address: SocketAddr,
    child: Child,
    // Closed, it would end a program that prints more.
    _stdout: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it and waits until it says where it serves; what it logs goes to the file `log`.
    ///
    /// # Errors
    /// What it logged, when it does not serve.
    pub async fn start(program: &Path, arguments: &[&str], log: &Path) -> Result<Self> {
        let name = program.display();
        let log_file = std::fs::File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let mut stdout = BufReader::new(child.stdout.take().context("no standard output")?);
        let mut line = String::new();
        tokio::time::timeout(DEADLINE, stdout.read_line(&mut line))
            .await
            .with_context(|| format!("{name} has not said within {DEADLINE:?} where it listens"))??;
        let Some(address) = line.trim().strip_prefix("listening on ") else {
            bail!("{name} does not serve:\n{}", std::fs::read_to_string(log).unwrap_or_default());
        };
        Ok(Self { address: address.parse()?, child, _stdout: stdout })
    }

    /// Its process.
    ///
    /// # Errors
    /// When it has ended.
    pub fn id(&self) -> Result<u32> {
        self.child.id().context("a program of ours has ended")
    }
}

impl Front {
    /// Starts proxy and sidecar for these workers, and waits until requests would be decided on what the sidecar has read.
    /// `change` is made to the shipped configuration of the sidecar.
    ///
    /// # Errors
    /// When a part does not start, or does not get ready.
    pub async fn start(
        programs: &Programs,
        stage: &Stage,
        workers: &[SocketAddr],
        change: impl FnOnce(&mut Value),
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("sluice-parts-").tempdir()?;
        let client = reqwest::Client::builder().no_proxy().timeout(DEADLINE).build()?;
        let bootstrap = bootstrap(programs, stage, workers)?;
        let options = Options { program: &programs.envoy, bootstrap: &bootstrap, concurrency: stage.envoy_threads };
        let envoy = Envoy::start(options).await?;
        let (with, without) = (envoy.listener("public").await?, envoy.listener("without").await?);
        let control = envoy.listener("control").await?;
        println!("    Envoy     {with} with the filter, {without} without, control {control}");

        let file = folder.path().join("sidecar.json");
        let mut config = sidecar_config(&programs.sidecar_config, control, workers)?;
        change(&mut config);
        std::fs::write(&file, config.to_string())?;
        let path = file.to_str().context("the temporary folder has a name that is not UTF-8")?;
        let log = folder.path().join("sidecar.log");
        let sidecar = Program::start(&programs.sidecar, &["run", "--config", path], &log).await?;
        println!("    sidecar   {}", sidecar.address);
        let front = Self { client, sidecar, envoy, with, without, control, _folder: folder };
        front.until_ready(workers.len() as u64).await?;
        Ok(front)
    }

    async fn until_ready(&self, workers: u64) -> Result<()> {
        let url = format!("http://{}/readyz", self.sidecar.address);
        let mut last = String::new();
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            let answer = self.client.get(&url).send().await.context("the sidecar has gone")?;
            let ready = answer.status().is_success();
            last = answer.text().await?;
            // The proxy sends nothing to workers that it has not found healthy.
            let healthy = self.envoy.stat("cluster.workers.membership_healthy").await?;
            if ready && healthy >= workers {
                return Ok(());
            }
            tokio::time::sleep(GLANCE).await;
        }
        bail!("the sidecar is not ready after {DEADLINE:?}, or the proxy does not find all workers healthy: {last}")
    }

    /// Metrics page of the sidecar.
    ///
    /// # Errors
    /// When the sidecar does not answer.
    pub async fn sidecar_page(&self) -> Result<String> {
        let answer = self.client.get(format!("http://{}/metrics", self.sidecar.address)).send().await;
        Ok(answer.context("the sidecar has gone")?.error_for_status()?.text().await?)
    }

    /// State page of the filter.
    ///
    /// # Errors
    /// When the control listener does not serve it.
    pub async fn state(&self) -> Result<Value> {
        state_page::fetch(&self.client, self.control).await
    }
}

impl Parts {
    /// Starts everything and waits until requests would be decided on what the sidecar has read.
    ///
    /// # Errors
    /// When a part does not start, or does not get ready.
    pub async fn start(programs: &Programs, stage: &Stage) -> Result<Self> {
        let logs = tempfile::Builder::new().prefix("sluice-workers-").tempdir()?;
        let mut workers = Vec::new();
        for number in 0..stage.workers {
            let log = logs.path().join(format!("worker-{number}.log"));
            workers.push(Program::start(&programs.worker, stage.worker_flags, &log).await?);
        }
        let addresses: Vec<SocketAddr> = workers.iter().map(|worker| worker.address).collect();
        println!("    workers   {}", list(&addresses));
        let front = Front::start(programs, stage, &addresses, |_| ()).await?;
        Ok(Self { workers, front })
    }

    /// Waits until no worker has anything to do.
    pub async fn until_idle(&self) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        while self.stats().await?.iter().any(|worker| worker.running + worker.waiting > 0) {
            ensure!(Instant::now() < deadline, "the workers still have work after {DEADLINE:?}");
            tokio::time::sleep(GLANCE).await;
        }
        Ok(())
    }

    /// Preemptions of all workers since they started.
    pub async fn preemptions(&self) -> Result<u64> {
        Ok(self.stats().await?.iter().map(|worker| worker.preemptions).sum())
    }

    /// What a worker says of the requests that reached it.
    pub async fn arrivals(&self, worker: &Program) -> Result<Arrivals> {
        let url = format!("http://{}/sim/arrivals", worker.address);
        self.client.get(url).send().await.context("a worker has gone")?.json().await.context("no arrivals")
    }

    /// Makes a worker begin that list anew.
    pub async fn forget_arrivals(&self, worker: &Program) -> Result<()> {
        let url = format!("http://{}/sim/arrivals", worker.address);
        self.client.delete(url).send().await.context("a worker has gone")?.error_for_status()?;
        Ok(())
    }

    async fn stats(&self) -> Result<Vec<Stats>> {
        let mut all = Vec::new();
        for worker in &self.workers {
            let url = format!("http://{}/sim/stats", worker.address);
            all.push(self.client.get(url).send().await.context("a worker has gone")?.json().await?);
        }
        Ok(all)
    }
}

/// The shipped bootstrap with free ports, these workers, the stage's limits, and a second public listener without the
/// filter.
///
/// # Errors
/// When the shipped bootstrap is not as expected.
pub fn bootstrap(programs: &Programs, stage: &Stage, workers: &[SocketAddr]) -> Result<Value> {
    let mut bootstrap = shipped::document(&programs.bootstrap)?;
    shipped::set_module(&mut bootstrap, &programs.filter);
    free_port(&mut bootstrap["admin"]["address"]);
    let listeners = &mut bootstrap["static_resources"]["listeners"];
    for name in ["public", "control"] {
        let listener = shipped::named(listeners, name)?;
        free_port(&mut listener["address"]);
        listener["stat_prefix"] = name.into();
    }
    let cluster = shipped::named(&mut bootstrap["static_resources"]["clusters"], "workers")?;
    let endpoint = |worker: &SocketAddr| {
        json!({"endpoint": {"address": {"socket_address": {
            "address": worker.ip().to_string(), "port_value": worker.port(),
        }}}})
    };
    cluster["load_assignment"]["endpoints"] =
        json!([{"lb_endpoints": workers.iter().map(endpoint).collect::<Vec<_>>()}]);

    believe_callers(&mut bootstrap)?;
    let without = listener_without_filter(&mut bootstrap)?;
    let filter = shipped::named(&mut shipped::http_manager(&mut bootstrap, "public")?["http_filters"], "sluice")?;
    let text = &mut filter["typed_config"]["config"]["configuration"]["value"];
    let mut policy: Value = serde_json::from_str(text.as_str().context("the filter has no configuration")?)?;
    (stage.policy)(&mut policy)?;
    *text = policy.to_string().into();
    let listeners = bootstrap["static_resources"]["listeners"].as_array_mut();
    listeners.context("the bootstrap has no listeners")?.push(without);
    (stage.bootstrap)(&mut bootstrap)?;
    Ok(bootstrap)
}

/// Callers say themselves who they are.
fn believe_callers(bootstrap: &mut Value) -> Result<()> {
    let filters = shipped::http_manager(bootstrap, "public")?["http_filters"].as_array_mut();
    let filters = filters.context("the public listener has no filters")?;
    let place = filters.iter().position(|filter| filter["name"] == "strip-tenant");
    filters.remove(place.context("nothing strips the tenant's header")?);
    Ok(())
}

fn listener_without_filter(bootstrap: &mut Value) -> Result<Value> {
    let mut copy = bootstrap.clone();
    let filters = shipped::http_manager(&mut copy, "public")?["http_filters"].as_array_mut();
    filters.context("the public listener has no filters")?.retain(|filter| filter["name"] != "sluice");
    let listener = shipped::named(&mut copy["static_resources"]["listeners"], "public")?;
    listener["name"] = "without".into();
    listener["stat_prefix"] = "without".into();
    Ok(listener.take())
}

/// Makes a listener take any port that is free on loopback.
pub fn free_port(address: &mut Value) {
    address["socket_address"] = json!({"address": "127.0.0.1", "port_value": 0});
}

/// The shipped sidecar configuration with a free port, this proxy and these workers.
///
/// # Errors
/// When it is not as expected.
pub fn sidecar_config(shipped: &Path, control: SocketAddr, workers: &[SocketAddr]) -> Result<Value> {
    let mut config = shipped::document(shipped)?;
    config["listen"] = "127.0.0.1:0".into();
    config["proxies"] = json!([{"url": format!("http://{control}"), "token": TOKEN}]);
    config["api"] = json!({"token": TOKEN});
    shipped::named(&mut config["pools"], POOL)?["workers"] = workers.iter().map(ToString::to_string).collect();
    Ok(config)
}

fn list(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_bootstrap_has_what_is_changed() {
        let programs = Programs {
            worker: PathBuf::new(),
            sidecar: PathBuf::new(),
            envoy: PathBuf::new(),
            filter: PathBuf::from("sluice.wasm"),
            bootstrap: Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config/envoy.yaml"),
            sidecar_config: PathBuf::new(),
        };
        let unchanged = |_: &mut Value| Ok(());
        let stage = Stage { workers: 1, worker_flags: &[], envoy_threads: 1, policy: unchanged, bootstrap: unchanged };
        let bootstrap = bootstrap(&programs, &stage, &[SocketAddr::from(([127, 0, 0, 1], 1))]).unwrap();
        assert!(!bootstrap.to_string().contains("strip-tenant"), "callers would be anonymous");
    }
}
