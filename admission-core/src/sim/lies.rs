//! Views that say what is not so, or say nothing that can be understood.

use std::collections::BTreeMap;

use crate::view::{PoolReport, WorkerReport, WorkerState};

/// Whether something of that probability happens; no chance is spent on what never does.
pub(super) fn happens(probability: f64, rng: &mut fastrand::Rng) -> bool {
    probability > 0.0 && rng.f64() < probability
}

/// Changes what a view says, so that it contradicts the workers, other views or itself.
pub(super) fn twist(pools: &mut BTreeMap<String, PoolReport>, rng: &mut fastrand::Rng) {
    let Some((name, mut pool)) = pools.pop_first() else { return };
    match rng.u8(..9) {
        0 => pool.workers.clear(),
        1 => twist_numbers(&mut pool, rng),
        // The same worker twice, free the second time and busy the first, or the other way round.
        2 => {
            let again: Vec<_> =
                pool.workers.iter().map(|worker| WorkerReport { busy: !worker.busy, ..worker.clone() }).collect();
            pool.workers.extend(again);
        }
        // The same workers in two pools.
        3 => drop(pools.insert("another".to_owned(), pool.clone())),
        // A pool that nobody has heard of, and nothing of the one that there is.
        4 => {
            pools.insert("another".to_owned(), pool);
            return;
        }
        _ => {
            for worker in &mut pool.workers {
                if rng.bool() {
                    twist_worker(worker, rng);
                }
            }
        }
    }
    pools.insert(name, pool);
}

fn twist_numbers(pool: &mut PoolReport, rng: &mut fastrand::Rng) {
    match rng.u8(..4) {
        0 => pool.saturation = [None, Some(-1.0), Some(0.0), Some(1e300)][rng.usize(..4)],
        1 => pool.dispatch_budget = Some(rng.f64() * 2.0 - 0.5),
        // More than was ever admitted, as after another start of the proxy.
        2 => pool.admitted.requests += rng.u64(1_000_000..2_000_000),
        _ => (pool.admitted.requests, pool.admitted.blocks) = (0, 0),
    }
}

fn twist_worker(worker: &mut WorkerReport, rng: &mut fastrand::Rng) {
    match rng.u8(..6) {
        0 => worker.busy = !worker.busy,
        // Nothing, more than was ever admitted, or a count of the proxy's life before.
        5 => worker.admitted = [None, Some(u64::MAX), Some(rng.u64(..2_000))][rng.usize(..3)],
        1 => worker.state = [WorkerState::Up, WorkerState::Draining, WorkerState::Down][rng.usize(..3)],
        2 => worker.ranks.clear(),
        3 => worker.ranks.iter_mut().for_each(|rank| rank.kv_used_blocks = Some(rng.u64(..10_000))),
        _ => worker.ranks.iter_mut().for_each(|rank| rank.kv_total_blocks = [None, Some(0)][rng.usize(..2)]),
    }
}

/// Makes a body that is cut off, has a byte changed, or is nothing.
pub(super) fn garble(body: &mut Vec<u8>, rng: &mut fastrand::Rng) {
    match rng.u8(..3) {
        0 => body.clear(),
        1 => body.truncate(rng.usize(..body.len().max(1))),
        _ => {
            let at = rng.usize(..body.len().max(1));
            if let Some(byte) = body.get_mut(at) {
                *byte = rng.u8(..);
            }
        }
    }
}
