//! What one request is held to: the policy as its tenant, its route and its own wishes narrow it.

use std::rc::Rc;
use std::sync::Arc;

use crate::arrival::Arrival;
use crate::config::{Mode, Upgrades};
use crate::policy::{Lane, Limits, Policy, Pool, Route, RuleSays};

/// What one request is held to.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// Name of the request's tenant.
    pub tenant: Rc<str>,
    /// Place of the tenant's ledger.
    pub tenant_key: Rc<str>,
    /// Limits of what the tenant may hold and use on this route.
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
            tenant: arrival.tenant.as_str().into(),
            tenant_key: policy.tenant_key(&arrival.tenant).into(),
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
