//! Facts that an event may read of the proxy while it is handled.

use std::cell::Cell;
use std::time::SystemTime;

use admission_core::units::Time;

use crate::host;
use crate::store::SharedData;

/// Clock, randomness and shared records, for one event.
#[derive(Default)]
pub struct Env {
    now: Cell<Option<Time>>,
}

impl Env {
    /// Records that all VMs share.
    pub const fn store(&self) -> &SharedData {
        &SharedData
    }

    /// Time of the event.
    // Why the clock is read a single time: an event asks often, and takes less than the clock can tell.
    pub fn now(&self) -> Time {
        let now = self.now.get().unwrap_or_else(host::now);
        self.now.set(Some(now));
        now
    }

    /// A random number that callers cannot guess.
    pub fn random(&self) -> u64 {
        host::random()
    }

    /// All the bytes that the proxy holds of the body of the current request, whose number its last event has brought.
    pub fn request_body(&self, held: usize) -> Vec<u8> {
        host::request_body(0, held)
    }

    /// The time of day.
    pub fn time_of_day(&self) -> SystemTime {
        host::time_of_day()
    }
}
