//! Whether more ran at once than a policy allows, as the workers counted it.
//!
//! A request counts from when its worker had all of it until it was done there. It counts no longer than the filter can hold
//! it: until its caller left, and where the proxy or its VM ended it, until then. What begins while a policy stands under
//! which nothing is charged does not count.

use std::collections::BTreeMap;
use std::time::Duration;

use super::callers::{Outcome, Record};
use super::history::{History, Kind, SLACK};
use super::policy::{Caps, Draw, WITH_TOKENS};
use super::workers::Visit;

/// The most by which a cap was exceeded.
#[derive(Clone, Debug, Default)]
pub struct Overshoot {
    /// In what the cap counts.
    pub by: u64,
    /// Which cap, and when.
    pub what: String,
    pub at: Duration,
    /// The requests that counted then.
    pub who: Vec<Record>,
    /// Caps that were reached at some time, of all proxies.
    pub reached: usize,
}

/// When something held an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: Duration,
    until: Duration,
    amount: u64,
    /// The request's number.
    id: usize,
}

/// How far a cap was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Peak {
    /// The most beyond it, and when.
    by: u64,
    at: Duration,
    reached: bool,
}

/// A cap as it changes; until each time, this was allowed.
pub type Allowed = Vec<(Duration, u64)>;

/// Looks at every cap of every proxy.
pub fn overshoot(history: &History, records: &BTreeMap<usize, Record>, visits: &[Visit]) -> Overshoot {
    let mut spans: BTreeMap<(usize, String), Vec<Span>> = BTreeMap::new();
    for visit in visits {
        let Some(record) = records.get(&visit.id) else { continue };
        let until = held_until(history, record, visit);
        if until <= visit.came {
            continue;
        }
        let mut add = |what: String, amount| {
            spans.entry((record.life, what)).or_default().push(Span { from: visit.came, until, amount, id: visit.id });
        };
        let under = |fits: fn(&Draw) -> bool| always(history, record.life, record.sent, visit.came, fits);
        if under(|draw| !draw.shadow) {
            add("the pool's requests".into(), 1);
            add(format!("requests of {}", record.tenant), 1);
            if record.tenant == WITH_TOKENS && under(Draw::header_pause) {
                add(format!("tokens of {WITH_TOKENS}"), visit.tokens);
            }
        }
    }
    let mut worst = Overshoot::default();
    for ((life, what), spans) in spans {
        let cap = |caps: &Caps| match what.split_once(" of ") {
            Some(("tokens", _)) => caps.tokens,
            Some((_, tenant)) => caps.of(tenant),
            None => caps.pool,
        };
        let Peak { by, at, reached } = peak(&spans, &allowed(history, life, cap));
        worst.reached += usize::from(reached);
        if by > worst.by {
            let there = spans.iter().filter(|span| span.from <= at && at < span.until);
            let who = there.filter_map(|span| records.get(&span.id)).cloned().collect();
            worst = Overshoot {
                by,
                what: format!("{what} in proxy {life}, at {:.2} s", at.as_secs_f64()),
                at,
                who,
                ..worst
            };
        }
    }
    worst
}

/// Until when the filter may have held it.
pub fn held_until(history: &History, record: &Record, visit: &Visit) -> Duration {
    let left = visit.left.unwrap_or(Duration::MAX);
    let fatal = history.incidents.iter().filter(|one| !matches!(one.kind, Kind::Worker(_)) && one.life == record.life);
    let death = fatal.map(|incident| incident.from).filter(|from| *from >= record.sent).min().unwrap_or(Duration::MAX);
    match &record.outcome {
        Outcome::Answered(_) => left,
        Outcome::Left => left.min(record.ended).min(death),
        // The worker learns of it a moment after the filter has given its place away.
        Outcome::Refused(_) => left.min(record.ended.saturating_sub(SLACK)),
        Outcome::Lost(_) | Outcome::Unanswered => left.min(death).min(record.ended.saturating_sub(SLACK)),
    }
}

/// Whether every policy that may have stood in a proxy between two times is such a one.
pub fn always(history: &History, life: usize, from: Duration, until: Duration, fits: fn(&Draw) -> bool) -> bool {
    let stood = history.policies.iter().zip(history.stood_until(life));
    let stood = stood.filter(|(policy, end)| policy.written <= until && from <= *end);
    stood.map(|(policy, _)| policy).all(|policy| fits(&policy.draw))
}

/// The largest cap of those policies that may stand, step by step; none while a VM may have been taken for dead.
pub fn allowed(history: &History, life: usize, cap: impl Fn(&Caps) -> u64) -> Allowed {
    let policies = &history.policies;
    let ends = history.stood_until(life);
    let fences: Vec<_> = history.fences.iter().filter(|fence| fence.life == life).collect();
    let mut times: Vec<Duration> = policies.iter().map(|policy| policy.written).chain(ends.iter().copied()).collect();
    times.extend(fences.iter().flat_map(|fence| [fence.from, fence.until]));
    times.sort_unstable();
    times.dedup();
    let stands = |from: Duration, until: Duration| {
        if fences.iter().any(|fence| fence.from < until && from < fence.until) {
            return u64::MAX;
        }
        let stood = policies.iter().zip(&ends).filter(|(policy, end)| policy.written < until && from < **end);
        stood.map(|(policy, _)| cap(&policy.draw.caps)).max().unwrap_or(u64::MAX)
    };
    times.windows(2).map(|step| (step[1], stands(step[0], step[1]))).collect()
}

/// How far what was held came up to what was allowed, and beyond. What is held when a cap is lowered may stay, so from then on only
/// less is allowed than there was, until it is within the cap.
fn peak(spans: &[Span], allowed: &Allowed) -> Peak {
    // Who leaves goes before who comes at the same time.
    let mut changes: Vec<(Duration, bool, u64)> = Vec::new();
    for Span { from, until, amount, .. } in spans.iter().copied() {
        changes.extend([(from, true, amount), (until, false, amount)]);
    }
    changes.sort_unstable();
    let (mut held, mut carried, mut peak) = (0_u64, 0_u64, Peak::default());
    let mut steps = allowed.iter();
    let mut step = steps.next();
    for (at, comes, amount) in changes {
        while let Some((until, _)) = step
            && *until <= at
        {
            carried = carried.max(held);
            step = steps.next();
        }
        let cap = step.map_or(u64::MAX, |(_, cap)| *cap);
        if comes {
            held += amount;
            let over = held.saturating_sub(cap.max(carried));
            peak.reached |= held >= cap;
            if over > peak.by {
                (peak.by, peak.at) = (over, at);
            }
        } else {
            held = held.saturating_sub(amount);
            carried = carried.min(held);
        }
    }
    peak
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Fence, Standing};

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn span(from: u64, until: u64) -> Span {
        Span { from: ms(from), until: ms(until), amount: 1, id: 0 }
    }

    #[test]
    fn what_is_beyond_a_cap_shows() {
        let two = vec![(Duration::MAX, 2)];
        let of = |spans: &[Span]| peak(spans, &two);
        assert_eq!(of(&[span(0, 9)]), Peak::default());
        assert_eq!(of(&[span(0, 9), span(1, 5), span(5, 8)]), Peak { reached: true, ..Peak::default() });
        assert_eq!(of(&[span(0, 9), span(1, 5), span(4, 8)]), Peak { by: 1, at: ms(4), reached: true });
    }

    #[test]
    fn what_was_there_when_a_cap_was_lowered_may_stay_and_nobody_may_follow() {
        let lowered = vec![(ms(10), 3), (Duration::MAX, 1)];
        let there = vec![span(0, 20), span(1, 30), span(2, 40)];
        assert_eq!(peak(&there, &lowered).by, 0);
        let followed = |from| [there.clone(), vec![span(from, 50)]].concat();
        assert_eq!(peak(&followed(25), &lowered).by, 1, "while two are still there only two may be");
        assert_eq!(peak(&followed(35), &lowered).by, 1);
        assert_eq!(peak(&followed(45), &lowered).by, 0);
    }

    fn standing(pool: u64, written: u64, sure: u64, shadow: bool) -> Standing {
        let mut draw = Draw::first();
        (draw.shadow, draw.caps.pool) = (shadow, pool);
        Standing { draw, written: ms(written), sure: ms(sure), life: 0 }
    }

    #[test]
    fn while_a_policy_changes_the_larger_cap_holds() {
        let policies = vec![standing(5, 0, 0, false), standing(2, 10, 20, false), standing(9, 30, 40, false)];
        let fences = vec![Fence { life: 1, from: ms(23), until: ms(24) }];
        let history = History { policies, fences, ..History::default() };
        let at = |life, time| {
            let steps = allowed(&history, life, |caps| caps.pool);
            steps.iter().find(|(until, _)| ms(time) < *until).map(|(_, cap)| *cap)
        };
        assert_eq!([5, 15, 23, 25, 35, 45].map(|time| at(0, time)), [5, 5, 2, 2, 9, 9].map(Some));
        assert_eq!([22, 23, 25].map(|time| at(1, time)), [2, u64::MAX, 2].map(Some), "taken for dead");
    }

    #[test]
    fn what_may_have_come_in_shadow_is_known() {
        let policies = vec![standing(5, 0, 0, false), standing(5, 10, 20, true), standing(5, 30, 40, false)];
        let history = History { policies, ..History::default() };
        let enforced = |from, until| always(&history, 0, ms(from), ms(until), |draw| !draw.shadow);
        assert!(enforced(1, 9) && enforced(41, 50));
        assert!(!enforced(1, 10) && !enforced(35, 38) && !enforced(5, 60));
    }
}
