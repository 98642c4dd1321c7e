//! The reasons for which waiters could not start when they were last looked at.

use std::collections::BTreeMap;

use super::Queue;
use crate::ledger::{Backlog, Kept, LaneKey};
use crate::outcome::{Obstacle, Reason};

/// One reason for each lane, and one for its waiters that stand aside, which keep back nothing but their own flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reasons {
    in_line: BTreeMap<LaneKey, Reason>,
    aside: BTreeMap<LaneKey, Reason>,
}

impl Queue {
    /// Notes why a waiter of a lane could not start, unless that says no more than that others come first.
    pub(crate) fn keep(&mut self, lane: LaneKey, reason: Reason) {
        if reason.is_of_order() {
            return;
        }
        match reason.obstacle() {
            Obstacle::Line | Obstacle::Lasting => {}
            Obstacle::Tenant | Obstacle::Class => {
                self.reasons.aside.insert(lane, reason);
            }
            Obstacle::Lane => {
                self.reasons.in_line.insert(lane, reason);
            }
            // Those behind it could not start either, of whatever lane.
            Obstacle::Pool => {
                for (lane, _) in self.backlog.iter().filter(|(_, backlog)| backlog.requests > 0) {
                    self.reasons.in_line.insert(*lane, reason);
                }
            }
        }
    }

    /// The reason that keeps the line of a lane; with no lane, that of any.
    pub(crate) fn kept_by(&self, lane: Option<LaneKey>) -> Option<Reason> {
        match lane {
            Some(lane) => self.reasons.in_line.get(&lane).copied(),
            None => self.reasons.in_line.values().next().copied(),
        }
    }

    /// True while nothing but the pool's rate keeps the line of a lane.
    pub(super) fn waits_for_a_rate(&self, lane: LaneKey) -> bool {
        self.kept_by(Some(lane)).is_some_and(Reason::is_of_rate)
    }

    /// Forgets the reasons of a lane in which nothing waits any more.
    pub(super) fn forget_reasons(&mut self, lane: LaneKey) {
        self.reasons.in_line.remove(&lane);
        self.reasons.aside.remove(&lane);
    }

    /// The reasons that the pool's record is to have, of lanes in which so much waits.
    pub(super) fn kept(&self, waiting: &[(LaneKey, Backlog)]) -> Vec<Kept> {
        let of_lane = |(lane, backlog): &(LaneKey, Backlog)| {
            let in_line = self.reasons.in_line.get(lane).filter(|_| backlog.in_line() > 0);
            let aside = self.reasons.aside.get(lane).filter(|_| backlog.aside > 0);
            [in_line, aside].into_iter().flatten().map(|reason| Kept { lane: *lane, reason: Some(*reason) }).collect()
        };
        let kept: Vec<Vec<Kept>> = waiting.iter().map(of_lane).collect();
        kept.concat()
    }
}
