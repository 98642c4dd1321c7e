//! What a proxy has taken, so that it need only be told what has changed since, and not all of that at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use admission_core::view::{Credit, FIRST_FORM, PoolReport, VIEW_VERSION, ViewDocument, WorkerReport};

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
    /// The form of documents that it takes; 0 until it has named one.
    form: u32,
    /// Pool and address of the last worker whose numbers were told for their turn.
    turn: Option<(Arc<str>, Arc<str>)>,
}

/// What a proxy holds of one pool.
#[derive(Debug, Default)]
struct Held {
    /// Without workers.
    report: PoolReport,
    /// What the proxy had said to have admitted when it was told.
    said: Credit,
    workers: BTreeMap<Arc<str>, HeldWorker>,
}

#[derive(Debug)]
struct HeldWorker {
    report: WorkerReport,
    /// Which numbers these are.
    numbers: u64,
    /// What the proxy was known to have admitted when the scrape began that these numbers are from.
    credit: Credit,
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

/// Address, numbers and credit of the pool's workers in the document, in its order; and what the proxy had said.
#[derive(Debug)]
struct Credits {
    said: Credit,
    workers: Vec<(Arc<str>, u64, Credit)>,
}

impl Told {
    /// What to send so that the proxy holds more of `now`: every change of a state and of a pool, and where numbers are due,
    /// those of some workers, in turns; or the whole, where that is hardly longer.
    pub fn document(&mut self, begun: Begun, revision: Revision, now: &[PoolNow<'_>]) -> Sent {
        let Begun { stamp: Stamp { epoch, generation }, numbers_are_due } = begun;
        let all: usize = now.iter().map(|pool| pool.workers.len()).sum();
        let parts = all.div_ceil(MOST).max(1);
        let due = if numbers_are_due { all.div_ceil(parts) } else { 0 };
        let news = self.news(now).filter(|news| news.len() == self.pools.len());
        let base = self.stamp.filter(|last| last.epoch == epoch).zip(news);
        let change = base.map(|(last, news)| (last.generation, self.chosen(now, &news, due), news));
        let change = change.filter(|(_, chosen, _)| chosen.count().saturating_mul(2) <= all + 1);
        let base = change.as_ref().map(|(base, ..)| *base);
        let is_left = change.as_ref().is_some_and(|(_, chosen, _)| chosen.is_left);
        let mut sent = Sent {
            document: ViewDocument { version: VIEW_VERSION, epoch, generation, base, pools: BTreeMap::new() },
            extent: Extent { revision, is_left, parts: u32::try_from(parts).unwrap_or(u32::MAX) },
            credits: Vec::new(),
        };
        let Some((_, chosen, news)) = change else {
            now.iter().for_each(|pool| sent.add(pool, self.form, pool.workers.iter().map(|worker| (worker, None))));
            return sent;
        };
        for ((pool, is_told), news) in now.iter().zip(&chosen.is_told).zip(news) {
            let held = is_told.iter().zip(news.workers).map(|(is_told, news)| news.credit.filter(|_| !is_told));
            sent.add(pool, self.form, pool.workers.iter().zip(held));
            sent.remove(pool, news.gone, self.pools.get(&pool.name));
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
            let worker = |(report, (address, numbers, credit))| (address, HeldWorker { report, numbers, credit });
            held.workers.extend(told.map(worker));
            (held.report, held.said) = (report, credits.said);
        }
    }

    /// The form of documents that it takes.
    pub fn form(&self) -> u32 {
        self.form.max(FIRST_FORM)
    }

    /// Sets the form of documents that it takes; true when that is another one. A document that it holds in another form lacks
    /// fields, so the whole follows.
    pub fn speak(&mut self, form: u32) -> bool {
        let is_another = form.max(FIRST_FORM) != self.form();
        if is_another {
            self.forget();
        }
        self.form = form;
        is_another
    }

    /// Names of the pools that it holds views of.
    pub fn pools(&self) -> Vec<Arc<str>> {
        self.pools.keys().cloned().collect()
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

    /// What is new of each pool; `None` where the proxy holds no such pool.
    fn news(&mut self, now: &[PoolNow<'_>]) -> Option<Vec<PoolNews>> {
        now.iter().map(|pool| Some(self.pools.get_mut(&pool.name)?.news(pool))).collect()
    }

    /// Which workers to tell: all whose state is new, and of the others at most `due`, in turns.
    fn chosen(&mut self, now: &[PoolNow<'_>], news: &[PoolNews], due: usize) -> Chosen {
        let mut is_told: Vec<Vec<bool>> =
            news.iter().map(|news| news.workers.iter().map(|news| news.is_state).collect()).collect();
        let mut waiting = Vec::new();
        for (at, news) in news.iter().enumerate() {
            let numbers = news.workers.iter().enumerate().filter(|(_, news)| news.is_number && !news.is_state);
            waiting.extend(numbers.map(|(place, _)| (at, place)));
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
            if let Some(is_told) = is_told.get_mut(*at).and_then(|pool| pool.get_mut(*place)) {
                *is_told = true;
            }
        }
        let is_left = told.len() < waiting.len();
        if let Some((pool, address)) = told.last().and_then(|place| of(*place)) {
            self.turn = Some((Arc::clone(pool), Arc::clone(address)));
        }
        Chosen { is_told, is_left }
    }
}

/// What is new of a pool.
#[derive(Debug)]
struct PoolNews {
    /// In the pool's order.
    workers: Vec<News>,
    /// Addresses of workers that the pool no longer has.
    gone: Vec<String>,
}

/// What is new of a worker.
#[derive(Clone, Copy, Debug)]
struct News {
    /// What it is, whether it is busy, or that the proxy has restarted.
    is_state: bool,
    /// The rest.
    is_number: bool,
    /// Of the numbers that the proxy holds.
    credit: Option<Credit>,
}

/// By their texts, which are mostly the same one.
fn is_before(one: &Arc<str>, other: &Arc<str>) -> bool {
    !Arc::ptr_eq(one, other) && one < other
}

struct Chosen {
    /// For each worker of each pool.
    is_told: Vec<Vec<bool>>,
    /// There are numbers that have to wait for the next document.
    is_left: bool,
}

impl Chosen {
    fn count(&self) -> usize {
        self.is_told.iter().flatten().filter(|is_told| **is_told).count()
    }
}

impl Held {
    /// What is new of the pool, beside this.
    ///
    /// Numbers that a later scrape has seen again are as good as from that. A proxy whose count fell has restarted, and what
    /// was known of the one before says nothing.
    fn news(&mut self, pool: &PoolNow<'_>) -> PoolNews {
        let has_restarted = pool.said.admitted.requests < self.said.admitted.requests;
        self.said = pool.said;
        let mut news = PoolNews { workers: Vec::with_capacity(pool.workers.len()), gone: Vec::new() };
        // Both are in the order of addresses.
        let mut all_held = self.workers.iter_mut().peekable();
        for worker in &pool.workers {
            while let Some((address, _)) = all_held.next_if(|(address, _)| is_before(address, worker.address)) {
                news.gone.push(address.to_string());
            }
            let known = all_held.next_if(|(address, _)| !is_before(worker.address, address));
            news.workers.push(match known {
                Some((_, known)) => known.news(worker, has_restarted),
                None => News { is_state: true, is_number: true, credit: None },
            });
        }
        news.gone.extend(all_held.map(|(address, _)| address.to_string()));
        news
    }
}

impl HeldWorker {
    fn news(&mut self, worker: &WorkerNow<'_>, has_restarted: bool) -> News {
        let has_numbers = worker.numbers == self.numbers;
        if has_numbers {
            self.credit = worker.credit;
        } else if has_restarted {
            self.credit = Credit::default();
        }
        let is_number = !has_numbers || !worker.has_cause(&self.report);
        // Why as a state: the count of a proxy that has restarted since would make the new one believe that what it admits is long seen.
        let is_of_another = self.report.admitted > Some(worker.credit.admitted.requests);
        let is_state = is_of_another || !worker.has_state(&self.report);
        News { is_state, is_number, credit: Some(self.credit) }
    }
}

impl Sent {
    /// What the document is sent under.
    pub fn stamp(&self) -> Stamp {
        Stamp { epoch: self.document.epoch, generation: self.document.generation }
    }

    /// Tells of a pool, and of those of its workers that come without a credit; the others are known by numbers of that
    /// credit. The pool's is what was known when the oldest of the scrapes began whose numbers the proxy then holds.
    fn add<'a>(
        &mut self,
        pool: &PoolNow<'_>,
        form: u32,
        all: impl Iterator<Item = (&'a WorkerNow<'a>, Option<Credit>)>,
    ) {
        let (mut workers, mut told, mut oldest) = (Vec::new(), Vec::new(), None);
        for (worker, held) in all {
            if held.is_none() {
                workers.push(worker.report());
                told.push((Arc::clone(worker.address), worker.numbers, worker.credit));
            }
            let credit = held.unwrap_or(worker.credit);
            let order = |credit: Credit| (credit.admitted.requests, credit.admitted.blocks, credit.held);
            let is_older = |oldest: Credit| order(credit) < order(oldest);
            if worker.is_counted() && oldest.is_none_or(is_older) {
                oldest = Some(credit);
            }
        }
        let PoolNow {
            said,
            saturation,
            full: (full_requests, full_blocks),
            batch,
            block_size,
            prefill_limit,
            others,
            dispatch_budget,
            ..
        } = *pool;
        let Credit { admitted, held } = oldest.unwrap_or(said);
        let removed = Vec::new();
        let report = PoolReport {
            admitted,
            held,
            saturation,
            full_requests,
            full_blocks,
            batch,
            block_size,
            demand_elsewhere: others.demand,
            other_proxies: others.proxies,
            dispatch_budget,
            prefill_limit,
            workers,
            removed,
        };
        let report = report.in_form(form);
        self.document.pools.insert(pool.name.to_string(), report);
        self.credits.push((Arc::clone(&pool.name), Credits { said, workers: told }));
    }

    /// Tells which workers a pool no longer has; nothing of the pool at all where the proxy knows all of it.
    fn remove(&mut self, pool: &PoolNow<'_>, gone: Vec<String>, held: Option<&Held>) {
        let Some(report) = self.document.pools.get_mut(&*pool.name) else { return };
        report.removed = gone;
        if held.is_some_and(|held| *report == held.report) {
            self.document.pools.remove(&*pool.name);
            self.credits.pop();
        }
    }
}

#[cfg(test)]
mod tests;
