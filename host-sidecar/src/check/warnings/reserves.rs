//! Reserves that can do nothing, and those that leave a lane nothing.

use admission_core::config::{Config, LaneConfig};
use admission_core::policy::{Lanes, Plugin};

use crate::check::node::join;
use crate::check::{Notes, Written};

/// Reserves against the places of their lanes and the sizes of the pools.
pub fn reserves(config: &Config, written: &Written<'_>, notes: &mut Notes) {
    let path = &written.path;
    for (index, lane) in config.lanes.iter().enumerate() {
        if let Some(message) = idle(config, index, lane) {
            notes.warn(join(path, &format!("lanes[{index}].reserve")), message);
        }
    }
    let Ok(Plugin::Filter(policy)) = Plugin::parse(written.json.as_bytes()) else { return };
    for pool in policy.pools() {
        if let Some(cap) = &pool.max_in_flight {
            in_pool(policy.line_up(), (&pool.name, cap.limit), path, notes);
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
fn in_pool(lanes: &Lanes, (pool, limit): (&str, u64), path: &str, notes: &mut Notes) {
    let reserves: Vec<_> = lanes.reserves(limit).collect();
    for (lane, _, _) in reserves.iter().filter(|(.., reserved)| *reserved == 0) {
        let message = format!("keeps nothing in pool {pool:?}: of its {limit} requests none is left for it");
        notes.warn(join(path, &format!("lanes[{}].reserve", lane.position)), message);
    }
    for lane in lanes.iter() {
        let above = reserves.iter().filter(|(other, reserve, _)| other.priority > lane.priority && !reserve.lend);
        let kept = above.fold(0_u64, |sum, (.., reserved)| sum.saturating_add(*reserved));
        if kept >= limit {
            let message =
                format!("starts nothing in pool {pool:?}: all of its {limit} requests are kept for lanes above");
            notes.warn(join(path, &format!("lanes[{}]", lane.position)), message);
        }
    }
}
