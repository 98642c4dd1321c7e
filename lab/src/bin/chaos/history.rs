//! What has happened, as far as the balance at the end needs to know.

use std::time::Duration;

use super::callers::Loss;
use super::policy::Draw;
use super::proxy::{Counted, SILENCE};

/// After a change, until which the former state may still show: messages on their way, and a machine that is busy.
pub const SLACK: Duration = Duration::from_secs(1);

/// How long what a worker's trouble has piled up may be felt after it.
const AFTERMATH: Duration = Duration::from_secs(4);

/// Everything that has happened; all times count from the start.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub policies: Vec<Standing>,
    pub incidents: Vec<Incident>,
    /// In which proxy the filter's code was changed, and when.
    pub swaps: Vec<(usize, Duration)>,
    pub fences: Vec<Fence>,
    /// Times in which proxies had a fresh view, by proxy and in order; those that touch are one.
    pub views: Vec<(usize, Duration, Duration)>,
    /// One for each proxy, in order; all but the last have ended.
    pub lives: Vec<Life>,
}

/// A policy in force.
#[derive(Clone, Debug)]
pub struct Standing {
    pub draw: Draw,
    /// Nobody has followed it before.
    pub written: Duration,
    /// The proxy in use has followed it from then on. One that has requests left from before may take it over at any time, or not at all.
    pub sure: Duration,
    /// Number of that proxy.
    pub life: usize,
}

/// When a VM that lives may have been taken for dead, because the machine did not let it run: what it held was void until it
/// came back, and is held then whatever the caps say.
#[derive(Clone, Copy, Debug)]
pub struct Fence {
    pub life: usize,
    pub from: Duration,
    pub until: Duration,
}

/// Something that may cost requests.
#[derive(Clone, Copy, Debug)]
pub struct Incident {
    pub kind: Kind,
    /// In which proxy, but for a worker's.
    pub life: usize,
    pub from: Duration,
    /// The largest there is while it lasts.
    pub until: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// This worker is in trouble.
    Worker(usize),
    Trap,
    Kill,
}

/// A proxy's.
#[derive(Clone, Debug, Default)]
pub struct Life {
    pub counted: Counted,
    /// It has ended with requests in it, so what it counted last is not known.
    pub killed: bool,
    /// Requests that made it trap.
    pub traps: u64,
    /// The last lines of its log.
    pub log_end: String,
}

impl History {
    /// Times until which policies may have stood in a proxy, one for each policy in their order.
    pub fn stood_until(&self, life: usize) -> Vec<Duration> {
        let mut end = Duration::MAX;
        let mut ends: Vec<Duration> = self
            .policies
            .iter()
            .rev()
            .map(|policy| {
                // What a later proxy has taken over says nothing of this one.
                let known = if policy.life <= life { policy.sure } else { end };
                std::mem::replace(&mut end, known)
            })
            .collect();
        ends.reverse();
        ends
    }

    /// A proxy has a view that is fresh from one time until another; each call is of a later time than the one before.
    pub fn saw_view(&mut self, life: usize, from: Duration, until: Duration) {
        match self.views.last_mut() {
            Some((same, _, last)) if *same == life && from <= *last => *last = until.max(*last),
            _ => self.views.push((life, from, until)),
        }
    }

    /// True when a proxy had a fresh view all the time between two times.
    pub fn has_view(&self, life: usize, from: Duration, until: Duration) -> bool {
        self.views.iter().any(|(of, began, ended)| *of == life && *began <= from && until <= *ended)
    }

    /// Whether what VMs counted of a request may have gone with them before anybody looked, or before they handed it over: what a
    /// VM counts becomes the proxy's on its tick.
    pub fn blurs(&self, life: usize, sent: Duration, ended: Duration) -> bool {
        let last_looks = SILENCE + AFTERMATH;
        let swapped =
            self.swaps.iter().any(|(in_life, at)| *in_life == life && *at <= ended && sent <= *at + last_looks);
        let traps = self.incidents.iter().filter(|one| one.kind == Kind::Trap && one.life == life);
        let mut last_ticks = traps.map(|one| (one.from.saturating_sub(SLACK), one.until));
        swapped || last_ticks.any(|(from, until)| from <= ended && sent <= until)
    }
}

impl Incident {
    /// Whether a request that was lost so between two times was lost by it.
    pub fn explains(&self, loss: Loss, life: usize, sent: Duration, ended: Duration) -> bool {
        let (fits, after) = match self.kind {
            // Those whose answer had not begun get 503 at their next event, or are ended when nothing has moved for long.
            Kind::Trap => (
                self.life == life && matches!(loss, Loss::NoAnswer | Loss::CutShort | Loss::Status(408 | 503 | 504)),
                SILENCE + SLACK,
            ),
            Kind::Kill => {
                (self.life == life && matches!(loss, Loss::NoConnection | Loss::NoAnswer | Loss::CutShort), SLACK)
            }
            Kind::Worker(_) => {
                (matches!(loss, Loss::CutShort | Loss::Status(408 | 502 | 503 | 504)), SILENCE + AFTERMATH)
            }
        };
        fits && self.from <= ended && sent <= self.until.saturating_add(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_later_proxy_has_taken_over_says_nothing_of_an_earlier_one() {
        let standing = |second: u64, life| Standing {
            draw: Draw::first(),
            written: Duration::from_secs(second),
            sure: Duration::from_secs(second + 1),
            life,
        };
        let policies = vec![standing(0, 0), standing(10, 0), standing(20, 1), standing(30, 1)];
        let history = History { policies, ..History::default() };
        let ends = |life| history.stood_until(life).into_iter().map(|end| end.as_secs()).collect::<Vec<_>>();
        assert_eq!(ends(0), [11, u64::MAX, u64::MAX, u64::MAX]);
        assert_eq!(ends(1), [11, 21, 31, u64::MAX]);
    }

    #[test]
    fn an_incident_explains_what_it_can_cost_and_nothing_else() {
        let second = Duration::from_secs;
        let kill = Incident { kind: Kind::Kill, life: 1, from: second(10), until: second(12) };
        assert!(kill.explains(Loss::NoAnswer, 1, second(9), second(10)));
        assert!(!kill.explains(Loss::NoAnswer, 0, second(9), second(10)), "another proxy");
        assert!(!kill.explains(Loss::Status(503), 1, second(9), second(10)), "who is gone answers nothing");
        assert!(!kill.explains(Loss::NoAnswer, 1, second(7), second(9)), "before it");
        assert!(!kill.explains(Loss::NoAnswer, 1, second(20), second(21)), "long after it");
        let trouble = Incident { kind: Kind::Worker(2), ..kill };
        assert!(trouble.explains(Loss::Status(504), 0, second(16), second(22)));
        assert!(
            !trouble.explains(Loss::NoAnswer, 0, second(11), second(11)),
            "a worker does not break callers' connections"
        );
    }
}
