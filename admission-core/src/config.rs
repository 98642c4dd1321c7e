//! The configuration as an operator writes it: shapes and defaults, no judgement. [`crate::policy`] validates it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::outcome::Reason;
use crate::problem::Problem;
use crate::units::Millis;

mod lanes;
mod limits;
mod pools;
mod queues;
#[cfg(feature = "schema")]
mod schema;
mod text;
mod view;

pub use lanes::{
    ApiConfig, LaneConfig, LaneRuleConfig, ReserveConfig, ReserveTerms, RouteConfig, RouteMatchConfig, Upgrades,
};
pub use limits::{BurstyRate, LimitsConfig, OnRate, RateConfig, TenantLimitsConfig};
pub use pools::{ClassConfig, EstimateConfig, KvConfig, OutputEstimate, PoolConfig, StaleConfig, StalePolicy};
pub use queues::{AgingConfig, BudgetUnit, DispatchBudgetConfig, Order, PoolQueueConfig, QueueConfig};
#[cfg(feature = "schema")]
pub use schema::schema;
pub use view::{PullConfig, Secret, ViewConfig};

/// A plugin configuration of either role.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = schema::by_role))]
#[serde(untagged)]
pub enum PluginConfig {
    /// Decides on requests.
    Filter(Box<Config>),
    /// Serves the control listener.
    Control(ControlConfig),
}

/// Configuration of the filter.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Always `filter`; may be left out.
    #[serde(default)]
    pub role: FilterRole,
    /// Whether decisions bind.
    #[serde(default)]
    pub mode: Mode,
    /// Prefix of every shared key. Plugins of one namespace share their counts; another namespace starts with none.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// `true` only where the proxy sets `allow_on_headers_stop_iteration` for this filter. Set without it, requests that
    /// wait at their headers wait for ever.
    #[serde(default)]
    pub header_pause: bool,
    /// Who sends a request.
    #[serde(default)]
    pub tenant: TenantConfig,
    /// Proxies in front of this one whose headers of ours count as the platform's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_tags_from: Option<TrustConfig>,
    /// Named limits that tenants and routes refer to.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tiers: BTreeMap<String, LimitsConfig>,
    /// Limits by tenant; `*` is everybody else, each with caps and budgets of its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tenants: BTreeMap<String, TenantLimitsConfig>,
    /// Priority bands, highest first. None means one lane, `default`, of priority 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<LaneConfig>,
    /// Lane of a request that nothing gives one; the last one if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_lane: Option<String>,
    /// Request header in which a caller may ask for a lane; it gets none above its `max_lane`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane_header: Option<String>,
    /// Request header whose value names a user or program of the tenant: within a tenant, those that wait take turns by it, in 16
    /// parts by its hash. Where it is one of llm-d's, `x-llm-d-inference-fairness-id` or `x-gateway-inference-fairness-id`, the other one
    /// is read for requests without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fairness_header: Option<String>,
    /// Lanes by the objective that a caller names in `x-llm-d-inference-objective` or `x-gateway-inference-objective`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub objectives: BTreeMap<String, String>,
    /// The first that fits gives its lane to a request that nothing else gives one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lane_rules: Vec<LaneRuleConfig>,
    /// Writes the lane's priority into chat and completions bodies as vLLM's `priority`, where a lower number is served
    /// first. Needs `header_pause` and workers that schedule by priority. A body above `body.hold_limit` goes without it, or
    /// is refused if it names one of its own.
    #[serde(default)]
    pub tag_body: bool,
    /// Asks the worker to report usage at the end of streamed chats and completions (`stream_options.include_usage`) where the
    /// caller does not, and takes that report out of the answer again, so that every stream is settled exactly. Needs
    /// `header_pause`. A stream whose body is above `body.hold_limit` is settled by what was seen of it.
    #[serde(default)]
    pub force_usage: bool,
    /// Owner of the choice of a worker, which the headers `x-gateway-destination-endpoint*` carry.
    #[serde(default)]
    pub endpoint_picker: EndpointPicker,
    /// Where requests may go; at least one.
    pub pools: Vec<PoolConfig>,
    /// What differs on some routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteConfig>,
    /// Where what is known of the workers comes from.
    #[serde(default)]
    pub view: ViewConfig,
    /// How request bodies are read.
    #[serde(default)]
    pub body: BodyConfig,
    /// What a refusal says.
    #[serde(default)]
    pub reject: RejectConfig,
}

impl Config {
    /// Fields that are still read in a form which goes with the next release.
    #[must_use]
    pub fn outdated(&self) -> Vec<Problem> {
        let lanes = self.lanes.iter().enumerate();
        lanes.filter_map(|(index, lane)| lanes::outdated(&format!("lanes[{index}]"), lane)).collect()
    }

    /// Places where the configuration says `mode: shadow`, each with the route or the name that it is said of.
    #[must_use]
    pub fn shadows(&self) -> Vec<String> {
        let is_shadow = |mode: Option<Mode>| mode == Some(Mode::Shadow);
        let whole = (self.mode == Mode::Shadow).then(|| "mode".to_owned());
        let routes = self.routes.iter().enumerate().filter(|(_, route)| is_shadow(route.mode));
        let named = |route: &RouteConfig| route.matches.as_ref().map(RouteMatchConfig::named).unwrap_or_default();
        let routes = routes.map(|(index, route)| format!("routes[{index}]{}", named(route)));
        let tiers = self.tiers.iter().filter(|(_, tier)| is_shadow(tier.mode)).map(|(name, _)| format!("tiers.{name}"));
        let tenants = self.tenants.iter().filter(|(_, tenant)| is_shadow(tenant.mode));
        let tenants = tenants.map(|(name, _)| format!("tenants.{name}"));
        whole.into_iter().chain(routes).chain(tiers).chain(tenants).collect()
    }

    /// The lack of limits of tenants that are not listed, where others have some.
    #[must_use]
    pub fn unlimited(&self) -> Option<Problem> {
        let limits = |limits: &LimitsConfig| {
            let caps = limits.max_in_flight.is_some() || limits.max_tokens_in_flight.is_some();
            caps || limits.requests_per_minute.is_some() || limits.tokens_per_minute.is_some()
        };
        let of_tier = |tenant: &TenantLimitsConfig| tenant.tier.as_ref().and_then(|tier| self.tiers.get(tier));
        let is_limited = |tenant: &TenantLimitsConfig| limits(&tenant.own()) || of_tier(tenant).is_some_and(limits);
        let message = "those that it does not list have no limit, while others have: give `\"*\"` some, or `\"*\": {}` to leave it so";
        let unlimited = !self.tenants.contains_key("*") && self.tenants.values().any(is_limited);
        unlimited.then(|| Problem::new("tenants", message))
    }
}

/// Configuration of the control listener.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ControlConfig {
    /// Always `control`.
    pub role: ControlRole,
    /// That of the filter it serves.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// SHA-256 of the bearer token, as 64 hexadecimal digits: `printf %s "$TOKEN" | sha256sum`.
    pub token_sha256: String,
    /// Age at which the standing view may be replaced by that of any other sidecar.
    #[serde(default = "default_hold", with = "text::duration")]
    #[cfg_attr(feature = "schema", schemars(with = "text::Duration"))]
    pub hold: Millis,
    /// Largest view taken, more than 0. The listener must be able to buffer it: `per_connection_buffer_limit_bytes` ≥ this.
    #[serde(default = "default_max_view", with = "text::size")]
    #[cfg_attr(feature = "schema", schemars(with = "text::Size"))]
    pub max_view: u64,
}

/// Owner of the choice of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EndpointPicker {
    /// The filter chooses, for pools that say `pick_endpoint`. Others' headers are taken off.
    #[default]
    Ours,
    /// An endpoint picker (InferencePool, llm-d) in the same chain of filters chooses. Its headers stay and never count as a caller's, so a
    /// caller's own have to be taken off before both. It is sent the tenant as fairness id, and the lane as objective.
    Theirs,
    /// The proxy chooses. The headers are taken off, and no pool may say `pick_endpoint`.
    None,
}

/// The role `filter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FilterRole {
    /// Decides on requests.
    #[default]
    Filter,
}

/// The role `control`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ControlRole {
    /// Takes views and shows the state.
    Control,
}

/// Whether decisions bind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// What is refused is refused.
    #[default]
    Enforce,
    /// What would be refused is counted and told, and goes on.
    Shadow,
}

/// Peers whose headers are believed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TrustConfig {
    /// SPIFFE identities in their certificates; a trailing `*` matches any ending. The listener must validate client certificates.
    pub spiffe: Vec<String>,
}

/// Where a tenant's name comes from.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TenantConfig {
    /// The first that yields a name wins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<TenantSource>,
    /// The tenant of a request that no source names.
    #[serde(default = "default_tenant")]
    pub default: String,
    /// Sources of the name of a tier, whose limits a tenant has that a source names and that `tenants` does not; the first that yields one of
    /// `tiers` wins. Each is `metadata` or a `header`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tier_sources: Vec<TenantSource>,
}

/// One source of a tenant's name: exactly one of its fields.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TenantSource {
    /// What an authentication filter left in the request's dynamic metadata: its namespace, then keys, such as
    /// `["envoy.filters.http.jwt_authn", "payload", "tenant"]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Vec<String>>,
    /// A URI in the caller's certificate, such as its SPIFFE identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateSource>,
    /// A request header that the proxy itself sets or strips, so that callers cannot choose it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// A key that callers hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<ApiKeySource>,
}

/// Which part of a certificate's URI names the tenant.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CertificateSource {
    /// What the URI must begin with, such as `spiffe://cluster.local/ns/`; the name is the segment that follows. Without it
    /// the whole of the first URI is the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Keys that callers hold.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ApiKeySource {
    /// The request header they come in, such as `authorization`.
    pub header: String,
    /// What stands before the key in that header, such as `Bearer ` with its space.
    #[serde(default)]
    pub prefix: String,
    /// Tenants by the SHA-256 of their key, as 64 hexadecimal digits: `printf %s "$KEY" | sha256sum`. The key itself is
    /// nowhere.
    pub sha256: BTreeMap<String, String>,
}

/// How request bodies are read.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BodyConfig {
    /// Most bytes held back while a request is undecided, more than 0; beyond it a request is decided by what was seen. The
    /// proxy must be able to hold that and one read of the connection more: the route's `request_body_buffer_limit` ≥ this +
    /// the listener's `per_connection_buffer_limit_bytes`.
    #[serde(default = "default_hold_limit", with = "text::size")]
    #[cfg_attr(feature = "schema", schemars(with = "text::Size"))]
    pub hold_limit: u64,
}

/// What a refusal says.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RejectConfig {
    /// Other statuses than the defaults, 400 to 599, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = {"$ref": "#/$defs/Reason"})))]
    pub status: BTreeMap<Reason, u16>,
    /// When a refused caller is told to come back.
    #[serde(default)]
    pub retry_after: RetryAfterConfig,
    /// URL where requests that can never fit may be sent instead; named in their 413.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_url: Option<String>,
}

/// When a refused caller is told to come back.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RetryAfterConfig {
    /// Never less than this, which is also said when nothing has been measured yet.
    #[serde(default = "default_retry_min", with = "text::duration")]
    #[cfg_attr(feature = "schema", schemars(with = "text::Duration"))]
    pub min: Millis,
    /// Never more than this; at least `min`.
    #[serde(default = "default_retry_max", with = "text::duration")]
    #[cfg_attr(feature = "schema", schemars(with = "text::Duration"))]
    pub max: Millis,
    /// The advice is lengthened by a random part of up to this, 0 to 1, so that callers do not come back together.
    #[serde(default = "default_retry_jitter")]
    pub jitter: f64,
}

impl Default for TenantConfig {
    fn default() -> Self {
        Self { sources: Vec::new(), default: default_tenant(), tier_sources: Vec::new() }
    }
}

impl Default for BodyConfig {
    fn default() -> Self {
        Self { hold_limit: default_hold_limit() }
    }
}

impl Default for RetryAfterConfig {
    fn default() -> Self {
        Self { min: default_retry_min(), max: default_retry_max(), jitter: default_retry_jitter() }
    }
}

fn default_namespace() -> String {
    "sluice".to_owned()
}

fn default_tenant() -> String {
    "anonymous".to_owned()
}

const fn default_hold() -> Millis {
    Millis(5_000)
}

const fn default_max_view() -> u64 {
    4 << 20
}

const fn default_hold_limit() -> u64 {
    1 << 20
}

const fn default_retry_min() -> Millis {
    Millis(1_000)
}

const fn default_retry_jitter() -> f64 {
    0.2
}

const fn default_retry_max() -> Millis {
    Millis(30_000)
}
