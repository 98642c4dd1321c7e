//! The view: what the sidecar last said of the workers.
//!
//! [`ViewDocument`] is the JSON the sidecar posts, [`ViewAnswer`] what it gets back. The filter keeps the whole for the
//! state page and, per pool, a fixed-size [`ViewSummary`], which is all that a request reads to be judged, and its
//! [`Workers`], from which [`crate::endpoint`] chooses.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

mod change;
mod kv;
mod summary;
mod workers;

pub use change::changes;
pub use kv::{KvBlocks, PoolKv};
pub use summary::{Freshness, Receipt, ViewSummary};
pub use workers::{Seen, Takes, WorkerKey, Workers};

/// The only version of the document so far; another is refused, not guessed at.
pub const VIEW_VERSION: u32 = 1;

/// Highest form of documents that this build takes.
///
/// A filter of the first form refuses a document with any field beside those of the first release. From form 2 on both
/// sides pass over fields that they do not know, and an answer or a question names the form, so that a sidecar sends the
/// fields of form 2 to filters that take them.
pub const FORM: u32 = 2;

/// Form of documents that a filter takes which names none.
pub const FIRST_FORM: u32 = 1;

/// Name of a view: the epoch and the generation of its document.
pub type Stamp = (u64, u64);

/// Body of `POST /sluice/v1/view`.
///
/// ```
/// let document: admission_core::view::ViewDocument = serde_json::from_str(
///     r#"{"version":1,"epoch":1795187205000000,"generation":7,"pools":{"llama-70b":{"workers":[
///         {"address":"10.0.0.7:8000","state":"up","scraped_ms_ago":4,"busy":false,
///          "ranks":[{"rank":0,"kv_used_blocks":120,"kv_total_blocks":1024,"running":3,"waiting":0}]}]}}}"#,
/// )?;
/// assert_eq!(document.pools["llama-70b"].workers.len(), 1);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewDocument {
    /// [`VIEW_VERSION`].
    pub version: u32,
    /// Names the sidecar process: its start, as microseconds since 1970. A later start takes over from an earlier one.
    pub epoch: u64,
    /// Rises strictly with every push of one epoch.
    pub generation: u64,
    /// The generation of the same epoch that this document changes: pools and workers that it does not name stand as they
    /// did. Without one it is the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<u64>,
    /// By pool name.
    pub pools: BTreeMap<String, PoolReport>,
}

/// What is known of one pool's workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolReport {
    /// What this proxy had admitted to the pool, as last told by a [`ViewAnswer`] before the scrape began. Admissions
    /// since then are not yet in the workers' numbers, so the filter adds them.
    #[serde(default)]
    pub admitted: Admitted,
    /// Requests that this proxy held in the pool when it had admitted `admitted`. Form 2; absent where its answer had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// How full the pool is, see [`crate::saturation`]; 1 is full, and it may be more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saturation: Option<f64>,
    /// Requests that would bring `saturation` from 0 to 1, where it counts requests. Form 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_requests: Option<u64>,
    /// KV blocks that would bring `saturation` from 0 to 1, where it counts what the KV caches hold. Form 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_blocks: Option<u64>,
    /// Sequences that the live workers run concurrently, as their engines report; absent where one does not report it. Form 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// Tokens in a KV block, as the engines of the live workers report; absent where none does, or two differ. Form 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// Requests that wait in other proxies for nothing but the pool, in lanes without a dispatch budget. Form 2.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub demand_elsewhere: u64,
    /// Other proxies that have answered within the last 10 s and share the pool. Form 2.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub other_proxies: u64,
    /// Share of the pool that lanes with a dispatch budget may still fill, 0 to 1, where the sidecar measures it by
    /// itself. Absent, it is what `saturation` leaves of 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_budget: Option<f64>,
    /// Prompt tokens that a live worker may have to read and is not busy by them, the least of all; absent without a threshold. Form 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_limit: Option<u64>,
    /// Every worker of the pool, the dead ones too; in a document with a `base`, those of whom there is news.
    pub workers: Vec<WorkerReport>,
    /// In a document with a `base`: addresses of workers that the pool no longer has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
}

/// One worker, as last scraped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// `ip:port` where the worker serves requests.
    pub address: String,
    /// Whether it can be given work.
    pub state: WorkerState,
    /// Age of the numbers below when the document was sent, in milliseconds; of a worker that was never read, the sidecar's.
    pub scraped_ms_ago: u64,
    /// Why the last scrape gave no numbers, in a word; absent when it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// By the busy rule, see [`crate::saturation`].
    pub busy: bool,
    /// Which part of a request it does.
    #[serde(default, skip_serializing_if = "Role::is_both")]
    pub role: Role,
    /// True for an engine that can report its KV blocks and does not; none counts as free. Form 2.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kv_unreported: bool,
    /// KV blocks with which all its ranks would be busy, beyond those in use; absent where no number of blocks makes it busy. Form 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks_until_busy: Option<u64>,
    /// Requests that this proxy had admitted to the pool by its last [`ViewAnswer`] before the scrape of this worker began; where it is
    /// absent, the pool's count holds. Form 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admitted: Option<u64>,
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

/// Which part of a request a worker does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// All of it.
    #[default]
    Both,
    /// Reads prompts for the decoding workers of its pool, which requests are sent to.
    Prefill,
    /// Generates, from prompts that others read.
    Decode,
}

/// One data-parallel rank. A number that the engine does not report is absent, never zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Share of the KV blocks in use, 0 to 1, where an engine tells no number of blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_used_share: Option<f64>,
    /// KV blocks that a router in front of the engine believes to be in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_decode_blocks: Option<u64>,
    /// Sequences in the running batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u64>,
    /// Requests waiting inside the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
    /// Prompt tokens waiting for or in prefill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_tokens: Option<u64>,
}

/// What a proxy has admitted to a pool since it started: only ever rises, so the difference of two is what came between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admitted {
    /// Requests; one that was evicted counts once more when it ends, so that a view says whether its scrapes have seen that.
    pub requests: u64,
    /// KV blocks those requests were estimated to need.
    pub blocks: u64,
}

/// Counts of a proxy for one pool at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// All that it had admitted since it started.
    pub admitted: Admitted,
    /// Requests it held then; `None` where it did not say.
    pub held: Option<u64>,
}

/// Answer to a view that was taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ViewAnswer {
    /// As posted.
    pub epoch: u64,
    /// As posted.
    pub generation: u64,
    /// For each pool of the document, to be named in the next one.
    pub admitted: BTreeMap<String, Admitted>,
    /// Requests that the proxy held when it had admitted so much, for each pool of the document.
    // Why beside `admitted` and not in it: a sidecar of the first form refuses an answer with an unknown field in there.
    #[serde(default)]
    pub held: BTreeMap<String, u64>,
    /// Requests that wait in the proxy, for each pool of the document.
    #[serde(default)]
    pub queued: BTreeMap<String, u64>,
    /// Requests of those that wait for nothing but the pool, in lanes without a dispatch budget; absent where the filter does
    /// not count them apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<BTreeMap<String, u64>>,
    /// Pools of which policies need views, whatever the document names.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub needs: BTreeSet<String>,
    /// Highest form of documents that the filter takes.
    #[serde(default = "first_form")]
    pub form: u32,
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
    /// Nobody here holds the `base`: the whole is to follow at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_whole: bool,
}

/// Body of the question in which a proxy asks a sidecar for its view; the answer is a [`ViewDocument`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewQuestion {
    /// [`VIEW_VERSION`].
    pub version: u32,
    /// Names the proxy's process: 32 hexadecimal digits, drawn when it started.
    pub proxy: String,
    /// What the proxy has admitted, for each of its pools.
    pub admitted: BTreeMap<String, Admitted>,
    /// Requests that the proxy held when it had admitted so much, for each of its pools. Form 2.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: BTreeMap<String, u64>,
    /// Requests that wait in the proxy, for each of its pools.
    #[serde(default)]
    pub queued: BTreeMap<String, u64>,
    /// Requests of those that wait for nothing but the pool, in lanes without a dispatch budget. Form 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<BTreeMap<String, u64>>,
    /// Pools of which policies need views. Form 2.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub needs: BTreeSet<String>,
    /// The view that stands; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub have: Option<Have>,
    /// Who asks does not hold what that view says, so the answer has to be the whole.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_whole: bool,
    /// How long the answer may be kept back while there is no news, in milliseconds.
    pub wait_ms: u64,
    /// Highest form of documents that the filter takes. A sidecar of the first form refuses a question that names one.
    #[serde(default = "first_form", skip_serializing_if = "is_first_form")]
    pub form: u32,
}

/// Names a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Have {
    /// Its epoch.
    pub epoch: u64,
    /// Its generation.
    pub generation: u64,
}

impl ViewAnswer {
    /// Counts of the proxy for a pool; `None` where it does not name the pool.
    pub fn credit(&self, pool: &str) -> Option<Credit> {
        let admitted = *self.admitted.get(pool)?;
        Some(Credit { admitted, held: self.held.get(pool).copied() })
    }
}

impl ViewQuestion {
    /// The same question as a sidecar of the first form understands it.
    #[must_use]
    pub fn in_first_form(self) -> Self {
        Self { held: BTreeMap::new(), demand: None, needs: BTreeSet::new(), form: FIRST_FORM, ..self }
    }
}

impl ViewDocument {
    /// Drops the counts of workers that are above what the proxy has answered, by pool: those are of its life before a restart.
    pub fn drop_counts_above(&mut self, answered: &BTreeMap<String, Admitted>) {
        for (name, pool) in &mut self.pools {
            let most = answered.get(name).map_or(0, |admitted| admitted.requests);
            for worker in &mut pool.workers {
                worker.admitted = worker.admitted.filter(|admitted| *admitted <= most);
            }
        }
    }
}

impl PoolReport {
    /// The same report as a filter of a form understands it.
    #[must_use]
    pub fn in_form(self, form: u32) -> Self {
        if form > FIRST_FORM {
            return self;
        }
        let (demand_elsewhere, other_proxies) = (0, 0);
        let workers = self.workers.into_iter().map(|worker| WorkerReport {
            kv_unreported: false,
            blocks_until_busy: None,
            admitted: None,
            ..worker
        });
        Self {
            held: None,
            full_requests: None,
            full_blocks: None,
            batch: None,
            block_size: None,
            prefill_limit: None,
            demand_elsewhere,
            other_proxies,
            workers: workers.collect(),
            ..self
        }
    }

    /// Workers that can be given work.
    pub fn live(&self) -> impl Iterator<Item = &WorkerReport> {
        self.workers.iter().filter(|worker| worker.state == WorkerState::Up)
    }
}

#[cfg(any(test, feature = "sim"))]
impl WorkerReport {
    /// A worker that has just been scraped and is free.
    pub(crate) fn up(address: &str, ranks: Vec<RankReport>) -> Self {
        Self {
            address: address.to_owned(),
            state: WorkerState::Up,
            scraped_ms_ago: 0,
            cause: None,
            busy: false,
            role: Role::Both,
            kv_unreported: false,
            blocks_until_busy: None,
            admitted: None,
            ranks,
        }
    }
}

impl Role {
    /// Whether it reads prompts.
    pub fn prefills(self) -> bool {
        self != Self::Decode
    }

    /// Whether it generates. Requests are sent to such a worker, and stay with it the longest.
    pub fn decodes(self) -> bool {
        self != Self::Prefill
    }

    fn is_both(&self) -> bool {
        *self == Self::Both
    }
}

impl RankReport {
    /// Share of the KV blocks in use, 0 to 1: by blocks where they are known, else as the engine says.
    pub fn kv_share(&self) -> Option<f64> {
        match (self.kv_used_blocks, self.kv_total_blocks) {
            (Some(used), Some(total)) => (total > 0).then(|| used as f64 / total as f64),
            _ => self.kv_used_share,
        }
    }

    /// Share of the KV blocks that a router in front of the engine believes to be in use; may exceed 1.
    pub fn active_decode_share(&self) -> Option<f64> {
        let total = self.kv_total_blocks.filter(|total| *total > 0)?;
        Some(self.active_decode_blocks? as f64 / total as f64)
    }
}

/// Share of the KV blocks in use over all `ranks` of a worker, 0 to 1; `None` when there is no rank, or one does not say.
/// Ranks that tell shares alone count alike, whatever their size.
pub fn kv_used_share(ranks: &[RankReport]) -> Option<f64> {
    match KvBlocks::of(ranks) {
        Some(blocks) => blocks.used_share(),
        None => {
            let sum = ranks.iter().try_fold(0.0, |sum, rank| Some(sum + rank.kv_share()?))?;
            (!ranks.is_empty()).then(|| sum / ranks.len() as f64)
        }
    }
}

fn first_form() -> u32 {
    FIRST_FORM
}

fn is_first_form(form: &u32) -> bool {
    *form == FIRST_FORM
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
