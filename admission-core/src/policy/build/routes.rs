//! What differs on routes.

use super::super::Route;
use super::super::route::{Narrowing, RouteRule};
use super::lanes::lane_index;
use super::{Checker, Names, check_path_prefix};
use crate::config::{ApiConfig, Config, RouteConfig, RouteMatchConfig};

pub(super) fn routes(config: &Config, names: Names<'_>, check: &mut Checker<'_>) -> Vec<RouteRule> {
    let mut rules = Vec::new();
    for (index, entry) in config.routes.iter().enumerate() {
        let path = format!("routes[{index}]");
        let matches = entry.matches.clone().unwrap_or_default();
        if matches == RouteMatchConfig::default() {
            let message = "must name at least one of `route_name`, `virtual_host` and `path_prefix`";
            check.problem(format!("{path}.match"), message);
        }
        if let Some(prefix) = &matches.path_prefix {
            check_path_prefix(format!("{path}.match.path_prefix"), prefix, check);
        }
        let RouteMatchConfig { route_name, virtual_host, path_prefix } = matches;
        rules.push(RouteRule { route_name, virtual_host, path_prefix, route: route(&path, entry, names, check) });
    }
    // Of entries that say as much about a request, the first one stands, as it does for rules.
    rules.reverse();
    rules.sort_by_key(RouteRule::specificity);
    rules
}

/// `path` is empty for an object that stands by itself.
pub(super) fn route(path: &str, config: &RouteConfig, names: Names<'_>, check: &mut Checker<'_>) -> Route {
    let place = |field: &str| if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") };
    let RouteConfig { matches: _, enabled, mode, api, upgrades, background, pool, lane, max_lane, tier } = config;
    let says = RouteConfig { matches: None, ..config.clone() };
    if says == RouteConfig::default() && check.shape == 0 {
        check
            .problem(path, "changes nothing: it needs one of `enabled`, `mode`, `api`, `upgrades`, `background`, `pool`, `lane`, `max_lane` and `tier`");
    }
    let found_pool = pool.as_ref().and_then(|name| names.pools.iter().find(|pool| pool.name == *name));
    if let (Some(name), None) = (pool, found_pool) {
        check.unknown(place("pool"), "pools", name);
    }
    let found_tier = tier.as_ref().and_then(|name| names.tiers.get(name));
    if let (Some(name), None) = (tier, found_tier) {
        check.unknown(place("tier"), "tiers", name);
    }
    if let (Some(name), Some(found)) = (tier, found_tier)
        && !found.limits_anything()
    {
        check.problem(
            place("tier"),
            format!("{name:?} has no limit of requests or tokens, and nothing else counts here"),
        );
    }
    let mut index =
        |name: &Option<String>, field| name.as_ref().map(|name| lane_index(names.lanes, name, &place(field), check));
    Route {
        lane: index(lane, "lane"),
        max_lane: index(max_lane, "max_lane"),
        enabled: *enabled,
        mode: *mode,
        api: api.map(ApiConfig::api),
        upgrades: *upgrades,
        background: *background,
        pool: found_pool.cloned(),
        tier: found_tier.cloned(),
        narrowing: Narrowing::default(),
    }
}
