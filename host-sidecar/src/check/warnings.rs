//! What is allowed but surely not meant. Nothing is said of what cannot be seen.

use std::time::Duration;

use admission_core::config::{Config, ControlConfig, PluginConfig};
use admission_core::units::Millis;

use super::Notes;
use super::envoy;
use super::kinds::{Carrier, Written};
use super::node::Node;

mod clusters;
mod control_role;
mod lanes;
mod policy;
mod proxy;
mod reserves;
mod routes;
mod tenants;

pub use clusters::heeds_endpoints;

/// What holds whatever the plugin is configured to do.
pub fn any_role(written: &Written<'_>, notes: &mut Notes) {
    match &written.carrier {
        Carrier::Alone => {}
        Carrier::WasmPlugin(spec) => proxy::fail_strategy(spec, notes),
        Carrier::Filter(filter) => proxy::failure_policy(filter, notes),
    }
}

/// Filters that are loaded from elsewhere, and what answers while a start has found them refused.
pub fn no_default(node: &Node<'_>, notes: &mut Notes) {
    for discovery in envoy::discovered(node).iter().filter(|discovery| discovery.get("default_config").is_none()) {
        let message = "none: where a start finds a configuration that is refused, the proxy is live and answers 500 without a body to \
                       every request until a new version comes; give it the one of the shipped envoy.yaml, which says so";
        notes.warn(discovery.place("default_config"), message);
    }
}

/// The longest that policies let a request wait for anything but its own body: in a queue, or there for a first worker.
fn longest_wait<'a>(configs: impl IntoIterator<Item = &'a Config>) -> Duration {
    let of_one = |config: &'a Config| {
        let queues = config.lanes.iter().filter_map(|lane| Some(lane.queue.as_ref()?.max_wait));
        queues.chain(config.pools.iter().filter_map(|pool| pool.hold_when_empty))
    };
    let Millis(longest) = configs.into_iter().flat_map(of_one).max().unwrap_or_default();
    Duration::from_millis(longest)
}

/// What surrounds a filter, against what its policy needs.
pub fn filter(config: &Config, written: &Written<'_>, notes: &mut Notes) {
    policy::caps(config, &written.path, notes);
    policy::ceilings(config, &written.path, notes);
    policy::levels(config, &written.path, notes);
    policy::fairness(config, &written.path, notes);
    policy::outdated(config, &written.path, notes);
    policy::shadowed_routes(config, &written.path, notes);
    policy::routes_that_refuse(config, &written.path, notes);
    lanes::aging(config, &written.path, notes);
    lanes::goals(config, &written.path, notes);
    lanes::fallbacks(config, &written.path, notes);
    reserves::reserves(config, written, notes);
    policy::tenants(config, &written.path, notes);
    policy::unlimited(config, &written.path, notes);
    routes::loose_hosts(config, &written.path, notes);
    policy::needs_header_pause(config, &written.path, notes);
    match &written.carrier {
        Carrier::Alone => {}
        Carrier::WasmPlugin(spec) => {
            policy::header_pause_in_istio(config, &written.path, notes);
            policy::pools_by_model_in_istio(config, &written.path, notes);
            tenants::too_early(config, spec, notes);
        }
        Carrier::Filter(filter) => {
            policy::header_pause_in_envoy(config, &written.path, filter, notes);
            proxy::buffers(config, filter, notes);
            proxy::idle_timeouts(filter, longest_wait([config]), notes);
            tenants::unguarded(config, &written.path, filter, notes);
            tenants::callers_pick(config, &written.path, filter, notes);
            routes::chosen_by_callers(filter, notes);
            routes::loose_routes(config, filter, notes);
            routes::seen_too_early(config, filter, notes);
            routes::twice(config, filter, notes);
            clusters::breakers(config, filter, notes);
            clusters::endpoints(config, &written.path, filter, notes);
        }
    }
}

/// The surroundings of a filter that is loaded from elsewhere, against the policies that may be loaded.
pub fn around_discovered(filter: &envoy::Filter<'_>, loaded: &[&Config], notes: &mut Notes) {
    proxy::idle_timeouts(filter, longest_wait(loaded.iter().copied()), notes);
    if let [config] = loaded {
        proxy::buffers(config, filter, notes);
        clusters::breakers(config, filter, notes);
    }
}

/// Filters of one file that have one name and are configured differently.
pub fn one_name(written: &[Written<'_>], notes: &mut Notes) {
    let filters = written.iter().filter_map(|written| match (&written.carrier, written.config()?) {
        (Carrier::Filter(filter), PluginConfig::Filter(config)) => Some((written, filter, config)),
        _ => None,
    });
    let filters: Vec<_> = filters.collect();
    for (place, (written, filter, config)) in filters.iter().enumerate() {
        let is_like = |(earlier, other, of_other): &&(&Written<'_>, &envoy::Filter<'_>, Box<Config>)| {
            let names = |filter: &envoy::Filter<'_>| (filter.root_id().to_owned(), filter.vm_id().to_owned());
            names(other) == names(filter) && of_other.namespace == config.namespace && earlier.json != written.json
        };
        if let Some((earlier, ..)) = filters.iter().take(place).find(is_like) {
            let message = format!(
                "has the `root_id` {:?} as {} has, and is configured differently: a change of either decides again on what waits under the \
                 other; give it a `root_id` of its own",
                filter.root_id(),
                earlier.path
            );
            notes.warn(&filter.plugin.path, message);
        }
    }
}

/// What surrounds a control role.
pub fn control(config: &ControlConfig, written: &Written<'_>, notes: &mut Notes) {
    match &written.carrier {
        Carrier::Alone => {}
        Carrier::WasmPlugin(_) => control_role::in_istio(&written.path, notes),
        Carrier::Filter(filter) => control_role::in_envoy(config, filter, notes),
    }
}

/// Of a WasmPlugin in a file that patches its proxies, when none of the patches ends streams on which nothing moves. A plugin
/// without such neighbours may have them in another file.
pub fn never_idle(plugin: &Node<'_>, neighbours: &[Node<'_>], notes: &mut Notes) {
    let mut patches = neighbours.iter().flat_map(envoy::patches).peekable();
    if patches.peek().is_some() && !patches.any(|patch| sets_idle_timeout(&patch)) {
        let message = "no EnvoyFilter of this file sets `stream_idle_timeout`, and Istio sets none: a held request whose VM has died \
                       would hang for ever; see sluice-idle-timeout in envoy-config/istio.yaml";
        notes.warn(plugin.place("spec"), message);
    }
}

fn sets_idle_timeout(patch: &envoy::Patch<'_>) -> bool {
    match patch.applies_to {
        Some("NETWORK_FILTER") => {
            let manager = patch.value.get("typed_config").as_ref().and_then(envoy::typed);
            manager.is_some_and(|(_, manager)| manager.get("stream_idle_timeout").is_some())
        }
        Some("HTTP_ROUTE") => patch.value.down(&["route", "idle_timeout"]).is_some(),
        _ => false,
    }
}

/// What an EnvoyFilter changes around filters that stand elsewhere, by the policies of the same file.
pub fn patches(document: &Node<'_>, file: &[Config], notes: &mut Notes) {
    let longest_wait = longest_wait(file);
    let largest_hold = file.iter().map(|config| config.body.hold_limit).max();
    for patch in envoy::patches(document) {
        match patch.applies_to {
            Some("NETWORK_FILTER") => {
                for manager in patch.value.get("typed_config").iter().filter_map(envoy::typed) {
                    proxy::idle_timeout(&manager.1, "stream_idle_timeout", longest_wait, notes);
                }
            }
            Some("HTTP_ROUTE") => {
                if let Some(action) = patch.value.get("route") {
                    proxy::idle_timeout(&action, "idle_timeout", longest_wait, notes);
                }
                if let Some(hold) = largest_hold {
                    proxy::patched_buffer(&patch.value, hold, notes);
                }
            }
            _ => {}
        }
    }
}
