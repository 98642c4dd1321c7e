//! The leases of one VM.

use std::collections::BTreeMap;

use super::LeaseId;
use super::lease::Lease;
use crate::units::Time;

/// Leases by their numbers, and the prompts among them that count as being read.
#[derive(Default)]
pub(super) struct Leases {
    all: BTreeMap<LeaseId, Lease>,
    next: u64,
    /// Prompts that count as being read, and when they no longer do whatever has been heard.
    read_due: Vec<(Time, LeaseId)>,
}

impl Leases {
    pub(super) fn get(&self, id: LeaseId) -> Option<&Lease> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: LeaseId) -> Option<&mut Lease> {
        self.all.get_mut(&id)
    }

    /// All leases, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (LeaseId, &Lease)> {
        self.all.iter().map(|(id, lease)| (*id, lease))
    }

    /// A number that no other lease of the VM has had.
    pub(super) fn new_id(&mut self) -> LeaseId {
        let id = LeaseId(self.next);
        self.next = self.next.wrapping_add(1);
        id
    }

    pub(super) fn keep(&mut self, id: LeaseId, lease: Lease) {
        self.read_due.extend(lease.reading.map(|reading| (reading.due, id)));
        self.all.insert(id, lease);
    }

    pub(super) fn remove(&mut self, id: LeaseId) -> Option<Lease> {
        self.all.remove(&id)
    }

    /// Notes when the prompt of a lease counts as read at the latest.
    pub(super) fn note_due(&mut self, due: Time, id: LeaseId) {
        self.read_due.push((due, id));
    }

    /// Takes out those whose prompts count as read by now.
    pub(super) fn take_read(&mut self, now: Time) -> Vec<LeaseId> {
        let mut read = Vec::new();
        let all = &self.all;
        self.read_due.retain(|(at, id)| {
            let reading = all.get(id).and_then(|lease| lease.reading);
            match reading.filter(|reading| reading.due == *at) {
                Some(_) if *at <= now => {
                    read.push(*id);
                    false
                }
                Some(_) => true,
                None => false,
            }
        });
        read
    }
}
