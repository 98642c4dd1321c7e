//! The part of the view that every request reads.

use super::{Admitted, Credit, KvBlocks, PoolKv, PoolReport, Stamp, ViewDocument, WorkerReport};
use crate::units::{Blocks, Millis, Time};

const FORMAT: u8 = 1;

/// Numbers of eight bytes in the encoding; shorter ones follow.
const LONG_FIELDS: usize = 22;

/// In which saturation is kept.
const MILLION: f64 = 1e6;

/// One pool of the view, as small as a request needs it: at most 200 bytes in shared data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ViewSummary {
    /// Epoch of the document.
    pub epoch: u64,
    /// Generation of the document.
    pub generation: u64,
    /// When the proxy took the document.
    pub received: Time,
    /// Workers that can be given work and generate; none while no worker can read prompts for them.
    pub live_workers: u32,
    /// Those of them that are not busy; none while all that read prompts are.
    pub free_workers: u32,
    /// KV blocks of the live workers that generate; `None` when none reports any.
    pub kv: Option<PoolKv>,
    /// Live workers that generate and report no KV blocks.
    pub kv_unknown: u16,
    /// Counts of this proxy when the scrapes began.
    pub credit: Credit,
    /// How full the pool is, see [`crate::saturation`], in steps of a millionth; `None` when the sidecar does not say.
    pub saturation: Option<f64>,
    /// Requests that would bring the saturation from 0 to 1; `None` where it does not count requests.
    pub full_requests: Option<u64>,
    /// KV blocks that would; `None` where it does not count what the KV caches hold.
    pub full_blocks: Option<u64>,
    /// Requests held by the report itself; a later report with the same counts and the same numbers is of the same scrapes.
    pub reported_held: Option<u64>,
    /// Counts of this proxy when the document arrived.
    pub on_receipt: Credit,
    /// Requests running and waiting in the live workers that generate; `None` when one does not report them.
    pub in_hand: Option<u64>,
    /// Sequences that the live workers run concurrently, as their engines report.
    pub batch: Option<u64>,
    /// Tokens in a KV block, as the engines of the live workers report; `None` where none does, or two differ.
    pub block_size: Option<u32>,
    /// Requests that wait in other proxies for nothing but the pool, in lanes without a dispatch budget.
    pub demand_elsewhere: u64,
    /// Other proxies that share the pool.
    pub other_proxies: u32,
    /// Prompt tokens that a live worker may have to read and is not busy by them; `None` without a threshold.
    pub prefill_limit: Option<u64>,
    /// What lanes with a dispatch budget may still fill, in steps of a millionth; `None` when the sidecar does not say.
    pub dispatch_budget: Option<f64>,
}

/// Counts of this proxy when a document arrived, and the document before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Receipt {
    /// Time of arrival.
    pub at: Time,
    /// Counts that the answer to the document carries.
    pub acknowledged: Credit,
    /// Summary of the document before it, if there was one.
    pub before: Option<ViewSummary>,
}

impl Receipt {
    /// Counts that a report names. A sidecar of the first form does not say what was held, and its scrapes may have begun before
    /// the last document came.
    fn reported(&self, pool: &PoolReport) -> Credit {
        let held_before = || self.before.as_ref().map_or(Some(0), |before| before.on_receipt.held);
        Credit { admitted: pool.admitted, held: pool.held.or_else(held_before) }
    }

    /// Counts that a report has seen. A sidecar that has just started knows nothing of the proxy, and the counts of a
    /// proxy that has restarted since mean nothing: such a report counts as one that has seen no more than the one before.
    fn credit(&self, pool: &PoolReport, shows_the_same: impl Fn(&ViewSummary) -> bool) -> Credit {
        let none = Credit { held: Some(0), ..Credit::default() };
        let is_known =
            pool.admitted != Admitted::default() && pool.admitted.requests <= self.acknowledged.admitted.requests;
        if !is_known {
            let known = self.before.as_ref().map_or(none, |before| before.credit);
            return Credit { held: known.held.min(self.acknowledged.held), ..known };
        }
        let reported = self.reported(pool);
        match &self.before {
            Some(before) if before.is_of_the_same_answer(reported) && shows_the_same(before) => before.credit,
            // Why the smaller: the report has the count of the last answer before the scrapes. Requests that ended between
            // that answer and the scrapes are still in it, and would otherwise leave room twice.
            _ => Credit { held: reported.held.min(self.acknowledged.held), ..reported },
        }
    }
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
    /// Condenses one pool of a document.
    pub fn new(document: &ViewDocument, pool: &PoolReport, receipt: &Receipt) -> Self {
        let live = || pool.live();
        let decoding = || live().filter(|worker| worker.role.decodes());
        let (kv, in_hand) = (PoolKv::of(decoding()), in_hand(decoding()));
        let kv_unknown =
            decoding().filter(|worker| worker.kv_unreported || KvBlocks::of(&worker.ranks).is_none()).count();
        let saturation = from_millionths(to_millionths(pool.saturation));
        let shows_the_same =
            |before: &Self| (before.kv, before.in_hand, before.saturation) == (kv, in_hand, saturation);
        Self {
            epoch: document.epoch,
            generation: document.generation,
            received: receipt.at,
            live_workers: usable(live()),
            free_workers: usable(live().filter(|worker| !worker.busy)),
            kv,
            kv_unknown: u16::try_from(kv_unknown).unwrap_or(u16::MAX),
            credit: receipt.credit(pool, shows_the_same),
            saturation,
            full_requests: pool.full_requests.filter(|full| *full > 0),
            full_blocks: pool.full_blocks.filter(|full| *full > 0),
            reported_held: receipt.reported(pool).held,
            on_receipt: receipt.acknowledged,
            in_hand,
            batch: pool.batch.filter(|batch| *batch > 0),
            block_size: pool.block_size.filter(|size| *size > 0),
            demand_elsewhere: pool.demand_elsewhere,
            other_proxies: u32::try_from(pool.other_proxies).unwrap_or(u32::MAX),
            dispatch_budget: from_millionths(to_millionths(pool.dispatch_budget)),
            prefill_limit: pool.prefill_limit,
        }
    }

    /// True when a report names the counts that this one did; the count of requests tells answers apart.
    fn is_of_the_same_answer(&self, reported: Credit) -> bool {
        (self.credit.admitted.requests, self.reported_held) == (reported.admitted.requests, reported.held)
    }

    /// Name of the view that the summary is part of.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        (self.epoch, self.generation)
    }

    /// Age against the pool's patience.
    pub fn freshness(&self, now: Time, hold: Millis) -> Freshness {
        let age = now.since(self.received);
        if age <= hold { Freshness::Fresh } else { Freshness::Stale(age) }
    }

    /// The bytes kept in shared data.
    pub fn encode(&self) -> Vec<u8> {
        let kv = self.kv.map_or((u64::MAX, u64::MAX), |kv| (kv.all.total.0, kv.all.free.0));
        let single = self.kv.map_or([u32::MAX; 3], |kv| kv.single());
        let fields = [
            self.epoch,
            self.generation,
            self.received.0,
            u64::from(self.live_workers),
            u64::from(self.free_workers),
            kv.0,
            kv.1,
            self.credit.admitted.requests,
            self.credit.admitted.blocks,
            to_millionths(self.saturation),
            to_millionths(self.dispatch_budget),
            unknown_as_most(self.credit.held),
            unknown_as_most(self.full_requests),
            unknown_as_most(self.full_blocks),
            self.on_receipt.admitted.requests,
            self.on_receipt.admitted.blocks,
            unknown_as_most(self.on_receipt.held),
            unknown_as_most(self.in_hand),
            unknown_as_most(self.batch),
            self.demand_elsewhere,
            u64::from(self.other_proxies) | u64::from(self.block_size.unwrap_or(0)) << 32,
            unknown_as_most(self.reported_held),
        ];
        let mut bytes = vec![FORMAT];
        for field in fields {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        // Why so short: with eight bytes each the summary would be longer than 200.
        for field in single {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&self.kv_unknown.to_le_bytes());
        bytes.extend_from_slice(&unknown_as_most(self.prefill_limit).to_le_bytes());
        bytes
    }

    /// Reads [`Self::encode`]; `None` for bytes of another format. What a newer version appended is ignored,
    /// what an older one did not write yet is unknown.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&format, rest) = bytes.split_first()?;
        if format != FORMAT {
            return None;
        }
        let (rest, small) = rest.split_at_checked(LONG_FIELDS * 8).unwrap_or((rest, &[]));
        let mut fields = rest.chunks_exact(8).filter_map(|chunk| chunk.try_into().ok().map(u64::from_le_bytes));
        let mut next = || fields.next();
        let summary = Self {
            epoch: next()?,
            generation: next()?,
            received: Time(next()?),
            live_workers: u32::try_from(next()?).ok()?,
            free_workers: u32::try_from(next()?).ok()?,
            kv: match (next()?, next()?) {
                (u64::MAX, _) => None,
                (total, free) => {
                    let all = KvBlocks { total: Blocks(total), free: Blocks(free) };
                    Some(PoolKv { all, ..PoolKv::default() })
                }
            },
            credit: Credit { admitted: Admitted { requests: next()?, blocks: next()? }, held: None },
            saturation: next().and_then(from_millionths),
            dispatch_budget: next().and_then(from_millionths),
            ..Self::default()
        };
        let mut known = || next().filter(|count| *count != u64::MAX);
        let (held, full_requests, full_blocks) = (known(), known(), known());
        let admitted = Admitted { requests: known().unwrap_or(0), blocks: known().unwrap_or(0) };
        let credit = Credit { held, ..summary.credit };
        let on_receipt = Credit { admitted, held: known() };
        let summary = Self { credit, full_requests, full_blocks, on_receipt, ..summary };
        let (in_hand, batch, demand_elsewhere) = (known(), known(), known().unwrap_or(0));
        // Why two in one: with eight bytes each the summary would be longer than 200.
        let both = known().unwrap_or(0);
        let (other_proxies, block_size) = (both as u32, (both >> 32) as u32);
        let unknown = small.get(12..14).and_then(|bytes| bytes.try_into().ok()).map(u16::from_le_bytes);
        let limit = small.get(14..22).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let mut single = small.chunks_exact(4).filter_map(|chunk| chunk.try_into().ok().map(u32::from_le_bytes));
        let mut blocks = || single.next().map(|blocks| Blocks(u64::from(blocks)));
        let single = (blocks(), blocks(), blocks());
        let kv = summary.kv.map(|kv| match single {
            (Some(total), Some(free), Some(largest)) if largest.0 > 0 => {
                PoolKv { freest: Some(KvBlocks { total, free }), largest, ..kv }
            }
            _ => kv,
        });
        let kv_unknown = unknown.unwrap_or(0);
        Some(Self {
            in_hand,
            batch,
            block_size: (block_size > 0).then_some(block_size),
            demand_elsewhere,
            other_proxies,
            reported_held: known(),
            kv,
            kv_unknown,
            prefill_limit: limit.filter(|limit| *limit != u64::MAX),
            ..summary
        })
    }
}

/// Those of `workers` that a request can be sent to, which takes one that reads prompts, too.
fn usable<'a>(workers: impl Iterator<Item = &'a WorkerReport>) -> u32 {
    let (mut decoding, mut prefill) = (0, false);
    for worker in workers {
        decoding += u32::from(worker.role.decodes());
        prefill |= worker.role.prefills();
    }
    if prefill { decoding } else { 0 }
}

/// Requests running and waiting in the workers; `None` when one reports neither.
fn in_hand<'a>(mut workers: impl Iterator<Item = &'a WorkerReport>) -> Option<u64> {
    workers.try_fold(0_u64, |sum, worker| {
        worker.ranks.first()?;
        worker.ranks.iter().try_fold(sum, |sum, rank| {
            let more = rank.running.unwrap_or(0).saturating_add(rank.waiting.unwrap_or(0));
            rank.running.or(rank.waiting).map(|_| sum.saturating_add(more))
        })
    })
}

fn unknown_as_most(count: Option<u64>) -> u64 {
    count.unwrap_or(u64::MAX)
}

/// [`u64::MAX`] for what is not known. No count of anything is negative or infinite, so neither says anything.
fn to_millionths(saturation: Option<f64>) -> u64 {
    let known = saturation.filter(|share| share.is_finite() && *share >= 0.0);
    known.map_or(u64::MAX, |share| ((share * MILLION).round() as u64).min(u64::MAX - 1))
}

fn from_millionths(millionths: u64) -> Option<f64> {
    (millionths != u64::MAX).then(|| millionths as f64 / MILLION)
}

#[cfg(test)]
mod tests {
    use super::super::{RankReport, Role, WorkerState};
    use super::*;

    fn worker(state: WorkerState, busy: bool, used: Option<u64>) -> WorkerReport {
        let rank = RankReport { kv_used_blocks: used, kv_total_blocks: Some(100), ..RankReport::default() };
        WorkerReport { state, busy, ..WorkerReport::up("127.0.0.1:1", vec![rank]) }
    }

    fn credit(requests: u64, held: Option<u64>) -> Credit {
        Credit { admitted: Admitted { requests, blocks: requests * 10 }, held }
    }

    fn receipt() -> Receipt {
        Receipt { at: Time(1_000), acknowledged: credit(9, Some(4)), before: None }
    }

    fn summary(workers: Vec<WorkerReport>) -> ViewSummary {
        let pool = PoolReport {
            admitted: Admitted { requests: 7, blocks: 70 },
            held: Some(2),
            saturation: Some(0.75),
            full_requests: Some(96),
            full_blocks: Some(3_400),
            batch: Some(96),
            block_size: Some(32),
            demand_elsewhere: 3,
            other_proxies: 1,
            dispatch_budget: Some(0.125),
            prefill_limit: Some(8_000),
            workers,
            ..PoolReport::default()
        };
        let document = ViewDocument {
            version: 1,
            epoch: 5,
            generation: 6,
            base: None,
            pools: [("p".into(), pool.clone())].into(),
        };
        ViewSummary::new(&document, &pool, &receipt())
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
        assert_eq!(seen.kv.unwrap().all, KvBlocks { total: Blocks(200), free: Blocks(100) });
    }

    #[test]
    fn a_pool_in_stages_takes_a_worker_of_each() {
        let of = |role, busy| WorkerReport { role, ..worker(WorkerState::Up, busy, Some(10)) };
        let counts = |workers: Vec<WorkerReport>| {
            let seen = summary(workers);
            (seen.live_workers, seen.free_workers, seen.kv.map(|kv| kv.all.total.0))
        };
        let (prefill, decode) = (of(Role::Prefill, false), of(Role::Decode, false));
        assert_eq!(counts(vec![prefill.clone(), decode.clone(), decode.clone()]), (2, 2, Some(200)));
        assert_eq!(
            counts(vec![of(Role::Prefill, true), decode.clone()]),
            (1, 0, Some(100)),
            "nobody free reads prompts"
        );
        assert_eq!(counts(vec![prefill.clone(), of(Role::Decode, true)]), (1, 0, Some(100)));
        assert_eq!(counts(vec![decode.clone(), decode.clone()]), (0, 0, Some(200)), "nobody reads prompts");
        assert_eq!(counts(vec![prefill.clone()]), (0, 0, None));
        assert_eq!(counts(vec![decode, of(Role::Both, false)]), (2, 2, Some(200)));
    }

    #[test]
    fn survives_its_own_encoding_and_a_longer_one() {
        for seen in [summary(vec![worker(WorkerState::Up, true, Some(90))]), summary(vec![])] {
            let mut bytes = seen.encode();
            assert!(bytes.len() <= 200);
            assert_eq!(ViewSummary::decode(&bytes).as_ref(), Some(&seen));
            bytes.extend_from_slice(&[1; 24]);
            assert_eq!(ViewSummary::decode(&bytes), Some(seen));
        }
    }

    #[test]
    fn saturation_survives_in_millionths() {
        let kept = |said: Option<f64>| {
            let pool = PoolReport { saturation: said, ..PoolReport::default() };
            let document = ViewDocument { version: 1, epoch: 5, generation: 6, base: None, pools: [].into() };
            let seen = ViewSummary::new(&document, &pool, &Receipt::default());
            assert_eq!(ViewSummary::decode(&seen.encode()).as_ref(), Some(&seen), "{said:?}");
            seen.saturation
        };
        assert_eq!(kept(Some(0.0)), Some(0.0));
        assert_eq!(kept(Some(1.25)), Some(1.25));
        assert_eq!(kept(Some(1.0 / 3.0)), Some(0.333_333));
        assert_eq!(kept(Some(f64::MAX)), Some(u64::MAX as f64 / MILLION), "beyond what fits is the most that fits");
        for nothing in [None, Some(-0.1), Some(f64::NAN), Some(f64::INFINITY), Some(f64::NEG_INFINITY)] {
            assert_eq!(kept(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn a_number_that_says_nothing_is_not_written() {
        for said in [-1.0, f64::NAN, f64::INFINITY] {
            let seen = ViewSummary { saturation: Some(said), ..summary(vec![]) };
            assert_eq!(ViewSummary::decode(&seen.encode()).unwrap().saturation, None, "{said}");
        }
    }

    #[test]
    fn a_report_that_knows_no_saturation_names_none() {
        let report = serde_json::to_value(PoolReport::default()).unwrap();
        assert!(report.get("saturation").is_none(), "{report}");
    }

    #[test]
    fn an_older_summary_knows_no_saturation() {
        let seen = summary(vec![worker(WorkerState::Up, false, Some(10))]);
        let bytes = seen.encode();
        let older = ViewSummary::decode(&bytes[..73]);
        assert_eq!(
            older,
            Some(ViewSummary {
                epoch: seen.epoch,
                generation: seen.generation,
                received: seen.received,
                live_workers: seen.live_workers,
                free_workers: seen.free_workers,
                kv: seen.kv.map(|kv| PoolKv { all: kv.all, ..PoolKv::default() }),
                credit: Credit { held: None, ..seen.credit },
                ..ViewSummary::default()
            }),
            "its nine numbers stand as they are"
        );
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

    #[test]
    fn a_report_is_credited_with_what_its_sidecar_knew() {
        let before = ViewSummary { credit: credit(5, Some(1)), on_receipt: credit(6, Some(3)), ..summary(vec![]) };
        let receipt = Receipt { before: Some(before), ..receipt() };
        let of = |requests, held| {
            let pool = PoolReport { admitted: credit(requests, None).admitted, held, ..PoolReport::default() };
            receipt.credit(&pool, |_| false)
        };
        assert_eq!(of(7, Some(2)), credit(7, Some(2)));
        assert_eq!(of(7, Some(6)), credit(7, Some(4)), "two have ended since that answer, perhaps before the scrapes");
        let reported = credit(7, Some(6));
        let same = ViewSummary { reported_held: Some(6), credit: credit(7, Some(5)), ..summary(vec![]) };
        let same = Receipt { before: Some(same), ..receipt.clone() };
        let report = PoolReport { admitted: reported.admitted, held: reported.held, ..PoolReport::default() };
        assert_eq!(same.credit(&report, |_| true), credit(7, Some(5)), "the same scrapes as before");
        assert_eq!(same.credit(&report, |_| false), credit(7, Some(4)), "later scrapes, which may have seen the ends");
        assert_eq!(of(7, None), credit(7, Some(3)), "a sidecar of the first form; as when the view before came");
        assert_eq!(of(0, None), credit(5, Some(1)), "a sidecar that has just started");
        assert_eq!(of(70, Some(9)), credit(5, Some(1)), "it knows a proxy that has restarted");
        let first = Receipt { acknowledged: credit(9, Some(4)), ..Receipt::default() };
        assert_eq!(first.credit(&PoolReport::default(), |_| true), credit(0, Some(0)), "nothing that is held was seen");
    }
}
