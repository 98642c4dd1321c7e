//! How late the client itself is running.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Between two looks; also the longest time for which a reading stands.
const PERIOD: Duration = Duration::from_millis(20);

/// A task that sleeps and wakes beside the requests, and so is late when they are. It ends when this is dropped.
pub struct Watch {
    reading: Reading,
    task: JoinHandle<()>,
}

/// By how much the last wake-ups were late.
#[derive(Clone, Debug, Default)]
pub struct Reading(Arc<AtomicU64>);

impl Watch {
    /// Begins to watch the runtime it is called on.
    pub fn start() -> Self {
        let reading = Reading::default();
        let shown = reading.clone();
        let task = tokio::spawn(async move {
            let mut before = Duration::ZERO;
            loop {
                let due = Instant::now() + PERIOD;
                tokio::time::sleep_until(due).await;
                let late = due.elapsed();
                // The former wake-up counts too: a request may look right after a good one that followed a bad one.
                shown.0.store(late.max(before).as_millis() as u64, Ordering::Relaxed);
                before = late;
            }
        });
        Self { reading, task }
    }

    /// For those that measure.
    pub fn reading(&self) -> Reading {
        self.reading.clone()
    }
}

impl Reading {
    /// How late the client runs now.
    pub fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}
