//! What the tasks of one sidecar share.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::Config;
use crate::metrics::Counters;
use crate::table::{Revision, Table};

/// The configuration, the table under one lock, and a wake-up for whoever waits for it to change.
pub struct Shared {
    pub config: Config,
    pub counters: Counters,
    started: Instant,
    table: Mutex<Table>,
    revision: watch::Sender<Revision>,
    /// Turns true when the last worker has been tried for the first time.
    all_tried: watch::Sender<bool>,
}

impl Shared {
    pub fn new(config: Config) -> Self {
        let table = Table::new(&config.pools, config.proxies.len(), config.scrape.down_after);
        Self {
            counters: Counters::new(&config),
            config,
            started: Instant::now(),
            table: Mutex::new(table),
            revision: watch::Sender::new(Revision::default()),
            all_tried: watch::Sender::new(false),
        }
    }

    /// Time since the start, by which everything is measured.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn read<T>(&self, look: impl FnOnce(&Table) -> T) -> T {
        look(&self.lock())
    }

    /// Changes the table and wakes who waits for what has changed.
    pub fn update<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.lock();
        let result = change(&mut table);
        let revision = table.revision();
        let all_tried = *self.all_tried.borrow() || table.untried().next().is_none();
        // Still under the lock: an older revision must not arrive after a newer one.
        self.revision.send_if_modified(|old| std::mem::replace(old, revision) != revision);
        self.all_tried.send_if_modified(|old| std::mem::replace(old, all_tried) != all_tried);
        result
    }

    pub fn revisions(&self) -> watch::Receiver<Revision> {
        self.revision.subscribe()
    }

    /// Until every worker has been tried once. Before, a worker would be told to be down of which nothing is known.
    pub async fn all_tried(&self) {
        // Fails only when the sender is gone, and `self` holds it.
        let _ = self.all_tried.subscribe().wait_for(|tried| *tried).await;
    }

    /// A task that panicked under the lock leaves a table that is whole: every change of it is a plain assignment.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
