//! The proxy, one process after the other: how it is configured, and what it says.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use testkit::envoy::{Envoy, Options};
use testkit::plugin::{Plugin, discovered};

use super::script::Code;
use testkit::parts::{self, Programs, Stage};
use testkit::shipped;

/// Worker threads.
pub const THREADS: u32 = 2;

/// Outcome of requests that were let in.
pub const ADMITTED: &str = "admitted";

/// Counters of requests. Those that a policy in shadow only would refuse, or let wait, count in series of their own and go on.
const DECIDED: &str = "sluice_requests_total{";
const SHADOWED: [&str; 2] = ["sluice_would_reject_total{", "sluice_would_wait_total{"];

/// Counters of requests that gave way after they had been let in.
const EVICTED: &str = "sluice_evicted_total{";

/// The filter's name.
const PLUGIN: &str = "sluice";

/// After so long without a byte the proxy ends a request: what frees those whose VM has died while they waited. Longer than
/// any wait of a policy.
pub const SILENCE: Duration = Duration::from_secs(6);

/// Longest time for the proxy to take or refuse a configuration.
const PATIENCE: Duration = Duration::from_secs(30);

const GLANCE: Duration = Duration::from_millis(20);

/// A proxy's process.
pub struct Proxy {
    /// Which one, from 0.
    pub life: usize,
    pub envoy: Envoy,
    pub address: SocketAddr,
    pub control: SocketAddr,
    counted: Counted,
}

/// What a proxy has counted. The proxy forgets series of the filter that only VMs have used which have gone, so they are added up from
/// look to look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Requests that have come to the listener with the filter.
    pub requests: u64,
    /// Requests that the filter has decided, by outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// Requests that gave way after they had been let in.
    pub evicted: u64,
    /// Each series as it was last.
    series: BTreeMap<String, u64>,
}

impl Counted {
    /// Adds what a metrics page shows beyond the last one.
    fn add(&mut self, page: &str) {
        let mut series = BTreeMap::new();
        let ours = |line: &&str| SHADOWED.iter().chain([&DECIDED, &EVICTED]).any(|name| line.starts_with(name));
        for line in page.lines().filter(ours) {
            let Some((name, value)) = line.rsplit_once(' ').and_then(|(name, value)| Some((name, value.parse().ok()?)))
            else {
                continue;
            };
            let before = self.series.get(name).copied().unwrap_or_default();
            // One that is less has begun anew.
            let more: u64 = if value >= before { value - before } else { value };
            if name.starts_with(EVICTED) {
                self.evicted += more;
            } else {
                let outcome = if name.starts_with(DECIDED) { outcome(name).unwrap_or_default() } else { ADMITTED };
                *self.outcomes.entry(outcome.to_owned()).or_default() += more;
            }
            series.insert(name.to_owned(), value);
        }
        self.series = series;
    }
}

/// The file that proxies read the filter's configuration from, and what it takes to write it.
pub struct Setup {
    folder: PathBuf,
    bootstrap: Value,
    code: BTreeMap<&'static str, PathBuf>,
    version: u32,
}

impl Setup {
    /// The shipped bootstrap with these workers and with the filter in a file of its own.
    ///
    /// # Errors
    /// When the shipped bootstrap is not as expected, or a module cannot be read.
    pub fn new(programs: &Programs, trapping: &Path, workers: &[SocketAddr], folder: &Path) -> Result<Self> {
        let stage = Stage {
            workers: workers.len(),
            worker_flags: &[],
            envoy_threads: THREADS,
            policy: |_| Ok(()),
            bootstrap: |_| Ok(()),
        };
        // The control role shares a VM with the filter that traps, as plugins of one build do.
        let shared = Programs { filter: trapping.to_owned(), ..programs.clone() };
        let mut bootstrap = parts::bootstrap(&shared, &stage, workers)?;
        let ecds = folder.join("ecds");
        std::fs::create_dir_all(&ecds)?;
        let manager = shipped::http_manager(&mut bootstrap, "public")?;
        manager["stream_idle_timeout"] = format!("{}s", SILENCE.as_secs()).into();
        manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["idle_timeout"] =
            format!("{}s", SILENCE.as_secs()).into();
        *shipped::named(&mut manager["http_filters"], PLUGIN)? = discovered(PLUGIN, &ecds.join("sluice.json"));
        let rebuilt = folder.join("rebuilt.wasm");
        std::fs::write(&rebuilt, with_another_section(std::fs::read(&programs.filter)?))?;
        let code = BTreeMap::from([
            (name(Code::Released), programs.filter.clone()),
            (name(Code::Rebuilt), rebuilt),
            (name(Code::Trapping), trapping.to_owned()),
        ]);
        Ok(Self { folder: folder.to_owned(), bootstrap, code, version: 0 })
    }

    /// Writes what proxies are to load, as a control plane does: by renaming.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, code: Code, configuration: &str, header_pause: bool) -> Result<()> {
        self.version += 1;
        let code = self.code.get(name(code)).context("no such build")?;
        let plugin = Plugin { name: PLUGIN, code, configuration, header_pause };
        let next = self.folder.join("next");
        std::fs::write(&next, plugin.ecds(self.version).to_string())?;
        std::fs::rename(&next, self.folder.join("ecds/sluice.json")).context("cannot write the filter's configuration")
    }

    /// Starts a proxy and waits until it finds so many workers healthy.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(&self, program: &Path, life: usize, healthy: usize) -> Result<Proxy> {
        let options = Options { program, bootstrap: &self.bootstrap, concurrency: THREADS };
        let envoy = Envoy::start(options).await?;
        let deadline = Instant::now() + PATIENCE;
        while envoy.stat("cluster.workers.membership_healthy").await? < healthy as u64 {
            ensure!(Instant::now() < deadline, "the proxy does not find {healthy} workers healthy");
            tokio::time::sleep(GLANCE).await;
        }
        let (address, control) = (envoy.listener("public").await?, envoy.listener("control").await?);
        Ok(Proxy { life, envoy, address, control, counted: Counted::default() })
    }
}

fn name(code: Code) -> &'static str {
    match code {
        Code::Released => "released",
        Code::Rebuilt => "rebuilt",
        Code::Trapping => "trapping",
    }
}

/// A module that does the same and is another one to the proxy: with one more custom section, which WebAssembly ignores.
fn with_another_section(mut module: Vec<u8>) -> Vec<u8> {
    const NAME: &[u8; 7] = b"rebuilt";
    module.extend([0, NAME.len() as u8 + 1, NAME.len() as u8]);
    module.extend(NAME);
    module
}

impl Proxy {
    /// How often a version was taken, and how often one was refused.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn versions(&self) -> Result<(u64, u64)> {
        let counter =
            async |name| self.envoy.stat(&format!("extension_config_discovery.http_filter.{PLUGIN}.{name}")).await;
        Ok((counter("config_reload").await?, counter("config_fail").await?))
    }

    /// Waits until the proxy has taken a version, or has refused one.
    ///
    /// # Errors
    /// When it does neither in time, or the other.
    pub async fn until_taken(&self, before: (u64, u64), mistaken: bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let (taken, refused) = self.versions().await?;
            // One that is refused may count as a version all the same.
            match (taken > before.0, refused > before.1) {
                (_, true) if mistaken => return Ok(()),
                (_, true) => bail!("the proxy has refused a configuration without a mistake"),
                (true, false) if !mistaken => return Ok(()),
                _ => tokio::time::sleep(GLANCE).await,
            }
        }
        bail!("the proxy has neither taken nor refused a configuration within {PATIENCE:?}")
    }

    /// Notes what it has counted so far.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn count(&mut self) -> Result<&Counted> {
        self.counted.requests = self.envoy.stat("http.public.downstream_rq_total").await?;
        self.counted.add(&self.envoy.prometheus().await?);
        Ok(&self.counted)
    }

    /// Requests that are in it.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn in_hand(&self) -> Result<u64> {
        self.envoy.stat("http.public.downstream_rq_active").await
    }

    /// VMs of all builds.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn vms(&self) -> Result<u64> {
        self.envoy.stat("wasm.envoy.wasm.runtime.v8.active").await
    }
}

fn outcome(line: &str) -> Option<&str> {
    line.split_once("outcome=\"")?.1.split_once('"').map(|(outcome, _)| outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_that_begin_anew_are_added_up() {
        let mut counted = Counted::default();
        for (first, second) in [(Some(3), Some(5)), (Some(4), None), (Some(1), Some(2))] {
            let line = |lane, value: Option<u64>| {
                value.map(|value| format!("sluice_requests_total{{lane=\"{lane}\",outcome=\"admitted\"}} {value}\n"))
            };
            counted.add(&[line("a", first), line("b", second)].into_iter().flatten().collect::<String>());
        }
        assert_eq!(counted.outcomes, BTreeMap::from([(ADMITTED.to_owned(), 4 + 1 + 5 + 2)]));
    }

    #[test]
    fn what_passes_in_shadow_is_let_in() {
        let mut counted = Counted::default();
        counted.add(
            "sluice_would_reject_total{outcome=\"pool_requests\"} 2\nsluice_would_wait_total{outcome=\"all_busy\"} 3\n\
             sluice_requests_total{outcome=\"oversize\"} 4\nsluice_evicted_total{outcome=\"evicted\"} 5\n",
        );
        assert_eq!(counted.outcomes, BTreeMap::from([(ADMITTED.to_owned(), 5), ("oversize".to_owned(), 4)]));
        assert_eq!(counted.evicted, 5);
    }
}
