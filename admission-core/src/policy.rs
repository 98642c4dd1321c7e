//! A configuration that has been checked, in the form decisions read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::budget::Rates;
use crate::config::{PluginConfig, RetryAfterConfig, StalePolicy};
use crate::identity::Source;
use crate::keys::{Keys, shared_slot};
use crate::ledger::LaneKey;
use crate::outcome::Reason;
use crate::problem::Problem;
use crate::units::{Millis, Tokens};

mod build;
#[cfg(test)]
mod tests;

/// A checked plugin configuration.
#[derive(Clone, Debug)]
pub enum Plugin {
    /// The filter.
    Filter(Box<Policy>),
    /// The control listener.
    Control(Control),
}

/// What the control listener enforces.
#[derive(Clone, Debug)]
pub struct Control {
    /// Names of the records.
    pub keys: Keys,
    /// Of the bearer token.
    pub token_sha256: [u8; 32],
    /// Age at which the current view may be replaced by that of any other sidecar.
    pub hold: Millis,
    /// Largest view taken, in bytes.
    pub max_view: u64,
}

/// What the filter enforces.
#[derive(Clone, Debug)]
pub struct Policy {
    /// As configured; names the VM's state.
    pub namespace: String,
    /// Names of the records.
    pub keys: Keys,
    /// The proxy lets body callbacks run while headers are held.
    pub header_pause: bool,
    /// What may name the tenant, first match wins.
    pub tenant_sources: Vec<Source>,
    /// Of a request that none of them names.
    pub default_tenant: String,
    /// Header in which a caller may ask for a lane.
    pub lane_header: Option<String>,
    /// Most bytes held back while a request is undecided.
    pub hold_limit: u64,
    /// What a refusal says.
    pub reject: Reject,
    lanes: Lanes,
    pools: Vec<Arc<Pool>>,
    tenants: BTreeMap<String, Limits>,
    everybody_else: Limits,
}

/// What a refusal says.
#[derive(Clone, Debug, PartialEq)]
pub struct Reject {
    status: BTreeMap<Reason, u16>,
    /// When a refused caller is told to come back.
    pub retry_after: RetryAfterConfig,
    /// Where requests that can never fit may be sent instead.
    pub batch_url: Option<String>,
}

/// A named priority band.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// As configured.
    pub name: String,
    /// In records.
    pub key: LaneKey,
    /// Higher is served first.
    pub priority: i32,
}

/// A limit and its place in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cap {
    /// In the unit of whatever is limited.
    pub limit: u64,
    /// Such as `tiers.free.max_in_flight`.
    pub knob: Arc<str>,
}

/// What a tenant may hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests in flight.
    pub requests: Option<Cap>,
    /// Tokens in flight.
    pub tokens: Option<Cap>,
    /// Of requests and tokens for each minute.
    pub rates: Arc<Rates>,
    /// Index of the highest lane a caller may ask for.
    max_lane: usize,
}

/// Named priority bands, highest first; there is always one.
#[derive(Clone, Debug)]
struct Lanes {
    highest: Lane,
    others: Vec<Lane>,
    default: usize,
}

impl Lanes {
    fn iter(&self) -> impl Iterator<Item = &Lane> {
        std::iter::once(&self.highest).chain(&self.others)
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.iter().position(|lane| lane.name == name)
    }

    /// The lane at a position; the lowest for one beyond.
    fn at(&self, position: usize) -> &Lane {
        match position.checked_sub(1) {
            None => &self.highest,
            Some(place) => self.others.get(place).or(self.others.last()).unwrap_or(&self.highest),
        }
    }
}

/// Workers that serve the same models.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// As configured.
    pub name: String,
    /// Name of the pool's record.
    pub key: Arc<str>,
    /// Name of the pool's view summary.
    pub view_key: Arc<str>,
    models: Vec<ModelPattern>,
    /// Requests in flight.
    pub max_in_flight: Option<Cap>,
    /// Requests in flight for each live worker.
    pub max_in_flight_per_worker: Option<Cap>,
    /// Of requests for each second.
    pub rates: Arc<Rates>,
    /// Prompt and output tokens of one request.
    pub max_model_len: Option<Cap>,
    /// Prompt tokens of one request.
    pub max_prompt_tokens: Option<Cap>,
    /// Output expected of a request that asks for more, or sets no limit.
    pub expected_output: Tokens,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// Share of KV blocks never given out; `None` when requests are not fitted into blocks.
    pub headroom: Option<Headroom>,
    /// What to do when the view is old or missing.
    pub stale: Stale,
    /// What a refusal names when all workers are busy: the sidecar's thresholds decide that.
    pub busy_knob: Arc<str>,
}

/// What to do when the view is old or missing.
#[derive(Clone, Debug, PartialEq)]
pub struct Stale {
    /// Age up to which the last view is believed.
    pub hold: Millis,
    /// Such as `pools[llama].stale.hold`.
    pub knob: Arc<str>,
    /// What comes after.
    pub then: StalePolicy,
}

/// Share of all KV blocks that is never given out.
#[derive(Clone, Debug, PartialEq)]
pub struct Headroom {
    /// 0 to 1.
    pub share: f64,
    /// Such as `pools[llama].kv.headroom`.
    pub knob: Arc<str>,
}

/// Longer names would make records and header values that proxies refuse.
const MAX_NAME: usize = 128;

/// Whether a text may name a pool, a lane or a tier.
pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(allowed)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ModelPattern {
    Exact(String),
    Prefix(String),
}

impl Plugin {
    /// Reads and checks a plugin configuration.
    ///
    /// # Errors
    /// Every problem, each with its place. An absent or empty configuration is one problem.
    ///
    /// ```
    /// use admission_core::policy::Plugin;
    ///
    /// assert!(Plugin::parse(br#"{"pools": [{"name": "llama", "max_in_flight": 48}]}"#).is_ok());
    /// let problems = Plugin::parse(br#"{"pool": [], "pools": [{"name": "llama", "max_in_flight": "48"}]}"#).unwrap_err();
    /// assert_eq!(problems.len(), 2);
    /// ```
    pub fn parse(json: &[u8]) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let read = PluginConfig::read(json, &mut problems);
        let plugin = read.and_then(|config| match config {
            PluginConfig::Filter(config) => Some(Self::Filter(Box::new(build::policy(&config, &mut problems)))),
            PluginConfig::Control(config) => build::control(&config, &mut problems).map(Self::Control),
        });
        match plugin {
            Some(plugin) if problems.is_empty() => Ok(plugin),
            _ => Err(problems),
        }
    }
}

impl Policy {
    /// The pool every request goes to, where there is only one.
    #[must_use]
    pub fn only_pool(&self) -> Option<&Arc<Pool>> {
        match self.pools.as_slice() {
            [pool] => Some(pool),
            _ => None,
        }
    }

    /// The pool that serves a model: by its exact name before the longest matching beginning.
    #[must_use]
    pub fn pool_for(&self, model: &str) -> Option<&Arc<Pool>> {
        let matches = self.pools.iter().filter_map(|pool| pool.match_strength(model).map(|strength| (strength, pool)));
        // `max_by_key` would take the last of equals; the first one configured is what a reader expects.
        matches
            .fold(None, |best, next| if best.is_none_or(|(strength, _)| next.0 > strength) { Some(next) } else { best })
            .map(|(_, pool)| pool)
    }

    /// Every pool.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().map(Arc::as_ref)
    }

    /// Every tenant with limits of its own.
    pub fn tenant_names(&self) -> impl Iterator<Item = &str> {
        self.tenants.keys().map(String::as_str)
    }

    /// What a tenant may hold.
    #[must_use]
    pub fn limits(&self, tenant: &str) -> &Limits {
        self.tenants.get(tenant).unwrap_or(&self.everybody_else)
    }

    /// Name of the record a tenant is counted in: its own if configured, else that of its shared slot.
    #[must_use]
    pub fn tenant_key(&self, name: &str) -> String {
        if self.tenants.contains_key(name) {
            self.keys.tenant(name)
        } else {
            self.keys.shared_tenant(shared_slot(name.as_bytes()))
        }
    }

    /// The lane a request gets: the one it asks for, but none above what its tenant may use.
    #[must_use]
    pub fn lane(&self, asked: Option<&str>, limits: &Limits) -> &Lane {
        let asked = asked.and_then(|name| self.lanes.position(name));
        self.lanes.at(asked.unwrap_or(self.lanes.default).max(limits.max_lane))
    }

    /// Every lane, highest first.
    pub fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter()
    }
}

impl Reject {
    /// HTTP status of a refusal.
    #[must_use]
    pub fn status(&self, reason: Reason) -> u16 {
        self.status.get(&reason).copied().unwrap_or(reason.status())
    }
}

impl Pool {
    /// How well the pool's patterns fit: `None` not at all, more is better.
    fn match_strength(&self, model: &str) -> Option<usize> {
        if self.models.is_empty() {
            return Some(0);
        }
        self.models.iter().filter_map(|pattern| pattern.strength(model)).max()
    }

    /// Whether the pool serves a model.
    #[must_use]
    pub fn serves(&self, model: &str) -> bool {
        self.match_strength(model).is_some()
    }
}

impl ModelPattern {
    fn parse(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(prefix) => Self::Prefix(prefix.to_owned()),
            None => Self::Exact(text.to_owned()),
        }
    }

    fn strength(&self, model: &str) -> Option<usize> {
        match self {
            Self::Exact(name) => (name == model).then_some(usize::MAX),
            Self::Prefix(prefix) => model.starts_with(prefix.as_str()).then_some(prefix.len()),
        }
    }
}
