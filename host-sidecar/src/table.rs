//! All that is known of the workers, and what each proxy is told of them. Times are spans since the sidecar started.

use std::collections::BTreeMap;
use std::time::Duration;

use admission_core::saturation::{BusyThresholds, UtilizationThresholds};
use admission_core::view::{Admitted, PoolReport, RankReport, ViewAnswer, WorkerReport, WorkerState};

use crate::config;
use crate::thresholds::{ModelThresholds, ThresholdRequest};

/// The workers, their pools, and what the proxies said they admitted.
#[derive(Debug)]
pub struct Table {
    down_after: Duration,
    pools: Vec<Pool>,
    workers: Vec<Worker>,
    proxies: Vec<Proxy>,
    revision: Revision,
}

/// Counts changes, so that whoever told a proxy about one revision knows whether there is news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Revision {
    /// Changes of a worker's state or of the busy set.
    pub states: u64,
    /// Changes of any other number of a report, ages apart; also of a pool's saturation alone.
    pub numbers: u64,
}

/// A scrape under way: when it began, and what each proxy was then known to have admitted to the worker's pool.
#[derive(Clone, Debug)]
pub struct Scrape {
    worker: usize,
    began: Duration,
    credits: Vec<Admitted>,
}

/// Why thresholds are not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThresholdError {
    /// No pool serves this model.
    UnknownModel(String),
    /// A sentence that names the number.
    OutOfRange(String),
}

/// One worker for the metrics page.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerRow<'a> {
    /// Name of its pool.
    pub pool: &'a str,
    /// The age in it counts from the start of the sidecar while nothing has been scraped.
    pub report: WorkerReport,
}

#[derive(Debug)]
struct Pool {
    name: String,
    model: String,
    busy: BusyThresholds,
    saturation: UtilizationThresholds,
    max_num_batched_tokens: Option<u64>,
    /// As counted into the last revision. What is reported is computed anew, since time alone takes workers out of it.
    noted_saturation: f64,
}

#[derive(Debug)]
struct Worker {
    pool: usize,
    address: String,
    draining: bool,
    tried: bool,
    sample: Option<Sample>,
    /// As counted into the last revision. What is reported is computed anew, since time alone turns a worker down.
    noted: (WorkerState, bool),
}

#[derive(Debug)]
struct Sample {
    began: Duration,
    ranks: Vec<RankReport>,
    /// By proxy.
    credits: Vec<Admitted>,
}

#[derive(Debug)]
struct Proxy {
    /// By pool.
    admitted: Vec<Admitted>,
    taken_at: Option<Duration>,
}

impl Table {
    /// Nothing scraped and no proxy heard; a worker is down `down_after` its last good scrape began.
    pub fn new(pools: &[config::Pool], proxies: usize, down_after: Duration) -> Self {
        let workers = pools.iter().enumerate().flat_map(|(pool, config)| {
            config.workers.iter().map(move |worker| Worker {
                pool,
                address: worker.address.clone(),
                draining: worker.draining,
                tried: false,
                sample: None,
                noted: (WorkerState::Down, false),
            })
        });
        let proxy = |_| Proxy { admitted: vec![Admitted::default(); pools.len()], taken_at: None };
        Self {
            down_after,
            workers: workers.collect(),
            pools: pools.iter().map(Pool::new).collect(),
            proxies: (0..proxies).map(proxy).collect(),
            revision: Revision::default(),
        }
    }

    /// What has changed so far.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Begins a scrape of the `worker`-th of all workers, in the order of the configuration.
    pub fn begin_scrape(&self, worker: usize, now: Duration) -> Scrape {
        let pool = self.workers.get(worker).map(|worker| worker.pool);
        let known = |proxy: &Proxy| pool.and_then(|pool| proxy.admitted.get(pool)).copied().unwrap_or_default();
        Scrape { worker, began: now, credits: self.proxies.iter().map(known).collect() }
    }

    /// Ends a scrape with its page's ranks, or with `None` when it failed: then the last good sample stays.
    pub fn end_scrape(&mut self, scrape: Scrape, ranks: Option<Vec<RankReport>>, now: Duration) {
        let Self { workers, pools, revision, down_after, .. } = self;
        let Some(worker) = workers.get_mut(scrape.worker) else { return };
        let told = revision.numbers;
        worker.tried = true;
        if let Some(ranks) = ranks {
            let sample = Sample { began: scrape.began, ranks, credits: scrape.credits };
            let same = |old: &Sample| old.ranks == sample.ranks && old.credits == sample.credits;
            if !worker.sample.as_ref().is_some_and(same) {
                revision.numbers += 1;
            }
            worker.sample = Some(sample);
        }
        let at = worker.pool;
        let Some(pool) = pools.get_mut(at) else { return };
        worker.note(pool, now, *down_after, revision);
        let saturation = pool.saturation_of(live(workers, at, now, *down_after));
        if std::mem::replace(&mut pool.noted_saturation, saturation) != saturation && revision.numbers == told {
            revision.numbers += 1;
        }
    }

    /// Workers of which not one scrape has ended, good or bad.
    pub fn untried(&self) -> impl Iterator<Item = &str> {
        self.workers.iter().filter(|worker| !worker.tried).map(|worker| worker.address.as_str())
    }

    /// Remembers what the `proxy`-th proxy answered at `now`.
    ///
    /// A count that fell tells of a restarted proxy. What was known of the one before then says nothing, so every
    /// sample's credit goes back to nothing: too small a credit overstates the load for one scrape, too large a one
    /// would overshoot.
    pub fn taken(&mut self, proxy: usize, answer: &ViewAnswer, now: Duration) {
        let Some(memory) = self.proxies.get_mut(proxy) else { return };
        memory.taken_at = Some(now);
        for (at, (pool, known)) in self.pools.iter().zip(&mut memory.admitted).enumerate() {
            let Some(&said) = answer.admitted.get(&pool.name) else { continue };
            if said.requests < known.requests {
                let of_pool = self.workers.iter_mut().filter(|worker| worker.pool == at);
                for credit in of_pool.filter_map(|worker| worker.sample.as_mut()?.credits.get_mut(proxy)) {
                    *credit = Admitted::default();
                }
                // As urgent as a state: until it is told, the proxy believes the old credit.
                self.revision.states += 1;
            }
            *known = said;
        }
    }

    /// When the `proxy`-th proxy last took a view.
    pub fn taken_at(&self, proxy: usize) -> Option<Duration> {
        self.proxies.get(proxy)?.taken_at
    }

    /// What the `proxy`-th proxy is told at `now`.
    pub fn reports(&self, proxy: usize, now: Duration) -> BTreeMap<String, PoolReport> {
        let report = |(at, pool): (usize, &Pool)| {
            let workers = self.workers.iter().filter(|worker| worker.pool == at);
            let known = self.proxies.get(proxy).and_then(|proxy| proxy.admitted.get(at)).copied();
            let live = || live(&self.workers, at, now, self.down_after);
            let credits = live().filter_map(|worker| worker.sample.as_ref()?.credits.get(proxy).copied());
            let admitted = credits.min_by_key(|credit| (credit.requests, credit.blocks)).or(known).unwrap_or_default();
            let saturation = Some(pool.saturation_of(live()));
            let workers = workers.map(|worker| worker.report(pool, now, self.down_after)).collect();
            (pool.name.clone(), PoolReport { admitted, saturation, workers })
        };
        self.pools.iter().enumerate().map(report).collect()
    }

    /// Every pool's name and saturation at `now`, in the order of the configuration.
    pub fn saturations(&self, now: Duration) -> impl Iterator<Item = (&str, f64)> {
        self.pools.iter().enumerate().map(move |(at, pool)| {
            (pool.name.as_str(), pool.saturation_of(live(&self.workers, at, now, self.down_after)))
        })
    }

    /// Every worker at `now`, in the order of the configuration.
    pub fn rows(&self, now: Duration) -> impl Iterator<Item = WorkerRow<'_>> {
        self.workers.iter().filter_map(move |worker| {
            let pool = self.pools.get(worker.pool)?;
            Some(WorkerRow { pool: &pool.name, report: worker.report(pool, now, self.down_after) })
        })
    }

    /// The thresholds of every model, in the order of the configuration.
    pub fn thresholds(&self) -> Vec<ModelThresholds> {
        self.pools.iter().map(Pool::thresholds).collect()
    }

    /// Reads or sets one model's thresholds; a change counts from `now` on, by the last samples. Reading a model that
    /// no pool serves finds nothing set.
    ///
    /// # Errors
    /// Setting on an unknown model, or a number out of its range; nothing is changed then.
    pub fn request_thresholds(
        &mut self,
        request: &ThresholdRequest,
        now: Duration,
    ) -> Result<ModelThresholds, ThresholdError> {
        let standing = self.pools.iter().position(|pool| pool.model == request.model);
        let standing = standing.and_then(|at| Some((at, self.pools.get_mut(at)?)));
        let before = standing.as_ref().map_or_else(BusyThresholds::default, |(_, pool)| pool.busy);
        let merged = request.merged_into(before).map_err(ThresholdError::OutOfRange)?;
        let model = request.model.clone();
        let Some((at, pool)) = standing else {
            return match request.is_read() {
                true => Ok(ModelThresholds { model, thresholds: before }),
                false => Err(ThresholdError::UnknownModel(model)),
            };
        };
        pool.busy = merged;
        for worker in self.workers.iter_mut().filter(|worker| worker.pool == at) {
            worker.note(pool, now, self.down_after, &mut self.revision);
        }
        Ok(pool.thresholds())
    }
}

impl Pool {
    fn new(config: &config::Pool) -> Self {
        Self {
            name: config.name.clone(),
            model: config.model.clone(),
            busy: config.busy,
            saturation: config.saturation,
            max_num_batched_tokens: config.max_num_batched_tokens,
            noted_saturation: config.saturation.saturation([]),
        }
    }

    fn saturation_of<'a>(&self, live: impl Iterator<Item = &'a Worker>) -> f64 {
        self.saturation.saturation(live.map(Worker::ranks))
    }

    fn thresholds(&self) -> ModelThresholds {
        ModelThresholds { model: self.model.clone(), thresholds: self.busy }
    }
}

/// Workers of the `pool`-th pool that can be given work at `now`.
fn live(workers: &[Worker], pool: usize, now: Duration, down_after: Duration) -> impl Iterator<Item = &Worker> {
    let is_up = move |worker: &&Worker| worker.state(now, down_after) == WorkerState::Up;
    workers.iter().filter(move |worker| worker.pool == pool).filter(is_up)
}

impl Worker {
    fn state(&self, now: Duration, down_after: Duration) -> WorkerState {
        match &self.sample {
            Some(sample) if now.saturating_sub(sample.began) < down_after => match self.draining {
                true => WorkerState::Draining,
                false => WorkerState::Up,
            },
            _ => WorkerState::Down,
        }
    }

    fn ranks(&self) -> &[RankReport] {
        self.sample.as_ref().map_or(&[], |sample| &sample.ranks)
    }

    fn busy(&self, pool: &Pool) -> bool {
        pool.busy.worker_is_busy(self.ranks(), pool.max_num_batched_tokens)
    }

    /// Counts a change of state or busyness since the last look.
    fn note(&mut self, pool: &Pool, now: Duration, down_after: Duration, revision: &mut Revision) {
        let seen = (self.state(now, down_after), self.busy(pool));
        if seen != self.noted {
            self.noted = seen;
            revision.states += 1;
        }
    }

    fn report(&self, pool: &Pool, now: Duration, down_after: Duration) -> WorkerReport {
        let began = self.sample.as_ref().map_or(Duration::ZERO, |sample| sample.began);
        WorkerReport {
            address: self.address.clone(),
            state: self.state(now, down_after),
            scraped_ms_ago: u64::try_from(now.saturating_sub(began).as_millis()).unwrap_or(u64::MAX),
            busy: self.busy(pool),
            ranks: self.ranks().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests;
