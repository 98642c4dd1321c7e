//! Whether all is at the end as it was at the beginning.

use serde::Serialize;
use testkit::load::Report;
use testkit::statistics::Summary;

use super::samples::Sample;
use super::scenario::INTERACTIVE;

/// Parts of a phase, of which the first and the last are compared.
pub const PARTS: u32 = 4;

/// By which the median of the last part may be above that of the first, in MiB.
const ENVOY_MIB: f64 = 16.0;
const SIDECAR_MIB: f64 = 8.0;
const VM_MIB: f64 = 4.0;

/// Most records there can be: those that all tenants without a name in the policy share, and some for all else.
const RECORDS: u64 = 1_024 + 32;

/// How far the last part's time to first token may be above the first's: so many times, and so many milliseconds beside for
/// the noise of a machine that others use too.
const P50: (f64, f64) = (1.25, 50.0);
const P95: (f64, f64) = (1.5, 250.0);

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub minutes_each: f64,
    pub phases: Vec<Phase>,
    /// Requests held when all was over.
    pub held: u64,
    pub waiting: u64,
    /// What does not hold; nothing when all is well.
    pub broken: Vec<String>,
}

/// One load.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    pub name: String,
    pub first: Part,
    pub last: Part,
    pub sent: u64,
    pub completed: u64,
    pub refused: u64,
    pub left: u64,
    pub unfinished: u64,
    pub failed: u64,
    /// TTFT samples that were not used, because the client was late.
    pub discarded: u64,
    pub client_late_ms: f64,
    pub samples: Vec<Sample>,
}

/// The beginning or the end of a phase: medians, and the interactive lane's time to first token.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Part {
    pub envoy_mib: f64,
    pub sidecar_mib: f64,
    pub vm_mib: f64,
    pub records: f64,
    pub machine_load: f64,
    pub ttft_p50_ms: f64,
    pub ttft_p95_ms: f64,
}

impl Part {
    fn of(samples: &[&Sample], report: &Report) -> Self {
        let median = |value: fn(&Sample) -> f64| {
            Summary::of(&samples.iter().map(|sample| value(sample)).collect::<Vec<_>>()).median
        };
        let ttft = |value: fn(&testkit::load::FlowReport) -> Option<f64>| {
            report.flows.get(INTERACTIVE).and_then(value).unwrap_or(f64::NAN)
        };
        Self {
            envoy_mib: median(|sample| sample.envoy_mib),
            sidecar_mib: median(|sample| sample.sidecar_mib),
            vm_mib: median(|sample| sample.vm_mib),
            records: median(|sample| sample.records as f64),
            machine_load: median(|sample| sample.machine_load),
            ttft_p50_ms: ttft(|flow| flow.ttft_p50_ms),
            ttft_p95_ms: ttft(|flow| flow.ttft_p95_ms),
        }
    }
}

impl Phase {
    /// Of what was looked at and of what was sent, part by part.
    pub fn new(name: &str, length_s: f64, samples: Vec<Sample>, reports: &[Report]) -> Option<Self> {
        let part = |number: usize, report: &Report| {
            let length = length_s / f64::from(PARTS);
            let from = length * number as f64;
            let own: Vec<&Sample> =
                samples.iter().filter(|sample| (from..from + length).contains(&sample.at_s)).collect();
            Part::of(&own, report)
        };
        let flows = || reports.iter().flat_map(|report| report.flows.values());
        Some(Self {
            name: name.to_owned(),
            first: part(0, reports.first()?),
            last: part(reports.len() - 1, reports.last()?),
            sent: flows().map(|flow| flow.sent).sum(),
            completed: flows().map(|flow| flow.completed).sum(),
            refused: flows().flat_map(|flow| flow.refused.values()).sum(),
            left: flows().map(|flow| flow.left).sum(),
            unfinished: flows().map(|flow| flow.unfinished).sum(),
            failed: flows().flat_map(|flow| flow.failed.values()).sum(),
            discarded: reports.iter().map(|report| report.discarded).sum(),
            client_late_ms: reports.iter().map(|report| report.lag_max_ms).fold(0.0, f64::max),
            samples,
        })
    }

    /// What has changed more than it may.
    fn broken(&self) -> Vec<String> {
        let (first, last) = (&self.first, &self.last);
        let mut broken = Vec::new();
        for (what, first, last, most) in [
            ("the proxy's memory", first.envoy_mib, last.envoy_mib, ENVOY_MIB),
            ("the sidecar's memory", first.sidecar_mib, last.sidecar_mib, SIDECAR_MIB),
            ("the memory of the filter's VMs", first.vm_mib, last.vm_mib, VM_MIB),
        ] {
            if last - first > most {
                broken.push(format!("{what} has grown from {first:.1} to {last:.1} MiB, by more than {most} MiB"));
            }
        }
        for (what, first, last, (times, more)) in
            [("p50", first.ttft_p50_ms, last.ttft_p50_ms, P50), ("p95", first.ttft_p95_ms, last.ttft_p95_ms, P95)]
        {
            // Not a number, where nobody was answered, is within nothing.
            let within = last <= first * times + more;
            if !within {
                broken.push(format!("the interactive lane's TTFT {what} has gone from {first:.0} to {last:.0} ms"));
            }
        }
        let records = self.samples.iter().map(|sample| sample.records).max().unwrap_or_default();
        if records > RECORDS {
            broken.push(format!("there are {records} records, more than {RECORDS}"));
        }
        if self.failed + self.unfinished > 0 {
            broken.push(format!("{} requests failed and {} have not ended", self.failed, self.unfinished));
        }
        broken.into_iter().map(|what| format!("{}: {what}", self.name)).collect()
    }
}

impl Figures {
    pub fn new(minutes_each: f64, phases: Vec<Phase>, (held, waiting): (u64, u64)) -> Self {
        let mut broken: Vec<String> = phases.iter().flat_map(Phase::broken).collect();
        if held + waiting > 0 {
            broken.push(format!("{held} requests are still held, and {waiting} wait"));
        }
        Self { minutes_each, phases, held, waiting, broken }
    }

    /// A table for people.
    pub fn print(&self) {
        println!("    {:<36}{:>12}{:>12}", "", "first part", "last part");
        for phase in &self.phases {
            let (first, last) = (&phase.first, &phase.last);
            let row = |name: &str, first: f64, last: f64, unit: &str| {
                println!("    {name:<36}{first:>12.1}{last:>12.1} {unit}");
            };
            println!("  {}", phase.name);
            row("the proxy's memory", first.envoy_mib, last.envoy_mib, "MiB");
            row("the sidecar's memory", first.sidecar_mib, last.sidecar_mib, "MiB");
            row("linear memory of the filter's VMs", first.vm_mib, last.vm_mib, "MiB");
            row("records in shared data", first.records, last.records, "");
            row("interactive: TTFT p50", first.ttft_p50_ms, last.ttft_p50_ms, "ms");
            row("interactive: TTFT p95", first.ttft_p95_ms, last.ttft_p95_ms, "ms");
            row("load of the machine", first.machine_load, last.machine_load, "");
            let Phase { sent, completed, refused, left, discarded, client_late_ms, .. } = phase;
            println!(
                "    {sent} sent: {completed} answered, {refused} refused, {left} left; {discarded} samples not used, \
                 client late by at most {client_late_ms:.0} ms"
            );
        }
        println!("    held at the end {}, waiting {}", self.held, self.waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(last: Part, records: u64) -> Phase {
        let sample = Sample {
            at_s: 1.0,
            envoy_mib: 100.0,
            sidecar_mib: 10.0,
            vm_mib: 6.0,
            vms: 2,
            records,
            held: 0,
            waiting: 0,
            machine_load: 1.0,
        };
        Phase {
            name: "load".into(),
            first: FIRST,
            last,
            sent: 1,
            completed: 1,
            refused: 0,
            left: 0,
            unfinished: 0,
            failed: 0,
            discarded: 0,
            client_late_ms: 0.0,
            samples: vec![sample],
        }
    }

    const FIRST: Part = Part {
        envoy_mib: 100.0,
        sidecar_mib: 10.0,
        vm_mib: 6.0,
        records: 900.0,
        machine_load: 1.0,
        ttft_p50_ms: 200.0,
        ttft_p95_ms: 400.0,
    };

    #[test]
    fn what_stays_is_well_and_what_grows_shows() {
        let broken = |last, records| Figures::new(1.0, vec![phase(last, records)], (0, 0)).broken.len();
        assert_eq!(broken(FIRST, 1_000), 0);
        assert_eq!(broken(FIRST, 2_000), 1);
        for grown in [
            Part { envoy_mib: 120.0, ..FIRST },
            Part { sidecar_mib: 20.0, ..FIRST },
            Part { vm_mib: 12.0, ..FIRST },
            Part { ttft_p50_ms: 400.0, ..FIRST },
            Part { ttft_p95_ms: 900.0, ..FIRST },
            Part { ttft_p95_ms: f64::NAN, ..FIRST },
        ] {
            assert_eq!(broken(grown, 1_000), 1, "{grown:?}");
        }
        assert_eq!(Figures::new(1.0, vec![], (1, 0)).broken.len(), 1);
    }
}
