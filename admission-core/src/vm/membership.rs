//! The VM's place among those that share the count.

use super::{HEARTBEAT_VALID, changed, is_within};
use crate::directory::{Directory, Held};
use crate::keys::Keys;
use crate::members::{Holder, Members, Observer};
use crate::store::{self, Store, StoreError};
use crate::units::Time;

/// The VM's own membership, and what it knows of the others'.
pub(super) struct Membership {
    pub(super) keys: Keys,
    /// Place under which its holdings count; `None` before it has joined.
    pub(super) holder: Option<Holder>,
    /// All whose holdings count, as of the last tick.
    pub(super) members: Members,
    observer: Observer,
    /// Time of its last heartbeat.
    beaten: Option<Time>,
    /// Names that the directory does not list yet.
    unlisted: Directory,
    /// The policy that it decides by.
    holds: Held,
    /// The holder under which it has said which policy it decides by.
    says_that_it_holds: Option<Holder>,
}

impl Membership {
    /// A VM that has not joined yet.
    pub(super) fn new(keys: Keys) -> Self {
        Self {
            keys,
            holder: None,
            members: Members::default(),
            observer: Observer::default(),
            beaten: None,
            unlisted: Directory::default(),
            holds: Held::default(),
            says_that_it_holds: None,
        }
    }

    /// Notes names for the directory, and the policy that it decides by from now on.
    pub(super) fn announce(&mut self, names: &Directory, held: Held) {
        self.unlisted.add(names);
        (self.holds, self.says_that_it_holds) = (held, None);
    }

    /// Number of the VMs that share the count, itself among them; at least 1.
    pub(super) fn vms(&self) -> u64 {
        (self.members.iter().count() as u64).max(1)
    }

    /// True while its last heartbeat is recent enough to admit by.
    pub(super) fn is_valid(&self, now: Time) -> bool {
        self.beaten.is_some_and(|beaten| is_within(HEARTBEAT_VALID, beaten, now))
    }

    /// Reads who counts, without a heartbeat of its own.
    pub(super) fn look(&mut self, store: &impl Store) -> Result<(), StoreError> {
        self.members = store::read(store, &self.keys.members())?.0;
        Ok(())
    }

    /// Says that it lives, or joins. Returns the holder where it has joined, under which nothing of what it holds is charged yet.
    pub(super) fn beat(&mut self, store: &impl Store, now: Time) -> Result<Option<Holder>, StoreError> {
        let key = self.keys.members();
        if let Some(holder) = self.holder
            && let Some(((), members)) =
                changed(store, &key, |members: &mut Members| members.beat(holder).then_some(()))?
        {
            (self.members, self.beaten) = (members, Some(now));
            return Ok(None);
        }
        let Some((holder, members)) = changed(store, &key, Members::join)? else {
            return Err(StoreError::Contention { key });
        };
        (self.holder, self.members, self.beaten) = (Some(holder), members, Some(now));
        Ok(Some(holder))
    }

    /// Declares dead those that have been silent too long.
    pub(super) fn fence_silent(&mut self, store: &impl Store) -> Result<(), StoreError> {
        let silent = self.observer.tick(&self.members);
        if !silent.is_empty() {
            let fence = |members: &mut Members| {
                members.fence(&silent);
                Some(())
            };
            if let Some(((), members)) = changed(store, &self.keys.members(), fence)? {
                self.members = members;
            }
        }
        Ok(())
    }

    /// Adds the names to the directory, which only the state page reads: no request waits for it.
    pub(super) fn list(&mut self, store: &impl Store) {
        let Some(holder) = self.holder.filter(|holder| self.says_that_it_holds != Some(*holder)) else { return };
        let Self { unlisted, holds, members, .. } = self;
        let add = |all: &mut Directory| {
            let (added, held) = (all.add(unlisted), all.hold(members, holder, holds));
            (added || held).then_some(()).ok_or(())
        };
        if store::update(store, &self.keys.directory(), add).is_ok() {
            (self.unlisted, self.says_that_it_holds) = (Directory::default(), Some(holder));
        }
    }
}
