//! Envoy's configuration, as Istio would write it.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

pub use testkit::plugin::{Plugin, discovered};

/// Name of the plugin under test.
pub const PLUGIN: &str = "sluice";

/// A filter that is part of the listener.
#[must_use]
pub fn fixed(plugin: &Plugin<'_>) -> Value {
    json!({"name": plugin.name, "typed_config": plugin.typed_config()})
}

/// A listener on a free port with these filters before the router.
#[must_use]
pub fn listener(name: &str, filters: &[Value], routes: &Value) -> Value {
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
    });
    let filters: Vec<&Value> = filters.iter().chain([&router]).collect();
    json!({
        "name": name,
        "stat_prefix": name,
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "per_connection_buffer_limit_bytes": 1 << 20,
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": name,
                "stream_idle_timeout": "0s",
                "use_remote_address": true,
                // As where services inside are trusted by their addresses, which a caller can only claim to have.
                "internal_address_config": {"cidr_ranges": [{"address_prefix": "10.0.0.0", "prefix_len": 8}]},
                "http_protocol_options": {"enable_trailers": true},
                "http2_protocol_options": {"allow_connect": true},
                "route_config": {"name": name, "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
                "http_filters": filters,
            },
        }]}],
    })
}

/// Routes to the workers, and by prefix to the worker that resets its connections. Envoy may hold back what the filter
/// does (`body.hold_limit`) and one more read of the connection, which is at most its buffer limit.
#[must_use]
pub fn worker_routes() -> Value {
    let route = |prefix: &str, cluster: &str| {
        json!({
            "match": {"prefix": prefix}, "route": {"cluster": cluster, "timeout": "0s"},
            "request_body_buffer_limit": 3 << 20,
        })
    };
    json!([route("/resetting/", "resetter"), route("/", "workers")])
}

/// A route of a path's beginning, which the worker does not see.
#[must_use]
pub fn route_without_prefix(prefix: &str, cluster: &str) -> Value {
    json!({
        "match": {"prefix": prefix}, "request_body_buffer_limit": 3 << 20,
        "route": {"cluster": cluster, "timeout": "0s", "prefix_rewrite": "/"},
    })
}

/// A listener's only virtual host: these routes, and behind them [`worker_routes`].
#[must_use]
pub fn virtual_hosts(first: &[Value]) -> Value {
    let mut routes = first.to_vec();
    routes.extend(worker_routes().as_array().cloned().unwrap_or_default());
    json!([{"name": "all", "domains": ["*"], "routes": routes}])
}

/// Access logs that write JSON of this format, one object a line, to the proxy's own log.
#[must_use]
pub fn access_log(format: &Value) -> Value {
    json!([{
        "name": "envoy.access_loggers.stderr",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StderrAccessLog",
            "log_format": {"json_format": format},
        },
    }])
}

/// Nowhere: the control role answers by itself.
#[must_use]
pub fn no_routes() -> Value {
    json!([{"match": {"prefix": "/"}, "direct_response": {"status": 404}}])
}

/// A bootstrap with these listeners; more listeners, and all clusters, come from files in a folder.
#[must_use]
pub fn dynamic(folder: &Path, listeners: &[Value]) -> Value {
    let tags = ["pool", "lane", "model", "endpoint", "outcome", "sign", "vm", "bound"]
        .map(|tag| json!({"tag_name": tag, "regex": format!("({tag}=\\.=(.*?);\\.;)")}));
    let from = |file: &str| {
        let source = json!({"path": folder.join(file), "watched_directory": {"path": folder}});
        json!({"path_config_source": source, "resource_api_version": "V3"})
    };
    json!({
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "dynamic_resources": {"cds_config": from("clusters.json"), "lds_config": from("listeners.json")},
        "static_resources": {"listeners": listeners},
        "stats_config": {"stats_tags": tags},
        // Histograms are gathered whenever a test asks, and not every five seconds.
        "stats_flush_on_admin": true,
    })
}

/// Makes a cluster take the worker that a request's header names.
pub fn steer(cluster: &mut Value) {
    let policies = "type.googleapis.com/envoy.extensions.load_balancing_policies";
    let fallback =
        json!({"name": "round_robin", "typed_config": {"@type": format!("{policies}.round_robin.v3.RoundRobin")}});
    let steering = json!({
        "@type": format!("{policies}.override_host.v3.OverrideHost"),
        "override_host_sources": [{"header": "x-gateway-destination-endpoint"}],
        "fallback_policy": {"policies": [{"typed_extension_config": fallback}]},
    });
    let policy = json!({"name": "envoy.load_balancing_policies.override_host", "typed_config": steering});
    cluster["load_balancing_policy"] = json!({"policies": [{"typed_extension_config": policy}]});
}

fn endpoint(address: SocketAddr) -> Value {
    let (address, port) = (address.ip().to_string(), address.port());
    json!({"endpoint": {"address": {"socket_address": {"address": address, "port_value": port}}}})
}

/// The cluster of an endpoint picker, which speaks gRPC.
#[must_use]
pub fn picker_cluster(address: SocketAddr) -> Value {
    let mut cluster = cluster("picker", &[address]);
    for options in
        cluster["typed_extension_protocol_options"].as_object_mut().into_iter().flat_map(|all| all.values_mut())
    {
        options["explicit_http_config"] = json!({"http2_protocol_options": {}});
    }
    cluster
}

/// A cluster of these workers.
#[must_use]
pub fn cluster(name: &str, addresses: &[SocketAddr]) -> Value {
    let endpoints: Vec<Value> = addresses.iter().copied().map(endpoint).collect();
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let http = json!({
        "@type": format!("type.googleapis.com/{options}"),
        "explicit_http_config": {"http_protocol_options": {"enable_trailers": true}},
    });
    let most = 10_000;
    let limits =
        json!({"max_connections": most, "max_pending_requests": most, "max_requests": most, "max_retries": most});
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": {"thresholds": [limits]},
        "typed_extension_protocol_options": {options: http},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    })
}
