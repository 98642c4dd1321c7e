//! The rules as a reader of the configuration understands them: plain numbers, read from its text by themselves.

use std::collections::BTreeMap;

use serde_json::Value;

use super::POLL_MS;
use crate::units::Time;

/// A policy of one pool.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) max_in_flight: Option<u64>,
    pub(super) per_worker: Option<u64>,
    /// Share of KV blocks never given out; `None` when nobody looks at blocks.
    pub(super) headroom: Option<f64>,
    pub(super) hold_ms: u64,
    pub(super) holds_when_empty_ms: Option<u64>,
    /// Requests that may wait for the pool.
    pub(super) most_waiting: Option<usize>,
    /// Each request is sent to a worker of the core's choice.
    pub(super) steers: bool,
    /// Highest first.
    pub(super) lanes: Vec<LaneRules>,
    pub(super) default_lane: usize,
    pub(super) tenants: BTreeMap<String, TenantRules>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct LaneRules {
    pub(super) name: String,
    pub(super) priority: i64,
    /// Part of the pool that is its own before others get theirs.
    pub(super) reserve: Option<ReserveRules>,
    /// The lowest of its own and of those of higher lanes.
    pub(super) ceiling: Option<f64>,
    /// It climbs a lane each time that it has waited so many milliseconds, up to that one.
    pub(super) aging: Option<(u64, Option<usize>)>,
    /// Starts of those that have climbed above the default lane, of the last hundred, while others could start there.
    pub(super) most_climbed: u32,
    /// Share of the pool that its dispatch budget leaves alone, in millionths.
    pub(super) dispatch_baseline: Option<u64>,
    pub(super) max_wait_ms: Option<u64>,
    pub(super) first_come: bool,
    /// Its requests give way to higher lanes until their answers begin.
    pub(super) preemptible: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReserveRules {
    /// Share of the pool; 0 where only a number is given.
    pub(super) share: f64,
    pub(super) requests: u64,
    /// Lower lanes leave it free.
    pub(super) is_kept: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct TenantRules {
    pub(super) requests: Option<u64>,
    pub(super) tokens: Option<u64>,
}

fn reserve(written: &Value) -> Option<ReserveRules> {
    let terms = |share: f64, lend: bool| ReserveRules {
        share,
        requests: written["requests"].as_u64().unwrap_or(0),
        is_kept: !lend,
    };
    match written {
        Value::Null => None,
        Value::Object(fields) => Some(terms(
            fields.get("share").and_then(Value::as_f64).unwrap_or(0.0),
            fields.get("lend").and_then(Value::as_bool).unwrap_or(false),
        )),
        share => Some(terms(share.as_f64().unwrap_or(0.0), true)),
    }
}

impl Rules {
    pub(super) fn of(policy: &Value) -> Self {
        let pool = &policy["pools"][0];
        let empty = Vec::new();
        let configured = policy["lanes"].as_array().unwrap_or(&empty);
        let position = |name: &Value| configured.iter().position(|lane| lane["name"] == *name);
        let size = pool["max_in_flight"].as_u64();
        let priority = |lane: &Value| lane["priority"].as_i64().unwrap_or(0);
        let lane = |lane: &Value| LaneRules {
            name: lane["name"].as_str().unwrap_or_default().to_owned(),
            priority: priority(lane),
            reserve: reserve(&lane["reserve"]),
            ceiling: configured
                .iter()
                .filter(|other| *other == lane || priority(other) > priority(lane))
                .filter_map(|other| other["ceiling"].as_f64().or((priority(other) < 0).then_some(1.0)))
                .reduce(f64::min),
            aging: millis(&lane["aging"]["after"]).map(|after| (after, position(&lane["aging"]["to"]))),
            most_climbed: (lane["aging"]["share"].as_f64().unwrap_or(0.05) * 100.0).round() as u32,
            dispatch_baseline: lane["dispatch_budget"]["baseline"].as_f64().map(|share| (share * 1e6).round() as u64),
            max_wait_ms: millis(&lane["queue"]["max_wait"]),
            preemptible: lane["preemptible"].as_bool().unwrap_or(false),
            first_come: lane["queue"]["order"].as_str().is_none_or(|order| order == "fcfs"),
        };
        let tenants = policy["tenants"].as_object().into_iter().flatten();
        let tenants = tenants.map(|(name, tenant)| {
            let requests = tenant["max_in_flight"].as_u64();
            (name.clone(), TenantRules { requests, tokens: tenant["max_tokens_in_flight"].as_u64() })
        });
        Self {
            max_in_flight: size,
            per_worker: pool["max_in_flight_per_worker"].as_u64(),
            headroom: pool["kv"].is_object().then(|| pool["kv"]["headroom"].as_f64().unwrap_or(0.1)),
            hold_ms: millis(&pool["stale"]["hold"]).unwrap_or(5_000),
            holds_when_empty_ms: millis(&pool["hold_when_empty"]),
            most_waiting: pool["queue"]["max_requests"].as_u64().map(|most| most as usize),
            steers: pool["pick_endpoint"].as_bool().unwrap_or(false),
            lanes: configured.iter().map(lane).collect(),
            default_lane: position(&policy["default_lane"]).unwrap_or(configured.len().saturating_sub(1)),
            tenants: tenants.collect(),
        }
    }

    /// Requests of a pool of such a size that are each lane's own: as many as it is given, rounded up, while there are any left. Shares that
    /// are not the whole leave one to others.
    pub(super) fn reserved(&self, size: u64) -> Vec<u64> {
        let given = || self.lanes.iter().map(|lane| lane.reserve.unwrap_or_default());
        let only_shares = given().all(|reserve| reserve.requests == 0);
        let leaves_some = only_shares && given().map(|reserve| reserve.share).sum::<f64>() < 0.999_999;
        let mut left = if leaves_some { size.saturating_sub(1) } else { size };
        let own = given().map(|reserve| {
            let share = (size as f64 * reserve.share - 1e-6).ceil() as u64;
            let own = share.max(reserve.requests).min(left);
            left -= own;
            own
        });
        own.collect()
    }

    /// True where requests that count as one lane leave free what is kept for another.
    pub(super) fn is_kept_from(&self, place: usize, other: usize) -> bool {
        let (one, other) = (self.lane(place), self.lane(other));
        other.priority > one.priority && other.reserve.is_some_and(|reserve| reserve.is_kept)
    }

    pub(super) fn lane(&self, index: usize) -> &LaneRules {
        &self.lanes[index]
    }

    /// Position of the lane that a request of a lane counts as which has waited so many milliseconds.
    pub(super) fn counts_as(&self, lane: usize, waited: u64) -> usize {
        let Some((after, to)) = self.lane(lane).aging else { return lane };
        let is_allowed = |priority| to.is_none_or(|to| priority <= self.lane(to).priority);
        let above = |place: &usize| {
            let own = self.lane(*place).priority;
            let next = self.lanes.iter().map(|lane| lane.priority).filter(|priority| *priority > own).min()?;
            let of_it = (0..self.lanes.len()).filter(|other| is_allowed(next) && self.lane(*other).priority == next);
            of_it.max_by_key(|other| (Some(*other) == to, *other == self.default_lane, *other))
        };
        std::iter::successors(Some(lane), above).take((waited / after) as usize + 1).last().unwrap_or(lane)
    }

    /// Position of the lane that such a request may count as at least, whatever else starts; above it, it has climbed beyond the default lane.
    pub(super) fn counts_freely_as(&self, lane: usize, waited: u64) -> usize {
        let (own, default) = (self.lane(lane).priority, self.lane(self.default_lane).priority);
        let free = if own < default { self.default_lane } else { lane };
        let counts_as = self.counts_as(lane, waited);
        if self.lane(counts_as).priority > self.lane(free).priority { free } else { counts_as }
    }

    /// Position of the first lane of the priority of one: they are one line.
    pub(super) fn level(&self, lane: usize) -> usize {
        let priority = self.lane(lane).priority;
        self.lanes.iter().position(|other| other.priority == priority).unwrap_or(lane)
    }

    /// True for a request that has surely been put above the default lane by its VM, though it came for a lower one.
    pub(super) fn has_climbed_far(&self, lane: usize, arrived: Time, now: Time) -> bool {
        let waited = Time(now.0.saturating_sub(POLL_MS + 1)).since(arrived).0;
        self.counts_as(lane, waited) < self.counts_freely_as(lane, waited)
    }

    pub(super) fn tenant(&self, name: &str) -> TenantRules {
        self.tenants.get(name).cloned().unwrap_or_default()
    }
}

impl TenantRules {
    pub(super) fn is_capped(&self) -> bool {
        self.requests.is_some() || self.tokens.is_some()
    }
}

fn millis(value: &Value) -> Option<u64> {
    let duration = humantime::parse_duration(value.as_str()?).ok()?;
    u64::try_from(duration.as_millis()).ok()
}
