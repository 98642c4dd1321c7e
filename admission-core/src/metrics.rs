//! Metrics of one plugin: their names and labels, and what is counted under each.
//!
//! A name carries its labels as `label=.=value;.;` before the metric; the proxy's `stats_tags` take them off. Label
//! values come from the configuration alone: a model is named by the pattern it fits.
//!
//! What requests count is gathered in the VM and added to the proxy's counters on its tick ([`Metrics::flush`]), so a VM that
//! traps loses what it has counted since its last one. Histograms and gauges are written with the event that they belong to.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::hash;
use crate::outcome::Reason;
use crate::policy::{Lane, Pool};
use crate::request::Api;
use crate::units::{Millis, Tokens};

mod pools;
#[cfg(test)]
mod tests;

/// Outcome of a request that was let in; the others are the reasons of refusals.
pub const ADMITTED: &str = "admitted";

/// Outcome of a request whose caller left while it waited.
pub const LEFT: &str = "left";

/// Label value where a request was refused before its pool was known.
pub const NONE: &str = "none";

/// Requests decided, by pool, lane, model, endpoint and outcome. One that is let in by a guess counts once its body has been
/// read.
const REQUESTS: &str = "sluice_requests_total";
/// Requests in shadow that would have been refused, by the same labels.
const WOULD_REJECT: &str = "sluice_would_reject_total";
/// Requests in shadow that would have waited, by the same labels and what they would have waited for.
const WOULD_WAIT: &str = "sluice_would_wait_total";
/// Requests that were evicted after they had been admitted, by the same labels.
const EVICTED: &str = "sluice_evicted_total";
/// Times that requests waited for their turn, by pool, lane and outcome; only of requests that waited.
const QUEUE_WAIT: &str = "sluice_queue_wait_ms";
/// Requests that began to wait, by pool, lane, model, endpoint and what they waited for.
const WAITS: &str = "sluice_waits_total";
/// Refusals of requests that were to wait, or have waited, by pool, lane, outcome and what kept them from starting.
const QUEUE_REFUSALS: &str = "sluice_queue_refusals_total";
/// Requests that another pool has taken, under the pool that refused them and its reason.
const FALLBACKS: &str = "sluice_fallbacks_total";
/// Views that came, pushed or pulled, by what became of them.
const VIEWS: &str = "sluice_views_total";
/// Requests on routes whose own metadata could not be read, so that the policy held as if it had none.
const BAD_ROUTES: &str = "sluice_route_metadata_errors_total";
/// Requests that a second filter of the same namespace was shown, which let them pass.
const JUDGED_TWICE: &str = "sluice_judged_twice_total";
/// Requests of unnamed tenants that were counted in a record which their tenant shares with others.
const COUNTED_TOGETHER: &str = "sluice_counted_together_total";

/// Linear memory of a VM, by its slot.
const VM_MEMORY: &str = "sluice_vm_memory_bytes";

/// Times from a request's headers to the first output of its stream, by pool and lane.
const TTFT: &str = "sluice_ttft_ms";
/// Times from the first output of a stream to its end, by pool and lane.
const DECODE: &str = "sluice_decode_ms";
/// Tokens of answers as settled, by pool and lane.
const OUTPUT_TOKENS: &str = "sluice_output_tokens";
/// Tokens of prompts as settled, by pool and lane.
const PROMPT_TOKENS: &str = "sluice_prompt_tokens";
/// Output after the first token by the time it took, by pool and lane.
const TOKENS_PER_SECOND: &str = "sluice_tokens_per_second";
/// Errors of estimated prompts against reported ones, in thousandths of these, by pool, model and sign.
const ESTIMATE_ERROR: &str = "sluice_estimate_error_permille";
/// Tokens that leases grew by beyond what was estimated, by pool and lane.
const OVERDRAFT: &str = "sluice_overdraft_tokens_total";

/// Kinds of metrics that a proxy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sum of all that is added.
    Counter,
    /// Value as last set.
    Gauge,
    /// Distribution of the values recorded.
    Histogram,
}

/// Number of a metric in its plugin and VM, counted up from 0 by first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricId(usize);

impl MetricId {
    /// The number.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0
    }
}

/// Change to one of the proxy's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Number of the metric, which has this kind and name only.
    pub metric: MetricId,
    /// Kind of the metric.
    pub kind: Kind,
    /// Name of the metric with its labels.
    pub name: &'a str,
    /// Amount to be added to a counter, at least 1; a gauge's or a histogram's value.
    pub value: u64,
}

/// Measures of the answer to an admitted request.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Tokens that the prompt was taken for.
    pub estimate: Tokens,
    /// Tokens of the prompt as reported.
    pub prompt: Option<Tokens>,
    /// Tokens of the output as reported or counted.
    pub output: Option<Tokens>,
    /// Times from the request's headers to the first output of a stream, and from then to its end.
    pub times: Option<(Millis, Millis)>,
}

/// Histograms of answers, by pool and lane.
#[derive(Clone, Copy)]
enum Histogram {
    /// Time until the first output of a stream.
    Ttft,
    /// Time from then to its end.
    Decode,
    /// Tokens of the answer.
    OutputTokens,
    /// Tokens of the prompt.
    PromptTokens,
    /// Tokens a second of the output after the first.
    TokensPerSecond,
}

impl Histogram {
    const COUNT: usize = 5;

    const fn name(self) -> &'static str {
        match self {
            Self::Ttft => TTFT,
            Self::Decode => DECODE,
            Self::OutputTokens => OUTPUT_TOKENS,
            Self::PromptTokens => PROMPT_TOKENS,
            Self::TokensPerSecond => TOKENS_PER_SECOND,
        }
    }
}

/// Numbers of each [`Histogram`] that has been used.
type Histograms = [Option<MetricId>; Histogram::COUNT];

/// The metrics of one plugin in one VM.
#[derive(Default)]
pub struct Metrics {
    metrics: Vec<Metric>,
    /// Numbers by a hash of the name, or by the next one that is free where two names have the same.
    // Why a hash: names are long and begin alike, so to find one among them by comparing costs more than all else that counting takes.
    by_hash: BTreeMap<u64, MetricId>,
    /// Numbers by pool and lane: several are recorded at the end of every answer, which builds no names for it.
    of_answers: BTreeMap<String, BTreeMap<String, Histograms>>,
    /// Values of gauges and histograms that have not been taken yet.
    samples: Vec<(MetricId, u64)>,
    /// The name that is looked up, in room that is used again for the next one.
    name: String,
    /// True where at least one counter has gathered something.
    has_gathered: bool,
    /// True once a request has come that another filter of the namespace had judged.
    judged_twice: bool,
}

struct Metric {
    kind: Kind,
    name: String,
    /// Amount to be added to the proxy's counter.
    gathered: u64,
}

/// Labels that a decision is counted under.
pub struct Labels {
    pool: Option<Arc<Pool>>,
    lane: Arc<Lane>,
    /// Pattern that the model fits.
    pub model: String,
    /// API that was called.
    pub endpoint: Api,
}

impl Labels {
    /// Labels of a request as far as they are known.
    #[must_use]
    pub fn of(pool: Option<&Arc<Pool>>, lane: &Arc<Lane>, model: Option<&str>, endpoint: Api) -> Self {
        Self {
            pool: pool.cloned(),
            lane: Arc::clone(lane),
            model: pool.map_or(NONE, |pool| pool.model_label(model)).to_owned(),
            endpoint,
        }
    }

    /// Name of the pool.
    #[must_use]
    pub fn pool(&self) -> &str {
        self.pool.as_ref().map_or(NONE, |pool| &pool.name)
    }

    /// Name of the lane.
    #[must_use]
    pub fn lane(&self) -> &str {
        &self.lane.name
    }
}

impl Metrics {
    /// Counts a decision.
    pub fn count(&mut self, labels: &Labels, outcome: &str) {
        self.count_labelled(labels, outcome, REQUESTS);
    }

    /// Counts a refusal that shadow has kept from happening.
    pub fn count_would_reject(&mut self, labels: &Labels, reason: Reason) {
        self.count_labelled(labels, reason.label(), WOULD_REJECT);
    }

    /// Counts a wait that shadow has kept from happening.
    pub fn count_would_wait(&mut self, labels: &Labels, reason: Reason) {
        self.count_labelled(labels, reason.label(), WOULD_WAIT);
    }

    /// Counts a request that waits, by what it waits for.
    pub fn count_waiting(&mut self, labels: &Labels, reason: Reason) {
        self.count_labelled(labels, reason.label(), WAITS);
    }

    /// Counts a refusal by what kept the request from starting.
    pub fn count_queue_refusal(&mut self, labels: &Labels, reason: Reason, bound: Reason) {
        let by =
            [("pool", labels.pool()), ("lane", labels.lane()), ("outcome", reason.label()), ("bound", bound.label())];
        self.gather(&by, QUEUE_REFUSALS, 1);
    }

    /// Counts an eviction.
    pub fn count_evicted(&mut self, labels: &Labels) {
        self.count_labelled(labels, Reason::Evicted.label(), EVICTED);
    }

    /// Records how long a request has waited.
    pub fn record_wait(&mut self, labels: &Labels, outcome: &str, waited: Millis) {
        let by = [("pool", labels.pool()), ("lane", labels.lane()), ("outcome", outcome)];
        self.write(Kind::Histogram, &by, QUEUE_WAIT, waited.0);
    }

    /// Records what an answer has shown.
    pub fn record_answer(&mut self, labels: &Labels, measured: &Measured) {
        let Measured { estimate, prompt, output, times } = *measured;
        self.record(labels, Histogram::PromptTokens, prompt.unwrap_or(estimate).0);
        if let Some(output) = output {
            self.record(labels, Histogram::OutputTokens, output.0);
        }
        if let Some(prompt) = prompt.filter(|prompt| prompt.0 > 0) {
            self.record_estimate(labels, estimate, prompt);
        }
        let Some((ttft, decode)) = times else { return };
        self.record(labels, Histogram::Ttft, ttft.0);
        self.record(labels, Histogram::Decode, decode.0);
        // The first token was there when decoding began.
        let decoded = output.map_or(0, |output| output.0.saturating_sub(1));
        if let Some(speed) = decoded.saturating_mul(1_000).checked_div(decode.0).filter(|_| decoded > 0) {
            self.record(labels, Histogram::TokensPerSecond, speed);
        }
    }

    fn record(&mut self, labels: &Labels, histogram: Histogram, value: u64) {
        let (pool, lane) = (labels.pool(), labels.lane());
        let known =
            self.of_answers.get(pool).and_then(|by_lane| by_lane.get(lane)).and_then(|all| all.get(histogram as usize));
        let metric = known.copied().flatten().unwrap_or_else(|| {
            let metric = self.metric(Kind::Histogram, &[("pool", pool), ("lane", lane)], histogram.name());
            let by_lane = self.of_answers.entry(pool.to_owned()).or_default();
            if let Some(slot) = by_lane.entry(lane.to_owned()).or_default().get_mut(histogram as usize) {
                *slot = Some(metric);
            }
            metric
        });
        self.samples.push((metric, value));
    }

    fn record_estimate(&mut self, labels: &Labels, estimate: Tokens, reported: Tokens) {
        let sign = if estimate >= reported { "over" } else { "under" };
        let permille = estimate.0.abs_diff(reported.0).saturating_mul(1_000) / reported.0.max(1);
        let by = [("pool", labels.pool()), ("model", &labels.model), ("sign", sign)];
        self.write(Kind::Histogram, &by, ESTIMATE_ERROR, permille);
    }

    /// Counts tokens by which a lease has grown.
    pub fn count_overdraft(&mut self, labels: &Labels, grown: Tokens) {
        if grown > Tokens(0) {
            self.gather(&[("pool", labels.pool()), ("lane", labels.lane())], OVERDRAFT, grown.0);
        }
    }

    /// Counts a refusal after which the request went to another pool, which took it, let it wait or refused it.
    pub fn count_fallback(&mut self, labels: &Labels, reason: Reason) {
        self.count_labelled(labels, reason.label(), FALLBACKS);
    }

    /// Counts a view by what became of it.
    pub fn count_view(&mut self, outcome: &str) {
        self.gather(&[("outcome", outcome)], VIEWS, 1);
    }

    /// Counts a request on a route whose metadata could not be read.
    pub fn count_bad_route(&mut self) {
        self.gather(&[], BAD_ROUTES, 1);
    }

    /// Counts a request that another filter of the namespace has judged already; says whether it is the first one.
    pub fn count_judged_twice(&mut self) -> bool {
        self.gather(&[], JUDGED_TWICE, 1);
        !std::mem::replace(&mut self.judged_twice, true)
    }

    /// Counts requests that were counted together with those of other tenants.
    pub fn count_together(&mut self, requests: u64) {
        if requests > 0 {
            self.gather(&[], COUNTED_TOGETHER, requests);
        }
    }

    /// Hands over the values of gauges and histograms since it was last called.
    pub fn take(&mut self, mut sink: impl FnMut(Sample<'_>)) {
        for (metric, value) in self.samples.drain(..) {
            if let Some(Metric { kind, name, .. }) = self.metrics.get(metric.0) {
                sink(Sample { metric, kind: *kind, name, value });
            }
        }
    }

    /// Hands over what the counters have gathered since it was last called.
    pub fn flush(&mut self, mut sink: impl FnMut(Sample<'_>)) {
        if !std::mem::take(&mut self.has_gathered) {
            return;
        }
        for (number, Metric { kind, name, gathered }) in self.metrics.iter_mut().enumerate() {
            let value = std::mem::take(gathered);
            if value > 0 {
                sink(Sample { metric: MetricId(number), kind: *kind, name, value });
            }
        }
    }

    fn count_labelled(&mut self, labels: &Labels, outcome: &str, metric: &str) {
        let by = [
            ("pool", labels.pool()),
            ("lane", labels.lane()),
            ("model", &labels.model),
            ("endpoint", labels.endpoint.label()),
            ("outcome", outcome),
        ];
        self.gather(&by, metric, 1);
    }

    fn gather(&mut self, labels: &[(&str, &str)], metric: &str, more: u64) {
        self.has_gathered = true;
        let metric = self.metric(Kind::Counter, labels, metric);
        if let Some(Metric { gathered, .. }) = self.metrics.get_mut(metric.0) {
            *gathered = gathered.saturating_add(more);
        }
    }

    fn gauge(&mut self, labels: &[(&str, &str)], metric: &str, value: u64) {
        self.write(Kind::Gauge, labels, metric, value);
    }

    fn write(&mut self, kind: Kind, labels: &[(&str, &str)], metric: &str, value: u64) {
        let metric = self.metric(kind, labels, metric);
        self.samples.push((metric, value));
    }

    /// Number of a metric, which is a new one where none has that name.
    fn metric(&mut self, kind: Kind, labels: &[(&str, &str)], metric: &str) -> MetricId {
        self.name.clear();
        for part in labels.iter().flat_map(|(label, value)| [label, "=.=", value, ";.;"]).chain([metric]) {
            self.name.push_str(part);
        }
        let mut hash = hash::stable(self.name.as_bytes());
        while let Some(known) = self.by_hash.get(&hash) {
            if self.metrics.get(known.0).is_some_and(|metric| metric.name == self.name) {
                return *known;
            }
            hash = hash.wrapping_add(1);
        }
        let number = MetricId(self.metrics.len());
        self.by_hash.insert(hash, number);
        self.metrics.push(Metric { kind, name: self.name.clone(), gathered: 0 });
        number
    }
}
