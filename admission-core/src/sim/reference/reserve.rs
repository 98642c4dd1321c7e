//! Lanes leave free what is kept for those of a higher priority.

use super::books::Sight;
use super::{Facts, Reference, RequestId};
use crate::units::Time;
use crate::view::ViewSummary;

impl Reference {
    /// True when all places that are left are kept for lanes above one.
    pub(super) fn rest_is_kept(&self, place: usize, sight: &Sight, now: Time) -> bool {
        let Some(capacity) = self.capacity(sight, now) else { return false };
        let own = self.rules().reserved(capacity);
        let held = |lane: usize| sight.lanes.get(lane).copied().unwrap_or(0);
        let of_others = own.iter().enumerate().filter(|(other, _)| self.rules().is_kept_from(place, *other));
        let kept: u64 = of_others.map(|(other, own)| own.saturating_sub(held(other))).sum();
        kept > 0 && sight.pool.requests + 1 + kept > capacity
    }

    /// Blocks that are kept for lanes above one, of so many usable ones; what some requests hold is not theirs.
    pub(super) fn kept_blocks(&self, place: usize, usable: u64, is_free: &dyn Fn(&RequestId) -> bool) -> u64 {
        let lanes = self.rules().lanes.iter().enumerate();
        let above = lanes.filter(|(other, _)| self.rules().is_kept_from(place, *other));
        above
            .filter_map(|(other, lane)| {
                let own = (usable as f64 * lane.reserve?.share - 1e-6).ceil() as u64;
                let held = self.running.iter().filter(|(id, facts)| facts.lane == other && !is_free(id));
                Some(own.saturating_sub(held.map(|(_, facts)| facts.amount.blocks.0).sum()))
            })
            .sum()
    }

    /// R4: nothing starts in places or blocks that are kept for higher lanes, by the view of now or the one before. Not asked while VMs may
    /// disagree on whose holdings count, or are held to two policies.
    pub(super) fn reserves_hold(
        &self,
        started: &Facts,
        starts: &[(RequestId, &Facts)],
        sight: &Sight,
        now: Time,
    ) -> Result<(), String> {
        let Some(before) = self.before_all(started, starts, sight, now) else { return Ok(()) };
        let lane = self.rules().counts_freely_as(started.lane, now.since(started.arrived).0);
        let is_kept =
            |view: &Option<ViewSummary>| self.rest_is_kept(lane, &Sight { view: view.clone(), ..before.clone() }, now);
        if is_kept(&sight.view) && is_kept(&self.view_before) {
            return Err(format!("what was left was kept for lanes above lane {lane}"));
        }
        Ok(())
    }
}
