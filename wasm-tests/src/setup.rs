//! The proxy that a test asks for.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::{checkout, shipped};
use worker_sim::Config;

use crate::bootstrap;

/// Name of the worker's model.
pub const MODEL: &str = "sim";

/// Tokens of an answer that no test lives to see the end of.
pub(crate) const ENDLESS: u32 = 500_000;

/// The three places where requests can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Requests wait at the headers, the body unread.
    Unread,
    /// Requests wait at the headers, the body read.
    AtHeaders,
    /// Headers gone on, the body held.
    BodyHeld,
}

/// Parts and configuration of a rig.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Envoy's worker threads.
    pub threads: u32,
    /// Place where requests wait.
    pub wait: Wait,
    /// Configuration of the filter, without what `wait` adds.
    pub policy: Value,
    /// The worker.
    pub worker: Config,
    /// Use the module that fails on command.
    pub faulty: bool,
    /// Module in place of the filter's, of every listener.
    pub code: Option<PathBuf>,
    /// The rig gets a new proxy, which no other test uses later.
    pub alone: bool,
    /// HTTP filters before ours.
    pub filters_before: Vec<Value>,
    /// HTTP filters behind ours.
    pub filters_behind: Vec<Value>,
    /// Transport socket of the listener under test; plain text without one.
    pub transport_socket: Option<Value>,
    /// Workers beside the first one, like it and in its cluster.
    pub more_workers: usize,
    /// Clusters of one server each that a test has started itself.
    pub clusters: Vec<(&'static str, SocketAddr)>,
    /// Endpoint picker that a filter of the listener under test asks, as the cluster `picker`.
    pub picker: Option<SocketAddr>,
    /// The listener under test has the filter twice.
    pub twice: bool,
    /// The workers' cluster takes the worker that a request's header names.
    pub steered: bool,
    /// Virtual hosts of the listener under test.
    pub virtual_hosts: Value,
    /// Bytes that a connection to the listener under test may have buffered, and a request on a route that does not say more.
    pub buffer_limit: u32,
    /// Policy of the second plugin, under the namespace of the one under test; null leaves it its own.
    pub neighbour: Value,
    /// More of the control listener's configuration.
    pub control: Value,
    /// Idle timeout of streams on the listener under test; `0s` is none.
    pub idle_timeout: &'static str,
    /// Format of the access log that the listener under test writes to the proxy's own log, one JSON object a line; no log if
    /// null.
    pub access_log: Value,
    /// The filter has the default of the shipped configuration, for a start with a policy that is refused.
    pub has_default: bool,
}

/// The access log's format in a shipped configuration of a plain Envoy.
///
/// # Panics
/// Where that file has no such log.
#[must_use]
pub fn shipped_log_format() -> Value {
    let mut bootstrap = shipped::document(&checkout::shipped("envoy.yaml")).expect("a configuration");
    let manager = shipped::http_manager(&mut bootstrap, "public").expect("a public listener");
    manager["access_log"][0]["typed_config"]["log_format"]["json_format"].clone()
}

impl Setup {
    /// One tenant's cap of 4, a pool far above it, a quick worker.
    #[must_use]
    pub fn new(threads: u32, wait: Wait) -> Self {
        let policy = json!({
            "tenant": {"sources": [{"header": "x-tenant-id"}]},
            "tenants": {"capped": {"max_in_flight": 4}},
            "lanes": [{"name": "interactive", "priority": 100}, {"name": "standard"}],
            "lane_header": "x-sluice-lane",
            "pools": [{"name": "main", "models": [format!("{MODEL}*")], "max_in_flight": 1_000}],
        });
        let worker = Config { model: MODEL.to_owned(), base_ms: 1.0, ..Config::default() };
        Self {
            threads,
            wait,
            policy,
            worker,
            faulty: false,
            code: None,
            alone: false,
            filters_before: Vec::new(),
            filters_behind: Vec::new(),
            transport_socket: None,
            more_workers: 0,
            clusters: Vec::new(),
            picker: None,
            twice: false,
            steered: false,
            virtual_hosts: bootstrap::virtual_hosts(&[]),
            buffer_limit: 1 << 20,
            neighbour: Value::Null,
            control: json!({}),
            idle_timeout: "0s",
            access_log: Value::Null,
            has_default: false,
        }
    }

    /// The same with something in the policy replaced, by JSON pointer.
    #[must_use]
    pub fn with(mut self, pointer: &str, value: Value) -> Self {
        let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
        self.policy.pointer_mut(parent).expect("a place in the policy")[field] = value;
        self
    }

    /// The same with a worker that streams for hours, and slowly enough to leave the machine to others.
    #[must_use]
    pub fn patient(mut self) -> Self {
        self.worker.base_ms = 10.0;
        self.worker.per_kv_block_us = 0.0;
        self.worker.max_model_len = 2 * ENDLESS;
        self.worker.num_gpu_blocks = 100 * ENDLESS / self.worker.block_size;
        self
    }

    /// The same setup with a new proxy, which no other test uses later.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// The same with the module that fails on command, alone: what traps takes all along that share its VM.
    #[must_use]
    pub fn faulty(mut self) -> Self {
        self.faulty = true;
        self.alone()
    }

    pub(crate) fn configuration(&self) -> Value {
        let mut policy = self.policy.clone();
        if self.wait != Wait::Unread {
            // A second pool makes the pool depend on the body.
            let pools = policy["pools"].as_array_mut().expect("pools");
            pools.push(json!({"name": "other", "models": ["other-model"], "max_in_flight": 1}));
        }
        policy["header_pause"] = json!(self.wait == Wait::AtHeaders);
        policy
    }
}
