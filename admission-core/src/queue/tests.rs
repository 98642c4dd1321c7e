//! The queue against a list that is looked through from end to end.

use std::sync::Arc;

use super::*;
use crate::ask::Ask;
use crate::policy::{Plugin, Policy};
use crate::stream::StreamId;
use crate::units::{Millis, Tokens};

const TENANTS: [&str; 3] = ["a", "b", "c"];
const PATIENCE_OF_HIGH_MS: u64 = 2_000;

fn policy() -> Policy {
    let json = r#"{
        "lanes": [
            {"name": "high", "priority": 10, "queue": {"max_wait": "2s"}},
            {"name": "middle", "priority": 5, "queue": {"max_wait": "10s", "order": "shortest_first"}, "aging": {"after": "1s"}},
            {"name": "low", "priority": 0, "queue": {"max_wait": "20s", "order": "edf"}, "aging": {"after": "1s", "to": "middle"}}
        ],
        "tenants": {"a": {"weight": 4}, "b": {}, "c": {}},
        "pools": [{"name": "p", "max_in_flight": 1,
                   "classes": [{"name": "long", "min_prompt_tokens": 500, "max_in_flight": 1}]}]}"#;
    match Plugin::parse(json.as_bytes()) {
        Ok(Plugin::Filter(policy)) => *policy,
        other => panic!("{other:?}"),
    }
}

fn waiter(policy: &Policy, random: &mut fastrand::Rng, now: Time) -> Waiter {
    let prompt = Tokens(random.u64(1..1_000));
    let pool = Arc::clone(policy.only_pool().unwrap());
    let tenant = TENANTS[random.usize(..TENANTS.len())];
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
        limits: Arc::clone(policy.limits(tenant)),
        classes: pool.classes_of(None, prompt),
        pool,
        lane: Arc::clone(policy.line_up().at(random.usize(..3))),
        lanes: Arc::clone(policy.line_up()),
        tenant_key: tenant.into(),
        can_be_steered: false,
        bytes: prompt.0 * 4,
        kept_bytes: prompt.0 * 4,
        deadline: random.bool().then(|| Millis(random.u64(100..5_000))),
        sub: None,
        arrived: now,
    }
}

/// Where a flow stands: the position of its band, the lane that its waiters came for, and whose they are.
type Place = (usize, LaneKey, FlowId);

/// What the queue must say, each time from all that wait.
#[derive(Default)]
struct Plain {
    waiting: Vec<(Ticket, Waiter, Time)>,
    places: BTreeMap<Ticket, Place>,
    flows: BTreeMap<Place, (u64, Option<Aside>)>,
}

impl Plain {
    fn put(&mut self, ticket: Ticket, waiter: &Waiter, tag: u64, aside: Option<Aside>, now: Time) {
        let classes: Rc<[TallyKey]> = waiter.classes.iter().map(|class| class.key).collect();
        let place = (band_of(waiter, now), waiter.lane.key, (Rc::clone(&waiter.tenant_key), classes));
        let stands = self.flows.get(&place).map_or(aside, |(_, aside)| *aside);
        self.flows.insert(place.clone(), (tag, stands));
        self.places.insert(ticket, place);
    }

    fn forget(&mut self, ticket: Ticket) {
        self.waiting.retain(|(other, ..)| *other != ticket);
        self.leave_place(ticket);
    }

    fn leave_place(&mut self, ticket: Ticket) {
        let place = self.places.remove(&ticket).unwrap();
        if !self.places.values().any(|other| *other == place) {
            self.flows.remove(&place);
        }
    }

    fn climb(&mut self, now: Time, tag: u64) {
        // In the order of their climbing, and those of one instant in that of their coming.
        let mut climbing: Vec<_> = self
            .waiting
            .iter()
            .filter(|(ticket, waiter, _)| band_of(waiter, now) != self.places[ticket].0)
            .map(|(ticket, waiter, _)| (waiter.arrived, *ticket, waiter.clone()))
            .collect();
        climbing.sort_by_key(|(arrived, ticket, _)| (*arrived, *ticket));
        for (_, ticket, waiter) in climbing {
            self.leave_place(ticket);
            self.put(ticket, &waiter, tag, None, now);
        }
    }

    /// Band, lane, tag, urgency and ticket of the first waiter of every flow.
    fn firsts(&self) -> Vec<(&Place, u64, u64, Ticket)> {
        let firsts = self.flows.iter().map(|(place, (tag, _))| {
            let own = self.waiting.iter().filter(|(ticket, ..)| self.places[ticket] == *place);
            let (urgency, ticket) = own.map(|(ticket, waiter, _)| (waiter.urgency(), *ticket)).min().unwrap();
            (place, *tag, urgency, ticket)
        });
        firsts.collect()
    }

    fn candidates(&self) -> BTreeMap<(usize, LaneKey), Ticket> {
        let mut in_line = self.firsts();
        in_line.retain(|(place, ..)| self.flows[*place].1.is_none());
        in_line.sort_by_key(|(place, tag, urgency, _)| std::cmp::Reverse((*tag, *urgency, place.2.clone())));
        in_line.into_iter().map(|(place, _, _, ticket)| ((place.0, place.1), ticket)).collect()
    }

    fn blocked(&self, tenant: &str) -> Option<(usize, u64)> {
        let firsts = self.firsts().into_iter();
        let aside = firsts.filter(|(place, ..)| self.flows[*place].1 == Some(Aside::Tenant) && *place.2.0 == *tenant);
        aside.map(|(place, _, urgency, _)| (place.0, urgency)).min()
    }

    fn backlog(&self, lane: LaneKey) -> Option<Backlog> {
        let own: Vec<_> = self.waiting.iter().filter(|(_, waiter, _)| waiter.lane.key == lane).collect();
        Some(Backlog {
            requests: own.len() as u64,
            tokens: Tokens(own.iter().map(|(_, waiter, _)| waiter.ask.prompt.0).sum()),
            bytes: own.iter().map(|(_, waiter, _)| waiter.bytes).sum(),
            oldest: own.iter().map(|(_, waiter, _)| waiter.arrived).min()?,
            aside: own.iter().filter(|(ticket, ..)| self.flows[&self.places[ticket]].1.is_some()).count() as u64,
        })
    }
}

/// One lane up for each second, `low` no higher than `middle`.
fn band_of(waiter: &Waiter, now: Time) -> usize {
    let up = usize::try_from(now.since(waiter.arrived).0 / 1_000).unwrap();
    match waiter.lane.position {
        0 => 0,
        1 => 1_usize.saturating_sub(up),
        _ => 2_usize.saturating_sub(up).max(1),
    }
}

fn compare(queue: &Queue, plain: &Plain, policy: &Policy, now: Time) {
    let candidates: Vec<Candidate> = queue.candidates().collect();
    let found: BTreeMap<_, _> = candidates
        .iter()
        .map(|first| {
            let position = policy.line_up().position_of(first.head.band);
            ((position, first.head.lane), first.ticket)
        })
        .collect();
    assert_eq!(found, plain.candidates());
    for tenant in TENANTS {
        let blocked = Queue::blocked(std::iter::once(queue), tenant, |_| true).map(|(_, blocked, _)| {
            let position = policy.line_up().position_of(blocked.band);
            (position, blocked.urgency)
        });
        assert_eq!(blocked, plain.blocked(tenant), "{tenant}");
    }
    let report = queue.report();
    for lane in policy.lanes() {
        let told = report.waiting.iter().find(|(key, _)| *key == lane.key).map(|(_, backlog)| *backlog);
        assert_eq!(told, plain.backlog(lane.key), "{}", lane.name);
    }
    assert_eq!(report.for_a_class, plain.flows.values().any(|(_, aside)| *aside == Some(Aside::Class)));
    let due: BTreeSet<_> = queue.due(now).into_iter().collect();
    let over = plain.waiting.iter().filter(|(_, _, until)| *until <= now).map(|(ticket, ..)| *ticket);
    assert_eq!(due, over.collect());
    assert_eq!(queue.len(), plain.waiting.len());
}

#[test]
fn it_says_what_a_look_at_every_waiter_says() {
    let policy = policy();
    for seed in 0..40 {
        let random = &mut fastrand::Rng::with_seed(seed);
        let (mut queue, mut plain, mut now) = (Queue::default(), Plain::default(), Time(10_000));
        for number in 0..150 {
            now.0 += random.u64(0..60);
            let tag = random.u64(..50);
            queue.climb(now, |_| Starts::at(tag));
            plain.climb(now, tag);
            let tickets: Vec<Ticket> = queue.tickets().collect();
            let some = tickets.get(random.usize(..tickets.len().max(1))).copied();
            match (random.u8(..10), some) {
                (4, Some(ticket)) => {
                    assert!(queue.take(ticket).is_some() && queue.take(ticket).is_none());
                    plain.forget(ticket);
                }
                (5, Some(ticket)) => {
                    queue.retag(ticket, Starts::at(tag));
                    plain.flows.get_mut(&plain.places[&ticket]).unwrap().0 = tag;
                }
                (6, Some(ticket)) => {
                    let aside = if random.bool() { Aside::Tenant } else { Aside::Class };
                    queue.step_aside(ticket, aside);
                    plain.flows.get_mut(&plain.places[&ticket]).unwrap().1 = Some(aside);
                }
                (7, _) => {
                    let tenant = TENANTS[random.usize(..3)];
                    let stood = plain.blocked(tenant).is_some();
                    assert_eq!(Queue::blocked([&queue].into_iter(), tenant, |_| true).is_some(), stood);
                    while let Some((ticket, ..)) = Queue::blocked([&queue].into_iter(), tenant, |_| true) {
                        queue.step_back(ticket);
                    }
                    let own = plain.flows.iter_mut().filter(|((.., id), _)| *id.0 == *tenant);
                    own.filter(|(_, (_, aside))| *aside == Some(Aside::Tenant)).for_each(|(_, flow)| flow.1 = None);
                }
                (8, Some(ticket)) => {
                    let until = Time(now.0 + random.u64(..3_000));
                    queue.extend(ticket, until);
                    plain.waiting.iter_mut().find(|(other, ..)| *other == ticket).unwrap().2 = until;
                }
                _ => {
                    let (ticket, waiter) = (Ticket(number), waiter(&policy, random, now));
                    let aside = (random.u8(..8) == 0).then_some(Aside::Tenant);
                    plain.put(ticket, &waiter, tag, aside, now);
                    plain.waiting.push((ticket, waiter.clone(), Time(now.0 + waiter.patience().0)));
                    queue.push(ticket, waiter, Starts::at(tag), aside, now);
                }
            }
            compare(&queue, &plain, &policy, now);
        }
        let (flows, everyone) = (plain.flows.len(), queue.flows_behind(None, usize::MAX));
        assert_eq!(everyone.len(), flows, "the first waiter of every flow");
        queue.tickets().collect::<Vec<_>>().into_iter().for_each(|ticket| drop(queue.take(ticket)));
        assert!(queue.is_empty() && queue.report().heads.is_empty() && !queue.report().for_a_class);
    }
}

#[test]
fn classes_step_back_in_line_one_flow_at_a_time() {
    let policy = policy();
    let random = &mut fastrand::Rng::with_seed(1);
    let mut queue = Queue::default();
    for (number, tenant) in (0_u64..).zip(TENANTS) {
        let mut waiter = waiter(&policy, random, Time(0));
        waiter.tenant_key = tenant.into();
        waiter.lane = Arc::clone(policy.line_up().at(0));
        waiter.classes = policy.only_pool().unwrap().classes_of(None, Tokens(900));
        queue.push(Ticket(number), waiter, Starts::at(3 - number), Some(Aside::Class), Time(0));
    }
    let first = |queue: &Queue| queue.candidates().next().map(|candidate| candidate.ticket);
    assert_eq!(first(&queue), None);
    queue.step_back_by_class();
    assert_eq!(first(&queue), Some(Ticket(2)), "the lowest tag");
    queue.take(Ticket(2));
    assert_eq!(first(&queue), None, "the others still stand aside");
    assert!(queue.report().for_a_class);
}

#[test]
fn a_caller_waits_no_longer_than_it_wants() {
    let policy = policy();
    let mut waiter = waiter(&policy, &mut fastrand::Rng::with_seed(1), Time(0));
    waiter.lane = Arc::clone(policy.line_up().at(0));
    for (deadline, patience) in [(None, PATIENCE_OF_HIGH_MS), (Some(300), 300), (Some(9_000), PATIENCE_OF_HIGH_MS)] {
        waiter.deadline = deadline.map(Millis);
        assert_eq!(waiter.patience(), Millis(patience));
    }
}
