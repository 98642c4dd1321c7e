//! How requests of a lane wait, and what they may hold.

use serde::{Deserialize, Serialize};

use super::text;
use crate::units::Millis;

/// Where requests of a lane wait that cannot start now. Each bound counts over all worker threads.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct QueueConfig {
    /// Most requests that wait, at least 1.
    pub max_requests: u64,
    /// Most estimated tokens, prompt and output, of all that wait; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Most bytes of all bodies that wait, as far as the proxy holds them: of each at most `body.hold_limit`; more than 0.
    #[serde(skip_serializing_if = "Option::is_none", with = "text::optional_size")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<text::Size>"))]
    pub max_bytes: Option<u64>,
    /// Longest wait, more than 0 and at most one hour; then the request is refused.
    #[serde(with = "text::duration")]
    #[cfg_attr(feature = "schema", schemars(with = "text::Duration"))]
    pub max_wait: Millis,
    /// Who starts first of those of one tenant.
    pub order: Order,
    /// While more requests than this wait in the lane for a pool, the shortest goes first among tenants too, of those whose turns are less than
    /// a usual request apart; needs `order: shortest_first`. Only within a tenant if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub across_tenants_after: Option<u64>,
}

/// Bounds of what waits for a pool, of all its lanes together and over all worker threads. Where one of these is reached, a request of a higher
/// lane takes the place of the newest of the lowest lane; any other is refused.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PoolQueueConfig {
    /// Most requests that wait, at least 1; not bound if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u64>,
    /// Most bytes of all bodies that wait, more than 0; a quarter of it for one tenant, whose first request may have more.
    #[serde(with = "text::size")]
    #[cfg_attr(feature = "schema", schemars(with = "text::Size"))]
    pub max_bytes: u64,
}

/// Who starts first of the waiting requests of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// First come, first served.
    #[default]
    Fcfs,
    /// The earliest deadline: the first token that the caller asks for in `x-llm-d-slo-ttft-ms` or `x-slo-ttft-ms`, in
    /// milliseconds; else `max_wait` after it came.
    Edf,
    /// The fewest estimated tokens.
    ShortestFirst,
}

/// How waiting requests climb to higher lanes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AgingConfig {
    /// A request counts as one of the next lane up for each time that it has waited so long; more than 0.
    #[serde(with = "text::duration")]
    #[cfg_attr(feature = "schema", schemars(with = "text::Duration"))]
    pub after: Millis,
    /// Name of the lane above which it does not climb; the highest, if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Share of the last 100 starts of its pool that may be of requests which have climbed above the default lane, while one that came
    /// for a lane above that could start; above 0, at most 1. Beyond it they count as of the default lane.
    #[serde(default = "AgingConfig::default_share")]
    pub share: f64,
}

impl AgingConfig {
    const fn default_share() -> f64 {
        0.05
    }
}

/// What a lane may start of what its pool has left: `max` × (D − `baseline`), D the share of the pool that nothing uses, and at
/// least one request while D is above `baseline`. While nothing is known of the pool, none.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct DispatchBudgetConfig {
    /// Share of the pool that is left alone; at least 0, below 1.
    pub baseline: f64,
    /// What is counted.
    pub unit: BudgetUnit,
    /// Size of an empty pool, at least 1. In requests the pool's own cap on requests in flight, if not given; in tokens and bytes it
    /// is needed.
    #[serde(skip_serializing_if = "Option::is_none", with = "text::optional_amount")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<text::Amount>"))]
    pub max: Option<u64>,
}

/// What a dispatch budget counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BudgetUnit {
    /// Requests in flight.
    #[default]
    Requests,
    /// Their estimated tokens, prompt and output.
    Tokens,
    /// The bytes of their bodies.
    Bytes,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            max_requests: 128,
            max_tokens: None,
            max_bytes: None,
            max_wait: Millis(10_000),
            order: Order::default(),
            across_tenants_after: None,
        }
    }
}

impl Default for PoolQueueConfig {
    fn default() -> Self {
        Self { max_requests: None, max_bytes: 256 << 20 }
    }
}

impl Default for DispatchBudgetConfig {
    fn default() -> Self {
        Self { baseline: 0.05, unit: BudgetUnit::default(), max: None }
    }
}
