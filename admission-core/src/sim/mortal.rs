//! The store as one sees it who dies in the middle of a call.

use std::cell::Cell;

use crate::store::memory::MemoryStore;
use crate::store::{Conflict, Store, Version};

/// After so many operations nothing that is written reaches anybody.
pub(super) struct Mortal<'a> {
    store: &'a MemoryStore,
    left: Cell<u32>,
}

impl<'a> Mortal<'a> {
    pub(super) fn new(store: &'a MemoryStore, operations: u32) -> Self {
        Self { store, left: Cell::new(operations) }
    }

    fn lives(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }
}

impl Store for Mortal<'_> {
    fn read(&self, key: &str) -> (Option<Vec<u8>>, Version) {
        self.lives();
        self.store.read(key)
    }

    fn write(&self, key: &str, value: &[u8], expected: Version) -> Result<(), Conflict> {
        // Who is dead may believe what it likes.
        if self.lives() { self.store.write(key, value, expected) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dead_write_reaches_nobody() {
        let store = MemoryStore::default();
        let mortal = Mortal::new(&store, 3);
        let (_, absent) = mortal.read("a");
        assert_eq!(mortal.write("a", b"1", absent), Ok(()));
        let (_, first) = mortal.read("a");
        assert_eq!(mortal.write("a", b"2", first), Ok(()));
        assert_eq!(store.read("a"), (Some(b"1".to_vec()), first));
    }
}
