//! Records of shared data, which another build or something else may have written.
//!
//! The first byte says of which kind the rest is to be read.
//! - What is read is written and read again as the same, and written again as the same bytes.
//! - Whatever numbers a record holds, everything that is asked of it or done to it has an answer.

use std::sync::Arc;

use admission_core::budget::{Rate, RateKey, Rates};
use admission_core::directory::Directory;
use admission_core::estimate::{Batch, Experience, Inputs};
use admission_core::family::Family;
use admission_core::keys::Keys;
use admission_core::ledger::{
    Amount, Backlog, Blocked, Cost, Evictable, Flow, FlowKey, Head, Kept, LaneKey, Large, Ledger, Part, Queued, Report,
    SubFlow, TallyKey, Yielding,
};
use admission_core::members::{Holder, Members, Observer};
use admission_core::record::Record;
use admission_core::store::{Store, Version};
use admission_core::units::{Blocks, Millis, Time, Tokens};
use admission_core::unnamed::Unnamed;
use admission_core::view::{Credit, Seen, Takes, ViewSummary, WorkerKey, Workers};
use admission_core::vm::Note;
use admission_core::{control, endpoint};
use endpoint::Open;

use crate::store::Memory;

/// See the head of this file.
pub fn target(data: &[u8]) {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind {
        b'L' => stable::<Ledger>(bytes).into_iter().for_each(|ledger| use_ledger(&ledger)),
        b'M' => stable::<Members>(bytes).into_iter().for_each(|members| use_members(&members)),
        b'E' => stable::<Experience>(bytes).into_iter().for_each(|experience| use_experience(&experience)),
        b'D' => drop(stable::<Directory>(bytes)),
        b'U' => stable::<Unnamed>(bytes).into_iter().for_each(|ledgers| use_unnamed(&ledgers)),
        b'W' => workers(bytes),
        b'T' => takes(bytes),
        b'S' => summary(bytes),
        b'N' => note(bytes),
        b'V' => others(bytes),
        _ => {}
    }
}

fn stable<R: Record + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<R> {
    let record = R::decode(bytes)?;
    let written = record.encode();
    let again = R::decode(&written).unwrap_or_else(|| panic!("{record:?} cannot be read back"));
    assert_eq!(again, record);
    assert_eq!(again.encode(), written, "{record:?}");
    Some(record)
}

const LANE: LaneKey = LaneKey(7);
const NOW: Time = Time(1 << 40);
const MOST: Amount = Amount { requests: u64::MAX, tokens: Tokens(u64::MAX), blocks: Blocks(u64::MAX) };

fn use_ledger(ledger: &Ledger) {
    let mut members = Members::default();
    let Some(holder) = members.join() else { return };
    let lanes: Vec<LaneKey> = ledger.live(&members).map(|(_, column)| column.lane).chain([LANE]).collect();
    let whole = ledger.held(&members);
    let _ = (ledger.budgets(NOW), ledger.kept(&members).count());
    for lane in &lanes {
        let part = ledger.held_by(*lane, &members);
        assert!(part.requests <= whole.requests && part.tokens <= whole.tokens && part.blocks <= whole.blocks);
        let _ = ledger.time_to_start(*lane, u64::MAX, u64::MAX, &members, NOW);
        let _ = ledger.time_between_starts(*lane, &members, NOW);
    }
    for (key, requests) in ledger.tallies(&members) {
        assert!(ledger.tallied(key, &members) >= requests);
    }
    let begun: Vec<_> = ledger.begun_at_workers(&members).collect();
    for begun in begun {
        assert!(ledger.unseen_at_worker(begun.worker, begun.since, &members) >= begun.blocks);
    }
    let heads: Vec<Head> = ledger.heads(&members).map(|(_, head)| *head).collect();
    let (all, own) = (ledger.asked_to_evict(&members), ledger.asked_of(holder));
    assert!(ledger.marked((1, 1), NOW).count() <= 1 << 20 && all.requests >= own.requests && all.blocks >= own.blocks);
    let mut changed = ledger.clone();
    change(&mut changed, &members, holder, &heads);
    let again = Ledger::decode(&changed.encode()).unwrap_or_else(|| panic!("{changed:?} cannot be read back"));
    assert_eq!(again, changed);
}

fn change(ledger: &mut Ledger, members: &Members, holder: Holder, heads: &[Head]) {
    let before = ledger.admitted().requests;
    ledger.admit(members, holder, LANE, MOST);
    assert!(ledger.admitted().requests >= before && ledger.held_by(LANE, members) == MOST);
    ledger.release(members, holder, LANE, MOST, Millis(u64::MAX));
    let rate = |burst| Rate { amount: 3, period: Millis(60_000), burst, knob: Arc::from("x"), key: None, waits: true };
    let tokens = Rate { key: Some(RateKey::of("x")), ..rate(u64::MAX) };
    let rates = Rates { requests: Some(rate(1)), tokens: Some(tokens) };
    ledger.spend(&rates, Cost { requests: u64::MAX, tokens: Tokens(1) }, NOW);
    ledger.give_back(&rates, Cost { requests: 1, tokens: Tokens(u64::MAX) }, ledger.spent(&rates), NOW);
    let (requests, tokens) = ledger.spent(&rates);
    for (rate, spent) in [(&rates.requests, requests), (&rates.tokens, tokens)] {
        let Some(rate) = rate else { continue };
        let standing = rate.standing(spent, NOW);
        assert!(standing.remaining <= standing.limit, "{standing:?}");
        let _ = rate.allows(spent, u64::MAX, NOW);
    }
    ledger.tally(members, holder, TallyKey(1), u64::MAX);
    assert_eq!(ledger.tallied(TallyKey(1), members), u64::MAX);
    ledger.untally(members, holder, TallyKey(1), 1);
    ledger.note_prompt_read(Tokens(u64::MAX), Millis(u64::MAX));
    ledger.note_prompt_read(Tokens(1), Millis(0));
    let _ = (ledger.time_to_read(Tokens(u64::MAX)), ledger.tokens_read_in_a_second());
    ledger.mark(WorkerKey(1), (1, 1), NOW);
    assert!(ledger.marked((1, 1), NOW).any(|worker| worker == WorkerKey(1)));
    let key = FlowKey(1);
    let flow = Flow { key, sub: Some(SubFlow::of(b"key")), weight: 0 };
    ledger.serve_flow(flow, u64::MAX, Tokens(u64::MAX));
    ledger.settle_flow(flow, Tokens(u64::MAX), Tokens(1), true);
    let _ = (ledger.starts(key, 1), ledger.finish_tag(key));
    let backlog = Backlog { requests: u64::MAX, tokens: Tokens(u64::MAX), bytes: u64::MAX, oldest: NOW, aside: 1 };
    let yielding = heads.iter().map(|head| Yielding { head: *head, blocks: Blocks(u64::MAX), steered: true }).collect();
    let (waiting, heads) = (vec![(LANE, backlog); 2], heads.to_vec());
    let large = vec![Large { flow: 1, bytes: u64::MAX }];
    let rated = vec![(LANE, backlog); 2];
    let queued = Queued { lane: LANE, cost: Cost { requests: u64::MAX, tokens: Tokens(1) } };
    ledger.publish_queued(members, holder, &[queued; 2]);
    assert_eq!(ledger.queued(members).filter(|(other, _)| *other == holder).count(), 2);
    let _ = ledger.rated(members).count();
    let kept = vec![Kept { lane: LANE, reason: ledger.kept(members).find_map(|kept| kept.reason) }];
    ledger.publish(
        members,
        holder,
        &Report { waiting, heads, yielding, large, for_a_class: true, demand: 3, kept, rated },
    );
    let _ = ledger.firsts(members).count();
    let _ = ledger.hold_line(NOW, Time(u64::MAX));
    assert!(!ledger.hold_line(NOW, NOW), "one at a time");
    ledger.end_hold(NOW, NOW);
    assert!(ledger.backlog(LANE, members).requests == u64::MAX && !ledger.nobody_waits());
    for at in [NOW, Time(u64::MAX), NOW] {
        ledger.note_start(members, LANE, LANE, u64::MAX, at);
        let _ = ledger.time_to_start(LANE, 1, 1, members, at);
    }
    ledger.note_refusal((1, 1));
    ledger.publish_blocked(
        members,
        holder,
        Some(Blocked { band: LANE, urgency: 1, part: Some(Part { flow: key, sub: SubFlow::of(b"key") }) }),
    );
    ledger.publish_evictable(
        members,
        holder,
        &[Evictable { lane: LANE, requests: u64::MAX, blocks: MOST.blocks, newest: NOW }; 2],
    );
    ledger.ask_of(members, holder, MOST);
    let asked = ledger.asked_of(holder);
    assert_eq!((asked.requests, asked.blocks, ledger.refused_under((1, 1))), (MOST.requests, MOST.blocks, true));
    ledger.note_evicted(u64::MAX, MOST.blocks);
    let _ = ledger.evicted_unseen(Credit::default());
}

fn use_members(members: &Members) {
    let mut changed = members.clone();
    if let Some(holder) = changed.join() {
        assert!(changed.counts(holder.epoch) && changed.beat(holder));
    }
    let mut observer = Observer::default();
    let silent = (0..20).map(|_| observer.tick(members)).last().unwrap_or_default();
    let mut fenced = members.clone();
    fenced.fence(&silent);
    assert!(fenced.iter().all(|member| !silent.contains(member)));
    assert!(Members::decode(&changed.encode()).as_ref() == Some(&changed));
}

fn use_unnamed(ledgers: &Unnamed) {
    let members = Members::default();
    for (name, ledger) in ledgers.iter() {
        let _ = (name.len(), ledger.is_idle(&members, NOW));
    }
}

fn use_experience(experience: &Experience) {
    let belief = experience.belief(Family::Generic.weights());
    assert!((0.1..=2.0).contains(&belief.tolerance), "{belief:?}");
    assert!(belief.weights.values().iter().all(|weight| weight.is_finite() && *weight >= 0.0), "{belief:?}");
    let _ = belief.weights.tokens(&Inputs::of_text(&Default::default()));
    for tenant in [0, 200] {
        for share in [0.0, 0.5, 1.0] {
            let _ = experience.quantile(tenant, share);
        }
    }
    let mut changed = experience.clone();
    changed.merge(&Batch::default());
    assert_eq!(&changed, experience, "nothing was observed");
}

fn workers(bytes: &[u8]) {
    let Some(workers) = Workers::decode(bytes) else { return };
    assert_eq!(workers.encode(), bytes);
    assert!(workers.list.iter().all(|worker| worker.live || !worker.free), "{workers:?}");
    assert_eq!(workers.clone().with_takes(bytes), workers, "workers are no record of their blocks");
    let free = workers.list.iter().filter(|seen| endpoint::looks_free(seen, &[]));
    let open: Vec<Open<'_>> = free.map(|seen| Open { seen, held: 1, blocks: Blocks(0) }).collect();
    let choice = endpoint::choose(open.iter(), Some(2));
    if let endpoint::Choice::Chosen { first, second } = choice {
        assert!(
            first.free && second.is_none_or(|second| second.free && second.address != first.address),
            "{workers:?}"
        );
    }
}

/// A record of what workers can take, of the document and of the first worker that it names itself.
fn takes(bytes: &[u8]) {
    let number = |at: usize| {
        let bytes = bytes.get(at..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    };
    let (Some(epoch), Some(generation), Some(key)) = (number(1), number(9), number(17)) else { return };
    let seen = Seen {
        address: "10.0.0.7:8000".to_owned(),
        key: WorkerKey(key),
        is_ip_and_port: true,
        free: true,
        live: true,
        load: 0,
        kv_permille: 0,
        takes: Takes::default(),
    };
    let list = Workers { epoch, generation, list: vec![seen] };
    let read = list.clone().with_takes(bytes);
    assert_eq!(list.clone().with_takes(&read.encode_takes()), read);
    if let Some(generation) = generation.checked_add(1) {
        let later = Workers { generation, ..list.clone() };
        assert_eq!(later.clone().with_takes(bytes), later, "of an earlier document");
    }
}

fn summary(bytes: &[u8]) {
    let Some(summary) = ViewSummary::decode(bytes) else { return };
    let written = summary.encode();
    let again = ViewSummary::decode(&written).unwrap_or_else(|| panic!("{summary:?} cannot be read back"));
    assert_eq!(again, summary);
    assert_eq!(again.encode(), written, "{summary:?}");
    let _ = (summary.freshness(NOW, Millis(1)), summary.kv.map(|kv| kv.all.used_share()));
}

fn note(bytes: &[u8]) {
    if let Some(note) = Note::decode(bytes) {
        assert_eq!(note.encode(), bytes);
    }
}

/// Under every key whose record nobody else reads.
fn others(bytes: &[u8]) {
    let keys = Keys::new("n");
    let store = Memory::default();
    for key in [keys.asker(), keys.process(), keys.view()] {
        assert!(store.write(&key, bytes, Version::Absent).is_ok());
    }
    let asks = control::pull::may_ask(&store, &keys, 3, NOW);
    assert!(asks.is_err() || asks == Ok(true) || control::pull::may_ask(&store, &keys, 3, Time(u64::MAX)) == Ok(true));
    let name = control::pull::process(&store, &keys, || (1, 2));
    assert!(name.is_err() || name.as_ref().is_ok_and(|name| name.len() == 32), "{name:?}");
    assert_eq!(control::pull::process(&store, &keys, || (3, 4)), name);
    let _ = control::state(&store, &keys, NOW);
}
