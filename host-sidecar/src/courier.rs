//! When one proxy is told, and under which generation. Times are spans since the sidecar started.

use std::time::Duration;

use admission_core::view::{ViewAnswer, ViewRefusal};

use crate::backoff;
use crate::table::Revision;

/// First pause after a failed push; doubles with every further failure.
pub const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between failed pushes, of a heartbeat that is longer: a proxy that has restarted waits for its view no
/// longer than that.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Changes of state within this time of a push go out together.
const COALESCE: Duration = Duration::from_millis(5);

/// The state of the pushes to one proxy.
#[derive(Debug)]
pub struct Courier {
    epoch: u64,
    heartbeat: Duration,
    interval: Duration,
    generation: u64,
    attempted_at: Option<Duration>,
    /// When numbers were last told.
    numbers_at: Option<Duration>,
    /// What the proxy has last taken; before that, nothing.
    told: Option<Extent>,
    phase: Phase,
}

/// How the last push ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// None has ended yet, or the last was taken.
    Fine,
    /// It failed, as did so many before it in a row.
    Failing { failures: u32, retry_at: Duration },
    /// A later sidecar's view stands.
    Superseded { by: u64 },
}

/// What a document tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// All changes of states up to this.
    pub revision: Revision,
    /// Numbers of some workers have to wait for the next document.
    pub is_left: bool,
    /// Documents in which the numbers of all workers are told, one after the other; at least one.
    pub parts: u32,
}

/// A push that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// What it is sent under.
    pub stamp: Stamp,
    /// It is time to tell numbers too.
    pub numbers_are_due: bool,
}

/// What a document is sent under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Names this sidecar.
    pub epoch: u64,
    /// Higher than any before.
    pub generation: u64,
}

/// How a push ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The proxy took the document.
    Taken(ViewAnswer),
    /// It holds another view (status 409).
    Refused(ViewRefusal),
    /// It does not hold what the document changes (status 409): it has restarted, or another of its threads was asked.
    Baseless,
    /// The proxy does not read documents of this form (status 400): another module runs there than when it named the form.
    Unread,
    /// It does not accept the token (status 401).
    Unauthorized,
    /// Anything else, as a sentence.
    Failed(String),
}

/// A change worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The first view was taken, or the first after others were not.
    Taken,
    /// Pushes were taken until now, or none was tried.
    Failing(String),
    /// Another sidecar is in charge, since it started later.
    Superseded {
        /// Its epoch.
        by: u64,
    },
}

impl Courier {
    /// Nothing sent. A sidecar names itself by its `epoch`: its start, in microseconds since 1970.
    pub fn new(epoch: u64, heartbeat: Duration, interval: Duration) -> Self {
        Self {
            epoch,
            heartbeat,
            interval,
            generation: 0,
            attempted_at: None,
            numbers_at: None,
            told: None,
            phase: Phase::Fine,
        }
    }

    /// Goes on at another pace, as it is configured from now on.
    pub fn pace(&mut self, heartbeat: Duration, interval: Duration) {
        (self.heartbeat, self.interval) = (heartbeat, interval);
    }

    /// When the next push is due, given what there is to tell.
    ///
    /// A change of state is told at once, other numbers at such a pace that those of all workers are told once a scrape
    /// interval, and nothing new after a heartbeat. A proxy that fails is tried again after a pause, whatever there is to
    /// tell; one that obeys another sidecar at the pace of heartbeats.
    pub fn due(&self, current: Revision) -> Duration {
        let Some(attempted_at) = self.attempted_at else { return Duration::ZERO };
        let heartbeat = attempted_at + self.heartbeat;
        match (self.phase, self.told) {
            (Phase::Failing { retry_at, .. }, _) => retry_at,
            (Phase::Fine, Some(told)) if told.revision.states != current.states => attempted_at + COALESCE,
            (Phase::Fine, Some(told)) if told.is_left || told.revision.numbers != current.numbers => {
                self.numbers_due().max(attempted_at + COALESCE).min(heartbeat)
            }
            (Phase::Fine | Phase::Superseded { .. }, _) => heartbeat,
        }
    }

    fn numbers_due(&self) -> Duration {
        self.numbers_at.unwrap_or_default() + self.look()
    }

    /// How often to look whether numbers have changed, which nobody is woken for.
    pub fn look(&self) -> Duration {
        let parts = self.told.map_or(1, |told| told.parts.max(1));
        (self.interval / parts).min(self.heartbeat)
    }

    /// Begins a push.
    pub fn begin(&mut self, now: Duration) -> Begun {
        self.attempted_at = Some(now);
        let numbers_are_due = self.numbers_at.is_none() || now >= self.numbers_due();
        if numbers_are_due {
            self.numbers_at = Some(now);
        }
        // By the clock, so that a courier that takes over from another of the same sidecar goes on above it.
        let by_clock = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.generation = self.generation.saturating_add(1).max(by_clock);
        Begun { stamp: Stamp { epoch: self.epoch, generation: self.generation }, numbers_are_due }
    }

    /// Ends the push that [`Self::begin`] began, which told `told`. `jitter` is random in 0 to 1: a pause is shortened
    /// by up to its half, so that proxies which failed together are not tried together.
    pub fn end(&mut self, outcome: &Outcome, told: Extent, now: Duration, jitter: f64) -> Option<Transition> {
        match outcome {
            Outcome::Taken(_) => {
                let first = self.told.replace(told).is_none();
                let before = std::mem::replace(&mut self.phase, Phase::Fine);
                (first || before != Phase::Fine).then_some(Transition::Taken)
            }
            Outcome::Refused(refusal) => self.refused(refusal, now, jitter),
            // No failure: the whole follows, in the first form where the other was not read.
            Outcome::Baseless | Outcome::Unread => None,
            Outcome::Unauthorized => self.fail("it does not accept the token".into(), now, jitter),
            Outcome::Failed(reason) => self.fail(reason.clone(), now, jitter),
        }
    }

    fn refused(&mut self, refusal: &ViewRefusal, now: Duration, jitter: f64) -> Option<Transition> {
        if let Some(by) = refusal.epoch.filter(|epoch| *epoch > self.epoch) {
            let before = std::mem::replace(&mut self.phase, Phase::Superseded { by });
            return (before != self.phase).then_some(Transition::Superseded { by });
        }
        if refusal.epoch == Some(self.epoch) {
            self.generation = self.generation.max(refusal.generation.unwrap_or(0));
        }
        self.fail(format!("it refused the view: {}", refusal.error), now, jitter)
    }

    fn fail(&mut self, reason: String, now: Duration, jitter: f64) -> Option<Transition> {
        let failures = match self.phase {
            Phase::Failing { failures, .. } => failures.saturating_add(1),
            _ => 1,
        };
        let longest = LONGEST_PAUSE.min(self.heartbeat);
        let retry_at = now + backoff::pause(FIRST_PAUSE, longest, failures, jitter);
        self.phase = Phase::Failing { failures, retry_at };
        (failures == 1).then_some(Transition::Failing(reason))
    }
}

impl Outcome {
    /// What an answer to the document under `stamp` means: only one to that very document says that it was taken.
    pub fn of_answer(answer: ViewAnswer, stamp: Stamp) -> Self {
        let ViewAnswer { epoch, generation, .. } = answer;
        if (epoch, generation) == (stamp.epoch, stamp.generation) {
            Self::Taken(answer)
        } else {
            Self::Failed(format!("it answered to generation {generation} of epoch {epoch}"))
        }
    }

    /// Every value of the metric label `result`.
    pub const LABELS: [&str; 6] = ["taken", "refused", "baseless", "unread", "unauthorized", "failed"];

    /// The value of the metric label `result`.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Taken(_) => "taken",
            Self::Refused(_) => "refused",
            Self::Baseless => "baseless",
            Self::Unread => "unread",
            Self::Unauthorized => "unauthorized",
            Self::Failed(_) => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: u64 = 1_000;
    const HEARTBEAT: Duration = ms(1_000);
    const INTERVAL: Duration = ms(100);

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn courier() -> Courier {
        Courier::new(EPOCH, HEARTBEAT, INTERVAL)
    }

    fn taken(stamp: Stamp) -> Outcome {
        let Stamp { epoch, generation } = stamp;
        Outcome::of_answer(ViewAnswer { epoch, generation, ..ViewAnswer::default() }, stamp)
    }

    fn refused(epoch: u64, generation: u64) -> Outcome {
        let refusal = ViewRefusal { error: "no".into(), epoch: Some(epoch), ..ViewRefusal::default() };
        Outcome::Refused(ViewRefusal { generation: Some(generation), ..refusal })
    }

    fn push(courier: &mut Courier, at: Duration, outcome: impl Fn(Stamp) -> Outcome) -> Option<Transition> {
        let stamp = courier.begin(at).stamp;
        courier.end(&outcome(stamp), Extent::default(), at, 0.0)
    }

    fn failed(_: Stamp) -> Outcome {
        Outcome::Failed("connection refused".into())
    }

    #[test]
    fn states_are_told_at_once_numbers_once_an_interval_and_nothing_at_the_heartbeat() {
        let mut courier = courier();
        let quiet = Revision::default();
        assert_eq!(courier.due(quiet), Duration::ZERO);
        push(&mut courier, ms(50), taken);
        assert_eq!(courier.due(quiet), ms(1_050));
        assert_eq!(courier.due(Revision { numbers: 1, ..quiet }), ms(150));
        assert_eq!(courier.due(Revision { states: 1, numbers: 1, ..Revision::default() }), ms(55));
    }

    #[test]
    fn numbers_have_a_pace_of_their_own_that_states_do_not_hold_up() {
        let mut courier = courier();
        let begun = courier.begin(ms(0));
        assert!(begun.numbers_are_due);
        courier.end(&taken(begun.stamp), Extent { parts: 4, is_left: true, ..Extent::default() }, ms(1), 0.0);
        assert_eq!(courier.due(Revision::default()), ms(25), "some were left, in four parts an interval");
        for at in [5, 10, 15, 20] {
            let begun = courier.begin(ms(at));
            assert!(!begun.numbers_are_due, "{at}");
            let told = Extent { parts: 4, is_left: true, ..Extent::default() };
            courier.end(&taken(begun.stamp), told, ms(at), 0.0);
        }
        assert_eq!(courier.due(Revision::default()), ms(25));
        assert!(courier.begin(ms(25)).numbers_are_due);
        assert!(!courier.begin(ms(30)).numbers_are_due);
    }

    #[test]
    fn another_pace_holds_from_the_next_look_on() {
        let mut courier = courier();
        push(&mut courier, ms(50), taken);
        courier.pace(ms(200), INTERVAL);
        assert_eq!(courier.due(Revision::default()), ms(250));
    }

    #[test]
    fn an_interval_beyond_the_heartbeat_delays_nothing() {
        let mut courier = Courier::new(EPOCH, ms(100), ms(500));
        push(&mut courier, ms(0), taken);
        assert_eq!(courier.due(Revision { states: 0, numbers: 1, ..Revision::default() }), ms(100));
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_are_jittered() {
        let mut courier = courier();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            push(&mut courier, ms(0), failed);
            pauses.push(courier.due(Revision { states: 9, numbers: 9, ..Revision::default() }).as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000, 1_000, 1_000], "never longer than a heartbeat");
        courier.begin(ms(0));
        courier.end(&Outcome::Failed(String::new()), Extent::default(), ms(0), 1.0);
        assert_eq!(courier.due(Revision::default()), ms(500));
    }

    #[test]
    fn generations_rise_whatever_happens() {
        let mut courier = courier();
        let mut last = 0;
        let endings: [fn(Stamp) -> Outcome; 6] =
            [taken, failed, |_| refused(EPOCH, 40), |_| refused(EPOCH, 3), |_| refused(EPOCH + 5, 900), taken];
        for ending in endings {
            let stamp = courier.begin(ms(0)).stamp;
            assert!(stamp.generation > last, "{stamp:?} after {last}");
            last = stamp.generation;
            courier.end(&ending(stamp), Extent::default(), ms(0), 0.0);
        }
        assert_eq!(last, 43, "it went on above what stood, and another epoch's generations mean nothing");
    }

    #[test]
    fn one_transition_a_change_and_none_an_attempt() {
        let mut courier = courier();
        assert_eq!(push(&mut courier, ms(0), taken), Some(Transition::Taken));
        assert_eq!(push(&mut courier, ms(1), taken), None);
        assert!(matches!(push(&mut courier, ms(2), failed), Some(Transition::Failing(_))));
        assert_eq!(push(&mut courier, ms(3), failed), None);
        assert_eq!(push(&mut courier, ms(4), taken), Some(Transition::Taken));
    }

    #[test]
    fn a_later_sidecar_is_given_way_at_the_pace_of_heartbeats() {
        let mut courier = courier();
        let later = EPOCH + 5;
        assert_eq!(push(&mut courier, ms(0), |_| refused(later, 7)), Some(Transition::Superseded { by: later }));
        assert_eq!(courier.due(Revision { states: 3, numbers: 3, ..Revision::default() }), HEARTBEAT);
        assert_eq!(push(&mut courier, ms(1_000), |_| refused(later, 8)), None);
        assert_eq!(
            push(&mut courier, ms(2_000), |_| refused(later + 1, 1)),
            Some(Transition::Superseded { by: later + 1 })
        );
        assert_eq!(push(&mut courier, ms(3_000), taken), Some(Transition::Taken));
    }

    #[test]
    fn a_proxy_without_the_base_is_not_failing() {
        let mut courier = courier();
        push(&mut courier, ms(0), taken);
        assert_eq!(push(&mut courier, ms(10), |_| Outcome::Baseless), None);
        assert_eq!(push(&mut courier, ms(10), taken), None, "it took the whole then");
        assert!(matches!(push(&mut courier, ms(20), |_| Outcome::Unauthorized), Some(Transition::Failing(_))));
    }

    #[test]
    fn an_answer_to_another_document_is_a_failure() {
        let stamp = Stamp { epoch: EPOCH, generation: 4 };
        let older = ViewAnswer { epoch: EPOCH, generation: 3, ..ViewAnswer::default() };
        assert!(matches!(Outcome::of_answer(older, stamp), Outcome::Failed(_)));
    }

    #[test]
    fn what_was_not_taken_stays_to_be_told() {
        let mut courier = courier();
        let news = Revision { states: 2, numbers: 2, ..Revision::default() };
        push(&mut courier, ms(0), taken);
        courier.begin(ms(10));
        courier.end(&Outcome::Failed(String::new()), Extent { revision: news, ..Extent::default() }, ms(10), 0.0);
        push(&mut courier, ms(200), taken);
        assert_eq!(courier.due(news), ms(205));
    }
}
