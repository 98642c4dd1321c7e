//! How requests of a lane wait, and what they may hold.

use super::super::lane::{Aging, BudgetUnit, DispatchBudget, QueueLimits, Reserve};
use super::super::{Cap, PoolQueue};
use super::Checker;
use crate::config::{
    AgingConfig, Config, DispatchBudgetConfig, LaneConfig, Order, PoolQueueConfig, QueueConfig, ReserveConfig,
};
use crate::ledger::LAST_STARTS;
use crate::units::Millis;

const MILLION: f64 = 1e6;

/// Nothing waits longer: by then its caller has surely gone, and its proxy's timeouts have ended it.
const LONGEST: Millis = Millis(3_600_000);

/// Shares that a person means to add up to 1 may come out a little above.
const ROUNDING: f64 = 1e-9;

pub(super) fn queue(lane: &str, config: &QueueConfig) -> QueueLimits {
    let knob = |field: &str| format!("lanes[{lane}].queue.{field}").into();
    let cap = |limit: Option<u64>, field: &str| limit.map(|limit| Cap { limit, knob: knob(field) });
    QueueLimits {
        max_requests: Cap { limit: config.max_requests, knob: knob("max_requests") },
        max_tokens: cap(config.max_tokens, "max_tokens"),
        max_bytes: cap(config.max_bytes, "max_bytes"),
        max_wait: config.max_wait,
        max_wait_knob: knob("max_wait"),
        order: config.order,
        across_tenants_after: config.across_tenants_after,
    }
}

pub(super) fn queue_of_pool(pool: &str, config: &PoolQueueConfig) -> PoolQueue {
    let knob = |field: &str| format!("pools[{pool}].queue.{field}").into();
    PoolQueue {
        max_requests: config.max_requests.map(|limit| Cap { limit, knob: knob("max_requests") }),
        max_bytes: Cap { limit: config.max_bytes, knob: knob("max_bytes") },
    }
}

pub(super) fn aging(aging: &AgingConfig, priority: i32, config: &Config) -> Aging {
    let most = (aging.share * f64::from(LAST_STARTS)).round() as u32;
    let path = path(aging, priority, config);
    Aging { after: aging.after, path, most_of_last_starts: most.clamp(1, LAST_STARTS) }
}

/// Positions of the lanes that waiters of a priority climb to: of each higher one up to that of `to` the lane that it names, else the default
/// lane, else the last one listed.
fn path(aging: &AgingConfig, priority: i32, config: &Config) -> Vec<usize> {
    let named = |name: &Option<String>| config.lanes.iter().position(|lane| Some(&lane.name) == name.as_ref());
    let (to, default) = (named(&aging.to), named(&config.default_lane));
    let priority_of = |place: usize| config.lanes.get(place).map(|lane| lane.priority);
    let highest = to.and_then(priority_of).unwrap_or(i32::MAX);
    let mut higher: Vec<i32> = config.lanes.iter().map(|lane| lane.priority).collect();
    higher.retain(|other| *other > priority && *other <= highest);
    higher.sort_unstable();
    higher.dedup();
    let of_priority = |priority: &i32| {
        let chosen = [to, default].into_iter().flatten().find(|place| priority_of(*place) == Some(*priority));
        chosen.or_else(|| config.lanes.iter().rposition(|lane| lane.priority == *priority))
    };
    higher.iter().filter_map(of_priority).collect()
}

pub(super) fn dispatch_budget(lane: &str, config: &DispatchBudgetConfig) -> DispatchBudget {
    DispatchBudget {
        baseline_ppm: ((config.baseline * MILLION).round() as u64).min(999_999),
        unit: config.unit,
        max: config.max,
        knob: format!("lanes[{lane}].dispatch_budget").into(),
    }
}

pub(super) fn reserve(lane: &str, config: &ReserveConfig) -> Reserve {
    let terms = config.terms();
    Reserve {
        share: terms.share,
        requests: terms.requests.map_or(0, u64::from),
        lend: terms.lend,
        knob: format!("lanes[{lane}].reserve").into(),
    }
}

/// Of every lane, and of the pools that its requests wait for.
pub(super) fn check(config: &Config, check: &mut Checker<'_>) {
    let uncapped = config.pools.iter().filter(|pool| pool.max_in_flight.is_none());
    let uncapped = uncapped.filter(|pool| pool.max_in_flight_per_worker.is_none());
    let uncapped: Vec<&str> = uncapped.map(|pool| pool.name.as_str()).collect();
    for (index, lane) in config.lanes.iter().enumerate() {
        let path = format!("lanes[{index}]");
        let (above, _) = config.lanes.split_at_checked(index).unwrap_or_default();
        check_order(&path, lane, above, check);
        if let Some(queue) = &lane.queue {
            check_queue(&format!("{path}.queue"), queue, check);
        }
        if let Some(aging) = &lane.aging {
            check_aging(&format!("{path}.aging"), aging, (lane, above), config, check);
        }
        if let Some(budget) = &lane.dispatch_budget {
            check_budget(&format!("{path}.dispatch_budget"), budget, &uncapped, check);
        }
        if let Some(reserve) = &lane.reserve {
            check_reserve(&format!("{path}.reserve"), reserve, above, &uncapped, check);
        }
        if lane.ttft_goal.is_some_and(|goal| goal == Millis(0) || goal > LONGEST) {
            check.problem(format!("{path}.ttft_goal"), "must be more than 0 and at most one hour");
        }
        check_what_it_needs(&path, lane, above, check);
    }
    check_holds(config, check);
}

fn check_queue(path: &str, queue: &QueueConfig, check: &mut Checker<'_>) {
    let bounds =
        [("max_requests", Some(queue.max_requests)), ("max_tokens", queue.max_tokens), ("max_bytes", queue.max_bytes)];
    for (field, _) in bounds.iter().filter(|(_, bound)| *bound == Some(0)) {
        check.problem(format!("{path}.{field}"), "0 would let nothing wait; leave `queue` out for that");
    }
    check_wait(format!("{path}.max_wait"), queue.max_wait, check);
    if queue.across_tenants_after.is_some() && queue.order != Order::ShortestFirst {
        check.problem(format!("{path}.across_tenants_after"), "needs `order: shortest_first`");
    }
}

fn check_wait(path: String, wait: Millis, check: &mut Checker<'_>) {
    if wait == Millis(0) || wait > LONGEST {
        check.problem(path, format!("{wait} is not a wait of more than 0 and at most one hour"));
    }
}

/// Lanes of one priority are one line, in which urgencies are compared: tokens of one with times of another would say nothing.
fn check_order(path: &str, lane: &LaneConfig, above: &[LaneConfig], check: &mut Checker<'_>) {
    let Some(queue) = &lane.queue else { return };
    let of_its_priority = above.iter().filter(|other| other.priority == lane.priority);
    let mut queues = of_its_priority.filter_map(|other| Some((other, other.queue.as_ref()?)));
    if let Some((other, _)) = queues.find(|(_, other)| other.order != queue.order) {
        let message = format!(
            "is not that of {:?}, which has the same priority: they are one line, in one order; give them two priorities",
            other.name
        );
        check.problem(format!("{path}.queue.order"), message);
    }
}

fn check_aging(
    path: &str,
    aging: &AgingConfig,
    (lane, above): (&LaneConfig, &[LaneConfig]),
    config: &Config,
    check: &mut Checker<'_>,
) {
    if aging.after == Millis(0) {
        check.problem(format!("{path}.after"), "must be more than 0");
    }
    if !(aging.share > 0.0 && aging.share <= 1.0) {
        check.problem(format!("{path}.share"), format!("{} is not a share above 0 and of at most 1", aging.share));
    }
    let Some(to) = &aging.to else { return };
    if config.lanes.iter().all(|lane| lane.name != *to) {
        check.unknown(format!("{path}.to"), "lanes", to);
    } else if higher(lane, above).all(|lane| lane.name != *to) && !above.is_empty() && check.shape == 0 {
        check.problem(format!("{path}.to"), format!("{to:?} has no higher priority than this lane"));
    }
}

fn higher<'a>(lane: &LaneConfig, above: &'a [LaneConfig]) -> impl Iterator<Item = &'a LaneConfig> {
    let priority = lane.priority;
    above.iter().filter(move |other| other.priority > priority)
}

fn check_budget(path: &str, budget: &DispatchBudgetConfig, uncapped: &[&str], check: &mut Checker<'_>) {
    if !(0.0..1.0).contains(&budget.baseline) {
        let message = format!("{} is not a share of at least 0 and below 1", budget.baseline);
        check.problem(format!("{path}.baseline"), message);
    }
    let path = format!("{path}.max");
    match (budget.max, budget.unit) {
        (Some(0), _) => check.problem(path, "must be at least 1"),
        (Some(_), _) => {}
        (None, BudgetUnit::Requests) => check_caps(path, "is needed", uncapped, check),
        (None, BudgetUnit::Tokens | BudgetUnit::Bytes) if check.shape == 0 => {
            check.problem(path, "is needed where `unit` is not requests: no pool has such a cap of its own");
        }
        (None, BudgetUnit::Tokens | BudgetUnit::Bytes) => {}
    }
}

fn check_reserve(
    path: &str,
    reserve: &ReserveConfig,
    above: &[LaneConfig],
    uncapped: &[&str],
    check: &mut Checker<'_>,
) {
    let terms = reserve.terms();
    if terms.share.is_none() && terms.requests.is_none() && check.shape == 0 {
        check.problem(path.to_owned(), "must have `share` or `requests`");
    }
    if terms.requests == Some(0) {
        check.problem(format!("{path}.requests"), "must be at least 1");
    }
    if let Some(share) = terms.share {
        check_share(path, share, above, check);
    }
    check_caps(path.to_owned(), "is a part of nothing", uncapped, check);
}

fn check_share(path: &str, share: f64, above: &[LaneConfig], check: &mut Checker<'_>) {
    if !(share > 0.0 && share <= 1.0) {
        check.problem(path.to_owned(), format!("{share} is not a share of more than 0 and at most 1"));
    }
    let before: f64 = above.iter().filter_map(|lane| lane.reserve.as_ref()?.terms().share).sum();
    let most = 1.0 + ROUNDING;
    // Said once, where it happens; a share that is too much by itself has been told.
    if share <= 1.0 && before <= most && before + share > most {
        let before = (before * MILLION).round() / MILLION;
        let message = format!("{share} and the {before} of the lanes before it are more than 1");
        check.problem(path.to_owned(), message);
    }
}

/// What is measured against caps on requests in flight needs them.
fn check_caps(path: String, without: &str, uncapped: &[&str], check: &mut Checker<'_>) {
    if !uncapped.is_empty() && check.shape == 0 {
        let message = format!(
            "{without} where a pool has neither `max_in_flight` nor `max_in_flight_per_worker`: {}",
            uncapped.join(", ")
        );
        check.problem(path, message);
    }
}

/// What has no meaning without a queue, here or in a lane above.
fn check_what_it_needs(path: &str, lane: &LaneConfig, above: &[LaneConfig], check: &mut Checker<'_>) {
    // What is missing may have had to be taken out.
    if check.shape != 0 {
        return;
    }
    let lends = lane.reserve.as_ref().is_some_and(|reserve| reserve.terms().lend);
    let nothing_waits = "has no meaning without `queue`: nothing of this lane waits";
    if lane.aging.is_some() && lane.queue.is_none() {
        check.problem(format!("{path}.aging"), nothing_waits);
    }
    if lends && lane.queue.is_none() {
        check.problem(format!("{path}.reserve"), format!("{nothing_waits}; `lend: false` needs none"));
    }
    for (field, said) in [("aging", lane.aging.is_some()), ("preemptible", lane.preemptible)] {
        if said && above.is_empty() {
            check.problem(format!("{path}.{field}"), "there is no lane above");
        }
    }
    if lane.preemptible && !above.is_empty() && above.iter().all(|lane| lane.queue.is_none()) {
        check.problem(format!("{path}.preemptible"), "no lane above has a `queue`, so nothing waits for what it holds");
    }
}

fn check_holds(config: &Config, check: &mut Checker<'_>) {
    let queues = config.lanes.iter().any(|lane| lane.queue.is_some());
    for (index, pool) in config.pools.iter().enumerate() {
        let Some(hold) = pool.hold_when_empty else { continue };
        let path = format!("pools[{index}].hold_when_empty");
        check_wait(path.clone(), hold, check);
        if !queues && check.shape == 0 {
            check.problem(path, "has no meaning where no lane has a `queue`: there is nowhere to wait");
        }
    }
}
