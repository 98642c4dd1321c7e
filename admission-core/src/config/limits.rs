//! What tenants may hold and use.

use serde::{Deserialize, Serialize};

use super::Mode;

/// What a tenant may hold and use; a limit that is not given does not bind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    /// Requests held at once, over all worker threads; at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
    /// Prompt and expected output tokens of all that is held at once; at least 1. A single request above it is 413.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens_in_flight: Option<u64>,
    /// Requests admitted in a minute. A refused request uses none of it, whenever it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<RateConfig>,
    /// Prompt and output tokens in a minute: charged with the estimate, settled with the `usage` that the worker reports. What
    /// was used beyond is a debt. A stream without `usage` is settled by its deltas, a plain answer stays as estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<RateConfig>,
    /// Fate of a request that `requests_per_minute` or `tokens_per_minute` does not allow yet; `refuse` if not given. `wait` needs a lane
    /// with a queue, and does not hold on routes whose `tier` this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_rate: Option<OnRate>,
    /// Share of a token that a prompt token costs which the worker had in its cache, by its `usage`: 0 to 1; 1 if not given. In
    /// `tokens_per_minute` and in the fair tag, once the answer has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_token_cost: Option<f64>,
    /// How much its fair tag, which the state page shows, rises: by tokens ÷ weight, 1 to 1000; 1 if not given.
    /// Of those that wait in a lane, the tenant with the lowest tag goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Lane of its requests that ask for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Highest lane its requests get, whatever they ask for; the highest there is, if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_lane: Option<String>,
    /// Instead of the route's and of the whole filter's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

/// A tenant's tier and what differs from it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TenantLimitsConfig {
    /// Name of one of `tiers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Instead of the tier's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
    /// Instead of the tier's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens_in_flight: Option<u64>,
    /// Instead of the tier's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<RateConfig>,
    /// Instead of the tier's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<RateConfig>,
    /// Instead of the tier's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_rate: Option<OnRate>,
    /// Instead of the tier's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_token_cost: Option<f64>,
    /// Instead of the tier's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Instead of the tier's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Instead of the tier's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_lane: Option<String>,
    /// Instead of the tier's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

impl TenantLimitsConfig {
    /// What the tenant has of its own, without its tier.
    #[must_use]
    pub fn own(&self) -> LimitsConfig {
        LimitsConfig {
            max_in_flight: self.max_in_flight,
            max_tokens_in_flight: self.max_tokens_in_flight,
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
            on_rate: self.on_rate,
            cached_token_cost: self.cached_token_cost,
            weight: self.weight,
            lane: self.lane.clone(),
            max_lane: self.max_lane.clone(),
            mode: self.mode,
        }
    }
}

/// Fate of a request that a rate does not allow yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnRate {
    /// The request waits in its lane's queue, if the instant at which the rate allows it, behind those that wait for the rate already, lies
    /// within the time that it may wait, and those that wait for rates have no more than half of the queue. Else it is refused.
    Wait,
    /// The request is refused; the refusal names the instant.
    Refuse,
}

/// An amount for each period: a number, which may be saved up for one period, or rate and burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "a number, or {rate, burst} with two numbers")]
pub enum RateConfig {
    /// Earned in each period, and most that can be saved up; at least 1.
    Even(u64),
    /// The two apart.
    Bursty(BurstyRate),
}

/// An amount for each period, of which more or less than a period's may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BurstyRate {
    /// Earned in each period, at least 1.
    pub rate: u64,
    /// Most that can be saved up, at least 1.
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
