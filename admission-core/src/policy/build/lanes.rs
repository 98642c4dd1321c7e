//! Lanes and what chooses one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::lane::{Ceiling, Lane, LaneRule, Lanes, PromptsWithin};
use super::super::pool::ModelPattern;
use super::{Checker, check_model, check_name, check_path_prefix, queues};
use crate::config::{Config, LaneConfig};
use crate::gather::gather;
use crate::ledger::LaneKey;
use crate::units::Millis;

/// Saturation of a pool that is full.
const FULL: f64 = 1.0;

pub(super) fn lanes(config: &Config, check: &mut Checker<'_>) -> Lanes {
    let mut lanes: Vec<Arc<Lane>> = Vec::new();
    for (index, written) in config.lanes.iter().enumerate() {
        let lane = lane(index, written, config);
        check_lane(&format!("lanes[{index}]"), &lane, &lanes, check);
        let ceiling = lowest_ceiling(&lane, &lanes);
        lanes.push(Arc::new(Lane { ceiling, ..lane }));
    }
    queues::check(config, check);
    let mut lanes = lanes.into_iter();
    let only = || Arc::new(lane(0, &LaneConfig { name: "default".to_owned(), ..LaneConfig::default() }, config));
    let highest = lanes.next().unwrap_or_else(only);
    let others: Vec<Arc<Lane>> = lanes.collect();
    let lanes = Lanes { highest, default: others.len(), others };
    let default = config.default_lane.as_ref().map(|name| lane_index(&lanes, name, "default_lane", check));
    Lanes { default: default.unwrap_or(lanes.default), ..lanes }
}

/// Lanes of a negative priority are for work that may be shed, so they give way once the pool is full.
fn lane(position: usize, config: &LaneConfig, all: &Config) -> Lane {
    let sheddable = (config.priority < 0).then_some(FULL);
    let ceiling = config.ceiling.or(sheddable);
    let name = &config.name;
    let first = all.lanes.iter().position(|other| other.priority == config.priority);
    Lane {
        name: name.clone(),
        key: LaneKey::of(name),
        position,
        priority: config.priority,
        level: first.unwrap_or(position),
        level_key: LaneKey::of(first.and_then(|first| all.lanes.get(first)).map_or(name, |first| &first.name)),
        ceiling: ceiling.map(|saturation| Ceiling { saturation, knob: format!("lanes[{name}].ceiling").into() }),
        reserve: config.reserve.as_ref().map(|reserve| queues::reserve(name, reserve)),
        aging: config.aging.as_ref().map(|aging| queues::aging(aging, config.priority, all)),
        dispatch_budget: config.dispatch_budget.as_ref().map(|budget| queues::dispatch_budget(name, budget)),
        queue: config.queue.as_ref().map(|queue| queues::queue(name, queue)),
        preemptible: config.preemptible,
        prompts: prompts_within(config.priority, all),
    }
}

/// Half of the smallest goal of the lanes of a higher priority.
fn prompts_within(priority: i32, all: &Config) -> Option<PromptsWithin> {
    let higher = all.lanes.iter().filter(|other| other.priority > priority);
    let smallest = higher.filter_map(|other| Some((other.ttft_goal?, &other.name))).min_by_key(|(goal, _)| *goal);
    smallest
        .map(|(goal, name)| PromptsWithin { time: Millis(goal.0 / 2), knob: format!("lanes[{name}].ttft_goal").into() })
}

/// The lowest ceiling of a lane and of those of a higher priority: what closes a lane closes those below it.
fn lowest_ceiling(lane: &Lane, above: &[Arc<Lane>]) -> Option<Ceiling> {
    let higher = above.iter().filter(|other| other.priority > lane.priority);
    let ceilings = lane.ceiling.iter().chain(higher.filter_map(|other| other.ceiling.as_ref()));
    ceilings.min_by(|one, other| one.saturation.total_cmp(&other.saturation)).cloned()
}

fn check_lane(path: &str, lane: &Lane, above: &[Arc<Lane>], check: &mut Checker<'_>) {
    check_name(&format!("{path}.name"), &lane.name, check.problems);
    if let Some(other) = above.iter().find(|other| other.key == lane.key) {
        let message = format!(
            "{:?} cannot stand beside {:?}: the names must differ, and their hashes too",
            lane.name, other.name
        );
        check.problem(format!("{path}.name"), message);
    }
    if lane.ceiling.as_ref().is_some_and(|ceiling| !(ceiling.saturation > 0.0 && ceiling.saturation.is_finite())) {
        check.problem(format!("{path}.ceiling"), "must be more than 0: the lane admits while saturation is below it");
    }
    if let Some(above) = above.last()
        && above.priority < lane.priority
    {
        let message = format!(
            "{} is above the {} of the lane before it; lanes stand highest first",
            lane.priority, above.priority
        );
        check.problem(format!("{path}.priority"), message);
    }
}

pub(super) fn lane_index(lanes: &Lanes, name: &str, path: &str, check: &mut Checker<'_>) -> usize {
    let position = lanes.position(name);
    if position.is_none() {
        check.unknown(path.to_owned(), "lanes", name);
    }
    position.unwrap_or(0)
}

pub(super) fn objectives(config: &Config, lanes: &Lanes, check: &mut Checker<'_>) -> BTreeMap<String, usize> {
    let objectives = config.objectives.iter();
    gather(objectives.map(|(name, lane)| (name.clone(), lane_index(lanes, lane, &format!("objectives.{name}"), check))))
}

pub(super) fn rules(config: &Config, lanes: &Lanes, check: &mut Checker<'_>) -> Vec<LaneRule> {
    let mut rules = Vec::new();
    for (index, rule) in config.lane_rules.iter().enumerate() {
        let path = format!("lane_rules[{index}]");
        if rule.model.is_none() && rule.path_prefix.is_none() {
            check
                .problem(path.clone(), "must have `model` or `path_prefix`; for every request there is `default_lane`");
        }
        if let Some(model) = &rule.model {
            check_model(format!("{path}.model"), model, check);
        }
        if let Some(prefix) = &rule.path_prefix {
            check_path_prefix(format!("{path}.path_prefix"), prefix, check);
        }
        rules.push(LaneRule {
            model: rule.model.as_deref().map(ModelPattern::parse),
            path_prefix: rule.path_prefix.clone(),
            lane: lane_index(lanes, &rule.lane, &format!("{path}.lane"), check),
        });
    }
    rules
}
