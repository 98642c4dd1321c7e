//! One pool: its workers by address, where they were found, and what they add up to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use admission_core::saturation::{
    BudgetRule, BudgetSamples, BusyThresholds, Fullness, SaturationRule, WorkerLoad, full, saturation,
};
use admission_core::view::{Credit, PoolReport, Role, WorkerState};

use super::worker::{BusyRule, Sample, Worker};
use super::{Cause, Others, PoolNow, PoolRow, ProxyId, Revision, Scrape, Target, WorkerId, WorkerRow};
use crate::config::{self, Patience, WhenStale, WhenUnreadable};
use crate::discovery::{Found, Member};
use crate::reading::Reading;
use crate::thresholds::ModelThresholds;

/// What is known of one pool.
#[derive(Debug)]
pub struct Pool {
    pub name: Arc<str>,
    /// Models of the configuration, see [`config::Pool::models`].
    models: Vec<String>,
    pub busy: BusyThresholds,
    /// All sources have spoken and all workers been tried once. Stays so: what comes later is told as it comes.
    pub settled: bool,
    /// What the query for the dispatch budget last said, while it may be believed.
    pub queried_budget: Option<f64>,
    pub configured_busy: BusyThresholds,
    hysteresis: f64,
    when_stale: WhenStale,
    when_unreadable: WhenUnreadable,
    saturation: SaturationRule,
    budget: Option<BudgetRule>,
    max_num_batched_tokens: Option<u64>,
    /// By name. Nothing of one that has not spoken yet.
    sources: BTreeMap<String, Option<Vec<Member>>>,
    workers: BTreeMap<Arc<str>, Worker>,
    untried: usize,
    /// Several proxies serve it, as was last noticed.
    pub is_shared: bool,
}

impl Pool {
    pub fn new(config: &config::Pool) -> Self {
        let pool = Self {
            name: config.name.as_str().into(),
            models: Vec::new(),
            busy: config.busy,
            settled: false,
            queried_budget: None,
            configured_busy: config.busy,
            hysteresis: 0.0,
            when_stale: WhenStale::default(),
            when_unreadable: WhenUnreadable::default(),
            saturation: SaturationRule::default(),
            budget: None,
            max_num_batched_tokens: None,
            sources: BTreeMap::new(),
            workers: BTreeMap::new(),
            untried: 0,
            is_shared: false,
        };
        pool.configured(config)
    }

    /// The same pool under another configuration.
    pub fn configured(mut self, config: &config::Pool) -> Self {
        if self.configured_busy != config.busy {
            self.busy = config.busy;
        }
        self.configured_busy = config.busy;
        self.models.clone_from(&config.models);
        self.hysteresis = config.busy_hysteresis;
        self.when_stale = config.when_stale;
        self.when_unreadable = config.when_unreadable;
        self.saturation = config.saturation;
        self.budget = config.dispatch_budget.as_ref().map(|budget| budget.rule.clone());
        if config.dispatch_budget.as_ref().is_none_or(|budget| budget.prometheus.is_none()) {
            self.queried_budget = None;
        }
        self.max_num_batched_tokens = config.max_num_batched_tokens;
        for worker in self.workers.values_mut() {
            worker.measure(&config.saturation);
        }
        let mut before = std::mem::take(&mut self.sources);
        for name in config.source_names() {
            let known = before.remove(&name).flatten();
            self.sources.insert(name, known);
        }
        self
    }

    /// Takes note of what one of its sources said.
    pub fn found(&mut self, source: &str, found: Found) {
        if let (Some(known), Some(members)) = (self.sources.get_mut(source), found.members) {
            *known = Some(members);
        }
    }

    /// Makes its workers those that the sources name; returns whether that changed any. Of two words on one address that
    /// of the source whose name comes first counts. Nobody goes for want of a source that is no longer asked while another has
    /// not spoken yet, as after a change of the configuration: it may name the same workers, and a pool must not be told
    /// empty meanwhile.
    pub fn align(&mut self, serial: &mut u64) -> bool {
        let mut wanted = BTreeMap::new();
        for (source, members) in &self.sources {
            for member in members.iter().flatten() {
                wanted.entry(Arc::from(member.address.as_str())).or_insert((source, member));
            }
        }
        let before = self.workers.len();
        let all_have_spoken = self.sources.values().all(Option::is_some);
        // What is listed goes only with a configuration, which may have given it to a source that is new.
        let has_spoken =
            |source: &str| source != config::LISTED && self.sources.get(source).is_some_and(Option::is_some);
        self.workers
            .retain(|address, worker| wanted.contains_key(address) || !all_have_spoken && !has_spoken(&worker.source));
        let mut changed = self.workers.len() != before;
        for (address, (source, member)) in wanted {
            if let Some(worker) = self.workers.get_mut(&address) {
                worker.source.clone_from(source);
            }
            match self.workers.get_mut(&address) {
                Some(worker) if worker.member == *member => {}
                Some(worker) if worker.member.same_pages(member) => {
                    worker.member = member.clone();
                    changed = true;
                }
                known => {
                    let id = WorkerId { pool: Arc::clone(&self.name), address: Arc::clone(&address), serial: *serial };
                    *serial += 1;
                    match known {
                        Some(worker) => worker.read_elsewhere(id, member.clone()),
                        None => {
                            self.workers.insert(address, Worker::new(id, member.clone(), source.clone()));
                        }
                    }
                    changed = true;
                }
            }
        }
        self.untried = self.workers.values().filter(|worker| !worker.is_tried()).count();
        changed
    }

    /// Looks whether it has become known enough to be told of; returns whether that has just come about.
    pub fn settle(&mut self) -> bool {
        let all = self.untried == 0 && self.sources.values().all(Option::is_some);
        let has_just = all && !self.settled;
        self.settled |= all;
        has_just
    }

    /// What is missing for it to be told of, in sentences.
    pub fn unsettled(&self) -> impl Iterator<Item = String> {
        let silent = self.sources.iter().filter(|(_, members)| members.is_none());
        let silent =
            silent.map(|(source, _)| format!("pool {}: {source} has not said yet which workers there are", self.name));
        let untried = self.workers.values().filter(|worker| !worker.is_tried());
        let untried =
            untried.map(|worker| format!("pool {}: worker {} has not been scraped yet", self.name, worker.id.address));
        silent.chain(untried).take(if self.settled { 0 } else { usize::MAX })
    }

    pub fn targets(&self) -> impl Iterator<Item = Target> {
        self.workers.values().map(Worker::target)
    }

    pub fn worker_mut(&mut self, id: &WorkerId) -> Option<&mut Worker> {
        self.workers.get_mut(&id.address).filter(|worker| worker.id.serial == id.serial)
    }

    /// Returns whether the worker is still there.
    pub fn end_scrape(
        &mut self,
        scrape: Scrape,
        result: Result<Reading, Cause>,
        now: Duration,
        patience: &Patience,
        revision: &mut Revision,
    ) -> bool {
        let rule = self.busy_rule();
        let Some(worker) = self.worker_mut(&scrape.worker) else { return false };
        let was_tried = worker.is_tried();
        let Scrape { began, credits, .. } = scrape;
        let result = result.map(|reading| Sample { began, reading, credits });
        worker.end_try(began, result, &rule, (now, patience), revision);
        self.untried -= usize::from(!was_tried);
        true
    }

    pub fn set_busy(&mut self, busy: BusyThresholds, now: Duration, patience: &Patience, revision: &mut Revision) {
        self.busy = busy;
        let rule = self.busy_rule();
        for worker in self.workers.values_mut() {
            let has_changed = worker.judge_again(&rule, (now, patience), revision);
            revision.states += u64::from(has_changed);
        }
    }

    fn busy_rule(&self) -> BusyRule {
        let Self { busy: thresholds, saturation, hysteresis, max_num_batched_tokens, when_unreadable, .. } = *self;
        BusyRule { thresholds, saturation, hysteresis, max_num_batched_tokens, when_unreadable }
    }

    /// Forgets what one proxy was credited with in the samples.
    pub fn drop_credits(&mut self, proxy: ProxyId) {
        for sample in self.workers.values_mut().filter_map(|worker| worker.sample.as_mut()) {
            if sample.credits.contains_key(&proxy) {
                Arc::make_mut(&mut sample.credits).insert(proxy, Credit::default());
            }
        }
    }

    /// What there is to tell a proxy that has `said` what it admitted. `queued` wait in all proxies.
    pub fn told_to(
        &self,
        (proxy, said, others): (ProxyId, Credit, Others),
        now: Duration,
        patience: &Patience,
        queued: Option<u64>,
    ) -> PoolNow<'_> {
        let (saturation, dispatch_budget) = self.fullness(now, patience, queued);
        let workers = self.tried(now, patience, |worker, judged| worker.now(Some(proxy), (now, patience), judged));
        let full = full(self.loads_by_role(now, patience).map(|(role, load)| (role, self.saturation.full(&load))));
        let batch = self.batch(now, patience);
        let block_size = self.block_size(now, patience);
        let prefill_limit = self.prefill_limit(now, patience);
        PoolNow {
            name: Arc::clone(&self.name),
            said,
            saturation,
            full,
            batch,
            block_size,
            prefill_limit,
            others,
            dispatch_budget,
            workers,
        }
    }

    /// What is told of it, but for what proxies admitted. `queued` wait in the proxies.
    pub fn report(&self, now: Duration, patience: &Patience, queued: Option<u64>) -> PoolReport {
        let (saturation, dispatch_budget) = self.fullness(now, patience, queued);
        let workers = self.tried(now, patience, |worker, judged| worker.now(None, (now, patience), judged).report());
        let prefill_limit = self.prefill_limit(now, patience);
        PoolReport { saturation, dispatch_budget, prefill_limit, workers, ..PoolReport::default() }
    }

    /// Prompt tokens that a live worker may have to read and is not busy by them, the least of all.
    fn prefill_limit(&self, now: Duration, patience: &Patience) -> Option<u64> {
        let rule = self.busy_rule();
        let mut live = self.live(now, patience);
        // Why not where they are apart: proxies count prompts by the workers that generate.
        let is_whole = live.clone().all(|worker| worker.member.role == Role::Both);
        live.by_ref().filter(|_| is_whole).filter_map(|worker| worker.prefill_limit(&rule)).min()
    }

    /// Tokens in a KV block of the live workers that generate; `None` where none reports it, or two differ.
    fn block_size(&self, now: Duration, patience: &Patience) -> Option<u32> {
        let decoding = self.loads_by_role(now, patience).filter(|(role, _)| role.decodes());
        let mut sizes = decoding.filter_map(|(_, load)| u32::try_from(load.block_size?).ok());
        let first = sizes.next()?;
        sizes.all(|size| size == first).then_some(first)
    }

    /// Sequences that the live workers run concurrently which generate; `None` when one of their engines does not report it.
    fn batch(&self, now: Duration, patience: &Patience) -> Option<u64> {
        let decoding = self.loads_by_role(now, patience).filter(|(role, _)| role.decodes());
        let batches = decoding.map(|(_, load)| Some(load.max_num_seqs?.saturating_mul(load.ranks.len().max(1) as u64)));
        batches.reduce(|sum, batch| Some(sum?.saturating_add(batch?))).flatten()
    }

    /// How full it is, and what its dispatch budget comes to.
    fn fullness(&self, now: Duration, patience: &Patience, queued: Option<u64>) -> (Option<f64>, Option<f64>) {
        let samples = self.samples(queued);
        let budget = self.budget.as_ref().map(|rule| rule.budget(self.loads(now, patience), &samples));
        // Why not full: workers of which nothing can be read are bounded by the proxies' caps.
        let is_blind = |does: fn(Role) -> bool| {
            let lives = self.live(now, patience).any(|worker| does(worker.member.role));
            lives && !self.fullnesses(now, patience).any(|(role, _)| does(role))
        };
        let is_known = !is_blind(Role::prefills) && !is_blind(Role::decodes);
        (is_known.then(|| saturation(self.fullnesses(now, patience))), budget)
    }

    /// Every worker that has been tried, whether it is to be given nothing, and whether its numbers are believed.
    fn tried<'a, T>(
        &'a self,
        now: Duration,
        patience: &Patience,
        look: impl Fn(&'a Worker, (bool, bool)) -> T,
    ) -> Vec<T> {
        let spared = self.spared(now, patience);
        let workers = self.workers.values().zip(spared).filter(|(worker, _)| worker.is_tried());
        workers.map(|(worker, busy)| look(worker, (busy, self.believes(worker, now, patience)))).collect()
    }

    pub fn row(&self, now: Duration, patience: &Patience, (queued, proxies): (Option<u64>, usize)) -> PoolRow {
        let samples = self.samples(queued);
        let by_source = |rule: &BudgetRule| {
            let sources = rule.sources.iter();
            sources.map(|source| (*source, rule.by(*source, self.loads(now, patience), &samples))).collect()
        };
        PoolRow {
            name: Arc::clone(&self.name),
            report: self.report(now, patience, queued),
            budget: self.budget.as_ref().map(by_source).unwrap_or_default(),
            queued,
            proxies,
            unmeasured: self.fullnesses(now, patience).filter(|(_, worker)| !worker.is_measured()).count(),
            workers: self.rows(now, patience),
        }
    }

    /// True if the configuration names a model as one of its own.
    pub fn names(&self, model: &str) -> bool {
        self.models.iter().any(|known| known == model)
    }

    /// True if a page of a worker names a model.
    pub fn reports(&self, model: &str) -> bool {
        self.reported_models().any(|known| known == model)
    }

    /// Every worker for the metrics page.
    fn rows(&self, now: Duration, patience: &Patience) -> Vec<WorkerRow> {
        let (rule, spared) = (self.busy_rule(), self.spared(now, patience));
        let rows = self.workers.values().zip(spared);
        rows.map(|(worker, spared)| worker.row(&rule, (spared, self.believes(worker, now, patience)))).collect()
    }

    /// The thresholds of each of its models.
    pub fn thresholds(&self) -> Vec<ModelThresholds> {
        let reported: BTreeSet<&str> = self.reported_models().filter(|model| !self.names(model)).collect();
        let models = self.models.iter().map(String::as_str).chain(reported);
        models.map(|model| ModelThresholds { model: model.to_owned(), thresholds: self.busy }).collect()
    }

    fn reported_models(&self) -> impl Iterator<Item = &str> {
        let samples = self.workers.values().filter_map(|worker| worker.sample.as_ref());
        samples.flat_map(|sample| &sample.reading.models).map(String::as_str)
    }

    /// Of every worker whether it is to be given nothing: busy by the rule, stale where that counts as full, or beyond its
    /// headroom while in each stage another worker of the pool would take something.
    fn spared(&self, now: Duration, patience: &Patience) -> Vec<bool> {
        let is_full =
            |worker: &Worker| !worker.is_blind(now, patience) && (worker.busy || !self.believes(worker, now, patience));
        let is_spared = |worker: &Worker| is_full(worker) || worker.crowded && !worker.is_blind(now, patience);
        let spared: Vec<_> = self.workers.values().map(is_spared).collect();
        let is_left = |stage: fn(Role) -> bool| {
            let workers = || {
                let all = self.workers.values().zip(&spared);
                all.filter(|(worker, _)| stage(worker.member.role) && worker.state(now, patience) == WorkerState::Up)
            };
            workers().any(|(_, spared)| !spared) || !workers().any(|(worker, _)| !is_full(worker))
        };
        if is_left(Role::prefills) && is_left(Role::decodes) {
            return spared;
        }
        self.workers.values().map(is_full).collect()
    }

    fn samples(&self, queued: Option<u64>) -> BudgetSamples {
        BudgetSamples { prometheus: self.queried_budget, proxy_queue: queued }
    }

    /// What live workers tell, as far as it is believed.
    fn loads(&self, now: Duration, patience: &Patience) -> impl Iterator<Item = WorkerLoad<'_>> + Clone {
        self.live(now, patience).map(move |worker| worker.load(self.believes(worker, now, patience)))
    }

    fn loads_by_role(&self, now: Duration, patience: &Patience) -> impl Iterator<Item = (Role, WorkerLoad<'_>)> {
        self.live(now, patience)
            .map(move |worker| (worker.member.role, worker.load(self.believes(worker, now, patience))))
    }

    /// How full live workers are whose pages can be read, as far as they are believed.
    fn fullnesses(&self, now: Duration, patience: &Patience) -> impl Iterator<Item = (Role, Fullness)> {
        let of = move |worker: &Worker| worker.fullness(&self.saturation, self.believes(worker, now, patience));
        let live = self.live(now, patience).filter(move |worker| !worker.is_blind(now, patience));
        live.map(move |worker| (worker.member.role, of(worker)))
    }

    /// Whether the last numbers of a worker are to be measured by.
    fn believes(&self, worker: &Worker, now: Duration, patience: &Patience) -> bool {
        let is_held = self.when_stale == WhenStale::Hold || !worker.is_stale(now, patience);
        is_held && !worker.is_blind(now, patience)
    }

    /// Workers that can be given work.
    fn live(&self, now: Duration, patience: &Patience) -> impl Iterator<Item = &Worker> + Clone {
        self.workers.values().filter(move |worker| worker.state(now, patience) == WorkerState::Up)
    }
}
