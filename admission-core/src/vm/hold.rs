//! Waiters that do not fit the free KV blocks: when one keeps the line, and when that ends.

use std::convert::Infallible;
use std::rc::Rc;

use super::Vm;
use super::elsewhere::tenant_at;
use super::eviction::would_free;
use super::picture::Picture;
use crate::decide::{Held, Known, decide, rooms};
use crate::ledger::Ledger;
use crate::outcome::Reason;
use crate::queue::{Hold, Queue, Waiter, Waiting};
use crate::store::{self, Store};
use crate::units::Time;
use crate::unnamed::update_at;

impl Vm {
    /// Sees what is free, lets a waiter that does not fit keep the line when its time has come, and has evicted for it what gives way.
    pub(super) fn hold_line(&mut self, store: &impl Store, key: &Rc<str>, now: Time) {
        let Some(queue) = self.room.queues.get_mut(key) else { return };
        let Some((pool, lanes)) = queue.pool_and_lanes() else { return };
        if pool.headroom.is_none() {
            queue.rooms.clear();
            return;
        }
        let picture = self.picture(store, &pool);
        let Some(queue) = self.room.queues.get_mut(key) else { return };
        if let Some(ended) = queue.look_at_hold(now) {
            end_hold(store, key, &ended, now);
        }
        let Ok((seen, _)) = store::read::<Ledger>(store, key) else { return };
        let rooms = rooms(&pool, &lanes, picture.known(true), seen.counted(&self.membership.members), now);
        if let Some(queue) = self.room.queues.get_mut(key) {
            queue.rooms = rooms;
        }
        self.begin_hold(store, key, &seen, &picture, now);
        let keeper = self.room.queues.get(key).and_then(Queue::line_keeper).filter(|(_, lacking)| lacking.0 > 0);
        if let Some((waiter, lacking)) = keeper.map(|(waiter, lacking)| (waiter.clone(), lacking)) {
            self.ask_for_blocks(store, &waiter, lacking, picture.known(false).view);
        }
    }

    fn begin_hold(&mut self, store: &impl Store, key: &Rc<str>, seen: &Ledger, picture: &Picture, now: Time) {
        let Some(queue) = self.room.queues.get_mut(key) else { return };
        let members = &self.membership.members;
        let can_be_helped =
            |waiter: &Waiter, lacking| would_free(seen.counted(members), picture.known(false).view, waiter, lacking);
        let due = queue.due_to_hold(can_be_helped, now);
        let Some(queue) = self.room.queues.get(key) else { return };
        // Why asked: a hold of a waiter that its lane or its tenant keeps from starting would help no request.
        let mut due = due.into_iter().filter_map(|ticket| Some((ticket, queue.get(ticket)?)));
        let Some((ticket, waiting)) = due.find(|(_, waiting)| {
            self.waits_for_blocks(store, waiting, picture.known(waiting.waiter.can_be_steered), seen, now)
        }) else {
            return;
        };
        // Why at least one: blocks that others hold come free too.
        let mean_service =
            seen.time_to_free(seen.held(&self.membership.members).requests.max(1), &self.membership.members);
        let hold = Hold::new(mean_service, now);
        let until = waiting.end_of(&hold);
        let begin = |ledger: &mut Ledger| ledger.hold_line(now, until).then_some(()).ok_or(());
        if matches!(store::update(store, key, begin), Ok(Ok(())))
            && let Some(queue) = self.room.queues.get_mut(key)
        {
            queue.hold(ticket, hold);
        }
    }

    /// True when blocks alone keep a waiter from starting.
    fn waits_for_blocks(
        &self,
        store: &impl Store,
        waiting: &Waiting,
        known: Known<'_>,
        pool: &Ledger,
        now: Time,
    ) -> bool {
        let waiter = &waiting.waiter;
        let (Ok(tenant), Some(holder)) =
            (tenant_at(store, &waiter.tenant_key, &self.membership.members), self.membership.holder)
        else {
            return false;
        };
        let held = Held { tenant: &tenant, pool, members: &self.membership.members };
        let refused = decide(&waiter.ask, waiter.rules(), &waiting.turn(holder), known, held, now);
        refused.is_err_and(|refusal| refusal.reason == Reason::KvBlocks)
    }
}

/// Says in the pool's record that the hold of a waiter, if it has one, has ended, and charges its flow for what that kept idle. What
/// others are faster at ends as it was planned.
pub(super) fn end_hold(store: &impl Store, key: &str, waiting: &Waiting, now: Time) {
    let Some(hold) = waiting.hold() else { return };
    let flow = waiting.charged();
    let ended = store::update(store, key, |ledger: &mut Ledger| {
        ledger.end_hold(hold.from, now);
        Ok::<_, Infallible>(ledger.virtual_time(waiting.band_lane().level_key))
    });
    let virtual_time = match ended {
        Ok(Ok(virtual_time)) => virtual_time,
        // Why charged all the same: those that wrote the record meanwhile have not moved its line far.
        Err(_) | Ok(Err(_)) => store::read::<Ledger>(store, key)
            .map_or(0, |(ledger, _)| ledger.virtual_time(waiting.band_lane().level_key)),
    };
    let cost = hold.cost();
    let charged = update_at(store, &waiting.waiter.tenant_key, |tenant| {
        tenant.serve_flow(flow, virtual_time, cost);
        Ok::<_, Infallible>(())
    });
    drop(charged);
}
