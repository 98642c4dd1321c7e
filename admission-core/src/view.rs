//! The view: what the sidecar last said of the workers.
//!
//! [`ViewDocument`] is the JSON the sidecar posts, [`ViewAnswer`] what it gets back. The filter keeps the whole for the
//! state page and, per pool, a fixed-size [`ViewSummary`], which is all that a request reads to be judged, and its
//! [`Workers`], from which [`crate::endpoint`] chooses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod summary;
mod workers;

pub use summary::{Freshness, KvBlocks, ViewSummary};
pub use workers::{Seen, WorkerKey, Workers};

/// The only version of the document so far; another is refused, not guessed at.
pub const VIEW_VERSION: u32 = 1;

/// Body of `POST /sluice/v1/view`.
///
/// ```
/// let document: admission_core::view::ViewDocument = serde_json::from_str(
///     r#"{"version":1,"epoch":1795187205000,"generation":7,"pools":{"llama-70b":{"workers":[
///         {"address":"10.0.0.7:8000","state":"up","scraped_ms_ago":4,"busy":false,
///          "ranks":[{"rank":0,"kv_used_blocks":120,"kv_total_blocks":1024,"running":3,"waiting":0}]}]}}}"#,
/// )?;
/// assert_eq!(document.pools["llama-70b"].workers.len(), 1);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewDocument {
    /// [`VIEW_VERSION`].
    pub version: u32,
    /// Names the sidecar process: its start, as milliseconds since 1970. A later start takes over from an earlier one.
    pub epoch: u64,
    /// Rises strictly with every push of one epoch.
    pub generation: u64,
    /// By pool name.
    pub pools: BTreeMap<String, PoolReport>,
}

/// What is known of one pool's workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolReport {
    /// What this proxy had admitted to the pool, as last told by a [`ViewAnswer`] before the scrape began. Admissions
    /// since then are not yet in the workers' numbers, so the filter adds them.
    #[serde(default)]
    pub admitted: Admitted,
    /// How full the pool is, see [`crate::saturation`]; 1 is full, and it may be more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saturation: Option<f64>,
    /// Every worker of the pool, the dead ones too.
    pub workers: Vec<WorkerReport>,
}

/// One worker, as last scraped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerReport {
    /// `ip:port` where the worker serves requests.
    pub address: String,
    /// Whether it can be given work.
    pub state: WorkerState,
    /// Age of the numbers below when the document was sent, in milliseconds.
    pub scraped_ms_ago: u64,
    /// By the busy rule, see [`crate::saturation`].
    pub busy: bool,
    /// One entry a data-parallel rank; empty while nothing has been scraped.
    #[serde(default)]
    pub ranks: Vec<RankReport>,
}

/// Whether a worker can be given work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// Its metrics answer.
    Up,
    /// It finishes what it has and takes nothing new.
    Draining,
    /// It has not answered for longer than the sidecar's patience.
    Down,
}

/// One data-parallel rank. A number that the engine does not report is absent, never zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankReport {
    /// Number of the rank within its worker.
    #[serde(default)]
    pub rank: u32,
    /// KV blocks in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_used_blocks: Option<u64>,
    /// KV blocks there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_total_blocks: Option<u64>,
    /// Sequences in the running batch.
    #[serde(default)]
    pub running: u64,
    /// Requests waiting inside the engine.
    #[serde(default)]
    pub waiting: u64,
    /// Prompt tokens waiting for or in prefill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_tokens: Option<u64>,
}

/// What a proxy has admitted to a pool since it started: only ever rises, so the difference of two is what came between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admitted {
    /// Requests.
    pub requests: u64,
    /// KV blocks those requests were estimated to need.
    pub blocks: u64,
}

/// Answer to a view that was taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewAnswer {
    /// As posted.
    pub epoch: u64,
    /// As posted.
    pub generation: u64,
    /// For each pool of the document, to be named in the next one.
    pub admitted: BTreeMap<String, Admitted>,
}

/// Answer to a view that was refused; with status 409 it says what stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ViewRefusal {
    /// What was wrong and what to do.
    pub error: String,
    /// Epoch of the view that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Generation of the view that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

impl PoolReport {
    /// Workers that can be given work.
    pub fn live(&self) -> impl Iterator<Item = &WorkerReport> {
        self.workers.iter().filter(|worker| worker.state == WorkerState::Up)
    }
}
