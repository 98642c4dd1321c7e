//! What a view costs a proxy, whole and as a change: bytes on the wire, and time to take it.
//!
//! `cargo run --release -p admission-core --example view_cost`

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use admission_core::control::Receiver;
use admission_core::keys::Keys;
use admission_core::store::{Conflict, Store, Version};
use admission_core::units::{Millis, Time};
use admission_core::view::{PoolReport, RankReport, VIEW_VERSION, ViewDocument, WorkerReport, WorkerState};

const WORKERS: usize = 1_000;

/// As many times as everything is done; the median is shown.
const ROUNDS: u64 = 201;

/// A map, as the proxy's shared data is one.
#[derive(Default)]
struct Map(RefCell<BTreeMap<String, (Vec<u8>, u32)>>);

impl Store for Map {
    fn read(&self, key: &str) -> (Option<Vec<u8>>, Version) {
        match self.0.borrow().get(key) {
            Some((value, version)) => (Some(value.clone()), Version::Written(*version)),
            None => (None, Version::Absent),
        }
    }

    fn write(&self, key: &str, value: &[u8], _: Version) -> Result<(), Conflict> {
        let mut map = self.0.borrow_mut();
        let entry = map.entry(key.to_owned()).or_default();
        *entry = (value.to_vec(), entry.1.wrapping_add(1));
        Ok(())
    }
}

fn worker(number: usize, running: u64) -> WorkerReport {
    WorkerReport {
        address: format!("10.0.{}.{}:8000", number / 250, number % 250),
        state: WorkerState::Up,
        scraped_ms_ago: 40,
        cause: None,
        busy: false,
        role: Default::default(),
        kv_unreported: false,
        blocks_until_busy: Some(100),
        admitted: Some(123_456),
        ranks: vec![RankReport {
            kv_used_blocks: Some(1_000 + running),
            kv_total_blocks: Some(8_192),
            running: Some(running),
            waiting: Some(0),
            prefill_tokens: Some(512),
            ..RankReport::default()
        }],
    }
}

/// The next generation, with news of the first so many workers.
fn document(generation: u64, base: Option<u64>, news: usize) -> Vec<u8> {
    let workers = (0..news).map(|number| worker(number, generation % 60)).collect();
    let pool = PoolReport { saturation: Some(0.5), workers, ..PoolReport::default() };
    let pools = if news > 0 { [("llama".to_owned(), pool)].into() } else { BTreeMap::new() };
    let document = ViewDocument { version: VIEW_VERSION, epoch: 1, generation, base, pools };
    serde_json::to_vec(&document).unwrap_or_default()
}

fn main() {
    let store = Map::default();
    let mut receiver = Receiver::new(Keys::new("cost"), Millis(5_000));
    let mut generation = 0;
    println!("{:<34} {:>9} {:>9}", format!("of {WORKERS} workers"), "bytes", "µs");
    for (name, whole, news) in [
        ("the whole", true, WORKERS),
        ("a change: news of 500", false, 500),
        ("a change: news of 50", false, 50),
        ("a change: news of 1", false, 1),
        ("a heartbeat", false, 0),
    ] {
        let (mut times, mut bytes) = (Vec::new(), 0);
        for _ in 0..ROUNDS {
            generation += 1;
            let body = document(generation, (!whole).then(|| generation - 1), news);
            bytes = body.len();
            let began = Instant::now();
            let taken = receiver.take(&store, &body, Time(generation));
            times.push(began.elapsed());
            assert!(taken.is_ok(), "{taken:?}");
        }
        times.sort_unstable();
        let median = times.get(times.len() / 2).copied().unwrap_or(Duration::ZERO);
        println!("{name:<34} {bytes:>9} {:>9}", median.as_micros());
    }
}
