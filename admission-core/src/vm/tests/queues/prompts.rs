//! First tokens in time: prompts of lower lanes in front of a lane with a goal.

use super::*;
use crate::ask::Ask;

/// Tokens that a worker reads in a millisecond, as the proxy has learned.
const RATE: u64 = 20;

/// A chat lane that is to have its first token within a second, above one of documents.
fn with_a_goal() -> Proxy {
    with(&json!({
        "lanes": [
            {"name": "chat", "priority": 10, "ttft_goal": "1s", "queue": {"max_requests": 100, "max_wait": "10s"}},
            {"name": "docs", "queue": {"max_requests": 100, "max_wait": "30s"}},
            {"name": "bare", "priority": -5},
        ],
        "pools": [{"name": "p", "max_in_flight": 1_000}],
    }))
}

/// Requests whose first tokens come as they do from a worker of that rate, one after the other.
fn teach(proxy: &mut Proxy, vm: &mut Vm) {
    for prompt in [100, 2_000, 100, 4_000, 1_000] {
        let Ok(Joined::Started(admission)) = proxy.come(vm, proxy.waiter("acme", "chat", prompt)) else { panic!() };
        proxy.later(20 + prompt / RATE);
        vm.first_token(&*proxy.store, admission.lease, proxy.now);
        proxy.end(vm, admission.lease);
    }
}

/// Documents of 2,000 tokens that come together: the leases of those that start, and how many wait.
fn documents(proxy: &Proxy, vm: &mut Vm, count: usize) -> (Vec<LeaseId>, usize) {
    let mut started = Vec::new();
    for _ in 0..count {
        match proxy.come(vm, proxy.waiter("acme", "docs", 2_000)) {
            Ok(Joined::Started(admission)) => {
                vm.body_sent(&*proxy.store, admission.lease, false, proxy.now);
                started.push(admission.lease);
            }
            Ok(Joined::Waiting(_)) => {}
            Err(refusal) => panic!("{refusal}"),
        }
    }
    let waiting = count - started.len();
    (started, waiting)
}

fn ledger(proxy: &Proxy) -> Ledger {
    let pool = proxy.policy.pools().next().unwrap();
    store::read::<Ledger>(&*proxy.store, &pool.key).unwrap().0
}

/// Prompt tokens that the pool's record says are being read.
fn being_read(proxy: &Proxy, vm: &Vm) -> u64 {
    ledger(proxy).prompts_being_read(vm.members()).0
}

/// Tokens that a worker reads in a second by that record.
fn rate(proxy: &Proxy) -> u64 {
    ledger(proxy).tokens_read_in_a_second().unwrap()
}

#[test]
fn of_forty_documents_five_start_and_then_one_for_each_first_token() {
    let mut proxy = with_a_goal();
    let (mut one, mut other) = (proxy.vm(), proxy.vm());
    teach(&mut proxy, &mut one);
    let (mut running, waiting) = documents(&proxy, &mut one, 40);
    assert_eq!((running.len(), waiting), (5, 35), "10,000 tokens are half a second");
    let Ok(Joined::Started(chat)) = proxy.come(&mut other, proxy.waiter("acme", "chat", 50)) else {
        panic!("not bound")
    };
    other.first_token(&*proxy.store, chat.lease, Time(proxy.now.0 + 25));
    assert_eq!(proxy.carry(&mut [&mut one, &mut other]), [], "the chat's 50 tokens are no document's");
    for left in (0..35).rev() {
        proxy.later(100);
        let first = running.remove(0);
        one.first_token(&*proxy.store, first, proxy.now);
        let started = proxy.carry(&mut [&mut one, &mut other]);
        assert_eq!(started.len(), 1, "with {left} left");
        running.extend(started.iter().map(|(_, started)| started.admission.lease));
    }
    assert_eq!(being_read(&proxy, &one), 10_000);
    running.drain(..).for_each(|lease| proxy.end(&mut one, lease));
    assert_eq!(being_read(&proxy, &one), 0, "who ends without an answer has read nothing any more");
}

#[test]
fn who_finds_no_prompt_being_read_starts_however_long_its_own_is() {
    let mut proxy = with_a_goal();
    let mut vm = proxy.vm();
    teach(&mut proxy, &mut vm);
    let Ok(Joined::Started(long)) = proxy.come(&mut vm, proxy.waiter("acme", "docs", 100_000)) else { panic!() };
    let refusal = proxy.refused(&mut vm, proxy.waiter("acme", "bare", 2_000));
    assert_eq!(refusal.reason, Reason::PrefillBacklog);
    let limit = refusal.limit.unwrap();
    assert_eq!((&*limit.knob, limit.allowed), ("lanes[chat].ttft_goal", 500));
    assert!((5_000..5_300).contains(&limit.measured), "{}", limit.measured);
    assert_eq!(refusal.retry, Retry::After(Millis(limit.measured - 500)));
    vm.first_token(&*proxy.store, long.lease, proxy.now);
    proxy.come(&mut vm, proxy.waiter("acme", "bare", 2_000)).expect("nothing is being read");
}

#[test]
fn every_worker_of_the_view_reads() {
    let mut proxy = with_a_goal();
    let mut vm = proxy.vm();
    teach(&mut proxy, &mut vm);
    let worker =
        |port: u16| json!({"address": format!("10.0.0.1:{port}"), "state": "up", "scraped_ms_ago": 1, "busy": false});
    take_view(&proxy, 1, &json!({"workers": [worker(1), worker(2), worker(3)]}));
    assert_eq!(documents(&proxy, &mut vm, 40).0.len(), 13, "8,000 tokens of others for each worker, and its own 2,000");
    // However old the view is.
    proxy.later(60_000);
    let refusal = proxy.refused(&mut vm, proxy.waiter("acme", "bare", 2_000));
    assert_eq!((refusal.reason, refusal.limit.unwrap().measured / 10), (Reason::PrefillBacklog, 53));
    for (port, left) in [(1, 2_000), (2, 4_000)] {
        let mut other = with_a_goal();
        let mut vm = other.vm();
        teach(&mut other, &mut vm);
        take_view(&other, 1, &json!({"workers": [worker(1), worker(2)]}));
        for _ in 0..port {
            other.come(&mut vm, other.waiter("acme", "docs", 100_000)).expect("a worker reads nothing");
        }
        let refused = other.come(&mut vm, other.waiter("acme", "bare", left)).is_err();
        assert_eq!(refused, port == 2, "one worker is left, whatever the other reads");
    }
}

#[test]
fn nothing_is_bound_while_no_rate_is_known() {
    let proxy = with_a_goal();
    let mut vm = proxy.vm();
    assert_eq!(documents(&proxy, &mut vm, 40).1, 0);
    assert_eq!(being_read(&proxy, &vm), 80_000);
}

#[test]
fn a_prompt_whose_answer_comes_whole_counts_as_long_as_it_takes_to_read() {
    let mut proxy = with_a_goal();
    let mut vm = proxy.vm();
    teach(&mut proxy, &mut vm);
    let (running, _) = documents(&proxy, &mut vm, 5);
    running.iter().for_each(|lease| vm.body_sent(&*proxy.store, *lease, true, proxy.now));
    let mut left = Vec::new();
    for _ in 0..6 {
        proxy.later(100);
        vm.poll(&*proxy.store, Time(proxy.now.0 + 10));
        left.push(being_read(&proxy, &vm) / 2_000);
    }
    assert_eq!(left, [4, 3, 2, 1, 0, 0]);
    running.iter().for_each(|lease| vm.first_token(&*proxy.store, *lease, proxy.now));
    assert_eq!(being_read(&proxy, &vm), 0);
}

#[test]
fn a_prompt_whose_body_does_not_come_counts_for_a_second() {
    let mut proxy = with_a_goal();
    let mut vm = proxy.vm();
    teach(&mut proxy, &mut vm);
    let Ok(Joined::Started(slow)) = proxy.come(&mut vm, proxy.waiter("acme", "docs", 100_000)) else { panic!() };
    let refusal = proxy.refused(&mut vm, proxy.waiter("acme", "bare", 2_000));
    assert_eq!(refusal.reason, Reason::PrefillBacklog);
    proxy.later(1_000);
    vm.poll(&*proxy.store, proxy.now);
    assert_eq!(being_read(&proxy, &vm), 0);
    // From its end on the worker reads it, in no more time than that.
    proxy.later(60_000);
    vm.body_sent(&*proxy.store, slow.lease, false, proxy.now);
    assert_eq!(being_read(&proxy, &vm), 100_000);
    proxy.later(20 + 100_000 / RATE);
    vm.first_token(&*proxy.store, slow.lease, proxy.now);
    proxy.end(&mut vm, slow.lease);
    assert_eq!(being_read(&proxy, &vm), 0);
    assert!(
        (RATE * 900..RATE * 1_100).contains(&rate(&proxy)),
        "{}: the time of the upload is none of reading",
        rate(&proxy)
    );
}

#[test]
fn a_prompt_of_a_worker_that_hangs_counts_for_four_times_as_long_as_it_takes_and_a_second() {
    let mut proxy = with_a_goal();
    let mut vm = proxy.vm();
    teach(&mut proxy, &mut vm);
    let (running, _) = documents(&proxy, &mut vm, 1);
    proxy.later(1_395);
    vm.poll(&*proxy.store, proxy.now);
    assert_eq!(being_read(&proxy, &vm), 2_000);
    proxy.later(10);
    vm.poll(&*proxy.store, proxy.now);
    assert_eq!(being_read(&proxy, &vm), 0);
    let before = rate(&proxy);
    vm.first_token(&*proxy.store, running[0], proxy.now);
    proxy.end(&mut vm, running[0]);
    assert_eq!((being_read(&proxy, &vm), rate(&proxy)), (0, before), "it teaches nothing");
}

#[test]
fn a_head_that_its_own_prompt_keeps_back_is_not_passed_by_shorter_ones_of_lower_lanes() {
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "chat", "priority": 10, "ttft_goal": "1s"},
            {"name": "docs", "queue": {"max_requests": 100, "max_wait": "30s"}},
            {"name": "batch", "priority": -1, "queue": {"max_requests": 100, "max_wait": "30s"}},
        ],
        "pools": [{"name": "p", "max_in_flight": 1_000}],
    }));
    let (mut one, mut other) = (proxy.vm(), proxy.vm());
    teach(&mut proxy, &mut one);
    let mut running: Vec<LeaseId> = Vec::new();
    for _ in 0..9 {
        let Ok(Joined::Started(small)) = proxy.come(&mut one, proxy.waiter("acme", "batch", 1_000)) else { panic!() };
        running.push(small.lease);
    }
    let Ok(Joined::Waiting(large)) = proxy.come(&mut one, proxy.waiter("acme", "docs", 2_000)) else { panic!() };
    for vm in [&mut one, &mut other] {
        for _ in 0..5 {
            assert!(matches!(proxy.come(vm, proxy.waiter("b", "batch", 1_000)), Ok(Joined::Waiting(_))));
        }
    }
    proxy.later(10);
    assert_eq!(one.poll(&*proxy.store, proxy.now).started, []);
    assert_eq!(other.poll(&*proxy.store, proxy.now).started, []);
    one.first_token(&*proxy.store, running[0], proxy.now);
    let started = proxy.carry(&mut [&mut one, &mut other]);
    assert_eq!(started.iter().map(|(vm, one)| (*vm, one.ticket)).collect::<Vec<_>>(), [(0, large)]);
}

#[test]
fn the_lane_with_the_goal_passes_a_lower_lane_that_has_a_reserve() {
    let mut proxy = with(&json!({
        "lanes": [
            {"name": "chat", "priority": 10, "ttft_goal": "1s", "queue": {"max_requests": 9, "max_wait": "2s"}},
            {"name": "docs", "reserve": {"requests": 12, "lend": true}, "queue": {"max_requests": 100, "max_wait": "30s"}},
        ],
        "pools": [{"name": "p", "max_in_flight": 48}],
    }));
    let (mut one, mut other) = (proxy.vm(), proxy.vm());
    teach(&mut proxy, &mut one);
    proxy.come(&mut one, proxy.waiter("acme", "docs", 9_000)).expect("nothing is being read");
    let Ok(Joined::Waiting(_)) = proxy.come(&mut one, proxy.waiter("acme", "docs", 9_000)) else { panic!("too much") };
    for vm in [&mut one, &mut other] {
        assert!(matches!(proxy.come(vm, proxy.waiter("b", "chat", 50)), Ok(Joined::Started(_))));
    }
}

#[test]
fn proxies_that_share_a_pool_share_what_a_goal_leaves() {
    let mut proxy = with_a_goal();
    let mut vm = proxy.vm();
    teach(&mut proxy, &mut vm);
    let worker = json!({"address": "10.0.0.1:1", "state": "up", "scraped_ms_ago": 1, "busy": false});
    take_view(&proxy, 1, &json!({"workers": [worker], "other_proxies": 1}));
    assert_eq!(documents(&proxy, &mut vm, 9).0.len(), 2, "5,000 tokens for each");
}

#[test]
fn a_prompt_that_was_in_the_cache_says_nothing_of_those_that_are_not() {
    let mut proxy = with_a_goal();
    let mut vm = proxy.vm();
    teach(&mut proxy, &mut vm);
    let before = rate(&proxy);
    for (cached, teaches) in [(29_000, false), (1_000, true)] {
        let Ok(Joined::Started(one)) = proxy.come(&mut vm, proxy.waiter("acme", "chat", 30_000)) else { panic!() };
        proxy.later(30);
        vm.first_token(&*proxy.store, one.lease, proxy.now);
        let served = Served { cached: Tokens(cached), ..Served::whole(Tokens(30_000), Tokens(9)) };
        vm.release(&*proxy.store, one.lease, Usage::Served(served), proxy.now);
        assert_eq!(rate(&proxy) > before, teaches, "{cached} of 30,000");
    }
}

#[test]
fn what_is_answered_whole_before_it_was_to_be_counts_as_read() {
    let mut proxy = with_a_goal();
    let mut vm = proxy.vm();
    teach(&mut proxy, &mut vm);
    let read = |proxy: &Proxy| ledger(proxy).prompts_read();
    let (before, (running, _)) = (read(&proxy), documents(&proxy, &mut vm, 2));
    running.iter().for_each(|lease| vm.body_sent(&*proxy.store, *lease, true, proxy.now));
    vm.release(&*proxy.store, running[0], Usage::AsEstimated, proxy.now);
    vm.release(&*proxy.store, running[1], Usage::Nothing, proxy.now);
    assert_eq!((read(&proxy) - before, being_read(&proxy, &vm)), (2_000, 0), "an error has read nothing");
}

#[test]
fn a_body_that_shows_another_prompt_corrects_what_is_being_read() {
    let proxy = with_a_goal();
    let mut vm = proxy.vm();
    for (guess, read) in [(8_000, 1_000), (1_000, 8_000)] {
        let waiter = proxy.waiter("acme", "docs", guess);
        let guessed = Waiter { ask: Ask { prompt_read: false, ..waiter.ask }, ..waiter };
        let Ok(Joined::Started(admission)) = proxy.come(&mut vm, guessed) else { panic!() };
        let shown = proxy.waiter("acme", "docs", read);
        vm.correct(&*proxy.store, admission.lease, &shown.ask, shown.rules(), proxy.now).expect("there is room");
        assert_eq!(being_read(&proxy, &vm), read);
        proxy.end(&mut vm, admission.lease);
        assert_eq!(being_read(&proxy, &vm), 0);
    }
}

#[test]
fn prompts_of_a_thread_that_died_are_read_by_nobody() {
    let mut proxy = with_a_goal();
    let (mut dead, mut other) = (proxy.vm(), proxy.vm());
    teach(&mut proxy, &mut other);
    assert_eq!(documents(&proxy, &mut dead, 9).0.len(), 5);
    drop(dead);
    for _ in 0..12 {
        proxy.later(100);
        other.tick(&*proxy.store, proxy.now).unwrap();
    }
    assert_eq!(being_read(&proxy, &other), 0);
    assert_eq!(documents(&proxy, &mut other, 9).0.len(), 5);
}

#[test]
fn a_thread_that_was_taken_for_dead_counts_its_prompts_again() {
    let mut proxy = with_a_goal();
    let (mut slow, mut other) = (proxy.vm(), proxy.vm());
    assert_eq!(documents(&proxy, &mut slow, 3).0.len(), 3);
    documents(&proxy, &mut other, 1);
    for _ in 0..12 {
        proxy.later(100);
        other.tick(&*proxy.store, proxy.now).unwrap();
    }
    assert_eq!(being_read(&proxy, &other), 2_000);
    slow.tick(&*proxy.store, proxy.now).unwrap();
    other.tick(&*proxy.store, proxy.now).unwrap();
    assert_eq!(being_read(&proxy, &slow), 8_000);
}
