//! How a decision can end.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::units::Millis;

/// Why a request is refused. The label is what metrics, logs and `x-sluice-reason` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The caller has shown a key that is no tenant's, and nothing else says who it is.
    UnknownKey,
    /// The route takes no requests for another protocol.
    UpgradeRefused,
    /// The body cannot be read, and workers may read it, or the choice of a pool hangs on it.
    Malformed,
    /// No pool serves the model.
    UnknownModel,
    /// The request can never fit.
    Oversize,
    /// No worker of the pool is alive.
    NoWorkers,
    /// Nothing recent is known of the workers and the policy says to refuse then.
    StaleView,
    /// The tenant's requests for each minute.
    TenantRequestRate,
    /// The tenant's tokens for each minute.
    TenantTokenRate,
    /// The pool's requests for each second.
    PoolRequestRate,
    /// The tenant's requests in flight.
    TenantRequests,
    /// The tenant's tokens in flight.
    TenantTokens,
    /// Every worker of the pool is busy.
    AllBusy,
    /// The pool's saturation is at the lane's ceiling or above.
    Saturated,
    /// The pool's requests in flight.
    PoolRequests,
    /// The requests in flight of one of the pool's classes.
    ClassRequests,
    /// The pool's free KV blocks.
    KvBlocks,
    /// What the lane's dispatch budget lets it hold.
    DispatchBudget,
    /// Workers have as many prompts to read as a lane of a higher priority has time for.
    PrefillBacklog,
    /// The rest of the pool is kept for lanes of a higher priority.
    Reserved,
    /// Others wait for the pool that come first.
    OthersFirst,
    /// Others of the same tenant wait for its caps that come first.
    OwnFirst,
    /// The queue of its lane or pool has no room.
    QueueFull,
    /// It would wait longer than its lane or its own deadline allows.
    WaitTooLong,
    /// It has waited as long as its lane or its own deadline allows.
    QueueTimeout,
    /// It gave way to a request of a higher lane before its answer began.
    Evicted,
    /// The shared count could not be updated.
    Contention,
}

/// What a request that cannot start has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Nothing that passes while it waits.
    Lasting,
    /// Its own tenant.
    Tenant,
    /// A class of the pool that it belongs to.
    Class,
    /// A limit of its own lane.
    Lane,
    /// The pool: nobody behind it could start either.
    Pool,
    /// Others that come first.
    Line,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 27] = [
        Self::UnknownKey,
        Self::UpgradeRefused,
        Self::Malformed,
        Self::UnknownModel,
        Self::Oversize,
        Self::NoWorkers,
        Self::StaleView,
        Self::TenantRequestRate,
        Self::TenantTokenRate,
        Self::PoolRequestRate,
        Self::TenantRequests,
        Self::TenantTokens,
        Self::AllBusy,
        Self::Saturated,
        Self::PoolRequests,
        Self::ClassRequests,
        Self::KvBlocks,
        Self::DispatchBudget,
        Self::PrefillBacklog,
        Self::Reserved,
        Self::OthersFirst,
        Self::OwnFirst,
        Self::QueueFull,
        Self::WaitTooLong,
        Self::QueueTimeout,
        Self::Evicted,
        Self::Contention,
    ];

    /// In snake case; never changes.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::UnknownKey => "unknown_key",
            Self::UpgradeRefused => "upgrade_refused",
            Self::Malformed => "malformed",
            Self::UnknownModel => "unknown_model",
            Self::Oversize => "oversize",
            Self::NoWorkers => "no_workers",
            Self::StaleView => "stale_view",
            Self::TenantRequestRate => "tenant_request_rate",
            Self::TenantTokenRate => "tenant_token_rate",
            Self::PoolRequestRate => "pool_request_rate",
            Self::TenantRequests => "tenant_requests",
            Self::TenantTokens => "tenant_tokens",
            Self::AllBusy => "all_busy",
            Self::Saturated => "saturated",
            Self::PoolRequests => "pool_requests",
            Self::ClassRequests => "class_requests",
            Self::KvBlocks => "kv_blocks",
            Self::DispatchBudget => "dispatch_budget",
            Self::PrefillBacklog => "prefill_backlog",
            Self::Reserved => "reserved",
            Self::OthersFirst => "others_first",
            Self::OwnFirst => "own_first",
            Self::QueueFull => "queue_full",
            Self::WaitTooLong => "wait_too_long",
            Self::QueueTimeout => "queue_timeout",
            Self::Evicted => "evicted",
            Self::Contention => "contention",
        }
    }

    /// True for a reason that says no more than that others come first.
    #[must_use]
    pub const fn is_of_order(self) -> bool {
        matches!(self, Self::OthersFirst | Self::OwnFirst)
    }

    /// The reason with a label.
    #[must_use]
    pub fn of_label(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.label() == label)
    }

    /// HTTP status unless configured otherwise: 4xx for what the request or its tenant is the cause of, 429 for what is contended, 503 where no
    /// capacity exists.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::UnknownKey => 401,
            Self::UpgradeRefused => 403,
            Self::Malformed => 400,
            Self::UnknownModel => 404,
            Self::Oversize => 413,
            Self::TenantRequestRate | Self::TenantTokenRate | Self::PoolRequestRate => 429,
            Self::TenantRequests | Self::TenantTokens => 429,
            Self::Saturated | Self::PoolRequests | Self::ClassRequests | Self::KvBlocks => 429,
            Self::DispatchBudget | Self::PrefillBacklog | Self::Reserved | Self::OthersFirst | Self::OwnFirst => 429,
            Self::QueueFull | Self::WaitTooLong | Self::QueueTimeout | Self::Evicted => 429,
            Self::NoWorkers | Self::StaleView | Self::AllBusy | Self::Contention => 503,
        }
    }

    /// What a request that waits already has to wait for when it cannot start for this reason.
    #[must_use]
    pub const fn obstacle(self) -> Obstacle {
        match self {
            Self::TenantRequests | Self::TenantTokens | Self::OwnFirst => Obstacle::Tenant,
            Self::TenantRequestRate | Self::TenantTokenRate => Obstacle::Tenant,
            Self::ClassRequests => Obstacle::Class,
            Self::Saturated | Self::DispatchBudget | Self::PrefillBacklog | Self::Reserved => Obstacle::Lane,
            Self::AllBusy | Self::PoolRequests | Self::KvBlocks | Self::NoWorkers => Obstacle::Pool,
            Self::PoolRequestRate | Self::StaleView | Self::Contention => Obstacle::Pool,
            Self::OthersFirst => Obstacle::Line,
            Self::UnknownKey | Self::UpgradeRefused => Obstacle::Lasting,
            Self::Malformed | Self::UnknownModel | Self::Oversize => Obstacle::Lasting,
            Self::Evicted | Self::QueueFull | Self::WaitTooLong | Self::QueueTimeout => Obstacle::Lasting,
        }
    }

    /// The thing that a refused request lacks and each eviction brings a part of; `None` where evictions are no help, and for KV blocks, of
    /// which a waiter that keeps the line says how many it lacks.
    #[must_use]
    pub const fn lack(self) -> Option<Lack> {
        match self {
            Self::PoolRequests | Self::Reserved => Some(Lack::Place),
            Self::Saturated => Some(Lack::Saturation),
            _ => None,
        }
    }

    /// True where the reason is that a rate is spent.
    #[must_use]
    pub const fn is_of_rate(self) -> bool {
        matches!(self, Self::TenantRequestRate | Self::TenantTokenRate | Self::PoolRequestRate)
    }

    /// Whether a request that arrives may wait for this to pass. What a rate refuses knows its exact instant, and is told that unless the
    /// rate says that it may wait; what nobody can see an end of is not waited for.
    #[must_use]
    pub const fn may_be_waited_for(self) -> bool {
        match self {
            _ if self.is_of_rate() => false,
            Self::NoWorkers | Self::StaleView | Self::Contention => false,
            _ => !matches!(self.obstacle(), Obstacle::Lasting),
        }
    }
}

/// A thing that evictions bring to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// A place among the requests in flight, free as soon as another has ended.
    Place,
    /// A pool less full, which the first view shows whose scrapes began after another had ended.
    Saturation,
}

/// A refusal that explains itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// The limit that bound, and what it met; absent where no limit is involved.
    pub limit: Option<Limit>,
    /// What happened, in words.
    pub detail: Detail,
    /// When to come back.
    pub retry: Retry,
    /// Where in the queue it would have been, or was.
    pub place: Option<Place>,
}

/// A place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// 1 is the next one to start.
    pub position: u64,
    /// How long that is expected to take; `None` while nothing has been measured.
    pub wait: Option<Millis>,
}

/// A limit that bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Place of the limit in the configuration.
    pub knob: Arc<str>,
    /// What it is, the request included.
    pub measured: u64,
    /// What is allowed.
    pub allowed: u64,
    /// Of both numbers.
    pub unit: &'static str,
}

/// What a refusal adds to its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Nothing.
    None,
    /// A fixed sentence.
    Fixed(&'static str),
    /// Made for this refusal.
    Text(String),
    /// The refusal that kept a request from starting which was to wait, or has waited, for its turn.
    KeptBy(Box<Refusal>),
}

/// When a refused request may come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// In about this time; the measured pace at which capacity is freed, bounded by the policy.
    After(Millis),
    /// Not as it is.
    Never,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self.reason {
            Reason::UnknownKey => "the key is no tenant's",
            Reason::UpgradeRefused => "this route takes no requests for another protocol",
            Reason::Malformed => "the request body is not valid",
            Reason::UnknownModel => "no pool serves this model",
            Reason::Oversize => "the request is too large ever to be served",
            Reason::NoWorkers => "no worker of this pool is alive",
            Reason::StaleView => "the state of the workers is not known",
            Reason::TenantRequestRate => "too many requests of this tenant in a minute",
            Reason::TenantTokenRate => "too many tokens of this tenant in a minute",
            Reason::PoolRequestRate => "too many requests to this pool in a second",
            Reason::TenantRequests => "too many requests of this tenant in flight",
            Reason::TenantTokens => "too many tokens of this tenant in flight",
            Reason::AllBusy => "all workers are busy",
            Reason::Saturated => "this pool is too full for the request's lane",
            Reason::PoolRequests => "too many requests in flight in this pool",
            Reason::ClassRequests => "too many requests of this class in flight in this pool",
            Reason::KvBlocks => "too few free KV blocks in this pool",
            Reason::DispatchBudget => "this pool has no capacity to spare for the request's lane",
            Reason::PrefillBacklog => "this pool has as many prompts to read as higher lanes have time for",
            Reason::Reserved => "what is left of this pool is kept for higher lanes",
            Reason::OthersFirst => "others wait for this pool that come first",
            Reason::OwnFirst => "others of this tenant wait that come first",
            Reason::QueueFull => "the queue of the request's lane or pool is full",
            Reason::WaitTooLong => "the wait in the queue would be too long",
            Reason::QueueTimeout => "the wait in the queue was too long",
            Reason::Evicted => "the request gave way to a more urgent one",
            Reason::Contention => "the admission count could not be updated",
        })?;
        match &self.detail {
            Detail::None => {}
            Detail::Fixed(text) => write!(out, ": {text}")?,
            Detail::Text(text) => write!(out, ": {text}")?,
            Detail::KeptBy(bound) => {
                self.write_limit(out)?;
                return write!(out, "; what kept it from starting: {bound}");
            }
        }
        self.write_limit(out)
    }
}

impl Refusal {
    /// The refusal that says which limit bound. For one out of a queue that is what kept the request from starting.
    #[must_use]
    pub fn bound(&self) -> &Self {
        match &self.detail {
            Detail::KeptBy(bound) => bound,
            _ => self,
        }
    }

    fn write_limit(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Limit { knob, measured, allowed, unit }) = &self.limit else { return Ok(()) };
        write!(out, " ({measured} {unit}; {knob} allows {allowed})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_unique_and_statuses_are_errors() {
        let mut labels = Reason::ALL.map(Reason::label).to_vec();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), Reason::ALL.len());
        assert!(Reason::ALL.iter().all(|reason| (400..600).contains(&reason.status())));
    }

    #[test]
    fn a_refusal_names_knob_measure_and_limit() {
        let refusal = Refusal {
            reason: Reason::TenantRequests,
            limit: Some(Limit { knob: "tiers.free.max_in_flight".into(), measured: 5, allowed: 4, unit: "requests" }),
            detail: Detail::None,
            retry: Retry::After(Millis(1_200)),
            place: None,
        };
        assert_eq!(
            refusal.to_string(),
            "too many requests of this tenant in flight (5 requests; tiers.free.max_in_flight allows 4)"
        );
    }
}
