//! From configuration to policy, noting every problem on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::{
    Cap, Control, Headroom, Lane, Lanes, Limits, MAX_NAME, ModelPattern, Policy, Pool, Reject, Stale, is_name,
};
use crate::budget::{Rate, Rates};
use crate::config::{
    ApiKeySource, BurstyRate, Config, ControlConfig, LaneConfig, LimitsConfig, PluginConfig, PoolConfig, RateConfig,
    StalePolicy, TenantLimitsConfig, TenantSource,
};
use crate::identity::{ApiKeys, Source, UriName};
use crate::keys::Keys;
use crate::ledger::LaneKey;
use crate::problem::{self, Problem};
use crate::units::{Millis, Tokens};

const SECOND: Millis = Millis(1_000);
const MINUTE: Millis = Millis(60_000);

const SHA256_OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The entry of `tenants` that stands for everybody else.
const EVERYBODY_ELSE: &str = "*";

impl PluginConfig {
    /// Reads the shape of a configuration; what it says may still be wrong.
    pub(super) fn read(json: &[u8], problems: &mut Vec<Problem>) -> Option<Self> {
        if json.trim_ascii().is_empty() {
            problems.push(Problem::new("", "the plugin has no configuration; it needs at least `pools`"));
            return None;
        }
        let value: Value = match serde_json::from_slice(json) {
            Ok(value) => value,
            Err(error) => {
                problems.push(Problem::new("", format!("not JSON: {error}")));
                return None;
            }
        };
        if !value.is_object() {
            problems.push(Problem::new("", "a configuration is a JSON object"));
            return None;
        }
        match value.get("role").and_then(Value::as_str) {
            Some("control") => problem::read_all(value, problems).map(Self::Control),
            _ => problem::read_all(value, problems).map(|config| Self::Filter(Box::new(config))),
        }
    }
}

pub(super) fn control(config: &ControlConfig, problems: &mut Vec<Problem>) -> Option<Control> {
    check_name("namespace", &config.namespace, problems);
    if config.max_view == 0 {
        problems.push(Problem::new("max_view", "must be more than nothing"));
    }
    let token_sha256 = sha256_digits(&config.token_sha256);
    if token_sha256.is_none() {
        problems.push(Problem::new("token_sha256", "must be 64 hexadecimal digits, the SHA-256 of the token"));
    }
    if token_sha256.is_some() && token_sha256 == sha256_digits(SHA256_OF_NOTHING) {
        problems.push(Problem::new("token_sha256", "is the SHA-256 of no bytes at all: the token was empty"));
    }
    let keys = Keys::new(&config.namespace);
    token_sha256.map(|token_sha256| Control { keys, token_sha256, hold: config.hold, max_view: config.max_view })
}

fn sha256_digits(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (place, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *place = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

/// What is missing because its shape was wrong must not be reported again as an unknown reference.
struct Checker<'a> {
    problems: &'a mut Vec<Problem>,
    /// How many of the problems are of shape.
    shape: usize,
}

impl Checker<'_> {
    fn problem(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem::new(path, message));
    }

    fn unknown(&mut self, path: String, kind: &str, name: &str) {
        // The name may stand in what had to be taken out.
        if !self.problems.iter().take(self.shape).any(|problem| problem.path.starts_with(kind)) {
            self.problem(path, format!("{name:?} is not one of `{kind}`"));
        }
    }
}

pub(super) fn policy(config: &Config, problems: &mut Vec<Problem>) -> Policy {
    let shape = problems.len();
    let mut check = Checker { problems, shape };
    check_name("namespace", &config.namespace, check.problems);
    let keys = Keys::new(&config.namespace);
    let lanes = lanes(config, &mut check);
    let tenant_sources = tenant_sources(&config.tenant.sources, &mut check);
    check_tenant_name("tenant.default", &config.tenant.default, &mut check);
    check_lane_header(config, &mut check);
    check_body_and_reject(config, &mut check);
    let (tenants, everybody_else) = tenants(config, &lanes, &mut check);
    let pools = pools(config, &keys, &mut check);
    Policy {
        namespace: config.namespace.clone(),
        keys,
        header_pause: config.header_pause,
        tenant_sources,
        default_tenant: config.tenant.default.clone(),
        lane_header: config.lane_header.as_ref().map(|header| header.to_ascii_lowercase()),
        hold_limit: config.body.hold_limit,
        reject: Reject {
            status: config.reject.status.clone(),
            retry_after: config.reject.retry_after.clone(),
            batch_url: config.reject.batch_url.clone(),
        },
        lanes,
        pools,
        tenants,
        everybody_else,
    }
}

fn check_name(path: &str, name: &str, problems: &mut Vec<Problem>) {
    if !is_name(name) {
        problems.push(Problem::new(
            path,
            format!("{name:?} is not a name: 1 to {MAX_NAME} letters, digits, `-`, `_` or `.` are allowed"),
        ));
    }
}

fn check_header(path: String, name: &str, check: &mut Checker<'_>) {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        check.problem(path, format!("{name:?} is not the name of a header"));
    }
}

fn tenant_sources(configs: &[TenantSource], check: &mut Checker<'_>) -> Vec<Source> {
    let sources = configs.iter().enumerate();
    sources.filter_map(|(index, config)| tenant_source(&format!("tenant.sources[{index}]"), config, check)).collect()
}

fn tenant_source(path: &str, config: &TenantSource, check: &mut Checker<'_>) -> Option<Source> {
    match config {
        TenantSource { metadata: Some(keys), certificate: None, header: None, api_key: None } => {
            if keys.len() < 2 || keys.iter().any(String::is_empty) {
                check.problem(format!("{path}.metadata"), "must be the namespace of a filter and at least one key");
            }
            Some(Source::Metadata(keys.clone()))
        }
        TenantSource { metadata: None, certificate: Some(config), header: None, api_key: None } => {
            Some(Source::Certificate(UriName { after: config.after.clone() }))
        }
        TenantSource { metadata: None, certificate: None, header: Some(header), api_key: None } => {
            check_source_header(format!("{path}.header"), header, check);
            Some(Source::Header(header.to_ascii_lowercase()))
        }
        TenantSource { metadata: None, certificate: None, header: None, api_key: Some(config) } => {
            check_source_header(format!("{path}.api_key.header"), &config.header, check);
            Some(Source::ApiKey(api_keys(&format!("{path}.api_key"), config, check)))
        }
        _ => {
            if check.shape == 0 {
                check.problem(path, "must have exactly one of `metadata`, `certificate`, `header` and `api_key`");
            }
            None
        }
    }
}

fn check_source_header(path: String, header: &str, check: &mut Checker<'_>) {
    if header.to_ascii_lowercase().starts_with("x-sluice-") {
        check.problem(
            path,
            "headers beginning with x-sluice- are removed from every request, so it would never be seen",
        );
    } else {
        check_header(path, header, check);
    }
}

fn api_keys(path: &str, config: &ApiKeySource, check: &mut Checker<'_>) -> ApiKeys {
    let mut keys = Vec::new();
    for (digits, tenant) in &config.sha256 {
        check_tenant_name(&format!("{path}.sha256.{digits}"), tenant, check);
        match sha256_digits(digits) {
            Some(digest) => keys.push((digest, tenant.clone())),
            None => {
                check.problem(format!("{path}.sha256.{digits}"), "must be 64 hexadecimal digits, the SHA-256 of a key")
            }
        }
    }
    ApiKeys::new(config.header.to_ascii_lowercase(), config.prefix.clone(), keys)
}

/// Identities come from elsewhere, so more is allowed in them than in names that are only ours.
fn check_tenant_name(path: &str, name: &str, check: &mut Checker<'_>) {
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        check.problem(path, format!("{name:?} is not a tenant: 1 to {MAX_NAME} visible ASCII characters are allowed"));
    }
}

fn check_lane_header(config: &Config, check: &mut Checker<'_>) {
    if let Some(header) = &config.lane_header {
        check_header("lane_header".to_owned(), header, check);
    }
}

fn check_body_and_reject(config: &Config, check: &mut Checker<'_>) {
    if config.body.hold_limit == 0 {
        check.problem("body.hold_limit", "must be more than nothing: a request cannot be decided from no bytes");
    }
    let retry_after = &config.reject.retry_after;
    if retry_after.min > retry_after.max {
        check.problem("reject.retry_after.min", format!("{} is above `max`, {}", retry_after.min, retry_after.max));
    }
    if !(0.0..=1.0).contains(&retry_after.jitter) {
        check.problem("reject.retry_after.jitter", format!("{} is not a share from 0 to 1", retry_after.jitter));
    }
    for (reason, status) in &config.reject.status {
        if !(400..600).contains(status) {
            let message = format!("{status} is not the status of an error, 400 to 599");
            check.problem(format!("reject.status.{}", reason.label()), message);
        }
    }
}

fn lanes(config: &Config, check: &mut Checker<'_>) -> Lanes {
    let mut lanes: Vec<Lane> = Vec::new();
    for (index, config) in config.lanes.iter().enumerate() {
        let lane = lane(config);
        check_lane(&format!("lanes[{index}]"), &lane, &lanes, check);
        lanes.push(lane);
    }
    let mut lanes = lanes.into_iter();
    let highest = lanes.next().unwrap_or_else(|| lane(&LaneConfig { name: "default".to_owned(), priority: 0 }));
    let others: Vec<Lane> = lanes.collect();
    let lanes = Lanes { highest, default: others.len(), others };
    let default = config.default_lane.as_ref().map(|name| lane_index(&lanes, name, "default_lane", check));
    Lanes { default: default.unwrap_or(lanes.default), ..lanes }
}

fn lane(config: &LaneConfig) -> Lane {
    Lane { name: config.name.clone(), key: LaneKey::of(&config.name), priority: config.priority }
}

fn check_lane(path: &str, lane: &Lane, above: &[Lane], check: &mut Checker<'_>) {
    check_name(&format!("{path}.name"), &lane.name, check.problems);
    if let Some(other) = above.iter().find(|other| other.key == lane.key) {
        let message = format!(
            "{:?} cannot stand beside {:?}: the names must differ, and their hashes too",
            lane.name, other.name
        );
        check.problem(format!("{path}.name"), message);
    }
    if let Some(above) = above.last()
        && above.priority < lane.priority
    {
        let message = format!(
            "{} is above the {} of the lane before it; lanes stand highest first",
            lane.priority, above.priority
        );
        check.problem(format!("{path}.priority"), message);
    }
}

fn lane_index(lanes: &Lanes, name: &str, path: &str, check: &mut Checker<'_>) -> usize {
    let position = lanes.position(name);
    if position.is_none() {
        check.unknown(path.to_owned(), "lanes", name);
    }
    position.unwrap_or(0)
}

fn tenants(config: &Config, lanes: &Lanes, check: &mut Checker<'_>) -> (BTreeMap<String, Limits>, Limits) {
    for (name, tier) in &config.tiers {
        check_name(&format!("tiers.{name}"), name, check.problems);
        check_limits(&format!("tiers.{name}"), tier.max_in_flight, tier.max_tokens_in_flight, check);
        check_rate(format!("tiers.{name}.requests_per_minute"), tier.requests_per_minute, check);
        check_rate(format!("tiers.{name}.tokens_per_minute"), tier.tokens_per_minute, check);
        if let Some(lane) = &tier.max_lane {
            lane_index(lanes, lane, &format!("tiers.{name}.max_lane"), check);
        }
    }
    let mut tenants = BTreeMap::new();
    let mut everybody_else = Limits::default();
    for (name, tenant) in &config.tenants {
        let limits = limits(config, name, tenant, lanes, check);
        if name == EVERYBODY_ELSE {
            everybody_else = limits;
        } else {
            check_tenant_name(&format!("tenants.{name}"), name, check);
            tenants.insert(name.clone(), limits);
        }
    }
    (tenants, everybody_else)
}

fn check_limits(path: &str, requests: Option<u32>, tokens: Option<u64>, check: &mut Checker<'_>) {
    let zero = "0 would refuse every request; leave it out for no limit";
    if requests == Some(0) {
        check.problem(format!("{path}.max_in_flight"), zero);
    }
    if tokens == Some(0) {
        check.problem(format!("{path}.max_tokens_in_flight"), zero);
    }
}

fn check_rate(path: String, rate: Option<RateConfig>, check: &mut Checker<'_>) {
    if rate.is_some_and(|rate| rate.parts().rate == 0 || rate.parts().burst == 0) {
        check.problem(path, "rate and burst must be at least 1; leave it out for no limit");
    }
}

fn rate(config: Option<RateConfig>, period: Millis, knob: String) -> Option<Rate> {
    let BurstyRate { rate, burst } = config?.parts();
    Some(Rate { amount: rate, period, burst, knob: knob.into() })
}

fn limits(config: &Config, name: &str, tenant: &TenantLimitsConfig, lanes: &Lanes, check: &mut Checker<'_>) -> Limits {
    let own = format!("tenants.{name}");
    check_limits(&own, tenant.max_in_flight, tenant.max_tokens_in_flight, check);
    check_rate(format!("{own}.requests_per_minute"), tenant.requests_per_minute, check);
    check_rate(format!("{own}.tokens_per_minute"), tenant.tokens_per_minute, check);
    let tier = tenant.tier.as_ref().map(|tier| (format!("tiers.{tier}"), config.tiers.get(tier)));
    if let (Some(name), Some((_, None))) = (&tenant.tier, &tier) {
        check.unknown(format!("{own}.tier"), "tiers", name);
    }
    let no_limits = LimitsConfig::default();
    let (tier_path, tier) = match tier {
        Some((path, Some(limits))) => (path, limits),
        _ => (String::new(), &no_limits),
    };
    let cap = |own_value: Option<u64>, tier_value: Option<u64>, field: &str| match (own_value, tier_value) {
        (Some(limit), _) => Some(Cap { limit, knob: format!("{own}.{field}").into() }),
        (None, Some(limit)) => Some(Cap { limit, knob: format!("{tier_path}.{field}").into() }),
        (None, None) => None,
    };
    let minute = |own_value: Option<RateConfig>, tier_value: Option<RateConfig>, field: &str| {
        let path = if own_value.is_some() { &own } else { &tier_path };
        rate(own_value.or(tier_value), MINUTE, format!("{path}.{field}"))
    };
    let max_lane = match (&tenant.max_lane, &tier.max_lane) {
        (Some(lane), _) => lane_index(lanes, lane, &format!("{own}.max_lane"), check),
        (None, Some(lane)) => lanes.position(lane).unwrap_or(0),
        (None, None) => 0,
    };
    Limits {
        requests: cap(tenant.max_in_flight.map(u64::from), tier.max_in_flight.map(u64::from), "max_in_flight"),
        tokens: cap(tenant.max_tokens_in_flight, tier.max_tokens_in_flight, "max_tokens_in_flight"),
        rates: Arc::new(Rates {
            requests: minute(tenant.requests_per_minute, tier.requests_per_minute, "requests_per_minute"),
            tokens: minute(tenant.tokens_per_minute, tier.tokens_per_minute, "tokens_per_minute"),
        }),
        max_lane,
    }
}

fn pools(config: &Config, keys: &Keys, check: &mut Checker<'_>) -> Vec<Arc<Pool>> {
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
    if config.pools.iter().filter(|pool| pool.models.is_empty()).count() > 1 {
        check.problem("pools", "only one pool may be without `models`, since it takes every model that no other names");
    }
    config.pools.iter().map(|pool| Arc::new(build_pool(pool, keys))).collect()
}

fn check_pool(path: &str, pool: &PoolConfig, check: &mut Checker<'_>) {
    check_name(&format!("{path}.name"), &pool.name, check.problems);
    for (place, model) in pool.models.iter().enumerate() {
        let inner = model.strip_suffix('*').unwrap_or(model);
        if model.is_empty() || inner.contains('*') {
            check.problem(
                format!("{path}.models[{place}]"),
                format!("{model:?}: a name, or the beginning of one and a last `*`"),
            );
        }
    }
    let positive = [
        ("max_in_flight", pool.max_in_flight.map(u64::from)),
        ("max_in_flight_per_worker", pool.max_in_flight_per_worker.map(u64::from)),
        ("max_model_len", pool.max_model_len),
        ("max_prompt_tokens", pool.max_prompt_tokens),
        ("expected_output_tokens", Some(pool.expected_output_tokens)),
        ("kv.block_size", pool.kv.as_ref().map(|kv| u64::from(kv.block_size))),
    ];
    for (field, _) in positive.iter().filter(|(_, value)| *value == Some(0)) {
        check.problem(format!("{path}.{field}"), "must be at least 1");
    }
    check_rate(format!("{path}.requests_per_second"), pool.requests_per_second, check);
    if let Some(kv) = &pool.kv
        && !(0.0..1.0).contains(&kv.headroom)
    {
        check.problem(
            format!("{path}.kv.headroom"),
            format!("{} is not a share of at least 0 and below 1", kv.headroom),
        );
    }
    let capped = pool.max_in_flight.is_some() || pool.max_in_flight_per_worker.is_some();
    if check.shape == 0 && pool.stale.then == StalePolicy::LocalCaps && !capped {
        let message = "`max_in_flight` or `max_in_flight_per_worker` is needed: without a view there would be no limit at all. \
                       Set `stale: {then: admit}` if that is what you want";
        check.problem(path.to_owned(), message);
    }
}

fn build_pool(config: &PoolConfig, keys: &Keys) -> Pool {
    let knob_text = |field: &str| format!("pools[{}].{field}", config.name);
    let knob = |field: &str| -> Arc<str> { knob_text(field).into() };
    let cap = |limit: Option<u64>, field: &str| limit.map(|limit| Cap { limit, knob: knob(field) });
    let kv = config.kv.as_ref();
    Pool {
        name: config.name.clone(),
        key: keys.pool(&config.name).into(),
        view_key: keys.view_of(&config.name).into(),
        models: config.models.iter().map(|model| ModelPattern::parse(model)).collect(),
        max_in_flight: cap(config.max_in_flight.map(u64::from), "max_in_flight"),
        max_in_flight_per_worker: cap(config.max_in_flight_per_worker.map(u64::from), "max_in_flight_per_worker"),
        rates: Arc::new(Rates {
            requests: rate(config.requests_per_second, SECOND, knob_text("requests_per_second")),
            tokens: None,
        }),
        max_model_len: cap(config.max_model_len, "max_model_len"),
        max_prompt_tokens: cap(config.max_prompt_tokens, "max_prompt_tokens"),
        expected_output: Tokens(config.expected_output_tokens),
        block_size: kv.map_or(16, |kv| kv.block_size),
        headroom: kv.map(|kv| Headroom { share: kv.headroom, knob: knob("kv.headroom") }),
        stale: Stale { hold: config.stale.hold, knob: knob("stale.hold"), then: config.stale.then },
        busy_knob: format!("the busy thresholds of {}", config.name).into(),
    }
}
