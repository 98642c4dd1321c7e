//! Ledgers of tenants that no configuration names.

use super::Ledger;
use crate::members::Members;
use crate::units::Time;

impl Ledger {
    /// Counts what the same tenant holds in another ledger. A budget of which nothing was ever spent here is as spent as it is there.
    pub(crate) fn count_also(&mut self, other: &Self, members: &Members) {
        self.elsewhere = other.held(members);
        if (self.requests_spent, self.tokens_spent) == Default::default() && self.tier_budgets.is_empty() {
            (self.requests_spent, self.tokens_spent) = (other.requests_spent, other.tokens_spent);
            self.tier_budgets = other.tier_budgets.clone();
        }
    }

    /// True for the ledger of a tenant that holds nothing, has no waiter that the tenant itself keeps back or whose budget may be waited for, and
    /// owes nothing to a budget.
    #[must_use]
    pub fn is_idle(&self, members: &Members, now: Time) -> bool {
        let owes = self.requests_spent.is_owed(now) || self.tokens_spent.is_owed(now) || self.tier_budgets.owe(now);
        let waits = self.blocked(members).next().is_some() || self.queued(members).next().is_some();
        !owes && !waits && self.live(members).next().is_none()
    }
}
