//! The bound of what waits for a pool.

use super::{Facts, Health, POLL_MS, Reference};
use crate::units::Time;

/// Longest time for which more may wait than the pool allows: a newcomer of a higher lane joins before a waiter of another VM gives
/// way, which that VM sees with its next poll.
const GIVES_WAY_WITHIN_MS: u64 = 2 * POLL_MS + 2;

impl Reference {
    /// I1: no more wait than the pool allows, but for the moment in which one gives way. What waited while a VM did not run may go on
    /// waiting: others did not count it then.
    pub(super) fn queue_bound_holds(&mut self, now: Time) -> Result<(), String> {
        let Some(most) = self.rules().most_waiting else { return Ok(()) };
        let is_alive = |facts: &&Facts| self.health.get(facts.vm) != Some(&Health::Dead);
        let waiting = self.waiting.values().filter(is_alive).count();
        let calm = now > self.troubled_until.max(self.mixed_until).max(self.disagree_until);
        self.may_wait =
            if calm && !self.health.contains(&Health::Stalled) { self.may_wait.min(waiting) } else { waiting };
        if waiting <= self.may_wait.max(most) {
            self.too_many_since = None;
            return Ok(());
        }
        let since = *self.too_many_since.get_or_insert(now);
        if now.since(since).0 <= GIVES_WAY_WITHIN_MS {
            return Ok(());
        }
        Err(format!("I1: {waiting} wait since {} where {most} may", since.0))
    }
}
