//! First tokens in time: how many prompts lower lanes may have in front of a lane with a goal.

use std::sync::Arc;

use super::sight::Scene;
use crate::ledger::Head;
use crate::outcome::{Detail, Limit, Reason, Refusal, Retry};
use crate::policy::Lane;
use crate::units::{Millis, Tokens};

impl Scene<'_> {
    /// True where a waiter may be kept back by its own prompt alone, for the sake of a lane that is not: that lane's requests pass it.
    pub(super) fn lets_pass_for_prompts(&self, head: &Head, band: &Lane) -> bool {
        let is_bound = self.lanes.at(self.lanes.position_of(head.band)).prompts.is_some();
        is_bound && band.prompts.is_none() && self.ledger.bound_prompts(self.members) >= self.readers
    }

    /// A request of a prompt of r tokens starts while `(Q ÷ W + r) ÷ p` is no more than what the goals of higher lanes leave, or while lanes that
    /// are bound so have fewer prompts being read than there are workers.
    ///
    /// Q: prompt tokens that this proxy has sent to the pool's W workers and whose answers have not begun. p: tokens that a worker reads in a
    /// millisecond, as measured; while that is not known nothing is bound. Several proxies share what the goals leave.
    pub(super) fn reads_prompts_in_time(&self, lane: &Lane, prompt: Tokens) -> Result<(), Refusal> {
        let Some(within) = &lane.prompts else { return Ok(()) };
        if self.ledger.bound_prompts(self.members) < self.readers {
            return Ok(());
        }
        let queued = self.ledger.prompts_being_read(self.members);
        // Why whole: it is read by one worker, whatever the others do.
        let of_one = Tokens(queued.0.div_ceil(self.readers)).plus(prompt);
        let allowed = Millis(within.time.0.checked_div(self.proxies).unwrap_or_default());
        let Some(time) = self.ledger.time_to_read(of_one).filter(|time| *time > allowed) else { return Ok(()) };
        let limit = Limit {
            knob: Arc::clone(&within.knob),
            measured: time.0,
            allowed: allowed.0,
            unit: "ms of prompts to read",
        };
        let retry = Retry::After(Millis(time.0.saturating_sub(allowed.0)));
        Err(Refusal { reason: Reason::PrefillBacklog, limit: Some(limit), detail: Detail::None, retry, place: None })
    }
}
