//! Requests that Sluice sends to a worker of its choice: what that worker had been given since its numbers were read.

use crate::units::Time;
use crate::view::{Seen, ViewSummary, WorkerKey};

use super::{Facts, Reference, RequestId, Sight};

impl Reference {
    /// True when some worker has room for a request, those of some requests counted as free; `None` where the choice is the proxy's.
    pub(super) fn fits_some_worker(
        &self,
        facts: &Facts,
        sight: &Sight,
        view: &ViewSummary,
        is_free: &dyn Fn(&RequestId) -> bool,
    ) -> Option<bool> {
        if !facts.can_be_steered {
            return None;
        }
        let mut look_free = self.listed(view, &sight.workers).iter().filter(|seen| seen.free).peekable();
        look_free.peek()?;
        Some(look_free.any(|seen| {
            let at_it = self.running.iter().filter(|(id, facts)| facts.worker == Some(seen.key) && !is_free(id));
            let is_below_cap = self.rules().per_worker.is_none_or(|cap| (at_it.count() as u64) < cap);
            is_below_cap && self.has_room(seen, facts, view, self.rules().headroom, is_free)
        }))
    }

    /// True when a worker is not busy by what it was given since its numbers were read, and has the blocks of a request free.
    fn has_room(
        &self,
        seen: &Seen,
        facts: &Facts,
        view: &ViewSummary,
        headroom: Option<f64>,
        is_free: &dyn Fn(&RequestId) -> bool,
    ) -> bool {
        let given = self.unseen_blocks(view, std::slice::from_ref(seen), &|id| {
            is_free(id) || self.running.get(id).is_none_or(|facts| facts.worker != Some(seen.key))
        });
        let is_busy = seen.takes.until_busy.is_some_and(|until_busy| given >= until_busy);
        let fits = headroom.zip(view.kv).and(headroom).zip(seen.takes.kv).is_none_or(|(headroom, (all, freest))| {
            let kept_back = |total: u64| (total as f64 * headroom).ceil() as u64;
            let needed = facts.amount.blocks.0;
            needed + kept_back(freest.total.0) <= freest.free.0 && needed + given + kept_back(all.total.0) <= all.free.0
        });
        !is_busy && fits
    }

    /// A request that was sent to a worker of Sluice's choice found it free and with room, by the view of now or the one before,
    /// whatever it had been given since that was scraped; all that started in one step, less the last of it, is not asked.
    pub(super) fn worker_has_room(
        &self,
        started: &Facts,
        starts: &[(RequestId, &Facts)],
        sight: &Sight,
        now: Time,
    ) -> Result<(), String> {
        let rules = &self.rules[started.policy];
        let Some(worker) = started.worker else { return Ok(()) };
        let is_excused = |id: &RequestId| self.excused.contains(id) || starts.iter().any(|(other, _)| other == id);
        let had_room = |sight: &Sight| {
            let view = sight.view.as_ref().filter(|view| now.since(view.received).0 <= rules.hold_ms);
            let seen = sight.workers.iter().flat_map(|workers| &workers.list).find(|seen| seen.key == worker);
            view.zip(seen)
                .is_none_or(|(view, seen)| seen.free && self.has_room(seen, started, view, rules.headroom, &is_excused))
        };
        let before = Sight { view: self.view_before.clone(), workers: self.workers_before.clone(), ..sight.clone() };
        if had_room(sight) || had_room(&before) {
            return Ok(());
        }
        Err(format!("worker {} had no room for its {} blocks", name(worker), started.amount.blocks.0))
    }
}

fn name(worker: WorkerKey) -> String {
    format!("{:x}", worker.0)
}
