//! What the reference page says beside the types: its order, its headings and what belongs to no single field.

use admission_core::config::{
    AgingConfig, ApiKeySource, BodyConfig, BurstyRate, CertificateSource, ClassConfig, Config, ControlConfig,
    DispatchBudgetConfig, EstimateConfig, KvConfig, LaneConfig, LaneRuleConfig, LimitsConfig, PoolConfig,
    PoolQueueConfig, PullConfig, QueueConfig, RejectConfig, ReserveTerms, RetryAfterConfig, RouteConfig,
    RouteMatchConfig, StaleConfig, TenantConfig, TenantLimitsConfig, TenantSource, TrustConfig, ViewConfig,
};

use super::fields;

/// Objects that belong together.
pub struct Section {
    pub title: &'static str,
    pub text: &'static str,
    pub objects: &'static [Object],
}

/// An object of the configuration.
pub struct Object {
    /// Its type in the schema.
    pub name: &'static str,
    /// Its heading: where it stands; empty where the section's heading says it.
    pub place: &'static str,
    /// What a field of this type is called.
    pub word: &'static str,
    pub fields: fn() -> &'static [&'static str],
}

macro_rules! object {
    ($type:ident, $place:literal, $word:literal) => {
        Object { name: stringify!($type), place: $place, word: $word, fields: fields::of::<$type> }
    };
}

pub const HEAD: &str = "\
# Configuration of the filter

<!-- `cargo xtask docs` writes this page from the comments in admission-core/src/config; change them, not it. -->

Every field there is. How the limits are computed: [budgets.md](budgets.md). Which requests are judged and where they
wait: [requests.md](requests.md). What the control listener shows: [state.md](state.md). The same as a JSON Schema:
[`envoy-config/schemas/plugin.schema.json`](../envoy-config/schemas/plugin.schema.json).

JSON, as the `pluginConfig` of a WasmPlugin or the `configuration` of Envoy's wasm filter. Unknown fields are errors. A
configuration with mistakes is refused whole: every mistake is in the proxy's log with its path, and the former one stays.
`sluice-sidecar check FILE…` says them before that: [checking.md](checking.md).

- A *duration* is `\"250ms\"`, `\"2s\"` or `\"1m 30s\"`; a *size* is `\"64KiB\"` or `\"1MiB\"`.
- A rate that is a whole number earns so much in each period, and as much can be saved up; `{rate, burst}` says both apart.
- Names of pools, lanes, tiers, classes and namespaces have 1 to 128 letters, digits, `-`, `_` or `.`; those of tenants 1 to
  128 visible ASCII characters.
- *Default* is what holds where the field is left out; `none` means that there is no such limit, choice or entry.
";

pub const SECTIONS: [Section; 10] = [
    Section { title: "The filter", text: "", objects: &[object!(Config, "", "configuration")] },
    Section {
        title: "Who sends a request",
        text: "Sources are asked in order. What callers can choose themselves must not be one of them.",
        objects: &[
            object!(TenantConfig, "`tenant`", "object"),
            object!(TenantSource, "`tenant.sources[]`", "source"),
            object!(CertificateSource, "`tenant.sources[].certificate`", "object"),
            object!(ApiKeySource, "`tenant.sources[].api_key`", "object"),
            object!(TrustConfig, "`trust_tags_from`", "object"),
        ],
    },
    Section {
        title: "Limits",
        text: "What a tenant has of its own goes before its tier's. How each limit is computed: [budgets.md](budgets.md).",
        objects: &[
            object!(LimitsConfig, "`tiers.<name>`", "limits"),
            object!(TenantLimitsConfig, "`tenants.<name>`", "limits"),
            object!(BurstyRate, "`{rate, burst}`", "`{rate, burst}`"),
        ],
    },
    Section {
        title: "Lanes",
        text: "A request has one lane. A worker is told a request's lane as `x-sluice-lane` and `x-sluice-priority`. A caller that would\n\
               rather be refused than wait in a queue sends `x-sluice-no-queue: true`.",
        objects: &[
            object!(LaneConfig, "`lanes[]`", "lane"),
            object!(QueueConfig, "`lanes[].queue`", "queue"),
            object!(AgingConfig, "`lanes[].aging`", "object"),
            object!(DispatchBudgetConfig, "`lanes[].dispatch_budget`", "object"),
            object!(ReserveTerms, "`lanes[].reserve`", "`{share, requests, lend}`"),
            object!(LaneRuleConfig, "`lane_rules[]`", "rule"),
        ],
    },
    Section {
        title: "Routes",
        text: "",
        objects: &[object!(RouteConfig, "`routes[]`", "route"), object!(RouteMatchConfig, "`routes[].match`", "match")],
    },
    Section {
        title: "Pools",
        text: "",
        objects: &[
            object!(PoolConfig, "`pools[]`", "pool"),
            object!(EstimateConfig, "`pools[].estimate`", "object"),
            object!(KvConfig, "`pools[].kv`", "object"),
            object!(PoolQueueConfig, "`pools[].queue`", "object"),
            object!(StaleConfig, "`pools[].stale`", "object"),
            object!(ClassConfig, "`pools[].classes[]`", "class"),
        ],
    },
    Section {
        title: "View",
        text: "How views come to proxies: [view.md](view.md).",
        objects: &[object!(ViewConfig, "`view`", "object"), object!(PullConfig, "`view.pull`", "object")],
    },
    Section { title: "Bodies", text: "", objects: &[object!(BodyConfig, "`body`", "object")] },
    Section {
        title: "Refusals",
        text: "",
        objects: &[
            object!(RejectConfig, "`reject`", "object"),
            object!(RetryAfterConfig, "`reject.retry_after`", "object"),
        ],
    },
    Section {
        title: "The control role",
        text: "On a listener of its own, on loopback or a Unix socket, with `allow_on_headers_stop_iteration: true` and room to\n\
               buffer a whole view. What it shows: [state.md](state.md).",
        objects: &[object!(ControlConfig, "", "configuration")],
    },
];

pub const REASONS: &str = "\
Why a request is refused: what `x-sluice-reason` and the metrics say, and what `reject.status` and `pools[].fallback_on` name.
The status is the default one.";

/// The object of a type, where it has a table.
pub fn object(name: &str) -> Option<&'static Object> {
    SECTIONS.iter().flat_map(|section| section.objects).find(|object| object.name == name)
}

/// The anchor that readers of Markdown give a heading.
pub fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|sign| sign.is_alphanumeric() || matches!(sign, ' ' | '-' | '_'));
    kept.map(|sign| if sign == ' ' { '-' } else { sign }).collect()
}
