//! Answers that prove longer than was thought.
//!
//! What a lease holds for its answer grows with the answer, over a cap if it must, since the tokens are there. It grows by
//! [`LEAST_STEP`], then by as much as it is overdrawn already, at most [`MOST_STEP`]: a long stream changes the two records
//! seldom, and holds at most a step more than it needs.

use std::rc::Rc;

use super::lease::{Change, Frees, Kind};
use super::{LeaseId, Vm};
use crate::ask::MOST_TOKENS;
use crate::ledger::{Amount, Begun};
use crate::store::Store;
use crate::units::{Time, Tokens};

/// First step by which a lease grows, in tokens.
pub const LEAST_STEP: u64 = 64;

/// Largest step by which a lease grows, in tokens.
pub const MOST_STEP: u64 = 1_024;

/// How a lease stands whose answer has been looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdraft {
    /// Tokens by which it has grown just now.
    pub grown: Tokens,
    /// Tokens it holds for its answer; it need not be asked again before the answer is longer.
    pub reserved: Tokens,
}

impl Vm {
    /// Has a lease hold what its answer is known to be long, or more; `None` for a lease that has ended. It asks nobody:
    /// what holds too much lets in less after it.
    pub fn overdraw(&mut self, store: &impl Store, id: LeaseId, output: Tokens, now: Time) -> Option<Overdraft> {
        let lease = self.leases.get(id)?;
        let reserved = Tokens(lease.amount.tokens.0.saturating_sub(lease.prompt.0));
        let nothing = Overdraft { grown: Tokens(0), reserved };
        let Some(holder) = self.membership.holder.filter(|_| output > reserved) else { return Some(nothing) };
        let step = output.0.saturating_sub(lease.output.0).clamp(LEAST_STEP, MOST_STEP);
        let tokens = lease.prompt.plus(output).plus(Tokens(step)).min(MOST_TOKENS);
        let after = Amount { tokens, blocks: tokens.blocks_of(lease.block_size), ..lease.amount };
        let (amount, lane) = (after.minus(lease.amount), lease.lane);
        if amount.is_zero() {
            return Some(Overdraft { reserved: MOST_TOKENS, ..nothing });
        }
        let change = |key: &Rc<str>, begun: Option<Begun>| {
            let (key, tallies, kind, frees) = (Rc::clone(key), Vec::new(), Kind::Overdraft, Frees::Nothing);
            let begun = begun.into_iter().collect();
            // Budgets are settled at the end.
            Change { key, holder, lane, amount, tallies, begun, kind, read: None, budget: None, frees, evicted: None }
        };
        let (of_tenant, of_pool) =
            (change(&lease.tenant_key, None), change(&lease.pool_key, Some(lease.begun(amount, 0))));
        if let Some(lease) = self.leases.get_mut(id) {
            lease.amount = after;
        }
        self.change(store, of_tenant, now);
        self.change(store, of_pool, now);
        let reserved = output.plus(Tokens(step));
        Some(Overdraft { grown: amount.tokens, reserved })
    }
}
