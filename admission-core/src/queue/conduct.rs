//! Conduct of a waiter whose KV blocks are not free, and what it costs others that it keeps the line.

use crate::decide::Room;
use crate::units::{Millis, Time, Tokens};

/// Longest time for which a waiter keeps the line.
const LONGEST_HOLD: Millis = Millis(30_000);

/// Mean service times after which most of what runs now has ended.
const SERVICE_TIMES: u64 = 4;

/// Mean service time while none is known.
const USUAL_SERVICE: Millis = Millis(LONGEST_HOLD.0 / SERVICE_TIMES);

/// Conduct of a waiter while its blocks are not free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Not seen as the first of those that yield.
    #[default]
    Unseen,
    /// Lets others pass, and may keep the line from a moment on.
    Yields {
        /// Beginning of its time to keep the line.
        until: Time,
    },
    /// Keeps the line.
    Holds {
        /// The hold so far.
        hold: Hold,
        /// End of the hold.
        until: Time,
    },
    /// Has kept the line, and lets others pass to its end.
    HasHeld,
}

/// A time for which one waiter keeps the line, and what it keeps idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// Beginning of the hold.
    pub(crate) from: Time,
    /// Mean service time of the pool's requests then.
    mean_service: Millis,
    /// Last moment up to which idle blocks were counted.
    counted: Time,
    /// Tokens that fit into the free blocks, by the milliseconds that they stayed free.
    idle: u64,
}

impl Hold {
    /// A hold that begins now.
    pub(crate) fn new(mean_service: Option<Millis>, now: Time) -> Self {
        Self { from: now, mean_service: mean_service.unwrap_or(USUAL_SERVICE), counted: now, idle: 0 }
    }

    /// The end of a hold of a waiter: the waiter's own end, four mean service times or 30 s, whichever comes first.
    pub(super) fn end(&self, of_waiter: Time) -> Time {
        let service = Millis(self.mean_service.0.saturating_mul(SERVICE_TIMES));
        Time(self.from.0.saturating_add(service.min(LONGEST_HOLD).0)).min(of_waiter)
    }

    /// Counts a room that was free since the last count.
    pub(super) fn count(&mut self, room: Room, now: Time) {
        let free = room.idle.0.saturating_mul(u64::from(room.block_size));
        self.idle = self.idle.saturating_add(free.saturating_mul(now.since(self.counted).0));
        self.counted = now;
    }

    /// Tokens that others could have had meanwhile: `idle blocks × block size × time ÷ mean service time`.
    pub(crate) fn cost(&self) -> Tokens {
        Tokens(self.idle / self.mean_service.0.max(1)).min(Tokens::MOST_OF_A_REQUEST)
    }
}

impl Fit {
    /// A waiter that becomes the first, and whose time is up at `end`.
    pub(super) fn first(end: Time, now: Time) -> Self {
        Self::Yields { until: Time(now.0.saturating_add(end.since(now).0 / 2)) }
    }
}
