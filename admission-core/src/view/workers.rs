//! The part of the view from which an endpoint is chosen.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::{Admitted, KvBlocks, PoolKv, PoolReport, Stamp, ViewDocument, WorkerReport, WorkerState, kv_used_share};
use crate::hash;
use crate::record::{Reader, Sections, Writer};
use crate::units::Blocks;

const FORMAT: u8 = 1;

/// Format of the record of what each worker can take.
const TAKES_FORMAT: u8 = 2;

/// In [`Seen::kv_permille`]; also what is taken for a worker that does not say.
const FULL: u16 = 1_000;

const NOT_LIVE: u8 = 0;
const BUSY: u8 = 1;
const FREE: u8 = 2;

/// The workers of one pool, as one document has them: 15 bytes each in shared data, and their addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workers {
    /// Epoch of the document.
    pub epoch: u64,
    /// Generation of the document.
    pub generation: u64,
    /// Every worker that requests are sent to, in the order of the document, the dead ones too.
    pub list: Vec<Seen>,
}

/// One worker, as last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// As proxies write it, if it is `ip:port`; else as the sidecar wrote it.
    pub address: String,
    /// That of the address.
    pub key: WorkerKey,
    /// It is `ip:port`: a proxy can be told it, and tells it of an answer. Names it resolves by itself.
    pub is_ip_and_port: bool,
    /// It can be given work and is not busy.
    pub free: bool,
    /// It can be given work.
    pub live: bool,
    /// Requests running and waiting over all its ranks.
    pub load: u64,
    /// KV blocks in use of a thousand, rounded down; 1,000 when the worker does not say.
    pub kv_permille: u16,
    /// KV blocks that it can take.
    pub takes: Takes,
}

/// KV blocks that one worker can take by its last numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Blocks of all its ranks, and those of the rank with most free; none of an engine that could report them and does not.
    /// `None` for an engine that never does.
    pub kv: Option<(KvBlocks, KvBlocks)>,
    /// Blocks with which it would be busy, beyond those in use; `None` where no number of blocks makes it busy.
    pub until_busy: Option<u64>,
    /// Requests that this proxy had admitted to the pool when those numbers were read, all of which they show; `None` where that is
    /// known of the pool alone.
    pub admitted: Option<u64>,
}

/// Names a worker within its pool, in any process and build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerKey(pub u64);

impl WorkerKey {
    /// Of the worker with this address.
    #[must_use]
    pub fn of(address: &str) -> Self {
        Self(hash::stable(address.as_bytes()))
    }
}

impl Workers {
    /// Condenses one pool of a document, to which this proxy has admitted so many requests by its last answer.
    #[must_use]
    pub fn new(document: &ViewDocument, pool: &PoolReport, acknowledged: Admitted) -> Self {
        let decoding = pool.workers.iter().filter(|worker| worker.role.decodes());
        Self {
            epoch: document.epoch,
            generation: document.generation,
            list: decoding.map(|worker| Seen::new(worker, acknowledged)).collect(),
        }
    }

    /// Name of the view that the list is part of.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        (self.epoch, self.generation)
    }

    /// Whether there is a worker with this address, and it is free.
    #[must_use]
    pub fn is_free(&self, address: &str) -> bool {
        self.list.iter().any(|seen| seen.free && seen.address == address)
    }

    /// Record of what each worker can take, kept beside [`Self::encode`].
    // Why two: rows of the first have the width that older versions read.
    #[must_use]
    pub fn encode_takes(&self) -> Vec<u8> {
        let mut out = self.head(TAKES_FORMAT);
        for seen in self.list.iter().filter(|seen| seen.takes != Takes::default()) {
            out.u64(seen.key.0);
            seen.takes.write(&mut out);
        }
        out.finish(&Sections::default())
    }

    /// Adds what each worker can take, from [`Self::encode_takes`] of the same document or a later one of the same sidecar, whose generation
    /// it has then. From any other bytes nothing is added.
    #[must_use]
    pub fn with_takes(mut self, bytes: &[u8]) -> Self {
        let Some((stamp, takes)) = read_takes(bytes) else { return self };
        if stamp.0 == self.epoch && stamp.1 >= self.generation {
            self.generation = stamp.1;
            for seen in &mut self.list {
                seen.takes = takes.get(&seen.key).copied().unwrap_or_default();
            }
        }
        self
    }

    fn head(&self, format: u8) -> Writer {
        let mut out = Writer::default();
        out.bytes(&[format]);
        out.u64(self.epoch);
        out.u64(self.generation);
        out
    }

    /// The bytes kept in shared data, but for what each worker can take.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.head(FORMAT);
        for seen in &self.list {
            // A longer one is no address of anything, and would make the rest unreadable.
            let Ok(length) = u32::try_from(seen.address.len()) else { continue };
            out.bytes(&[seen.state()]);
            out.u64(seen.load);
            out.u16(seen.kv_permille);
            out.u32(length);
            out.bytes(seen.address.as_bytes());
        }
        out.finish(&Sections::default())
    }

    /// Reads [`Self::encode`]; `None` for any other bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (mut reader, (epoch, generation)) = read_head(bytes, FORMAT)?;
        let mut workers = Self { epoch, generation, list: Vec::new() };
        while !reader.is_empty() {
            workers.list.push(Seen::read(&mut reader)?);
        }
        Some(workers)
    }
}

impl Seen {
    fn new(worker: &WorkerReport, acknowledged: Admitted) -> Self {
        let live = worker.state == WorkerState::Up;
        // What an engine does not tell is taken for nothing here: the requests steered to it are known all the same.
        let load = worker.ranks.iter().fold(0_u64, |sum, rank| {
            sum.saturating_add(rank.running.unwrap_or(0)).saturating_add(rank.waiting.unwrap_or(0))
        });
        let parsed = worker.address.parse::<SocketAddr>().ok();
        let address = parsed.map_or_else(|| worker.address.clone(), |address| address.to_string());
        Self {
            key: WorkerKey::of(&address),
            address,
            is_ip_and_port: parsed.is_some(),
            free: live && !worker.busy,
            live,
            load,
            kv_permille: kv_used_share(&worker.ranks).map_or(FULL, permille),
            takes: Takes::new(worker, acknowledged),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let state = reader.u8()?;
        if !matches!(state, NOT_LIVE | BUSY | FREE) {
            return None;
        }
        let (load, kv_permille) = (reader.u64()?, reader.u16()?);
        let length = usize::try_from(reader.u32()?).ok()?;
        let address = str::from_utf8(reader.bytes(length)?).ok()?.to_owned();
        let (key, is_ip_and_port) = (WorkerKey::of(&address), address.parse::<SocketAddr>().is_ok());
        let (free, live) = (state == FREE, state != NOT_LIVE);
        Some(Self { address, key, is_ip_and_port, free, live, load, kv_permille, takes: Takes::default() })
    }

    fn state(&self) -> u8 {
        match (self.live, self.free) {
            (false, _) => NOT_LIVE,
            (true, false) => BUSY,
            (true, true) => FREE,
        }
    }
}

impl Takes {
    fn new(worker: &WorkerReport, acknowledged: Admitted) -> Self {
        let of_itself = PoolKv::of([worker].into_iter()).and_then(|kv| Some((kv.all, kv.freest?)));
        let kv = of_itself.or(worker.kv_unreported.then(Default::default));
        let admitted = worker.admitted.filter(|admitted| *admitted <= acknowledged.requests);
        Self { kv, until_busy: worker.blocks_until_busy, admitted }
    }

    fn write(&self, out: &mut Writer) {
        let known = [self.kv.is_some(), self.until_busy.is_some(), self.admitted.is_some()];
        out.bytes(&[known.iter().rev().fold(0, |bits, known| bits << 1 | u8::from(*known))]);
        let (all, freest) = self.kv.unwrap_or_default();
        for blocks in [all.total, all.free, freest.total, freest.free] {
            out.u64(blocks.0);
        }
        out.u64(self.until_busy.unwrap_or(0));
        out.u64(self.admitted.unwrap_or(0));
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let known = reader.u8()?;
        let mut blocks = || Some(KvBlocks { total: Blocks(reader.u64()?), free: Blocks(reader.u64()?) });
        let kv = (blocks()?, blocks()?);
        let (until_busy, admitted) = (reader.u64()?, reader.u64()?);
        let if_known = |bit: u8, count: u64| (known & bit != 0).then_some(count);
        Some(Self {
            kv: (known & 1 != 0).then_some(kv),
            until_busy: if_known(2, until_busy),
            admitted: if_known(4, admitted),
        })
    }
}

/// Name of the view that a record is part of, and the bytes that follow.
fn read_head(bytes: &[u8], format: u8) -> Option<(Reader<'_>, Stamp)> {
    let (&first, rest) = bytes.split_first()?;
    let mut reader = (first == format).then(|| Reader::of(rest))?;
    let stamp = (reader.u64()?, reader.u64()?);
    Some((reader, stamp))
}

fn read_takes(bytes: &[u8]) -> Option<(Stamp, BTreeMap<WorkerKey, Takes>)> {
    let (mut reader, stamp) = read_head(bytes, TAKES_FORMAT)?;
    let mut takes = BTreeMap::new();
    while !reader.is_empty() {
        takes.insert(WorkerKey(reader.u64()?), Takes::read(&mut reader)?);
    }
    Some((stamp, takes))
}

/// Rounded down.
fn permille(share: f64) -> u16 {
    (share.clamp(0.0, 1.0) * f64::from(FULL)) as u16
}

#[cfg(test)]
mod tests {
    use super::super::RankReport;
    use super::*;

    fn rank(running: u64, waiting: u64, used: Option<u64>) -> RankReport {
        let (running, waiting) = (Some(running), Some(waiting));
        RankReport { running, waiting, kv_used_blocks: used, kv_total_blocks: Some(300), ..RankReport::default() }
    }

    fn worker(address: &str, state: WorkerState, busy: bool, ranks: Vec<RankReport>) -> WorkerReport {
        WorkerReport { state, busy, ..WorkerReport::up(address, ranks) }
    }

    fn workers(list: Vec<WorkerReport>) -> Workers {
        let pool = PoolReport { workers: list, ..PoolReport::default() };
        let document = ViewDocument { version: 1, epoch: 5, generation: 6, base: None, pools: [].into() };
        Workers::new(&document, &pool, Admitted { requests: 40, blocks: 0 })
    }

    fn some() -> Workers {
        workers(vec![
            worker("10.0.0.7:8000", WorkerState::Up, false, vec![rank(3, 1, Some(100)), rank(2, 0, Some(0))]),
            WorkerReport {
                admitted: Some(0),
                ..worker("gpu.local:1", WorkerState::Up, true, vec![rank(u64::MAX, 1, None)])
            },
            worker("[::1]:80", WorkerState::Draining, false, vec![rank(0, 0, Some(300))]),
            worker("", WorkerState::Down, false, vec![]),
        ])
    }

    #[test]
    fn says_of_each_worker_what_a_choice_needs() {
        let seen = some();
        assert_eq!((seen.epoch, seen.generation), (5, 6));
        let states: Vec<_> = seen.list.iter().map(|worker| (worker.live, worker.free)).collect();
        assert_eq!(states, [(true, true), (true, false), (false, false), (false, false)]);
        let loads: Vec<_> = seen.list.iter().map(|worker| worker.load).collect();
        assert_eq!(loads, [6, u64::MAX, 0, 0], "running and waiting of all ranks; nothing wraps");
        let used: Vec<_> = seen.list.iter().map(|worker| worker.kv_permille).collect();
        assert_eq!(used, [166, 1_000, 1_000, 1_000], "100 of 600; unknown; all; nothing scraped");
        assert_eq!(seen.list[0].key, WorkerKey(hash::stable(b"10.0.0.7:8000")));
    }

    #[test]
    fn survives_its_own_encoding() {
        for seen in [some(), workers(vec![])] {
            let read = Workers::decode(&seen.encode()).unwrap();
            assert_eq!(read.with_takes(&seen.encode_takes()), seen);
        }
        assert_eq!(workers(vec![worker("ab:1", WorkerState::Up, false, vec![])]).encode().len(), 17 + 15 + 4);
    }

    #[test]
    fn says_how_many_blocks_each_can_take() {
        let ranks = vec![rank(3, 1, Some(100)), rank(2, 0, Some(0))];
        let told =
            WorkerReport { blocks_until_busy: Some(7), admitted: Some(40), ..WorkerReport::up("10.0.0.1:80", ranks) };
        let hides = WorkerReport { kv_unreported: true, ..WorkerReport::up("10.0.0.2:80", vec![]) };
        let never = WorkerReport { admitted: Some(41), ..WorkerReport::up("10.0.0.3:80", vec![]) };
        let seen = workers(vec![told, hides, never]);
        let blocks = |total, free| KvBlocks { total: Blocks(total), free: Blocks(free) };
        let takes: Vec<_> = seen.list.iter().map(|worker| worker.takes).collect();
        assert_eq!(
            takes[0],
            Takes { kv: Some((blocks(600, 500), blocks(300, 300))), until_busy: Some(7), admitted: Some(40) }
        );
        assert_eq!(takes[1], Takes { kv: Some((blocks(0, 0), blocks(0, 0))), ..Takes::default() });
        assert_eq!(takes[2], Takes::default(), "41 is a count of the proxy before it restarted");
    }

    #[test]
    fn blocks_of_an_earlier_document_or_another_sidecar_are_not_believed() {
        let told = WorkerReport { blocks_until_busy: Some(7), ..WorkerReport::up("10.0.0.1:80", vec![]) };
        let seen = workers(vec![told]);
        let read = || Workers::decode(&seen.encode()).unwrap();
        let until_busy = |epoch, generation| {
            let bytes = Workers { epoch, generation, ..seen.clone() }.encode_takes();
            read().with_takes(&bytes).list[0].takes.until_busy
        };
        assert_eq!(
            [(5, 6), (5, 7), (5, 5), (6, 6), (4, 9)].map(|(epoch, at)| until_busy(epoch, at)),
            [Some(7), Some(7), None, None, None]
        );
        let bytes = seen.encode_takes();
        for length in 0..bytes.len() {
            let cut = read().with_takes(&bytes[..length]);
            assert_eq!(cut.list[0].takes, Takes::default(), "cut to {length}");
        }
    }

    #[test]
    fn cut_or_foreign_bytes_are_refused() {
        let bytes = workers(vec![worker("10.0.0.7:8000", WorkerState::Up, false, vec![])]).encode();
        for length in (0..bytes.len()).filter(|length| *length != 17) {
            assert_eq!(Workers::decode(&bytes[..length]), None, "cut to {length}");
        }
        let changed = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Workers::decode(&bytes)
        };
        assert_eq!(changed(0, 9), None, "another format");
        assert_eq!(changed(17, 3), None, "no state of a worker");
        assert_eq!(changed(31, 255), None, "a length beyond the end");
        assert_eq!(changed(32, 255), None, "an address that is no text");
    }

    #[test]
    fn no_bytes_break_the_reader_and_what_it_reads_it_writes() {
        let mut rng = fastrand::Rng::with_seed(13);
        let good = some().encode();
        let mut read = 0;
        for round in 0..20_000 {
            let mut bytes = match round % 2 {
                0 => (0..rng.usize(..80)).map(|_| rng.u8(..4)).collect(),
                _ => good.clone(),
            };
            if let Some(first) = bytes.first_mut() {
                *first = FORMAT;
            }
            for _ in 0..rng.usize(..3) {
                let place = rng.usize(..=bytes.len());
                match rng.u8(..3) {
                    0 => bytes.truncate(place),
                    1 => bytes.insert(place, rng.u8(..)),
                    _ => bytes.iter_mut().skip(place).take(1).for_each(|byte| *byte = rng.u8(..)),
                }
            }
            if let Some(seen) = Workers::decode(&bytes) {
                assert_eq!(seen.encode(), bytes);
                assert!(seen.list.iter().all(|worker| worker.live || !worker.free), "{seen:?}");
                read += 1;
            }
        }
        assert!(read > 1_000, "only {read} were read");
    }
}
