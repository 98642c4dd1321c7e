//! What the overload benchmark found, beside its goals and beside the same without admission.

use serde::Serialize;

use super::long_prompts::LongPrompts;
use super::queue_cost::QueueCost;
use super::reserve::Reserve;
use super::throughput::Throughput;
use super::wake::Wake;

/// Figures of this checkout's module, and of another where that was asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub now: Figures,
    /// Figures of the other module, measured in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Figures>,
}

/// Figures of the scenarios that were played.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    #[serde(flatten)]
    pub lanes: Option<Lanes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_prompts: Option<LongPrompts>,
}

/// Figures of the lanes; nothing where there is no sample to take one from.
#[derive(Clone, Debug, Serialize)]
pub struct Lanes {
    #[serde(flatten)]
    pub with: Side,
    /// Without admission.
    pub baseline: Side,
    /// What they were taken from.
    pub details: Details,
}

/// The figures of one side.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// Tokens a second of answers in time at three times the load, as a part of the pool's best rate.
    pub goodput_ratio: f64,
    /// The interactive lane's p95 TTFT at three times the load, in multiples of that at half load.
    pub interactive_ttft_p95_ratio: Option<f64>,
    /// The interactive lane's p95 TTFT under a flood, in multiples of that alone, where a part of the pool is kept for it.
    pub reserved_ttft_p95_ratio: Option<f64>,
    /// Sequences that workers had to put back for want of KV blocks.
    pub preemptions: u64,
    /// From the release of a place in one thread to the start of a waiter in another.
    pub wake_p99_ms: Option<f64>,
    /// CPU time of the proxy for each request while 10,000 wait, in multiples of that while 10 do.
    pub queue_cost_ratio_10000: f64,
}

/// What the figures were taken from.
#[derive(Clone, Debug, Serialize)]
pub struct Details {
    pub throughput: Throughput,
    pub reserve: Reserve,
    pub wake: Wake,
    pub queue_cost: QueueCost,
}

impl Lanes {
    pub fn new(throughput: Throughput, reserve: Reserve, wake: Wake, queue_cost: QueueCost) -> Self {
        let best = throughput.best_tokens_per_s;
        let with = Side {
            goodput_ratio: throughput.with.goodput_ratio(best),
            interactive_ttft_p95_ratio: throughput.with.interactive_ttft_p95_ratio(),
            reserved_ttft_p95_ratio: reserve.with.ttft_p95_ratio(),
            preemptions: throughput.with.preemptions(),
            wake_p99_ms: wake.p99_ms(),
            queue_cost_ratio_10000: queue_cost.with.ratio(),
        };
        let baseline = Side {
            goodput_ratio: throughput.without.goodput_ratio(best),
            interactive_ttft_p95_ratio: throughput.without.interactive_ttft_p95_ratio(),
            reserved_ttft_p95_ratio: reserve.without.ttft_p95_ratio(),
            preemptions: throughput.without.preemptions(),
            // Nothing waits in the proxy, so nothing wakes.
            wake_p99_ms: None,
            queue_cost_ratio_10000: queue_cost.without.ratio(),
        };
        Self { with, baseline, details: Details { throughput, reserve, wake, queue_cost } }
    }

    /// Samples that were not used.
    fn discarded(&self) -> u64 {
        let sides = [&self.details.throughput.with, &self.details.throughput.without].into_iter();
        let reserve = [&self.details.reserve.with, &self.details.reserve.without].into_iter();
        let runs = sides.flat_map(|side| [&side.half_load, &side.overload]);
        let runs = runs.chain(reserve.flat_map(|side| [&side.idle, &side.flood]));
        runs.map(|run| run.report.discarded).sum::<u64>() + self.details.wake.discarded
    }
}

impl Report {
    /// Prints them as tables.
    pub fn print(&self) {
        let all: Vec<(&str, &Figures)> =
            self.before.iter().map(|before| ("before", before)).chain([("with", &self.now)]).collect();
        let lanes: Vec<(&str, &Lanes)> =
            all.iter().filter_map(|(name, figures)| Some((*name, figures.lanes.as_ref()?))).collect();
        print_lanes(&lanes);
        for (name, figures) in &all {
            if let Some(found) = &figures.long_prompts {
                println!("\n    long prompts beside a chat, {name}");
                found.print();
            }
        }
    }
}

fn print_lanes(lanes: &[(&str, &Lanes)]) {
    let Some((_, last)) = lanes.last() else { return };
    let sides = [("without", &last.baseline)].into_iter();
    let sides: Vec<(&str, &Side)> = sides.chain(lanes.iter().map(|(name, lanes)| (*name, &lanes.with))).collect();
    let row = |name: &str, goal: &str, of: &dyn Fn(&Side) -> String| {
        let columns: String = sides.iter().map(|(_, side)| format!("{:>12}", of(side))).collect();
        println!("    {name:<52}{columns}{goal:>12}");
    };
    let names: String = sides.iter().map(|(name, _)| format!("{name:>12}")).collect();
    println!("    {:<52}{names}{:>12}", "", "goal");
    row("goodput at 3 x load / best rate", ">= 0.95", &|side| format!("{:.3}", side.goodput_ratio));
    let ttft = |side: &Side| or_dash(side.interactive_ttft_p95_ratio, |ratio| format!("{ratio:.2}"));
    row("interactive TTFT p95 at 3 x load / at 0.5 x load", "<= 1.25", &ttft);
    let reserved = |side: &Side| or_dash(side.reserved_ttft_p95_ratio, |ratio| format!("{ratio:.2}"));
    row("TTFT p95 of a lane within its reserve, flood / idle", "<= 1.5", &reserved);
    row("preemptions in the workers", "0", &|side| side.preemptions.to_string());
    let wake = |side: &Side| or_dash(side.wake_p99_ms, |ms| format!("{ms:.1} ms"));
    row("release to start in the other thread, p99", "<= 5 ms", &wake);
    let cost = |side: &Side| format!("{:.2}", side.queue_cost_ratio_10000);
    row("CPU a request with 10,000 waiters / with 10", "<= 2", &cost);
    let discarded: u64 = lanes.iter().map(|(_, lanes)| lanes.discarded()).sum();
    println!("    {discarded} samples were discarded because the client was starved");
}

fn or_dash(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}
