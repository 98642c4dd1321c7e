//! Requests that the workers' numbers in a view cannot show yet.

use std::rc::Rc;

use crate::units::Time;
use crate::view::{Seen, ViewSummary, Workers};

use super::{Facts, Reference, RequestId, Sight};

/// Rounding of a saturation in the record of a view, and of a sum of shares.
const TINY: f64 = 1e-5;

impl Reference {
    /// Blocks of what has started since the numbers of a view were read and still runs: those of its own worker where it was sent to one
    /// of Sluice's choice, else the oldest.
    pub(super) fn unseen_blocks(
        &self,
        view: &ViewSummary,
        workers: &[Seen],
        is_excused: &dyn Fn(&RequestId) -> bool,
    ) -> u64 {
        let unseen = self.running.iter().filter(|(id, facts)| {
            let at = self.admitted_at.get(id).copied().unwrap_or(0);
            let worker = workers.iter().find(|seen| facts.worker == Some(seen.key));
            at > worker.map_or_else(|| self.seen(view).0, |seen| self.seen_of(seen, view)) && !is_excused(id)
        });
        unseen.map(|(_, facts)| facts.amount.blocks.0).sum()
    }

    /// Workers that requests are steered to by a view.
    pub(super) fn listed<'a>(&self, view: &ViewSummary, workers: &'a Option<Rc<Workers>>) -> &'a [Seen] {
        let of_view = |workers: &&Rc<Workers>| workers.epoch == view.epoch && workers.generation >= view.generation;
        let workers = workers.as_ref().filter(|_| self.rules().steers).filter(of_view);
        workers.map_or(&[], |workers| &workers.list)
    }

    /// Saturation by a view, and by what it cannot show.
    pub(super) fn saturation(
        &self,
        view: &ViewSummary,
        workers: &[Seen],
        is_excused: &dyn Fn(&RequestId) -> bool,
    ) -> Option<f64> {
        let runs = self.running.keys().filter(|id| !is_excused(id)).count() as f64;
        let by_requests = view.full_requests.map(|full| (runs - self.seen(view).1 as f64) / full as f64);
        let by_blocks = view.full_blocks.map(|full| self.unseen_blocks(view, workers, is_excused) as f64 / full as f64);
        let more = match (by_requests, by_blocks) {
            (Some(requests), Some(blocks)) => requests.max(blocks),
            (one, other) => one.or(other).unwrap_or(0.0),
        };
        let at_least = view.full_requests.map_or(0.0, |full| runs / full as f64);
        view.saturation.map(|saturation| (saturation + more).max(at_least))
    }

    /// Requests that had been admitted, and those that ran, when the scrapes of a view began. A view that has seen more than was ever admitted has
    /// seen nothing of what runs.
    fn seen(&self, view: &ViewSummary) -> (u64, u64) {
        let admitted = view.credit.admitted.requests;
        if admitted > self.admitted { (0, 0) } else { (admitted, view.credit.held.unwrap_or(0)) }
    }

    /// Requests that had been admitted when the numbers of one worker were read.
    fn seen_of(&self, worker: &Seen, view: &ViewSummary) -> u64 {
        let of_all = self.seen(view).0;
        match worker.takes.admitted {
            Some(own) if own <= self.admitted => own.max(of_all),
            _ => of_all,
        }
    }

    /// Millionths of a pool that are left for work that can wait, and the requests that are not in that number yet.
    pub(super) fn spare(&self, view: Option<&ViewSummary>, capacity: u64, sight: &Sight) -> (u64, i64) {
        let left =
            |count: u64| 1_000_000_u64.saturating_sub((count * 1_000_000).checked_div(capacity).unwrap_or(1_000_000));
        let Some(view) = view else { return (left(sight.pool.requests), 0) };
        let share = |share: f64| (share.clamp(0.0, 1.0) * 1e6).round() as u64;
        let unseen = sight.pool.requests as i64 - self.seen(view).1 as i64;
        if let Some(measured) = view.dispatch_budget {
            return (share(measured), unseen);
        }
        let by_saturation = view.saturation.map(|saturation| 1_000_000 - share(saturation));
        let by_workers = view.in_hand.filter(|_| capacity > 0).map(left);
        let Some(known) = by_saturation.into_iter().chain(by_workers).min() else {
            let held = if capacity > 0 { left(sight.pool.requests).min(left(sight.demand)) } else { 0 };
            return (held, 0);
        };
        (if capacity > 0 { known.min(left(sight.demand)) } else { known }, unseen)
    }

    /// A lane starts nothing at its ceiling, whatever has started since the scrape: all that started in one step, less the
    /// last of it, was below.
    pub(super) fn ceiling_holds(
        &self,
        started: &Facts,
        starts: &[(RequestId, &Facts)],
        sight: &Sight,
        now: Time,
    ) -> Result<(), String> {
        let rules = &self.rules[started.policy];
        let lane = rules.counts_as(started.lane, now.since(started.arrived).0);
        let Some(ceiling) = rules.lane(lane).ceiling else { return Ok(()) };
        let is_excused = |id: &RequestId| self.excused.contains(id) || starts.iter().any(|(other, _)| other == id);
        let is_below = |view: &Option<ViewSummary>, workers: &Option<Rc<Workers>>| {
            let fresh = view.as_ref().filter(|view| now.since(view.received).0 <= rules.hold_ms);
            let full = fresh.and_then(|view| self.saturation(view, self.listed(view, workers), &is_excused));
            full.is_none_or(|full| full < ceiling + TINY)
        };
        if is_below(&sight.view, &sight.workers) || is_below(&self.view_before, &self.workers_before) {
            return Ok(());
        }
        Err(format!("the pool was at the ceiling of lane {lane}"))
    }

    /// The sight before all that started in one step; `None` while VMs may disagree on whose holdings count, or are held to two policies.
    pub(super) fn before_all(
        &self,
        started: &Facts,
        starts: &[(RequestId, &Facts)],
        sight: &Sight,
        now: Time,
    ) -> Option<Sight> {
        let asked_from = self.disagree_until.max(self.mixed_until).max(self.troubled_until);
        let is_asked = started.policy == self.policy && now > asked_from;
        is_asked.then(|| {
            let mut before = sight.clone();
            starts.iter().for_each(|(_, facts)| before.take_back(facts));
            before
        })
    }

    /// A lane with a dispatch budget starts nothing beyond it. Not asked while VMs may disagree on whose holdings count, or are
    /// held to two policies.
    pub(super) fn budget_holds(
        &self,
        started: &Facts,
        starts: &[(RequestId, &Facts)],
        sight: &Sight,
        now: Time,
    ) -> Result<(), String> {
        let Some(mut before) = self.before_all(started, starts, sight, now) else { return Ok(()) };
        before.demand = sight.demand.min(self.demand_before);
        let lane = self.rules().counts_as(started.lane, now.since(started.arrived).0);
        let is_spent = |view: &Option<ViewSummary>| {
            self.dispatch_budget_is_spent(lane, &Sight { view: view.clone(), ..before.clone() }, now)
        };
        if is_spent(&sight.view) && is_spent(&self.view_before) {
            return Err(format!("the dispatch budget of lane {lane} was spent"));
        }
        Ok(())
    }
}
