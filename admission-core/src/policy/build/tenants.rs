//! Tiers and tenants.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::lane::Lanes;
use super::super::{Cap, Limits};
use super::lanes::lane_index;
use super::{Checker, check_name, check_rate, check_tenant_name, rate};
use crate::budget::{Rate, Rates};
use crate::config::{Config, LimitsConfig, Mode, OnRate, RateConfig, TenantLimitsConfig, TenantSource};
use crate::gather::gather;
use crate::units::Millis;

/// The entry of `tenants` that stands for everybody else.
const EVERYBODY_ELSE: &str = "*";

const MINUTE: Millis = Millis(60_000);

/// Most a tenant can be worth beside one of weight 1.
const MAX_WEIGHT: u32 = 1_000;

/// Limits as written, and where.
#[derive(Clone, Copy)]
struct Written<'a> {
    path: &'a str,
    limits: &'a LimitsConfig,
}

pub(super) fn tiers(config: &Config, lanes: &Lanes, check: &mut Checker<'_>) -> BTreeMap<String, Arc<Limits>> {
    let mut tiers = BTreeMap::new();
    for (name, tier) in &config.tiers {
        let path = format!("tiers.{name}");
        check_name(&path, name, check.problems);
        let written = Written { path: &path, limits: tier };
        check_limits(written, lanes, check);
        let nothing = LimitsConfig::default();
        let limits = limits(written, Written { path: "", limits: &nothing }, lanes);
        // Why with keys: what these are for is routes, and a tenant has its own rates besides.
        let rates = Arc::new(limits.rates.keyed());
        tiers.insert(name.clone(), Arc::new(Limits { rates, ..limits }));
    }
    tiers
}

/// Limits of tenants that a source of theirs gives a tier, by its name.
// Why apart from `tiers`: what those spend is the tenant's own budget, not a route's.
pub(super) fn tiers_by_source(config: &Config, lanes: &Lanes) -> BTreeMap<String, Arc<Limits>> {
    if config.tenant.tier_sources.is_empty() {
        return BTreeMap::new();
    }
    let nothing = LimitsConfig::default();
    let of_tier = |(name, tier): (&String, &LimitsConfig)| {
        let path = format!("tiers.{name}");
        let limits = limits(Written { path: &path, limits: tier }, Written { path: "", limits: &nothing }, lanes);
        (name.clone(), Arc::new(limits))
    };
    gather(config.tiers.iter().map(of_tier))
}

type Tenants = BTreeMap<String, Arc<Limits>>;

pub(super) fn tenants(
    config: &Config,
    by_source: &Tenants,
    lanes: &Lanes,
    check: &mut Checker<'_>,
) -> (Tenants, Arc<Limits>) {
    let mut tenants = BTreeMap::new();
    let mut everybody_else = Arc::default();
    for (name, tenant) in &config.tenants {
        let limits = Arc::new(tenant_limits(config, name, tenant, lanes, check));
        if name == EVERYBODY_ELSE {
            everybody_else = limits;
        } else {
            check_tenant_name(&format!("tenants.{name}"), name, check);
            tenants.insert(name.clone(), limits);
        }
    }
    let default = &config.tenant.default;
    if can_be_proved(&config.tenant.sources) && !config.tenants.is_empty() && !tenants.contains_key(default) {
        let unproven = smallest(tenants.values().chain(by_source.values()).chain([&everybody_else]));
        tenants.insert(default.clone(), Arc::new(unproven));
    }
    (tenants, everybody_else)
}

fn check_limits(written: Written<'_>, lanes: &Lanes, check: &mut Checker<'_>) {
    let Written { path, limits } = written;
    let zero = "0 would refuse every request; leave it out for no limit";
    if limits.max_in_flight == Some(0) {
        check.problem(format!("{path}.max_in_flight"), zero);
    }
    if limits.max_tokens_in_flight == Some(0) {
        check.problem(format!("{path}.max_tokens_in_flight"), zero);
    }
    check_rate(format!("{path}.requests_per_minute"), limits.requests_per_minute, check);
    check_rate(format!("{path}.tokens_per_minute"), limits.tokens_per_minute, check);
    if limits.on_rate == Some(OnRate::Wait) && lanes.iter().all(|lane| lane.queue.is_none()) {
        check.problem(format!("{path}.on_rate"), "`wait` needs a lane with a `queue`, and there is none");
    }
    if let Some(cost) = limits.cached_token_cost.filter(|cost| !(0.0..=1.0).contains(cost)) {
        check.problem(format!("{path}.cached_token_cost"), format!("{cost} is not a share from 0 to 1"));
    }
    if let Some(weight) = limits.weight.filter(|weight| !(1..=MAX_WEIGHT).contains(weight)) {
        check.problem(format!("{path}.weight"), format!("{weight} is not a weight from 1 to {MAX_WEIGHT}"));
    }
    for (field, lane) in [("lane", &limits.lane), ("max_lane", &limits.max_lane)] {
        if let Some(lane) = lane {
            lane_index(lanes, lane, &format!("{path}.{field}"), check);
        }
    }
}

fn tenant_limits(
    config: &Config,
    name: &str,
    tenant: &TenantLimitsConfig,
    lanes: &Lanes,
    check: &mut Checker<'_>,
) -> Limits {
    let path = format!("tenants.{name}");
    let own = tenant.own();
    let own = Written { path: &path, limits: &own };
    check_limits(own, lanes, check);
    let nothing = LimitsConfig::default();
    let tier = tenant.tier.as_ref().and_then(|tier| config.tiers.get(tier)).unwrap_or(&nothing);
    if let Some(name) = tenant.tier.as_ref().filter(|tier| !config.tiers.contains_key(*tier)) {
        check.unknown(format!("{path}.tier"), "tiers", name);
    }
    let tier_path = format!("tiers.{}", tenant.tier.as_deref().unwrap_or_default());
    let limits = limits(own, Written { path: &tier_path, limits: tier }, lanes);
    if tenant.on_rate.is_some() && limits.rates.requests.is_none() && limits.rates.tokens.is_none() {
        let problem =
            "says what `requests_per_minute` and `tokens_per_minute` do, and there is neither here nor in the tier";
        check.problem(format!("{path}.on_rate"), problem);
    }
    limits
}

/// The smallest of each limit that a tenant has, for callers that do not prove who they are.
// Why not no limits: a caller at a cap of its own would leave its key out.
fn smallest<'a>(tenants: impl Iterator<Item = &'a Arc<Limits>> + Clone) -> Limits {
    let limits = tenants.clone().fold(Limits::default(), |smallest, limits| smallest.at_most(limits));
    let knob = |field: &str| Arc::from(format!("the smallest {field} of tenants"));
    let cap = |cap: Option<Cap>, field| cap.map(|cap| Cap { knob: knob(field), ..cap });
    let rate = |rate: &Option<Rate>, field| rate.clone().map(|rate| Rate { knob: knob(field), ..rate });
    let enforced = tenants.clone().any(|limits| limits.mode == Some(Mode::Enforce));
    Limits {
        requests: cap(limits.requests.clone(), "max_in_flight"),
        tokens: cap(limits.tokens.clone(), "max_tokens_in_flight"),
        rates: Arc::new(Rates {
            requests: rate(&limits.rates.requests, "requests_per_minute"),
            tokens: rate(&limits.rates.tokens, "tokens_per_minute"),
        }),
        mode: enforced.then_some(Mode::Enforce),
        lane: tenants.clone().filter_map(|limits| limits.lane).max(),
        max_lane: tenants.map(|limits| limits.max_lane).max().unwrap_or(0),
        ..limits
    }
}

/// Says whether callers can prove who they are. A header proves nothing: its value is that of the proxy, or of the caller.
fn can_be_proved(sources: &[TenantSource]) -> bool {
    sources.iter().any(|source| source.metadata.is_some() || source.certificate.is_some() || source.api_key.is_some())
}

/// What is written in the first, else in the second.
fn limits(first: Written<'_>, second: Written<'_>, lanes: &Lanes) -> Limits {
    let (own, tier) = (first.limits, second.limits);
    let knob = |owned: bool, field: &str| format!("{}.{field}", if owned { first.path } else { second.path });
    let cap = |own: Option<u64>, tier: Option<u64>, field: &str| {
        own.or(tier).map(|limit| Cap { limit, knob: knob(own.is_some(), field).into() })
    };
    let on_rate = own.on_rate.or(tier.on_rate).unwrap_or(OnRate::Refuse);
    let minute = |own: Option<RateConfig>, tier: Option<RateConfig>, field: &str| {
        rate(own.or(tier), MINUTE, on_rate, knob(own.is_some(), field))
    };
    let lane = |own: &Option<String>, tier: &Option<String>| {
        own.as_ref().or(tier.as_ref()).map(|lane| lanes.position(lane).unwrap_or(0))
    };
    Limits {
        requests: cap(own.max_in_flight.map(u64::from), tier.max_in_flight.map(u64::from), "max_in_flight"),
        tokens: cap(own.max_tokens_in_flight, tier.max_tokens_in_flight, "max_tokens_in_flight"),
        rates: Arc::new(Rates {
            requests: minute(own.requests_per_minute, tier.requests_per_minute, "requests_per_minute"),
            tokens: minute(own.tokens_per_minute, tier.tokens_per_minute, "tokens_per_minute"),
        }),
        cached_cost: own.cached_token_cost.or(tier.cached_token_cost).map(|cost| (cost * 1_000.0).round() as u32),
        weight: own.weight.or(tier.weight).unwrap_or(1).max(1),
        mode: own.mode.or(tier.mode),
        lane: lane(&own.lane, &tier.lane),
        max_lane: lane(&own.max_lane, &tier.max_lane).unwrap_or(0),
    }
}
