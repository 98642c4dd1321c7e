//! Messages from one VM to another: something may start, is to be evicted, or is to give way in a queue.
//!
//! A message says only where to look; what is true stands in the records. So one that is lost, late, double or comes to
//! the wrong VM does no harm: it is polled for what it would have said.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::Vm;
use super::lease::{Change, Frees};
use crate::decide::Line;
use crate::gather::gather;
use crate::ledger::{Ledger, Order, Part, TallyKey};
use crate::members::Holder;
use crate::store::Store;
use crate::units::Time;

const START: u8 = b's';
const EVICT: u8 = b'e';
const GIVE_WAY: u8 = b'g';

/// A message for the VM in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// Of the VM.
    pub slot: u16,
    /// What it is told.
    pub note: Note,
}

/// What a VM is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// One of its waiters may start, by the record of the pool or the tenant that has room.
    Start(Rc<str>),
    /// It has been asked in this pool's record to evict.
    Evict(Rc<str>),
    /// More waits for the pool of this record than may, for one of a higher lane has joined.
    GiveWay(Rc<str>),
}

impl Wake {
    pub(super) fn start(slot: u16, key: &Rc<str>) -> Self {
        Self { slot, note: Note::Start(Rc::clone(key)) }
    }

    pub(super) fn evict(slot: u16, key: &Rc<str>) -> Self {
        Self { slot, note: Note::Evict(Rc::clone(key)) }
    }

    pub(super) fn give_way(slot: u16, key: &Rc<str>) -> Self {
        Self { slot, note: Note::GiveWay(Rc::clone(key)) }
    }
}

impl Note {
    /// As bytes of a queue between VMs.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, key) = match self {
            Self::Start(key) => (START, key),
            Self::Evict(key) => (EVICT, key),
            Self::GiveWay(key) => (GIVE_WAY, key),
        };
        [&[kind], key.as_bytes()].concat()
    }

    /// From bytes; `None` when they are not a message.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, key) = bytes.split_first()?;
        let key: Rc<str> = str::from_utf8(key).ok()?.into();
        match *kind {
            START => Some(Self::Start(key)),
            EVICT => Some(Self::Evict(key)),
            GIVE_WAY => Some(Self::GiveWay(key)),
            _ => None,
        }
    }
}

impl Vm {
    /// Wakes the VM of the one waiter that may start with what has been freed; it passes on what it leaves.
    pub(super) fn wake_for(&mut self, store: &impl Store, change: &Change, ledger: &Ledger, now: Time) {
        let (members, key) = (&self.membership.members, &change.key);
        match &change.frees {
            Frees::Nothing => {}
            Frees::Pool(pool, lanes) => {
                let picture = self.picture(store, pool);
                let next = Line::of(pool, lanes, picture.known(true), ledger.counted(members), now).next(None);
                let is_class = |tally: TallyKey| pool.classes.iter().any(|class| class.key == tally);
                let frees_a_class = change.tallies.iter().any(|(tally, _)| is_class(*tally));
                let for_a_class = ledger.waiting_for_a_class(members).filter(|_| frees_a_class);
                let woken: BTreeSet<Holder> = gather(next.into_iter().chain(for_a_class));
                self.outbox.send(woken.into_iter().map(|holder| Wake::start(holder.slot, key)));
            }
            Frees::Tenant(lanes) => {
                let order = Order::of(ledger.blocked(members).map(|(_, first)| first));
                let tag = |part: Part| ledger.tag_within(part.flow, part.sub);
                let first = ledger
                    .blocked(members)
                    .min_by_key(|(holder, first)| (lanes.level_of(first.band), order.place(first, tag), holder.slot));
                self.outbox.send(first.map(|(holder, _)| Wake::start(holder.slot, key)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_survive_their_encoding_and_others_are_not_read() {
        for note in [Note::Start("sluice/1/pool/p".into()), Note::Evict("".into()), Note::GiveWay("p".into())] {
            assert_eq!(Note::decode(&note.encode()), Some(note));
        }
        for foreign in [&b""[..], b"x/pool", b"s\xff"] {
            assert_eq!(Note::decode(foreign), None);
        }
    }
}
