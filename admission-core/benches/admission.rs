//! What one admission costs: the decision alone, with the records it reads and writes, and the records alone.
#![allow(missing_docs, reason = "the macros export what cargo calls")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;

use admission_core::ask::Ask;
use admission_core::decide::{Held, Known, Rules, Turn, decide, flow_of};
use admission_core::ledger::{Amount, Begun, LaneKey, Ledger, TallyKey};
use admission_core::members::Members;
use admission_core::policy::{Plugin, Policy};
use admission_core::record::Record;
use admission_core::store::{self, Conflict, Store, Version};
use admission_core::stream::StreamId;
use admission_core::units::{Blocks, Time, Tokens};
use admission_core::usage::Served;
use admission_core::view::{Admitted, Receipt, ViewDocument, ViewSummary, Workers};
use admission_core::vm::{Request, Usage, Vm};
use criterion::{Criterion, criterion_group, criterion_main};

/// VMs that hold something in every record.
const VMS: [usize; 2] = [1, 16];

/// Workers that a request can be steered to.
const WORKERS: [usize; 3] = [10, 100, 1_000];

const NOW: Time = Time(1_000_000);

const POLICY: &str = r#"{
    "tiers": {"paid": {"max_in_flight": 1000, "max_tokens_in_flight": 400000000, "tokens_per_minute": 4000000000, "weight": 4}},
    "tenants": {"acme": {"tier": "paid"}},
    "lanes": [
        {"name": "interactive", "priority": 100, "reserve": 0.3, "queue": {"max_requests": 64, "max_wait": "2s"}},
        {"name": "standard", "priority": 0, "queue": {"max_requests": 128, "max_wait": "10s"}},
        {"name": "batch", "priority": -10, "queue": {"max_requests": 512, "max_wait": "240s"}}
    ],
    "default_lane": "standard",
    "pools": [{"name": "llama", "models": ["llama-3.3-70b*"], "max_in_flight": 1000}]
}"#;

/// Shared data that is a map.
#[derive(Default)]
struct Memory(RefCell<HashMap<String, (Vec<u8>, u32)>>);

impl Store for Memory {
    fn read(&self, key: &str) -> (Option<Vec<u8>>, Version) {
        match self.0.borrow().get(key) {
            Some((bytes, version)) => (Some(bytes.clone()), Version::Written(*version)),
            None => (None, Version::Absent),
        }
    }

    fn write(&self, key: &str, value: &[u8], expected: Version) -> Result<(), Conflict> {
        let mut values = self.0.borrow_mut();
        let version = match (values.get(key), expected) {
            (None, Version::Absent) => 1,
            (Some((_, is)), Version::Written(expected)) if *is == expected => is.wrapping_add(1),
            _ => return Err(Conflict),
        };
        values.insert(key.to_owned(), (value.to_vec(), version));
        Ok(())
    }
}

fn policy() -> Policy {
    match Plugin::parse(POLICY.as_bytes()) {
        Ok(Plugin::Filter(policy)) => *policy,
        other => panic!("{other:?}"),
    }
}

fn rules(policy: &Policy) -> Rules<'_> {
    let pool = policy.only_pool().expect("there is one pool");
    let lane = policy.lanes().nth(1).expect("there are three lanes");
    Rules { tenant: policy.limits("acme"), pool, lane, lanes: policy.line_up(), classes: &pool.classes }
}

fn ask() -> Ask {
    let (prompt, output) = (Tokens(100), Tokens(60));
    Ask { prompt, longest_prompt: prompt, output, output_limit: None, prompt_read: true, sequences: 1 }
}

fn request<'a>(policy: &'a Policy, tenant_key: &'a str) -> Request<'a> {
    Request {
        owner: StreamId::default(),
        ask: ask(),
        rules: rules(policy),
        tenant_key,
        can_be_steered: true,
        bytes: 262,
        deadline: None,
        sub: None,
    }
}

/// So many VMs over one memory, each with a request in flight.
fn proxy(policy: &Policy, vms: usize) -> (Memory, Vec<Vm>) {
    let (memory, tenant_key) = (Memory::default(), policy.tenant_key("acme"));
    let mut all = Vec::new();
    for _ in 0..vms {
        let mut vm = Vm::new(policy.keys.clone());
        vm.admit(&memory, &request(policy, &tenant_key), NOW).expect("there is room");
        all.push(vm);
    }
    (memory, all)
}

fn admit_and_release(criterion: &mut Criterion) {
    let policy = policy();
    let tenant_key = policy.tenant_key("acme");
    let mut group = criterion.benchmark_group("admit_and_release");
    for vms in VMS {
        let (memory, mut all) = proxy(&policy, vms);
        let vm = all.first_mut().expect("there is a VM");
        group.bench_function(format!("{vms}_vms"), |bencher| {
            bencher.iter(|| {
                let admission = vm.admit(&memory, black_box(&request(&policy, &tenant_key)), NOW);
                vm.release(
                    &memory,
                    admission.expect("there is room").lease,
                    Usage::Served(Served::whole(Tokens(100), Tokens(20))),
                    NOW,
                );
            });
        });
    }
    group.finish();
}

fn decision(criterion: &mut Criterion) {
    let policy = policy();
    let (tenant_key, rules) = (policy.tenant_key("acme"), rules(&policy));
    let turn = Turn {
        band: rules.lane,
        has_climbed_far: false,
        flow: flow_of(&tenant_key),
        urgency: NOW.0,
        bytes: 262,
        waits_in: None,
        behind_its_like: None,
        sub: None,
    };
    let mut group = criterion.benchmark_group("decide");
    for vms in VMS {
        let (memory, _all) = proxy(&policy, vms);
        let read = |key: &str| store::read::<Ledger>(&memory, key).expect("it is ours").0;
        let (tenant, pool) = (read(&tenant_key), read(&rules.pool.key));
        let members: Members = store::read(&memory, &policy.keys.members()).expect("it is ours").0;
        let held = Held { tenant: &tenant, pool: &pool, members: &members };
        group.bench_function(format!("{vms}_vms"), |bencher| {
            bencher
                .iter(|| decide(black_box(&ask()), rules, &turn, Known::default(), held, NOW).expect("there is room"));
        });
    }
    group.finish();
}

/// A decision that chooses one of so many workers, each of which holds four requests, one begun since its numbers were read.
fn steered_decision(criterion: &mut Criterion) {
    let steered =
        POLICY.replace(r#""max_in_flight": 1000}]"#, r#""max_in_flight": 9000, "pick_endpoint": true, "kv": {}}]"#);
    let Ok(Plugin::Filter(policy)) = Plugin::parse(steered.as_bytes()) else { panic!("{steered}") };
    let rules = rules(&policy);
    let turn = Turn {
        band: rules.lane,
        has_climbed_far: false,
        flow: 0,
        urgency: NOW.0,
        bytes: 262,
        waits_in: None,
        behind_its_like: None,
        sub: None,
    };
    let mut group = criterion.benchmark_group("decide_steered");
    for count in WORKERS {
        let document = view_of(count);
        let pool = document.pools.get("llama").expect("it is there");
        let receipt = Receipt { at: NOW, ..Receipt::default() };
        let (view, workers) =
            (ViewSummary::new(&document, pool, &receipt), Workers::new(&document, pool, Admitted::default()));
        let (members, ledger) = holding_at(&workers, rules.lane.key);
        let known = Known { view: Some(&view), workers: Some(&workers), can_be_steered: true };
        let nobody = Ledger::default();
        let held = Held { tenant: &nobody, pool: &ledger, members: &members };
        group.bench_function(format!("{count}_workers"), |bencher| {
            bencher.iter(|| decide(black_box(&ask()), rules, &turn, known, held, NOW).expect("there is room"));
        });
    }
    group.finish();
}

fn view_of(workers: usize) -> ViewDocument {
    let rank = serde_json::json!({"running": 4, "waiting": 0, "kv_used_blocks": 400, "kv_total_blocks": 4_000});
    let report = |number: usize| {
        let address = format!("10.0.{}.{}:8000", number / 250, number % 250);
        serde_json::json!({
            "address": address, "state": "up", "scraped_ms_ago": 5, "busy": false, "blocks_until_busy": 3_000, "ranks": [rank],
        })
    };
    let workers: Vec<_> = (0..workers).map(report).collect();
    let pools = serde_json::json!({"llama": {"saturation": 0.1, "workers": workers}});
    let document = serde_json::json!({"version": 1, "epoch": 1, "generation": 1, "pools": pools});
    serde_json::from_value(document).expect("it is a view")
}

/// Eight VMs that hold four requests at each worker.
fn holding_at(workers: &Workers, lane: LaneKey) -> (Members, Ledger) {
    let (mut members, mut ledger) = (Members::default(), Ledger::default());
    let holders: Vec<_> = (0..8).filter_map(|_| members.join()).collect();
    let amount = Amount { requests: 1, tokens: Tokens(160), blocks: Blocks(10) };
    for (number, seen) in workers.list.iter().cycle().take(4 * workers.list.len()).enumerate() {
        let (Some(holder), worker) = (holders.get(number % holders.len()), TallyKey::worker(seen.key)) else {
            continue;
        };
        ledger.admit(&members, *holder, lane, amount);
        ledger.tally(&members, *holder, worker, 1);
        if number < workers.list.len() {
            ledger.begin(&members, *holder, Begun { blocks: amount.blocks, worker: Some(worker), ..Begun::default() });
        }
    }
    (members, ledger)
}

fn record(criterion: &mut Criterion) {
    let policy = policy();
    let lane = rules(&policy).lane.key;
    let mut group = criterion.benchmark_group("record");
    for holders in VMS {
        let (mut members, mut ledger) = (Members::default(), Ledger::default());
        for _ in 0..holders {
            let holder = members.join().expect("there is a slot");
            ledger.admit(&members, holder, lane, Amount { requests: 1, tokens: Tokens(160), blocks: Blocks(10) });
        }
        let bytes = ledger.encode();
        group.bench_function(format!("encode_with_{holders}"), |bencher| bencher.iter(|| black_box(&ledger).encode()));
        group.bench_function(format!("decode_with_{holders}"), |bencher| {
            bencher.iter(|| Ledger::decode(black_box(&bytes)).expect("it is a ledger"));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(2));
    targets = admit_and_release, decision, steered_decision, record
}
criterion_main!(benches);
