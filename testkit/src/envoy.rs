//! A real Envoy as a child process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::process;

/// Longest time Envoy is given to compile the module and open its listeners.
const START_DEADLINE: Duration = Duration::from_secs(90);

/// Linux counts CPU time in hundredths of a second wherever programs can see it.
const MILLIS_PER_TICK: u64 = 10;

/// How to start Envoy.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// The Envoy program.
    pub program: &'a Path,
    /// Bootstrap configuration, as JSON. Ports may be 0.
    pub bootstrap: &'a Value,
    /// Worker threads.
    pub concurrency: u32,
}

/// A running Envoy; it ends when this is dropped.
#[derive(Debug)]
pub struct Envoy {
    child: Child,
    admin: String,
    folder: TempDir,
    client: reqwest::Client,
}

impl Envoy {
    /// Starts Envoy and waits until its listeners serve.
    ///
    /// # Errors
    /// With the end of Envoy's log when it exits or is not ready in time.
    pub async fn start(options: Options<'_>) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("sluice-envoy-").tempdir()?;
        let bootstrap = folder.path().join("bootstrap.json");
        std::fs::write(&bootstrap, serde_json::to_vec_pretty(options.bootstrap)?)?;
        let admin_file = folder.path().join("admin");
        let child = Command::new(options.program)
            .args(["--disable-hot-restart", "--log-level", "warning", "--component-log-level", "wasm:info"])
            // So that who waits for a line of an access log waits no ten seconds for it.
            .args(["--file-flush-interval-msec", "100"])
            .args(["--service-cluster", "sluice", "--service-node", "sluice"])
            .args(["--concurrency", &options.concurrency.to_string()])
            .arg("--config-path")
            .arg(&bootstrap)
            .arg("--admin-address-path")
            .arg(&admin_file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // Written at once, where a log file of Envoy's own would be flushed every ten seconds.
            .stderr(std::fs::File::create(folder.path().join("log"))?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", options.program.display()))?;
        let mut envoy = Self { child, admin: String::new(), folder, client: direct_client()? };
        envoy.wait_until_ready(&admin_file).await?;
        Ok(envoy)
    }

    async fn wait_until_ready(&mut self, admin_file: &Path) -> Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                bail!("Envoy exited with {status} before it was ready:\n{}", self.log_end());
            }
            if let Ok(address) = std::fs::read_to_string(admin_file)
                && !address.is_empty()
            {
                self.admin = format!("http://{address}");
                if self.admin("/ready").await.is_ok_and(|answer| answer.trim() == "LIVE") {
                    return Ok(());
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("Envoy was not ready after {START_DEADLINE:?}:\n{}", self.log_end())
    }

    /// What the admin interface answers to a GET.
    ///
    /// # Errors
    /// When it does not answer with success.
    pub async fn admin(&self, path: &str) -> Result<String> {
        Ok(self.client.get(format!("{}{path}", self.admin)).send().await?.error_for_status()?.text().await?)
    }

    /// Address of the admin interface.
    #[must_use]
    pub fn admin_url(&self) -> &str {
        &self.admin
    }

    /// Address that a listener got.
    ///
    /// # Errors
    /// When there is no listener of that name.
    pub async fn listener(&self, name: &str) -> Result<SocketAddr> {
        let answer: Value = serde_json::from_str(&self.admin("/listeners?format=json").await?)?;
        let listeners = answer["listener_statuses"].as_array().context("no listeners")?;
        let listener = listeners.iter().find(|listener| listener["name"] == name);
        let socket = &listener.with_context(|| format!("no listener {name}"))?["local_address"]["socket_address"];
        let address = socket["address"].as_str().context("no address")?;
        let port = u16::try_from(socket["port_value"].as_u64().context("no port")?)?;
        Ok(SocketAddr::new(address.parse()?, port))
    }

    /// A counter or gauge by its full name; 0 while it does not exist.
    ///
    /// # Errors
    /// When the admin interface does not answer.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        let answer: Value = serde_json::from_str(&self.admin(&format!("/stats?format=json&filter=^{name}$")).await?)?;
        Ok(answer["stats"]
            .as_array()
            .and_then(|stats| stats.first())
            .and_then(|stat| stat["value"].as_u64())
            .unwrap_or(0))
    }

    /// The metrics in Prometheus's format.
    ///
    /// # Errors
    /// When the admin interface does not answer.
    pub async fn prometheus(&self) -> Result<String> {
        self.admin("/stats/prometheus").await
    }

    /// CPU time that the process has used so far, in user and system mode.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn cpu_time(&self) -> Result<Duration> {
        let id = self.child.id().context("Envoy has gone")?;
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).context("cannot read Envoy's CPU time")?;
        // The name of the program stands second, in brackets, and may hold anything.
        let (_, fields) = stat.rsplit_once(')').context("no CPU time")?;
        let ticks: Vec<u64> =
            fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
        ensure!(ticks.len() == 2, "no CPU time in {stat}");
        Ok(Duration::from_millis(ticks.iter().sum::<u64>() * MILLIS_PER_TICK))
    }

    /// The same of the threads it has now, but finer by far; see [`process::cpu_time`].
    ///
    /// # Errors
    /// When the system does not say.
    pub fn fine_cpu_time(&self) -> Result<Duration> {
        process::cpu_time(self.child.id().context("Envoy has gone")?)
    }

    /// Bytes of memory that it holds at present.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn resident_bytes(&self) -> Result<u64> {
        process::resident_bytes(self.child.id().context("Envoy has gone")?)
    }

    /// All of the log so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Stops Envoy and waits until it is gone.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn stop(mut self) -> Result<()> {
        self.kill().await
    }

    /// Kills Envoy and waits until it is gone; its log can still be read.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn kill(&mut self) -> Result<()> {
        self.child.kill().await.context("cannot stop Envoy")
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// The last lines of the log.
    #[must_use]
    pub fn log_end(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(30)..).unwrap_or_default().join("\n")
    }
}

/// A client that goes to loopback itself, whatever proxy the environment names.
///
/// # Errors
/// When it cannot be made.
pub fn direct_client() -> Result<reqwest::Client> {
    reqwest::Client::builder().no_proxy().build().context("cannot make an HTTP client")
}
