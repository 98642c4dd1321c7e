//! What runs: a thousand pages in this process, the sidecar that reads them, and a proxy with the filter.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::envoy::{Envoy, Options};
use worker_sim::fleet::{Fleet, FleetWorker, Pace, Seen};

use testkit::parts::{Program, TOKEN, free_port};
use testkit::shipped;

/// How many are read.
pub const WORKERS: usize = 1_000;

/// Pool of the one worker that turns busy and free again.
const PROBE: &str = "probe";

/// Workers that are slow in one window, and how: two within the interval, one for as long as the sidecar waits.
const SLOW: [Pace; 3] =
    [Pace::Late(Duration::from_millis(75)), Pace::Trickling(Duration::from_millis(75)), Pace::Hanging];

/// What is to be started.
#[derive(Clone, Debug)]
pub struct Programs {
    pub sidecar: PathBuf,
    pub envoy: PathBuf,
    pub filter: PathBuf,
    /// The shipped bootstrap.
    pub bootstrap: PathBuf,
}

/// Everything that runs. It ends when this is dropped.
pub struct Stage {
    pub sidecar: Program,
    /// Where a request is let in or refused, as the probe's worker is free or busy.
    pub public: SocketAddr,
    _envoy: Envoy,
    fleet: Fleet,
    folder: TempDir,
}

impl Stage {
    /// Starts everything.
    ///
    /// # Errors
    /// When a part does not start.
    pub async fn start(programs: &Programs) -> Result<Self> {
        enough_descriptors()?;
        let folder = tempfile::Builder::new().prefix("sluice-sidecar-").tempdir()?;
        let fleet = Fleet::start(WORKERS).context("cannot start the workers")?;
        let bootstrap = bootstrap(programs)?;
        let envoy = Envoy::start(Options { program: &programs.envoy, bootstrap: &bootstrap, concurrency: 2 }).await?;
        let (public, control) = (envoy.listener("public").await?, envoy.listener("control").await?);

        let file = folder.path().join("sidecar.json");
        let addresses: Vec<SocketAddr> = fleet.workers().iter().map(|worker| worker.address()).collect();
        std::fs::write(&file, sidecar_config(control, &addresses)?.to_string())?;
        let path = file.to_str().context("the temporary folder has a name that is not UTF-8")?;
        let log = folder.path().join("sidecar.log");
        let sidecar = Program::start(&programs.sidecar, &["run", "--config", path], &log).await?;
        println!("    sidecar {}, proxy {public} with the filter, control {control}", sidecar.address);
        Ok(Self { sidecar, public, _envoy: envoy, fleet, folder })
    }

    /// What the sidecar has logged last.
    pub fn log_end(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path().join("sidecar.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(10)..).unwrap_or_default().join("\n")
    }

    /// The worker of the probe's pool.
    ///
    /// # Errors
    /// None while there are workers.
    pub fn probed(&self) -> Result<&FleetWorker> {
        self.fleet.workers().first().map(AsRef::as_ref).context("no worker")
    }

    /// Some of the others become slow.
    pub fn slow_some_down(&self) {
        for (worker, pace) in self.fleet.workers().iter().skip(1).zip(SLOW) {
            worker.set_pace(pace);
        }
    }

    /// All of them send all of their page from now on, as engines do that heed no names.
    pub fn send_whole_pages(&self) {
        self.fleet.ignore_names();
    }

    /// What all but those that are slow at last have seen since this was asked before.
    pub fn take_seen(&self) -> Seen {
        let mut all = Seen::default();
        for (number, worker) in self.fleet.workers().iter().enumerate() {
            let seen = worker.take_seen();
            if !(1..=SLOW.len()).contains(&number) {
                all.connections += seen.connections;
                all.asked += seen.asked;
                all.gaps.extend(seen.gaps);
            }
        }
        all
    }
}

/// A worker here and its connection take a descriptor each, and the connection another one in the sidecar.
fn enough_descriptors() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = 2 * WORKERS as u64 + 500;
    let limit = getrlimit(Resource::Nofile);
    ensure!(
        limit.maximum.is_none_or(|most| most >= needed),
        "{needed} descriptors are needed, and {:?} allowed: raise the hard limit (`ulimit -Hn {needed}`)",
        limit.maximum
    );
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("cannot raise the limit of descriptors")
}

/// The shipped bootstrap with free ports, a pool for the probe beside the one for the rest, and a proxy that answers
/// itself what the filter lets in.
fn bootstrap(programs: &Programs) -> Result<Value> {
    let mut bootstrap = shipped::document(&programs.bootstrap)?;
    shipped::set_module(&mut bootstrap, &programs.filter);
    free_port(&mut bootstrap["admin"]["address"]);
    for name in ["public", "control"] {
        free_port(&mut shipped::named(&mut bootstrap["static_resources"]["listeners"], name)?["address"]);
    }
    bootstrap["static_resources"]["clusters"] = json!([]);
    let manager = shipped::http_manager(&mut bootstrap, "public")?;
    manager["route_config"]["virtual_hosts"][0]["routes"] =
        json!([{"match": {"prefix": "/"}, "direct_response": {"status": 200}}]);
    let filter = shipped::named(&mut manager["http_filters"], "sluice")?;
    let pool = |name: &str| json!({"name": name, "models": [name], "max_in_flight": 1_000});
    let policy = json!({
        "lanes": [{"name": "standard"}],
        "pools": [pool("fleet"), pool(PROBE)],
        // So that the headers alone decide, and nothing is measured but what the view says.
        "routes": [{"match": {"path_prefix": "/"}, "pool": PROBE}],
    });
    filter["typed_config"]["config"]["configuration"]["value"] = policy.to_string().into();
    Ok(bootstrap)
}

/// As shipped, but for the workers.
fn sidecar_config(control: SocketAddr, workers: &[SocketAddr]) -> Result<Value> {
    let (probed, others) = workers.split_first().context("no workers")?;
    let pool = |name: &str, workers: &[SocketAddr]| json!({"name": name, "busy": {"active_decode_blocks_threshold": 0.85}, "workers": workers});
    Ok(json!({
        "listen": "127.0.0.1:0",
        "scrape": {"interval": "100ms", "timeout": "1s", "down_after": "2s"},
        "push": {"heartbeat": "1s", "timeout": "1s"},
        "proxies": [{"url": format!("http://{control}"), "token": TOKEN}],
        "pools": [pool("fleet", others), pool(PROBE, std::slice::from_ref(probed))],
    }))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use admission_core::policy::Plugin;

    use super::*;

    #[test]
    fn filter_and_sidecar_take_their_configurations() {
        let programs = Programs {
            sidecar: PathBuf::new(),
            envoy: PathBuf::new(),
            filter: PathBuf::from("sluice.wasm"),
            bootstrap: Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config/envoy.yaml"),
        };
        let plugins = shipped::plugin_configs(&bootstrap(&programs).unwrap());
        assert_eq!(plugins.len(), 2);
        for plugin in plugins {
            Plugin::parse(plugin.to_string().as_bytes()).unwrap();
        }
        let workers: Vec<SocketAddr> = (1..=3).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        let config = sidecar_config(workers[0], &workers).unwrap();
        let config = host_sidecar::Config::from_value(config).unwrap();
        assert_eq!(config.pools.iter().map(|pool| pool.workers.len()).collect::<Vec<_>>(), [2, 1]);
    }
}
