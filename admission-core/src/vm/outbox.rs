//! Messages that a VM has for others, or for itself.

use std::rc::Rc;

use super::Wake;
use crate::members::Holder;

/// Wake-ups that a VM passes on between two polls while nothing starts in it. VMs that disagree on who comes first, as they do
/// while they are held to different policies, pass one to and fro.
const MOST_PASSED_ON: u32 = 32;

/// Messages that are still to be sent.
#[derive(Default)]
pub(super) struct Outbox {
    wakes: Vec<Wake>,
    /// Wake-ups that were for others, since the last start or poll.
    passed_on: u32,
}

impl Outbox {
    /// Sends messages with the next [`Outbox::take`].
    pub(super) fn send(&mut self, wakes: impl IntoIterator<Item = Wake>) {
        self.wakes.extend(wakes);
    }

    /// Messages to be sent now.
    pub(super) fn take(&mut self) -> Vec<Wake> {
        std::mem::take(&mut self.wakes)
    }

    /// Wakes the VM whose waiter comes next, unless that is passed to and fro.
    pub(super) fn pass_on(&mut self, ahead: Option<Holder>, key: &Rc<str>) {
        if let Some(ahead) = ahead
            && self.passed_on < MOST_PASSED_ON
        {
            self.passed_on += 1;
            self.wakes.push(Wake::start(ahead.slot, key));
        }
    }

    /// Notes a poll, or that something has started: from then on wake-ups may be passed on again.
    pub(super) fn note_progress(&mut self) {
        self.passed_on = 0;
    }
}
