//! Those that wait: order, bounds, wake-ups, ends.

use serde_json::{Value, json};

use super::*;
use crate::control::{Receiver, Taken};
use crate::outcome::{Refusal, Retry};
use crate::queue::{Ticket, Waiter};
use crate::stream::StreamId;

mod aging;
mod bound;
mod corners;
mod eviction;
mod fit;
mod levels;
mod limits;
mod pools;
mod prompts;
mod rates;
mod reserves;
mod sub_flows;

/// Lanes with queues over a pool of some requests in flight.
fn proxy(max_in_flight: u64) -> Proxy {
    with(&json!({
        "lanes": [
            {"name": "high", "priority": 10, "queue": {"max_requests": 8, "max_wait": "2s"}},
            {"name": "low", "priority": 0, "queue": {"max_requests": 8, "max_wait": "10s"}, "aging": {"after": "5s"}},
            {"name": "bare", "priority": -5},
        ],
        "tenants": {"one": {"max_in_flight": 1}, "heavy": {"weight": 4}, "light": {}},
        "pools": [{"name": "p", "max_in_flight": max_in_flight}],
    }))
}

fn with(configuration: &Value) -> Proxy {
    let Ok(Plugin::Filter(policy)) = Plugin::parse(configuration.to_string().as_bytes()) else {
        panic!("{configuration}")
    };
    Proxy { policy: Rc::new(*policy), ..Proxy::new(1, 1) }
}

impl Proxy {
    fn waiter(&self, tenant: &str, lane: &str, tokens: u64) -> Waiter {
        let prompt = Tokens(tokens);
        let pool = Arc::clone(self.policy.pools().next().unwrap());
        Waiter {
            owner: StreamId::default(),
            ask: Ask {
                prompt,
                longest_prompt: prompt,
                output: Tokens(0),
                output_limit: None,
                prompt_read: true,
                sequences: 1,
            },
            limits: Arc::clone(self.policy.limits(tenant)),
            classes: pool.classes_of(None, prompt),
            pool,
            lane: Arc::clone(self.policy.line_up().iter().find(|other| other.name == lane).unwrap()),
            lanes: Arc::clone(self.policy.line_up()),
            tenant_key: self.policy.tenant_key(tenant).into(),
            can_be_steered: false,
            bytes: tokens,
            kept_bytes: tokens,
            deadline: None,
            sub: None,
            arrived: self.now,
        }
    }

    fn come(&self, vm: &mut Vm, waiter: Waiter) -> Result<Joined, Refusal> {
        match vm.admit(&*self.store, &waiter.request(), self.now) {
            Ok(admission) => Ok(Joined::Started(admission)),
            Err(refused) => vm.enqueue(&*self.store, waiter, refused, self.now),
        }
    }

    fn start(&self, vm: &mut Vm, tenant: &str, lane: &str) -> LeaseId {
        match self.come(vm, self.waiter(tenant, lane, 100)) {
            Ok(Joined::Started(admission)) => admission.lease,
            other => panic!("{other:?}"),
        }
    }

    fn wait(&self, vm: &mut Vm, tenant: &str, lane: &str) -> Ticket {
        match self.come(vm, self.waiter(tenant, lane, 100)) {
            Ok(Joined::Waiting(ticket)) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn refused(&self, vm: &mut Vm, waiter: Waiter) -> Refusal {
        match self.come(vm, waiter) {
            Err(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }

    fn end(&self, vm: &mut Vm, lease: LeaseId) {
        vm.release(&*self.store, lease, Usage::AsEstimated, self.now);
    }

    /// Carries messages until there are none; returns who has started, by VM.
    fn carry(&self, vms: &mut [&mut Vm]) -> Vec<(usize, Started)> {
        let mut started = Vec::new();
        for _ in 0..1_000 {
            let wakes: Vec<Wake> = vms.iter_mut().flat_map(|vm| vm.take_wakes()).collect();
            if wakes.is_empty() {
                return started;
            }
            for wake in wakes {
                let Some(place) = vms.iter().position(|vm| vm.slot() == Some(wake.slot)) else { continue };
                let note = Note::decode(&wake.note.encode()).unwrap();
                let progress = vms[place].woken(&*self.store, &note, self.now);
                assert_eq!(progress.refused, []);
                started.extend(progress.started.into_iter().map(|started| (place, started)));
            }
        }
        panic!("the messages never end");
    }

    fn waiting(&self) -> u64 {
        let members = store::read::<Members>(&*self.store, &self.policy.keys.members()).unwrap().0;
        let ledger = store::read::<Ledger>(&*self.store, &self.policy.keys.pool("p")).unwrap().0;
        ledger.waiting(&members).map(|(_, backlog)| backlog.requests).sum()
    }

    fn later(&mut self, ms: u64) {
        self.now = Time(self.now.0 + ms);
    }
}

#[test]
fn what_is_freed_in_one_vm_starts_the_waiter_of_another() {
    let proxy = proxy(1);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let lease = proxy.start(&mut a, "light", "low");
    let ticket = proxy.wait(&mut b, "light", "low");
    assert_eq!((proxy.waiting(), b.waiting()), (1, 1));
    assert_eq!(proxy.carry(&mut [&mut a, &mut b]), []);
    proxy.end(&mut a, lease);
    let wakes = a.take_wakes();
    assert_eq!(wakes, [Wake::start(b.slot().unwrap(), &proxy.policy.keys.pool("p").into())]);
    let progress = b.woken(&*proxy.store, &wakes[0].note, proxy.now);
    assert_eq!(progress.started.iter().map(|started| started.ticket).collect::<Vec<_>>(), [ticket]);
    assert_eq!((proxy.waiting(), proxy.pool().requests), (0, 1));
}

#[test]
fn a_lost_message_is_made_good_by_the_next_poll() {
    let proxy = proxy(1);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let lease = proxy.start(&mut a, "light", "low");
    let ticket = proxy.wait(&mut b, "light", "low");
    proxy.end(&mut a, lease);
    a.take_wakes();
    assert_eq!(b.poll(&*proxy.store, proxy.now).started[0].ticket, ticket);
    for note in
        [Note::Start("nowhere".into()), Note::Evict("nowhere".into()), Note::Start(proxy.policy.keys.pool("p").into())]
    {
        assert_eq!(
            b.woken(&*proxy.store, &note, proxy.now),
            Progress::default(),
            "late and misdirected ones do nothing"
        );
    }
}

#[test]
fn nobody_barges_past_a_waiter_of_any_vm() {
    let mut proxy = proxy(2);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let first = proxy.start(&mut a, "light", "low");
    proxy.start(&mut a, "light", "low");
    let waits = proxy.wait(&mut b, "light", "low");
    proxy.end(&mut a, first);
    proxy.later(1);
    let newcomer = proxy.wait(&mut a, "light", "low");
    let started = proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!(started.iter().map(|(vm, started)| (*vm, started.ticket)).collect::<Vec<_>>(), [(1, waits)]);
    a.leave(&*proxy.store, newcomer, proxy.now);
    assert_eq!(proxy.waiting(), 0);
}

/// Of the two tenants that wait here, only the other one's waiter is named to others.
#[test]
fn nobody_passes_one_of_its_own_kind_whose_tenant_has_got_back_tokens() {
    let mut proxy = proxy(5);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let settled = proxy.start(&mut a, "acme", "low");
    let mut others = vec![proxy.start(&mut a, "light", "low")];
    proxy.start(&mut a, "acme", "low");
    others.extend([(); 2].map(|()| proxy.start(&mut a, "light", "low")));
    let behind = proxy.wait(&mut b, "acme", "low");
    let named = proxy.wait(&mut b, "light", "low");
    proxy.later(1);
    a.release(&*proxy.store, settled, Usage::Served(Served::whole(Tokens(1), Tokens(0))), proxy.now);
    proxy.later(1);
    let newcomer = proxy.wait(&mut b, "acme", "low");
    let order = |started: Vec<(usize, Started)>| started.iter().map(|(_, one)| one.ticket).collect::<Vec<_>>();
    assert_eq!(order(proxy.carry(&mut [&mut a, &mut b])), [behind]);
    for lease in others {
        proxy.end(&mut a, lease);
    }
    assert_eq!(order(proxy.carry(&mut [&mut a, &mut b])), [newcomer, named]);
}

#[test]
fn a_higher_lane_goes_first_and_a_lane_without_a_queue_is_refused_behind_it() {
    let proxy = proxy(1);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let lease = proxy.start(&mut a, "light", "low");
    proxy.wait(&mut a, "light", "low");
    proxy.wait(&mut b, "light", "high");
    proxy.end(&mut a, lease);
    assert_eq!(proxy.refused(&mut a, proxy.waiter("light", "bare", 1)).reason, Reason::OthersFirst);
    let started = proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!(started.len(), 1);
    assert_eq!(started[0].0, 1, "the high lane waits in the other VM");
}

#[test]
fn a_waiter_climbs_as_it_ages() {
    let mut proxy = proxy(1);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let lease = proxy.start(&mut a, "light", "low");
    let aged = proxy.wait(&mut a, "light", "low");
    proxy.later(5_000);
    a.poll(&*proxy.store, proxy.now);
    proxy.later(1);
    proxy.wait(&mut b, "light", "high");
    proxy.end(&mut a, lease);
    let started = proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!(started[0].1.ticket, aged, "it has been in the high lane longer");
    assert_eq!(started[0].1.waited, Millis(5_001));
}

/// The golden vector of the published guide: a waiter of the third lane at 121 s is ordered as one of the second.
#[test]
fn a_tenant_at_its_own_cap_keeps_back_nobody_else() {
    let proxy = proxy(3);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let own = proxy.start(&mut a, "one", "low");
    let blocked = proxy.wait(&mut b, "one", "low");
    proxy.start(&mut b, "light", "low");
    proxy.start(&mut a, "light", "low");
    assert_eq!(proxy.refused(&mut a, proxy.waiter("one", "bare", 1)).reason, Reason::TenantRequests);
    proxy.end(&mut a, own);
    assert_eq!(proxy.refused(&mut a, proxy.waiter("one", "bare", 1)).reason, Reason::OwnFirst);
    let started = proxy.carry(&mut [&mut a, &mut b]);
    assert_eq!(started.iter().map(|(vm, started)| (*vm, started.ticket)).collect::<Vec<_>>(), [(1, blocked)]);
    let tenant = ledger_at(&*proxy.store, &proxy.policy.tenant_key("one")).unwrap();
    assert_eq!(tenant.blocked(b.members()).count(), 0);
}

#[test]
fn weights_share_out_tokens_within_a_lane() {
    let mut proxy = with(&json!({
        "lanes": [{"name": "low", "queue": {"max_requests": 100, "max_wait": "3600s"}}],
        "tenants": {"heavy": {"weight": 4}, "light": {}}, "pools": [{"name": "p", "max_in_flight": 4}],
    }));
    let mut vms = [proxy.vm(), proxy.vm(), proxy.vm()];
    let (mut tokens, mut running) = (BTreeMap::new(), std::collections::VecDeque::new());
    let mut who = BTreeMap::new();
    let mut random = fastrand::Rng::with_seed(7);
    let mut come = |proxy: &Proxy, vms: &mut [Vm; 3], who: &mut BTreeMap<_, _>, tenant: &'static str, place: usize| {
        let size = if tenant == "heavy" { random.u64(10..200) } else { random.u64(300..900) };
        match proxy.come(&mut vms[place], proxy.waiter(tenant, "low", size)).unwrap() {
            Joined::Waiting(ticket) => {
                who.insert((place, ticket), (tenant, size));
                None
            }
            Joined::Started(admission) => Some((place, admission.lease)),
        }
    };
    for index in 0..30 {
        running.extend(come(&proxy, &mut vms, &mut who, if index % 2 == 0 { "heavy" } else { "light" }, index % 3));
    }
    let mut starts = 0;
    while starts < 1_000 {
        let (place, lease) = running.pop_front().unwrap();
        proxy.later(10);
        proxy.end(&mut vms[place], lease);
        let [a, b, c] = &mut vms;
        let started = proxy.carry(&mut [a, b, c]);
        for (place, started) in started {
            let (tenant, size) = who.remove(&(place, started.ticket)).unwrap();
            *tokens.entry(tenant).or_insert(0) += size;
            starts += 1;
            running.push_back((place, started.admission.lease));
            running.extend(come(&proxy, &mut vms, &mut who, tenant, place));
        }
    }
    let ratio = tokens["heavy"] as f64 / tokens["light"] as f64;
    assert!((ratio / 4.0 - 1.0).abs() < 0.05, "{ratio} is not 4: {tokens:?}");
}

#[test]
fn a_full_queue_and_a_wait_that_would_be_too_long_are_refused_at_once() {
    let mut proxy = proxy(1);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    let lease = proxy.start(&mut a, "light", "low");
    proxy.later(4_000);
    proxy.end(&mut a, lease);
    proxy.start(&mut a, "light", "low");
    for index in 0..2 {
        proxy.wait(if index % 2 == 0 { &mut a } else { &mut b }, "light", "low");
    }
    let refusal = proxy.refused(&mut b, proxy.waiter("light", "low", 1));
    let limit = refusal.limit.clone().unwrap();
    assert_eq!((refusal.reason, limit.measured, limit.allowed), (Reason::WaitTooLong, 12_000, 10_000));
    let place = refusal.place.unwrap();
    assert_eq!((place.position, place.wait), (3, Some(Millis(12_000))));
    assert_eq!(refusal.retry, Retry::After(Millis(12_000)), "those before it have started then");
    let hurried = Waiter { deadline: Some(Millis(1_500)), ..proxy.waiter("light", "low", 1) };
    let refusal = proxy.refused(&mut b, hurried);
    assert_eq!((refusal.reason, refusal.limit.unwrap().allowed), (Reason::WaitTooLong, 1_500));
}

#[test]
fn in_a_full_queue_the_tenant_with_most_waiting_gives_way_to_others() {
    let mut proxy = proxy(1);
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    proxy.start(&mut a, "light", "low");
    let flood: Vec<Ticket> = (0..6).map(|_| proxy.wait(&mut a, "light", "low")).collect();
    let elsewhere = [proxy.wait(&mut b, "light", "low"), proxy.wait(&mut b, "light", "low")];
    assert_eq!(
        proxy.refused(&mut a, proxy.waiter("light", "low", 1)).reason,
        Reason::QueueFull,
        "it does not for its own"
    );
    proxy.wait(&mut a, "acme", "low");
    assert_eq!((a.waiting(), proxy.waiting()), (7, 8), "one is to be told");
    let told = a.poll(&*proxy.store, proxy.now).refused;
    assert_eq!(
        told.iter().map(|given_up| (given_up.ticket, given_up.refusal.reason)).collect::<Vec<_>>(),
        [(flood[5], Reason::QueueFull)]
    );
    proxy.wait(&mut a, "acme", "low");
    a.leave(&*proxy.store, flood[4], proxy.now);
    assert_eq!(a.poll(&*proxy.store, proxy.now).refused, [], "it has left before it was told");
    proxy.later(1);
    proxy.wait(&mut a, "acme", "low");
    assert_eq!(proxy.refused(&mut a, proxy.waiter("acme", "low", 1)).reason, Reason::QueueFull, "three of each here");
    b.leave(&*proxy.store, elsewhere[0], proxy.now);
    b.leave(&*proxy.store, elsewhere[1], proxy.now);
    assert_eq!(proxy.waiting(), 6);
}

#[test]
fn queues_are_bounded_over_all_vms() {
    let proxy = with(&json!({
        "lanes": [{"name": "low", "queue": {"max_requests": 4, "max_tokens": 1000, "max_bytes": "900", "max_wait": "9s"}}],
        "pools": [{"name": "p", "max_in_flight": 1}],
    }));
    let (mut a, mut b) = (proxy.vm(), proxy.vm());
    proxy.start(&mut a, "light", "low");
    let refuse = |vm: &mut Vm, tokens: u64, bytes: u64| {
        let refusal = proxy.refused(vm, Waiter { kept_bytes: bytes, ..proxy.waiter("light", "low", tokens) });
        assert_eq!(refusal.reason, Reason::QueueFull);
        let limit = refusal.limit.unwrap();
        (limit.knob.to_string(), limit.measured)
    };
    let first = proxy.wait(&mut a, "light", "low");
    proxy.wait(&mut b, "light", "low");
    assert_eq!(refuse(&mut a, 801, 0), ("lanes[low].queue.max_tokens".to_owned(), 1_001));
    assert_eq!(refuse(&mut b, 1, 701), ("lanes[low].queue.max_bytes".to_owned(), 901));
    proxy.wait(&mut b, "light", "low");
    proxy.wait(&mut a, "light", "low");
    assert_eq!(refuse(&mut b, 1, 1), ("lanes[low].queue.max_requests".to_owned(), 5));
    a.leave(&*proxy.store, first, proxy.now);
    proxy.wait(&mut b, "light", "low");
    assert_eq!(proxy.waiting(), 4);
}

#[test]
fn every_wait_ends() {
    let mut proxy = proxy(1);
    let mut vm = proxy.vm();
    proxy.start(&mut vm, "light", "low");
    let low = proxy.wait(&mut vm, "light", "low");
    let own = match proxy.come(&mut vm, Waiter { deadline: Some(Millis(700)), ..proxy.waiter("light", "low", 1) }) {
        Ok(Joined::Waiting(ticket)) => ticket,
        other => panic!("{other:?}"),
    };
    let mut ended = Vec::new();
    for _ in 0..2_100 {
        proxy.later(5);
        let progress = vm.poll(&*proxy.store, proxy.now);
        assert_eq!(progress.started, []);
        ended.extend(progress.refused.into_iter().map(|GivenUp { ticket, refusal, .. }| {
            assert_eq!(refusal.reason, Reason::QueueTimeout);
            (ticket, proxy.now.0 - 1_000_000, refusal.retry)
        }));
    }
    let advice = [700, 10_000].map(|waited| Retry::After(Millis(waited)));
    assert_eq!(
        ended,
        [(own, 700, advice[0]), (low, 10_000, advice[1])],
        "as long again: nothing has started meanwhile"
    );
    assert_eq!((proxy.waiting(), vm.waiting()), (0, 0));
}

#[test]
fn a_dead_vm_leaves_no_ghost_in_line() {
    let mut proxy = proxy(1);
    let (mut dead, mut alive) = (proxy.vm(), proxy.vm());
    let lease = proxy.start(&mut alive, "light", "low");
    proxy.wait(&mut dead, "light", "high");
    drop(dead);
    proxy.end(&mut alive, lease);
    assert_eq!(proxy.refused(&mut alive, proxy.waiter("light", "bare", 1)).reason, Reason::OthersFirst);
    proxy.ticks(&mut [&mut alive], DEAD_AFTER_TICKS + 1);
    assert_eq!(proxy.waiting(), 0);
    proxy.start(&mut alive, "light", "bare");
}

#[test]
fn a_fenced_vm_says_again_who_waits() {
    let mut proxy = proxy(1);
    let (mut stalled, mut other) = (proxy.vm(), proxy.vm());
    let lease = proxy.start(&mut other, "light", "low");
    let ticket = proxy.wait(&mut stalled, "light", "low");
    proxy.ticks(&mut [&mut other], DEAD_AFTER_TICKS + 1);
    assert_eq!(proxy.waiting(), 0, "fenced");
    proxy.ticks(&mut [&mut stalled, &mut other], 1);
    assert_eq!(proxy.waiting(), 1);
    proxy.end(&mut other, lease);
    let started = proxy.carry(&mut [&mut stalled, &mut other]);
    assert_eq!(started.iter().map(|(vm, started)| (*vm, started.ticket)).collect::<Vec<_>>(), [(0, ticket)]);
}

fn push(proxy: &Proxy, generation: u64, workers: &[bool], saturation: f64) -> Vec<Wake> {
    let workers: Vec<Value> = workers
        .iter()
        .enumerate()
        .map(|(index, busy)| {
            let address = format!("10.0.0.{index}:80");
            json!({"address": address, "state": "up", "scraped_ms_ago": 1, "busy": busy, "ranks": []})
        })
        .collect();
    take_view(proxy, generation, &json!({"saturation": saturation, "workers": workers}))
}

fn take_view(proxy: &Proxy, generation: u64, pool: &Value) -> Vec<Wake> {
    receive(proxy, generation, pool).wakes
}

fn receive(proxy: &Proxy, generation: u64, pool: &Value) -> Taken {
    let document = json!({"version": 1, "epoch": 1, "generation": generation, "pools": {"p": pool}});
    let control =
        br#"{"role": "control", "token_sha256": "0000000000000000000000000000000000000000000000000000000000000000"}"#;
    let Ok(Plugin::Control(control)) = Plugin::parse(control) else { panic!() };
    Receiver::of(&control).take(&*proxy.store, document.to_string().as_bytes(), proxy.now).unwrap()
}
