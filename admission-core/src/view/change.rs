//! Documents that say only what has changed.

use std::collections::{BTreeMap, BTreeSet};

use super::{PoolReport, ViewDocument, WorkerReport};
use crate::gather::gather;

type Pools = BTreeMap<String, PoolReport>;

impl ViewDocument {
    /// Makes this document what `change` makes of it, which has it as its base.
    pub fn apply(&mut self, change: Self) {
        (self.epoch, self.generation) = (change.epoch, change.generation);
        for (name, report) in change.pools {
            match self.pools.get_mut(&name) {
                Some(pool) => pool.apply(report),
                None => drop(self.pools.insert(name, PoolReport { removed: Vec::new(), ..report })),
            }
        }
    }
}

impl PoolReport {
    fn apply(&mut self, change: Self) {
        let removed: BTreeSet<String> = gather(change.removed);
        let mut news: BTreeMap<String, WorkerReport> =
            gather(change.workers.into_iter().map(|worker| (worker.address.clone(), worker)));
        let mut workers = std::mem::take(&mut self.workers);
        workers.retain(|worker| !removed.contains(&worker.address));
        for worker in &mut workers {
            if let Some(newer) = news.remove(&worker.address) {
                *worker = newer;
            }
        }
        workers.extend(news.into_values());
        *self = Self { workers, removed: Vec::new(), ..change };
    }

    /// What turns `before` into this, ages of numbers apart; `None` where nothing does.
    fn since(&self, before: &Self) -> Option<Self> {
        let known: BTreeMap<&str, &WorkerReport> =
            gather(before.workers.iter().map(|worker| (worker.address.as_str(), worker)));
        let is_news = |worker: &&WorkerReport| {
            !known.get(worker.address.as_str()).is_some_and(|before| before.says_the_same_as(worker))
        };
        let workers: Vec<_> = self.workers.iter().filter(is_news).cloned().collect();
        let there: BTreeSet<&str> = gather(self.workers.iter().map(|worker| worker.address.as_str()));
        let removed: Vec<_> = known.into_keys().filter(|address| !there.contains(address)).map(str::to_owned).collect();
        let change = Self { workers, removed, ..self.without_workers() };
        let is_nothing = change.workers.is_empty() && change.removed.is_empty() && change == before.without_workers();
        (!is_nothing).then_some(change)
    }

    /// What it says of the pool itself.
    fn without_workers(&self) -> Self {
        let (workers, removed) = (Vec::new(), Vec::new());
        Self { workers, removed, ..*self }
    }
}

impl WorkerReport {
    fn says_the_same_as(&self, other: &Self) -> bool {
        let other = Self { scraped_ms_ago: self.scraped_ms_ago, ..other.clone() };
        *self == other
    }
}

/// What turns the pools `before` into `now`, ages of numbers apart. `None` where the whole is to be said: other pools, or
/// news of more than half of the workers, which is not much shorter.
#[must_use]
pub fn changes(before: &Pools, now: &Pools) -> Option<Pools> {
    if !before.keys().eq(now.keys()) {
        return None;
    }
    let changed: Pools = before
        .iter()
        .zip(now)
        .filter_map(|((_, before), (name, now))| Some((name.clone(), now.since(before)?)))
        .collect();
    let news: usize = changed.values().map(|pool| pool.workers.len()).sum();
    let all: usize = now.values().map(|pool| pool.workers.len()).sum();
    (news.saturating_mul(2) <= all).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::super::{Admitted, RankReport, VIEW_VERSION};
    use super::*;

    fn worker(number: usize, running: u64, age: u64) -> WorkerReport {
        let ranks = vec![RankReport { running: Some(running), ..RankReport::default() }];
        WorkerReport { scraped_ms_ago: age, ..WorkerReport::up(&format!("10.0.0.{number}:80"), ranks) }
    }

    fn document(generation: u64, pools: Pools) -> ViewDocument {
        ViewDocument { version: VIEW_VERSION, epoch: 1, generation, base: None, pools }
    }

    /// Any pools; few addresses and numbers, so that documents share some.
    fn pools(rng: &mut fastrand::Rng) -> Pools {
        let mut pools = Pools::new();
        for name in ["a", "b", "c"] {
            let mut workers = Vec::new();
            for at in 0..8 {
                let busy = rng.u8(..6) == 0;
                if rng.u8(..8) > 0 {
                    workers.push(WorkerReport { busy, ..worker(at, 0, rng.u64(..9)) });
                }
            }
            let admitted = Admitted { requests: rng.u64(..2), blocks: 0 };
            if rng.u8(..16) > 0 {
                pools.insert(name.to_owned(), PoolReport { admitted, workers, ..PoolReport::default() });
            }
        }
        pools
    }

    /// In the order of addresses and without ages, which a change may leave as they were.
    fn said(pools: &Pools) -> Pools {
        let mut pools = pools.clone();
        for pool in pools.values_mut() {
            pool.workers.sort_by(|one, other| one.address.cmp(&other.address));
            pool.workers.iter_mut().for_each(|worker| worker.scraped_ms_ago = 0);
        }
        pools
    }

    #[test]
    fn a_base_and_its_change_make_the_whole() {
        let mut rng = fastrand::Rng::with_seed(41);
        let mut changed = 0;
        for _ in 0..2_000 {
            let (before, now) = (pools(&mut rng), pools(&mut rng));
            if let Some(change) = changes(&before, &now) {
                let mut document = document(1, before);
                document.apply(ViewDocument { base: Some(1), ..self::document(2, change) });
                assert_eq!((said(&document.pools), document.generation, document.base), (said(&now), 2, None));
                changed += 1;
            }
        }
        assert!(changed > 200, "only {changed} were changes");
    }

    #[test]
    fn only_what_is_new_is_said() {
        let of = |workers| Pools::from([("p".to_owned(), PoolReport { workers, ..PoolReport::default() })]);
        let before = of(vec![worker(1, 5, 0), worker(2, 5, 0), worker(3, 5, 0), worker(4, 5, 0)]);
        assert_eq!(changes(&before, &of(before["p"].workers.clone())), Some(Pools::new()));
        let older = of((1..=4).map(|number| worker(number, 5, 900)).collect());
        assert_eq!(changes(&before, &older), Some(Pools::new()), "an age is no news");

        let now = of(vec![worker(1, 5, 0), worker(2, 6, 0), worker(4, 5, 0)]);
        let change = &changes(&before, &now).unwrap()["p"];
        assert_eq!((&change.workers, &change.removed), (&vec![worker(2, 6, 0)], &vec!["10.0.0.3:80".to_owned()]));

        let mut fuller = before.clone();
        fuller.values_mut().for_each(|pool| pool.saturation = Some(0.5));
        let change = &changes(&before, &fuller).unwrap()["p"];
        assert_eq!((change.workers.len(), change.saturation), (0, Some(0.5)), "news of the pool alone");
    }

    #[test]
    fn much_news_is_said_whole() {
        let of = |running| {
            let workers = (0..4).map(|number| worker(number, if number < 3 { running } else { 0 }, 0)).collect();
            Pools::from([("p".to_owned(), PoolReport { workers, ..PoolReport::default() })])
        };
        assert_eq!(changes(&of(1), &of(2)), None, "three of four");
        assert_eq!(changes(&of(1), &Pools::new()), None, "other pools");
    }
}
