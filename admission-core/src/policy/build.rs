//! From configuration to policy, noting every problem on the way.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::lane::Lanes;
use super::pool::ModelPattern;
use super::{Control, Limits, MAX_NAME, Policy, Pool, Reject, Route, is_name};
use crate::budget::Rate;
use crate::config::{BurstyRate, Config, ControlConfig, EndpointPicker, OnRate, PluginConfig, RateConfig, RouteConfig};
use crate::keys::Keys;
use crate::platform::FAIRNESS;
use crate::problem::{self, Problem};
use crate::units::Millis;

mod lanes;
mod pools;
mod queues;
mod routes;
mod sources;
mod tenants;
mod view;

const SHA256_OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

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

fn trusted_peers(config: &Config, check: &mut Checker<'_>) -> Vec<String> {
    let Some(trusted) = &config.trust_tags_from else { return Vec::new() };
    if trusted.spiffe.is_empty() {
        check.problem("trust_tags_from.spiffe", "names no identity; leave `trust_tags_from` out to trust none");
    }
    for (index, pattern) in trusted.spiffe.iter().enumerate() {
        let domain = pattern.strip_prefix("spiffe://").and_then(|rest| rest.split_once('/')).map(|(domain, _)| domain);
        if domain.is_none_or(|domain| domain.is_empty() || domain.contains('*')) {
            let message = format!("{pattern:?} is no identity such as \"spiffe://cluster.local/ns/edge/*\"");
            check.problem(format!("trust_tags_from.spiffe[{index}]"), message);
        }
    }
    trusted.spiffe.clone()
}

fn fairness_headers(config: &Config) -> Vec<String> {
    let Some(header) = config.fairness_header.as_ref().map(|header| header.to_ascii_lowercase()) else {
        return Vec::new();
    };
    // Why the named one first: the platform sets that one, and the other may be a caller's.
    let is_llm_ds = FAIRNESS.contains(&&*header);
    let others = FAIRNESS.iter().filter(|name| is_llm_ds && **name != header).map(|name| (*name).to_owned());
    let others: Vec<String> = others.collect();
    [vec![header], others].concat()
}

pub(super) fn policy(config: &Config, problems: &mut Vec<Problem>) -> Policy {
    let shape = problems.len();
    let mut check = Checker { problems, shape };
    check_name("namespace", &config.namespace, check.problems);
    let keys = Keys::new(&config.namespace);
    let lanes = lanes::lanes(config, &mut check);
    let tenant_sources = sources::sources(&config.tenant.sources, &mut check);
    let tier_sources = sources::tier_sources(config, &mut check);
    check_tenant_name("tenant.default", &config.tenant.default, &mut check);
    for (field, header) in [("lane_header", &config.lane_header), ("fairness_header", &config.fairness_header)] {
        if let Some(header) = header {
            check_header(field.to_owned(), header, &mut check);
        }
    }
    check_body_and_reject(config, &mut check);
    view::check(&config.view, &mut check);
    let objectives = lanes::objectives(config, &lanes, &mut check);
    let lane_rules = lanes::rules(config, &lanes, &mut check);
    let tiers = tenants::tiers(config, &lanes, &mut check);
    let tiers_by_source = tenants::tiers_by_source(config, &lanes);
    let (tenants, everybody_else) = tenants::tenants(config, &tiers_by_source, &lanes, &mut check);
    let pools = pools::pools(config, &keys, &mut check);
    let routes = routes::routes(config, Names { lanes: &lanes, pools: &pools, tiers: &tiers }, &mut check);
    for (field, wanted) in [("tag_body", config.tag_body), ("force_usage", config.force_usage)] {
        if wanted && !config.header_pause {
            check.problem(field, "needs `header_pause: true`: a body cannot be changed once its headers have gone on");
        }
    }
    let picks = config.pools.iter().enumerate().filter(|(_, pool)| pool.pick_endpoint);
    for (index, _) in picks.filter(|_| config.endpoint_picker != EndpointPicker::Ours) {
        check.problem(
            format!("pools[{index}].pick_endpoint"),
            "needs `endpoint_picker: ours`: one request has one worker",
        );
    }
    Policy {
        namespace: config.namespace.clone(),
        fingerprint: String::new(),
        shadows: config.shadows(),
        keys,
        mode: config.mode,
        header_pause: config.header_pause,
        tenant_sources,
        tier_sources,
        default_tenant: config.tenant.default.clone(),
        trusted_peers: trusted_peers(config, &mut check),
        unlimited: config.unlimited(),
        lane_header: config.lane_header.as_ref().map(|header| header.to_ascii_lowercase()),
        fairness_headers: fairness_headers(config),
        endpoint_picker: config.endpoint_picker,
        tag_body: config.tag_body,
        force_usage: config.force_usage,
        hold_limit: config.body.hold_limit,
        pull: config.view.pull.clone(),
        reject: Reject {
            status: config.reject.status.clone(),
            retry_after: config.reject.retry_after.clone(),
            batch_url: config.reject.batch_url.clone(),
        },
        outdated: config.outdated(),
        lanes: Arc::new(lanes),
        objectives,
        lane_rules,
        pools,
        tiers,
        tiers_by_source,
        tenants,
        everybody_else,
        routes,
    }
}

/// What a route may refer to.
#[derive(Clone, Copy)]
struct Names<'a> {
    lanes: &'a Lanes,
    pools: &'a [Arc<Pool>],
    tiers: &'a BTreeMap<String, Arc<Limits>>,
}

pub(super) fn route_of_metadata(policy: &Policy, metadata: Value) -> Result<Route, Vec<Problem>> {
    let mut problems = Vec::new();
    let config: Option<RouteConfig> = problem::read_all(metadata, &mut problems);
    let shape = problems.len();
    let mut check = Checker { problems: &mut problems, shape };
    let Policy { lanes, pools, tiers, .. } = policy;
    let route = config.map(|config| {
        if config.matches.is_some() {
            check.problem("match", "has no meaning in a route's own metadata: it is for that route");
        }
        routes::route("", &config, Names { lanes, pools, tiers }, &mut check)
    });
    match route {
        Some(route) if problems.is_empty() => Ok(route),
        _ => Err(problems),
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

/// Identities come from elsewhere, so more is allowed in them than in names that are only ours.
fn check_tenant_name(path: &str, name: &str, check: &mut Checker<'_>) {
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        check.problem(path, format!("{name:?} is not a tenant: 1 to {MAX_NAME} visible ASCII characters are allowed"));
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

fn check_rate(path: String, rate: Option<RateConfig>, check: &mut Checker<'_>) {
    if rate.is_some_and(|rate| rate.parts().rate == 0 || rate.parts().burst == 0) {
        check.problem(path, "rate and burst must be at least 1; leave it out for no limit");
    }
}

fn rate(config: Option<RateConfig>, period: Millis, on_rate: OnRate, knob: String) -> Option<Rate> {
    let BurstyRate { rate, burst } = config?.parts();
    Some(Rate { amount: rate, period, burst, knob: knob.into(), key: None, waits: on_rate == OnRate::Wait })
}

fn check_model(path: String, model: &str, check: &mut Checker<'_>) {
    let inner = model.strip_suffix('*').unwrap_or(model);
    if model.is_empty() || inner.contains('*') {
        check.problem(path, format!("{model:?}: a name, or the beginning of one and a last `*`"));
    }
}

fn patterns(models: &[String]) -> Vec<ModelPattern> {
    models.iter().map(|model| ModelPattern::parse(model)).collect()
}

fn check_path_prefix(path: String, prefix: &str, check: &mut Checker<'_>) {
    if !prefix.starts_with('/') || prefix.contains('?') {
        check.problem(path, format!("{prefix:?} is not the beginning of a path: it begins with `/` and has no `?`"));
    }
}
