//! How fast bodies are read.
#![allow(missing_docs, reason = "the macros export what cargo calls")]

use std::hint::black_box;
use std::time::Duration;

use admission_core::request::Scanner;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

#[path = "../../testkit/src/bodies.rs"]
mod bodies;

/// Where samples of long texts are taken, as in the benchmark as wasm; the filter draws another for each request.
const SEED: u64 = 0x0bad_5eed;

fn scan(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("scan");
    for body in bodies::all() {
        group.throughput(Throughput::BytesDecimal(body.json.len() as u64));
        group.bench_function(body.name, |bencher| {
            bencher.iter(|| {
                let mut scanner = Scanner::sampling(SEED);
                scanner.feed(black_box(body.json.as_bytes()));
                scanner.finish().expect("the bodies are JSON");
                scanner.facts()
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = scan
}
criterion_main!(benches);
