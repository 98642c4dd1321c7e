//! Lanes, and what chooses one: rules and routes.

use serde::{Deserialize, Serialize};

use super::{AgingConfig, DispatchBudgetConfig, Mode, QueueConfig, text};
use crate::problem::Problem;
use crate::request::Api;
use crate::units::Millis;

/// A named priority band.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LaneConfig {
    /// Unique.
    pub name: String,
    /// Told to the worker; higher is served first, negative is shed first. Tenants take turns over all lanes of one priority.
    #[serde(default)]
    pub priority: i32,
    /// The lane admits while its pool's saturation is below this and below the ceilings of lanes of a higher priority; more than 0.
    /// Not given: 1 for a negative priority, else no ceiling of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<f64>,
    /// Part of each pool that is kept for the lane. A number is a share with `lend: true`; that form goes with the next release. Needs
    /// `max_in_flight` or `max_in_flight_per_worker` in every pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<ReserveConfig>,
    /// Where requests wait that cannot start now. Without it they are refused at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueConfig>,
    /// How requests that wait climb to higher lanes; without it they do not. Needs a queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aging: Option<AgingConfig>,
    /// What the lane may hold of what its pool has left; without it that is not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_budget: Option<DispatchBudgetConfig>,
    /// Time within which the lane's requests are to have their first token, wait and prompt included; more than 0 and at most one hour. Of
    /// lanes of a lower priority no more prompts are sent to workers at a time than these read in half of it.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::optional_duration")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<text::Duration>"))]
    pub ttft_goal: Option<Millis>,
    /// Requests in flight whose answer has not begun may be evicted for one that waits in a higher lane. Needs a queue in one
    /// of those.
    #[serde(default)]
    pub preemptible: bool,
}

/// A part of each pool for a lane: a share, which is lent to others while the lane does not use it, or the terms.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "{share, lend}, {requests, lend}, or a share that is lent")]
pub enum ReserveConfig {
    /// A share with `lend: true`. This form goes with the next release.
    Bare(f64),
    /// The terms.
    Stated(ReserveTerms),
}

/// Size of a part of each pool for a lane, and whether others may use it meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReserveTerms {
    /// Share of the requests that the pool has capacity for, rounded up; with `lend: false` as large a share of its usable KV blocks
    /// too. More than 0; those of all lanes together at most 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Requests; beside a share the larger of the two counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    /// `false`: lanes of a lower priority leave it free. `true`: they may use it, and what comes free goes to the lane's waiters first
    /// while it holds less, which needs a queue.
    #[serde(default)]
    pub lend: bool,
}

impl ReserveConfig {
    /// The terms, of a share alone too.
    #[must_use]
    pub fn terms(&self) -> ReserveTerms {
        match self {
            Self::Bare(share) => ReserveTerms { share: Some(*share), requests: None, lend: true },
            Self::Stated(terms) => terms.clone(),
        }
    }
}

/// The field of a lane at a path that is written in a form which goes with the next release.
#[must_use]
pub(super) fn outdated(path: &str, lane: &LaneConfig) -> Option<Problem> {
    let Some(ReserveConfig::Bare(share)) = lane.reserve else { return None };
    let message = format!(
        "{share} alone is read as {{share: {share}, lend: true}} and is refused from the next release on; say so, or `lend: false` to keep \
         it free for the lane"
    );
    Some(Problem::new(format!("{path}.reserve"), message))
}

/// Gives a lane to requests that ask for none.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LaneRuleConfig {
    /// Name of a model; a trailing `*` stands for any ending. Makes the lane depend on the body, see `header_pause`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Beginning of the path, without the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_prefix: Option<String>,
    /// Name of one of `lanes`.
    pub lane: String,
}

/// What differs on a route. The same object may stand in the route's own metadata under `sluice`, without `match`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// Which requests; required in `routes`.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<RouteMatchConfig>,
    /// `false` lets every request of the route pass unjudged and uncounted; spoofed headers are taken off all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Instead of the whole filter's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// API of its requests, whatever their paths are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<ApiConfig>,
    /// Requests of the route for another protocol: upgrades, such as WebSockets, and CONNECT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrades: Option<Upgrades>,
    /// `true` lets its requests ask for `background`: their worker goes on after it has answered, and no limit counts that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<bool>,
    /// Name of the pool its requests go to, whatever model they name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Lane of its requests that ask for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Highest lane its requests get, if that is below what their tenant may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_lane: Option<String>,
    /// Name of one of `tiers`, whose limits of requests and tokens hold on this route instead of the tenant's own; it must have some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
}

/// Decisions over requests for another protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Upgrades {
    /// Each is judged as a request without a body, and held to its tenant's and its pool's limits until its tunnel ends.
    #[default]
    Judge,
    /// All are refused.
    Refuse,
    /// All pass unjudged and uncounted.
    Pass,
}

/// API of a route's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApiConfig {
    /// Chats.
    ChatCompletions,
    /// Texts to be completed.
    Completions,
    /// OpenAI's responses.
    Responses,
    /// Anthropic's messages.
    Messages,
    /// Embeddings, which generate nothing.
    Embeddings,
    /// Ranks, scores, classes and tokens, which generate nothing.
    Pooling,
    /// Recordings to be written down.
    Audio,
    /// Pictures to be made.
    Images,
}

impl ApiConfig {
    /// The API of that name.
    #[must_use]
    pub const fn api(self) -> Api {
        match self {
            Self::ChatCompletions => Api::Chat,
            Self::Completions => Api::Completions,
            Self::Responses => Api::Responses,
            Self::Messages => Api::Messages,
            Self::Embeddings => Api::Embeddings,
            Self::Pooling => Api::Pooling,
            Self::Audio => Api::Audio,
            Self::Images => Api::Images,
        }
    }
}

/// Which requests a route's entry is for: at least one field; all that are given must hold.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RouteMatchConfig {
    /// Name of the proxy's route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route_name: Option<String>,
    /// Name of the proxy's virtual host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_host: Option<String>,
    /// Beginning of the path, without the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_prefix: Option<String>,
}

impl RouteMatchConfig {
    /// The names that it matches, in brackets behind its place in the list.
    pub(super) fn named(&self) -> String {
        let parts = [&self.route_name, &self.virtual_host, &self.path_prefix];
        let names: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
    }
}
