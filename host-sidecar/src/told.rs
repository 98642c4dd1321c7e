//! What a proxy has taken, so that it need only be told what has changed since, and not all of that at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use admission_core::view::{Admitted, PoolReport, VIEW_VERSION, ViewDocument, WorkerReport};

use crate::courier::{Begun, Extent, Stamp};
use crate::table::{PoolNow, Revision, WorkerNow};

/// Most workers of which numbers are told at once: a proxy reads so many in about a millisecond, during which a change of
/// state waits.
const MOST: usize = 128;

/// The last document that one proxy has taken, if it is known to hold one.
#[derive(Debug, Default)]
pub struct Told {
    stamp: Option<Stamp>,
    /// By name.
    pools: BTreeMap<Arc<str>, Held>,
    /// Pool and address of the last worker whose numbers were told for their turn.
    turn: Option<(Arc<str>, Arc<str>)>,
}

/// What a proxy holds of one pool.
#[derive(Debug, Default)]
struct Held {
    /// Without workers.
    report: PoolReport,
    /// What the proxy had said to have admitted when it was told.
    said: Admitted,
    workers: BTreeMap<Arc<str>, HeldWorker>,
}

#[derive(Debug)]
struct HeldWorker {
    report: WorkerReport,
    /// What the proxy was known to have admitted when the scrape began that these numbers are from.
    credit: Admitted,
}

/// A document, and what the proxy holds when it has taken it.
#[derive(Debug)]
pub struct Sent {
    /// What is sent.
    pub document: ViewDocument,
    /// What it tells.
    pub extent: Extent,
    credits: Vec<(Arc<str>, Credits)>,
}

/// Of the pool's workers in the document, in its order; and what the proxy had said.
#[derive(Debug)]
struct Credits {
    said: Admitted,
    workers: Vec<(Arc<str>, Admitted)>,
}

impl Told {
    /// What to send so that the proxy holds more of `now`: every change of a state and of a pool, and where numbers are due,
    /// those of some workers, in turns; or the whole.
    pub fn document(&mut self, begun: Begun, revision: Revision, now: &[PoolNow<'_>]) -> Sent {
        let Begun { stamp, numbers_are_due } = begun;
        self.look(now);
        let base = self.stamp.filter(|last| last.epoch == stamp.epoch).map(|last| last.generation);
        let base = base.filter(|_| self.pools.keys().eq(now.iter().map(|pool| &pool.name)));
        let all: usize = now.iter().map(|pool| pool.workers.len()).sum();
        let parts = all.div_ceil(MOST).max(1);
        let due = if numbers_are_due { all.div_ceil(parts) } else { 0 };
        let chosen = base.and_then(|base| Some((base, self.chosen(now, due, all)?)));
        let mut sent = Sent {
            document: ViewDocument {
                version: VIEW_VERSION,
                epoch: stamp.epoch,
                generation: stamp.generation,
                base: chosen.as_ref().map(|(base, _)| *base),
                pools: BTreeMap::new(),
            },
            extent: Extent { revision, is_left: false, parts: u32::try_from(parts).unwrap_or(u32::MAX) },
            credits: Vec::new(),
        };
        match chosen {
            None => now.iter().for_each(|pool| sent.add(pool, pool.workers.iter(), Vec::new(), &Held::default())),
            Some((_, chosen)) => {
                sent.extent.is_left = chosen.is_left;
                for (pool, is_told) in now.iter().zip(&chosen.is_told) {
                    let Some(held) = self.pools.get(&pool.name) else { continue };
                    let workers = pool.workers.iter().zip(is_told).filter(|(_, is_told)| **is_told);
                    sent.add(pool, workers.map(|(worker, _)| worker), held.gone(pool), held);
                }
            }
        }
        sent
    }

    /// The proxy has taken this.
    pub fn taken(&mut self, sent: Sent) {
        let Sent { document: ViewDocument { epoch, generation, base, mut pools, .. }, credits, .. } = sent;
        if base.is_none() {
            self.pools.clear();
        }
        self.stamp = Some(Stamp { epoch, generation });
        for (name, credits) in credits {
            let Some(mut report) = pools.remove(&*name) else { continue };
            let held = self.pools.entry(name).or_default();
            for address in std::mem::take(&mut report.removed) {
                held.workers.remove(&*address);
            }
            let told = std::mem::take(&mut report.workers).into_iter().zip(credits.workers);
            held.workers.extend(told.map(|(report, (address, credit))| (address, HeldWorker { report, credit })));
            (held.report, held.said) = (report, credits.said);
        }
    }

    /// Whether that is what it holds.
    pub fn is_of(&self, stamp: Stamp) -> bool {
        self.stamp == Some(stamp)
    }

    /// Nobody knows what the proxy holds.
    pub fn forget(&mut self) {
        self.stamp = None;
        self.pools.clear();
    }

    /// Numbers that a later scrape has seen again are as good as from that. A proxy whose count fell has restarted, and what
    /// was known of the one before says nothing.
    fn look(&mut self, now: &[PoolNow<'_>]) {
        for pool in now {
            let Some(held) = self.pools.get_mut(&pool.name) else { continue };
            let has_restarted = pool.said.requests < held.said.requests;
            for worker in &pool.workers {
                let Some(known) = held.workers.get_mut(worker.address) else { continue };
                if worker.has_numbers(&known.report) {
                    known.credit = worker.credit;
                } else if has_restarted {
                    known.credit = Admitted::default();
                }
            }
            held.said = pool.said;
        }
    }

    /// Which workers to tell; `None` where the whole is hardly longer. `due` is of how many numbers may be told that tell of
    /// no change of a state.
    fn chosen(&mut self, now: &[PoolNow<'_>], due: usize, all: usize) -> Option<Chosen> {
        let mut is_told: Vec<Vec<bool>> = Vec::with_capacity(now.len());
        let mut waiting = Vec::new();
        for (at, pool) in now.iter().enumerate() {
            let held = self.pools.get(&pool.name)?;
            let mut known = held.workers.iter().peekable();
            let states = pool.workers.iter().enumerate().map(|(place, worker)| {
                // Both are in the order of addresses.
                while known.next_if(|(address, _)| *address < worker.address).is_some() {}
                let Some((_, known)) = known.next_if(|(address, _)| *address == worker.address) else { return true };
                let is_state = !worker.has_state(&known.report);
                if !is_state && !worker.has_numbers(&known.report) {
                    waiting.push((at, place));
                }
                is_state
            });
            is_told.push(states.collect());
        }
        let of = |(at, place): (usize, usize)| {
            let pool = now.get(at)?;
            Some((&pool.name, pool.workers.get(place)?.address))
        };
        let last = self.turn.as_ref().map(|(pool, address)| (pool, address));
        let first = waiting.partition_point(|place| of(*place) <= last);
        waiting.rotate_left(first);
        let told = waiting.get(..due).unwrap_or(&waiting);
        for (at, place) in told {
            *is_told.get_mut(*at)?.get_mut(*place)? = true;
        }
        let turn =
            told.last().and_then(|place| of(*place)).map(|(pool, address)| (Arc::clone(pool), Arc::clone(address)));
        let is_left = told.len() < waiting.len();
        self.turn = turn.or(self.turn.take());
        let news = is_told.iter().flatten().filter(|is_told| **is_told).count();
        (news.saturating_mul(2) <= all + 1).then_some(Chosen { is_told, is_left })
    }
}

struct Chosen {
    /// For each worker of each pool.
    is_told: Vec<Vec<bool>>,
    /// There are numbers that have to wait for the next document.
    is_left: bool,
}

impl Held {
    /// Addresses of workers that the pool no longer has.
    fn gone(&self, pool: &PoolNow<'_>) -> Vec<String> {
        let mut there = pool.workers.iter().peekable();
        let mut gone = Vec::new();
        for address in self.workers.keys() {
            while there.next_if(|worker| worker.address < address).is_some() {}
            if there.next_if(|worker| worker.address == address).is_none() {
                gone.push(address.to_string());
            }
        }
        gone
    }
}

impl Sent {
    /// What the document is sent under.
    pub fn stamp(&self) -> Stamp {
        Stamp { epoch: self.document.epoch, generation: self.document.generation }
    }

    /// Tells of a pool, and of these of its workers, what a proxy that holds `held` does not know. Its credit is what was
    /// known when the oldest of the scrapes began whose numbers the proxy then holds.
    fn add<'a>(
        &mut self,
        pool: &PoolNow<'_>,
        told: impl Iterator<Item = &'a WorkerNow<'a>>,
        removed: Vec<String>,
        held: &Held,
    ) {
        let (mut workers, mut credits) = (Vec::new(), Vec::new());
        for worker in told {
            workers.push(worker.report());
            credits.push((Arc::clone(worker.address), worker.credit));
        }
        let mut fresh = credits.iter().peekable();
        let held_or_told = pool.workers.iter().filter_map(|worker| {
            let told = fresh.next_if(|(address, _)| address == worker.address).map(|(_, credit)| *credit);
            let credit = told.or_else(|| held.workers.get(worker.address).map(|held| held.credit))?;
            worker.is_live().then_some(credit)
        });
        let admitted = held_or_told.min_by_key(|credit| (credit.requests, credit.blocks)).unwrap_or(pool.said);
        let PoolNow { saturation, dispatch_budget, .. } = *pool;
        let report = PoolReport { admitted, saturation, dispatch_budget, workers, removed };
        let is_whole = self.document.base.is_none();
        let is_nothing = report.workers.is_empty() && report.removed.is_empty() && report == held.report;
        if is_whole || !is_nothing {
            self.document.pools.insert(pool.name.to_string(), report);
            self.credits.push((Arc::clone(&pool.name), Credits { said: pool.said, workers: credits }));
        }
    }
}

#[cfg(test)]
mod tests;
