//! Reserves that can do nothing, and those that leave a lane nothing.

use admission_core::config::{Config, LaneConfig};

use crate::check::Notes;
use crate::check::node::join;

/// Reserves against the places of their lanes and the sizes of the pools.
pub fn reserves(config: &Config, path: &str, notes: &mut Notes) {
    for (index, lane) in config.lanes.iter().enumerate() {
        if let Some(message) = idle(config, index, lane) {
            notes.warn(join(path, &format!("lanes[{index}].reserve")), message);
        }
    }
    for pool in &config.pools {
        if let Some(limit) = pool.max_in_flight {
            in_pool(config, (&pool.name, u64::from(limit)), path, notes);
        }
    }
}

/// Why a reserve changes nothing in any pool.
fn idle(config: &Config, index: usize, lane: &LaneConfig) -> Option<String> {
    let lends = lane.reserve.as_ref()?.terms().lend;
    let lower = config.lanes.iter().any(|other| other.priority < lane.priority);
    match (index, lends, lower) {
        (0, true, _) => Some(
            "does nothing: no lane goes before this one, and others may use what it lends; `lend: false` keeps it free"
                .to_owned(),
        ),
        (0, false, false) => Some("does nothing: no lane of a lower priority would leave it free".to_owned()),
        _ => None,
    }
}

/// Reserves that a pool of a known size has no room for, and lanes that the others leave nothing there.
fn in_pool(config: &Config, (pool, limit): (&str, u64), path: &str, notes: &mut Notes) {
    let mut left = limit;
    for (index, lane) in config.lanes.iter().enumerate() {
        let Some(terms) = lane.reserve.as_ref().map(|reserve| reserve.terms()) else { continue };
        let wanted = terms.requests.map_or(0, u64::from);
        if wanted > 0 && left == 0 {
            let message =
                format!("nothing is left for it of the {limit} requests of pool {pool:?}: lanes above it have all");
            notes.warn(join(path, &format!("lanes[{index}].reserve")), message);
        }
        left = left.saturating_sub(wanted);
    }
    let kept_from = |lane: &LaneConfig| {
        let above = config.lanes.iter().filter(|other| other.priority > lane.priority);
        let kept = above.filter_map(|other| Some(other.reserve.as_ref()?.terms()).filter(|terms| !terms.lend));
        kept.map(|terms| terms.requests.map_or(0, u64::from)).fold(0, u64::saturating_add)
    };
    for (index, lane) in config.lanes.iter().enumerate() {
        if kept_from(lane) >= limit {
            let message =
                format!("starts nothing in pool {pool:?}: all of its {limit} requests are kept for lanes above");
            notes.warn(join(path, &format!("lanes[{index}]")), message);
        }
    }
}
