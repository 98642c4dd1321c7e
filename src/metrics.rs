//! Counters and gauges.
//!
//! A name carries its labels as `label=.=value;.;` before the metric; the proxy's `stats_tags` take them off. Label
//! values come from the configuration alone: a model is named by the pattern it fits.
//!
//! What requests count is gathered in the VM and added to the proxy's counters on its tick ([`Metrics::flush`]), so a VM that
//! traps loses what it has counted since its last one. Histograms and gauges are written immediately.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use admission_core::decide::{DISPATCH_BUDGET, bounds};
use admission_core::ledger::Ledger;
use admission_core::members::Members;
use admission_core::outcome::Reason;
use admission_core::policy::{Lane, Policy, Pool};
use admission_core::request::Api;
use admission_core::store::{self, Store};
use admission_core::units::{Millis, Time, Tokens};
use admission_core::view::ViewSummary;

use crate::host;
use crate::store::SharedData;

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
/// How long requests waited for their turn, by pool, lane and what became of them; of those alone that waited.
const QUEUE_WAIT: &str = "sluice_queue_wait_ms";
/// Requests that wait, by pool and lane.
const WAITING: &str = "sluice_waiting_requests";
/// Requests that began to wait, by pool, lane, model, endpoint and what they waited for.
const WAITS: &str = "sluice_waits_total";
/// Requests held, by pool and lane.
const LANE_IN_FLIGHT: &str = "sluice_lane_in_flight_requests";
/// Refusals of requests that were to wait, or have waited, by pool, lane, outcome and what kept them from starting.
const QUEUE_REFUSALS: &str = "sluice_queue_refusals_total";
/// Tokens held, by pool and lane.
const LANE_TOKENS: &str = "sluice_lane_in_flight_tokens";
/// Tokens that wait, by pool and lane.
const WAITING_TOKENS: &str = "sluice_waiting_tokens";
/// Bytes of bodies that wait, by pool and lane.
const WAITING_BYTES: &str = "sluice_waiting_bytes";
/// Use of each bound in thousandths, by pool, lane and bound.
const BOUND_USED: &str = "sluice_bound_used_permille";
/// N of a lane's dispatch budget, by pool and lane.
const BUDGET: &str = "sluice_dispatch_budget_allowed";
/// Requests held beyond what the last scrape has seen, by pool.
const UNSEEN: &str = "sluice_unseen_requests";
/// One where tenants that are not listed have no limit while others have, else zero.
const UNLIMITED: &str = "sluice_unlisted_tenants_unlimited";
/// Prompt tokens that workers have been sent and whose answers have not begun, by pool, where a lane's goal asks for it.
const PREFILL_TOKENS: &str = "sluice_prefill_tokens";
/// Prompt tokens that one worker reads in a second, by pool; 0 while that is not known.
const PREFILL_RATE: &str = "sluice_prefill_tokens_per_second";
/// Live workers that report no KV blocks, by pool.
const KV_UNKNOWN: &str = "sluice_kv_unknown_workers";
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
/// Requests in flight, by pool.
const IN_FLIGHT: &str = "sluice_in_flight_requests";
/// Tokens in flight, by pool.
const TOKENS_IN_FLIGHT: &str = "sluice_in_flight_tokens";
/// One while no view that is young enough names the pool, else zero.
const VIEW_MISSING: &str = "sluice_view_missing";
/// Age of the view, by pool.
const VIEW_AGE: &str = "sluice_view_age_ms";
/// Saturation in thousandths, by pool, as the view has it.
const SATURATION: &str = "sluice_saturation_permille";

/// Linear memory of a VM, by its slot.
const VM_MEMORY: &str = "sluice_vm_memory_bytes";

/// From a request's headers to the first output of its stream, by pool and lane.
const TTFT: &str = "sluice_ttft_ms";
/// From the first output of a stream to its end, by pool and lane.
const DECODE: &str = "sluice_decode_ms";
/// Tokens of answers as settled, by pool and lane.
const OUTPUT_TOKENS: &str = "sluice_output_tokens";
/// Tokens of prompts as settled, by pool and lane.
const PROMPT_TOKENS: &str = "sluice_prompt_tokens";
/// Output after the first token by the time it took, by pool and lane.
const TOKENS_PER_SECOND: &str = "sluice_tokens_per_second";
/// How far estimated prompts were from reported ones, in thousandths of these, by pool, model and sign.
const ESTIMATE_ERROR: &str = "sluice_estimate_error_permille";
/// Tokens that leases grew by beyond what was estimated, by pool and lane.
const OVERDRAFT: &str = "sluice_overdraft_tokens_total";

/// Label of a bound that holds for all lanes of a pool.
const ALL_LANES: &str = "all";

/// What is recorded of answers, by pool and lane.
#[derive(Clone, Copy)]
pub enum Histogram {
    /// Until the first output of a stream.
    Ttft,
    /// From then to its end.
    Decode,
    /// Tokens of the answer.
    OutputTokens,
    /// Tokens of the prompt.
    PromptTokens,
    /// Of the output after the first.
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

/// Of each [`Histogram`], once it is defined; `Some(None)` where the host would not.
type Histograms = [Option<Option<u32>>; Histogram::COUNT];

/// The metrics of one plugin. One is defined when it is first used, and once: every definition costs the host an entry
/// that stays. One that the host would not define is remembered too.
#[derive(Default)]
pub struct Metrics {
    ids: RefCell<BTreeMap<String, Option<u32>>>,
    counters: RefCell<Counters>,
    /// By pool and lane: several are recorded at the end of every answer, which builds no names for it.
    of_answers: RefCell<BTreeMap<String, BTreeMap<String, Histograms>>>,
    /// A request was shown that another filter has judged.
    judged_twice: Cell<bool>,
}

/// Counters by name, and what they have gathered.
#[derive(Default)]
struct Counters {
    by_name: BTreeMap<String, Counter>,
    /// The name that is looked up, in room that is used again for the next one.
    name: String,
    /// At least one counter has gathered something.
    changed: bool,
}

/// A counter of the proxy.
struct Counter {
    /// `None` where the host would not define it.
    id: Option<u32>,
    /// Amount to be added to the proxy's counter.
    gathered: u64,
}

/// What a decision is counted under.
pub struct Labels {
    pool: Option<Arc<Pool>>,
    lane: Arc<Lane>,
    /// By the pattern it fits.
    pub model: String,
    /// The API that was called.
    pub endpoint: Api,
}

impl Labels {
    /// Of a request as far as it is known.
    pub fn of(pool: Option<&Arc<Pool>>, lane: &Arc<Lane>, model: Option<&str>, endpoint: Api) -> Self {
        Self {
            pool: pool.cloned(),
            lane: Arc::clone(lane),
            model: pool.map_or(NONE, |pool| pool.model_label(model)).to_owned(),
            endpoint,
        }
    }

    /// Name of the pool.
    pub fn pool(&self) -> &str {
        self.pool.as_ref().map_or(NONE, |pool| &pool.name)
    }

    /// Name of the lane.
    pub fn lane(&self) -> &str {
        &self.lane.name
    }
}

impl Metrics {
    /// Counts a decision.
    pub fn count(&self, labels: &Labels, outcome: &str) {
        self.count_labelled(labels, outcome, REQUESTS);
    }

    /// Counts a refusal that shadow has kept from happening.
    pub fn count_would_reject(&self, labels: &Labels, reason: Reason) {
        self.count_labelled(labels, reason.label(), WOULD_REJECT);
    }

    /// Counts a wait that shadow has kept from happening.
    pub fn count_would_wait(&self, labels: &Labels, reason: Reason) {
        self.count_labelled(labels, reason.label(), WOULD_WAIT);
    }

    /// Counts a request that waits, by what it waits for.
    pub fn count_waiting(&self, labels: &Labels, reason: Reason) {
        self.count_labelled(labels, reason.label(), WAITS);
    }

    /// Counts a refusal by what kept the request from starting.
    pub fn count_queue_refusal(&self, labels: &Labels, reason: Reason, bound: Reason) {
        let by =
            [("pool", labels.pool()), ("lane", labels.lane()), ("outcome", reason.label()), ("bound", bound.label())];
        self.gather(&by, QUEUE_REFUSALS, 1);
    }

    /// Counts an eviction.
    pub fn count_evicted(&self, labels: &Labels) {
        self.count_labelled(labels, Reason::Evicted.label(), EVICTED);
    }

    /// Records how long a request has waited.
    pub fn record_wait(&self, labels: &Labels, outcome: &str, waited: Millis) {
        let by = [("pool", labels.pool()), ("lane", labels.lane()), ("outcome", outcome)];
        let name = labelled(&by, QUEUE_WAIT);
        self.with(name, host::define_histogram, |id| host::record(id, waited.0));
    }

    /// Records something of an answer.
    pub fn record_of_answer(&self, labels: &Labels, histogram: Histogram, value: u64) {
        let (pool, lane) = (labels.pool(), labels.lane());
        let mut of_answers = self.of_answers.borrow_mut();
        if !of_answers.contains_key(pool) {
            of_answers.insert(pool.to_owned(), BTreeMap::new());
        }
        let Some(by_lane) = of_answers.get_mut(pool) else { return };
        if !by_lane.contains_key(lane) {
            by_lane.insert(lane.to_owned(), Histograms::default());
        }
        let Some(slot) = by_lane.get_mut(lane).and_then(|all| all.get_mut(histogram as usize)) else { return };
        let define = || host::define_histogram(&labelled(&[("pool", pool), ("lane", lane)], histogram.name()));
        if let Some(id) = *slot.get_or_insert_with(define) {
            host::record(id, value);
        }
    }

    /// Records how far the estimate of a prompt was from what its worker reported.
    pub fn record_estimate(&self, labels: &Labels, estimate: Tokens, reported: Tokens) {
        let sign = if estimate >= reported { "over" } else { "under" };
        let permille = estimate.0.abs_diff(reported.0).saturating_mul(1_000) / reported.0.max(1);
        let name = labelled(&[("pool", labels.pool()), ("model", &labels.model), ("sign", sign)], ESTIMATE_ERROR);
        self.with(name, host::define_histogram, |id| host::record(id, permille));
    }

    /// Counts tokens by which a lease has grown.
    pub fn count_overdraft(&self, labels: &Labels, grown: Tokens) {
        if grown > Tokens(0) {
            self.gather(&[("pool", labels.pool()), ("lane", labels.lane())], OVERDRAFT, grown.0);
        }
    }

    /// Counts a refusal after which the request went to another pool, which took it, let it wait or refused it.
    pub fn count_fallback(&self, labels: &Labels, reason: Reason) {
        self.count_labelled(labels, reason.label(), FALLBACKS);
    }

    /// Counts a view by what became of it, immediately: the control listener's plugin has no ticks.
    pub fn count_view(&self, outcome: &str) {
        self.gather(&[("outcome", outcome)], VIEWS, 1);
        self.flush();
    }

    /// Counts a request on a route whose metadata could not be read.
    pub fn count_bad_route(&self) {
        self.gather(&[], BAD_ROUTES, 1);
    }

    /// Counts a request that another filter of the namespace has judged already; says whether it is the first one.
    pub fn count_judged_twice(&self) -> bool {
        self.gather(&[], JUDGED_TWICE, 1);
        !self.judged_twice.replace(true)
    }

    /// Counts requests that were counted together with those of other tenants.
    pub fn count_together(&self, requests: u64) {
        if requests > 0 {
            self.gather(&[], COUNTED_TOGETHER, requests);
        }
    }

    /// Adds what has been gathered to the proxy's counters.
    pub fn flush(&self) {
        let mut counters = self.counters.borrow_mut();
        if !std::mem::take(&mut counters.changed) {
            return;
        }
        for Counter { id, gathered } in counters.by_name.values_mut() {
            let gathered = std::mem::take(gathered);
            if let Some(id) = id.filter(|_| gathered > 0) {
                host::increment(id, gathered);
            }
        }
    }

    fn count_labelled(&self, labels: &Labels, outcome: &str, metric: &str) {
        let by = [
            ("pool", labels.pool()),
            ("lane", labels.lane()),
            ("model", &labels.model),
            ("endpoint", labels.endpoint.label()),
            ("outcome", outcome),
        ];
        self.gather(&by, metric, 1);
    }

    fn gather(&self, labels: &[(&str, &str)], metric: &str, more: u64) {
        let counters = &mut *self.counters.borrow_mut();
        counters.changed = true;
        write_labelled(&mut counters.name, labels, metric);
        let counter = match counters.by_name.get_mut(&counters.name) {
            Some(counter) => counter,
            None => {
                let id = host::define_counter(&counters.name);
                counters.by_name.entry(counters.name.clone()).or_insert(Counter { id, gathered: 0 })
            }
        };
        counter.gathered = counter.gathered.saturating_add(more);
    }

    /// Sets the gauges of every pool from the records, which is the truth whatever VM died.
    pub fn record_pools(&self, policy: &Policy, members: &Members, now: Time) {
        self.gauge(&[], UNLIMITED, u64::from(policy.unlimited.is_some()));
        for pool in policy.pools() {
            let gauge = |metric: &str, value: u64| self.gauge(&[("pool", &pool.name)], metric, value);
            let view = SharedData.read(&pool.view_key).0.and_then(|bytes| ViewSummary::decode(&bytes));
            if let Ok((ledger, _)) = store::read::<Ledger>(&SharedData, &pool.key) {
                let held = ledger.held(members);
                gauge(IN_FLIGHT, held.requests);
                gauge(TOKENS_IN_FLIGHT, held.tokens.0);
                let has_limit = view.as_ref().is_some_and(|view| view.prefill_limit.is_some());
                if has_limit || policy.line_up().have_goals() {
                    gauge(PREFILL_TOKENS, ledger.prompts_being_read(members).0);
                    gauge(PREFILL_RATE, ledger.tokens_read_in_a_second().unwrap_or(0));
                }
                if let Some(view) = &view {
                    let unseen = ledger.unseen(view.credit, members).requests;
                    gauge(UNSEEN, u64::try_from(unseen).unwrap_or(0));
                }
                self.record_lanes(policy, (pool, view.as_ref()), (&ledger, members), now);
            }
            let is_fresh = |view: &ViewSummary| now.since(view.received) <= pool.stale.hold;
            gauge(VIEW_MISSING, u64::from(!view.as_ref().is_some_and(is_fresh)));
            if let Some(view) = view {
                gauge(VIEW_AGE, now.since(view.received).0);
                gauge(KV_UNKNOWN, u64::from(view.kv_unknown));
                if let Some(saturation) = view.saturation {
                    gauge(SATURATION, (saturation * 1_000.0).round() as u64);
                }
            }
        }
    }

    fn record_lanes(
        &self,
        policy: &Policy,
        (pool, view): (&Pool, Option<&ViewSummary>),
        held: (&Ledger, &Members),
        now: Time,
    ) {
        let (ledger, members) = held;
        for lane in policy.lanes() {
            let of_lane = |metric: &str, value: u64| {
                self.gauge(&[("pool", &pool.name), ("lane", &lane.name)], metric, value);
            };
            let of_this = ledger.held_by(lane.key, members);
            of_lane(LANE_IN_FLIGHT, of_this.requests);
            of_lane(LANE_TOKENS, of_this.tokens.0);
            if lane.queue.is_some() {
                let waiting = ledger.backlog(lane.key, members);
                of_lane(WAITING, waiting.requests);
                of_lane(WAITING_TOKENS, waiting.tokens.0);
                of_lane(WAITING_BYTES, waiting.bytes);
            }
        }
        for used in bounds((pool, policy.line_up()), view, held, now) {
            let lane = used.lane.map_or(ALL_LANES, |lane| &policy.line_up().at(lane).name);
            self.gauge(&[("pool", &pool.name), ("lane", lane), ("bound", used.bound)], BOUND_USED, used.permille());
            if used.bound == DISPATCH_BUDGET {
                self.gauge(&[("pool", &pool.name), ("lane", lane)], BUDGET, used.limit);
            }
        }
    }

    fn gauge(&self, labels: &[(&str, &str)], metric: &str, value: u64) {
        self.with(labelled(labels, metric), host::define_gauge, |id| host::record(id, value));
    }

    /// Sets the gauge of how much memory this VM has, which never shrinks.
    pub fn record_memory(&self, slot: u16) {
        let name = labelled(&[("vm", &slot.to_string())], VM_MEMORY);
        self.with(name, host::define_gauge, |id| host::record(id, host::memory_bytes()));
    }

    fn with(&self, name: String, define: impl FnOnce(&str) -> Option<u32>, apply: impl FnOnce(u32)) {
        let mut ids = self.ids.borrow_mut();
        let id = match ids.get(&name) {
            Some(id) => *id,
            None => {
                let id = define(&name);
                ids.insert(name, id);
                id
            }
        };
        if let Some(id) = id {
            apply(id);
        }
    }
}

/// A metric's name with its labels.
fn labelled(labels: &[(&str, &str)], metric: &str) -> String {
    const ROOM: usize = 160;
    let mut name = String::with_capacity(ROOM);
    write_labelled(&mut name, labels, metric);
    name
}

/// The same, in place of what a string has held.
fn write_labelled(name: &mut String, labels: &[(&str, &str)], metric: &str) {
    name.clear();
    for part in labels.iter().flat_map(|(label, value)| [label, "=.=", value, ";.;"]).chain([metric]) {
        name.push_str(part);
    }
}
