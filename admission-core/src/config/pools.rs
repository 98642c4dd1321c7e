//! Pools of workers.

use serde::{Deserialize, Serialize};

use super::{OnRate, PoolQueueConfig, RateConfig, default_hold, text};
use crate::family::Family;
use crate::outcome::Reason;
use crate::units::Millis;

/// Workers that serve the same models.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// Unique; the name the sidecar reports under.
    pub name: String,
    /// Names of models; a trailing `*` stands for any ending. None means every model. An exact name goes before the
    /// longest beginning.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Requests in flight, whatever is known of the workers; at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
    /// Requests in flight for each live worker; at least 1. This or `max_in_flight` is needed, unless `stale.then` says
    /// otherwise. Binds the pool as a whole; with `pick_endpoint` also every single worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight_per_worker: Option<u32>,
    /// Requests admitted in a second, of all tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<RateConfig>,
    /// Fate of a request that `requests_per_second` does not allow yet; `wait` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_rate: Option<OnRate>,
    /// Prompt tokens and the request's own output limit (`max_tokens`) together, at least 1: above it 413.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u64>,
    /// Prompt tokens of one request, at least 1: above it 413.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_prompt_tokens: Option<u64>,
    /// Answers to one request of an API that generates, prompts × the larger of `n` and `best_of`, at least 1: above it 413.
    #[serde(default = "default_max_sequences")]
    pub max_sequences: u64,
    /// Output tokens expected of a request that asks for more, or sets no limit, until enough answers have been seen; at least
    /// 1; × answers asked for.
    #[serde(default = "default_expected_output")]
    pub expected_output_tokens: u64,
    /// How the tokens of its requests are estimated.
    #[serde(default)]
    pub estimate: EstimateConfig,
    /// With it, a request is admitted while its tokens fit into the workers' free KV blocks; without it nobody looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv: Option<KvConfig>,
    /// Further limits for some models or context lengths; a request is held to every class it belongs to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassConfig>,
    /// The pool takes no model: requests reach it as the `fallback_pool` of another, or by a route.
    #[serde(default)]
    pub fallback_only: bool,
    /// Name of the pool that is asked when this one refuses for one of `fallback_on`. Needs `header_pause`, or that this pool is known from
    /// headers: by a route that names it, or as the only one that takes models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_pool: Option<String>,
    /// Reasons for which the fallback pool is asked; `[oversize]` if not given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback_on: Vec<Reason>,
    /// Statuses of an answer by which a worker says that it has too much to do: errors, 400 to 599. The worker then counts as busy until
    /// the next view, if it has served the same API and model before.
    #[serde(default = "default_busy_statuses")]
    pub busy_statuses: Vec<u16>,
    /// What to do when the view is old or missing.
    #[serde(default)]
    pub stale: StaleConfig,
    /// Steers each request to the freest worker, with `x-gateway-destination-endpoint`; the proxy's cluster needs the
    /// `override_host` policy. The proxy chooses where no view is fresh, and for a request whose headers go on before its body
    /// is read, see `header_pause`.
    #[serde(default)]
    pub pick_endpoint: bool,
    /// Bounds of what waits for the pool, of all lanes together.
    #[serde(default)]
    pub queue: PoolQueueConfig,
    /// How long requests wait in their lane's queue for a worker to appear while a fresh view lists none; more than 0 and at
    /// most one hour. Without it they are refused at once, as are those of lanes without a queue.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::optional_duration")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<text::Duration>"))]
    pub hold_when_empty: Option<Millis>,
}

impl PoolConfig {
    /// True if something in the configuration does nothing, or all is refused, while no view names the pool.
    #[must_use]
    pub fn needs_view(&self) -> bool {
        let is_measured = self.max_in_flight_per_worker.is_some() || self.kv.is_some() || self.pick_endpoint;
        is_measured || self.stale.then == StalePolicy::Reject
    }
}

/// Limits for the requests of a pool that name some models, or have long prompts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClassConfig {
    /// Unique in its pool.
    pub name: String,
    /// Names of models as in the pool's `models`; none means all. Makes the decision depend on the body, see `header_pause`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Only requests with at least so many prompt tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_prompt_tokens: Option<u64>,
    /// Requests of the class in flight, beside the pool's own limit; at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
    /// As the pool's, for requests of the class; the smaller one binds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u64>,
    /// As the pool's, for requests of the class; the smaller one binds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_prompt_tokens: Option<u64>,
}

/// How the tokens of a pool's requests are estimated.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EstimateConfig {
    /// Whose tokenizer its models' resembles, until enough usage has been reported; by the name of the model if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    /// What a request's output is taken for.
    #[serde(default)]
    pub output: OutputEstimate,
    /// Share of answers that the learned output covers: above 0, at most 1. The tokens of longer ones are charged as they come.
    #[serde(default = "default_quantile")]
    pub quantile: f64,
    /// Prompt tokens of a picture.
    #[serde(default = "default_image_tokens")]
    pub image_tokens: u64,
    /// Prompt tokens of a recording.
    #[serde(default = "default_recording_tokens")]
    pub recording_tokens: u64,
    /// Prompt tokens of a file or film, beside the text of one that is sent as plain text.
    #[serde(default = "default_file_tokens")]
    pub file_tokens: u64,
}

/// What a request's output is taken for; its own limit where that is less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OutputEstimate {
    /// The length that a share of the answers of its tenant and model, or of its model, have stayed within;
    /// `expected_output_tokens` before 20 of them.
    #[default]
    Learned,
    /// `expected_output_tokens`.
    Expected,
    /// The request's own limit; where it sets none, what `max_model_len` leaves.
    MaxTokens,
}

/// KV cache of a pool's workers.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KvConfig {
    /// Tokens in a block, at least 1: vLLM's `--block-size`. Counts while no live worker reports it, or two differ.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// Share of all blocks that is never given out: at least 0, below 1.
    #[serde(default = "default_headroom")]
    pub headroom: f64,
    /// Share of the largest worker's blocks that one request may need: above 0, at most 1 − `headroom`, which it is if not given.
    /// Above it 413.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_share: Option<f64>,
}

/// What to do when the view is old or missing.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StaleConfig {
    /// Age up to which the last view is believed.
    #[serde(default = "default_hold", with = "text::duration")]
    #[cfg_attr(feature = "schema", schemars(with = "text::Duration"))]
    pub hold: Millis,
    /// What holds after that.
    #[serde(default)]
    pub then: StalePolicy,
}

/// What holds once the view is too old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

impl Default for EstimateConfig {
    fn default() -> Self {
        Self {
            family: None,
            output: OutputEstimate::default(),
            quantile: default_quantile(),
            image_tokens: default_image_tokens(),
            recording_tokens: default_recording_tokens(),
            file_tokens: default_file_tokens(),
        }
    }
}

impl Default for StaleConfig {
    fn default() -> Self {
        Self { hold: default_hold(), then: StalePolicy::default() }
    }
}

/// Too many requests and unavailable, and what Dynamo's frontends answer when all of their workers are busy.
fn default_busy_statuses() -> Vec<u16> {
    vec![429, 503, 529]
}

const fn default_expected_output() -> u64 {
    512
}

const fn default_quantile() -> f64 {
    0.9
}

const fn default_image_tokens() -> u64 {
    1_000
}

const fn default_recording_tokens() -> u64 {
    500
}

const fn default_file_tokens() -> u64 {
    2_000
}

const fn default_block_size() -> u32 {
    16
}

const fn default_max_sequences() -> u64 {
    256
}

const fn default_headroom() -> f64 {
    0.1
}
