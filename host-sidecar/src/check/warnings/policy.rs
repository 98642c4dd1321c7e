//! Of a policy by itself, and of the one switch that it shares with the proxy.

use admission_core::config::{Config, Mode, OnRate, PoolConfig};

use crate::check::Notes;
use crate::check::envoy::Filter;
use crate::check::node::join;

const SWITCH: &str = "allow_on_headers_stop_iteration";

/// Caps that a pool's own makes idle.
pub fn caps(config: &Config, path: &str, notes: &mut Notes) {
    for (index, pool) in config.pools.iter().enumerate() {
        classes(pool, &join(path, &format!("pools[{index}]")), notes);
    }
    let limits: Option<Vec<u32>> = config.pools.iter().map(|pool| pool.max_in_flight).collect();
    // A tenant's requests count over all pools.
    let Some(all) = limits.map(|limits| limits.into_iter().fold(0, u32::saturating_add)) else { return };
    let tiers = config.tiers.iter().map(|(name, tier)| (format!("tiers.{name}"), tier.max_in_flight));
    let tenants = config.tenants.iter().map(|(name, tenant)| (format!("tenants.{name}"), tenant.max_in_flight));
    for (place, cap) in tiers.chain(tenants) {
        if let Some(cap) = cap.filter(|cap| *cap > all) {
            let message = format!("{cap} never binds: all `pools` together let in {all}");
            notes.warn(join(path, &format!("{place}.max_in_flight")), message);
        }
    }
}

/// Ceilings above that of a lane of a higher priority, which holds for both.
pub fn ceilings(config: &Config, path: &str, notes: &mut Notes) {
    for (index, lane) in config.lanes.iter().enumerate() {
        let higher = config.lanes.iter().filter(|other| other.priority > lane.priority);
        let least = higher
            .filter_map(|other| Some((other.ceiling?, &other.name)))
            .min_by(|(one, _), (other, _)| one.total_cmp(other));
        if let (Some(ceiling), Some((least, higher))) = (lane.ceiling, least)
            && ceiling > least
        {
            let message = format!(
                "{ceiling} never binds: {higher:?} has a higher priority and a ceiling of {least}, which holds for both"
            );
            notes.warn(join(path, &format!("lanes[{index}].ceiling")), message);
        }
    }
}

/// Fields whose meaning depends on the priorities of other lanes.
pub fn levels(config: &Config, path: &str, notes: &mut Notes) {
    for (index, lane) in config.lanes.iter().enumerate() {
        let place = |field: &str| join(path, &format!("lanes[{index}].{field}"));
        let is_highest = config.lanes.iter().all(|other| other.priority <= lane.priority);
        let needs_higher = [("aging", lane.aging.is_some()), ("preemptible", lane.preemptible)];
        for (field, _) in needs_higher.iter().filter(|(_, said)| *said && is_highest) {
            let message = format!(
                "does nothing: no lane has a higher priority than {}; lanes of one priority are one line",
                lane.priority
            );
            notes.warn(place(field), message);
        }
    }
}

/// A header by which those that wait take turns, where no request may wait.
pub fn fairness(config: &Config, path: &str, notes: &mut Notes) {
    if config.fairness_header.is_some() && config.lanes.iter().all(|lane| lane.queue.is_none()) {
        let message = "does nothing: it orders waiting requests, and no lane has a `queue`";
        notes.warn(join(path, "fairness_header"), message.to_owned());
    }
}

/// Fields in a form that goes with the next release.
pub fn outdated(config: &Config, path: &str, notes: &mut Notes) {
    for outdated in config.outdated() {
        notes.warn(join(path, &outdated.path), outdated.message);
    }
}

/// Routes in shadow under a policy that binds: it takes off what is in force there.
pub fn shadowed_routes(config: &Config, path: &str, notes: &mut Notes) {
    let binds = config.mode == Mode::Enforce;
    let shadowed = config.routes.iter().enumerate().filter(|(_, route)| binds && route.mode == Some(Mode::Shadow));
    for (index, route) in shadowed {
        let tried = route.tier.as_ref().map(|tier| format!(" while the tier {tier:?} is tried")).unwrap_or_default();
        let message = format!(
            "lifts what is in force on this route: no limit of a tenant, a tier or a pool refuses a request there{tried}; to keep the \
             limits in force, try the new ones in a second filter, or say `mode: enforce` for the tenants (docs/shadow.md)"
        );
        notes.warn(join(path, &format!("routes[{index}].mode")), message);
    }
}

/// Routes with a tier that says `on_rate: wait`: a route's budgets are not waited for.
pub fn routes_that_refuse(config: &Config, path: &str, notes: &mut Notes) {
    let waits = |tier: &String| config.tiers.get(tier).is_some_and(|tier| tier.on_rate == Some(OnRate::Wait));
    for (index, route) in config.routes.iter().enumerate() {
        if let Some(tier) = route.tier.as_ref().filter(|tier| waits(tier)) {
            let message = format!(
                "its budgets refuse: `on_rate: wait` of {tier:?} holds for tenants, not for routes (docs/budgets.md)"
            );
            notes.warn(join(path, &format!("routes[{index}].tier")), message);
        }
    }
}

/// Tenants that are not listed and have no limit, while others have one.
pub fn unlimited(config: &Config, path: &str, notes: &mut Notes) {
    if let Some(problem) = config.unlimited() {
        notes.error(join(path, &problem.path), problem.message);
    }
}

/// Tenants of keys who are named nowhere, and lanes that their own clamp takes away.
pub fn tenants(config: &Config, path: &str, notes: &mut Notes) {
    for (index, source) in config.tenant.sources.iter().enumerate() {
        let named = source.api_key.iter().flat_map(|keys| keys.sha256.values());
        for tenant in named.filter(|tenant| !config.tenants.contains_key(*tenant)) {
            let message = format!("{tenant:?} is not one of `tenants`, so it shares a record with unknown ones");
            notes.warn(join(path, &format!("tenant.sources[{index}].api_key.sha256")), message);
        }
    }
    let position = |name: &Option<String>| config.lanes.iter().position(|lane| Some(&lane.name) == name.as_ref());
    for (name, tenant) in &config.tenants {
        let tier = tenant.tier.as_ref().and_then(|tier| config.tiers.get(tier));
        let lane = tenant.lane.clone().or_else(|| tier?.lane.clone());
        let highest = tenant.max_lane.clone().or_else(|| tier?.max_lane.clone());
        if let (Some(lane), Some(highest)) = (position(&lane), position(&highest))
            && lane < highest
        {
            let message = "is above its `max_lane`, which it gets instead";
            notes.warn(join(path, &format!("tenants.{name}.lane")), message);
        }
    }
}

fn classes(pool: &PoolConfig, path: &str, notes: &mut Notes) {
    for (index, class) in pool.classes.iter().enumerate() {
        if let (Some(cap), Some(limit)) = (class.max_in_flight, pool.max_in_flight)
            && cap > limit
        {
            let message = format!("{cap} never binds: the pool's own `max_in_flight` is {limit}");
            notes.warn(format!("{path}.classes[{index}].max_in_flight"), message);
        }
    }
}

/// Fields that do only half their work once the headers have gone on, said once for all of them.
pub fn needs_header_pause(config: &Config, path: &str, notes: &mut Notes) {
    if config.header_pause {
        return;
    }
    let mut fields = Vec::new();
    for (index, rule) in config.lane_rules.iter().enumerate() {
        if rule.model.is_some() {
            fields.push(format!("lane_rules[{index}].model"));
        }
    }
    let by_route = |pool: &PoolConfig| config.routes.iter().any(|route| route.pool.as_ref() == Some(&pool.name));
    let body_picks = |pool: &PoolConfig| config.pools.len() > 1 && !by_route(pool);
    for (index, pool) in config.pools.iter().enumerate() {
        let by_model = pool.classes.iter().enumerate().filter(|(_, class)| !class.models.is_empty());
        fields.extend(by_model.map(|(place, _)| format!("pools[{index}].classes[{place}].models")));
        if pool.pick_endpoint && body_picks(pool) {
            fields.push(format!("pools[{index}].pick_endpoint"));
        }
    }
    if !fields.is_empty() {
        let message = format!(
            "is not set, but what these need is known only when the body has been read, and by then the headers have gone \
             on without lane, pool or endpoint: {}. Set it where the proxy sets `{SWITCH}`",
            fields.join(", ")
        );
        notes.warn(join(path, "header_pause"), message);
    }
}

/// Pools that a WasmPlugin cannot tell apart in time.
pub fn pools_by_model_in_istio(config: &Config, path: &str, notes: &mut Notes) {
    let is_routed = |name: &str| config.routes.iter().any(|route| route.pool.as_deref() == Some(name));
    let take_models = config.pools.iter().filter(|pool| !pool.fallback_only);
    let is_open = take_models.clone().any(|pool| !is_routed(&pool.name));
    if take_models.count() > 1 && is_open && !config.header_pause {
        let message = "a WasmPlugin cannot hold a request's headers until its body names the model, so the request goes to the cluster of its route, \
                       whichever of these pools it counts in; name each `pool` in `routes`, or load the filter by an EnvoyFilter with `header_pause`";
        notes.warn(join(path, "pools"), message);
    }
}

/// A WasmPlugin has no field for what `header_pause` relies on.
pub fn header_pause_in_istio(config: &Config, path: &str, notes: &mut Notes) {
    if config.header_pause {
        let message = format!(
            "a WasmPlugin cannot set `{SWITCH}`, so requests that wait at their headers would wait for ever; leave it \
             out, or load the filter by an EnvoyFilter that sets both"
        );
        notes.warn(join(path, "header_pause"), message);
    }
}

/// Both switches or none.
pub fn header_pause_in_envoy(config: &Config, path: &str, filter: &Filter<'_>, notes: &mut Notes) {
    match (config.header_pause, filter.plugin.is_true(SWITCH)) {
        (true, false) => {
            let message = format!(
                "the filter lacks `{SWITCH}: true`, so requests that wait at their headers would wait for ever; set both \
                 or none"
            );
            notes.warn(join(path, "header_pause"), message);
        }
        (false, true) => {
            let message = "the policy does not use it: `header_pause` is not set; set both or none";
            notes.warn(filter.plugin.place(SWITCH), message);
        }
        _ => {}
    }
}
