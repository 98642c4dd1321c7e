//! Of the clusters that a filter's routes lead to.

use admission_core::config::Config;
use admission_core::platform::ENDPOINT;

use crate::check::Notes;
use crate::check::envoy::Filter;
use crate::check::node::{Node, join};

/// What each threshold of a circuit breaker is unless told otherwise.
const DEFAULT_THRESHOLD: u64 = 1_024;

/// Circuit breakers that would refuse what the pools let in.
pub fn breakers(config: &Config, filter: &Filter<'_>, notes: &mut Notes) {
    for cluster in filter.reached() {
        let Some(let_in) = let_in(config, cluster) else { continue };
        let thresholds = cluster.down(&["circuit_breakers"]).map(|breakers| breakers.items("thresholds"));
        let of_default_priority = |node: &Node<'_>| node.text("priority").is_none_or(|priority| priority == "DEFAULT");
        let thresholds = thresholds.into_iter().flatten().find(of_default_priority);
        let limit = |name: &str| thresholds.as_ref().and_then(|it| it.number(name)).unwrap_or(DEFAULT_THRESHOLD);
        let low: Vec<String> = counted(cluster)
            .iter()
            .filter(|name| limit(name) < let_in)
            .map(|name| format!("{name} ({})", limit(name)))
            .collect();
        if !low.is_empty() {
            let message = format!(
                "the proxy would refuse by itself, without a reason or advice: below the {let_in} requests that the pools \
                 let in: {}. Each is {DEFAULT_THRESHOLD} unless set",
                low.join(", ")
            );
            notes.warn(cluster.place("circuit_breakers"), message);
        }
    }
}

/// The thresholds that count requests of a cluster.
fn counted(cluster: &Node<'_>) -> &'static [&'static str] {
    // HTTP/2 puts many requests on one connection.
    let may_be_http2 = ["http2_protocol_options", "typed_extension_protocol_options"];
    if may_be_http2.iter().any(|name| cluster.get(name).is_some()) {
        &["max_pending_requests", "max_requests"]
    } else {
        &["max_connections", "max_pending_requests", "max_requests"]
    }
}

/// Requests that all pools together let in at once; `None` where one of them has no limit that can be computed.
fn let_in(config: &Config, cluster: &Node<'_>) -> Option<u64> {
    let endpoints = cluster.get("load_assignment").map(|assignment| {
        let localities = assignment.items("endpoints").into_iter();
        localities.map(|locality| locality.items("lb_endpoints").len() as u64).sum::<u64>()
    });
    let mut pools = config.pools.iter().map(|pool| match (pool.max_in_flight, pool.max_in_flight_per_worker) {
        (Some(limit), _) => Some(u64::from(limit)),
        (None, Some(limit)) => Some(u64::from(limit).saturating_mul(endpoints?)),
        (None, None) => None,
    });
    pools.try_fold(0_u64, |sum, limit| Some(sum.saturating_add(limit?)))
}

/// True for a cluster, or a patch of one, that takes the worker that the filter names.
pub fn heeds_endpoints(cluster: &Node<'_>) -> bool {
    let policy = cluster.get("load_balancing_policy");
    policy.is_some_and(|policy| policy.mentions("override_host") && policy.mentions(ENDPOINT))
}

/// A choice of worker that the cluster does not heed.
pub fn endpoints(config: &Config, path: &str, filter: &Filter<'_>, notes: &mut Notes) {
    let reached = filter.reached();
    let deaf: Vec<String> =
        reached.iter().filter(|cluster| !heeds_endpoints(cluster)).map(|cluster| cluster.path.clone()).collect();
    // Which cluster serves which pool is not written anywhere; with several pools as many clusters are enough as choose.
    let choosing = config.pools.iter().filter(|pool| pool.pick_endpoint).count();
    let heeding = reached.len().saturating_sub(deaf.len());
    if deaf.is_empty() || config.pools.len() > 1 && heeding >= choosing {
        return;
    }
    for (index, _) in config.pools.iter().enumerate().filter(|(_, pool)| pool.pick_endpoint) {
        let message = format!(
            "the choice is not heeded by {}: its `load_balancing_policy` needs envoy.load_balancing_policies.override_host \
             with {ENDPOINT} among its sources",
            deaf.join(", ")
        );
        notes.warn(join(path, &format!("pools[{index}].pick_endpoint")), message);
    }
}
