//! Shared data in memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use admission_core::store::{Conflict, Store, Version};

/// Shared data, of which writes can be made to conflict.
#[derive(Clone, Default)]
pub struct Memory {
    values: RefCell<BTreeMap<String, (Vec<u8>, u32)>>,
    writes: Cell<u32>,
    /// So many of the next writes find that somebody else was faster.
    pub conflicts: Cell<u32>,
}

impl Memory {
    /// Every value there is.
    pub fn values(&self) -> BTreeMap<String, Vec<u8>> {
        self.values.borrow().iter().map(|(key, (value, _))| (key.clone(), value.clone())).collect()
    }
}

impl Store for Memory {
    fn read(&self, key: &str) -> (Option<Vec<u8>>, Version) {
        match self.values.borrow().get(key) {
            Some((value, version)) => (Some(value.clone()), Version::Written(*version)),
            None => (None, Version::Absent),
        }
    }

    fn write(&self, key: &str, value: &[u8], expected: Version) -> Result<(), Conflict> {
        if self.conflicts.get() > 0 {
            self.conflicts.set(self.conflicts.get() - 1);
            return Err(Conflict);
        }
        if self.read(key).1 != expected {
            return Err(Conflict);
        }
        self.writes.set(self.writes.get() + 1);
        self.values.borrow_mut().insert(key.to_owned(), (value.to_vec(), self.writes.get()));
        Ok(())
    }
}
