use std::rc::Rc;

use serde_json::{Value, json};

use super::*;
use crate::directory::Directory;
use crate::ledger::{Amount, LaneKey};
use crate::members::Members;
use crate::policy::Plugin;
use crate::store::memory::MemoryStore;
use crate::units::{Blocks, Tokens};
use crate::unnamed::update_at;

pub(super) fn control() -> Control {
    let json = format!(r#"{{"role":"control","token_sha256":"{}"}}"#, "00".repeat(32));
    let Ok(Plugin::Control(control)) = Plugin::parse(json.as_bytes()) else { panic!("control") };
    control
}

pub(super) fn view(epoch: u64, generation: u64, live: usize) -> Vec<u8> {
    let worker = json!({"address": "127.0.0.1:1", "state": "up", "scraped_ms_ago": 1, "busy": false});
    json!({"version": 1, "epoch": epoch, "generation": generation, "pools": {"p": {"workers": vec![worker; live]}}})
        .to_string()
        .into_bytes()
}

fn standing(store: &MemoryStore) -> (u64, u64, u32) {
    let summary = ViewSummary::decode(&store.read(&control().keys.view_of("p")).0.unwrap()).unwrap();
    (summary.epoch, summary.generation, summary.live_workers)
}

#[test]
fn generations_rise_within_an_epoch() {
    let (store, control) = (MemoryStore::default(), control());
    assert!(Receiver::of(&control).take(&store, &view(5, 1, 1), Time(0)).is_ok());
    assert!(Receiver::of(&control).take(&store, &view(5, 3, 2), Time(1)).is_ok());
    for generation in [3, 2, 0] {
        let Err(NotTaken::Older(refusal)) = Receiver::of(&control).take(&store, &view(5, generation, 9), Time(2))
        else {
            panic!()
        };
        assert_eq!((refusal.epoch, refusal.generation), (Some(5), Some(3)));
    }
    assert_eq!(standing(&store), (5, 3, 2));
}

#[test]
fn another_epoch_takes_over_when_higher_or_when_the_old_one_has_gone_silent() {
    let (store, control) = (MemoryStore::default(), control());
    Receiver::of(&control).take(&store, &view(5, 9, 1), Time(0)).unwrap();
    assert!(Receiver::of(&control).take(&store, &view(6, 1, 2), Time(1)).is_ok(), "a later start takes over at once");
    assert!(
        Receiver::of(&control).take(&store, &view(5, 10, 3), Time(5_001)).is_err(),
        "exactly `hold` old is not silent yet"
    );
    assert!(Receiver::of(&control).take(&store, &view(5, 10, 3), Time(5_002)).is_ok());
    assert!(
        Receiver::of(&control).take(&store, &view(5, 10, 4), Time(20_000)).is_err(),
        "silence excuses no repetition"
    );
    assert_eq!(standing(&store), (5, 10, 3));
}

#[test]
fn a_push_that_was_overtaken_leaves_the_newer_summary() {
    let (store, control) = (Rc::new(MemoryStore::default()), control());
    Receiver::of(&control).take(&*store, &view(5, 1, 1), Time(0)).unwrap();
    let (inner, rival) = (Rc::clone(&store), control.clone());
    store.before_write("view/p", move || assert!(Receiver::of(&rival).take(&*inner, &view(5, 3, 3), Time(0)).is_ok()));
    assert!(Receiver::of(&control).take(&*store, &view(5, 2, 2), Time(9)).is_ok());
    assert_eq!(standing(&store), (5, 3, 3));
}

fn workers(store: &MemoryStore) -> (u64, u64, usize) {
    let workers = Workers::decode(&store.read(&control().keys.workers_of("p")).0.unwrap()).unwrap();
    (workers.epoch, workers.generation, workers.list.len())
}

#[test]
fn the_workers_are_there_before_the_summary_that_counts_them() {
    let (store, control) = (Rc::new(MemoryStore::default()), control());
    Receiver::of(&control).take(&*store, &view(5, 1, 1), Time(0)).unwrap();
    let inner = Rc::clone(&store);
    store.before_write("view/p", move || {
        assert_eq!((workers(&inner), standing(&inner)), ((5, 2, 2), (5, 1, 1)));
    });
    Receiver::of(&control).take(&*store, &view(5, 2, 2), Time(1)).unwrap();
    assert_eq!((workers(&store), standing(&store)), ((5, 2, 2), (5, 2, 2)));
}

#[test]
fn a_push_that_was_overtaken_leaves_the_newer_workers() {
    let (store, control) = (Rc::new(MemoryStore::default()), control());
    Receiver::of(&control).take(&*store, &view(5, 1, 1), Time(0)).unwrap();
    let (inner, rival) = (Rc::clone(&store), control.clone());
    store.before_write("workers/p", move || {
        assert!(Receiver::of(&rival).take(&*inner, &view(5, 3, 3), Time(0)).is_ok())
    });
    assert!(Receiver::of(&control).take(&*store, &view(5, 2, 2), Time(9)).is_ok());
    assert_eq!((workers(&store), standing(&store)), ((5, 3, 3), (5, 3, 3)));
}

#[test]
fn without_its_workers_a_summary_is_not_written() {
    let (store, control) = (MemoryStore::default(), control());
    Receiver::of(&control).take(&store, &view(5, 1, 1), Time(0)).unwrap();
    store.fail_on("workers/p", store::MAX_ATTEMPTS);
    let not_taken = Receiver::of(&control).take(&store, &view(5, 2, 2), Time(1));
    assert!(matches!(not_taken, Err(NotTaken::Store(StoreError::Contention { .. }))), "{not_taken:?}");
    assert_eq!((workers(&store), standing(&store)), ((5, 1, 1), (5, 1, 1)));
    Receiver::of(&control).take(&store, &view(5, 3, 3), Time(2)).unwrap();
    assert_eq!((workers(&store), standing(&store)), ((5, 3, 3), (5, 3, 3)));
}

/// Some requests of two blocks each start in pool `p`.
fn admit(store: &MemoryStore, control: &Control, requests: u64) {
    let mut members = Members::default();
    let holder = members.join().unwrap();
    let amount = Amount { requests, tokens: Tokens(requests * 32), blocks: Blocks(requests * 2) };
    let charged = store::update(store, &control.keys.pool("p"), |pool: &mut Ledger| {
        pool.admit(&members, holder, LaneKey(1), amount);
        Ok::<(), ()>(())
    });
    charged.unwrap().unwrap();
}

#[test]
fn the_answer_tells_what_was_admitted() {
    let (store, control) = (MemoryStore::default(), control());
    admit(&store, &control, 2);
    let answer = Receiver::of(&control).take(&store, &view(1, 1, 1), Time(0)).unwrap().answer;
    assert_eq!(answer.admitted["p"], crate::view::Admitted { requests: 2, blocks: 4 });
    assert_eq!((answer.held["p"], answer.form), (2, crate::view::FORM));
}

#[test]
fn a_record_that_many_write_keeps_no_view_from_being_taken() {
    let (store, control) = (MemoryStore::default(), control());
    admit(&store, &control, 2);
    let mut receiver = Receiver::of(&control);
    receiver.take(&store, &view(1, 1, 1), Time(0)).unwrap();
    admit(&store, &control, 3);
    store.fail_on("pool/p", 1_000);
    let answer = receiver.take(&store, &view(1, 2, 1), Time(500)).unwrap().answer;
    assert_eq!((answer.admitted["p"].requests, answer.held["p"]), (2, 2), "those of the last answer");
}

#[test]
fn the_state_shows_how_full_a_pool_is() {
    let (store, control) = (MemoryStore::default(), control());
    let Ok(Plugin::Filter(policy)) = Plugin::parse(br#"{"pools": [{"name": "p", "max_in_flight": 1}]}"#) else {
        panic!("policy")
    };
    let listed = store::update(&store, &control.keys.directory(), |all: &mut Directory| {
        all.add(&Directory::of(&policy)).then_some(()).ok_or(())
    });
    listed.unwrap().unwrap();
    let shown = |generation: u64, pool: Value| {
        let view = json!({"version": 1, "epoch": 5, "generation": generation, "pools": {"p": pool}});
        Receiver::of(&control).take(&store, view.to_string().as_bytes(), Time(0)).unwrap();
        state(&store, &control.keys, Time(0)).unwrap()["pools"]["p"]["view"]["saturation"].clone()
    };
    assert_eq!(shown(1, json!({"workers": []})), Value::Null, "a sidecar that does not say");
    assert_eq!(shown(2, json!({"saturation": 1.25, "workers": []})), json!(1.25));
    assert_eq!(shown(3, json!({"saturation": -1, "workers": []})), Value::Null, "no pool is emptier than empty");
}

fn change(generation: u64, base: u64, pools: Value) -> Vec<u8> {
    json!({"version": 1, "epoch": 5, "generation": generation, "base": base, "pools": pools}).to_string().into_bytes()
}

fn addressed(address: &str, busy: bool) -> Value {
    json!({"address": address, "state": "up", "scraped_ms_ago": 1, "busy": busy})
}

fn whole(generation: u64, addresses: &[&str]) -> Vec<u8> {
    let workers: Vec<Value> = addresses.iter().map(|address| addressed(address, false)).collect();
    let pools = json!({"p": {"admitted": {"requests": 4, "blocks": 40}, "workers": workers}, "q": {"workers": []}});
    json!({"version": 1, "epoch": 5, "generation": generation, "pools": pools}).to_string().into_bytes()
}

#[test]
fn a_change_says_only_what_is_new() {
    let (store, control) = (MemoryStore::default(), control());
    let mut receiver = Receiver::of(&control);
    admit(&store, &control, 9);
    receiver.take(&store, &whole(1, &["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]), Time(0)).unwrap();
    let news = json!({"p": {
        "admitted": {"requests": 9, "blocks": 90}, "workers": [addressed("10.0.0.2:1", true), addressed("10.0.0.4:1", false)],
        "removed": ["10.0.0.3:1"],
    }});
    let answer = receiver.take(&store, &change(2, 1, news), Time(50)).unwrap().answer;
    assert_eq!(answer.admitted.keys().collect::<Vec<_>>(), ["p", "q"], "of pools without news too");
    let summary = ViewSummary::decode(&store.read(&control.keys.view_of("p")).0.unwrap()).unwrap();
    assert_eq!((summary.generation, summary.live_workers, summary.free_workers), (2, 3, 2));
    assert_eq!((summary.credit.admitted.requests, summary.received), (9, Time(50)));

    receiver.take(&store, &change(3, 2, json!({})), Time(900)).unwrap();
    let summary = ViewSummary::decode(&store.read(&control.keys.view_of("p")).0.unwrap()).unwrap();
    assert_eq!((summary.generation, summary.received), (3, Time(900)), "no news is what a heartbeat says");
    assert_eq!((summary.live_workers, summary.credit.admitted.requests), (3, 9));
    assert_eq!(workers(&store), (5, 3, 3));
}

#[test]
fn a_change_of_what_is_not_held_asks_for_the_whole_and_changes_nothing() {
    let (store, control) = (MemoryStore::default(), control());
    let mut receiver = Receiver::of(&control);
    receiver.take(&store, &whole(1, &["10.0.0.1:1"]), Time(0)).unwrap();
    let before = (standing(&store), workers(&store));
    let baseless = |receiver: &mut Receiver, body: &[u8]| match receiver.take(&store, body, Time(10)) {
        Err(NotTaken::Baseless(refusal)) => refusal.needs_whole,
        other => panic!("{other:?}"),
    };
    assert!(
        baseless(&mut Receiver::of(&control), &change(2, 1, json!({}))),
        "another thread, or a proxy that restarted"
    );
    assert!(baseless(&mut receiver, &change(9, 8, json!({}))), "a base that never came");
    assert_eq!((standing(&store), workers(&store)), before);
    receiver.take(&store, &whole(10, &["10.0.0.1:1", "10.0.0.2:1"]), Time(20)).unwrap();
    receiver.take(&store, &change(11, 10, json!({})), Time(30)).unwrap();
    assert_eq!(standing(&store), (5, 11, 2));
}

#[test]
fn an_older_sidecars_whole_does_not_make_the_newer_one_repeat_itself() {
    let (store, control) = (MemoryStore::default(), control());
    let mut receiver = Receiver::of(&control);
    receiver.take(&store, &whole(1, &["10.0.0.1:1"]), Time(0)).unwrap();
    assert!(matches!(receiver.take(&store, &view(4, 99, 9), Time(1)), Err(NotTaken::Older(_))));
    assert!(receiver.take(&store, &change(2, 1, json!({})), Time(2)).is_ok());
}

#[test]
fn a_change_that_was_overtaken_is_refused_like_any_other_document() {
    let (store, control) = (MemoryStore::default(), control());
    let (mut one, mut other) = (Receiver::of(&control), Receiver::of(&control));
    one.take(&store, &whole(1, &["10.0.0.1:1"]), Time(0)).unwrap();
    other.take(&store, &whole(3, &["10.0.0.1:1", "10.0.0.2:1"]), Time(1)).unwrap();
    assert!(matches!(one.take(&store, &change(2, 1, json!({})), Time(2)), Err(NotTaken::Older(_))));
    assert_eq!(standing(&store), (5, 3, 2));
}

#[test]
fn what_is_no_view_changes_nothing() {
    let (store, control) = (MemoryStore::default(), control());
    let wrong_version = String::from_utf8(view(1, 1, 1)).unwrap().replace("\"version\":1", "\"version\":2");
    for body in [
        "",
        "[]",
        "{",
        r#"{"version":1}"#,
        &wrong_version,
        r#"{"version":1,"epoch":1,"generation":1,"pools":{"a":{"workers":[],"removed":["w:1"]}}}"#,
        r#"{"version":1,"epoch":-1,"generation":1,"pools":{}}"#,
        r#"{"version":1,"epoch":1,"generation":1,"pools":{}}}"#,
        r#"{"version":1,"epoch":1,"generation":1,"pools":{}} {}"#,
        r#"{"version":1,"epoch":1,"generation":1,"pools":{"a/b":{"workers":[]}}}"#,
    ] {
        assert!(
            matches!(Receiver::of(&control).take(&store, body.as_bytes(), Time(0)), Err(NotTaken::Malformed(_))),
            "{body}"
        );
    }
    assert_eq!(store.keys(), Vec::<String>::new());
}

#[test]
fn the_state_names_what_is_held_and_how_old_the_view_is() {
    let (store, control) = (MemoryStore::default(), control());
    let names =
        br#"{"tenants": {"acme": {}}, "lanes": [{"name": "batch"}], "pools": [{"name": "p", "max_in_flight": 1}]}"#;
    let Ok(Plugin::Filter(policy)) = Plugin::parse(names) else { panic!("policy") };
    let listed = store::update(&store, &control.keys.directory(), |all: &mut Directory| {
        all.add(&Directory::of(&policy)).then_some(()).ok_or(())
    });
    listed.unwrap().unwrap();
    let joined = store::update(&store, &control.keys.members(), |members: &mut Members| {
        let holder = members.join().ok_or(())?;
        Ok::<_, ()>((holder, members.clone()))
    });
    let (holder, members) = joined.unwrap().unwrap();
    let keys = &control.keys;
    let places = [keys.pool("p"), keys.tenant("acme"), keys.shared_tenant(17), keys.unnamed_tenant("cust/7")];
    for place in places {
        let charged = update_at(&store, &place, |ledger| {
            ledger.charge(
                &members,
                holder,
                LaneKey::of("batch"),
                Amount { requests: 1, tokens: Tokens(32), blocks: Blocks(2) },
            );
            Ok::<(), ()>(())
        });
        charged.unwrap().unwrap();
    }
    Receiver::of(&control).take(&store, &view(5, 7, 1), Time(100)).unwrap();
    let state = state(&store, &control.keys, Time(350)).unwrap();
    assert_eq!(state["pools"]["p"]["held"], json!({"requests": 1, "tokens": 32, "blocks": 2}));
    assert_eq!(state["pools"]["p"]["columns"][0]["lane"], "batch");
    assert_eq!(state["tenants"]["acme"]["requests"], 1);
    assert_eq!(state["shared_tenants"]["17"]["requests"], 1);
    assert_eq!(state["unnamed_tenants"], json!({"cust/7": {"requests": 1, "tokens": 32, "blocks": 2}}));
    assert_eq!((&state["view"]["generation"], &state["view"]["age_ms"]), (&json!(7), &json!(250)));
    assert_eq!(state["members"].as_array().unwrap().len(), 1);
    // Members, directory, view, its summary, workers and their blocks of the pool, the pool's ledger and those of three tenants.
    assert_eq!(state["records"], 10);
}
