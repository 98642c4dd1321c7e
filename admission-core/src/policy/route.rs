//! What differs on a route.

use std::sync::Arc;

use super::{Limits, Pool};
use crate::config::{Mode, Upgrades};
use crate::request::Api;

/// What differs on a route; what is not given is as everywhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    /// False lets its requests pass unjudged.
    pub enabled: Option<bool>,
    /// Whether decisions bind.
    pub mode: Option<Mode>,
    /// API of its requests, whatever their paths are.
    pub api: Option<Api>,
    /// Decisions over its requests for another protocol.
    pub upgrades: Option<Upgrades>,
    /// True lets its requests ask their worker to go on after it has answered.
    pub background: Option<bool>,
    /// Where its requests go.
    pub pool: Option<Arc<Pool>>,
    /// Limits of requests and tokens instead of the tenant's.
    pub tier: Option<Arc<Limits>>,
    /// Index of the lane of its requests that ask for none.
    pub(crate) lane: Option<usize>,
    /// Index of the highest lane its requests get.
    pub(crate) max_lane: Option<usize>,
    /// Fields that bind only where they are stricter than what holds without them.
    pub(super) narrowing: Narrowing,
}

/// Fields of a route that the caller may have chosen, each of which binds only where it is stricter than what holds without it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Narrowing {
    pub(super) tier: Option<Arc<Limits>>,
    pub(super) lane: Option<usize>,
    pub(super) max_lane: Option<usize>,
}

impl Narrowing {
    fn over(self, general: Self) -> Self {
        Self {
            tier: self.tier.or(general.tier),
            lane: self.lane.or(general.lane),
            max_lane: self.max_lane.or(general.max_lane),
        }
    }
}

impl Route {
    /// The route without what would loosen.
    // Why the pool goes with it: whatever made the proxy choose the route, the request goes to that route's workers.
    #[must_use]
    pub(super) fn narrowed(self) -> Self {
        Self {
            enabled: self.enabled.filter(|enabled| *enabled),
            mode: self.mode.filter(|mode| *mode == Mode::Enforce),
            pool: self.pool,
            upgrades: self.upgrades.filter(|upgrades| *upgrades != Upgrades::Pass),
            background: self.background.filter(|allowed| !*allowed),
            narrowing: Narrowing { tier: self.tier, lane: self.lane, max_lane: self.max_lane },
            ..Self::default()
        }
    }

    /// Limits of a tenant that has these ones elsewhere.
    #[must_use]
    pub(crate) fn limits(&self, own: &Arc<Limits>) -> Arc<Limits> {
        let here = self.tier.as_ref().map_or_else(|| Arc::clone(own), |tier| Arc::new(own.under(tier)));
        match &self.narrowing.tier {
            Some(tier) => Arc::new(here.at_most(tier)),
            None => here,
        }
    }

    /// Index of the highest lane that a request gets, given whether it asks for one.
    #[must_use]
    pub(crate) fn highest(&self, asks_for_one: bool) -> usize {
        let Narrowing { lane, max_lane, .. } = self.narrowing;
        let instead = lane.filter(|_| !asks_for_one);
        [self.max_lane, max_lane, instead].into_iter().flatten().max().unwrap_or(0)
    }

    /// With what a more general route says where this one is silent.
    #[must_use]
    pub(super) fn over(self, general: Self) -> Self {
        Self {
            enabled: self.enabled.or(general.enabled),
            mode: self.mode.or(general.mode),
            api: self.api.or(general.api),
            upgrades: self.upgrades.or(general.upgrades),
            background: self.background.or(general.background),
            pool: self.pool.or(general.pool),
            tier: self.tier.or(general.tier),
            lane: self.lane.or(general.lane),
            max_lane: self.max_lane.or(general.max_lane),
            narrowing: self.narrowing.over(general.narrowing),
        }
    }
}

/// Where the proxy routes a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place<'a> {
    /// Name of the route.
    pub route_name: Option<&'a str>,
    /// Name of the virtual host.
    pub virtual_host: Option<&'a str>,
    /// See [`crate::request::plain_path`].
    pub path: &'a str,
    /// The caller sent headers by which the proxy may have chosen the route, so a route's name and metadata loosen nothing.
    pub spoofed: bool,
}

/// A route's entry in the configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RouteRule {
    pub(super) route_name: Option<String>,
    pub(super) virtual_host: Option<String>,
    pub(super) path_prefix: Option<String>,
    pub(super) route: Route,
}

impl RouteRule {
    /// What it says of a request there.
    pub(super) fn of(&self, place: Place<'_>) -> Route {
        let by_name = self.route_name.is_some();
        if place.spoofed && by_name { self.route.clone().narrowed() } else { self.route.clone() }
    }

    pub(super) fn fits(&self, place: Place<'_>) -> bool {
        let same = |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        same(&self.route_name, place.route_name)
            && same(&self.virtual_host, place.virtual_host)
            && self.path_prefix.as_ref().is_none_or(|prefix| place.path.starts_with(prefix.as_str()))
    }

    /// A route's name tells more than its path, a longer path more than a shorter one, any path more than the host.
    pub(super) fn specificity(&self) -> (bool, usize, bool) {
        let path = self.path_prefix.as_ref().map_or(0, |prefix| prefix.len().saturating_add(1));
        (self.route_name.is_some(), path, self.virtual_host.is_some())
    }
}
