//! The core through its public face where `usize` has 32 bits, as it has in the filter.
#![cfg(target_family = "wasm")]

use std::cell::RefCell;
use std::collections::BTreeMap;

use admission_core::arrival::Arrival;
use admission_core::decide::Rules;
use admission_core::estimate::Estimator;
use admission_core::intake::{Intake, Next, Read};
use admission_core::ledger::Ledger;
use admission_core::members::Members;
use admission_core::outcome::Reason;
use admission_core::policy::{Plugin, Policy, Route};
use admission_core::request::{Api, Scanner};
use admission_core::store::{self, Conflict, Store, Version};
use admission_core::stream::StreamId;
use admission_core::terms::Terms;
use admission_core::units::{Time, Tokens};
use admission_core::vm::{LeaseId, Request, Usage, Vm};
use wasm_bindgen_test::wasm_bindgen_test;

#[derive(Default)]
struct Memory(RefCell<BTreeMap<String, (Vec<u8>, u32)>>);

impl Store for Memory {
    fn read(&self, key: &str) -> (Option<Vec<u8>>, Version) {
        match self.0.borrow().get(key) {
            Some((value, version)) => (Some(value.clone()), Version::Written(*version)),
            None => (None, Version::Absent),
        }
    }

    fn write(&self, key: &str, value: &[u8], expected: Version) -> Result<(), Conflict> {
        if self.read(key).1 != expected {
            return Err(Conflict);
        }
        let next = match expected {
            Version::Absent => 1,
            Version::Written(version) => version + 1,
        };
        self.0.borrow_mut().insert(key.to_owned(), (value.to_vec(), next));
        Ok(())
    }
}

fn policy() -> Policy {
    let json = br#"{"tenants": {"acme": {"max_in_flight": 3, "max_tokens_in_flight": 20000000000}},
        "pools": [{"name": "p", "max_in_flight": 9, "max_sequences": 10000000}, {"name": "q", "models": ["q"], "max_in_flight": 9}]}"#;
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json) else { panic!("policy") };
    *policy
}

/// Takes a request from its headers to its lease.
fn admit(vm: &mut Vm, memory: &Memory, policy: &Policy, body: &str) -> Result<LeaseId, Reason> {
    let arrival = Arrival {
        tenant: "acme".into(),
        asked_lane: None,
        objectives: Vec::new(),
        path: "/v1/completions".into(),
        api: Api::Completions,
        body_bytes: None,
        encoded: false,
        says_json: true,
        wrong_key: false,
        tier: None,
        spoofed: false,
        ttft_deadline: None,
        sub: None,
        no_queue: false,
    };
    let terms = Terms::of(policy, &arrival, &Route::default());
    let mut intake = Intake::new(arrival, terms, policy, Scanner::default());
    let next = match intake.body(body.as_bytes(), true, policy) {
        Read::Weigh(pool) => intake.weigh(&Estimator::unlearned(&pool, None), policy),
        Read::Known(next) => next,
    };
    let (ask, pool) = match next {
        Next::Decide(ask, pool) => (ask, pool),
        Next::Refuse(refusal) => return Err(refusal.reason),
        other => panic!("{other:?}"),
    };
    let (lane, classes) = (intake.lane(policy), intake.classes(&pool, &ask));
    let lanes = policy.line_up();
    let rules = Rules { tenant: policy.limits("acme"), pool: &pool, lane, lanes, classes: &classes };
    let tenant_key = &policy.tenant_key("acme");
    let request = Request {
        owner: StreamId(1),
        ask,
        rules,
        tenant_key,
        can_be_steered: true,
        bytes: 0,
        deadline: None,
        sub: None,
    };
    vm.admit(memory, &request, Time(u64::from(u32::MAX) * 5))
        .map(|admission| admission.lease)
        .map_err(|refusal| refusal.reason)
}

fn held(memory: &Memory, key: &str, policy: &Policy) -> (u64, Tokens) {
    let members: Members = store::read(memory, &policy.keys.members()).unwrap().0;
    let ledger: Ledger = store::read(memory, key).unwrap().0;
    let held = ledger.held(&members);
    (held.requests, held.tokens)
}

#[wasm_bindgen_test]
fn amounts_beyond_four_gibi_are_counted_exactly() {
    assert_eq!(usize::BITS, 32);
    let (memory, policy) = (Memory::default(), policy());
    let mut vm = Vm::new(policy.keys.clone());
    // 512 expected tokens for each of 8,388,600 answers: just below 2^32 a request, three of them far above it.
    let body = r#"{"prompt": "x", "n": 8388600}"#;
    let leases: Vec<_> = (0..3).map(|_| admit(&mut vm, &memory, &policy, body).unwrap()).collect();
    let (requests, tokens) = held(&memory, &policy.tenant_key("acme"), &policy);
    assert!(requests == 3 && tokens > Tokens(3 * 4_294_000_000), "{tokens:?}");
    assert_eq!(admit(&mut vm, &memory, &policy, body), Err(Reason::TenantRequests));
    for lease in leases {
        vm.release(&memory, lease, Usage::AsEstimated, Time(u64::from(u32::MAX) * 6));
    }
    assert_eq!(held(&memory, &policy.tenant_key("acme"), &policy), (0, Tokens(0)));
    assert_eq!(held(&memory, &policy.keys.pool("p"), &policy), (0, Tokens(0)));
}

#[wasm_bindgen_test]
fn pools_sizes_and_malformed_bodies_are_told_apart_as_on_64_bits() {
    let (memory, policy) = (Memory::default(), policy());
    let mut vm = Vm::new(policy.keys.clone());
    assert!(admit(&mut vm, &memory, &policy, r#"{"model": "q", "prompt": [1, 2]}"#).is_ok());
    assert_eq!(held(&memory, &policy.keys.pool("q"), &policy), (1, Tokens(514)));
    assert_eq!(admit(&mut vm, &memory, &policy, r#"{"prompt": 1} 2"#), Err(Reason::Malformed));
    assert_eq!(admit(&mut vm, &memory, &policy, r#"{"n": 18446744073709551615}"#), Err(Reason::Oversize));
}
