//! Starts beyond what a lane's dispatch budget or ceiling leaves, or what is kept for another lane, as the workers counted them.
//!
//! A request of the lane with a budget starts while `held + 1 ≤ C × (1 − baseline)`, or while the lane holds none; one of the lane with a
//! ceiling while `held < ceiling × full`, as long as there is a fresh view. One of any lane but the highest starts while
//! `held + 1 + max(0, kept − held of the highest lane) ≤ C`. When it was decided is not seen, so only those count that were
//! held all the time from its sending to its arrival at a worker: what is found beyond is beyond for sure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::callers::Record;
use super::caps::{allowed, always, held_until};
use super::history::History;
use super::policy::{AGES_AFTER, BASELINE, BATCH, Caps, HIGHEST, MOST_BELOW_CEILING, STANDARD};
use super::workers::Visit;

/// Starts of a lane with such a gate.
#[derive(Clone, Debug, Default)]
pub struct Starts {
    /// The most requests held beyond what the gate lets through.
    pub by: u64,
    /// The start after which so many were held.
    pub what: String,
    /// Time of that start.
    pub at: Duration,
    /// Requests that were held then, behind the one that started.
    pub who: Vec<Record>,
    /// Starts of the last request that the gate lets through.
    pub reached: usize,
}

/// A request that a worker had, as long as the filter held it for sure.
struct Held<'a> {
    record: &'a Record,
    came: Duration,
    until: Duration,
}

/// Looks at every start of the lane with a dispatch budget.
pub fn by_budget(history: &History, records: &BTreeMap<usize, Record>, visits: &[Visit]) -> Starts {
    let room = |caps: &Caps| (caps.pool as f64 * (1.0 - BASELINE) + 1e-6) as u64;
    starts(history, records, visits, |start, beside| {
        // Why not later: one that has waited for so long counts as of a lane without a budget.
        let is_judged = start.record.lane == Some(BATCH) && start.came.saturating_sub(start.record.sent) < AGES_AFTER;
        let holds_none = || beside.iter().all(|one| one.record.lane != Some(BATCH));
        (is_judged && !holds_none()).then(|| largest(history, start, room))
    })
}

/// Looks at every start of the lane with a ceiling.
pub fn by_ceiling(history: &History, records: &BTreeMap<usize, Record>, visits: &[Visit]) -> Starts {
    starts(history, records, visits, |start, _| {
        let Held { record, came, .. } = start;
        let is_judged = record.lane.unwrap_or(STANDARD) == STANDARD;
        (is_judged && history.has_view(record.life, record.sent, *came))
            .then(|| largest(history, start, |_| MOST_BELOW_CEILING))
    })
}

/// Looks at every start of a lane for which nothing is kept.
pub fn by_reserve(history: &History, records: &BTreeMap<usize, Record>, visits: &[Visit]) -> Starts {
    let may_be_highest = |record: &Record| record.lane.is_some_and(|lane| HIGHEST.contains(&lane));
    starts(history, records, visits, |start, beside| {
        // Why of both: which lane is the highest depends on the policy, and more that it holds leaves more to others.
        let of_highest = beside.iter().filter(|one| may_be_highest(one.record)).count() as u64;
        let room = |caps: &Caps| caps.pool - caps.kept.saturating_sub(of_highest);
        (!may_be_highest(start.record)).then(|| largest(history, start, room))
    })
}

/// Looks at every start; `room` says how many requests there may be with it, beside those that are held.
fn starts(
    history: &History,
    records: &BTreeMap<usize, Record>,
    visits: &[Visit],
    room: impl Fn(&Held<'_>, &[&Held<'_>]) -> Option<u64>,
) -> Starts {
    let of_visit = |visit: &Visit| {
        let record = records.get(&visit.id)?;
        // Why: what has come while a policy in shadow stood is charged nothing, so it takes no place of those that come later.
        let is_charged = always(history, record.life, record.sent, visit.came, |draw| !draw.shadow);
        is_charged.then(|| Held { record, came: visit.came, until: held_until(history, record, visit) })
    };
    let all: Vec<Held<'_>> = visits.iter().filter_map(of_visit).collect();
    let mut found = Starts::default();
    for start in &all {
        let Held { record, came, .. } = start;
        let beside = |one: &&Held<'_>| {
            let is_another = (one.record.life, one.record.id) != (record.life, record.id);
            is_another && one.record.life == record.life && one.came <= record.sent && *came <= one.until
        };
        let held: Vec<_> = all.iter().filter(beside).collect();
        let Some(room) = room(start, &held).filter(|room| *room < u64::MAX) else { continue };
        let with_this = held.len() as u64 + 1;
        found.reached += usize::from(with_this == room);
        if with_this > room.saturating_add(found.by) {
            found.by = with_this - room;
            found.what = format!("request {} of proxy {}, at {:.2} s", record.id, record.life, came.as_secs_f64());
            found.at = *came;
            found.who = std::iter::once(*record).chain(held.iter().map(|one| one.record)).cloned().collect();
        }
    }
    found
}

/// The largest room under any policy that may have counted from a request's sending to its arrival.
fn largest(history: &History, start: &Held<'_>, room: impl Fn(&Caps) -> u64) -> u64 {
    let mut from = Duration::ZERO;
    let stood = allowed(history, start.record.life, room).into_iter().filter(|(until, _)| {
        let began = std::mem::replace(&mut from, *until);
        began <= start.came && start.record.sent < *until
    });
    stood.map(|(_, room)| room).max().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callers::Outcome;
    use crate::history::Standing;
    use crate::policy::Draw;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    type Look = fn(&History, &BTreeMap<usize, Record>, &[Visit]) -> Starts;

    /// Requests that are sent and come to a worker at these times, and stay to the end; the lane of the last ones is batch. The proxy has
    /// a view from 1 to 3 s.
    fn found(look: Look, times: &[(u64, u64)], of_batch: usize) -> Starts {
        let draw = Draw::first();
        found_under(
            look,
            vec![Standing { draw, written: Duration::ZERO, sure: Duration::ZERO, life: 0 }],
            times,
            of_batch,
        )
    }

    /// The same under other policies, each with a pool of four of which two are kept.
    fn found_under(look: Look, mut policies: Vec<Standing>, times: &[(u64, u64)], of_batch: usize) -> Starts {
        policies.iter_mut().for_each(|policy| (policy.draw.caps.pool, policy.draw.caps.kept) = (4, 2));
        let mut history = History { policies, ..History::default() };
        history.saw_view(0, ms(1_000), ms(2_500));
        history.saw_view(0, ms(1_500), ms(3_000));
        let first_of_batch = times.len() - of_batch;
        let record = |id: usize, sent: u64| Record {
            id,
            tenant: "acme".into(),
            lane: (id >= first_of_batch).then_some(BATCH),
            life: 0,
            sent: ms(sent),
            ended: ms(9_000),
            outcome: Outcome::Answered(200),
            let_in: true,
        };
        let records = times.iter().enumerate().map(|(id, (sent, _))| (id, record(id, *sent))).collect();
        let visit = |(id, (_, came)): (usize, &(u64, u64))| Visit {
            id,
            worker: 0,
            came: ms(*came),
            left: Some(ms(9_000)),
            tokens: 1,
        };
        let visits: Vec<Visit> = times.iter().enumerate().map(visit).collect();
        look(&history, &records, &visits)
    }

    #[test]
    fn a_start_beyond_what_the_budget_leaves_shows() {
        let at = |times: &[(u64, u64)], of_batch| {
            let Starts { by, reached, .. } = found(by_budget, times, of_batch);
            (by, reached)
        };
        assert_eq!(at(&[(0, 1), (2, 3), (4, 5)], 2), (0, 1), "three of four");
        assert_eq!(at(&[(0, 1), (2, 3), (4, 5), (6, 7)], 2), (1, 0), "a fourth");
        assert_eq!(at(&[(0, 1), (2, 3), (4, 5), (6, 7)], 1), (0, 0), "the lane holds none");
        assert_eq!(at(&[(0, 1), (2, 3), (5, 6), (4, 7)], 3), (0, 2), "either may have come before the other");
        assert_eq!(at(&[(0, 1), (2, 3), (4, 5), (6, 1_500)], 2), (0, 0), "it has aged");
    }

    #[test]
    fn a_start_beyond_what_is_kept_shows() {
        let at = |times: &[(u64, u64)]| {
            let Starts { by, reached, .. } = found(by_reserve, times, 0);
            (by, reached)
        };
        assert_eq!(at(&[(0, 1), (2, 3)]), (0, 1), "two of four");
        assert_eq!(at(&[(0, 1), (2, 3), (4, 5)]), (1, 1));
        assert_eq!(at(&[(0, 1), (2, 6), (4, 5)]), (0, 2), "either may have come before the other");
    }

    #[test]
    fn what_came_in_shadow_takes_no_place() {
        let standing = |shadow, written| {
            let mut draw = Draw::first();
            draw.shadow = shadow;
            Standing { draw, written: ms(written), sure: ms(written), life: 0 }
        };
        let at = |times: &[(u64, u64)]| {
            let Starts { by, reached, .. } =
                found_under(by_reserve, vec![standing(true, 0), standing(false, 10)], times, 0);
            (by, reached)
        };
        assert_eq!(at(&[(0, 1), (2, 3), (20, 21)]), (0, 0), "the first that counts");
        assert_eq!(at(&[(0, 1), (2, 3), (20, 21), (22, 23), (24, 25)]), (1, 1));
    }

    #[test]
    fn a_start_at_the_ceiling_shows_while_there_is_a_view() {
        let with_last = |sent, came| {
            let before = (0..MOST_BELOW_CEILING).map(|number| (number, number + 1));
            let times: Vec<_> = before.chain([(sent, came)]).collect();
            let Starts { by, reached, .. } = found(by_ceiling, &times, 0);
            (by, reached)
        };
        assert_eq!(with_last(1_100, 2_900), (1, 0));
        assert_eq!(with_last(900, 1_100), (0, 0), "it may have started before the view came");
        assert_eq!(with_last(2_900, 3_100), (0, 0), "the view has become old");
        let before: Vec<_> =
            (1..MOST_BELOW_CEILING).map(|number| (number, number + 1)).chain([(1_100, 1_200)]).collect();
        assert_eq!(found(by_ceiling, &before, 0).reached, 1, "the last one below it");
    }
}
