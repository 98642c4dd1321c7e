//! Messages between VMs, by the proxy's shared queues: one queue for each slot.

use std::cell::RefCell;
use std::collections::BTreeMap;

use admission_core::keys::Keys;
use admission_core::vm::Wake;

use crate::host;

/// The queues that have been found so far, by slot.
#[derive(Default)]
pub struct Wakes(RefCell<BTreeMap<u16, u32>>);

impl Wakes {
    /// Sends messages. One that finds no queue is left out: its VM polls.
    pub fn send(&self, keys: &Keys, wakes: &[Wake]) {
        for Wake { slot, note } in wakes {
            let mut queues = self.0.borrow_mut();
            let known = queues.get(slot).copied();
            if let Some(queue) = known.or_else(|| host::resolve_queue(&keys.wakes(*slot))) {
                queues.insert(*slot, queue);
                if !host::enqueue(queue, &note.encode()) {
                    queues.remove(slot);
                }
            }
        }
    }
}
