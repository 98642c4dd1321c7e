//! KV blocks of a pool's workers.

use super::{RankReport, WorkerReport};
use crate::units::Blocks;

/// KV blocks of one cache, or of several in sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvBlocks {
    /// Blocks that there are.
    pub total: Blocks,
    /// Blocks that were not in use when scraped.
    pub free: Blocks,
}

/// KV blocks of the live workers of a pool that generate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolKv {
    /// Sum over all workers. Workers whose engines never report blocks count as the mean of the others.
    pub all: KvBlocks,
    /// The cache with most free blocks; `None` in a summary that was written by an older version.
    pub freest: Option<KvBlocks>,
    /// Blocks of the largest cache.
    pub largest: Blocks,
}

impl KvBlocks {
    /// Sums over the ranks of one worker; `None` when there is no rank, or one does not say.
    pub fn of(ranks: &[RankReport]) -> Option<Self> {
        let sum = (!ranks.is_empty()).then_some(Self::default())?;
        ranks.iter().try_fold(sum, |sum, rank| Some(sum.plus(Self::of_rank(rank)?)))
    }

    fn of_rank(rank: &RankReport) -> Option<Self> {
        let (total, used) = (rank.kv_total_blocks?, rank.kv_used_blocks?);
        Some(Self { total: Blocks(total), free: Blocks(total.saturating_sub(used)) })
    }

    /// Share of the blocks in use, 0 to 1; `None` when there are no blocks.
    pub fn used_share(&self) -> Option<f64> {
        let used = self.total.0.saturating_sub(self.free.0);
        (self.total.0 > 0).then(|| used as f64 / self.total.0 as f64)
    }

    /// The blocks less a share of the total, rounded up, that is never given out.
    #[must_use]
    pub fn less(self, headroom: f64) -> Self {
        let kept_back = (self.total.0 as f64 * headroom).ceil() as u64;
        let left = |blocks: Blocks| Blocks(blocks.0.saturating_sub(kept_back));
        Self { total: left(self.total), free: left(self.free) }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            total: Blocks(self.total.0.saturating_add(other.total.0)),
            free: Blocks(self.free.0.saturating_add(other.free.0)),
        }
    }

    /// The same for more workers than have reported.
    fn scaled(self, workers: u64, reported: u64) -> Self {
        let scale = |blocks: Blocks| {
            let scaled = u128::from(blocks.0) * u128::from(workers) / u128::from(reported.max(1));
            Blocks(u64::try_from(scaled).unwrap_or(u64::MAX))
        };
        Self { total: scale(self.total), free: scale(self.free) }
    }
}

impl PoolKv {
    /// Sums and extremes over workers; `None` when none reports its blocks, or none has any.
    pub fn of<'a>(workers: impl Iterator<Item = &'a WorkerReport>) -> Option<Self> {
        let mut kv = Self::default();
        let (mut live, mut reported) = (0, 0);
        for worker in workers {
            live += 1;
            // Why a silent one counts as having none: its cache may be full, and the others must not be given its requests' blocks
            // twice.
            reported += u64::from(worker.kv_unreported);
            if worker.kv_unreported {
                continue;
            }
            let Some(sum) = KvBlocks::of(&worker.ranks) else { continue };
            reported += 1;
            kv.all = kv.all.plus(sum);
            // Why by rank: each has a cache of its own, and a request lives in one.
            for cache in worker.ranks.iter().filter_map(KvBlocks::of_rank) {
                kv.freest = kv.freest.into_iter().chain([cache]).max_by_key(|cache| (cache.free, cache.total));
                kv.largest = kv.largest.max(cache.total);
            }
        }
        kv.all = kv.all.scaled(live, reported);
        (kv.largest.0 > 0).then_some(kv)
    }

    /// Total and free of the freest cache, and total of the largest, as four-byte numbers; the highest means as many or more.
    pub(super) fn single(&self) -> [u32; 3] {
        let freest = self.freest.unwrap_or_default();
        [freest.total, freest.free, self.largest].map(|blocks| u32::try_from(blocks.0).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker of some ranks, by blocks in total and free.
    fn worker(ranks: &[(u64, u64)], kv_unreported: bool) -> WorkerReport {
        let rank = |(total, free): &(u64, u64)| RankReport {
            kv_total_blocks: Some(*total),
            kv_used_blocks: Some(total - free),
            ..RankReport::default()
        };
        let ranks = ranks.iter().map(rank).collect();
        WorkerReport { kv_unreported, ..WorkerReport::up("127.0.0.1:1", ranks) }
    }

    fn kv(workers: &[WorkerReport]) -> Option<(u64, u64, (u64, u64), u64)> {
        let kv = PoolKv::of(workers.iter())?;
        let freest = kv.freest.unwrap();
        Some((kv.all.total.0, kv.all.free.0, (freest.total.0, freest.free.0), kv.largest.0))
    }

    #[test]
    fn the_freest_cache_and_the_largest_are_apart_from_the_sum() {
        assert_eq!(kv(&[]), None);
        let small = worker(&[(100, 90)], false);
        let large = worker(&[(1_000, 50)], false);
        assert_eq!(kv(&[small.clone(), large.clone()]), Some((1_100, 140, (100, 90), 1_000)));
        let ranks = worker(&[(100, 10), (100, 60)], false);
        assert_eq!(kv(&[ranks, small, large]), Some((1_300, 210, (100, 90), 1_000)), "a rank is a cache of its own");
    }

    #[test]
    fn who_never_reports_counts_as_the_mean_and_who_could_as_none_free() {
        let (full, never, silent) = (worker(&[(100, 40)], false), worker(&[], false), worker(&[], true));
        assert_eq!(kv(&[full.clone(), never.clone()]), Some((200, 80, (100, 40), 100)));
        assert_eq!(kv(&[full.clone(), silent.clone()]), Some((100, 40, (100, 40), 100)));
        assert_eq!(kv(&[full, never.clone(), silent.clone()]), Some((150, 60, (100, 40), 100)));
        assert_eq!(kv(&[never, silent]), None, "none reports any");
        assert_eq!(kv(&[worker(&[(0, 0)], false)]), None);
    }
}
