//! What the filter benchmark found, beside its goals.

use std::collections::BTreeMap;

use serde::Serialize;
use testkit::statistics::Summary;

use super::rounds::Samples;
use super::variants::Variant;

/// Bodies from the least to the most, and by whose measure each is judged: the filter is to add no more than that one does.
const GOALS: [(&str, Variant); 4] = [
    ("small", Variant::Native),
    ("turns_38k", Variant::Naive),
    ("turns_263k", Variant::Naive),
    ("prompt_263k", Variant::Naive),
];

/// All figures.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub bodies: BTreeMap<&'static str, OfBody>,
    /// CPU time that the filter adds to each chunk of a streamed answer, in µs; its share of the request's own included.
    pub stream_chunk_us: f64,
    /// Memory that the proxy with the filter holds beyond the one without.
    pub rss_mib: f64,
    /// Size of the filter's module.
    pub wasm_bytes: u64,
    /// CPU time of the proxy for a request with ten thousand tenants, in multiples of that with ten.
    pub tenants_10000_ratio: f64,
    /// CPU time of the proxy for a request of one of a hundred thousand unnamed tenants, in multiples of that of one of ten named ones.
    pub unnamed_100000_ratio: f64,
    pub details: Details,
}

/// What was found with one body.
#[derive(Clone, Debug, Serialize)]
pub struct OfBody {
    pub bytes: usize,
    /// What the filter adds, in multiples of what the floor adds.
    pub added_ratio_floor: f64,
    /// The same of what the floor adds that has the body copied to itself.
    pub added_ratio_floor_reading: f64,
    /// The same of what the floor adds that makes the calls which the filter makes.
    pub added_ratio_floor_calls: f64,
    /// The same of what the plain filter adds that parses the body into a tree.
    pub added_ratio_naive: f64,
    /// The same of what Envoy's own pair adds.
    pub added_ratio_native: f64,
    /// What those calls alone add, in multiples of what the floor adds, and of what Envoy's own pair adds.
    pub calls_added_ratio_floor: f64,
    pub calls_added_ratio_native: f64,
    /// Three of them for the filter that holds headers and body.
    pub held_added_ratio_floor: f64,
    pub held_added_ratio_naive: f64,
    pub held_added_ratio_native: f64,
    pub variants: BTreeMap<&'static str, OfVariant>,
}

/// What was found with one body at one proxy.
#[derive(Clone, Debug, Serialize)]
pub struct OfVariant {
    /// CPU time of the proxy for each request.
    pub cpu_us: Summary,
    /// What that is more than without any filter, in the same round.
    pub added_us: Summary,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub requests: u64,
    /// Latencies left out because the client was starved.
    pub discarded: u64,
}

/// What the other figures were taken from.
#[derive(Clone, Debug, Serialize)]
pub struct Details {
    /// CPU time of the proxy for each chunk of a stream, by variant.
    pub stream_cpu_us: BTreeMap<&'static str, Summary>,
    /// CPU time of the proxy for each request, by variant.
    pub tenants_cpu_us: BTreeMap<&'static str, Summary>,
    /// The same where tenants ask that no list names.
    pub unnamed_cpu_us: BTreeMap<&'static str, Summary>,
    /// Memory of each proxy after all of it.
    pub resident_mib: BTreeMap<&'static str, f64>,
    pub quick: bool,
}

impl OfBody {
    /// From the rounds of every variant.
    pub fn new(bytes: usize, samples: &BTreeMap<Variant, Samples>) -> Self {
        let none = samples.get(&Variant::None).map(|samples| samples.cpu_us.as_slice()).unwrap_or_default();
        let of_variant = |samples: &Samples| OfVariant {
            cpu_us: Summary::of(&samples.cpu_us),
            added_us: Summary::of(&differences(&samples.cpu_us, none)),
            p50_us: samples.latencies.micros(0.5),
            p99_us: samples.latencies.micros(0.99),
            requests: samples.requests,
            discarded: samples.discarded,
        };
        let variants: BTreeMap<&'static str, OfVariant> =
            samples.iter().map(|(variant, samples)| (variant.name(), of_variant(samples))).collect();
        let added = |variant: Variant| variants.get(variant.name()).map_or(f64::NAN, |found| found.added_us.median);
        let ratio = |of: Variant, to: Variant| added(of) / added(to);
        Self {
            bytes,
            added_ratio_floor: ratio(Variant::Sluice, Variant::Floor),
            added_ratio_floor_reading: ratio(Variant::Sluice, Variant::FloorReading),
            added_ratio_floor_calls: ratio(Variant::Sluice, Variant::FloorCalls),
            added_ratio_naive: ratio(Variant::Sluice, Variant::Naive),
            added_ratio_native: ratio(Variant::Sluice, Variant::Native),
            calls_added_ratio_floor: ratio(Variant::FloorCalls, Variant::Floor),
            calls_added_ratio_native: ratio(Variant::FloorCalls, Variant::Native),
            held_added_ratio_floor: ratio(Variant::SluiceHeld, Variant::Floor),
            held_added_ratio_naive: ratio(Variant::SluiceHeld, Variant::Naive),
            held_added_ratio_native: ratio(Variant::SluiceHeld, Variant::Native),
            variants,
        }
    }

    fn print(&self, name: &str) {
        println!("\n    {name} ({} bytes)", self.bytes);
        println!(
            "    {:<14}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "", "CPU µs", "spread", "added", "spread", "p50 µs", "p99 µs"
        );
        for variant in Variant::COMPARED {
            let Some(found) = self.variants.get(variant.name()) else { continue };
            println!(
                "    {:<14}{:>10.1}{:>10.1}{:>10.1}{:>10.1}{:>10}{:>10}",
                variant.name(),
                found.cpu_us.median,
                found.cpu_us.spread(),
                found.added_us.median,
                found.added_us.spread(),
                or_dash(found.p50_us),
                or_dash(found.p99_us),
            );
        }
        let goal = |of: Variant| if GOALS.contains(&(name, of)) { " (goal <= 1)" } else { "" };
        println!(
            "    sluice adds {:.3} x Envoy's own pair{}, {:.3} x the naive filter{}",
            self.added_ratio_native,
            goal(Variant::Native),
            self.added_ratio_naive,
            goal(Variant::Naive)
        );
        println!(
            "    and {:.2} x the floor, {:.2} x the floor that reads, {:.2} x the calls alone",
            self.added_ratio_floor, self.added_ratio_floor_reading, self.added_ratio_floor_calls
        );
    }
}

impl Figures {
    /// Prints them as tables.
    pub fn print(&self) {
        println!("\nfilter: CPU time of one proxy thread for each request; spread is the distance of the quartiles");
        for (name, _) in GOALS {
            if let Some(found) = self.bodies.get(name) {
                found.print(name);
            }
        }
        println!();
        let row = |name: &str, value: String, goal: &str| println!("    {name:<58}{value:>12}{goal:>12}");
        row("added to each chunk of a stream, µs", format!("{:.2}", self.stream_chunk_us), "<= 3");
        row("CPU a request with 10,000 tenants / with 10", format!("{:.3}", self.tenants_10000_ratio), "<= 1.1");
        row("CPU a request of 100,000 unnamed tenants / of 10 named", format!("{:.3}", self.unnamed_100000_ratio), "");
        row("memory of the proxy beyond that without filter, MiB", format!("{:.1}", self.rss_mib), "");
        row("module, KiB", format!("{:.0}", self.wasm_bytes as f64 / 1024.0), "<= 2048");
        let (discarded, requests) = self
            .bodies
            .values()
            .flat_map(|body| body.variants.values())
            .fold((0, 0), |(discarded, requests), found| (discarded + found.discarded, requests + found.requests));
        println!("    {discarded} of {requests} latencies were discarded because the client was starved");
    }
}

/// What each sample is more than the one of the same round.
pub fn differences(samples: &[f64], base: &[f64]) -> Vec<f64> {
    samples.iter().zip(base).map(|(sample, base)| sample - base).collect()
}

fn or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_what_is_added_and_not_of_the_whole() {
        let samples = |base: f64| Samples { cpu_us: vec![base, base + 10.0, base + 1.0], ..Samples::default() };
        let costs = [
            (Variant::None, 100.0),
            (Variant::Floor, 110.0),
            (Variant::Naive, 140.0),
            (Variant::Native, 200.0),
            (Variant::Sluice, 120.0),
        ];
        let found = OfBody::new(1, &costs.into_iter().map(|(variant, cost)| (variant, samples(cost))).collect());
        assert_eq!((found.added_ratio_floor, found.added_ratio_naive, found.added_ratio_native), (2.0, 0.5, 0.2));
        assert_eq!(found.variants["sluice"].cpu_us.median, 121.0);
        assert_eq!(found.variants["none"].added_us, Summary { samples: 3, ..Summary::default() });
        assert!(found.held_added_ratio_floor.is_nan(), "that was not measured");
    }
}
