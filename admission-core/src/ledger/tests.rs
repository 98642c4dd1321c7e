use super::*;
use crate::budget::Rate;
use crate::members::Member;
use crate::outcome::Reason;
use crate::record::Record;
use crate::view::{Credit, WorkerKey};

const LANE: LaneKey = LaneKey(7);

fn amount(requests: u64, tokens: u64) -> Amount {
    Amount { requests, tokens: Tokens(tokens), blocks: Tokens(tokens).blocks_of(16) }
}

fn two_members() -> (Members, Holder, Holder) {
    let mut members = Members::default();
    let (a, b) = (members.join().unwrap(), members.join().unwrap());
    (members, a, b)
}

#[test]
fn release_restores() {
    let (members, a, b) = two_members();
    let mut ledger = Ledger::default();
    ledger.charge(&members, b, LANE, amount(1, 50));
    let before = ledger.held(&members);
    ledger.charge(&members, a, LANE, amount(1, 100));
    ledger.charge(&members, a, LaneKey(8), amount(2, 10));
    ledger.release(&members, a, LANE, amount(1, 100), Millis(5));
    ledger.release(&members, a, LaneKey(8), amount(2, 10), Millis(6));
    assert_eq!(ledger.held(&members), before);
}

#[test]
fn a_dead_epoch_counts_zero_and_its_column_goes_with_the_next_write() {
    let (mut members, a, b) = two_members();
    let mut ledger = Ledger::default();
    ledger.charge(&members, a, LANE, amount(3, 300));
    ledger.charge(&members, b, LANE, amount(1, 10));
    members.fence(&[Member { holder: a, heartbeat: 0 }]);
    assert_eq!(ledger.held(&members), amount(1, 10));
    ledger.charge(&members, b, LANE, amount(1, 6));
    let nobody_is_dead_yet = Members::default();
    assert_eq!(ledger.live(&nobody_is_dead_yet).count(), 1);
}

#[test]
fn a_release_under_a_fenced_epoch_takes_from_nobody() {
    let (mut members, a, b) = two_members();
    let mut ledger = Ledger::default();
    ledger.charge(&members, a, LANE, amount(1, 16));
    ledger.charge(&members, b, LANE, amount(1, 16));
    members.fence(&[Member { holder: a, heartbeat: 0 }]);
    let again = members.join().unwrap();
    assert_eq!(again.slot, a.slot);
    ledger.charge(&members, again, LANE, amount(1, 16));
    ledger.release(&members, a, LANE, amount(1, 16), Millis(1));
    assert_eq!(ledger.held(&members), amount(2, 32));
}

#[test]
fn survives_its_own_encoding_and_keeps_what_it_does_not_know() {
    let (members, a, b) = two_members();
    let mut ledger = Ledger::default();
    ledger.admit(&members, a, LANE, amount(1, 100));
    ledger.admit(&members, b, LaneKey(u32::MAX), amount(2, u64::MAX));
    ledger.release(&members, b, LaneKey(u32::MAX), amount(1, 5), Millis(10));
    ledger.tally(&members, a, TallyKey::class("long"), 1);
    ledger.mark(WorkerKey::of("10.0.0.1:80"), (1, 2), Time(3));
    ledger.serve_flow(Flow { key: FlowKey(7), sub: None, weight: 4 }, 9, Tokens(100));
    ledger.publish_blocked(&members, a, Some(Blocked { band: LANE, urgency: 5, part: None }));
    let head =
        Head { band: LANE, lane: LaneKey(8), flow: 2, tag: 3, urgency: 4, tokens: Tokens(5), bytes: 6, within: None };
    let backlog = Backlog { requests: 2, tokens: Tokens(20), bytes: 200, oldest: Time(9), aside: 1 };
    let report = Report { waiting: vec![(LANE, backlog)], heads: vec![head], for_a_class: true, ..Report::default() };
    ledger.publish(&members, b, &report);
    ledger.note_start(&members, LANE, LANE, 77, Time(8));
    ledger.note_start(&members, LaneKey(9), LANE, 78, Time(8));
    ledger.note_refusal((1, 2));
    ledger.publish_evictable(&members, a, &[Evictable { lane: LANE, requests: 1, blocks: Blocks(6), newest: Time(4) }]);
    ledger.ask_of(&members, a, Amount { requests: 1, blocks: Blocks(3), ..Amount::default() });
    ledger.note_evicted(2, Blocks(5));
    let mut bytes = ledger.encode();
    assert_eq!(Ledger::decode(&bytes), Some(ledger.clone()));
    bytes.extend_from_slice(&[77, 2, 0, 0, 0, 1, 2]);
    assert_eq!(Ledger::decode(&bytes).unwrap().encode(), bytes);
}

#[test]
fn what_is_in_flight_ends_the_faster_the_more_there_is() {
    let mut drain = Drain::default();
    assert_eq!(drain.time_for(1, 1), None);
    for _ in 0..50 {
        drain.note(Millis(600));
    }
    assert_eq!(drain.time_for(1, 3), Some(Millis(200)));
    assert_eq!(drain.time_for(3, 1), Some(Millis(1_800)));
    assert_eq!(drain.time_for(1, 0), Some(Millis(600)));
}

#[test]
fn a_vm_says_all_it_has_to_say_in_place_of_what_it_said() {
    let (mut members, a, b) = two_members();
    let mut ledger = Ledger::default();
    let report = |requests| {
        let backlog = Backlog { requests, oldest: Time(requests), ..Backlog::default() };
        Report { waiting: vec![(LANE, backlog)], ..Report::default() }
    };
    ledger.publish(&members, a, &report(3));
    ledger.publish(&members, a, &report(2));
    ledger.publish(&members, b, &report(5));
    assert_eq!(ledger.backlog(LANE, &members).requests, 7);
    assert_eq!(ledger.backlog(LANE, &members).oldest, Time(2));
    members.fence(&[Member { holder: a, heartbeat: 0 }]);
    assert_eq!(ledger.backlog(LANE, &members).requests, 5, "what a dead one said is void");
    let again = members.join().unwrap();
    ledger.publish(&members, again, &Report::default());
    ledger.publish(&members, b, &Report::default());
    assert!(ledger.nobody_waits());
}

#[test]
fn a_lane_moves_as_fast_as_its_waiters_start() {
    let (members, a, _) = two_members();
    let mut ledger = Ledger::default();
    let waits = |requests| {
        let backlog = Backlog { requests, ..Backlog::default() };
        Report { waiting: vec![(LANE, backlog)], ..Report::default() }
    };
    ledger.publish(&members, a, &waits(1));
    let mut last = Time(0);
    for step in 0..40 {
        assert_eq!(ledger.time_between_starts(LANE, &members, last).is_some(), step > 8, "the first measured nothing");
        last = Time(step * 250);
        ledger.note_start(&members, LANE, LANE, 0, last);
    }
    // Fading rounds.
    let is_steady = |gap: Option<Millis>| gap.is_some_and(|gap| (250..=252).contains(&gap.0));
    assert!(is_steady(ledger.time_between_starts(LANE, &members, last)));
    assert!(is_steady(ledger.time_to_start(LANE, 4, 4, &members, last).map(|wait| Millis(wait.0 / 4))));
    let head = Head { band: LANE, lane: LANE, flow: 0, tag: 0, urgency: 0, tokens: Tokens(0), bytes: 0, within: None };
    let in_line = Report { heads: vec![head], ..waits(1) };
    ledger.publish(&members, a, &in_line);
    let stalled = ledger.time_between_starts(LANE, &members, Time(last.0 + 60_000)).unwrap();
    assert!(stalled > Millis(5_000), "{stalled:?}: it has not moved for a minute");
    ledger.publish(&members, a, &waits(1));
    let quiet = ledger.time_between_starts(LANE, &members, Time(last.0 + 60_000));
    assert!(is_steady(quiet), "who waits stands aside, so the pause says nothing");
}

#[test]
fn a_lane_that_nobody_waits_for_between_two_starts_tells_nothing_of_its_pace() {
    let (members, a, b) = two_members();
    let waits = |lane, requests| {
        let backlog = Backlog { requests, ..Backlog::default() };
        Report { waiting: vec![(lane, backlog)], ..Report::default() }
    };
    let mut ledger = Ledger::default();
    ledger.publish(&members, b, &waits(LaneKey(8), 1));
    for step in 0..40 {
        ledger.publish(&members, a, &waits(LANE, 1));
        ledger.note_start(&members, LANE, LANE, 0, Time(step * 60_000));
        ledger.publish(&members, a, &waits(LANE, 0));
    }
    assert_eq!(ledger.time_between_starts(LANE, &members, Time(40 * 60_000)), None, "who waited has gone");
    for step in 0..40 {
        ledger.note_start(&members, LANE, LANE, 0, Time(step * 60_000));
    }
    assert_eq!(ledger.time_between_starts(LANE, &members, Time(40 * 60_000)), None, "nobody waited");
    for step in 0..40 {
        ledger.publish(&members, a, &waits(LANE, 2));
        ledger.note_start(&members, LANE, LANE, 0, Time(step * 250));
        ledger.publish(&members, a, &waits(LANE, 1));
    }
    assert!(ledger.time_between_starts(LANE, &members, Time(10_000)).is_some(), "somebody always waited");
}

#[test]
fn a_start_moves_the_virtual_time_of_its_band_alone_and_never_back() {
    let (members, ..) = two_members();
    let mut ledger = Ledger::default();
    ledger.note_start(&members, LANE, LaneKey(8), 500, Time(1));
    ledger.note_start(&members, LANE, LaneKey(8), 300, Time(2));
    assert_eq!((ledger.virtual_time(LaneKey(8)), ledger.virtual_time(LANE)), (500, 0));
}

#[test]
fn nothing_is_nothing_of_anything() {
    let one = |requests, tokens, blocks| Amount { requests, tokens: Tokens(tokens), blocks: Blocks(blocks) };
    assert!(Amount::default().is_zero());
    assert!([one(1, 0, 0), one(0, 1, 0), one(0, 0, 1)].into_iter().all(|amount| !amount.is_zero()));
    let aged = Backlog { requests: 5, oldest: Time(9), aside: 2, ..Backlog::default() };
    assert_eq!(
        (aged.in_line(), aged.plus(Backlog::default()).oldest, Backlog::default().plus(aged).oldest),
        (3, Time(9), Time(9))
    );
}

/// Processes of other builds may read the same records.
#[test]
fn keys_are_the_same_in_every_build() {
    assert_eq!(LaneKey::of("standard"), LaneKey(4_173_471_718));
    assert_eq!(FlowKey::of("sluice/1/pool/p", LaneKey(u32::MAX)), FlowKey(690_944_812_306_965_855));
}

#[test]
fn what_a_vm_could_evict_is_what_it_said_last() {
    let (members, a, b) = two_members();
    let mut ledger = Ledger::default();
    let could = |requests| [Evictable { lane: LANE, requests, blocks: Blocks(6), newest: Time(4) }];
    ledger.publish_evictable(&members, b, &could(5));
    ledger.publish_evictable(&members, a, &could(3));
    ledger.publish_evictable(&members, a, &could(2));
    let said: Vec<(Holder, u64)> = ledger.evictable(&members).map(|(holder, lane)| (holder, lane.requests)).collect();
    assert_eq!(said, [(b, 5), (a, 2)]);
    let before = ledger.clone();
    ledger.ask_of(&members, a, Amount { requests: 2, blocks: Blocks(3), ..Amount::default() });
    ledger.ask_of(&members, a, Amount::default());
    assert_eq!(ledger, before, "who is asked for nothing leaves nothing behind");
}

/// A ledger with rows of two VMs in every section.
fn full_ledger() -> Ledger {
    let (members, a, b) = two_members();
    let mut ledger = Ledger::default();
    ledger.admit(&members, a, LANE, amount(1, 100));
    ledger.admit(&members, b, LaneKey(9), amount(2, 300));
    ledger.admit(&members, a, LaneKey(9), amount(3, 50));
    ledger.release(&members, b, LaneKey(9), amount(1, 150), Millis(10));
    let rate = Rate {
        amount: 60,
        period: Millis(60_000),
        burst: 60,
        knob: "requests_per_minute".into(),
        key: None,
        waits: false,
    };
    let rates = Rates { requests: Some(rate.clone()), tokens: Some(rate) };
    ledger.spend(&rates, Cost { requests: 1, tokens: Tokens(2) }, Time(1_000));
    ledger.note_rates(&rates);
    ledger.spend(&rates.keyed(), Cost { requests: 3, tokens: Tokens(0) }, Time(1_000));
    ledger.tally(&members, a, TallyKey::class("long"), 1);
    ledger.tally(&members, b, TallyKey::bytes_of(LANE), 4);
    ledger.mark(WorkerKey::of("10.0.0.1:80"), (1, 2), Time(3));
    assert!(ledger.is_news_of(WorkerKey::of("10.0.0.1:80"), RefusedKey(11), Time(0), Time(3)));
    ledger.serve_flow(Flow { key: FlowKey(7), sub: Some(SubFlow::of(b"user")), weight: 4 }, 9, Tokens(100));
    ledger.publish_blocked(
        &members,
        a,
        Some(Blocked { band: LANE, urgency: 5, part: Some(Part { flow: FlowKey(7), sub: SubFlow::of(b"user") }) }),
    );
    ledger.publish_blocked(&members, b, Some(Blocked { band: LaneKey(9), urgency: 6, part: None }));
    let queued = |tokens| Queued { lane: LANE, cost: Cost { requests: 2, tokens: Tokens(tokens) } };
    ledger.note_prompt_read(Tokens(2_000), Millis(120));
    ledger.publish_queued(&members, a, &[queued(700), Queued { lane: LaneKey(9), ..queued(900) }]);
    let head = Head {
        band: LANE,
        lane: LaneKey(8),
        flow: 2,
        tag: 3,
        urgency: 4,
        tokens: Tokens(5),
        bytes: 6,
        within: Some((SubFlow::of(b"user"), 5)),
    };
    let backlog = Backlog { requests: 2, tokens: Tokens(20), bytes: 200, oldest: Time(9), aside: 1 };
    let report = Report { waiting: vec![(LANE, backlog)], heads: vec![head], for_a_class: true, ..Report::default() };
    ledger.publish(&members, b, &report);
    let yielding = vec![Yielding { head, blocks: Blocks(9), steered: true }];
    let (heads, large) = (vec![head, Head { tag: 8, ..head }], vec![Large { flow: 2, bytes: 300 }]);
    let kept = vec![Kept { lane: LANE, reason: Some(Reason::TenantRequests) }, Kept { lane: LaneKey(9), reason: None }];
    ledger.publish(
        &members,
        a,
        &Report { heads, yielding, large, kept, rated: vec![(LANE, backlog)], demand: 3, ..report },
    );
    assert!(ledger.hold_line(Time(70), Time(80)));
    ledger.note_start(&members, LANE, LANE, 77, Time(8));
    ledger.note_climbed(true);
    ledger.note_refusal((1, 2));
    ledger.publish_evictable(&members, a, &[Evictable { lane: LANE, requests: 1, blocks: Blocks(6), newest: Time(4) }]);
    ledger.ask_of(&members, a, Amount { requests: 1, blocks: Blocks(3), ..Amount::default() });
    ledger.acknowledge(&members, 0, Time(50)).unwrap();
    for (holder, blocks) in [(a, 4), (b, 5)] {
        let since = ledger.acknowledged();
        let worker = (holder == a).then(|| TallyKey::worker(WorkerKey(11)));
        ledger.begin(&members, holder, Begun { since, blocks: Blocks(blocks), tokens: Tokens(60), bytes: 7, worker });
    }
    ledger.note_evicted(1, Blocks(5));
    ledger
}

#[test]
fn evicted_requests_are_one_row_for_the_same_answers_to_views() {
    let mut ledger = Ledger::default();
    ledger.note_evicted(0, Blocks(5));
    let size = ledger.encode().len();
    for _ in 1..1_000 {
        ledger.note_evicted(0, Blocks(5));
    }
    assert_eq!(ledger.encode().len(), size, "no view comes that has seen them");
    assert_eq!((ledger.evicted_unseen(Credit::default()).requests, ledger.evicted()), (1_000, 1_000));
}

#[test]
fn what_a_view_has_not_seen_is_what_began_since_its_answer_and_is_held() {
    let (mut members, a, b) = two_members();
    let mut ledger = Ledger::default();
    let start = |ledger: &mut Ledger, members: &Members, holder: Holder| {
        let begun =
            Begun { since: ledger.acknowledged(), blocks: Blocks(10), tokens: Tokens(160), bytes: 1, worker: None };
        ledger.admit(members, holder, LANE, amount(1, 160));
        ledger.begin(members, holder, begun);
        begun
    };
    let unseen = |ledger: &Ledger, members: &Members, credit| {
        let Unseen { requests, blocks, tokens, bytes } = ledger.unseen(credit, members);
        assert_eq!((tokens.0, bytes), (blocks.0 * 16, blocks.0 / 10));
        (requests, blocks.0)
    };
    let first = start(&mut ledger, &members, a);
    let early = ledger.acknowledge(&members, 0, Time(100)).unwrap();
    start(&mut ledger, &members, b);
    assert_eq!(ledger.acknowledge(&members, 0, Time(119)), Err(early), "an answer was just sent");
    let second = start(&mut ledger, &members, a);
    let late = ledger.acknowledge(&members, 0, Time(120)).unwrap();
    assert_eq!((unseen(&ledger, &members, early), unseen(&ledger, &members, late)), ((2, 20), (0, 0)));
    ledger.release(&members, a, LANE, amount(1, 160), Millis(5));
    ledger.unbegin(&members, a, first);
    assert_eq!(
        unseen(&ledger, &members, early),
        (1, 20),
        "its blocks were in the scrape, and the next one shows them free"
    );
    assert_eq!(unseen(&ledger, &members, late), (-1, 0));
    let restarted = Credit { admitted: Admitted { requests: 900, blocks: 9_000 }, held: Some(90) };
    assert_eq!(
        unseen(&ledger, &members, restarted),
        (2, 20),
        "a view of a proxy that was here before has seen nothing"
    );
    members.fence(&[Member { holder: b, heartbeat: 0 }]);
    assert_eq!(unseen(&ledger, &members, early), (0, 10), "what a dead VM held is void");
    ledger.acknowledge(&members, late.admitted.requests, Time(200)).unwrap();
    ledger.unbegin(&members, a, second);
    assert_eq!(unseen(&ledger, &members, early), (0, 0), "every view that comes has seen those");
}

#[test]
fn blocks_that_a_view_has_not_seen_are_known_by_worker() {
    let (mut members, a, b) = two_members();
    let mut ledger = Ledger::default();
    let [here, there] = [1, 2].map(|key| TallyKey::worker(WorkerKey(key)));
    let mut start = |holder, blocks, worker| {
        let (since, tokens) = (ledger.acknowledged(), Tokens(16 * blocks));
        let begun = Begun { since, blocks: Blocks(blocks), tokens, bytes: 0, worker };
        ledger.admit(&members, holder, LANE, amount(1, 16 * blocks));
        ledger.begin(&members, holder, begun);
        begun
    };
    let first = start(a, 3, Some(here));
    start(b, 4, Some(here));
    start(b, 5, Some(there));
    start(a, 6, None);
    let at = |ledger: &Ledger, members: &Members, credit| {
        let seen = ledger.seen_at_worker(credit, None);
        [here, there].map(|worker| ledger.unseen_at_worker(worker, seen, members).0)
    };
    assert_eq!(at(&ledger, &members, Credit::default()), [7, 5]);
    ledger.unbegin(&members, a, Begun { blocks: Blocks(1), ..first });
    assert_eq!(at(&ledger, &members, Credit::default()), [6, 5], "it needs one less than was thought");
    ledger.unbegin(&members, a, Begun { blocks: Blocks(2), ..first });
    assert_eq!(at(&ledger, &members, Credit::default()), [4, 5]);
    let credit = ledger.acknowledge(&members, 0, Time(100)).unwrap();
    assert_eq!(at(&ledger, &members, credit), [0, 0], "the scrapes of a later view have seen all of it");
    members.fence(&[Member { holder: b, heartbeat: 0 }]);
    assert_eq!(at(&ledger, &members, Credit::default()), [0, 0], "what a dead VM held is void");
}

/// Builds of the last release and of the next read and write the same records while one takes over from the other.
#[test]
fn records_are_the_same_bytes_in_every_build() {
    let bytes = full_ledger().encode();
    let mut written = String::new();
    let mut rest = bytes.as_slice();
    while let Some((tag, after)) = rest.split_first() {
        let (length, after) = after.split_first_chunk::<4>().unwrap();
        let (body, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
        written.push_str(&format!("{tag}: {hex}\n"));
        rest = after;
    }
    assert_eq!(written, include_str!("golden.txt"));
    assert_eq!(Ledger::decode(&bytes), Some(full_ledger()));
}
