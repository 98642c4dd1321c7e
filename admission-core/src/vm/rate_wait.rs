//! The wait of a queued request for a rate.

use std::rc::Rc;

use crate::outcome::Reason;
use crate::queue::Waiter;
use crate::units::Millis;

/// A wait for a rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateWait {
    /// The rate that lets the request start last.
    pub(super) reason: Reason,
    /// Time until it does.
    pub(super) time: Millis,
    /// True where the request lacks nothing else, so the rates alone say how long it waits.
    pub(super) is_all: bool,
}

impl RateWait {
    /// True where the pool's rate is the one that lets the request start last.
    pub(super) fn is_of_pool(self) -> bool {
        self.reason == Reason::PoolRequestRate
    }

    /// Record of the rate, and the time in which that earns the request.
    pub(super) fn earned(self, waiter: &Waiter) -> (Rc<str>, Millis) {
        let cost = waiter.ask.cost();
        let (of_tenant, of_pool) = (&waiter.limits.rates, &waiter.pool.rates);
        let (name, rate, amount) = match self.reason {
            Reason::TenantRequestRate => (Rc::clone(&waiter.tenant_key), &of_tenant.requests, cost.requests),
            Reason::TenantTokenRate => (Rc::clone(&waiter.tenant_key), &of_tenant.tokens, cost.tokens.0),
            _ => (waiter.key(), &of_pool.requests, cost.requests),
        };
        (name, rate.as_ref().map_or(Millis(0), |rate| rate.time_to_earn(amount)))
    }

    /// The time until a request starts by its place in line and by the rates.
    pub(super) fn longer(self, by_place: Option<Millis>) -> Millis {
        if self.is_all { self.time } else { by_place.unwrap_or_default().max(self.time) }
    }
}
