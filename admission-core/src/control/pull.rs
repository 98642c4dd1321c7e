//! Asking a sidecar for the view: which of a proxy's VMs does, and what it says.
//!
//! One VM asks at a time. It holds a lease in shared data, which runs out when it is no longer renewed, so another VM takes
//! over from one that has died.

use std::collections::BTreeMap;

use super::{Receiver, StandingView};
use crate::keys::Keys;
use crate::members::Members;
use crate::record::{Record, Sections, Writer};
use crate::store::{self, Store, StoreError};
use crate::units::{Millis, Time};
use crate::view::{FORM, Have, VIEW_VERSION, ViewQuestion};

/// How long nobody else asks after a VM has last said that it does.
pub const LEASE: Millis = Millis(1_000);

/// What is left of a lease that is not renewed yet, so that most looks write nothing.
const ENOUGH: Millis = Millis(LEASE.0 / 2);

const SECTION: u8 = 1;

/// Time for which a sidecar is asked in the first form after it has refused the newest.
pub const ASKED_AGAIN_AFTER: Millis = Millis(60_000);

/// Form in which a sidecar is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asking {
    /// The newest form.
    #[default]
    Newest,
    /// The first form: a question in the newest was refused.
    First,
    /// The first form, as long as views have this epoch: that sidecar refuses the newest.
    FirstOf(u64),
}

impl Asking {
    /// The question as it is to be asked.
    #[must_use]
    pub fn in_form(self, question: ViewQuestion) -> ViewQuestion {
        if self == Self::Newest { question } else { question.in_first_form() }
    }

    /// Form of the next question so long after the last refusal. Why not the first without end: another sidecar behind the same name
    /// may have refused, or a proxy between.
    #[must_use]
    pub fn after(self, refusal: Millis) -> Self {
        if refusal > ASKED_AGAIN_AFTER { Self::Newest } else { self }
    }

    /// Form of the next question once a view of an epoch was taken: another epoch is another sidecar, which may know more.
    #[must_use]
    pub fn taken(self, epoch: u64) -> Self {
        match self {
            Self::First => Self::FirstOf(epoch),
            Self::FirstOf(refusing) if refusing == epoch => self,
            Self::FirstOf(_) | Self::Newest => Self::Newest,
        }
    }
}

/// Who asks, and until when nobody else does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Asker {
    vm: u64,
    until: Time,
    unknown: Sections,
}

impl Record for Asker {
    fn encode(&self) -> Vec<u8> {
        pair(self.vm, self.until.0, &self.unknown)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        read_pair(bytes).map(|(vm, until, unknown)| Self { vm, until: Time(until), unknown })
    }
}

/// A number drawn once in the life of a proxy's process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Process {
    name: (u64, u64),
    unknown: Sections,
}

impl Record for Process {
    fn encode(&self) -> Vec<u8> {
        pair(self.name.0, self.name.1, &self.unknown)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        read_pair(bytes).map(|(high, low, unknown)| Self { name: (high, low), unknown })
    }
}

fn pair(first: u64, second: u64, unknown: &Sections) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.section(SECTION, |out| {
        out.u64(first);
        out.u64(second);
    });
    writer.finish(unknown)
}

fn read_pair(bytes: &[u8]) -> Option<(u64, u64, Sections)> {
    let mut read = None;
    let unknown = Sections::read(bytes, |tag, mut reader| {
        if tag != SECTION {
            return Some(false);
        }
        read = Some((reader.u64()?, reader.u64()?));
        Some(true)
    })?;
    read.map(|(first, second)| (first, second, unknown))
}

/// Whether the VM with this number, which no other VM has, is the one to ask. It has to look more often than [`LEASE`].
///
/// # Errors
/// The record could not be read or changed; nobody is known to be the one then.
pub fn may_ask(store: &impl Store, keys: &Keys, vm: u64, now: Time) -> Result<bool, StoreError> {
    let key = keys.asker();
    let first = store::read::<Asker>(store, &key)?;
    if first.0.vm == vm && first.0.until.since(now) > ENOUGH {
        return Ok(true);
    }
    let held = store::update_from(store, &key, first, |asker| {
        if asker.vm != vm && now < asker.until {
            return Err(());
        }
        (asker.vm, asker.until) = (vm, Time(now.0.saturating_add(LEASE.0)));
        Ok(())
    })?;
    Ok(held.is_ok())
}

/// What the proxy's process is called, in 32 hexadecimal digits: what `draw` gave the first who asked.
///
/// # Errors
/// The record could not be read or changed.
pub fn process(store: &impl Store, keys: &Keys, draw: impl Fn() -> (u64, u64)) -> Result<String, StoreError> {
    let named = store::update(store, &keys.process(), |process: &mut Process| match process.name {
        (0, 0) => {
            process.name = draw();
            Ok(process.name)
        }
        name => Err(name),
    })?;
    let (high, low) = named.unwrap_or_else(|name| name);
    Ok(format!("{high:016x}{low:016x}"))
}

/// What a sidecar is asked on behalf of these pools, by the VM of this receiver.
///
/// # Errors
/// A record that is not Sluice's.
pub fn question<'a>(
    store: &impl Store,
    receiver: &Receiver,
    proxy: String,
    pools: impl Iterator<Item = &'a str>,
    wait: Millis,
    now: Time,
) -> Result<ViewQuestion, StoreError> {
    let keys = &receiver.keys;
    let standing: StandingView = store::read(store, &keys.view())?.0;
    let members: Members = store::read(store, &keys.members())?.0;
    let (mut admitted, mut held) = (BTreeMap::new(), BTreeMap::new());
    let (mut queued, mut demand) = (BTreeMap::new(), BTreeMap::new());
    for pool in pools {
        let (credit, ledger) = super::acknowledge(store, keys, pool, &members, now)?;
        admitted.insert(pool.to_owned(), credit.admitted);
        held.extend(credit.held.map(|held| (pool.to_owned(), held)));
        queued.insert(pool.to_owned(), super::queued_in(&ledger, &members));
        demand.insert(pool.to_owned(), ledger.demand(&members));
    }
    let have = Have { epoch: standing.epoch, generation: standing.generation };
    Ok(ViewQuestion {
        version: VIEW_VERSION,
        proxy,
        admitted,
        held,
        queued,
        demand: Some(demand),
        needs: super::needs(store, keys, &members),
        needs_whole: receiver
            .last
            .as_ref()
            .is_none_or(|last| (last.epoch, last.generation) != (have.epoch, have.generation)),
        have: (standing != StandingView::default()).then_some(have),
        wait_ms: wait.0,
        form: FORM,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests as control;
    use super::*;
    use crate::store::memory::MemoryStore;

    fn keys() -> Keys {
        Keys::new("n")
    }

    #[test]
    fn one_asks_until_it_falls_silent_for_a_lease() {
        let store = MemoryStore::default();
        let asks = |vm: u64, at: u64| may_ask(&store, &keys(), vm, Time(at)).unwrap();
        assert!(asks(7, 10_000));
        assert!(!asks(8, 10_500));
        for at in (10_100..12_000).step_by(100) {
            assert!(asks(7, at) && !asks(8, at), "{at}");
        }
        assert!(!asks(8, 12_400), "what was renewed last still holds");
        assert!(asks(8, 13_000));
        assert!(!asks(7, 13_001), "who was away is not the one any more");
    }

    #[test]
    fn a_lease_is_written_seldom_and_never_by_two() {
        let store = MemoryStore::default();
        for at in (0..1_000).step_by(100) {
            assert!(may_ask(&store, &keys(), 7, Time(at)).unwrap());
        }
        assert!(store.writes.get() <= 3, "{}", store.writes.get());
        store.fail_on("asker", 1);
        assert!(may_ask(&store, &keys(), 9, Time(5_000)).unwrap(), "a conflict is looked at again");
        assert!(!may_ask(&store, &keys(), 7, Time(5_000)).unwrap());
    }

    #[test]
    fn a_sidecar_that_refused_the_newest_form_is_asked_in_the_first_until_another_comes() {
        let refused = Asking::First.taken(7);
        assert_eq!((refused, refused.taken(7)), (Asking::FirstOf(7), Asking::FirstOf(7)));
        assert_eq!((refused.taken(8), Asking::Newest.taken(8)), (Asking::Newest, Asking::Newest));
        assert_eq!((refused.after(ASKED_AGAIN_AFTER), refused.after(Millis(60_001))), (refused, Asking::Newest));
    }

    #[test]
    fn a_process_keeps_the_name_it_was_given_first() {
        let store = MemoryStore::default();
        let name = process(&store, &keys(), || (1, 0xff)).unwrap();
        assert_eq!(name, "000000000000000100000000000000ff");
        assert_eq!(process(&store, &keys(), || (2, 2)).unwrap(), name);
    }

    #[test]
    fn a_question_says_what_stands_and_what_was_admitted() {
        let (store, control) = (MemoryStore::default(), control::control());
        let (mut receiver, other) = (Receiver::of(&control), Receiver::of(&control));
        let ask = |receiver: &Receiver| {
            question(&store, receiver, "x".into(), ["p", "q"].into_iter(), Millis(9), Time(1)).unwrap()
        };
        let first = ask(&receiver);
        assert_eq!((first.have, first.wait_ms, first.admitted.len()), (None, 9, 2));
        receiver.take(&store, &control::view(5, 3, 1), Time(1)).unwrap();
        let have = Some(Have { epoch: 5, generation: 3 });
        assert_eq!((ask(&receiver).have, ask(&receiver).needs_whole), (have, false));
        assert_eq!((ask(&other).have, ask(&other).needs_whole), (have, true), "another VM has not seen the document");
    }
}
