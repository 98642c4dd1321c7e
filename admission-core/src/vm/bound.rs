//! The limit that keeps a request from starting which waits, or would have to.

use super::Vm;
use super::elsewhere::tenant_at;
use crate::decide::{Held, decide, tenant_refuses};
use crate::ledger::{LaneKey, Ledger};
use crate::outcome::{Detail, Obstacle, Reason, Refusal, Retry};
use crate::queue::{Ticket, Waiter, Waiting};
use crate::store::{self, Store};
use crate::units::{Millis, Time};

impl Vm {
    /// Waiters of a queue whose time is up, each with what keeps it from starting.
    pub(super) fn due(&self, store: &impl Store, key: &str, now: Time) -> Vec<(Ticket, Option<Refusal>)> {
        let Some(queue) = self.room.queues.get(key) else { return Vec::new() };
        let bound = |ticket| queue.get(ticket).and_then(|waiting| self.bound_of(store, waiting, now));
        queue.due(now).into_iter().map(|ticket| (ticket, bound(ticket))).collect()
    }

    /// The refusal of a waiter if it were to start now, or the lack of those before it; `None` where nothing keeps it any more.
    pub(super) fn bound_of(&self, store: &impl Store, waiting: &Waiting, now: Time) -> Option<Refusal> {
        let (waiter, turn) = (&waiting.waiter, waiting.turn(self.membership.holder?));
        let (seen, _) = store::read::<Ledger>(store, &waiter.pool.key).ok()?;
        let tenant = tenant_at(store, &waiter.tenant_key, &self.membership.members).ok()?;
        let picture = self.picture(store, &waiter.pool);
        let held = Held { tenant: &tenant, pool: &seen, members: &self.membership.members };
        let known = picture.known(waiter.can_be_steered);
        let refused = decide(&waiter.ask, waiter.rules(), &turn, known, held, now).err();
        self.behind_others(store, waiter, refused, now)
    }

    /// The refusal of a request, or the lack of those who come first where it has none or says no more than that they do.
    // Why also where it has none: a decision leaves out those who come first in the waiter's own VM.
    pub(super) fn behind_others(
        &self,
        store: &impl Store,
        waiter: &Waiter,
        refused: Option<Refusal>,
        now: Time,
    ) -> Option<Refusal> {
        match refused {
            Some(refused) if !refused.reason.is_of_order() => Some(refused),
            refused => self.own_flow(store, waiter, now).or_else(|| self.line(store, waiter)).or(refused),
        }
    }

    /// The lack of the first waiter of the request's own tenant that has stepped aside here.
    fn own_flow(&self, store: &impl Store, waiter: &Waiter, now: Time) -> Option<Refusal> {
        let tenant = tenant_at(store, &waiter.tenant_key, &self.membership.members).ok()?;
        let firsts = self.room.queues.get(&*waiter.pool.key)?.firsts_aside(&waiter.tenant_key);
        firsts
            .into_iter()
            .find_map(|first| tenant_refuses(&first.ask, first.rules(), tenant.counted(&self.membership.members), now))
    }

    /// The lack of those who keep the line: of the request's lane, here or in another VM, else of any.
    fn line(&self, store: &impl Store, waiter: &Waiter) -> Option<Refusal> {
        let (seen, _) = store::read::<Ledger>(store, &waiter.pool.key).ok()?;
        let queue = self.room.queues.get(&*waiter.pool.key);
        let keeps_the_line = |reason: &Reason| !matches!(reason.obstacle(), Obstacle::Tenant | Obstacle::Class);
        let elsewhere = |lane: Option<LaneKey>| {
            let kept = seen.kept(&self.membership.members).filter(|kept| lane.is_none_or(|lane| kept.lane == lane));
            kept.filter_map(|kept| kept.reason).find(keeps_the_line)
        };
        let of = |lane| queue.and_then(|queue| queue.kept_by(lane)).or_else(|| elsewhere(lane));
        let reason = of(Some(waiter.lane.key)).or_else(|| of(None))?;
        let detail = Detail::Fixed("it keeps those who come first");
        Some(Refusal { reason, limit: None, detail, retry: Retry::After(Millis(0)), place: None })
    }
}

/// The detail of a refusal that says how long a request would wait, or has waited: what for.
pub(super) fn kept_from_starting(bound: Option<Refusal>) -> Detail {
    bound.map_or(Detail::None, |bound| Detail::KeptBy(Box::new(bound)))
}
