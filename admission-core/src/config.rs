//! The configuration as an operator writes it: shapes and defaults, no judgement. [`crate::policy`] validates it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use crate::outcome::Reason;
use crate::units::Millis;

/// A plugin configuration of either role.
#[derive(Clone, Debug, PartialEq)]
pub enum PluginConfig {
    /// Decides on requests.
    Filter(Box<Config>),
    /// Serves the control listener.
    Control(ControlConfig),
}

/// Configuration of the filter.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Always `filter`; may be left out.
    #[serde(default)]
    pub role: FilterRole,
    /// Prefix of every shared key. Plugins of one namespace share their counts.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// True only where the proxy sets `allow_on_headers_stop_iteration` for this filter.
    #[serde(default)]
    pub header_pause: bool,
    /// Who sends a request.
    #[serde(default)]
    pub tenant: TenantConfig,
    /// Named limits that tenants refer to.
    #[serde(default)]
    pub tiers: BTreeMap<String, LimitsConfig>,
    /// Limits by tenant; `*` is everybody else.
    #[serde(default)]
    pub tenants: BTreeMap<String, TenantLimitsConfig>,
    /// Highest first. None means one lane, `default`, of priority 0.
    #[serde(default)]
    pub lanes: Vec<LaneConfig>,
    /// Lane of a request that asks for none; the last one if not given.
    pub default_lane: Option<String>,
    /// Request header in which a caller may ask for a lane.
    pub lane_header: Option<String>,
    /// At least one.
    pub pools: Vec<PoolConfig>,
    /// How request bodies are read.
    #[serde(default)]
    pub body: BodyConfig,
    /// What a refusal says.
    #[serde(default)]
    pub reject: RejectConfig,
}

/// Configuration of the control listener.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlConfig {
    /// Always `control`.
    pub role: ControlRole,
    /// That of the filter it serves.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// SHA-256 of the bearer token, as 64 hexadecimal digits.
    pub token_sha256: String,
    /// Age at which the current view may be replaced by that of any other sidecar.
    #[serde(default = "default_hold", deserialize_with = "duration")]
    pub hold: Millis,
    /// Largest view taken.
    #[serde(default = "default_max_view", deserialize_with = "size")]
    pub max_view: u64,
}

/// The role `filter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterRole {
    /// Decides on requests.
    #[default]
    Filter,
}

/// The role `control`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlRole {
    /// Takes views and shows the state.
    Control,
}

/// Where a tenant's name comes from.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantConfig {
    /// The first that yields a name wins.
    #[serde(default)]
    pub sources: Vec<TenantSource>,
    /// The tenant of a request that none names.
    #[serde(default = "default_tenant")]
    pub default: String,
}

/// One source of a tenant's name: exactly one of its fields.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TenantSource {
    /// What an authentication filter left in the request's dynamic metadata: its namespace, then keys.
    pub metadata: Option<Vec<String>>,
    /// A URI in the caller's certificate, such as its SPIFFE identity.
    pub certificate: Option<CertificateSource>,
    /// A request header that the proxy itself sets or strips, so that callers cannot choose it.
    pub header: Option<String>,
    /// A key that callers hold.
    pub api_key: Option<ApiKeySource>,
}

/// Which part of a certificate's URI names the tenant.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateSource {
    /// What the URI must begin with; the name is the segment that follows. Without it the whole URI is the name.
    pub after: Option<String>,
}

/// Keys that callers hold.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiKeySource {
    /// The header they come in.
    pub header: String,
    /// What stands before the key in that header.
    #[serde(default)]
    pub prefix: String,
    /// Tenants by the SHA-256 of their key, as 64 hexadecimal digits.
    pub sha256: BTreeMap<String, String>,
}

/// What a tenant may hold at once; a limit that is not given does not bind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    /// Requests.
    pub max_in_flight: Option<u32>,
    /// Prompt and expected output tokens of those requests.
    pub max_tokens_in_flight: Option<u64>,
    /// Requests admitted in a minute.
    pub requests_per_minute: Option<RateConfig>,
    /// Prompt and output tokens in a minute: charged as estimated, settled as the worker reports.
    pub tokens_per_minute: Option<RateConfig>,
    /// Highest lane a caller may ask for; the highest there is, if not given.
    pub max_lane: Option<String>,
}

/// A tenant's tier and what differs from it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantLimitsConfig {
    /// Name of one of `tiers`.
    pub tier: Option<String>,
    /// Instead of the tier's.
    pub max_in_flight: Option<u32>,
    /// Instead of the tier's.
    pub max_tokens_in_flight: Option<u64>,
    /// Instead of the tier's.
    pub requests_per_minute: Option<RateConfig>,
    /// Instead of the tier's.
    pub tokens_per_minute: Option<RateConfig>,
    /// Instead of the tier's.
    pub max_lane: Option<String>,
}

/// An amount for each period; a number alone may be saved up for one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a number, or {rate, burst} with two numbers")]
pub enum RateConfig {
    /// Rate and burst.
    Even(u64),
    /// Each of its own.
    Bursty(BurstyRate),
}

/// An amount for each period, of which more or less than a period's may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstyRate {
    /// Earned in each period.
    pub rate: u64,
    /// Most that can be saved up.
    pub burst: u64,
}

impl RateConfig {
    /// Rate and burst.
    #[must_use]
    pub const fn parts(self) -> BurstyRate {
        match self {
            Self::Even(rate) => BurstyRate { rate, burst: rate },
            Self::Bursty(parts) => parts,
        }
    }
}

/// A named priority band.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaneConfig {
    /// Unique.
    pub name: String,
    /// Told to the worker; higher is served first.
    #[serde(default)]
    pub priority: i32,
}

/// Workers that serve the same models.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// Unique; the name the sidecar reports under.
    pub name: String,
    /// Names of models; a trailing `*` stands for any ending. None means every model.
    #[serde(default)]
    pub models: Vec<String>,
    /// Requests in flight, whatever is known of the workers.
    pub max_in_flight: Option<u32>,
    /// Requests in flight for each live worker.
    pub max_in_flight_per_worker: Option<u32>,
    /// Requests admitted in a second, of all tenants.
    pub requests_per_second: Option<RateConfig>,
    /// Prompt and output tokens of one request.
    pub max_model_len: Option<u64>,
    /// Prompt tokens of one request.
    pub max_prompt_tokens: Option<u64>,
    /// Output tokens expected of a request that asks for more, or sets no limit.
    #[serde(default = "default_expected_output")]
    pub expected_output_tokens: u64,
    /// Fits requests into free KV blocks; without it they are not fitted.
    pub kv: Option<KvConfig>,
    /// What to do when the view is old or missing.
    #[serde(default)]
    pub stale: StaleConfig,
}

/// KV cache of a pool's workers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvConfig {
    /// Tokens in a block.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// Share of all blocks that is never given out, 0 to 1.
    #[serde(default = "default_headroom")]
    pub headroom: f64,
}

/// What to do when the view is old or missing.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaleConfig {
    /// Age up to which the last view is believed.
    #[serde(default = "default_hold", deserialize_with = "duration")]
    pub hold: Millis,
    /// What comes after.
    #[serde(default)]
    pub then: StalePolicy,
}

/// What holds once the view is too old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StalePolicy {
    /// `max_in_flight`, else the workers last known × `max_in_flight_per_worker`.
    #[default]
    LocalCaps,
    /// Nothing is admitted.
    Reject,
    /// Only `max_in_flight`, where given.
    Admit,
}

/// How request bodies are read.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BodyConfig {
    /// Most bytes held back while a request is undecided. The proxy must be able to hold that and one read of the
    /// connection more.
    #[serde(default = "default_hold_limit", deserialize_with = "size")]
    pub hold_limit: u64,
}

/// What a refusal says.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RejectConfig {
    /// Status codes other than the defaults, 400 to 599, by reason.
    #[serde(default)]
    pub status: BTreeMap<Reason, u16>,
    /// When a refused caller is told to come back.
    #[serde(default)]
    pub retry_after: RetryAfterConfig,
    /// Where requests that can never fit may be sent instead.
    pub batch_url: Option<String>,
}

/// When a refused caller is told to come back.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryAfterConfig {
    /// Also said when nothing has been measured yet.
    #[serde(default = "default_retry_min", deserialize_with = "duration")]
    pub min: Millis,
    /// Never more than this.
    #[serde(default = "default_retry_max", deserialize_with = "duration")]
    pub max: Millis,
    /// The advice is lengthened by a random part of up to this, 0 to 1, so that callers do not come back together.
    #[serde(default = "default_retry_jitter")]
    pub jitter: f64,
}

impl Default for TenantConfig {
    fn default() -> Self {
        Self { sources: Vec::new(), default: default_tenant() }
    }
}

impl Default for StaleConfig {
    fn default() -> Self {
        Self { hold: default_hold(), then: StalePolicy::default() }
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

const fn default_expected_output() -> u64 {
    512
}

const fn default_block_size() -> u32 {
    16
}

const fn default_headroom() -> f64 {
    0.1
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

fn duration<'de, D: Deserializer<'de>>(input: D) -> Result<Millis, D::Error> {
    let text = String::deserialize(input)?;
    match humantime::parse_duration(&text) {
        Ok(duration) => Ok(Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))),
        Err(_) => {
            Err(serde::de::Error::custom(format!("{text:?} is not a duration such as \"250ms\", \"2s\" or \"1m 30s\"")))
        }
    }
}

fn size<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
    let text = String::deserialize(input)?;
    match text.parse::<bytesize::ByteSize>() {
        Ok(size) => Ok(size.as_u64()),
        Err(_) => Err(serde::de::Error::custom(format!("{text:?} is not a size such as \"64KiB\" or \"1MiB\""))),
    }
}
