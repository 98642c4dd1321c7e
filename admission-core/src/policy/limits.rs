//! What a tenant is held to.

use std::sync::Arc;

use crate::budget::{Rate, Rates};
use crate::config::Mode;
use crate::outcome::Reason;

/// A limit and its place in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cap {
    /// In the unit of whatever is limited.
    pub limit: u64,
    /// Such as `tiers.free.max_in_flight`.
    pub knob: Arc<str>,
}

/// What a tenant may hold and use, and how its requests are treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests in flight.
    pub requests: Option<Cap>,
    /// Tokens in flight.
    pub tokens: Option<Cap>,
    /// Of requests and tokens for each minute.
    pub rates: Arc<Rates>,
    /// Thousandths of a token that a cached prompt token costs, where it says so.
    pub cached_cost: Option<u32>,
    /// Share beside other tenants, at least 1.
    pub weight: u32,
    /// Whether decisions bind its requests, where it has a word of its own.
    pub mode: Option<Mode>,
    /// Index of the lane of its requests that ask for none.
    pub(crate) lane: Option<usize>,
    /// Index of the highest lane its requests get.
    pub(crate) max_lane: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let rates = Arc::default();
        Self { requests: None, tokens: None, rates, cached_cost: None, weight: 1, mode: None, lane: None, max_lane: 0 }
    }
}

impl Limits {
    /// Whether there is a limit of requests or tokens.
    pub(super) fn limits_anything(&self) -> bool {
        let rates = &*self.rates;
        self.requests.is_some() || self.tokens.is_some() || rates.requests.is_some() || rates.tokens.is_some()
    }

    /// True where requests wait that a budget refuses for this reason.
    #[must_use]
    pub fn may_be_waited_for(&self, reason: Reason) -> bool {
        let rate = match reason {
            Reason::TenantRequestRate => &self.rates.requests,
            Reason::TenantTokenRate => &self.rates.tokens,
            _ => return false,
        };
        rate.as_ref().is_some_and(|rate| rate.waits)
    }

    /// With another's limits of requests and tokens, and price of cached ones, where it has some.
    #[must_use]
    pub(crate) fn under(&self, other: &Self) -> Self {
        let rates = Rates {
            requests: other.rates.requests.clone().or_else(|| self.rates.requests.clone()),
            tokens: other.rates.tokens.clone().or_else(|| self.rates.tokens.clone()),
        };
        Self {
            requests: other.requests.clone().or_else(|| self.requests.clone()),
            tokens: other.tokens.clone().or_else(|| self.tokens.clone()),
            rates: Arc::new(rates),
            cached_cost: other.cached_cost.or(self.cached_cost),
            ..self.clone()
        }
    }

    /// Limits that are the stricter of these and another's, each for itself.
    #[must_use]
    pub(crate) fn at_most(&self, other: &Self) -> Self {
        let rates = Rates {
            requests: stricter(&self.rates.requests, &other.rates.requests, Rate::stricter),
            tokens: stricter(&self.rates.tokens, &other.rates.tokens, Rate::stricter),
        };
        let smaller = |own: &Cap, other: &Cap| if other.limit < own.limit { other.clone() } else { own.clone() };
        Self {
            requests: stricter(&self.requests, &other.requests, smaller),
            tokens: stricter(&self.tokens, &other.tokens, smaller),
            rates: Arc::new(rates),
            // Without a price of its own a cached token costs as much as any, and nothing is dearer.
            cached_cost: self.cached_cost.map(|own| other.cached_cost.map_or(own, |other| other.max(own))),
            ..self.clone()
        }
    }
}

/// The stricter of two limits, one of which there may not be.
fn stricter<T: Clone>(own: &Option<T>, other: &Option<T>, of_both: impl Fn(&T, &T) -> T) -> Option<T> {
    match (own, other) {
        (Some(own), Some(other)) => Some(of_both(own, other)),
        _ => own.clone().or_else(|| other.clone()),
    }
}
