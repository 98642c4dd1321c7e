//! What the tasks of one sidecar share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use admission_core::view::ViewAnswer;
use tokio::sync::watch;

use crate::Config;
use crate::fetch::{Peer, TlsError};
use crate::metrics::Counters;
use crate::reading::Gpu;
use crate::table::{News, ProxyId, Revision, Table, ThresholdError};
use crate::thresholds::{Kept, ModelThresholds, NotKept, Requested, ThresholdRequest};

/// The configuration as it stands, the table under one lock, and a wake-up for whoever waits for it to change.
pub struct Shared {
    pub counters: Counters,
    /// Names this sidecar to proxies: its start, in microseconds since 1970.
    pub epoch: u64,
    current: watch::Sender<Current>,
    started: Instant,
    table: Mutex<Table>,
    revision: watch::Sender<Revision>,
    /// The GPUs of this machine, where they are read.
    local_gpus: Mutex<Vec<Gpu>>,
    /// Whoever asked last did so without the token of the API.
    met_stranger: AtomicBool,
    /// Thresholds that were set at run time. One at a time is set, read, kept and made to count.
    kept: tokio::sync::Mutex<Kept>,
}

/// Tells when another configuration has been taken over.
pub struct Configured(watch::Receiver<Current>);

impl Configured {
    /// Until that has happened since the last call, or since this was made.
    pub async fn changed(&mut self) {
        // Fails only when the sender is gone, and `Shared` holds it, without which nothing runs.
        let _ = self.0.changed().await;
    }
}

/// What a configuration comes to.
#[derive(Clone)]
struct Current {
    config: Arc<Config>,
    /// How to reach the workers, by pool.
    peers: Arc<BTreeMap<String, Arc<Peer>>>,
}

/// A pool's `tls` that cannot be used, though there is no mistake in how it is written.
#[derive(Debug)]
pub struct BadTls {
    /// Which pool, in the order of the configuration.
    pub at: usize,
    pub error: TlsError,
}

/// Why thresholds are not set.
#[derive(Debug)]
pub enum SetError {
    /// The request cannot be followed.
    Request(ThresholdError),
    /// The file that keeps them cannot be written.
    File(NotKept),
    /// The task that writes that file has failed.
    Task(tokio::task::JoinError),
}

impl Shared {
    /// # Errors
    /// A certificate of a pool cannot be used.
    pub fn new(config: Config, epoch: u64) -> Result<Self, BadTls> {
        let current = Current::new(config, None)?;
        let table = Table::new(&current.config);
        Ok(Self {
            counters: Counters::new(&current.config),
            epoch,
            started: Instant::now(),
            revision: watch::Sender::new(table.revision()),
            table: Mutex::new(table),
            current: watch::Sender::new(current),
            local_gpus: Mutex::default(),
            met_stranger: AtomicBool::new(false),
            kept: tokio::sync::Mutex::default(),
        })
    }

    /// Takes over another configuration; whoever waits for changes is woken.
    ///
    /// # Errors
    /// A certificate of a pool cannot be used; everything stays as it was.
    pub fn configure(&self, config: Config) -> Result<(), BadTls> {
        let next = Current::new(config, Some(&self.current()))?;
        let config = Arc::clone(&next.config);
        self.counters.configure(&config);
        self.update(|table| {
            table.configure(&config);
            // Under the table's lock: neither is seen without the other by whoever is woken.
            self.current.send_replace(next);
        });
        Ok(())
    }

    /// Takes note whether a request shows the token of the API; whether it is the first that does not, since one did. So one line
    /// is logged and not thousands.
    pub fn meets_stranger(&self, is_stranger: bool) -> bool {
        !self.met_stranger.swap(is_stranger, Ordering::Relaxed) && is_stranger
    }

    /// Changes whenever another configuration has been taken over.
    pub fn configured(&self) -> Configured {
        Configured(self.current.subscribe())
    }

    /// The configuration that stands.
    pub fn config(&self) -> Arc<Config> {
        self.current().config
    }

    /// A pool as configured, and how to reach its workers; `None` when it is no longer there.
    pub fn pool(&self, name: &str) -> Option<(Arc<Config>, usize, Arc<Peer>)> {
        let Current { config, peers } = self.current();
        let at = config.pools.iter().position(|pool| pool.name == name)?;
        Some((config, at, Arc::clone(peers.get(name)?)))
    }

    /// Time since the start, by which everything is measured.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn read<T>(&self, look: impl FnOnce(&Table) -> T) -> T {
        look(&self.lock())
    }

    /// Takes what a proxy has said, and logs what has become noteworthy of pools.
    pub fn said(&self, proxy: ProxyId, answer: &ViewAnswer, now: Duration, took: Option<Vec<Arc<str>>>) {
        let News { shared, unknown } = self.update(|table| table.said(proxy, answer, now, took));
        for pool in unknown {
            tracing::error!(
                pool,
                "a proxy needs views of this pool, and no `pools[].name` of this sidecar is that: nothing is known there of its workers"
            );
        }
        for (pool, proxies) in shared {
            tracing::warn!(
                pool = &*pool,
                proxies,
                "several proxies serve this pool, and each counts by itself: its caps, and the caps and budgets of tenants, hold once in each"
            );
        }
    }

    /// Changes the table and wakes who waits for changes of states and targets.
    pub fn update<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.lock();
        let result = change(&mut table);
        let revision = table.revision();
        // Still under the lock: an older revision must not arrive after a newer one. Numbers change thousands of times a
        // second and are told once an interval, so they wake nobody.
        self.revision.send_if_modified(|old| {
            let before = std::mem::replace(old, revision);
            (before.states, before.targets) != (revision.states, revision.targets)
        });
        result
    }

    pub fn revisions(&self) -> watch::Receiver<Revision> {
        self.revision.subscribe()
    }

    /// Lets thresholds count that were set before the last start.
    ///
    /// # Errors
    /// The file that keeps them cannot be read.
    pub fn restore_thresholds(&mut self) -> Result<(), NotKept> {
        let Some(path) = self.config().thresholds_file.clone() else { return Ok(()) };
        let kept = Kept::read(&path)?;
        for (pool, over) in kept.pools().filter(|(_, over)| over.set.validate().is_ok()) {
            self.update(|table| table.set_thresholds(pool, over, Duration::ZERO));
        }
        *self.kept.get_mut() = kept;
        Ok(())
    }

    /// Reads or sets thresholds. What is set is kept first, where a file is given, and counts from `now` on.
    ///
    /// # Errors
    /// See [`SetError`]; nothing is changed then.
    pub async fn request_thresholds(&self, request: &ThresholdRequest) -> Result<ModelThresholds, SetError> {
        let mut kept = self.kept.lock().await;
        let Requested { thresholds, set } =
            self.read(|table| table.requested_thresholds(request)).map_err(SetError::Request)?;
        if !request.is_read() {
            if let Some(path) = self.config().thresholds_file.clone() {
                let (before, set) = (kept.clone(), set.clone());
                let written = tokio::task::spawn_blocking(move || before.with(&path, set)).await;
                *kept = written.map_err(SetError::Task)?.map_err(SetError::File)?;
            }
            let now = self.now();
            self.update(|table| set.iter().for_each(|(pool, over)| table.set_thresholds(pool, over, now)));
        }
        Ok(thresholds)
    }

    /// Until there is a pool of which enough is known to tell it. Before, workers would be told to be down of which
    /// nothing is known.
    pub async fn settled(&self) {
        let mut revisions = self.revisions();
        while !self.read(Table::has_settled) {
            // Fails only when the sender is gone, and `self` holds it.
            let _ = revisions.changed().await;
        }
    }

    pub fn set_local_gpus(&self, gpus: Vec<Gpu>) {
        *self.local_gpus.lock().unwrap_or_else(PoisonError::into_inner) = gpus;
    }

    pub fn local_gpus(&self) -> Vec<Gpu> {
        self.local_gpus.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn current(&self) -> Current {
        self.current.borrow().clone()
    }

    /// A task that panicked under the lock leaves a table that is whole: every change of it is a plain assignment.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Current {
    /// Pools whose `tls` is the same as before keep their connections.
    fn new(config: Config, before: Option<&Self>) -> Result<Self, BadTls> {
        let old_tls = |name: &str| before?.config.pools.iter().find(|pool| pool.name == name).map(|pool| &pool.tls);
        let mut peers = BTreeMap::new();
        for (at, pool) in config.pools.iter().enumerate() {
            let kept = before.filter(|_| old_tls(&pool.name) == Some(&pool.tls));
            let peer = match kept.and_then(|before| before.peers.get(&pool.name)) {
                Some(peer) => Arc::clone(peer),
                None => Arc::new(Peer::new(&pool.tls, None).map_err(|error| BadTls { at, error })?),
            };
            peers.insert(pool.name.clone(), peer);
        }
        Ok(Self { config: Arc::new(config), peers: Arc::new(peers) })
    }
}
