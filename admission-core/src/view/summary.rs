//! The part of the view that every request reads.

use super::{Admitted, PoolReport, ViewDocument, WorkerReport};
use crate::units::{Blocks, Millis, Time};

const FORMAT: u8 = 1;

/// One pool of the view, as small as a request needs it: at most 128 bytes in shared data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewSummary {
    /// Epoch of the document.
    pub epoch: u64,
    /// Generation of the document.
    pub generation: u64,
    /// When the proxy took the document.
    pub received: Time,
    /// Workers that can be given work.
    pub live_workers: u32,
    /// Those of them that are not busy.
    pub free_workers: u32,
    /// KV blocks of the live workers; `None` when one of them does not say.
    pub kv: Option<KvBlocks>,
    /// What had been admitted when the scrape began.
    pub admitted: Admitted,
}

/// KV blocks over all live workers of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvBlocks {
    /// There are.
    pub total: Blocks,
    /// Not in use when scraped.
    pub free: Blocks,
}

/// Whether a view may still be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// No older than the pool's `stale.hold`.
    Fresh,
    /// Older, by this age.
    Stale(Millis),
}

impl ViewSummary {
    /// Condenses one pool of a document that arrived at `received`.
    pub fn new(document: &ViewDocument, pool: &PoolReport, received: Time) -> Self {
        let live = || pool.live();
        Self {
            epoch: document.epoch,
            generation: document.generation,
            received,
            live_workers: count(live()),
            free_workers: count(live().filter(|worker| !worker.busy)),
            kv: kv_blocks(live()),
            admitted: pool.admitted,
        }
    }

    /// Age against the pool's patience.
    pub fn freshness(&self, now: Time, hold: Millis) -> Freshness {
        let age = now.since(self.received);
        if age <= hold { Freshness::Fresh } else { Freshness::Stale(age) }
    }

    /// The bytes kept in shared data.
    pub fn encode(&self) -> Vec<u8> {
        let kv = self.kv.map_or((u64::MAX, u64::MAX), |kv| (kv.total.0, kv.free.0));
        let fields = [
            self.epoch,
            self.generation,
            self.received.0,
            u64::from(self.live_workers),
            u64::from(self.free_workers),
            kv.0,
            kv.1,
            self.admitted.requests,
            self.admitted.blocks,
        ];
        let mut bytes = vec![FORMAT];
        for field in fields {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Reads [`Self::encode`]; `None` for bytes of another format. What a newer version appended is ignored.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&format, rest) = bytes.split_first()?;
        if format != FORMAT {
            return None;
        }
        let mut fields = rest.chunks_exact(8).filter_map(|chunk| chunk.try_into().ok().map(u64::from_le_bytes));
        let mut next = || fields.next();
        Some(Self {
            epoch: next()?,
            generation: next()?,
            received: Time(next()?),
            live_workers: u32::try_from(next()?).ok()?,
            free_workers: u32::try_from(next()?).ok()?,
            kv: match (next()?, next()?) {
                (u64::MAX, _) => None,
                (total, free) => Some(KvBlocks { total: Blocks(total), free: Blocks(free) }),
            },
            admitted: Admitted { requests: next()?, blocks: next()? },
        })
    }
}

fn count<'a>(workers: impl Iterator<Item = &'a WorkerReport>) -> u32 {
    u32::try_from(workers.count()).unwrap_or(u32::MAX)
}

/// Sums over every rank of every worker; one rank that does not say makes the sum unknown rather than too small.
fn kv_blocks<'a>(workers: impl Iterator<Item = &'a WorkerReport>) -> Option<KvBlocks> {
    let mut sum = KvBlocks { total: Blocks(0), free: Blocks(0) };
    for worker in workers {
        if worker.ranks.is_empty() {
            return None;
        }
        for rank in &worker.ranks {
            let (total, used) = (rank.kv_total_blocks?, rank.kv_used_blocks?);
            sum.total = Blocks(sum.total.0.saturating_add(total));
            sum.free = Blocks(sum.free.0.saturating_add(total.saturating_sub(used)));
        }
    }
    (sum.total.0 > 0).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::super::{RankReport, WorkerState};
    use super::*;
    #[cfg(target_family = "wasm")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn worker(state: WorkerState, busy: bool, used: Option<u64>) -> WorkerReport {
        let rank = RankReport { kv_used_blocks: used, kv_total_blocks: Some(100), ..RankReport::default() };
        WorkerReport { address: "127.0.0.1:1".into(), state, scraped_ms_ago: 0, busy, ranks: vec![rank] }
    }

    fn summary(workers: Vec<WorkerReport>) -> ViewSummary {
        let pool = PoolReport { admitted: Admitted { requests: 7, blocks: 70 }, workers };
        let document = ViewDocument { version: 1, epoch: 5, generation: 6, pools: [("p".into(), pool.clone())].into() };
        ViewSummary::new(&document, &pool, Time(1_000))
    }

    #[test]
    fn counts_only_workers_that_can_be_given_work() {
        let seen = summary(vec![
            worker(WorkerState::Up, true, Some(90)),
            worker(WorkerState::Up, false, Some(10)),
            worker(WorkerState::Draining, false, Some(0)),
            worker(WorkerState::Down, false, None),
        ]);
        assert_eq!((seen.live_workers, seen.free_workers), (2, 1));
        assert_eq!(seen.kv, Some(KvBlocks { total: Blocks(200), free: Blocks(100) }));
    }

    #[test]
    fn one_live_worker_without_kv_numbers_makes_the_sum_unknown() {
        let seen = summary(vec![worker(WorkerState::Up, false, Some(1)), worker(WorkerState::Up, false, None)]);
        assert_eq!(seen.kv, None);
    }

    #[test]
    fn survives_its_own_encoding_and_a_longer_one() {
        for seen in [summary(vec![worker(WorkerState::Up, true, Some(90))]), summary(vec![])] {
            let mut bytes = seen.encode();
            assert!(bytes.len() <= 128);
            assert_eq!(ViewSummary::decode(&bytes).as_ref(), Some(&seen));
            bytes.extend_from_slice(&[1; 24]);
            assert_eq!(ViewSummary::decode(&bytes), Some(seen));
        }
    }

    #[test]
    fn bytes_of_another_format_are_not_read() {
        assert_eq!(ViewSummary::decode(&[]), None);
        assert_eq!(ViewSummary::decode(&[9; 80]), None);
        assert_eq!(ViewSummary::decode(&[FORMAT; 20]), None);
    }

    #[test]
    fn turns_stale_only_beyond_the_hold() {
        let seen = summary(vec![]);
        assert_eq!(seen.freshness(Time(6_000), Millis(5_000)), Freshness::Fresh);
        assert_eq!(seen.freshness(Time(6_001), Millis(5_000)), Freshness::Stale(Millis(5_001)));
        assert_eq!(seen.freshness(Time(0), Millis(0)), Freshness::Fresh, "a clock behind the view is no age");
    }
}
