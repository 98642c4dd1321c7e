//! All that is known of the workers, and what each proxy is told of them. Times are spans since the sidecar started.
//!
//! Pools come from the configuration, workers come and go as their sources say, proxies register. Nothing here waits or
//! asks: `scrape`, `discovery` and `push` bring in what they saw.

use std::sync::Arc;
use std::time::Duration;

use admission_core::saturation::{BudgetSource, BusyThresholds};
use admission_core::view::{Credit, PoolReport, ViewAnswer};

use crate::config::{self, Patience};
use crate::discovery::{Condition, Found, Member};
use crate::reading::{Gpu, Limits, Reading};
use crate::thresholds::{ModelThresholds, Override, Requested, ThresholdRequest};

mod pool;
mod proxies;
mod worker;

use pool::Pool;
use proxies::{Credits, Others, Proxies};
pub use proxies::{ProxyId, ProxyRow, Way};
use worker::Cause;
pub use worker::{WorkerId, WorkerNow};

/// The workers, their pools, and what the proxies said they admitted.
#[derive(Debug)]
pub struct Table {
    patience: Patience,
    pools: Vec<Pool>,
    proxies: Proxies,
    revision: Revision,
    /// Names the next worker.
    serial: u64,
    /// When a scrape of any worker last ended, since the workers to be scraped are these.
    tried_at: Option<Duration>,
}

/// How much later than it may a try may end before it is taken for one that never will.
const LATE: Duration = Duration::from_secs(1);

/// Counts changes, so that whoever told a proxy about one revision knows whether there is news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Revision {
    /// Changes of which workers there are, of a worker's state or of the busy set.
    pub states: u64,
    /// Changes of any other number of a report, ages apart.
    pub numbers: u64,
    /// Changes of which workers are to be scraped, and where.
    pub targets: u64,
}

/// A scrape under way: when it began, and what each proxy was then known to have admitted to the worker's pool.
#[derive(Clone, Debug)]
pub struct Scrape {
    worker: WorkerId,
    began: Duration,
    credits: Credits,
}

/// A worker that is to be scraped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Which.
    pub worker: WorkerId,
    /// Its metrics page.
    pub metrics_url: String,
    /// The page of the exporter that tells of its GPUs.
    pub hardware_url: Option<String>,
}

/// Why thresholds are not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThresholdError {
    /// No pool serves this model.
    UnknownModel(String),
    /// A sentence that names the number.
    OutOfRange(String),
}

/// One pool for one proxy.
#[derive(Clone, Debug)]
pub struct PoolNow<'a> {
    /// Its name.
    pub name: Arc<str>,
    /// Counts that the proxy last sent.
    pub said: Credit,
    /// How full it is.
    pub saturation: Option<f64>,
    /// Requests, and KV blocks, that alone would fill it.
    pub full: (Option<u64>, Option<u64>),
    /// Sequences that its live workers run concurrently, as their engines report.
    pub batch: Option<u64>,
    /// Tokens in a KV block of its live workers, where all that report it agree.
    pub block_size: Option<u32>,
    /// Prompt tokens that one of its live workers may have to read and is not busy by them, the least of all.
    pub prefill_limit: Option<u64>,
    /// The other proxies that share it.
    pub others: Others,
    /// What its dispatch budget comes to, where it has one.
    pub dispatch_budget: Option<f64>,
    /// Those that have been tried, in the order of their addresses.
    pub workers: Vec<WorkerNow<'a>>,
}

/// News of pools in what a proxy said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Pools that several proxies have come to serve, with their number.
    pub shared: Vec<(Arc<str>, usize)>,
    /// Pools that a proxy needs views of and that are not configured here.
    pub unknown: Vec<String>,
}

/// All there is to show at one moment, copied so that nobody waits while it is written out.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// In the order of the configuration.
    pub pools: Vec<PoolRow>,
    /// Every proxy that is known.
    pub proxies: Vec<ProxyRow>,
    /// Time since a scrape of any worker last ended; `None` before the first.
    pub silence: Option<Duration>,
}

/// One pool for the metrics page.
#[derive(Clone, Debug)]
pub struct PoolRow {
    /// Its name.
    pub name: Arc<str>,
    /// As proxies are told, but without what they admitted.
    pub report: PoolReport,
    /// What each source of its dispatch budget says; empty without such a budget.
    pub budget: Vec<(BudgetSource, Option<f64>)>,
    /// Requests that wait in the proxies heard of late; unknown while there is none.
    pub queued: Option<u64>,
    /// Number of proxies heard of late that serve it.
    pub proxies: usize,
    /// Live workers that do not tell what the pool's detector measures.
    pub unmeasured: usize,
    /// What proxies are not told of its workers, in the order of their addresses.
    pub workers: Vec<WorkerRow>,
}

/// One worker for the metrics page.
#[derive(Clone, Debug)]
pub struct WorkerRow {
    /// Where it serves.
    pub address: Arc<str>,
    /// Whether it may be given work, as its source says.
    pub condition: Condition,
    /// What its page says of its own limits.
    pub limits: Limits,
    /// What its page says and cannot be believed, by name.
    pub doubts: Vec<&'static str>,
    /// Names of what makes it busy.
    pub busy_by: Vec<&'static str>,
    /// Those it works on, if anything tells of them.
    pub gpus: Vec<Gpu>,
}

impl Table {
    /// Nothing scraped and no proxy heard.
    pub fn new(config: &config::Config) -> Self {
        let mut table = Self {
            patience: config.scrape.patience(),
            pools: Vec::new(),
            proxies: Proxies::default(),
            revision: Revision::default(),
            serial: 0,
            tried_at: None,
        };
        table.configure(config);
        table
    }

    /// Takes over another configuration. Pools, sources and workers that stay keep what is known of them; busy thresholds
    /// that were set at run time stay until the configuration's own change.
    pub fn configure(&mut self, config: &config::Config) {
        self.patience = config.scrape.patience();
        let mut old = std::mem::take(&mut self.pools);
        for wanted in &config.pools {
            let known = old.iter().position(|pool| *pool.name == wanted.name).map(|at| old.swap_remove(at));
            let mut pool = known.map_or_else(|| Pool::new(wanted), |pool| pool.configured(wanted));
            let listed = wanted.workers.iter().cloned().map(Member::from).collect();
            pool.found(config::LISTED, Found { members: Some(listed), error: None });
            pool.align(&mut self.serial);
            pool.settle();
            self.pools.push(pool);
        }
        self.proxies.forget_pools(|name| config.pools.iter().any(|pool| pool.name == name));
        self.changed_targets();
    }

    /// What has changed so far.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Takes note of what a source of a pool said.
    pub fn found(&mut self, pool: &str, source: &str, found: Found) {
        let Some(pool) = self.pools.iter_mut().find(|known| *known.name == *pool) else { return };
        pool.found(source, found);
        let changed = pool.align(&mut self.serial);
        self.revision.states += u64::from(pool.settle());
        if changed {
            self.changed_targets();
        }
    }

    /// Every worker that is to be scraped.
    pub fn targets(&self) -> impl Iterator<Item = Target> {
        self.pools.iter().flat_map(Pool::targets)
    }

    /// Begins a scrape.
    pub fn begin_scrape(&self, worker: &WorkerId, now: Duration) -> Scrape {
        Scrape { worker: worker.clone(), began: now, credits: self.proxies.credits(&worker.pool) }
    }

    /// Ends a scrape with what the page said, or with why it said nothing: then the last good sample stays. Returns whether
    /// the worker is still there.
    pub fn end_scrape(&mut self, mut scrape: Scrape, result: Result<Reading, Cause>, now: Duration) -> bool {
        let Self { pools, proxies, revision, patience, tried_at, .. } = self;
        proxies.drop_outlived(&scrape.worker.pool, &mut scrape.credits);
        let Some(pool) = pools.iter_mut().find(|pool| pool.name == scrape.worker.pool) else { return false };
        let is_there = pool.end_scrape(scrape, result, now, patience, revision);
        revision.states += u64::from(pool.settle());
        if is_there {
            *tried_at = Some(now);
        }
        is_there
    }

    /// Takes note of the GPUs behind a worker, as its exporter tells of them.
    pub fn saw_gpus(&mut self, worker: &WorkerId, gpus: Vec<Gpu>) {
        let pool = self.pools.iter_mut().find(|pool| pool.name == worker.pool);
        if let Some(worker) = pool.and_then(|pool| pool.worker_mut(worker)) {
            worker.exported_gpus = gpus;
        }
    }

    /// Takes note of what the query for a pool's dispatch budget said, or that it may no longer be believed.
    pub fn saw_budget(&mut self, pool: &str, value: Option<f64>) {
        let Some(pool) = self.pools.iter_mut().find(|known| *known.name == *pool) else { return };
        if std::mem::replace(&mut pool.queried_budget, value) != value {
            self.revision.numbers += 1;
        }
    }

    /// What is not yet known of the pools, in sentences.
    pub fn unsettled(&self) -> impl Iterator<Item = String> {
        self.pools.iter().flat_map(Pool::unsettled)
    }

    /// Whether workers are still looked at. When no scrape has ended for longer than one may take, as after a pause of the whole
    /// process, nothing is known that is worth telling.
    pub fn is_attended(&self, now: Duration) -> bool {
        self.tried_at.is_none_or(|at| now.saturating_sub(at) <= self.patience.next_try + LATE)
    }

    /// Whether anything may be told: of at least one pool all sources have spoken and all workers been tried.
    pub fn has_settled(&self) -> bool {
        self.pools.iter().any(|pool| pool.settled)
    }

    /// A proxy by its name; it is known from now on.
    pub fn register(&mut self, name: &str, way: Way) -> ProxyId {
        self.proxies.register(name, way)
    }

    /// Forgets a proxy and what it had admitted.
    pub fn forget(&mut self, proxy: ProxyId) {
        self.proxies.forget(proxy);
    }

    /// Remembers what a proxy said at `now`, and the pools it has views of if it took one.
    ///
    /// A count that fell tells of a restarted proxy. What was known of the one before then says nothing, so every
    /// sample's credit goes back to nothing: too small a credit overstates the load for one scrape, too large a one
    /// would overshoot. Of pools that are not known here nothing is remembered.
    ///
    pub fn said(&mut self, proxy: ProxyId, answer: &ViewAnswer, now: Duration, took: Option<Vec<Arc<str>>>) -> News {
        let is_known = |name: &str| self.pools.iter().any(|pool| *pool.name == *name);
        for pool in self.proxies.said(proxy, answer, now, took, is_known) {
            for pool in self.pools.iter_mut().filter(|known| known.name == pool) {
                pool.drop_credits(proxy);
                // As urgent as a state: until it is told, the proxy believes the old credit.
                self.revision.states += 1;
            }
        }
        let unknown =
            self.proxies.needs(proxy, &answer.needs, |name| self.pools.iter().any(|pool| *pool.name == *name));
        let mut shared = Vec::new();
        for pool in self.pools.iter_mut().filter(|pool| answer.queued.contains_key(&*pool.name)) {
            let proxies = self.proxies.serving(&pool.name, now);
            if !std::mem::replace(&mut pool.is_shared, proxies > 1) && proxies > 1 {
                shared.push((Arc::clone(&pool.name), proxies));
            }
        }
        News { shared, unknown }
    }

    /// Every proxy that is known.
    pub fn proxies(&self) -> impl Iterator<Item = ProxyRow> {
        self.proxies.rows()
    }

    /// Names of the pools that proxies are told of.
    pub fn told_pools(&self) -> impl Iterator<Item = &Arc<str>> {
        self.pools.iter().filter(|pool| pool.settled).map(|pool| &pool.name)
    }

    /// What there is to tell a proxy at `now`: of pools of which all that is needed is known, in the order of their names.
    pub fn told_to(&self, proxy: ProxyId, now: Duration) -> Vec<PoolNow<'_>> {
        let settled = self.pools.iter().filter(|pool| pool.settled);
        let mut pools: Vec<_> = settled
            .map(|pool| {
                let said = self.proxies.credit(proxy, &pool.name).unwrap_or_default();
                let others = self.proxies.others(proxy, &pool.name, now);
                pool.told_to((proxy, said, others), now, &self.patience, self.proxies.queued(&pool.name, now))
            })
            .collect();
        pools.sort_by(|one, other| one.name.cmp(&other.name));
        pools
    }

    /// Everything as it is at `now`.
    pub fn snapshot(&self, now: Duration) -> Snapshot {
        let of_proxies = |pool: &str| (self.proxies.queued(pool, now), self.proxies.serving(pool, now));
        let row = |pool: &Pool| pool.row(now, &self.patience, of_proxies(&pool.name));
        Snapshot {
            pools: self.pools.iter().map(row).collect(),
            proxies: self.proxies.rows().collect(),
            silence: self.tried_at.map(|at| now.saturating_sub(at)),
        }
    }

    /// The thresholds of every model, in the order of the configuration.
    pub fn thresholds(&self) -> Vec<ModelThresholds> {
        self.pools.iter().flat_map(Pool::thresholds).collect()
    }

    /// Thresholds as a request would have them, of the pool that is configured with its model, or else of all whose workers' pages name it. Reading
    /// those of a model that no pool serves finds nothing set.
    ///
    /// # Errors
    /// Setting on an unknown model, or a number out of its range.
    pub fn requested_thresholds(&self, request: &ThresholdRequest) -> Result<Requested, ThresholdError> {
        let model = request.model.as_str();
        let named = self.pools.iter().filter(|pool| pool.names(model));
        let mut pools: Vec<_> = named.collect();
        if pools.is_empty() {
            pools.extend(self.pools.iter().filter(|pool| pool.reports(model)));
        }
        let merged = |pool: &&Pool| {
            let set = request.merged_into(pool.busy)?;
            Ok((pool.name.to_string(), Override { set, instead_of: pool.configured_busy }))
        };
        let set: Vec<_> =
            pools.iter().map(merged).collect::<Result<_, String>>().map_err(ThresholdError::OutOfRange)?;
        let thresholds = match set.first() {
            Some((_, first)) => first.set,
            None if request.is_read() => BusyThresholds::default(),
            None => return Err(ThresholdError::UnknownModel(request.model.clone())),
        };
        Ok(Requested { thresholds: ModelThresholds { model: request.model.clone(), thresholds }, set })
    }

    /// Sets a pool's thresholds; they count from `now` on, by the last samples. Those that were set instead of others than the configuration's
    /// are left alone: a new word of the configuration counts.
    pub fn set_thresholds(&mut self, pool: &str, over: &Override, now: Duration) {
        let known = self.pools.iter_mut().find(|known| *known.name == *pool);
        if let Some(known) = known.filter(|known| known.configured_busy == over.instead_of) {
            known.set_busy(over.set, now, &self.patience, &mut self.revision);
        }
    }

    fn changed_targets(&mut self) {
        self.tried_at = None;
        self.revision.targets += 1;
        self.revision.states += 1;
    }
}

#[cfg(test)]
mod tests;
