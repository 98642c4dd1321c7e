//! What one request is held to: the policy as its tenant, its route and its own wishes narrow it.

use std::sync::Arc;

use crate::config::{Mode, Upgrades};
use crate::ledger::SubFlow;
use crate::policy::{Lane, Limits, Place, Policy, Pool, Route, RuleSays};
use crate::request::Api;
use crate::units::Millis;

/// A request as its headers describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Name of its tenant.
    pub tenant: String,
    /// Nothing says who sends it, but it has a key that is no tenant's.
    pub wrong_key: bool,
    /// Tier that a source names, where the tenant is not listed.
    pub tier: Option<String>,
    /// Name of the lane it asks for.
    pub asked_lane: Option<String>,
    /// Names of the objectives it asks for, the first one that is known goes.
    pub objectives: Vec<String>,
    /// See [`crate::request::plain_path`].
    pub path: String,
    /// By its path.
    pub api: Api,
    /// Size of its body in bytes, if the headers tell.
    pub body_bytes: Option<u64>,
    /// Its headers say that its body is encoded, so perhaps nothing in it can be read.
    pub encoded: bool,
    /// True where the headers say that the body is JSON, or do not say what it is.
    pub says_json: bool,
    /// It carries headers that only the platform may set, other than a lane asked for.
    pub spoofed: bool,
    /// How soon its caller wants the first token, see [`Arrival::deadline`].
    pub ttft_deadline: Option<Millis>,
    /// It is to be refused rather than to wait in a queue.
    pub no_queue: bool,
    /// Part of its tenant's requests that its fairness header names, where the policy reads one.
    pub sub: Option<SubFlow>,
}

impl Arrival {
    /// What a header says of how soon the first token is wanted: milliseconds, a fraction of which is left out. `None` for
    /// anything else, and for less than one.
    ///
    /// ```
    /// use admission_core::terms::Arrival;
    /// use admission_core::units::Millis;
    ///
    /// assert_eq!(Arrival::deadline("1500.5"), Some(Millis(1500)));
    /// assert_eq!(Arrival::deadline("soon"), None);
    /// ```
    #[must_use]
    pub fn deadline(text: &str) -> Option<Millis> {
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let whole = (digits(whole) && digits(fraction)).then(|| whole.parse().ok()).flatten();
        whole.filter(|millis| *millis > 0).map(Millis)
    }

    /// The request as one of the API that its route names, where that names one.
    #[must_use]
    pub fn on(self, route: &Route) -> Self {
        Self { api: route.api.unwrap_or(self.api), ..self }
    }

    /// Where it is, on a route of which the proxy has told names or not.
    #[must_use]
    pub fn place<'a>(&'a self, route_name: Option<&'a str>, virtual_host: Option<&'a str>) -> Place<'a> {
        Place { route_name, virtual_host, path: &self.path, spoofed: self.spoofed }
    }
}

/// What one request is held to.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// Name of its tenant.
    pub tenant: String,
    /// Place of its tenant's ledger.
    pub tenant_key: String,
    /// What its tenant may hold and use here.
    pub limits: Arc<Limits>,
    /// Whether the decision binds.
    pub mode: Mode,
    /// The pool it goes to, whatever model it names.
    pub pool: Option<Arc<Pool>>,
    /// False refuses requests for another protocol.
    pub upgrades: bool,
    /// True lets the worker go on after it has answered.
    pub background: bool,
    /// Index of the lane that it asks for, or that its route or tenant gives it.
    lane: Option<usize>,
    /// Index of the lane that it gets instead of the default one: it asks for objectives that the policy does not list.
    instead_of_default: Option<usize>,
    /// Index of the highest lane it may get.
    highest: usize,
    /// For the rules, which are asked when nothing else gives it a lane.
    path: String,
}

impl Terms {
    /// Of a request on a route. Its lane is that of its lane header, else of its objective, its route, its tenant, the
    /// rules, or the default.
    #[must_use]
    pub fn of(policy: &Policy, arrival: &Arrival, route: &Route) -> Self {
        let limits = policy.limits_in(&arrival.tenant, arrival.tier.as_deref());
        let asked = arrival.asked_lane.as_ref().and_then(|name| policy.lane_named(name));
        let objective = arrival.objectives.iter().find_map(|name| policy.lane_of_objective(name));
        let is_unknown = objective.is_none() && !arrival.objectives.is_empty();
        let asks_for_one = asked.or(objective).is_some();
        Self {
            tenant: arrival.tenant.clone(),
            tenant_key: policy.tenant_key(&arrival.tenant),
            mode: limits.mode.or(route.mode).unwrap_or(policy.mode),
            pool: route.pool.clone(),
            upgrades: route.upgrades != Some(Upgrades::Refuse),
            background: route.background.unwrap_or(false),
            lane: asked.or(objective).or(route.lane).or(limits.lane),
            instead_of_default: if is_unknown { policy.line_up().of_unknown_objectives() } else { None },
            highest: limits.max_lane.max(route.highest(asks_for_one)),
            path: arrival.path.clone(),
            limits: route.limits(limits),
        }
    }

    /// Whether its lane takes the model to know.
    #[must_use]
    pub fn lane_needs_model(&self, policy: &Policy) -> bool {
        self.lane.is_none() && policy.rule_says(&self.path, None) == RuleSays::AskModel
    }

    /// Its lane, which is never above what its tenant and its route allow; `model` as far as it is known.
    #[must_use]
    pub fn lane<'a>(&self, policy: &'a Policy, model: Option<&str>) -> &'a Arc<Lane> {
        let by_rule = || match policy.rule_says(&self.path, Some(model)) {
            RuleSays::Lane(index) => Some(index),
            RuleSays::Nothing | RuleSays::AskModel => None,
        };
        policy.lane_at(self.lane.or_else(by_rule).or(self.instead_of_default), self.highest)
    }

    /// Whether decisions only report.
    #[must_use]
    pub fn in_shadow(&self) -> bool {
        self.mode == Mode::Shadow
    }
}

#[cfg(test)]
mod tests;
