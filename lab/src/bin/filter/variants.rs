//! The Envoys that are compared, which are the same but for their filters.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

/// Header in which callers say who they are.
pub const TENANT_HEADER: &str = "x-tenant-id";

/// A tenant whose budget in [`Variant::Native`] takes one small body and not two, which proves that bodies are counted.
pub const PROBE: &str = "probe";

/// Tokens in the probe's budget: more than a quarter of a small body's bytes, less than half of them.
const PROBE_TOKENS: u32 = 100;

/// Tenants of the short list and of the long one.
pub const TENANTS: [usize; 2] = [10, 10_000];

/// Tenants that ask where the short list names ten.
pub const UNNAMED: usize = 100_000;

/// More than any round asks for, and not so much that it is no number to a proxy.
const PLENTY: u64 = 4_000_000_000;

const TYPES: &str = "type.googleapis.com/envoy.extensions";

/// One of the proxies compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// No filter but the router.
    None,
    /// Waits for the body and sets a header.
    Floor,
    /// The same, and has the body copied to itself.
    FloorReading,
    /// A floor that also makes the calls that the whole filter makes.
    FloorCalls,
    /// Parses the body into a tree and counts requests in flight.
    Naive,
    /// Envoy's own reader of bodies and its rate limiter.
    Native,
    /// The whole filter, which decides at the headers and reads the body as it goes by.
    Sluice,
    /// The whole filter where the pool depends on the body, so that headers and body wait for its end.
    SluiceHeld,
    /// The same as [`Variant::Sluice`], with the long list of tenants.
    SluiceManyTenants,
    /// The same as [`Variant::Sluice`], for tenants without a name in the list.
    SluiceUnnamed,
    /// The same as [`Variant::Sluice`], in one of several proxies that are to cost alike.
    Ours(u8),
    /// The same as [`Variant::Ours`], with the module of another build.
    Theirs(u8),
}

impl Variant {
    /// Variants of the whole benchmark.
    pub const ALL: [Self; 10] = [
        Self::None,
        Self::Floor,
        Self::FloorReading,
        Self::FloorCalls,
        Self::Naive,
        Self::Native,
        Self::Sluice,
        Self::SluiceHeld,
        Self::SluiceManyTenants,
        Self::SluiceUnnamed,
    ];

    /// Variants that every body is sent through.
    pub const COMPARED: [Self; 8] = [
        Self::None,
        Self::Floor,
        Self::FloorReading,
        Self::FloorCalls,
        Self::Naive,
        Self::Native,
        Self::Sluice,
        Self::SluiceHeld,
    ];

    /// True where the module marks every request that it lets go on, for the worker to count.
    pub fn marks_requests(self) -> bool {
        matches!(self, Self::Floor | Self::FloorReading | Self::FloorCalls | Self::Naive)
    }

    /// Name of the variant in tables and figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Floor => "floor",
            Self::FloorReading => "floor_reading",
            Self::FloorCalls => "floor_calls",
            Self::Naive => "naive",
            Self::Native => "native",
            Self::Sluice => "sluice",
            Self::SluiceHeld => "sluice_held",
            Self::SluiceManyTenants => "sluice_10000_tenants",
            Self::SluiceUnnamed => "sluice_100000_unnamed",
            Self::Ours(_) => "ours",
            Self::Theirs(_) => "theirs",
        }
    }

    fn filters(self, modules: &Modules) -> Vec<Value> {
        match self {
            Self::None => Vec::new(),
            Self::Floor => vec![wasm("floor", &modules.floor, true, "")],
            Self::FloorReading => vec![wasm("floor", &modules.floor, true, "read")],
            Self::FloorCalls => vec![wasm("floor", &modules.floor, true, "calls")],
            Self::Naive => vec![wasm("naive", &modules.naive, true, "")],
            Self::Native => vec![protocol_manager(), local_ratelimit()],
            Self::Sluice | Self::SluiceManyTenants | Self::SluiceUnnamed | Self::SluiceHeld | Self::Ours(_) => {
                let held = self == Self::SluiceHeld;
                let [few, many] = TENANTS;
                let tenants = if self == Self::SluiceManyTenants { many } else { few };
                vec![wasm("sluice", &modules.filter, held, &policy(tenants, held).to_string())]
            }
            Self::Theirs(_) => {
                let module = modules.other.iter();
                module.map(|module| wasm("sluice", module, false, &policy(TENANTS[0], false).to_string())).collect()
            }
        }
    }

    /// The whole configuration of its proxy.
    pub fn bootstrap(self, modules: &Modules, upstream: SocketAddr) -> Value {
        let mut filters = self.filters(modules);
        filters.push(json!({
            "name": "envoy.filters.http.router",
            "typed_config": {"@type": format!("{TYPES}.filters.http.router.v3.Router")},
        }));
        let mut route = json!({
            "match": {"prefix": "/"},
            // As the shipped configuration has it.
            "request_body_buffer_limit": 2_228_224,
            "route": {"cluster": "workers", "timeout": "0s"},
        });
        if self == Self::Native {
            route["typed_per_filter_config"] = json!({"envoy.filters.http.ai_protocol_manager": {
                "@type": format!("{TYPES}.filters.http.ai_protocol_manager.v3.AiProtocolManagerPerRoute"),
                "request": {"llm_protocol": "OPENAI_CHAT_COMPLETIONS"},
            }});
        }
        let address = |ip: String, port: u16| json!({"socket_address": {"address": ip, "port_value": port}});
        let local = || address("127.0.0.1".to_owned(), 0);
        let worker = json!({"endpoint": {"address": address(upstream.ip().to_string(), upstream.port())}});
        json!({
            "admin": {"address": local()},
            "static_resources": {
                "listeners": [{
                    "name": "public",
                    "address": local(),
                    "filter_chains": [{"filters": [{
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": {
                            "@type": format!("{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager"),
                            "stat_prefix": "public",
                            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
                            "http_filters": filters,
                        },
                    }]}],
                }],
                "clusters": [{
                    "name": "workers",
                    "type": "STATIC",
                    "load_assignment": {"cluster_name": "workers", "endpoints": [{"lb_endpoints": [worker]}]},
                }],
            },
        })
    }
}

/// The modules that are compared.
#[derive(Clone, Debug)]
pub struct Modules {
    pub floor: PathBuf,
    pub naive: PathBuf,
    pub filter: PathBuf,
    /// The filter of another build.
    pub other: Option<PathBuf>,
}

fn wasm(name: &str, module: &Path, holds_headers: bool, configuration: &str) -> Value {
    json!({
        "name": name,
        "typed_config": {
            "@type": format!("{TYPES}.filters.http.wasm.v3.Wasm"),
            "config": {
                "name": name,
                "root_id": name,
                "failure_policy": "FAIL_RELOAD",
                "allow_on_headers_stop_iteration": holds_headers,
                "vm_config": {
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": {"local": {"filename": module.display().to_string()}},
                },
                "configuration": {
                    "@type": "type.googleapis.com/google.protobuf.StringValue",
                    "value": configuration,
                },
            },
        },
    })
}

/// A policy that uses what there is and refuses nobody. With `held`, the pool depends on the model that the body names.
pub fn policy(tenants: usize, held: bool) -> Value {
    let named = (0..tenants).map(|number| (tenant(number), json!({"tier": "paid"})));
    let mut tenants: serde_json::Map<String, Value> = named.collect();
    tenants.insert("*".to_owned(), json!({"tier": "free"}));
    let tier = |weight: u32| {
        json!({
            "max_in_flight": 100_000,
            "max_tokens_in_flight": PLENTY,
            // As large as budgets get; what is charged by the estimate is settled by the little that is reported.
            "requests_per_minute": 100_000_000,
            "tokens_per_minute": 300_000_000,
            "weight": weight,
        })
    };
    let pool = |name: &str, models: &str| json!({"name": name, "models": [models], "max_in_flight": 100_000});
    let mut pools = vec![pool("llama", "llama-3.3-70b*")];
    if held {
        pools.push(pool("qwen", "qwen3-*"));
    }
    json!({
        "header_pause": held,
        "tenant": {"sources": [{"header": TENANT_HEADER}], "default": "anonymous"},
        "tiers": {"paid": tier(4), "free": tier(1)},
        "tenants": tenants,
        "lanes": [
            {"name": "interactive", "priority": 100, "reserve": {"share": 0.125}, "queue": {"max_requests": 64, "max_wait": "2s"}},
            {"name": "standard", "priority": 0, "queue": {"max_requests": 128, "max_wait": "10s"}},
            {"name": "batch", "priority": -10, "aging": {"after": "60s", "to": "standard"},
             "queue": {"max_requests": 512, "max_wait": "240s"}},
        ],
        "default_lane": "standard",
        "lane_header": "x-sluice-lane",
        "pools": pools,
    })
}

/// Name of one of the tenants.
pub fn tenant(number: usize) -> String {
    format!("tenant-{number}")
}

/// Reads a body as a chat and says what it is, its tokens taken as a quarter of its bytes.
fn protocol_manager() -> Value {
    json!({
        "name": "envoy.filters.http.ai_protocol_manager",
        "typed_config": {
            "@type": format!("{TYPES}.filters.http.ai_protocol_manager.v3.AiProtocolManager"),
            "request_handling": {},
            "filters": [{
                "name": "envoy.http.ai_filters.request_info",
                "typed_config": {
                    "@type": format!("{TYPES}.http.ai_filters.request_info.v3.RequestInfo"),
                    "token_estimation": {"tokens_per_byte": 0.25},
                },
            }],
        },
    })
}

/// Takes those tokens from a bucket of the tenant.
fn local_ratelimit() -> Value {
    let always = json!({"default_value": {"numerator": 100, "denominator": "HUNDRED"}});
    let plenty = json!({"max_tokens": PLENTY, "tokens_per_fill": PLENTY, "fill_interval": "1s"});
    let estimate = "%CEL(metadata.typed_filter_metadata['envoy.ai.request_info'].estimated_input_tokens)%";
    json!({
        "name": "envoy.filters.http.local_ratelimit",
        "typed_config": {
            "@type": format!("{TYPES}.filters.http.local_ratelimit.v3.LocalRateLimit"),
            "stat_prefix": "tenants",
            "filter_enabled": always,
            "filter_enforced": always,
            "token_bucket": plenty,
            "always_consume_default_token_bucket": false,
            "rate_limits": [{
                "actions": [{"request_headers": {"header_name": TENANT_HEADER, "descriptor_key": "tenant"}}],
                "hits_addend": {"format": estimate},
            }],
            "descriptors": [
                // Whoever comes, each with a bucket of its own.
                {"entries": [{"key": "tenant"}], "token_bucket": plenty},
                {
                    "entries": [{"key": "tenant", "value": PROBE}],
                    "token_bucket": {"max_tokens": PROBE_TOKENS, "tokens_per_fill": 1, "fill_interval": "3600s"},
                },
            ],
        },
    })
}

#[cfg(test)]
mod tests {
    use admission_core::policy::Plugin;

    use super::*;

    #[test]
    fn the_filter_takes_every_policy() {
        for (tenants, held) in [(10, false), (10, true), (10_000, false)] {
            let parsed = Plugin::parse(policy(tenants, held).to_string().as_bytes());
            let Ok(Plugin::Filter(policy)) = parsed else { panic!("{parsed:?}") };
            assert_eq!(policy.only_pool().is_some(), !held);
            assert_eq!(policy.tenant_names().filter(|name| name.starts_with("tenant-")).count(), tenants);
        }
    }

    #[test]
    fn the_probes_budget_takes_one_small_body() {
        let small = &testkit::bodies::all()[0];
        let tokens = u32::try_from(small.json.len().div_ceil(4)).unwrap();
        assert!(tokens <= PROBE_TOKENS && PROBE_TOKENS < 2 * tokens);
    }
}
