//! How late the client itself is running.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Stalls remembered; a machine that has more of them measures nothing.
const REMEMBERED: usize = 10_000;

/// A task that sleeps and wakes beside what is measured, and so is late when that is. It ends when this is dropped.
pub struct Watch {
    reading: Reading,
    stalls: Arc<Mutex<Vec<Range<Instant>>>>,
    task: JoinHandle<()>,
}

/// By how much the last wake-ups were late.
#[derive(Clone, Debug, Default)]
pub struct Reading(Arc<AtomicU64>);

impl Watch {
    /// Begins to watch the runtime it is called on. A reading stands for at most `period`; what was late by `stall` or
    /// more is remembered.
    #[must_use]
    pub fn start(period: Duration, stall: Duration) -> Self {
        let (reading, stalls) = (Reading::default(), Arc::<Mutex<Vec<_>>>::default());
        let (shown, remembered) = (reading.clone(), Arc::clone(&stalls));
        let task = tokio::spawn(async move {
            let mut before = Duration::ZERO;
            loop {
                let due = Instant::now() + period;
                tokio::time::sleep_until(due).await;
                let late = due.elapsed();
                // The former wake-up counts too: a request may look right after a good one that followed a bad one.
                shown.0.store(late.max(before).as_millis() as u64, Ordering::Relaxed);
                before = late;
                if late >= stall {
                    let mut stalls = remembered.lock().unwrap_or_else(PoisonError::into_inner);
                    if stalls.len() < REMEMBERED {
                        stalls.push(due..due + late);
                    }
                }
            }
        });
        Self { reading, stalls, task }
    }

    /// For those that measure.
    #[must_use]
    pub fn reading(&self) -> Reading {
        self.reading.clone()
    }

    /// When this process did not run although it should have.
    #[must_use]
    pub fn stalls(&self) -> Vec<Range<Instant>> {
        self.stalls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Reading {
    /// How late the client runs now.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_is_held_up_knows_when() {
        let watch = Watch::start(Duration::from_millis(1), Duration::from_millis(50));
        tokio::time::sleep(Duration::from_millis(5)).await;
        let begin = Instant::now();
        std::thread::sleep(Duration::from_millis(120));
        let end = Instant::now();
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(watch.reading().now() > Duration::ZERO);
        let stalls = watch.stalls();
        assert!(stalls.iter().any(|stall| stall.start < end && stall.end > begin), "{stalls:?}");
    }
}
