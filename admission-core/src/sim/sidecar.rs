//! The sidecar: scrapes workers and says what it saw, by the same rules as the real one.

use std::collections::BTreeMap;

use crate::control::{NotTaken, Taken};
use crate::saturation::{BusyThresholds, Latch, SaturationRule, WorkerLoad, full, saturation};
use crate::view::{Credit, PoolReport, VIEW_VERSION, ViewDocument, WorkerReport, WorkerState, changes};

use super::faults::Luck;
use super::lies;
use super::workers::Worker;

/// How the sidecar sees.
#[derive(Clone, Copy, Debug)]
pub struct Eyes {
    /// Milliseconds between scrapes.
    pub every: u64,
    /// Milliseconds until a view has arrived, from and to.
    pub late: (u64, u64),
    /// Above which a worker is busy.
    pub busy: BusyThresholds,
    /// Sidecars that see for themselves, as during a rollout.
    pub sidecars: u64,
}

impl Default for Eyes {
    fn default() -> Self {
        let busy = BusyThresholds { active_decode_blocks_threshold: Some(0.95), ..BusyThresholds::default() };
        Self { every: 200, late: (2, 8), busy, sidecars: 1 }
    }
}

/// Of the first sidecar; of others, one more each.
const FIRST_EPOCH: u64 = 10;

/// What one remembers from one push to the next.
pub(super) struct Sidecar {
    eyes: Eyes,
    pool: String,
    epoch: u64,
    generation: u64,
    credit: Credit,
    /// The last page of each worker, and the proxy's counts when it was read.
    pages: Vec<(WorkerReport, Credit)>,
    /// What a proxy has taken last, on which changes are based.
    taken: Option<(u64, Pools)>,
    sent: Pools,
}

type Pools = BTreeMap<String, PoolReport>;

impl Sidecar {
    pub(super) fn all(eyes: Eyes, pool: &str) -> Vec<Self> {
        let one = |number| Self {
            eyes,
            pool: pool.to_owned(),
            epoch: FIRST_EPOCH + number,
            generation: 0,
            credit: Credit::default(),
            pages: Vec::new(),
            taken: None,
            sent: Pools::new(),
        };
        (0..eyes.sidecars).map(one).collect()
    }

    /// Address of the worker with a number.
    pub(super) fn address(number: usize) -> String {
        format!("10.0.0.{}:8000", number + 1)
    }

    /// Forgets everything, under another epoch.
    pub(super) fn restarts(&mut self, later: i64) {
        self.epoch = self.epoch.saturating_add_signed(later);
        (self.generation, self.credit, self.taken) = (0, Credit::default(), None);
        self.pages.clear();
    }

    /// Reads the page of each worker that answers; the page of one that hangs is held.
    fn read_pages(&mut self, workers: &[Worker], luck: &Luck, rng: &mut fastrand::Rng) {
        let before = std::mem::take(&mut self.pages);
        for (number, worker) in workers.iter().enumerate() {
            let hangs = worker.up && lies::happens(luck.pages_hang, rng);
            let held = before.get(number).filter(|_| hangs).cloned();
            self.pages.push(held.unwrap_or_else(|| (self.page_of(worker, number), self.credit)));
        }
    }

    fn page_of(&self, worker: &Worker, number: usize) -> WorkerReport {
        let (report, mut latch) = (worker.report(Self::address(number)), Latch::default());
        WorkerReport {
            busy: self.eyes.busy.latched(&mut latch, 0.0, &report.ranks, None),
            blocks_until_busy: self.eyes.busy.blocks_until_busy(&latch, &report.ranks),
            admitted: Some(self.credit.admitted.requests),
            ..report
        }
    }

    /// A view of the workers as their pages say, to be pushed.
    pub(super) fn scrape(&mut self, workers: &[Worker], luck: &Luck, rng: &mut fastrand::Rng) -> Vec<u8> {
        self.read_pages(workers, luck, rng);
        let live = self.pages.iter().filter(|(report, _)| report.state == WorkerState::Up);
        let oldest = live.map(|(_, credit)| *credit).min_by_key(|credit| credit.admitted.requests);
        let Credit { admitted, held } = oldest.unwrap_or(self.credit);
        let reports: Vec<_> = self.pages.iter().map(|(report, _)| report.clone()).collect();
        let live = reports.iter().filter(|report| report.state == WorkerState::Up);
        let rule = SaturationRule::default();
        let (full_requests, full_blocks) = full(live.clone().map(|report| (report.role, rule.full(&load(report)))));
        let saturation = saturation(live.map(|report| (report.role, rule.fullness(&load(report)))));
        self.generation += 1;
        let pool = PoolReport {
            admitted,
            held,
            saturation: Some(saturation),
            full_requests,
            full_blocks,
            workers: reports,
            ..PoolReport::default()
        };
        let mut pools = BTreeMap::from([(self.pool.clone(), pool)]);
        if lies::happens(luck.views_lie, rng) {
            lies::twist(&mut pools, rng);
        }
        let base = self.taken.as_ref().filter(|_| lies::happens(luck.views_of_changes, rng));
        let change = base.and_then(|(generation, before)| Some((*generation, changes(before, &pools)?)));
        self.sent.clone_from(&pools);
        let (base, pools) = change.map_or((None, pools), |(base, change)| (Some(base), change));
        let document =
            ViewDocument { version: VIEW_VERSION, epoch: self.epoch, generation: self.generation, base, pools };
        let mut body = serde_json::to_vec(&document).unwrap_or_default();
        if lies::happens(luck.views_lie / 4.0, rng) {
            lies::garble(&mut body, rng);
        }
        body
    }

    /// Takes note of what a push was answered.
    pub(super) fn told(&mut self, answer: &Result<Taken, NotTaken>) {
        let Ok(Taken { answer, .. }) = answer else {
            // Whatever is wrong, the whole is understood.
            self.taken = None;
            return;
        };
        if answer.epoch != self.epoch {
            return;
        }
        if let Some(credit) = answer.credit(&self.pool) {
            self.credit = credit;
        }
        // A view that another has overtaken on its way is not what was sent last.
        self.taken = (answer.generation == self.generation).then(|| (answer.generation, self.sent.clone()));
    }
}

fn load(report: &WorkerReport) -> WorkerLoad<'_> {
    WorkerLoad { ranks: &report.ranks, ..WorkerLoad::default() }
}
