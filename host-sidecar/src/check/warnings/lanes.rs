//! Fields of lanes and pools that other fields make idle.

use admission_core::config::{Config, PoolConfig};
use admission_core::outcome::Reason;

use crate::check::Notes;
use crate::check::node::join;

/// Aging that begins when the wait is over.
pub fn aging(config: &Config, path: &str, notes: &mut Notes) {
    for (index, lane) in config.lanes.iter().enumerate() {
        if let (Some(aging), Some(queue)) = (&lane.aging, &lane.queue)
            && aging.after >= queue.max_wait
        {
            let message = format!(
                "does nothing: a request of {:?} waits {} ms at most, and climbs after {} ms",
                lane.name, queue.max_wait.0, aging.after.0
            );
            notes.warn(join(path, &format!("lanes[{index}].aging.after")), message);
        }
    }
}

/// Goals for first tokens that keep nothing back.
pub fn goals(config: &Config, path: &str, notes: &mut Notes) {
    for (index, lane) in config.lanes.iter().enumerate() {
        let has_lower = config.lanes.iter().any(|other| other.priority < lane.priority);
        if lane.ttft_goal.is_some() && !has_lower {
            let message = "does nothing: no lane of a lower priority would keep its prompts back";
            notes.warn(join(path, &format!("lanes[{index}].ttft_goal")), message);
        }
    }
}

/// Fallbacks for what is too large that take nothing larger.
pub fn fallbacks(config: &Config, path: &str, notes: &mut Notes) {
    for (index, pool) in config.pools.iter().enumerate() {
        let named = |other: &&PoolConfig| Some(&other.name) == pool.fallback_pool.as_ref();
        let Some(fallback) = config.pools.iter().find(named) else { continue };
        let for_size = pool.fallback_on.is_empty() || pool.fallback_on.contains(&Reason::Oversize);
        if for_size && takes_nothing_larger(pool, fallback) {
            let message = format!(
                "does nothing for `oversize`: {:?} takes no longer prompts and contexts than this pool; raise its \
                 `max_prompt_tokens` or `max_model_len`",
                fallback.name
            );
            notes.warn(join(path, &format!("pools[{index}].fallback_pool")), message);
        }
    }
}

/// Each limit of a pool on the size of a request holds for its fallback too. Limits of classes and of workers' caches may not.
fn takes_nothing_larger(pool: &PoolConfig, fallback: &PoolConfig) -> bool {
    let of_classes =
        pool.classes.iter().any(|class| class.max_prompt_tokens.is_some() || class.max_model_len.is_some());
    if of_classes || pool.kv.is_some() || fallback.max_sequences > pool.max_sequences {
        return false;
    }
    let limits = [(pool.max_prompt_tokens, fallback.max_prompt_tokens), (pool.max_model_len, fallback.max_model_len)];
    let mut own = limits.into_iter().filter_map(|(own, other)| Some((own?, other))).peekable();
    own.peek().is_some() && own.all(|(own, other)| other.is_some_and(|other| other <= own))
}
