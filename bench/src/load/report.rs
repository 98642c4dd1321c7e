//! From single requests to figures.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::Plan;
use super::exchange::{Ending, Record};

/// A sample of a client that was later than this says more about the client than about the system.
const TOLERATED_LAG: Duration = Duration::from_millis(100);

/// What a run has measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// By name.
    pub tenants: BTreeMap<String, TenantReport>,
    /// Text delivered while the plan was being sent, of requests that were then answered to the end.
    pub goodput_tokens_per_s: f64,
    /// Refusals by reason.
    pub refused: BTreeMap<String, u64>,
    /// TTFT samples not used because the client was late.
    pub discarded: u64,
    /// The most that the client was late.
    pub lag_max_ms: f64,
}

/// What a run has measured of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TenantReport {
    /// Requests sent.
    pub sent: u64,
    /// Answered to the end.
    pub completed: u64,
    /// Refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Neither answered nor refused, by what happened.
    pub failed: BTreeMap<String, u64>,
    /// Not answered to the end when the run ended.
    pub unfinished: u64,
    /// From the scheduled arrival to the first text. A request that had none when the run ended counts with the time it
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
        tenants: BTreeMap::new(),
        goodput_tokens_per_s: 0.0,
        refused: BTreeMap::new(),
        discarded: 0,
        lag_max_ms: 0.0,
    };
    for (index, tenant) in plan.tenants.iter().enumerate() {
        let own: Vec<&Record> = records.iter().filter(|record| record.tenant == index).collect();
        let part = tenant_report(&own, plan.duration);
        whole.goodput_tokens_per_s += part.goodput_tokens_per_s;
        whole.discarded += part.discarded;
        whole.lag_max_ms = whole.lag_max_ms.max(part.lag_max_ms);
        for (reason, count) in &part.refused {
            *whole.refused.entry(reason.clone()).or_default() += count;
        }
        whole.tenants.insert(tenant.name.clone(), part);
    }
    whole
}

fn tenant_report(records: &[&Record], window: Duration) -> TenantReport {
    let mut report = TenantReport { sent: records.len() as u64, ..TenantReport::default() };
    let (mut samples, mut tokens, mut lag) = (Vec::new(), 0, Duration::ZERO);
    for record in records {
        match &record.ending {
            Ending::Completed => {
                report.completed += 1;
                tokens += record.tokens_in_window;
            }
            Ending::Refused(reason) => *report.refused.entry(reason.clone()).or_default() += 1,
            Ending::Failed(what) => *report.failed.entry(what.clone()).or_default() += 1,
            Ending::Unfinished => report.unfinished += 1,
        }
        lag = lag.max(record.lag);
        match record.ttft {
            Some(_) if record.lag > TOLERATED_LAG => report.discarded += 1,
            Some(ttft) => samples.push(ttft),
            None => {}
        }
    }
    samples.sort_unstable();
    report.ttft_p50_ms = percentile(&samples, 50);
    report.ttft_p95_ms = percentile(&samples, 95);
    report.goodput_tokens_per_s = tokens as f64 / window.as_secs_f64();
    report.lag_max_ms = milliseconds(lag);
    report
}

/// The smallest sample that `percent` of all do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().map(milliseconds)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(ttft_ms: u64, lag_ms: u64, ending: Ending) -> Record {
        let ttft = Some(Duration::from_millis(ttft_ms));
        Record { tenant: 0, lag: Duration::from_millis(lag_ms), ttft, tokens_in_window: 10, ending }
    }

    #[test]
    fn percentiles_are_samples() {
        let samples: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&samples, 50), Some(50.0));
        assert_eq!(percentile(&samples, 95), Some(95.0));
        assert_eq!(percentile(&samples[..1], 95), Some(1.0));
        assert_eq!(percentile(&[], 95), None);
    }

    #[test]
    fn only_what_was_answered_to_the_end_is_goodput() {
        let records = [record(1, 0, Ending::Completed), record(1, 0, Ending::Unfinished)];
        let report = tenant_report(&records.each_ref(), Duration::from_secs(2));
        assert_eq!((report.goodput_tokens_per_s, report.completed, report.unfinished), (5.0, 1, 1));
    }

    #[test]
    fn a_sample_of_a_late_client_is_discarded_and_counted() {
        let records = [record(30, 100, Ending::Completed), record(900, 101, Ending::Completed)];
        let report = tenant_report(&records.each_ref(), Duration::from_secs(1));
        assert_eq!((report.ttft_p95_ms, report.discarded, report.lag_max_ms), (Some(30.0), 1, 101.0));
    }
}
