//! Who goes before whom, and whether somebody could start.

use std::collections::BTreeSet;

use super::books::Sight;
use super::{Facts, Health, POLL_MS, Reference};
use crate::sim::clients::RequestId;
use crate::units::Time;
use crate::view::ViewSummary;

/// Lower goes first: lanes below their reserve, then by the lane it counts as.
type Rank = (bool, usize);

impl Reference {
    /// I5: nobody starts while somebody of a higher rank waits who is held up by nothing of its own. Such a one would
    /// have started, unless it needs more blocks than are free: then it lets others pass.
    ///
    /// Excused are those whose VM does not run: they wait in vain until it is declared dead. So are those that what a dead VM
    /// started since the last scrape may hold up, until that is void. And nothing is asked for two
    /// ticks after the membership has changed: until then VMs may disagree on who counts, and so on what is reserved.
    pub(super) fn order_holds(&self, starts: &[(RequestId, &Facts)], sight: &Sight, now: Time) -> Result<(), String> {
        if now <= self.disagree_until {
            return Ok(());
        }
        let mut before = sight.clone();
        for (place, (id, started)) in starts.iter().enumerate().rev() {
            before.take_back(started);
            // Why at least that: all waiters of a tenant that came to its cap in this step were in line until then.
            before.demand = before.demand.max(self.demand_before);
            let rank = self.rank(started, &before, now);
            let later = starts[place + 1..].iter().map(|(id, facts)| (*id, *facts));
            let waiting = self.waiting.iter().map(|(id, facts)| (*id, facts));
            let passed = waiting.chain(later).find(|(other, facts)| {
                self.health[facts.vm] == Health::Able
                    && self.is_back_in_line(facts.tenant, now)
                    && self.goes_before((*other, facts), (*id, started), rank, &before, now)
                    && !self.held_up_by_itself(facts, &before, now)
                    && !self.held_up_by_the_dead(facts, &before, now)
                    && self.blocks_fit(
                        facts,
                        sight,
                        &|id| starts[place..].iter().any(|(started, _)| started == id),
                        now,
                    )
            });
            if let Some((other, facts)) = passed {
                return Err(format!(
                    "I5: {} of {} in lane {} starts before {} of {} in lane {}, which has waited {} ms in VM {}; held before: {before:?}",
                    id.0,
                    started.tenant,
                    started.lane,
                    other.0,
                    facts.tenant,
                    facts.lane,
                    now.since(facts.arrived).0,
                    facts.vm
                ));
            }
        }
        Ok(())
    }

    /// Requests that have climbed above the default lane have no more than their share of a hundred starts, while one waits that came for
    /// a lane above it and could start. Not asked while VMs may disagree on who counts, or are held to two policies.
    pub(super) fn aging_share_holds(
        &self,
        starts: &[(RequestId, &Facts)],
        sight: &Sight,
        now: Time,
    ) -> Result<(), String> {
        if now <= self.disagree_until.max(self.mixed_until) {
            return Ok(());
        }
        let (rules, mut before) = (self.rules(), sight.clone());
        let climbed = |facts: &Facts| rules.has_climbed_far(facts.lane, facts.arrived, now);
        for (place, (id, started)) in starts.iter().enumerate().rev() {
            before.take_back(started);
            let (earlier, later) = (starts[..place].iter().rev(), &starts[place + 1..]);
            let last = earlier.map(|(_, facts)| climbed(facts)).chain(self.last_starts.iter().copied());
            let climbers = last.take(100).filter(|climbed| *climbed).count() as u32;
            if !climbed(started) || climbers < rules.lane(started.lane).most_climbed {
                continue;
            }
            let waiting = self.waiting.values().chain(later.iter().map(|(_, facts)| *facts));
            let is_free = |id: &RequestId| starts[place..].iter().any(|(started, _)| started == id);
            // Why not above the default lane in any case: one that came for a lane above it keeps its turn in that lane.
            let free = rules.counts_freely_as(started.lane, now.since(started.arrived).0);
            let came_for_it = |facts: &&Facts| {
                facts.lane < free && rules.counts_as(facts.lane, now.since(facts.arrived).0) == facts.lane
            };
            let mut others = waiting.filter(came_for_it).filter(|facts| {
                self.health[facts.vm] == Health::Able
                    && self.is_back_in_line(facts.tenant, now)
                    && !self.held_up_by_itself(facts, &before, now)
                    && !self.held_up_by_the_dead(facts, &before, now)
                    && self.blocks_fit(facts, sight, &is_free, now)
            });
            if others.next().is_some() {
                return Err(format!(
                    "I5: {} starts above the default lane, as {climbers} of the last starts have",
                    id.0
                ));
            }
        }
        Ok(())
    }

    /// Of a tenant's waiters that are held up by its caps each VM names one, and all behind it step aside with it. They step
    /// back when they are woken or with a poll, in one VM after the other, since those of one tenant keep their order: so a
    /// lost wake-up holds up all VMs by one poll. Where one of these VMs does not run, they do once it does or has been
    /// declared dead.
    fn is_back_in_line(&self, tenant: &str, now: Time) -> bool {
        let all_run = now > self.void_by && self.health.iter().all(|health| *health == Health::Able);
        let since = |at: &Time| now.since((*at).max(self.able_since)).0;
        self.held_up_at.get(tenant).is_none_or(|at| all_run && since(at) > self.health.len() as u64 * POLL_MS + 1)
    }

    /// Notes whose waiters are held up by their own caps now. Where VMs meet, any may have been: a tenant is charged before
    /// its pool is, and given back what the pool then refuses; who looks in between finds it at its cap.
    pub(super) fn note_held_up(&mut self, sight: &Sight, alone: bool, now: Time) {
        if !alone {
            let all = self.waiting.values().filter(|facts| self.rules().tenant(facts.tenant).is_capped());
            let tenants: Vec<&'static str> = all.map(|facts| facts.tenant).collect();
            self.held_up_at.extend(tenants.into_iter().map(|tenant| (tenant, now)));
        }
        let tenants: BTreeSet<&'static str> = self.waiting.values().map(|facts| facts.tenant).collect();
        let held_up = tenants.into_iter().filter(|tenant| self.is_held_up(tenant, self.most_tokens(tenant), sight));
        let held_up: Vec<&'static str> = held_up.collect();
        self.held_up_at.extend(held_up.into_iter().map(|tenant| (tenant, now)));
    }

    /// A tenant's waiters, of which one would have started or stepped back into line, have to wait for polls again.
    pub(in crate::sim) fn wake_lost(&mut self, tenant: &'static str, now: Time) {
        self.held_up_at.insert(tenant, now);
    }

    fn goes_before(
        &self,
        (_, waiter): (RequestId, &Facts),
        (_, started): (RequestId, &Facts),
        rank: Rank,
        sight: &Sight,
        now: Time,
    ) -> bool {
        let (own, before) = (self.rank(waiter, sight, now), self.rank(waiter, sight, a_poll_before(now)));
        // Who climbs is put into its new place with the next poll, and who has climbed above the default lane may count as of that.
        let own = (own.0, own.1.max(before.1)).max(self.free_rank(waiter, sight, now));
        own < rank || own == rank && waiter.vm == started.vm && self.came_first(waiter, started)
    }

    /// Of two of one tenant, key and lane, where that is the order of its queue.
    fn came_first(&self, waiter: &Facts, started: &Facts) -> bool {
        let alike = (waiter.tenant, waiter.key, waiter.lane) == (started.tenant, started.key, started.lane);
        alike && self.rules().lane(waiter.lane).first_come && waiter.arrived < started.arrived
    }

    /// Whether a start passes an older request of its own tenant and lane in another VM. Each VM names only the first
    /// of its waiters, by what it last saw of their tenants, so over VMs the order within a tenant is only nearly that of
    /// arrival. One whose blocks are not free is passed by right.
    pub(super) fn overtakes(&self, (id, started): &(RequestId, &Facts), sight: &Sight, now: Time) -> bool {
        let able = self.waiting.values().filter(|facts| self.health[facts.vm] == Health::Able);
        let mut elsewhere = able.filter(|facts| facts.vm != started.vm);
        elsewhere.any(|facts| {
            self.came_first(facts, started) && self.blocks_fit(facts, sight, &|running| running == id, now)
        })
    }

    fn rank(&self, facts: &Facts, sight: &Sight, now: Time) -> Rank {
        self.rank_in(facts.lane, self.rules().counts_as(facts.lane, now.since(facts.arrived).0), sight, now)
    }

    fn free_rank(&self, facts: &Facts, sight: &Sight, now: Time) -> Rank {
        self.rank_in(facts.lane, self.rules().counts_freely_as(facts.lane, now.since(facts.arrived).0), sight, now)
    }

    /// A lane's reserve is for those that came for it.
    fn rank_in(&self, lane: usize, counts_as: usize, sight: &Sight, now: Time) -> Rank {
        let held = sight.lanes.get(counts_as).copied().unwrap_or(0);
        let reserved = self.rules().reserved(self.capacity(sight, now).unwrap_or(0));
        let has_all = reserved.get(counts_as).is_none_or(|reserved| held >= *reserved);
        (has_all || counts_as != lane, self.rules().level(counts_as))
    }

    fn fresh<'a>(&self, sight: &'a Sight, now: Time) -> Option<&'a ViewSummary> {
        sight.view.as_ref().filter(|view| now.since(view.received).0 <= self.rules().hold_ms)
    }

    /// Most requests in flight now: the pool's own cap, and that of its live workers; those last known count only where
    /// there is no other cap.
    pub(super) fn capacity(&self, sight: &Sight, now: Time) -> Option<u64> {
        let old = sight.view.as_ref().filter(|_| self.rules().max_in_flight.is_none());
        let workers = self.fresh(sight, now).or(old).map(|view| u64::from(view.live_workers));
        let of_workers = self.rules().per_worker.zip(workers).map(|(cap, workers)| cap * workers);
        self.rules().max_in_flight.into_iter().chain(of_workers).min()
    }

    /// Its tenant's caps, or its lane's ceiling or dispatch budget: what holds back nobody else.
    fn held_up_by_itself(&self, facts: &Facts, sight: &Sight, now: Time) -> bool {
        let tokens = self.most_tokens(facts.tenant).max(facts.amount.tokens.0);
        self.is_held_up(facts.tenant, tokens, sight) || self.held_up_by_its_lane(facts, sight, now)
    }

    /// A ceiling or free blocks may hold it up: which of its requests a dead VM had started since a scrape is not known here.
    fn held_up_by_the_dead(&self, facts: &Facts, sight: &Sight, now: Time) -> bool {
        let lane = self.lowest_lane(facts, now);
        let counts_unseen = self.rules().headroom.is_some() || self.rules().lane(lane).ceiling.is_some();
        now <= self.void_by && counts_unseen && self.fresh(sight, now).is_some()
    }

    fn held_up_by_its_lane(&self, facts: &Facts, sight: &Sight, now: Time) -> bool {
        let place = self.lowest_lane(facts, now);
        self.held_up_in(place, sight, now) || self.rest_is_kept(place, sight, now)
    }

    fn held_up_in(&self, place: usize, sight: &Sight, now: Time) -> bool {
        let of = |view| self.saturation(view, self.listed(view, &sight.workers), &|_| false);
        // Why not for lanes without a ceiling: it looks at all that runs.
        let is_at = |ceiling| self.fresh(sight, now).and_then(of).is_some_and(|saturation| saturation >= ceiling);
        self.rules().lane(place).ceiling.is_some_and(is_at) || self.dispatch_budget_is_spent(place, sight, now)
    }

    /// The lowest lane that a waiter may count as: who climbs is put into its new place with the next poll.
    fn lowest_lane(&self, facts: &Facts, now: Time) -> usize {
        self.rules().counts_freely_as(facts.lane, a_poll_before(now).since(facts.arrived).0)
    }

    /// Whether a tenant's caps keep a waiter of it from starting. One that is too large for what is left holds back those of
    /// its own tenant.
    fn is_held_up(&self, tenant: &str, tokens: u64, sight: &Sight) -> bool {
        let (rules, held) = (self.rules().tenant(tenant), sight.tenants.get(tenant).copied().unwrap_or_default());
        rules.requests.is_some_and(|cap| held.requests >= cap)
            || rules.tokens.is_some_and(|cap| held.tokens.0 + tokens > cap)
    }

    /// Of the largest waiter of a tenant.
    fn most_tokens(&self, tenant: &str) -> u64 {
        if self.rules().tenant(tenant).tokens.is_none() {
            return 0;
        }
        let own = self.waiting.values().filter(|facts| facts.tenant == tenant);
        own.map(|facts| facts.amount.tokens.0).max().unwrap_or(0)
    }

    /// A lane with a dispatch budget starts while what has started since the scrape, with one more, is at most the pool's size ×
    /// (what is spare − baseline), and one in any case while that is more than nothing.
    pub(super) fn dispatch_budget_is_spent(&self, lane: usize, sight: &Sight, now: Time) -> bool {
        let Some(baseline) = self.rules().lane(lane).dispatch_baseline else { return false };
        let held = sight.lanes.get(lane).copied().unwrap_or(0);
        let capacity = self.capacity(sight, now).unwrap_or(0);
        let (spare, unseen) = self.spare(self.fresh(sight, now), capacity, sight);
        let most = (capacity * spare.saturating_sub(baseline) / 1_000_000) as i64;
        let all_held = (sight.pool.requests * 1_000_000).checked_div(capacity).unwrap_or(0);
        let left = capacity * 1_000_000_u64.saturating_sub(all_held).saturating_sub(baseline) / 1_000_000;
        spare <= baseline || (held > 0 && (unseen + 1 > most || left == 0))
    }

    /// I7: nothing lies idle for longer than one poll while somebody who may have it waits. Which of those of the highest
    /// rank is the head, the fair tags decide; so it lies idle only if each of them could start.
    ///
    /// Excused is the time in which a VM does not run: its waiters hold their places until it is declared dead.
    pub(super) fn nothing_lies_idle(&mut self, sight: &Sight, now: Time) -> Result<(), String> {
        let able = self.health.iter().all(|health| *health == Health::Able);
        if !able || now <= self.troubled_until.max(self.mixed_until) || !self.heads_could_start(sight, now) {
            self.idle_since = None;
            return Ok(());
        }
        let since = *self.idle_since.get_or_insert(now);
        if now.since(since.max(self.hindered_until)).0 > 2 * POLL_MS + 1 {
            let held = (sight.pool, &sight.lanes);
            return Err(format!(
                "I7: {} wait since {} and the head could start: {held:?}",
                self.waiting.len(),
                since.0
            ));
        }
        Ok(())
    }

    /// Some waiter is in line for sure, and it and all of whom that may be said that come before it or stand beside it fit.
    fn heads_could_start(&self, sight: &Sight, now: Time) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        // Why once for all waiters: each of these looks at all that runs.
        let lanes: Vec<(bool, bool)> = (0..self.rules().lanes.len())
            .map(|place| (self.held_up_in(place, sight, now), self.rest_is_kept(place, sight, now)))
            .collect();
        let is_shut = |held_as: usize, kept_from: usize| lanes[held_as].0 || lanes[kept_from].1;
        let by_its_lane = |facts: &Facts| {
            let lowest = self.lowest_lane(facts, now);
            is_shut(lowest, lowest)
        };
        // Why of either lane: one that has climbed above the default lane may count as of that, or not.
        let climbed = |facts: &Facts| self.rules().counts_as(facts.lane, now.since(facts.arrived).0);
        let free = |facts: &Facts| self.rules().counts_freely_as(facts.lane, now.since(facts.arrived).0);
        let in_line = |facts: &Facts| !by_its_lane(facts) || !is_shut(climbed(facts), free(facts));
        let perhaps = self
            .waiting
            .values()
            .filter(|facts| in_line(facts) && !self.is_held_up(facts.tenant, facts.amount.tokens.0, sight));
        let perhaps: Vec<_> = perhaps.map(|facts| (self.rank(facts, sight, now), facts)).collect();
        let surely = perhaps.iter().filter(|(_, facts)| {
            self.is_back_in_line(facts.tenant, now)
                && !by_its_lane(facts)
                && !self.is_held_up(facts.tenant, self.most_tokens(facts.tenant), sight)
        });
        let Some(first) = surely.map(|(rank, _)| *rank).min() else { return false };
        perhaps.iter().filter(|(rank, _)| *rank <= first).all(|(_, facts)| self.fits_pool(facts, sight, now))
    }

    fn fits_pool(&self, facts: &Facts, sight: &Sight, now: Time) -> bool {
        if self.capacity(sight, now).is_none_or(|cap| sight.pool.requests >= cap) {
            return false;
        }
        let Some(view) = self.fresh(sight, now) else { return true };
        // Which worker has room, where each has a cap of its own, is for the decision's own tests.
        let busy_ones_matter = self.rules().steers && self.rules().per_worker.is_some();
        if view.free_workers == 0 || busy_ones_matter && view.free_workers < view.live_workers {
            return false;
        }
        self.blocks_fit(facts, sight, &|_| false, now)
    }

    /// True when the blocks of a request are free, those of some requests counted as free.
    fn blocks_fit(&self, facts: &Facts, sight: &Sight, is_free: &dyn Fn(&RequestId) -> bool, now: Time) -> bool {
        let view = self.fresh(sight, now);
        let some_worker = view.and_then(|view| self.fits_some_worker(facts, sight, view, is_free));
        if some_worker == Some(false) {
            return false;
        }
        let known = view.and_then(|view| Some((view, self.rules().headroom?, view.kv?)));
        known.is_none_or(|(view, headroom, kv)| {
            let kept_back = (kv.all.total.0 as f64 * headroom).ceil() as u64;
            let unseen = self.unseen_blocks(view, self.listed(view, &sight.workers), is_free);
            let usable = kv.all.total.0 - kept_back;
            let kept = self.kept_blocks(self.lowest_lane(facts, now), usable, is_free);
            let is_free_in_all = facts.amount.blocks.0 + unseen + kept_back + kept <= kv.all.free.0;
            let kept_back_of = |total: u64| (total as f64 * headroom).ceil() as u64;
            let freest = kv.freest.unwrap_or_default();
            is_free_in_all
                && (some_worker == Some(true) || facts.amount.blocks.0 + kept_back_of(freest.total.0) <= freest.free.0)
        })
    }
}

const fn a_poll_before(now: Time) -> Time {
    Time(now.0 - POLL_MS - 1)
}

impl Sight {
    /// As it was before somebody started.
    pub(super) fn take_back(&mut self, started: &Facts) {
        self.pool = self.pool.minus(started.amount);
        // It may have been in line until then. Where its own lane has a budget it was not counted, and one more excuses a little.
        self.demand += 1;
        if let Some(lane) = self.lanes.get_mut(started.lane) {
            *lane = lane.saturating_sub(1);
        }
        if let Some(held) = self.tenants.get_mut(started.tenant) {
            *held = held.minus(started.amount);
        }
    }
}
