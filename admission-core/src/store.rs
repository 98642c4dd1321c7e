//! Shared records under compare-and-swap.
//!
//! [`Store`] is what a proxy's shared data can do; [`update`] is the only way in which Sluice changes it: a pure step on
//! the decoded record, tried again on the newer record whenever another VM was faster.

use std::fmt;

use crate::record::Record;

/// Times an update is tried before it gives up.
pub const MAX_ATTEMPTS: u32 = 32;

/// Bytes shared by all VMs, each value with a version that changes whenever it is written.
pub trait Store {
    /// The value and its version. An absent key has no value and [`Version::Absent`].
    fn read(&self, key: &str) -> (Option<Vec<u8>>, Version);

    /// Writes if the version is still the one given; [`Version::Absent`] creates.
    ///
    /// # Errors
    /// [`Conflict`] when another writer was faster; nothing is written then.
    fn write(&self, key: &str, value: &[u8], expected: Version) -> Result<(), Conflict>;
}

/// Names one state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The key has never been written.
    Absent,
    /// Changes with every write.
    Written(u32),
}

/// Another writer was faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict;

/// Why a record could not be read or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Lost to other writers [`MAX_ATTEMPTS`] times in a row.
    Contention {
        /// Of the record.
        key: String,
    },
    /// The bytes are not a record of this kind: something else writes under the same namespace.
    Foreign {
        /// Of the record.
        key: String,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contention { key } => {
                write!(out, "shared record {key} changed {MAX_ATTEMPTS} times while it was being updated")
            }
            Self::Foreign { key } => {
                write!(out, "shared record {key} holds something else; give this plugin a namespace of its own")
            }
        }
    }
}

/// Reads a record; an absent one is the default.
///
/// # Errors
/// [`StoreError::Foreign`].
pub fn read<R: Record>(store: &impl Store, key: &str) -> Result<(R, Version), StoreError> {
    let (bytes, version) = store.read(key);
    let Some(bytes) = bytes else { return Ok((R::default(), version)) };
    match R::decode(&bytes) {
        Some(record) => Ok((record, version)),
        None => Err(StoreError::Foreign { key: key.to_owned() }),
    }
}

/// Changes a record by `step`, which must be pure: it may run once for every attempt. When it returns `Err`, nothing is
/// written and that is the result.
///
/// # Errors
/// [`StoreError`] when the record could not be changed.
pub fn update<R: Record, T, E>(
    store: &impl Store,
    key: &str,
    step: impl FnMut(&mut R) -> Result<T, E>,
) -> Result<Result<T, E>, StoreError> {
    let first = read(store, key)?;
    update_from(store, key, first, step)
}

/// [`update`] with the first attempt on a record already read.
///
/// # Errors
/// As [`update`].
pub fn update_from<R: Record, T, E>(
    store: &impl Store,
    key: &str,
    mut seen: (R, Version),
    mut step: impl FnMut(&mut R) -> Result<T, E>,
) -> Result<Result<T, E>, StoreError> {
    // Why the pair is not taken apart: a record is large, and would be moved once more.
    for _ in 0..MAX_ATTEMPTS {
        let done = match step(&mut seen.0) {
            Ok(done) => done,
            Err(refused) => return Ok(Err(refused)),
        };
        if store.write(key, &seen.0.encode(), seen.1).is_ok() {
            return Ok(Ok(done));
        }
        seen = read(store, key)?;
    }
    Err(StoreError::Contention { key: key.to_owned() })
}

#[cfg(any(test, feature = "sim"))]
pub(crate) mod memory {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use super::*;

    /// What somebody else does before a write to a key that ends so.
    type Interruption = (String, Box<dyn FnOnce()>);

    /// What somebody else does once so many more operations are over.
    type Meddling = (u32, Box<dyn FnOnce()>);

    /// Shared data in memory, where writes can be made to conflict as if another VM were always faster.
    #[derive(Default)]
    pub(crate) struct MemoryStore {
        values: RefCell<BTreeMap<String, (Vec<u8>, u32)>>,
        failing: RefCell<(String, u32)>,
        interruption: RefCell<Option<Interruption>>,
        meddling: RefCell<Option<Meddling>>,
        pub(crate) writes: Cell<u32>,
        pub(crate) conflicts: Cell<u32>,
    }

    impl MemoryStore {
        #[cfg(test)]
        pub(crate) fn keys(&self) -> Vec<String> {
            self.values.borrow().keys().cloned().collect()
        }

        /// The next `times` writes to keys that end so conflict.
        pub(crate) fn fail_on(&self, key_ending: &str, times: u32) {
            *self.failing.borrow_mut() = (key_ending.to_owned(), times);
        }

        /// Before the next write to a key that ends so, somebody else does something.
        pub(crate) fn before_write(&self, key_ending: &str, action: impl FnOnce() + 'static) {
            *self.interruption.borrow_mut() = Some((key_ending.to_owned(), Box::new(action)));
        }

        /// Once `operations` more reads and writes are over, somebody else does something before the next one.
        #[cfg(feature = "sim")]
        pub(crate) fn after_operations(&self, operations: u32, action: impl FnOnce() + 'static) {
            *self.meddling.borrow_mut() = Some((operations, Box::new(action)));
        }

        fn meddle(&self) {
            let due = self.meddling.borrow_mut().as_mut().is_some_and(|(left, _)| match left.checked_sub(1) {
                Some(less) => {
                    *left = less;
                    false
                }
                None => true,
            });
            if due && let Some((_, action)) = self.meddling.take() {
                action();
            }
        }

        fn interrupt(&self, key: &str) {
            let due = self.interruption.borrow().as_ref().is_some_and(|(ending, _)| key.ends_with(ending.as_str()));
            if due && let Some((_, action)) = self.interruption.take() {
                action();
            }
        }

        #[cfg(test)]
        pub(crate) fn put(&self, key: &str, bytes: &[u8]) {
            self.values.borrow_mut().insert(key.to_owned(), (bytes.to_vec(), 1));
        }
    }

    impl Store for MemoryStore {
        fn read(&self, key: &str) -> (Option<Vec<u8>>, Version) {
            self.meddle();
            match self.values.borrow().get(key) {
                Some((bytes, version)) => (Some(bytes.clone()), Version::Written(*version)),
                None => (None, Version::Absent),
            }
        }

        fn write(&self, key: &str, value: &[u8], expected: Version) -> Result<(), Conflict> {
            self.meddle();
            self.interrupt(key);
            let (ending, times) = &mut *self.failing.borrow_mut();
            if *times > 0 && key.ends_with(ending.as_str()) {
                *times -= 1;
                self.conflicts.set(self.conflicts.get() + 1);
                return Err(Conflict);
            }
            let mut values = self.values.borrow_mut();
            let current = values.get(key).map_or(Version::Absent, |(_, version)| Version::Written(*version));
            if current != expected {
                self.conflicts.set(self.conflicts.get() + 1);
                return Err(Conflict);
            }
            self.writes.set(self.writes.get() + 1);
            values.insert(key.to_owned(), (value.to_vec(), self.writes.get()));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::memory::MemoryStore;
    use super::*;
    use crate::members::Members;

    fn join(store: &MemoryStore) -> Result<Result<u64, ()>, StoreError> {
        update(store, "members", |members: &mut Members| members.join().map(|holder| holder.epoch).ok_or(()))
    }

    #[test]
    fn a_faster_writer_is_not_overwritten() {
        let store = MemoryStore::default();
        let stale: (Members, Version) = read(&store, "members").unwrap();
        assert_eq!(join(&store), Ok(Ok(0)), "creates");
        let epoch = update_from(&store, "members", stale, |members: &mut Members| {
            members.join().map(|holder| holder.epoch).ok_or(())
        });
        assert_eq!(epoch, Ok(Ok(1)), "the first write of the slower one is not taken for a creation");
    }

    #[test]
    fn gives_up_after_the_last_attempt_and_not_before() {
        let store = MemoryStore::default();
        store.fail_on("members", MAX_ATTEMPTS - 1);
        assert_eq!(join(&store), Ok(Ok(0)));
        store.fail_on("members", MAX_ATTEMPTS);
        assert_eq!(join(&store), Err(StoreError::Contention { key: "members".into() }));
    }

    #[test]
    fn a_refusing_step_writes_nothing() {
        let store = MemoryStore::default();
        let refused = update(&store, "members", |_: &mut Members| Err::<(), _>("no"));
        assert_eq!((refused, store.writes.get()), (Ok(Err("no")), 0));
    }

    #[test]
    fn foreign_bytes_are_reported_and_left_alone() {
        let store = MemoryStore::default();
        store.put("members", b"not ours");
        assert_eq!(join(&store), Err(StoreError::Foreign { key: "members".into() }));
        assert_eq!(store.read("members").0.unwrap(), b"not ours");
    }
}
