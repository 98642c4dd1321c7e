//! Room that the lane with a dispatch budget left free, as the workers counted it.
//!
//! A request of that lane starts while `held + 1 ≤ C × (1 − baseline)`, or while the lane holds none. When it was decided is not seen, so
//! only those count that were held all the time from its sending to its arrival at a worker: what is found beyond is beyond for sure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::callers::Record;
use super::caps::{allowed, always, held_until};
use super::history::History;
use super::policy::{AGES_AFTER, BASELINE, BATCH};
use super::workers::Visit;

/// Starts of the lane with a budget.
#[derive(Clone, Debug, Default)]
pub struct Spare {
    /// The most requests held beyond what the budget leaves.
    pub by: u64,
    /// The start after which so many were held.
    pub what: String,
    /// Starts of the last request that the budget left room for.
    pub reached: usize,
}

/// A request that a worker had, as long as the filter held it for sure.
struct Held<'a> {
    record: &'a Record,
    came: Duration,
    until: Duration,
}

/// Looks at every start of the lane.
pub fn spare(history: &History, records: &BTreeMap<usize, Record>, visits: &[Visit]) -> Spare {
    let all: Vec<Held<'_>> = visits
        .iter()
        .filter_map(|visit| {
            let record = records.get(&visit.id)?;
            Some(Held { record, came: visit.came, until: held_until(history, record, visit) })
        })
        .collect();
    let mut found = Spare::default();
    for start in all.iter().filter(|one| one.record.lane == Some(BATCH)) {
        let Held { record, came, .. } = start;
        let is_judged = always(&history.policies, record.sent, *came, |draw| !draw.shadow);
        // Why not later: one that has waited for so long counts as of a lane without a budget.
        if !is_judged || came.saturating_sub(record.sent) >= AGES_AFTER {
            continue;
        }
        let beside = |one: &&Held<'_>| {
            let is_another = (one.record.life, one.record.id) != (record.life, record.id);
            is_another && one.record.life == record.life && one.came <= record.sent && *came <= one.until
        };
        let held: Vec<_> = all.iter().filter(beside).collect();
        let room = room(history, record, *came);
        if room == u64::MAX || held.iter().all(|one| one.record.lane != Some(BATCH)) {
            continue;
        }
        let with_this = held.len() as u64 + 1;
        found.reached += usize::from(with_this == room);
        if with_this > room.saturating_add(found.by) {
            found.by = with_this - room;
            found.what = format!("request {} of proxy {}, at {:.2} s", record.id, record.life, came.as_secs_f64());
        }
    }
    found
}

/// Places that the budget leaves of the largest pool that may have counted from a request's sending to its arrival.
fn room(history: &History, record: &Record, came: Duration) -> u64 {
    let mut from = Duration::ZERO;
    let steps = allowed(history, record.life, |caps| (caps.pool as f64 * (1.0 - BASELINE) + 1e-6) as u64);
    let stood = steps.into_iter().filter(|(until, _)| {
        let began = std::mem::replace(&mut from, *until);
        began <= came && record.sent < *until
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

    /// Requests that are sent and come to a worker at these times, and stay to the end; the lane of the last ones is batch.
    fn found(times: &[(u64, u64)], of_batch: usize) -> Spare {
        let mut draw = Draw::first();
        draw.caps.pool = 4;
        let history = History {
            policies: vec![Standing { draw, written: Duration::ZERO, sure: Duration::ZERO }],
            ..History::default()
        };
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
        let visit =
            |(id, (_, came)): (usize, &(u64, u64))| Visit { id, came: ms(*came), left: Some(ms(9_000)), tokens: 1 };
        let visits: Vec<Visit> = times.iter().enumerate().map(visit).collect();
        spare(&history, &records, &visits)
    }

    #[test]
    fn a_start_beyond_what_the_budget_leaves_shows() {
        let at = |times: &[(u64, u64)], of_batch| {
            let Spare { by, reached, .. } = found(times, of_batch);
            (by, reached)
        };
        assert_eq!(at(&[(0, 1), (2, 3), (4, 5)], 2), (0, 1), "three of four");
        assert_eq!(at(&[(0, 1), (2, 3), (4, 5), (6, 7)], 2), (1, 0), "a fourth");
        assert_eq!(at(&[(0, 1), (2, 3), (4, 5), (6, 7)], 1), (0, 0), "the lane holds none");
        assert_eq!(at(&[(0, 1), (2, 3), (5, 6), (4, 7)], 3), (0, 2), "either may have come before the other");
        assert_eq!(at(&[(0, 1), (2, 3), (4, 5), (6, 1_500)], 2), (0, 0), "it has aged");
    }
}
