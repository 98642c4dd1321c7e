//! From single requests to figures.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::Plan;
use super::exchange::{Ending, Record};
use crate::statistics::Times;

/// A sample of a client that was later than this says more about the client than about the system.
pub const TOLERATED_LAG: Duration = Duration::from_millis(100);

/// What a run has measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// By name.
    pub flows: BTreeMap<String, FlowReport>,
    /// Text delivered while the plan was being sent, after the warm-up, of requests that began in time and were answered to
    /// the end.
    pub goodput_tokens_per_s: f64,
    /// Refusals by reason.
    pub refused: BTreeMap<String, u64>,
    /// TTFT samples not used because the client was late.
    pub discarded: u64,
    /// The most that the client was late.
    pub lag_max_ms: f64,
}

/// What a run has measured of one flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FlowReport {
    /// Requests sent.
    pub sent: u64,
    /// Answered to the end.
    pub completed: u64,
    /// Of those, begun too late to be worth anything.
    pub late: u64,
    /// Refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Neither answered nor refused, by what happened.
    pub failed: BTreeMap<String, u64>,
    /// Whose callers left.
    pub left: u64,
    /// Not answered to the end when the run ended.
    pub unfinished: u64,
    /// From the scheduled arrival to the first text, after the warm-up. A request that had none when the run ended counts with the time it
    /// had waited, so the figure is rather too small.
    pub ttft_p50_ms: Option<f64>,
    /// The same, of the slowest twentieth.
    pub ttft_p95_ms: Option<f64>,
    /// Samples not used because the client was late.
    pub discarded: u64,
    /// See [`Report::goodput_tokens_per_s`].
    pub goodput_tokens_per_s: f64,
    /// The most that the client was late.
    pub lag_max_ms: f64,
}

pub fn report(plan: &Plan, records: &[Record]) -> Report {
    let mut whole = Report {
        flows: BTreeMap::new(),
        goodput_tokens_per_s: 0.0,
        refused: BTreeMap::new(),
        discarded: 0,
        lag_max_ms: 0.0,
    };
    for (index, flow) in plan.flows.iter().enumerate() {
        let own: Vec<&Record> = records.iter().filter(|record| record.flow == index).collect();
        let part = flow_report(&own, plan.duration - plan.warm_up, flow.in_time);
        whole.goodput_tokens_per_s += part.goodput_tokens_per_s;
        whole.discarded += part.discarded;
        whole.lag_max_ms = whole.lag_max_ms.max(part.lag_max_ms);
        for (reason, count) in &part.refused {
            *whole.refused.entry(reason.clone()).or_default() += count;
        }
        whole.flows.insert(flow.name.clone(), part);
    }
    whole
}

fn flow_report(records: &[&Record], window: Duration, in_time: Option<Duration>) -> FlowReport {
    let mut report = FlowReport { sent: records.len() as u64, ..FlowReport::default() };
    let (mut samples, mut tokens, mut lag) = (Times::default(), 0, Duration::ZERO);
    for record in records {
        match &record.ending {
            Ending::Completed => {
                report.completed += 1;
                let late = record.ttft.zip(in_time).is_some_and(|(ttft, in_time)| ttft > in_time);
                report.late += u64::from(late);
                tokens += if late { 0 } else { record.tokens_in_window };
            }
            Ending::Refused(reason) => *report.refused.entry(reason.clone()).or_default() += 1,
            Ending::Failed(what) => *report.failed.entry(what.clone()).or_default() += 1,
            Ending::Left => report.left += 1,
            Ending::Unfinished => report.unfinished += 1,
        }
        lag = lag.max(record.lag);
        match record.ttft.filter(|_| !record.warm_up) {
            Some(_) if record.lag > TOLERATED_LAG => report.discarded += 1,
            Some(ttft) => samples.record(ttft),
            None => {}
        }
    }
    report.ttft_p50_ms = samples.millis(0.5);
    report.ttft_p95_ms = samples.millis(0.95);
    report.goodput_tokens_per_s = tokens as f64 / window.as_secs_f64();
    report.lag_max_ms = milliseconds(lag);
    report
}

fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(ttft_ms: u64, lag_ms: u64, ending: Ending) -> Record {
        let ttft = Some(Duration::from_millis(ttft_ms));
        let lag = Duration::from_millis(lag_ms);
        Record { flow: 0, at: Duration::ZERO, lag, warm_up: false, ttft, tokens_in_window: 10, ending }
    }

    #[test]
    fn only_what_was_answered_to_the_end_is_goodput() {
        let records = [record(1, 0, Ending::Completed), record(1, 0, Ending::Unfinished)];
        let report = flow_report(&records.each_ref(), Duration::from_secs(2), None);
        assert_eq!((report.goodput_tokens_per_s, report.completed, report.unfinished), (5.0, 1, 1));
    }

    #[test]
    fn what_began_too_late_is_no_goodput() {
        let records = [record(1_000, 0, Ending::Completed), record(1_001, 0, Ending::Completed)];
        let report = flow_report(&records.each_ref(), Duration::from_secs(1), Some(Duration::from_secs(1)));
        assert_eq!((report.goodput_tokens_per_s, report.completed, report.late), (10.0, 2, 1));
    }

    #[test]
    fn what_was_due_in_the_warm_up_is_no_sample() {
        let early = Record { warm_up: true, ..record(900, 0, Ending::Completed) };
        let report = flow_report(&[&early, &record(30, 0, Ending::Completed)], Duration::from_secs(1), None);
        assert_eq!((report.ttft_p95_ms.map(f64::round), report.completed, report.discarded), (Some(30.0), 2, 0));
    }

    #[test]
    fn a_sample_of_a_late_client_is_discarded_and_counted() {
        let records = [record(30, 100, Ending::Completed), record(900, 101, Ending::Completed)];
        let report = flow_report(&records.each_ref(), Duration::from_secs(1), None);
        assert_eq!((report.ttft_p95_ms.map(f64::round), report.discarded, report.lag_max_ms), (Some(30.0), 1, 101.0));
    }
}
