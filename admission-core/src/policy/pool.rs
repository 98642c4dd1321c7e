//! Workers that serve the same models, as decisions see them.

use std::sync::Arc;

use super::Cap;
use crate::budget::Rates;
use crate::config::{EstimateConfig, StalePolicy};
use crate::family::Family;
use crate::ledger::TallyKey;
use crate::outcome::{Reason, Refusal, Retry};
use crate::request::Media;
use crate::units::{Millis, Tokens};

/// Workers that serve the same models.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// As configured.
    pub name: String,
    /// Name of the pool's record.
    pub key: Arc<str>,
    /// Name of the pool's view summary.
    pub view_key: Arc<str>,
    /// Name of the list of the pool's workers.
    pub workers_key: Arc<str>,
    /// Key of the record of the KV blocks that each of its workers can take.
    pub worker_blocks_key: Arc<str>,
    pub(super) models: Vec<ModelPattern>,
    /// True where no model leads to the pool.
    pub fallback_only: bool,
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
    /// Answers to one request.
    pub max_sequences: Cap,
    /// Output expected of a request that asks for more, or sets no limit.
    pub expected_output: Tokens,
    /// How tokens are estimated.
    pub estimate: EstimateConfig,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// Share of KV blocks never given out; `None` when requests are not fitted into blocks.
    pub headroom: Option<BlockShare>,
    /// Share of the largest cache's KV blocks that one request may need; `None` for all that the headroom leaves.
    pub max_share: Option<BlockShare>,
    /// Limits for some of its requests.
    pub classes: Vec<Arc<Class>>,
    /// Who takes what it refuses for some reasons.
    pub fallback: Option<Fallback>,
    /// Statuses by which a worker says that it has too much to do.
    pub busy_statuses: Vec<u16>,
    /// See [`PoolConfig::needs_view`](crate::config::PoolConfig::needs_view).
    pub needs_view: bool,
    /// What to do when the view is old or missing.
    pub stale: Stale,
    /// Each request is steered to a worker.
    pub pick_endpoint: bool,
    /// Bounds of what waits for it, of all lanes together.
    pub queue: PoolQueue,
    /// How long requests wait for a worker to appear while a fresh view lists none.
    pub hold_when_empty: Option<Millis>,
    /// What a refusal names when all workers are busy: the sidecar's thresholds decide that.
    pub busy_knob: Arc<str>,
}

/// Limits for the requests of a pool that name some models, or have long prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// As configured.
    pub name: String,
    /// In the pool's record.
    pub key: TallyKey,
    pub(super) models: Vec<ModelPattern>,
    pub(super) min_prompt: Tokens,
    /// Requests in flight.
    pub max_in_flight: Option<Cap>,
    /// Prompt and output tokens of one request.
    pub max_model_len: Option<Cap>,
    /// Prompt tokens of one request.
    pub max_prompt_tokens: Option<Cap>,
}

/// Bounds of what waits for a pool, of all lanes together and over all worker threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolQueue {
    /// Requests.
    pub max_requests: Option<Cap>,
    /// Bytes of their bodies.
    pub max_bytes: Cap,
}

impl PoolQueue {
    /// Bytes that may wait of one tenant, beside its first request.
    #[must_use]
    pub const fn bytes_of_a_tenant(&self) -> u64 {
        self.max_bytes.limit / 4
    }
}

/// Another pool, and for what it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Name of the pool.
    pub pool: String,
    /// Refusals that send a request there.
    pub on: Vec<Reason>,
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

/// A share of KV blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockShare {
    /// 0 to 1.
    pub share: f64,
    /// Such as `pools[llama].kv.headroom`.
    pub knob: Arc<str>,
}

/// The name of a model, or with a `*` behind it how names begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelPattern(String);

/// Label of a model that fits no pattern.
const OTHER: &str = "other";

/// Label of a model that has not been read.
const UNREAD: &str = "unread";

/// Label of a model of a pool that takes any.
const ANY: &str = "any";

impl Pool {
    /// How well the pool's patterns fit: `None` not at all, more is better.
    pub(super) fn match_strength(&self, model: &str) -> Option<usize> {
        if self.models.is_empty() {
            return (!self.fallback_only).then_some(0);
        }
        strength(&self.models, model)
    }

    /// Whether the pool serves a model.
    #[must_use]
    pub fn serves(&self, model: &str) -> bool {
        self.match_strength(model).is_some()
    }

    /// A model by the pattern it fits, so that callers cannot invent labels.
    #[must_use]
    pub fn model_label(&self, model: Option<&str>) -> &str {
        match (self.models.as_slice(), model) {
            ([], _) => ANY,
            ([only], None) => only.text(),
            (_, None) => UNREAD,
            (models, Some(model)) => {
                let best = models.iter().filter_map(|pattern| Some((pattern.strength(model)?, pattern)));
                best.max_by_key(|(strength, _)| *strength).map_or(OTHER, |(_, best)| best.text())
            }
        }
    }

    /// Whether [`Pool::model_label`] may give this for some model.
    #[must_use]
    pub fn has_model_label(&self, label: &str) -> bool {
        [ANY, UNREAD, OTHER].contains(&label) || self.models.iter().any(|pattern| pattern.text() == label)
    }

    /// Whose tokenizer a model's resembles.
    #[must_use]
    pub fn family(&self, model: Option<&str>) -> Family {
        let only = match self.models.as_slice() {
            [only] => Some(only.text()),
            _ => None,
        };
        let name = model.or(only);
        self.estimate.family.or_else(|| name.map(Family::of_model)).unwrap_or(Family::Generic)
    }

    /// Prompt tokens of what is no text.
    #[must_use]
    pub fn media(&self, media: Media) -> Tokens {
        let Media { images, recordings, files } = media;
        let EstimateConfig { image_tokens, recording_tokens, file_tokens, .. } = self.estimate;
        let of = |each: u64, number: u64| Tokens(each).times(number);
        of(image_tokens, images).plus(of(recording_tokens, recordings)).plus(of(file_tokens, files))
    }

    /// Whether a class of the pool depends on the model that a request names.
    #[must_use]
    pub fn classes_need_model(&self) -> bool {
        self.classes.iter().any(|class| !class.models.is_empty())
    }

    /// The classes of a request with such a prompt.
    #[must_use]
    pub fn classes_of(&self, model: Option<&str>, prompt: Tokens) -> Vec<Arc<Class>> {
        self.classes.iter().filter(|class| class.takes(model, prompt)).cloned().collect()
    }

    /// Whether time alone may change a refusal for this reason; that it has no worker, or that its rate is spent, where requests wait for that.
    #[must_use]
    pub fn may_be_waited_for(&self, reason: Reason) -> bool {
        match reason {
            Reason::NoWorkers => self.hold_when_empty.is_some(),
            Reason::PoolRequestRate => self.rates.may_be_waited_for(),
            _ => reason.may_be_waited_for(),
        }
    }

    /// True for a request that this pool has refused as it says when another's refusal serves it better: there it may wait, or come back.
    #[must_use]
    pub fn is_worse(&self, refused: &Refusal, other: &Self, by_other: &Refusal) -> bool {
        let passes =
            |pool: &Self, refused: &Refusal| (pool.may_be_waited_for(refused.reason), refused.retry != Retry::Never);
        passes(self, refused) < passes(other, by_other)
    }

    /// The pool to ask after a refusal.
    #[must_use]
    pub fn fallback_for(&self, reason: Reason) -> Option<&str> {
        let fallback = self.fallback.as_ref()?;
        // Why both: for lower lanes a pool is full where the rest is kept.
        let as_full = reason == Reason::Reserved && fallback.on.contains(&Reason::PoolRequests);
        (as_full || fallback.on.contains(&reason)).then_some(&fallback.pool)
    }
}

impl Class {
    fn takes(&self, model: Option<&str>, prompt: Tokens) -> bool {
        let named = || model.is_some_and(|model| strength(&self.models, model).is_some());
        prompt >= self.min_prompt && (self.models.is_empty() || named())
    }
}

fn strength(models: &[ModelPattern], model: &str) -> Option<usize> {
    models.iter().filter_map(|pattern| pattern.strength(model)).max()
}

impl ModelPattern {
    pub(super) fn parse(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub(super) fn strength(&self, model: &str) -> Option<usize> {
        match self.0.strip_suffix('*') {
            Some(prefix) => model.starts_with(prefix).then_some(prefix.len()),
            None => (self.0 == model).then_some(usize::MAX),
        }
    }

    fn text(&self) -> &str {
        &self.0
    }
}
