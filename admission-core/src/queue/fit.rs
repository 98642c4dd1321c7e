//! Waiters whose KV blocks are not free: how long they let others pass, and when they keep them back.
//!
//! A request that needs more blocks than are free would never start while smaller ones take each block that comes free, and
//! while nothing starts behind it the pool runs empty. So it does both in turn: it lets pass for half of its patience, then
//! keeps the line for as long at most, then lets pass again.

use super::conduct::{Fit, Hold};
use super::{Band, FlowId, Queue, Ticket, Waiter, Waiting};
use crate::decide::{Room, Rooms};
use crate::ledger::{SubFlow, Yielding};
use crate::outcome::Refusal;
use crate::policy::Lane;
use crate::units::{Blocks, Time};

/// Blocks that requests of each lane may take, highest lane first, as a queue last saw them; none where blocks are not counted.
pub(crate) type RoomsByLane = Vec<Rooms>;

/// Position of the lane whose room a waiter in a band has.
fn keeps_as(waiter: &Waiter, band: usize) -> usize {
    waiter.lanes.keeps_as(waiter.lane.position, band).position
}

fn lacking(needed: Blocks, room: Room) -> Blocks {
    Blocks(needed.0.saturating_sub(room.free.0))
}

fn room_of(rooms: Rooms, waiter: &Waiter) -> Option<Room> {
    if waiter.can_be_steered { rooms.steered } else { rooms.unsteered }
}

impl Waiting {
    /// The end of its hold.
    pub(crate) fn end_of(&self, hold: &Hold) -> Time {
        hold.end(self.until)
    }

    /// Blocks that it needs of its room, and the room; `None` where blocks are not counted.
    fn needs(&self, rooms: &RoomsByLane) -> Option<(Blocks, Room)> {
        let room = room_of(*rooms.get(self.keeps_as())?, &self.waiter)?;
        Some((room.need(self.waiter.ask.amount(room.block_size).blocks, !self.waiter.ask.prompt_read), room))
    }

    /// Position of the lane whose room it has.
    fn keeps_as(&self) -> usize {
        keeps_as(&self.waiter, self.climb.band)
    }

    /// The hold of a waiter that keeps the line.
    pub(crate) fn hold(&self) -> Option<Hold> {
        if let Fit::Holds { hold, .. } = self.fit { Some(hold) } else { None }
    }

    /// True while it lets others pass. One that fits no cache does not: it goes on, and is refused.
    pub(super) fn yields(&self, rooms: &RoomsByLane) -> bool {
        let lacks = |(blocks, room): (Blocks, Room)| blocks > room.free && blocks <= room.most;
        self.needs(rooms).is_some_and(lacks) && self.hold().is_none()
    }
}

impl Queue {
    /// Waiters that let others pass: of every band and lane the first and the one that needs least.
    // Why both: when more is free than was seen here, another VM is to hold back newcomers for any that fits, and to let the
    // first go first.
    pub(super) fn yielding(&self) -> Vec<Yielding> {
        let of_band = |band: &Band| {
            let waiting = band.in_line().filter_map(|place| Some((self.waiting.get(&place.ticket)?, place)));
            let yields = waiting.filter(|(waiting, _)| waiting.yields(&self.rooms));
            let mut yields = yields.filter_map(|(waiting, place)| Some((waiting.needs(&self.rooms)?.0, place)));
            let first = yields.next();
            let least = yields.min();
            let least = least.filter(|least| first.is_some_and(|first| least.0 < first.0));
            let both = first.into_iter().chain(least);
            both.filter_map(move |(blocks, place)| {
                let steered = self.waiting.get(&place.ticket)?.waiter.can_be_steered;
                self.candidate(place).map(|candidate| Yielding { head: candidate.head, blocks, steered })
            })
        };
        self.bands.values().flat_map(of_band).collect()
    }

    /// The least blocks of those in line that came for the same lane in the same flow and go before one of a sub-flow that is so
    /// urgent; none of a waiter that keeps the line.
    pub(crate) fn least_before(
        &self,
        lane: &Lane,
        flow: &FlowId,
        sub: Option<SubFlow>,
        urgency: u64,
    ) -> Option<Blocks> {
        let band = self.bands.get(&(lane.position, lane.key))?;
        let within = band.within(flow, sub);
        let before = band.in_line_of(flow).filter(|other| match within {
            Some(tag) => (other.within, other.urgency) <= (tag, urgency),
            None => other.urgency <= urgency,
        });
        // Why one is enough: what is not counted keeps no request from starting.
        let is_counted = self.rooms.iter().any(|rooms| rooms.steered.or(rooms.unsteered).is_some());
        let looked_at = before.take(if is_counted { usize::MAX } else { 1 });
        let waiting = looked_at.filter_map(|place| self.waiting.get(&place.ticket));
        let needs = |waiting: &Waiting| match waiting.needs(&self.rooms) {
            Some((blocks, _)) if waiting.hold().is_none() => blocks,
            _ => Blocks(0),
        };
        waiting.map(needs).min()
    }

    /// Counts what the waiter that keeps the line has kept idle, and ends its hold when that was long enough: as it was until then.
    pub(crate) fn look_at_hold(&mut self, now: Time) -> Option<Waiting> {
        let waiting = self.holding.and_then(|ticket| self.waiting.get_mut(&ticket))?;
        let room = waiting.needs(&self.rooms).map(|(_, room)| room);
        let Fit::Holds { hold, until } = &mut waiting.fit else { return None };
        if let Some(room) = room {
            hold.count(room, now);
        }
        if now < *until {
            return None;
        }
        let ended = waiting.clone();
        waiting.fit = Fit::HasHeld;
        self.holding = None;
        Some(ended)
    }

    /// Waiters whose time to keep the line has come, in order; notes which waiters are first and let others pass from now on. The time
    /// of one that evictions can help has come, given the blocks that it lacks.
    pub(crate) fn due_to_hold(&mut self, can_be_helped: impl Fn(&Waiter, Blocks) -> bool, now: Time) -> Vec<Ticket> {
        let firsts: Vec<Ticket> =
            self.firsts(|waiting| waiting.fit != Fit::HasHeld).map(|first| first.ticket).collect();
        let mut due = Vec::new();
        for ticket in firsts {
            let Some(waiting) = self.waiting.get_mut(&ticket).filter(|waiting| waiting.yields(&self.rooms)) else {
                continue;
            };
            if waiting.fit == Fit::Unseen {
                waiting.fit = Fit::first(waiting.until, now);
            }
            let (Fit::Yields { until }, Some((blocks, room))) = (waiting.fit, waiting.needs(&self.rooms)) else {
                continue;
            };
            // Why not for what its lane can never have: no block that comes free would help it.
            let may_fit = blocks <= room.most_of_lane;
            if may_fit && (now >= until || can_be_helped(&waiting.waiter, lacking(blocks, room))) {
                due.push((waiting.band_lane().level, until, ticket));
            }
        }
        due.sort_unstable();
        due.into_iter().map(|(.., ticket)| ticket).collect()
    }

    /// The waiter that keeps the line, and the blocks that it lacks.
    pub(crate) fn line_keeper(&self) -> Option<(&Waiter, Blocks)> {
        let waiting = self.holding.and_then(|ticket| self.waiting.get(&ticket))?;
        let (blocks, room) = waiting.needs(&self.rooms)?;
        Some((&waiting.waiter, lacking(blocks, room)))
    }

    /// Lets others pass a waiter that was refused for want of blocks of such a size; false when it keeps the line.
    pub(crate) fn lets_pass(&mut self, waiting: &Waiting, refusal: &Refusal, block_size: u32) -> bool {
        self.note_room(&waiting.waiter, waiting.climb.band, refusal, block_size);
        waiting.yields(&self.rooms)
    }

    /// Notes what a refusal of a waiter in a band for want of blocks says, in blocks of `block_size` where no room was known.
    pub(crate) fn note_room(&mut self, waiter: &Waiter, band: usize, refusal: &Refusal, block_size: u32) {
        let place = keeps_as(waiter, band);
        if self.rooms.len() <= place {
            self.rooms.resize(waiter.lanes.iter().count(), Rooms::default());
        }
        let Some(rooms) = self.rooms.get_mut(place) else { return };
        let room = if waiter.can_be_steered { &mut rooms.steered } else { &mut rooms.unsteered };
        let all = Blocks(u64::MAX);
        let known = room.unwrap_or(Room { most: all, most_of_lane: all, free: all, idle: all, block_size });
        *room = refusal.limit.as_ref().map(|limit| Room { free: Blocks(limit.allowed), ..known });
    }

    /// Makes a waiter keep the line from now on.
    pub(crate) fn hold(&mut self, ticket: Ticket, hold: Hold) {
        if let Some(waiting) = self.waiting.get_mut(&ticket) {
            waiting.fit = Fit::Holds { hold, until: hold.end(waiting.until) };
            self.holding = Some(ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Millis;

    #[test]
    fn half_of_the_patience_lets_pass_and_the_rest_holds_within_bounds() {
        assert_eq!(Fit::first(Time(11_000), Time(1_000)), Fit::Yields { until: Time(6_000) });
        let end = |end, mean: Option<u64>| Hold::new(mean.map(Millis), Time(6_000)).end(Time(end)).0;
        assert_eq!(end(11_000, None), 11_000, "its own end");
        assert_eq!(end(11_000, Some(500)), 8_000, "four service times");
        assert_eq!(end(240_000, Some(20_000)), 36_000, "30 s");
        assert_eq!(end(240_000, None), 36_000, "30 s where no service time is known");
    }
}
