//! Whether every request is accounted for: by its caller, by a worker, and by the proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use serde::Serialize;

use super::callers::{Loss, Outcome, Record};
use super::history::{History, Incident, Kind, Life};
use super::proxy::ADMITTED;
use super::workers::Visit;

/// The filter's reason for a request that was let in and gave way then.
const EVICTED: &str = "evicted";

/// Requests that may be lost on their way to a worker in one trouble.
const ON_THE_WAY: usize = 3;

/// What became of all requests. `sent` = `admitted` + `refused` + `left` + `lost`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Balance {
    pub sent: u64,
    /// Let in: a worker had it, or its answer says so.
    pub admitted: u64,
    /// Of those, answered to the end.
    pub answered: u64,
    /// Refused by the filter, those included that were let in and gave way.
    pub refused: u64,
    /// Whose callers left before anybody had decided, as far as one can see.
    pub left: u64,
    /// Neither admitted nor refused: an incident has cost them.
    pub lost: u64,
    /// Without an answer or an end when their time was up.
    pub unanswered: u64,
    pub by_reason: BTreeMap<String, u64>,
    /// All that broke off, before or after they were admitted.
    pub by_loss: BTreeMap<String, u64>,
    /// Requests that broke off, which nothing but a worker's trouble explains, though no worker in trouble had them.
    pub failed_elsewhere: u64,
    /// Requests that count in `failed_elsewhere`.
    #[serde(skip)]
    pub elsewhere: Vec<String>,
    /// Numbers of such requests, by the trouble of a worker that they are put down to.
    #[serde(skip)]
    on_the_way: BTreeMap<usize, usize>,
    /// What does not add up.
    #[serde(skip)]
    pub faults: Vec<String>,
}

/// How the requests to one proxy ended, as their callers and the workers saw it.
#[derive(Clone, Debug, Default)]
struct Seen {
    sent: u64,
    admitted: u64,
    refused: BTreeMap<String, u64>,
    /// Who saw no answer, whatever it would have been.
    unseen: u64,
    /// Of those, whom no worker had.
    undecided: u64,
    /// Of those without an answer, who had not left.
    lost: u64,
    /// Whom VMs of a former build may have decided, of whose counts the last went unseen.
    blurred: u64,
}

/// Adds everything up.
pub fn balance(history: &History, records: &BTreeMap<usize, Record>, visits: &[Visit]) -> Balance {
    let mut balance = Balance::default();
    let mut lives = vec![Seen::default(); history.lives.len()];
    let mut visited = BTreeMap::new();
    for visit in visits {
        if visited.insert(visit.id, visit.worker).is_some() {
            balance.faults.push(format!("request {} reached workers twice", visit.id));
        }
    }
    for record in records.values() {
        balance.add(record, visited.get(&record.id).copied(), history, &mut lives[record.life]);
    }
    for (number, (life, seen)) in history.lives.iter().zip(&lives).enumerate() {
        balance.faults.extend(differences(life, seen).into_iter().map(|fault| format!("proxy {number}: {fault}")));
    }
    if balance.sent != balance.admitted + balance.refused + balance.left + balance.lost {
        balance.faults.push("what became of requests does not add up to what was sent".into());
    }
    balance
}

impl Balance {
    fn add(&mut self, record: &Record, worker: Option<usize>, history: &History, life: &mut Seen) {
        (self.sent, life.sent) = (self.sent + 1, life.sent + 1);
        let visited = worker.is_some();
        let let_in = visited || record.let_in;
        life.blurred += u64::from(history.blurs(record.life, record.sent, record.ended));
        match &record.outcome {
            Outcome::Refused(reason) => {
                self.refused += 1;
                *self.by_reason.entry(reason.clone()).or_default() += 1;
                *life.refused.entry(reason.clone()).or_default() += 1;
                if visited && reason != EVICTED {
                    self.faults.push(format!("request {} was refused ({reason}) and reached a worker", record.id));
                }
                return;
            }
            Outcome::Answered(_) => self.answered += 1,
            Outcome::Left => life.unseen += 1,
            Outcome::Unanswered => {
                (self.unanswered, life.unseen) = (self.unanswered + 1, life.unseen + 1);
                self.faults.push(format!("request {} has no answer: {record:?}", record.id));
            }
            Outcome::Lost(loss) => {
                (life.unseen, life.lost) = (life.unseen + 1, life.lost + 1);
                *self.by_loss.entry(text(*loss)).or_default() += 1;
                self.explain(record, *loss, worker, history);
            }
        }
        if let_in || matches!(record.outcome, Outcome::Answered(_)) {
            (self.admitted, life.admitted) = (self.admitted + 1, life.admitted + 1);
        } else {
            life.undecided += 1;
            match record.outcome {
                Outcome::Left => self.left += 1,
                _ => self.lost += 1,
            }
        }
    }
}

impl Balance {
    /// Looks for what has cost a request that was lost; `worker` is the one that had it.
    fn explain(&mut self, record: &Record, loss: Loss, worker: Option<usize>, history: &History) {
        let explains = |(_, one): &(usize, &Incident)| one.explains(loss, record.life, record.sent, record.ended);
        let incidents: Vec<(usize, Kind)> =
            history.incidents.iter().enumerate().filter(explains).map(|(at, one)| (at, one.kind)).collect();
        let Some((latest, _)) = incidents.last() else {
            return self.faults.push(format!("request {} was lost and nothing explains it: {record:?}", record.id));
        };
        let costs = |kind: &Kind| match kind {
            Kind::Worker(number) => worker == Some(*number),
            Kind::Trap | Kind::Kill => true,
        };
        if incidents.iter().any(|(_, kind)| costs(kind)) {
            return;
        }
        self.failed_elsewhere += 1;
        self.elsewhere.push(format!("{record:?} at {worker:?}"));
        if let Some(worker) = worker {
            self.faults.push(format!("request {} was lost at worker {worker}, which was well: {record:?}", record.id));
            return;
        }
        // Why some are let by: their bytes may have been on the way to the worker, which never saw them.
        let of_trouble = self.on_the_way.entry(*latest).or_default();
        *of_trouble += 1;
        if *of_trouble > ON_THE_WAY {
            self.faults.push(format!(
                "more than {ON_THE_WAY} requests were lost on their way to a worker in one trouble, such as {record:?}"
            ));
        }
    }
}

fn text(loss: Loss) -> String {
    match loss {
        Loss::NoConnection => "no connection".into(),
        Loss::NoAnswer => "connection broken".into(),
        Loss::Status(status) => format!("status {status} of the proxy's own"),
        Loss::CutShort => "cut short".into(),
    }
}

/// Where what a proxy has counted cannot be what its callers and the workers saw.
fn differences(life: &Life, seen: &Seen) -> Vec<String> {
    let counted = &life.counted;
    let of = |outcome: &str| counted.outcomes.get(outcome).copied().unwrap_or_default();
    let evicted = seen.refused.get(EVICTED).copied().unwrap_or_default();
    let let_in = seen.admitted + evicted;
    let decided: u64 = counted.outcomes.values().sum();
    let mut expected: Vec<(String, u64, RangeInclusive<u64>)> = vec![
        // A request counts as admitted once its body has been read; the VM may have died before that.
        (ADMITTED.into(), of(ADMITTED), let_in.saturating_sub(seen.lost + seen.blurred)..=let_in + seen.undecided),
        ("evicted".into(), counted.evicted, evicted.saturating_sub(seen.blurred)..=evicted + seen.unseen),
        (
            "requests that came".into(),
            counted.requests,
            (seen.sent + life.traps).saturating_sub(seen.undecided)..=seen.sent + life.traps,
        ),
        (
            "requests that came and were never decided".into(),
            counted.requests.saturating_sub(decided),
            0..=seen.undecided + seen.lost + seen.blurred + life.traps,
        ),
    ];
    let reasons: BTreeSet<&String> = seen.refused.keys().chain(counted.outcomes.keys()).collect();
    for reason in reasons.into_iter().filter(|reason| !matches!(reason.as_str(), ADMITTED | "left" | EVICTED)) {
        let told = seen.refused.get(reason).copied().unwrap_or_default();
        expected.push((
            format!("refused ({reason})"),
            of(reason),
            told.saturating_sub(seen.blurred)..=told + seen.unseen,
        ));
    }
    if decided > counted.requests {
        return vec![format!("it has decided {decided} requests of {}", counted.requests)];
    }
    let wrong = expected.into_iter().filter(|(_, counted, expected)| {
        // What a proxy counted between the last look and its death nobody knows.
        if life.killed { counted > expected.end() } else { !expected.contains(counted) }
    });
    wrong.map(|(what, counted, expected)| format!("{what}: it counts {counted}, not {expected:?}")).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::history::{Incident, Kind};

    fn record(id: usize, outcome: Outcome) -> Record {
        let (sent, ended) = (Duration::from_secs(5), Duration::from_secs(6));
        Record { id, tenant: "acme".into(), lane: None, life: 0, sent, ended, outcome, let_in: false }
    }

    fn visit(id: usize) -> Visit {
        Visit { id, worker: 0, came: Duration::from_secs(5), left: None, tokens: 0 }
    }

    fn counted(outcomes: &[(&str, u64)], requests: u64) -> History {
        let outcomes = outcomes.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let mut life = Life::default();
        (life.counted.requests, life.counted.outcomes) = (requests, outcomes);
        History { lives: vec![life], ..History::default() }
    }

    fn of(history: &History, outcomes: Vec<Outcome>, visits: &[Visit]) -> Balance {
        let records = outcomes.into_iter().enumerate().map(|(id, outcome)| (id, record(id, outcome)));
        balance(history, &records.collect(), visits)
    }

    #[test]
    fn what_adds_up_has_no_faults() {
        let history = counted(&[("admitted", 2), ("queue_full", 1), ("left", 1)], 4);
        let outcomes =
            vec![Outcome::Answered(200), Outcome::Refused("queue_full".into()), Outcome::Left, Outcome::Left];
        let balance = of(&history, outcomes, &[visit(0), visit(2)]);
        assert_eq!(balance.faults, [""; 0]);
        assert_eq!((balance.admitted, balance.refused, balance.left, balance.lost), (2, 1, 1, 0));
    }

    #[test]
    fn each_fault_shows() {
        let refused = || Outcome::Refused("queue_full".into());
        let one = counted(&[("queue_full", 1)], 1);
        assert_eq!(of(&one, vec![refused()], &[visit(0)]).faults.len(), 1, "refused and sent on");
        assert_eq!(
            of(&counted(&[], 1), vec![refused()], &[]).faults.len(),
            2,
            "refused and not counted, or even decided"
        );
        assert_eq!(of(&counted(&[("queue_full", 2)], 1), vec![refused()], &[]).faults.len(), 1, "counted twice");
        let admitted = counted(&[("admitted", 1)], 1);
        assert_eq!(of(&admitted, vec![Outcome::Answered(200)], &[visit(0), visit(0)]).faults.len(), 1, "sent on twice");
        assert_eq!(of(&admitted, vec![Outcome::Unanswered], &[visit(0)]).faults.len(), 1, "never answered");
    }

    #[test]
    fn a_loss_needs_an_incident() {
        let mut history = counted(&[], 1);
        let outcomes = || vec![Outcome::Lost(Loss::Status(503))];
        assert_eq!(of(&history, outcomes(), &[]).faults.len(), 1);
        let (from, until) = (Duration::from_secs(4), Duration::from_secs(5));
        history.incidents.push(Incident { kind: Kind::Worker(0), life: 0, from, until });
        let elsewhere = |outcomes: Vec<Outcome>, visits: &[Visit]| {
            let balance = of(&history, outcomes, visits);
            (balance.failed_elsewhere, balance.faults.iter().any(|fault| fault.contains("was lost")))
        };
        assert_eq!(elsewhere(outcomes(), &[visit(0)]), (0, false), "that worker had it");
        assert_eq!(elsewhere(outcomes(), &[]), (1, false), "it was on its way");
        assert_eq!(elsewhere(outcomes(), &[Visit { worker: 1, ..visit(0) }]), (1, true), "another one had it");
        let several = |count| vec![Outcome::Lost(Loss::Status(503)); count];
        assert_eq!(elsewhere(several(ON_THE_WAY), &[]).0, ON_THE_WAY as u64);
        let faults = |count| {
            of(&history, several(count), &[]).faults.iter().filter(|fault| fault.contains("on their way")).count()
        };
        assert_eq!((faults(ON_THE_WAY), faults(ON_THE_WAY + 1)), (0, 1));
        history.incidents.push(Incident { kind: Kind::Trap, life: 0, from, until });
        let explained = of(&history, outcomes(), &[]);
        assert_eq!((explained.faults.len(), explained.lost, explained.failed_elsewhere), (0, 1, 0));
    }
}
