//! How long a request would wait, and when a refused one is best to come back.

use crate::ledger::{Backlog, Counted, LAST_STARTS};
use crate::outcome::Place;
use crate::policy::{Lane, Lanes};
use crate::queue::{Share, Shares};
use crate::units::{Millis, Time};

/// Where a request would stand that comes for a lane now.
///
/// Ahead of it are all that wait for lanes of a higher priority, and of those of its own priority what weighted fair queueing lets go first: of `n`
/// requests that its tenant has waiting already, and itself, each round of the tenants lets one go, so
/// `(n + 1) × weights of all tenants ÷ its own`, or all that wait if those are fewer. How its tenants stand is known of this
/// VM alone; it is taken to be the same in the others. While none waits here for a lane of its priority, all that are in line elsewhere are ahead.
///
/// The wait is that of [`Ledger::time_to_start`], or, where its lane ages and that is shorter, the time until it has climbed as
/// far as it can and the wait there, behind all of that lane and those of its own before it: they climb side by side. Above the default
/// lane they have a share of all starts.
pub(crate) fn place(
    Counted { ledger, members }: Counted<'_>,
    lanes: &Lanes,
    lane: &Lane,
    shares: Shares,
    weight: u32,
    now: Time,
) -> Place {
    let waiting = |chosen: &dyn Fn(&Lane) -> bool| {
        let chosen = lanes.iter().filter(|other| chosen(other));
        chosen.fold(Backlog::default(), |sum, other| sum.plus(ledger.backlog(other.key, members)))
    };
    let in_lane = in_turn(shares.lane, waiting(&|other| other.key == lane.key), weight);
    let in_level = in_turn(shares.level, waiting(&|other| other.level == lane.level), weight);
    let position = waiting(&|other| other.level < lane.level).in_line().saturating_add(in_level);
    let in_turn = ledger.time_to_start(lane.key, in_lane, position, members, now);
    let aged = climbed(lanes, lane).and_then(|Climb { takes, to, part }| {
        let place = ledger.backlog(to.key, members).requests.saturating_add(in_lane);
        let there = ledger.time_to_start(to.key, place, place, members, now)?;
        let of_its_part = part.and_then(|(most, of)| ledger.time_to_free(in_lane.saturating_mul(of) / most, members));
        Some(Millis(takes.0.saturating_add(there.max(of_its_part.unwrap_or_default()).0)))
    });
    let wait = in_turn.map(|wait| aged.map_or(wait, |aged| wait.min(aged)));
    Place { position, wait }
}

/// Climb of a lane's waiters, as far as they can.
struct Climb<'a> {
    takes: Millis,
    to: &'a Lane,
    /// Starts that are theirs there, of how many, where the lane is above the default one.
    part: Option<(u64, u64)>,
}

fn climbed<'a>(lanes: &'a Lanes, lane: &Lane) -> Option<Climb<'a>> {
    let aging = lane.aging.as_ref()?;
    let (to, steps) = (*aging.path.last()?, aging.path.len() as u64);
    let is_far = to < lanes.freely_climbed(lane.position, to);
    let part = is_far.then(|| (u64::from(aging.most_of_last_starts).max(1), u64::from(LAST_STARTS)));
    Some(Climb { takes: Millis(aging.after.0.saturating_mul(steps)), to: lanes.at(to), part })
}

/// Place among those that wait for a lane, over all VMs; 1 is the next.
fn in_turn(share: Share, waiting: Backlog, weight: u32) -> u64 {
    let (all, weight) = (waiting.requests, u64::from(weight.max(1)));
    if share.all == 0 {
        return waiting.in_line().saturating_add(1);
    }
    let own = share.own.saturating_mul(all).checked_div(share.all).unwrap_or(0);
    let weights = if share.own > 0 { share.weights } else { share.weights.saturating_add(weight) };
    let by_weight = own.saturating_add(1).saturating_mul(weights).div_ceil(weight);
    by_weight.clamp(1, all.saturating_add(1))
}

/// When callers that are refused one after the other are told to come back: not together, but one after the other too,
/// as fast as places are freed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Promises {
    last: Time,
}

/// Longest time ahead that anything is promised for.
const FARTHEST: Millis = Millis(600_000);

impl Promises {
    /// True while something is promised for later.
    pub(crate) fn are_ahead(&self, now: Time) -> bool {
        self.last > now
    }

    /// The advice for a caller that could be served after `wait`, if one more is served every `gap`.
    pub(crate) fn next(&mut self, wait: Millis, gap: Millis, now: Time) -> Millis {
        let soonest = now.0.saturating_add(wait.0);
        let behind = self.last.0.saturating_add(gap.0);
        self.last = Time(soonest.max(behind).min(now.0.saturating_add(FARTHEST.0)));
        self.last.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(requests: u64) -> Backlog {
        Backlog { requests, ..Backlog::default() }
    }

    #[test]
    fn a_light_tenant_stands_before_the_waiters_of_a_flooding_one() {
        let flood = Share { own: 0, all: 50, weights: 1 };
        assert_eq!(in_turn(flood, waiting(100), 1), 2, "one of the flood's goes first at most");
        assert_eq!(in_turn(flood, waiting(100), 4), 2);
        assert_eq!(in_turn(Share { own: 50, ..flood }, waiting(100), 1), 101, "the flood stands behind itself");
        assert_eq!(in_turn(Share::default(), waiting(0), 1), 1);
        assert_eq!(
            in_turn(Share { own: 3, all: 30, weights: 10 }, waiting(30), 1),
            31,
            "never behind more than there are"
        );
        assert_eq!(in_turn(Share { own: 3, all: 30, weights: 5 }, waiting(30), 4), 5, "weight shortens the line");
    }

    #[test]
    fn promises_follow_each_other() {
        let mut promises = Promises::default();
        let told: Vec<u64> = (0..3).map(|_| promises.next(Millis(500), Millis(100), Time(10_000)).0).collect();
        assert_eq!(told, [500, 600, 700]);
        assert_eq!(promises.next(Millis(500), Millis(100), Time(20_000)).0, 500, "old promises are forgotten");
        assert_eq!(promises.next(Millis(0), Millis(u64::MAX), Time(20_000)), FARTHEST);
    }
}
