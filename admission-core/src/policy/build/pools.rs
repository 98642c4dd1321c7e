//! Pools and their classes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::{BlockShare, Cap, Class, Fallback, Pool, Stale};
use super::{Checker, check_model, check_name, check_rate, patterns, rate};
use crate::budget::Rates;
use crate::config::{ClassConfig, Config, OnRate, PoolConfig, StalePolicy};
use crate::keys::Keys;
use crate::ledger::TallyKey;
use crate::outcome::Reason;
use crate::units::{Millis, Tokens};

const SECOND: Millis = Millis(1_000);

/// Refusals that another pool may not share.
const POOL_REASONS: [Reason; 11] = [
    Reason::Oversize,
    Reason::NoWorkers,
    Reason::StaleView,
    Reason::PoolRequestRate,
    Reason::AllBusy,
    Reason::Saturated,
    Reason::DispatchBudget,
    Reason::Reserved,
    Reason::PoolRequests,
    Reason::ClassRequests,
    Reason::KvBlocks,
];

pub(super) fn pools(config: &Config, keys: &Keys, check: &mut Checker<'_>) -> Vec<Arc<Pool>> {
    if config.pools.is_empty() && check.shape == 0 {
        check.problem("pools", "at least one pool is needed");
    }
    let mut names = BTreeSet::new();
    let mut models = BTreeSet::new();
    for (index, pool) in config.pools.iter().enumerate() {
        check_pool(&format!("pools[{index}]"), pool, check);
        if !names.insert(&pool.name) {
            check.problem(format!("pools[{index}].name"), format!("{:?} is the name of an earlier pool", pool.name));
        }
        for (place, model) in pool.models.iter().enumerate() {
            if !models.insert(model) {
                let message = format!("{model:?} already belongs to an earlier pool");
                check.problem(format!("pools[{index}].models[{place}]"), message);
            }
        }
    }
    if config.pools.iter().filter(|pool| pool.models.is_empty() && !pool.fallback_only).count() > 1 {
        check.problem("pools", "only one pool may be without `models`, since it takes every model that no other names");
    }
    check_fallbacks(config, check);
    config.pools.iter().map(|pool| Arc::new(build_pool(pool, keys))).collect()
}

fn check_pool(path: &str, pool: &PoolConfig, check: &mut Checker<'_>) {
    check_name(&format!("{path}.name"), &pool.name, check.problems);
    for (place, model) in pool.models.iter().enumerate() {
        check_model(format!("{path}.models[{place}]"), model, check);
    }
    let positive = [
        ("max_in_flight", pool.max_in_flight.map(u64::from)),
        ("max_in_flight_per_worker", pool.max_in_flight_per_worker.map(u64::from)),
        ("max_model_len", pool.max_model_len),
        ("max_prompt_tokens", pool.max_prompt_tokens),
        ("max_sequences", Some(pool.max_sequences)),
        ("expected_output_tokens", Some(pool.expected_output_tokens)),
        ("queue.max_requests", pool.queue.max_requests),
        ("queue.max_bytes", Some(pool.queue.max_bytes)),
        ("kv.block_size", pool.kv.as_ref().map(|kv| u64::from(kv.block_size))),
    ];
    for (field, _) in positive.iter().filter(|(_, value)| *value == Some(0)) {
        check.problem(format!("{path}.{field}"), "must be at least 1");
    }
    check_rate(format!("{path}.requests_per_second"), pool.requests_per_second, check);
    if pool.on_rate.is_some() && pool.requests_per_second.is_none() {
        check.problem(format!("{path}.on_rate"), "says what `requests_per_second` does, and there is none");
    }
    check_classes(path, pool, check);
    if let Some(kv) = &pool.kv
        && !(0.0..1.0).contains(&kv.headroom)
    {
        check.problem(
            format!("{path}.kv.headroom"),
            format!("{} is not a share of at least 0 and below 1", kv.headroom),
        );
    }
    if let Some(kv) = &pool.kv
        && let Some(share) = kv.max_share
        // Why a little more: 1.0 − 0.9 is less than 0.1.
        && !(share > 0.0 && share <= 1.0 - kv.headroom + f64::EPSILON)
    {
        let what = format!("{share} is not above 0 and at most 1 − headroom: what is never given out fits no request");
        check.problem(format!("{path}.kv.max_share"), what);
    }
    for status in pool.busy_statuses.iter().filter(|status| !(400..600).contains(*status)) {
        check.problem(format!("{path}.busy_statuses"), format!("{status} is not the status of an error, 400 to 599"));
    }
    let quantile = pool.estimate.quantile;
    if !(quantile > 0.0 && quantile <= 1.0) {
        check.problem(format!("{path}.estimate.quantile"), format!("{quantile} is not a share above 0 and at most 1"));
    }
    let capped = pool.max_in_flight.is_some() || pool.max_in_flight_per_worker.is_some();
    if check.shape == 0 && pool.stale.then == StalePolicy::LocalCaps && !capped {
        let message = "`max_in_flight` or `max_in_flight_per_worker` is needed: without a view there would be no limit at all. \
                       Set `stale: {then: admit}` if that is what you want";
        check.problem(path.to_owned(), message);
    }
}

fn check_classes(path: &str, pool: &PoolConfig, check: &mut Checker<'_>) {
    let mut names = BTreeSet::new();
    for (index, class) in pool.classes.iter().enumerate() {
        let path = format!("{path}.classes[{index}]");
        check_name(&format!("{path}.name"), &class.name, check.problems);
        if !names.insert(&class.name) {
            check.problem(format!("{path}.name"), format!("{:?} is the name of an earlier class", class.name));
        }
        for (place, model) in class.models.iter().enumerate() {
            check_model(format!("{path}.models[{place}]"), model, check);
        }
        let limits = [
            ("min_prompt_tokens", class.min_prompt_tokens),
            ("max_in_flight", class.max_in_flight.map(u64::from)),
            ("max_model_len", class.max_model_len),
            ("max_prompt_tokens", class.max_prompt_tokens),
        ];
        for (field, _) in limits.iter().filter(|(_, value)| *value == Some(0)) {
            check.problem(format!("{path}.{field}"), "must be at least 1");
        }
        if limits.iter().skip(1).all(|(_, value)| value.is_none()) && check.shape == 0 {
            check.problem(path, "limits nothing: it needs `max_in_flight`, `max_model_len` or `max_prompt_tokens`");
        }
    }
}

/// A fallback leads to another pool and never back.
fn check_fallbacks(config: &Config, check: &mut Checker<'_>) {
    let next = |name: &str| config.pools.iter().find(|pool| pool.name == name)?.fallback_pool.as_deref();
    let takes_models = config.pools.iter().filter(|pool| !pool.fallback_only).count();
    if takes_models == 0 && !config.pools.is_empty() {
        check.problem("pools", "at least one must not be `fallback_only`: no request would find a pool");
    }
    for (index, pool) in config.pools.iter().enumerate() {
        let path = format!("pools[{index}]");
        let by_route = config.routes.iter().any(|route| route.pool.as_deref() == Some(pool.name.as_str()));
        check_fallback_only(&path, pool, by_route, config, check);
        let Some(fallback) = &pool.fallback_pool else {
            if !pool.fallback_on.is_empty() {
                check.problem(format!("{path}.fallback_on"), "has no meaning without `fallback_pool`");
            }
            continue;
        };
        if config.pools.iter().all(|pool| pool.name != *fallback) {
            check.unknown(format!("{path}.fallback_pool"), "pools", fallback);
        }
        let steps = std::iter::successors(Some(fallback.as_str()), |name| next(name)).take(config.pools.len());
        if steps.into_iter().any(|name| name == pool.name) {
            check.problem(format!("{path}.fallback_pool"), "leads back to this pool");
        }
        for reason in pool.fallback_on.iter().filter(|reason| !POOL_REASONS.contains(reason)) {
            let allowed: Vec<_> = POOL_REASONS.iter().map(|reason| reason.label()).collect();
            let message = format!("{} is no refusal by a pool; allowed are {}", reason.label(), allowed.join(", "));
            check.problem(format!("{path}.fallback_on"), message);
        }
        let is_only_one = takes_models == 1 && !pool.fallback_only;
        if !config.header_pause && !by_route && !is_only_one {
            let message = "needs `header_pause: true`, or a route that names this pool, or no other pool that takes models: otherwise a \
                           request's headers have gone on before its pool is known";
            check.problem(format!("{path}.fallback_pool"), message);
        } else if !config.header_pause && fallback_on(pool).contains(&Reason::Oversize) {
            let message = "for `oversize` needs `header_pause: true`: without it a prompt is known only when its headers have \
                           gone on. Set `fallback_on` to what is known from headers, such as [all_busy, no_workers]";
            check.problem(format!("{path}.fallback_pool"), message);
        }
    }
}

fn check_fallback_only(path: &str, pool: &PoolConfig, by_route: bool, config: &Config, check: &mut Checker<'_>) {
    if !pool.fallback_only {
        return;
    }
    if !pool.models.is_empty() {
        check.problem(format!("{path}.models"), "has no meaning with `fallback_only`: no model leads to this pool");
    }
    let by_pool = config.pools.iter().any(|other| other.fallback_pool.as_ref() == Some(&pool.name));
    if !by_pool && !by_route && check.shape == 0 {
        check.problem(
            format!("{path}.fallback_only"),
            "no `fallback_pool` and no route names this pool, so no request reaches it",
        );
    }
}

fn fallback_on(pool: &PoolConfig) -> Vec<Reason> {
    if pool.fallback_on.is_empty() { vec![Reason::Oversize] } else { pool.fallback_on.clone() }
}

fn build_class(pool: &str, config: &ClassConfig) -> Class {
    let cap = |limit: Option<u64>, field: &str| {
        limit.map(|limit| Cap { limit, knob: format!("pools[{pool}].classes[{}].{field}", config.name).into() })
    };
    Class {
        name: config.name.clone(),
        key: TallyKey::class(&config.name),
        models: patterns(&config.models),
        min_prompt: Tokens(config.min_prompt_tokens.unwrap_or(0)),
        max_in_flight: cap(config.max_in_flight.map(u64::from), "max_in_flight"),
        max_model_len: cap(config.max_model_len, "max_model_len"),
        max_prompt_tokens: cap(config.max_prompt_tokens, "max_prompt_tokens"),
    }
}

fn build_pool(config: &PoolConfig, keys: &Keys) -> Pool {
    let knob_text = |field: &str| format!("pools[{}].{field}", config.name);
    let knob = |field: &str| -> Arc<str> { knob_text(field).into() };
    let cap = |limit: Option<u64>, field: &str| limit.map(|limit| Cap { limit, knob: knob(field) });
    let kv = config.kv.as_ref();
    let on_rate = config.on_rate.unwrap_or(OnRate::Wait);
    Pool {
        name: config.name.clone(),
        key: keys.pool(&config.name).into(),
        view_key: keys.view_of(&config.name).into(),
        workers_key: keys.workers_of(&config.name).into(),
        worker_blocks_key: keys.worker_blocks_of(&config.name).into(),
        models: patterns(&config.models),
        fallback_only: config.fallback_only,
        max_in_flight: cap(config.max_in_flight.map(u64::from), "max_in_flight"),
        max_in_flight_per_worker: cap(config.max_in_flight_per_worker.map(u64::from), "max_in_flight_per_worker"),
        rates: Arc::new(Rates {
            requests: rate(config.requests_per_second, SECOND, on_rate, knob_text("requests_per_second")),
            tokens: None,
        }),
        max_model_len: cap(config.max_model_len, "max_model_len"),
        max_prompt_tokens: cap(config.max_prompt_tokens, "max_prompt_tokens"),
        max_sequences: Cap { limit: config.max_sequences, knob: knob("max_sequences") },
        expected_output: Tokens(config.expected_output_tokens),
        estimate: config.estimate.clone(),
        block_size: kv.map_or(16, |kv| kv.block_size),
        headroom: kv.map(|kv| BlockShare { share: kv.headroom, knob: knob("kv.headroom") }),
        max_share: kv.and_then(|kv| kv.max_share).map(|share| BlockShare { share, knob: knob("kv.max_share") }),
        classes: config.classes.iter().map(|class| Arc::new(build_class(&config.name, class))).collect(),
        fallback: config.fallback_pool.clone().map(|pool| Fallback { pool, on: fallback_on(config) }),
        needs_view: config.needs_view(),
        busy_statuses: config.busy_statuses.clone(),
        pick_endpoint: config.pick_endpoint,
        queue: super::queues::queue_of_pool(&config.name, &config.queue),
        hold_when_empty: config.hold_when_empty,
        stale: Stale { hold: config.stale.hold, knob: knob("stale.hold"), then: config.stale.then },
        busy_knob: format!("the sidecar's pools[{}].busy", config.name).into(),
    }
}
