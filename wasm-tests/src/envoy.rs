//! Real Envoys, which tests share one after the other.
//!
//! To start one costs seconds, nearly all for compiling the module; to give one that runs other listeners costs a few
//! hundredths, since all plugins of one code share a VM on each thread. So a test takes an idle Envoy, has it to itself,
//! and gives it back. What tells leases apart are the namespaces of their plugins and the names of their listeners; counters are
//! counted from the beginning of a lease. An Envoy that a failed test has had, or in which the filter has trapped, is not given back.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::envoy::direct_client;

use crate::bootstrap::{self, Plugin};
use crate::process::Process;
use crate::rig::eventually;
use crate::{artefacts, metrics};

/// Idle Envoys.
static IDLE: Mutex<Vec<Process>> = Mutex::new(Vec::new());

/// A running Envoy with a single user.
#[derive(Debug)]
pub struct Envoy {
    /// Gone once it has been stopped or given back.
    process: Option<Process>,
    /// Others may have it afterwards.
    is_shared: bool,
    // Why: of this lease and not of the process, since its connections live in the runtime of one test.
    client: reqwest::Client,
    admin: String,
    before: Before,
}

/// Counters and log of an Envoy before a lease.
#[derive(Debug, Default)]
struct Before {
    counters: BTreeMap<String, u64>,
    /// The filter's metrics, as Prometheus reads them.
    page: String,
    /// Bytes of the log.
    log: u64,
}

impl Envoy {
    /// An Envoy that others have had or will have, with so many worker threads.
    ///
    /// # Panics
    /// When no Envoy can be used.
    pub async fn shared(threads: u32) -> Self {
        let idle = {
            let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
            idle.iter().position(|process| process.threads() == threads).map(|place| idle.swap_remove(place))
        };
        let process = match idle {
            Some(process) => process,
            None => Process::start(threads, |folder| bootstrap::dynamic(folder, &[keeper()])).await,
        };
        let mut envoy = Self::of(process, true);
        envoy.settle().await;
        envoy
    }

    /// An Envoy that ends with its test, with so many worker threads.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn alone(threads: u32) -> Self {
        Self::of(Process::start(threads, |folder| bootstrap::dynamic(folder, &[])).await, false)
    }

    fn of(process: Process, is_shared: bool) -> Self {
        let admin = process.admin().to_owned();
        let client = direct_client().expect("a client");
        Self { process: Some(process), is_shared, client, admin, before: Before::default() }
    }

    /// Waits until nothing of the former lease is left, and notes what has been counted and said.
    async fn settle(&mut self) {
        eventually("the listeners of the former lease are gone", async || {
            let left = self.listeners().await;
            let draining = self.stat("listener_manager.total_listeners_draining").await?;
            let open = self.stats("filter=^(listener|http)[.].*_active$").await?;
            let open: Vec<_> = open.into_iter().filter(|(name, now)| *now > 0 && !name.contains("admin")).collect();
            let is_gone = left.len() == 1 && draining == 0 && open.is_empty();
            is_gone.then_some(()).ok_or(format!("{left:?}, {draining} draining, {open:?}"))
        })
        .await;
        let level = self.client.post(format!("{}/logging?wasm=info", self.admin)).send().await;
        assert!(level.expect("an answer").status().is_success(), "the level of the log");
        // Why twice: the first gathering of histograms that ends may have begun before the last stream ended.
        for _ in 0..2 {
            self.histograms_are_gathered().await;
        }
        self.before.counters = self.stats("type=Counters").await.expect("the counters");
        self.before.page = self.filters_page().await;
        self.before.log = std::fs::metadata(self.process().log()).map_or(0, |file| file.len());
    }

    /// Waits until histograms have been gathered from all threads; the admin interface makes one for each of its requests.
    async fn histograms_are_gathered(&self) {
        let count = async || {
            let page = self.admin("/stats/prometheus?filter=http.admin.downstream_rq_time").await?;
            let lines = page.lines().filter(|line| line.starts_with("envoy_http_downstream_rq_time_count"));
            Ok::<_, String>(lines.map(str::to_owned).collect::<String>())
        };
        let before = count().await.expect("the metrics page");
        eventually("histograms are gathered", async || {
            let now = count().await?;
            (now != before).then_some(()).ok_or(now)
        })
        .await;
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("it has not been stopped")
    }

    /// Number of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process().id()
    }

    /// Gives it these clusters and listeners, beside none, and waits until they serve. No listener of the same name may have been
    /// there before.
    ///
    /// # Panics
    /// When it refuses them.
    pub async fn serve(&mut self, clusters: &[Value], listeners: &[Value]) {
        let (clusters_before, listeners_before) = (self.updates("cds").await, self.updates("lds").await);
        let process = self.process.as_mut().expect("it has not been stopped");
        // Why first: a thread receives changes in their order, so a request that finds the listener finds its clusters.
        process.write_clusters(clusters);
        self.updated("cds", clusters_before).await;
        let process = self.process.as_mut().expect("it has not been stopped");
        process.write_listeners(listeners);
        self.updated("lds", listeners_before).await;
        eventually("the listeners serve", async || {
            let all = self.listeners().await;
            let missing =
                listeners.iter().filter(|listener| !all.contains_key(listener["name"].as_str().unwrap_or("")));
            let missing: Vec<_> = missing.map(|listener| &listener["name"]).collect();
            missing.is_empty().then_some(()).ok_or_else(|| format!("{missing:?} are missing:\n{}", self.log()))
        })
        .await;
    }

    async fn updates(&self, kind: &str) -> (u64, u64) {
        let manager = if kind == "cds" { "cluster_manager" } else { "listener_manager" };
        let stat = async |what| self.stat(&format!("{manager}.{kind}.{what}")).await.expect("a counter");
        (stat("update_success").await, stat("update_rejected").await)
    }

    async fn updated(&self, kind: &str, before: (u64, u64)) {
        eventually("Envoy takes what is written", async || {
            let now = self.updates(kind).await;
            assert_eq!(now.1, before.1, "it is refused:\n{}", self.log());
            (now.0 > before.0).then_some(()).ok_or_else(|| format!("{now:?}"))
        })
        .await;
    }

    /// Addresses of all listeners by name, where they have ports.
    async fn listeners(&self) -> BTreeMap<String, Option<SocketAddr>> {
        let page = self.admin("/listeners?format=json").await.expect("the listeners");
        let page: Value = serde_json::from_str(&page).expect("JSON");
        let listeners = page["listener_statuses"].as_array().cloned().unwrap_or_default();
        let of = |listener: &Value| {
            let socket = &listener["local_address"]["socket_address"];
            let address = socket["address"].as_str().and_then(|address| address.parse::<IpAddr>().ok());
            let port = socket["port_value"].as_u64().and_then(|port| u16::try_from(port).ok());
            let name = listener["name"].as_str().unwrap_or_default().to_owned();
            (name, address.zip(port).map(SocketAddr::from))
        };
        listeners.iter().map(of).collect()
    }

    /// Address that a listener got.
    ///
    /// # Panics
    /// When there is no listener of that name with a port.
    pub async fn listener(&self, name: &str) -> SocketAddr {
        self.listeners().await.get(name).copied().flatten().unwrap_or_else(|| panic!("no listener {name}"))
    }

    /// Answer of the admin interface to a GET.
    ///
    /// # Errors
    /// When it does not answer with success.
    pub async fn admin(&self, path: &str) -> Result<String, String> {
        let text = |error: reqwest::Error| error.to_string();
        let answer = self.client.get(format!("{}{path}", self.admin)).send().await.map_err(text)?;
        answer.error_for_status().map_err(text)?.text().await.map_err(text)
    }

    /// Address of the admin interface.
    #[must_use]
    pub fn admin_url(&self) -> &str {
        &self.admin
    }

    /// A gauge by its full name, or what a counter has counted since the lease began; 0 while it does not exist.
    ///
    /// # Errors
    /// When the admin interface does not answer.
    pub async fn stat(&self, name: &str) -> Result<u64, String> {
        let found = self.stats(&format!("filter=^{name}$")).await?;
        let since = |(name, now): (&String, &u64)| now - self.before.counters.get(name).copied().unwrap_or(0);
        Ok(found.iter().next().map_or(0, since))
    }

    /// Counters and gauges as they stand, by name.
    async fn stats(&self, query: &str) -> Result<BTreeMap<String, u64>, String> {
        let page = self.admin(&format!("/stats?format=json&{query}")).await?;
        let page: Value = serde_json::from_str(&page).map_err(|error| error.to_string())?;
        let stats = page["stats"].as_array().into_iter().flatten();
        Ok(stats.filter_map(|stat| Some((stat["name"].as_str()?.to_owned(), stat["value"].as_u64()?))).collect())
    }

    /// All metrics in Prometheus's format, as they stand.
    ///
    /// # Errors
    /// When the admin interface does not answer.
    pub async fn prometheus(&self) -> Result<String, String> {
        self.admin("/stats/prometheus").await
    }

    async fn filters_page(&self) -> String {
        self.admin("/stats/prometheus?filter=wasmcustom").await.expect("the metrics page")
    }

    /// The metric's count since the lease began, or its value where it is a gauge: the sum over all samples with these
    /// labels.
    ///
    /// # Panics
    /// When the admin interface does not answer.
    pub async fn count(&self, metric: &str, labels: &[(&str, &str)]) -> u64 {
        let page = self.filters_page().await;
        let now = metrics::sum(&page, metric, labels);
        if page.contains(&format!("# TYPE {metric} gauge\n")) {
            return now;
        }
        now - metrics::sum(&self.before.page, metric, labels)
    }

    /// CPU time that its threads have used so far.
    ///
    /// # Panics
    /// When the system does not say.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        testkit::process::cpu_time(self.id()).expect("its CPU time")
    }

    /// Bytes of memory that it holds at present.
    ///
    /// # Panics
    /// When the system does not say.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        testkit::process::resident_bytes(self.id()).expect("its memory")
    }

    /// The log since the lease began.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.as_ref().map(|process| log_since(&process.log(), self.before.log)).unwrap_or_default()
    }

    /// True when the log shows a trap.
    #[must_use]
    pub fn has_trapped(&self) -> bool {
        let log = self.log();
        log.contains("panicked") || log.contains("Function: proxy_")
    }

    /// Kills it, and waits until it is gone.
    pub fn stop(mut self) {
        self.process = None;
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let is_sound = self.is_shared && !std::thread::panicking() && !self.has_trapped();
        let Some(mut process) = self.process.take() else { return };
        if is_sound && process.is_running() {
            process.write_listeners(&[]);
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(process);
        }
    }
}

/// Content of a file behind its first bytes.
fn log_since(file: &Path, start: u64) -> String {
    let bytes = std::fs::read(file).unwrap_or_default();
    let start = usize::try_from(start).unwrap_or(usize::MAX).min(bytes.len());
    String::from_utf8_lossy(&bytes[start..]).into_owned()
}

/// A listener without a user. While there is a plugin of a code, Envoy keeps its VMs.
fn keeper() -> Value {
    let configuration = json!({"role": "control", "namespace": "keeper", "token_sha256": "0".repeat(64)}).to_string();
    let code = artefacts::filter();
    let plugin = Plugin { name: "keeper", code: &code, configuration: &configuration, header_pause: true };
    bootstrap::listener("keeper", &[bootstrap::fixed(&plugin)], &bootstrap::no_routes())
}
