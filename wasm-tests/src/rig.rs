//! Everything together.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use testkit::envoy::direct_client;
use testkit::{shipped, state_page};
use worker_sim::{Fault, Worker};

use crate::artefacts;
use crate::bootstrap::{self, PLUGIN, Plugin};
use crate::caller::{CHAT, RawCaller, chat, request_bytes};
use crate::envoy::Envoy;
use crate::resetter::Resetter;
use crate::setup::ENDLESS;
pub use crate::setup::{MODEL, Setup, Wait, shipped_log_format};

/// Longest wait for a condition; far beyond what any takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Several ticks of the filter: what would be counted is counted by then.
const TICKS: Duration = Duration::from_millis(500);

/// Bearer token of the control listener.
pub const TOKEN: &str = "correct-horse-battery-staple";

const PUBLIC: &str = "public";
const NEIGHBOUR: &str = "neighbour";
const CONTROL: &str = "control";
const NAMESPACE: &str = "under-test";

/// Number of the next rig.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// A running proxy with a worker behind it.
pub struct Rig {
    /// The proxy.
    pub envoy: Envoy,
    /// The worker.
    pub worker: Worker,
    /// Those beside it.
    pub others: Vec<Worker>,
    /// Alone in the cluster `cold`, to which only a test's own routes lead.
    pub cold: Worker,
    /// Of the listener under test.
    pub address: SocketAddr,
    /// Of the listener with the second plugin of the same code.
    pub neighbour: SocketAddr,
    control: SocketAddr,
    setup: Setup,
    /// No other rig of this program has it.
    number: u64,
    code: PathBuf,
    version: u32,
    folder: TempDir,
    client: reqwest::Client,
    /// The worker that resets its connections.
    pub resetter: Resetter,
}

impl Rig {
    /// Starts everything and waits until it serves.
    pub async fn start(setup: Setup) -> Self {
        let worker = Worker::start(setup.worker.clone()).await.expect("start the worker");
        let cold = Worker::start(setup.worker.clone()).await.expect("start the cold worker");
        let mut others = Vec::new();
        for _ in 0..setup.more_workers {
            others.push(Worker::start(setup.worker.clone()).await.expect("start another worker"));
        }
        let resetter = Resetter::start().await;
        let folder = tempfile::tempdir().expect("a folder");
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let code = setup.code.clone();
        let code = code.unwrap_or_else(if setup.faulty { artefacts::faulty_filter } else { artefacts::filter });
        let envoy = if setup.alone { Envoy::alone(setup.threads).await } else { Envoy::shared(setup.threads).await };
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut rig = Self {
            envoy,
            worker,
            others,
            cold,
            address: nowhere,
            neighbour: nowhere,
            control: nowhere,
            setup,
            number,
            code,
            version: 0,
            folder,
            client: direct_client().expect("a client"),
            resetter,
        };
        rig.reconfigure(|_| {});
        let (clusters, listeners) = (rig.clusters(), rig.listeners());
        rig.envoy.serve(&clusters, &listeners).await;
        let listener = async |name| rig.envoy.listener(&rig.own(name)).await;
        (rig.address, rig.neighbour, rig.control) =
            (listener(PUBLIC).await, listener(NEIGHBOUR).await, listener(CONTROL).await);
        rig
    }

    /// A name that no other rig has.
    fn own(&self, name: &str) -> String {
        format!("{name}-{}", self.number)
    }

    fn clusters(&self) -> Vec<Value> {
        let others = self.others.iter().map(Worker::address);
        let workers: Vec<SocketAddr> = std::iter::once(self.worker.address()).chain(others).collect();
        let mut workers = bootstrap::cluster("workers", &workers);
        if self.setup.steered {
            bootstrap::steer(&mut workers);
        }
        let alone = [("resetter", self.resetter.address()), ("cold", self.cold.address())];
        let alone =
            alone.iter().chain(&self.setup.clusters).map(|(name, address)| bootstrap::cluster(name, &[*address]));
        let picker = self.setup.picker.map(bootstrap::picker_cluster);
        std::iter::once(workers).chain(alone).chain(picker).collect()
    }

    /// The listener under test, that of the second plugin of the same code, and that of the control role.
    fn listeners(&self) -> [Value; 3] {
        let mut neighbour = json!({
            "namespace": self.own(NEIGHBOUR), "tenant": {"sources": [{"header": "x-tenant-id"}]},
            "tenants": {"capped": {"max_in_flight": 1}, "*": {}}, "pools": [{"name": "main", "max_in_flight": 1}],
        });
        if !self.setup.neighbour.is_null() {
            neighbour = self.setup.neighbour.clone();
            neighbour["namespace"] = json!(self.own(NAMESPACE));
        }
        let neighbour = neighbour.to_string();
        let neighbour = Plugin { name: NEIGHBOUR, code: &self.code, configuration: &neighbour, header_pause: false };
        let token_sha256 = hex::encode(Sha256::digest(TOKEN));
        let mut control = json!({"role": "control", "namespace": self.own(NAMESPACE), "token_sha256": token_sha256});
        for (field, value) in self.setup.control.as_object().into_iter().flatten() {
            control[field] = value.clone();
        }
        let control = control.to_string();
        let control = Plugin { name: CONTROL, code: &self.code, configuration: &control, header_pause: true };
        let mut listeners = [
            self.public_listener(),
            bootstrap::listener(NEIGHBOUR, &[bootstrap::fixed(&neighbour)], &bootstrap::worker_routes()),
            bootstrap::listener(CONTROL, &[bootstrap::fixed(&control)], &bootstrap::no_routes()),
        ];
        listeners[2]["per_connection_buffer_limit_bytes"] = json!(8 << 20);
        for (listener, name) in listeners.iter_mut().zip([PUBLIC, NEIGHBOUR, CONTROL]) {
            // Its statistics keep the plain name.
            listener["name"] = json!(self.own(name));
        }
        listeners
    }

    fn public_listener(&self) -> Value {
        let mut filters = self.setup.filters_before.clone();
        let mut filter = bootstrap::discovered(PLUGIN, &self.plugin_file());
        if self.setup.has_default {
            let shipped = shipped::watched_filter().expect("a filter");
            for field in ["default_config", "type_urls"] {
                filter["config_discovery"][field] = shipped["config_discovery"][field].clone();
            }
        }
        filters.extend(std::iter::repeat_n(filter, if self.setup.twice { 2 } else { 1 }));
        filters.extend(self.setup.filters_behind.iter().cloned());
        let mut public = bootstrap::listener(PUBLIC, &filters, &json!([]));
        public["per_connection_buffer_limit_bytes"] = json!(self.setup.buffer_limit);
        let manager = &mut public["filter_chains"][0]["filters"][0]["typed_config"];
        manager["route_config"]["virtual_hosts"] = self.setup.virtual_hosts.clone();
        manager["stream_idle_timeout"] = json!(self.setup.idle_timeout);
        if !self.setup.access_log.is_null() {
            let mut format = self.setup.access_log.clone();
            format["rig"] = json!(self.own(NAMESPACE));
            manager["access_log"] = bootstrap::access_log(&format);
        }
        if let Some(socket) = &self.setup.transport_socket {
            public["filter_chains"][0]["transport_socket"] = socket.clone();
        }
        public
    }

    /// The access log's objects of this rig's requests so far, one for each.
    #[must_use]
    pub fn logged(&self) -> Vec<Value> {
        let rig = self.own(NAMESPACE);
        let log = self.envoy.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        // Why: Envoy writes lines up to a tenth of a second late, so those of the lease before may come after its end.
        lines.filter(|line| line["rig"] == rig).collect()
    }

    fn plugin_file(&self) -> PathBuf {
        self.folder.path().join("sluice.json")
    }

    /// Replaces the filter's policy while it runs, as a control plane would: by an atomic rename.
    pub fn reconfigure(&mut self, change: impl FnOnce(&mut Value)) {
        let mut configuration = self.setup.configuration();
        configuration["namespace"] = json!(self.own(NAMESPACE));
        change(&mut configuration);
        self.version += 1;
        let configuration = configuration.to_string();
        let header_pause = self.setup.wait == Wait::AtHeaders;
        let plugin = Plugin { name: PLUGIN, code: &self.code, configuration: &configuration, header_pause };
        let next = self.folder.path().join("next");
        std::fs::write(&next, plugin.ecds(self.version).to_string()).expect("write the plugin");
        std::fs::rename(&next, self.plugin_file()).expect("rename the plugin");
    }

    /// The same with another build of the filter.
    pub fn change_code(&mut self, code: PathBuf, change: impl FnOnce(&mut Value)) {
        self.code = code;
        self.reconfigure(change);
    }

    /// Of the control listener.
    #[must_use]
    pub fn control_address(&self) -> SocketAddr {
        self.control
    }

    /// Posts a chat request as a tenant, with more headers.
    pub async fn post(&self, tenant: &str, headers: &[(&str, &str)], body: &Value) -> reqwest::Response {
        self.post_to(CHAT, tenant, headers, body.to_string()).await
    }

    /// Posts any body to any path as a tenant, with more headers.
    pub async fn post_to(
        &self,
        path: &str,
        tenant: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> reqwest::Response {
        let mut request = self.client.post(format!("http://{}{path}", self.address)).header("x-tenant-id", tenant);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.header("content-type", "application/json").body(body);
        request.send().await.expect("an answer from Envoy")
    }

    /// What the filter has counted, or shows where the metric is a gauge: the sum over all samples with these labels.
    pub async fn count(&self, metric: &str, labels: &[(&str, &str)]) -> u64 {
        self.envoy.count(metric, labels).await
    }

    /// Makes sure that the filter counts so much: what a VM counts becomes the proxy's on its next tick.
    pub async fn counts(&self, metric: &str, labels: &[(&str, &str)], expected: u64) {
        if expected == 0 {
            tokio::time::sleep(TICKS).await;
        }
        eventually("all is counted", async || {
            let counted = self.count(metric, labels).await;
            (counted == expected).then_some(()).ok_or(format!("{metric} {labels:?}: {counted}, not {expected}"))
        })
        .await;
    }

    /// Posts a small chat request; the status, and the reason if it is a refusal of ours.
    pub async fn ask(&self, tenant: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let answer = self.post(tenant, headers, &chat(MODEL, 1, false)).await;
        (answer.status().as_u16(), reason_of(&answer))
    }

    /// A header of the request that the worker saw last.
    #[must_use]
    pub fn seen(&self, header: &str) -> Option<String> {
        self.worker.stats().last_headers.remove(header)
    }

    /// Asks the control listener.
    pub async fn control(&self, method: &str, path: &str, token: Option<&str>, body: Vec<u8>) -> (u16, Value) {
        let method = method.parse().expect("a method");
        let mut request = self.client.request(method, format!("http://{}{path}", self.control)).body(body);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.expect("an answer from the control listener");
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap_or_default())
    }

    /// Pushes a view of the pool `main` with these workers.
    pub async fn push_view(&self, epoch: u64, generation: u64, pool: Value) -> (u16, Value) {
        let view = json!({"version": 1, "epoch": epoch, "generation": generation, "pools": {"main": pool}});
        self.control("POST", "/sluice/v1/view", Some(TOKEN), view.to_string().into_bytes()).await
    }

    /// The state page.
    pub async fn state(&self) -> Value {
        self.state_if_served().await.expect("the state page")
    }

    /// The state page, or why there is none: plugins of the same code share a VM, so what traps one takes the control
    /// role along until the VM is reloaded.
    pub async fn state_if_served(&self) -> Result<Value, String> {
        let (status, state) = self.control("GET", "/sluice/v1/state", Some(TOKEN), Vec::new()).await;
        if status == 200 { Ok(state) } else { Err(format!("{status} {state}")) }
    }

    /// Requests held in the pool and by the tenant `capped`.
    pub async fn held(&self) -> (u64, u64) {
        let state = self.state().await;
        let requests = |held: &Value| held["requests"].as_u64().unwrap_or(0);
        (requests(&state["pools"]["main"]["held"]), requests(&state["tenants"]["capped"]))
    }

    /// Makes the worker hang and has it hold so many requests of a tenant, until the callers are dropped.
    pub async fn hold(&self, tenant: &str, count: u64) -> Vec<RawCaller> {
        self.worker.set_faults([Fault::Hang]);
        let body = chat(MODEL, 32, false).to_string();
        let request = request_bytes(CHAT, &[("x-tenant-id", tenant.as_bytes())], body.as_bytes(), true);
        let mut callers = Vec::new();
        for _ in 0..count {
            callers.push(RawCaller::send(self.address, &request).await);
        }
        // Each needs three blocks of 16 tokens once it has been read.
        eventually("all are held, as read", async || {
            let held = self.state().await["pools"]["main"]["held"].clone();
            (held["requests"] == count && held["blocks"] == 3 * count).then_some(()).ok_or(held.to_string())
        })
        .await;
        callers
    }

    /// Starts an answer that streams on until its caller is dropped; it has begun when this returns. Unlike `hold` it
    /// leaves the worker to others. The worker must allow so many tokens: see [`Setup::patient`].
    pub async fn endless(&self, tenant: &str, headers: &[(&str, &str)]) -> RawCaller {
        self.try_endless(tenant, headers).await.unwrap_or_else(|refused| panic!("{refused}"))
    }

    /// The same; the head of the answer where the request was refused.
    pub async fn try_endless(&self, tenant: &str, headers: &[(&str, &str)]) -> Result<RawCaller, String> {
        let body = chat(MODEL, ENDLESS, true).to_string();
        let tenant = ("x-tenant-id", tenant);
        let headers: Vec<_> = headers.iter().chain([&tenant]).map(|(name, value)| (*name, value.as_bytes())).collect();
        let mut caller = RawCaller::send(self.address, &request_bytes(CHAT, &headers, body.as_bytes(), true)).await;
        let mut begun = caller.read_until("\r\n\r\n").await;
        if !begun.starts_with("HTTP/1.1 200") {
            return Err(begun);
        }
        if !begun.contains("data: ") {
            begun += &caller.read_until("data: ").await;
        }
        if begun.contains("data: ") { Ok(caller) } else { Err(begun) }
    }

    /// Sends a request that the worker takes and does not answer; it has it when this returns.
    pub async fn hanging(&self, request: &[u8]) -> RawCaller {
        let before = self.worker.stats().in_server;
        self.worker.set_faults([Fault::Hang]);
        let caller = RawCaller::send(self.address, request).await;
        eventually("the worker has it", async || {
            let inside = self.worker.stats().in_server;
            (inside > before).then_some(()).ok_or(inside.to_string())
        })
        .await;
        self.worker.set_faults([]);
        caller
    }

    /// Connections to the listener under test, by worker thread.
    pub async fn connections(&self) -> Vec<u64> {
        let mut connections = Vec::new();
        for thread in 0..self.setup.threads {
            let name = format!("listener.public.worker_{thread}.downstream_cx_active");
            connections.push(self.envoy.stat(&name).await.expect("a gauge"));
        }
        connections
    }

    /// Waits until the proxy has so many requests of the listener under test in hand.
    pub async fn in_hand(&self, count: u64) {
        eventually("the proxy has them in hand", async || {
            let active = self.envoy.stat("http.public.downstream_rq_active").await.expect("a gauge");
            (active == count).then_some(()).ok_or(format!("{active} of {count}"))
        })
        .await;
    }

    /// Waits until nothing is held by anybody, tokens and blocks included.
    pub async fn nothing_is_held(&self) {
        eventually("nothing is held", async || {
            let state = self.state_if_served().await?;
            if state_page::nothing_is_held(&state) { Ok(()) } else { Err(state.to_string()) }
        })
        .await;
    }

    /// Fails if the filter has trapped: no VM was reloaded and the log tells of none.
    pub async fn nothing_trapped(&self) {
        for plugin in [PLUGIN, NEIGHBOUR, CONTROL] {
            let reloads = self.envoy.stat(&format!("wasm.{plugin}.vm_reload_success")).await.expect("a counter");
            assert_eq!(reloads, 0, "{plugin} was reloaded: {}", self.envoy.log());
        }
        assert!(!self.envoy.has_trapped(), "{}", self.envoy.log());
    }
}

/// Why a request was refused, as its answer says; nothing for one that was not.
#[must_use]
pub fn reason_of(answer: &reqwest::Response) -> String {
    text_of(answer, "x-sluice-reason")
}

/// A header of an answer; nothing where it has none.
#[must_use]
pub fn text_of(answer: &reqwest::Response, header: &str) -> String {
    let value = answer.headers().get(header).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

/// Tries a condition until it holds, and returns what it finds; fails with its last explanation when patience ends.
pub async fn eventually<T, F: Future<Output = Result<T, String>>>(what: &str, condition: impl Fn() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match condition().await {
            Ok(found) => return found,
            Err(last) if Instant::now() > deadline => panic!("{what}: not after {PATIENCE:?}; last: {last}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
