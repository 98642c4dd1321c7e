//! The limit that keeps a request from starting which waits, or would have to.

use super::Vm;
use super::elsewhere::tenant_at;
use crate::decide::{Held, decide};
use crate::ledger::Ledger;
use crate::outcome::{Detail, Obstacle, Reason, Refusal};
use crate::queue::{Waiter, Waiting};
use crate::store::{self, Store};
use crate::units::Time;

impl Vm {
    /// The refusal of a waiter if it were to start now; `None` where nothing keeps it any more.
    pub(super) fn bound_of(&self, store: &impl Store, waiting: &Waiting, now: Time) -> Option<Refusal> {
        let (waiter, turn) = (&waiting.waiter, waiting.turn(self.holder?));
        let (seen, _) = store::read::<Ledger>(store, &waiter.pool.key).ok()?;
        let tenant = tenant_at(store, &waiter.tenant_key, &self.members).ok()?;
        let picture = self.picture(store, &waiter.pool);
        let held = Held { tenant: &tenant, pool: &seen, members: &self.members };
        let known = picture.known(waiter.can_be_steered);
        let refused = decide(&waiter.ask, waiter.rules(), &turn, known, held, now).err()?;
        Some(self.behind_the_line(store, waiter, refused))
    }

    /// The refusal, or the lack of those who come first where it says no more than that they do.
    // Why: of others of its tenant the same is not asked. They come first only in the moment in which the tenant's own caps have room.
    pub(super) fn behind_the_line(&self, store: &impl Store, waiter: &Waiter, refused: Refusal) -> Refusal {
        if refused.reason.obstacle() != Obstacle::Line {
            return refused;
        }
        let lane = waiter.lane.key;
        let here = self.queues.get(&*waiter.pool.key).and_then(|queue| queue.kept_by(lane));
        let Some(reason) = here.or_else(|| self.kept_elsewhere(store, waiter)) else { return refused };
        let detail = Detail::Fixed("it keeps those who come first");
        Refusal { reason, limit: None, detail, retry: refused.retry, place: None }
    }

    /// The lack of a lane's waiters, or of any lane's, as any VM says it.
    fn kept_elsewhere(&self, store: &impl Store, waiter: &Waiter) -> Option<Reason> {
        let (seen, _) = store::read::<Ledger>(store, &waiter.pool.key).ok()?;
        let of_lane = seen.kept(&self.members).find(|kept| kept.lane == waiter.lane.key);
        of_lane.or_else(|| seen.kept(&self.members).next())?.reason
    }
}

/// The detail of a refusal that says how long a request would wait, or has waited: what for.
pub(super) fn kept_from_starting(bound: Option<Refusal>) -> Detail {
    bound.map_or(Detail::None, |bound| Detail::KeptBy(Box::new(bound)))
}
