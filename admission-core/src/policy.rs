//! A configuration that has been checked, in the form decisions read.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::config::{EndpointPicker, Mode, PluginConfig, PullConfig, RetryAfterConfig};
use crate::identity::Source;
use crate::keys::Keys;
use crate::ledger::SubFlow;
use crate::outcome::Reason;
use crate::problem::Problem;
use crate::units::Millis;

mod build;
mod fingerprint;
mod lane;
mod limits;
mod pool;
mod route;
#[cfg(test)]
mod tests;

use lane::{LaneRule, first_rule};
use route::RouteRule;

pub use lane::{Aging, BudgetUnit, Ceiling, DispatchBudget, Lane, Lanes, Order, PromptsWithin, QueueLimits, Reserve};
pub use limits::{Cap, Limits};
pub use pool::{BlockShare, Class, Fallback, Pool, PoolQueue, Stale};
pub use route::{Place, Route};

pub(crate) use lane::RuleSays;

/// A checked plugin configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum Plugin {
    /// The filter.
    Filter(Box<Policy>),
    /// The control listener.
    Control(Control),
}

/// What the control listener enforces.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// As configured; names the VM's state.
    pub namespace: String,
    /// Fingerprint of the configuration, the same for every way of writing it.
    pub fingerprint: String,
    /// Places of the configuration that say `mode: shadow`.
    pub shadows: Vec<String>,
    /// Names of the records.
    pub keys: Keys,
    /// Whether decisions bind where nothing more specific says so.
    pub mode: Mode,
    /// The proxy lets body callbacks run while headers are held.
    pub header_pause: bool,
    /// What may name the tenant, first match wins.
    pub tenant_sources: Vec<Source>,
    /// Sources of the name of a tier for tenants that are not listed.
    pub tier_sources: Vec<Source>,
    /// Of a request that none of them names.
    pub default_tenant: String,
    /// SPIFFE identities of peers whose headers of ours are the platform's; a trailing `*` matches any ending.
    pub trusted_peers: Vec<String>,
    /// Limits of tenants that are not listed, where they have none while others have.
    pub unlimited: Option<Problem>,
    /// Header in which a caller may ask for a lane.
    pub lane_header: Option<String>,
    /// Headers that name a part of the tenant's requests, the one that is asked first before the next; none where nothing parts them.
    pub fairness_headers: Vec<String>,
    /// Owner of the choice of a worker.
    pub endpoint_picker: EndpointPicker,
    /// The lane's priority is written into bodies.
    pub tag_body: bool,
    /// Workers are asked for the usage of every stream.
    pub force_usage: bool,
    /// Most bytes held back while a request is undecided.
    pub hold_limit: u64,
    /// How a sidecar is asked for the view, if it is.
    pub pull: Option<PullConfig>,
    /// What a refusal says.
    pub reject: Reject,
    /// Fields of the configuration in a form that goes with the next release, for the log.
    pub outdated: Vec<Problem>,
    lanes: Arc<Lanes>,
    objectives: BTreeMap<String, usize>,
    lane_rules: Vec<LaneRule>,
    pools: Vec<Arc<Pool>>,
    tiers: BTreeMap<String, Arc<Limits>>,
    tiers_by_source: BTreeMap<String, Arc<Limits>>,
    tenants: BTreeMap<String, Arc<Limits>>,
    everybody_else: Arc<Limits>,
    /// The most general first.
    routes: Vec<RouteRule>,
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

/// Longer names would make records and header values that proxies refuse.
const MAX_NAME: usize = 128;

/// Whether a text may name a pool, a lane or a tier.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(allowed)
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
            PluginConfig::Filter(config) => {
                let mut policy = build::policy(&config, &mut problems);
                policy.fingerprint = fingerprint::of(json);
                Some(Self::Filter(Box::new(policy)))
            }
            PluginConfig::Control(config) => build::control(&config, &mut problems).map(Self::Control),
        });
        match plugin {
            Some(plugin) if problems.is_empty() => Ok(plugin),
            _ => Err(problems),
        }
    }
}

impl Policy {
    /// The pool that every request goes to first, where only one takes models.
    #[must_use]
    pub fn only_pool(&self) -> Option<&Arc<Pool>> {
        let mut pools = self.pools.iter().filter(|pool| !pool.fallback_only);
        pools.next().filter(|_| pools.next().is_none())
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

    /// The pool of a name.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    /// Every pool.
    pub fn pools(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.pools.iter()
    }

    /// Every tenant with limits of its own.
    pub fn tenant_names(&self) -> impl Iterator<Item = &str> {
        self.tenants.keys().map(String::as_str)
    }

    /// Limits of a tenant for which no source names a tier.
    #[must_use]
    pub fn limits(&self, tenant: &str) -> &Arc<Limits> {
        self.limits_in(tenant, None)
    }

    /// Limits of a tenant, given what a source of its tier says: its own entry's, else those of that tier, else of everybody else.
    #[must_use]
    pub fn limits_in(&self, tenant: &str, tier: Option<&str>) -> &Arc<Limits> {
        let of_tier = || self.tiers_by_source.get(tier?);
        self.tenants.get(tenant).or_else(of_tier).unwrap_or(&self.everybody_else)
    }

    /// Says whether a tenant's limits depend on what the sources of its tier say.
    #[must_use]
    pub fn asks_for_tier(&self, tenant: &str) -> bool {
        !self.tier_sources.is_empty() && !self.tenants.contains_key(tenant)
    }

    /// Says whether a tier has this name.
    #[must_use]
    pub fn has_tier(&self, name: &str) -> bool {
        self.tiers.contains_key(name)
    }

    /// Place of the ledger in which a tenant is counted.
    #[must_use]
    pub fn tenant_key(&self, name: &str) -> String {
        if self.tenants.contains_key(name) { self.keys.tenant(name) } else { self.keys.unnamed_tenant(name) }
    }

    /// What the configuration says of a route, under what the route's own metadata says.
    #[must_use]
    pub fn route(&self, place: Place<'_>, metadata: Route) -> Route {
        let own = if place.spoofed { metadata.narrowed() } else { metadata };
        let fitting = self.routes.iter().rev().filter(|rule| rule.fits(place));
        fitting.fold(own, |route, rule| route.over(rule.of(place)))
    }

    /// Whether decisions look at names of routes or virtual hosts, which the proxy is then to be asked for.
    #[must_use]
    pub fn names_routes(&self) -> bool {
        self.routes.iter().any(|rule| rule.route_name.is_some() || rule.virtual_host.is_some())
    }

    /// Reads what a route's own metadata says.
    ///
    /// # Errors
    /// Every problem, with its place in the metadata.
    pub fn route_of_metadata(&self, metadata: Value) -> Result<Route, Vec<Problem>> {
        build::route_of_metadata(self, metadata)
    }

    /// Says whether headers of ours that a peer with such a certificate sends are the platform's.
    #[must_use]
    pub fn trusts(&self, uri: &str) -> bool {
        self.trusted_peers.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(beginning) => uri.starts_with(beginning),
            None => uri == pattern,
        })
    }

    /// Index of the lane that a name stands for.
    pub(crate) fn lane_named(&self, name: &str) -> Option<usize> {
        self.lanes.position(name)
    }

    /// Part of its tenant's requests that a request belongs to, given what its fairness header says; those without one make a part, too.
    /// `None` where the policy reads no such header.
    #[must_use]
    pub fn sub_flow(&self, key: Option<&[u8]>) -> Option<SubFlow> {
        (!self.fairness_headers.is_empty()).then(|| SubFlow::of(key.unwrap_or_default()))
    }

    /// Index of the lane of an objective.
    pub(crate) fn lane_of_objective(&self, objective: &str) -> Option<usize> {
        self.objectives.get(objective).copied()
    }

    /// What the rules say; `model` is `None` before the body has been read.
    pub(crate) fn rule_says(&self, path: &str, model: Option<Option<&str>>) -> RuleSays {
        first_rule(&self.lane_rules, path, model)
    }

    /// The lane at an index, or the default one, but none above `highest`.
    pub(crate) fn lane_at(&self, index: Option<usize>, highest: usize) -> &Arc<Lane> {
        self.lanes.at(index.unwrap_or(self.lanes.default).max(highest))
    }

    /// The lanes in their order.
    #[must_use]
    pub const fn line_up(&self) -> &Arc<Lanes> {
        &self.lanes
    }

    /// Every lane, highest first.
    pub fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().map(Arc::as_ref)
    }
}

impl Reject {
    /// HTTP status of a refusal.
    #[must_use]
    pub fn status(&self, reason: Reason) -> u16 {
        self.status.get(&reason).copied().unwrap_or(reason.status())
    }
}
