//! The time in which a waiter that does not fit keeps all behind it from starting, so that blocks come free for it.
//!
//! A pool has one such hold at a time, over all VMs, and after each one as long a pause. So however many requests are too large
//! for what is free, the others start during at least half of the time.

use super::{Head, Ledger, Yielding};
use crate::members::{Holder, Members};
use crate::record::{Reader, Writer};
use crate::units::{Millis, Time};

/// The last hold of a pool's line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hold {
    from: Time,
    until: Time,
}

impl Ledger {
    /// The first waiters of each VM that wait for nothing but the pool, with those that let others pass.
    pub fn firsts<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, &'a Head)> {
        self.heads(members).chain(self.yielding(members).map(|(holder, one)| (holder, &one.head)))
    }

    /// Waiters whose blocks are not free and who let others pass.
    pub fn yielding<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, &'a Yielding)> {
        self.line.yielding.live(members)
    }

    /// Keeps all behind one waiter from starting until then; false while others have their turn.
    pub fn hold_line(&mut self, now: Time, until: Time) -> bool {
        self.hold.begin(now, until)
    }

    /// Time for which the line is still kept for one waiter.
    pub fn line_kept_for(&self, now: Time) -> Millis {
        self.hold.until.since(now.max(self.hold.from))
    }

    /// Ends the hold that began then.
    pub fn end_hold(&mut self, from: Time, now: Time) {
        self.hold.end(from, now);
    }
}

impl Hold {
    /// Begins a hold; false while another lasts, or the pause after it.
    fn begin(&mut self, now: Time, until: Time) -> bool {
        let pause = self.until.0.saturating_sub(self.from.0);
        // Why a hold from later than now counts for nothing: the clock was set back.
        let is_free = now < self.from || now.0 >= self.until.0.saturating_add(pause);
        if is_free {
            *self = Self { from: now, until };
        }
        is_free
    }

    /// Ends the hold that began then, unless another has begun since.
    // Why later than planned too: a VM ends its hold with its next poll, and the pause is as long as the others had to wait.
    fn end(&mut self, from: Time, now: Time) {
        if self.from == from {
            self.until = now.max(from);
        }
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.u64(self.from.0);
        out.u64(self.until.0);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { from: Time(reader.u64()?), until: Time(reader.u64()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_as_long_follows_each_hold() {
        let mut hold = Hold::default();
        assert!(hold.begin(Time(1_000), Time(1_400)));
        assert!(!hold.begin(Time(1_399), Time(1_500)), "another lasts");
        assert!(!hold.begin(Time(1_799), Time(1_900)), "the others' turn");
        assert!(hold.begin(Time(1_800), Time(2_800)));
        hold.end(Time(1_000), Time(1_900));
        assert!(!hold.begin(Time(2_000), Time(2_100)), "the end of an earlier hold ends no other");
        hold.end(Time(1_800), Time(2_000));
        assert!(!hold.begin(Time(2_199), Time(2_300)));
        assert!(hold.begin(Time(2_200), Time(2_201)), "a hold that ended early has a pause as short");
        hold.end(Time(2_200), Time(2_205));
        assert!(!hold.begin(Time(2_209), Time(2_300)), "and one that ended late a pause as long");
        assert!(hold.begin(Time(2_210), Time(2_300)));
        assert!(hold.begin(Time(5), Time(10)), "a clock that was set back keeps nobody waiting");
    }
}
