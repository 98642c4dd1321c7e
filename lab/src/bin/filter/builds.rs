//! Two builds of the filter side by side: each in several proxies, so that what one proxy costs more than its twin is seen too.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;
use testkit::bodies;
use testkit::statistics::Summary;

use super::figures::differences;
use super::rounds::{self, Pace, Samples, Turn};
use super::stage::{Stage, question};
use super::variants::{Modules, TENANTS, Variant};

/// Proxies of each build.
///
/// Why several: a proxy keeps for life what its start has made of it, such as where its memory and the compiled module lie. That
/// makes two proxies of one build differ by percents, however many rounds there are.
const PROXIES: u8 = 4;

/// Student's t of a two-sided 95 % interval with 6 degrees of freedom: two groups of [`PROXIES`] that spread alike.
const T: f64 = 2.447;

const _: () = assert!(PROXIES == 4, "another number has another t");

/// The two builds' costs, by body.
#[derive(Clone, Debug, Serialize)]
pub struct Builds {
    pub bodies: BTreeMap<&'static str, OfBuilds>,
    pub quick: bool,
}

/// Costs of a request with one body, with each build.
#[derive(Clone, Debug, Serialize)]
pub struct OfBuilds {
    /// CPU time of the proxy for a request with this checkout's build, in multiples of that with the other.
    pub cpu_ratio: Ratio,
    /// CPU time beyond that of a proxy without a filter, in multiples of the same with the other build.
    pub added_ratio: Ratio,
    /// CPU time beyond that of the proxy without a filter, for each request, in µs, by proxy.
    pub ours_added_us: Vec<f64>,
    pub theirs_added_us: Vec<f64>,
}

/// A ratio of two means, and how far it may be off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    pub ratio: f64,
    /// Half of the 95 % interval, by the spread between proxies of one build.
    pub plus_minus: f64,
}

impl Ratio {
    fn of(ours: &[f64], theirs: &[f64]) -> Self {
        let (of_ours, of_theirs) = (Mean::of(ours), Mean::of(theirs));
        let ratio = of_ours.mean / of_theirs.mean;
        let relative = (of_ours.error / of_ours.mean).hypot(of_theirs.error / of_theirs.mean);
        Self { ratio, plus_minus: (T * ratio * relative).abs() }
    }
}

struct Mean {
    mean: f64,
    /// Standard error of the mean.
    error: f64,
}

impl Mean {
    fn of(samples: &[f64]) -> Self {
        let count = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        Self { mean, error: (squares / (count - 1.0) / count).sqrt() }
    }
}

/// Measures every body with both builds.
///
/// # Errors
/// When a proxy does not start, or answers otherwise than it should.
pub async fn compare(modules: &Modules, quick: bool) -> Result<Builds> {
    let pace = Pace::of_builds(quick);
    let all = bodies::all();
    let [small, ..] = &all;
    let both = (0..PROXIES).flat_map(|number| [Variant::Ours(number), Variant::Theirs(number)]);
    let variants: Vec<Variant> = std::iter::once(Variant::None).chain(both).collect();
    let mut stage = Stage::start(modules, &variants, small).await?;
    println!("\n{PROXIES} proxies of each build and one without a filter, one worker thread each, {pace:?}");
    let mut found = BTreeMap::new();
    for body in &all {
        println!("    {} …", body.name);
        let asked = question(body, TENANTS[0], None)?;
        let turns: Vec<Turn> = variants.iter().map(|variant| (*variant, asked.clone())).collect();
        found.insert(body.name, OfBuilds::new(&rounds::measure(&mut stage, &turns, None, pace).await?));
    }
    stage.check().await?;
    Ok(Builds { bodies: found, quick })
}

impl OfBuilds {
    fn new(samples: &BTreeMap<Variant, Samples>) -> Self {
        let none = samples.get(&Variant::None).map(|none| none.cpu_us.as_slice()).unwrap_or_default();
        let of = |build: fn(u8) -> Variant| (0..PROXIES).filter_map(move |number| samples.get(&build(number)));
        let cpu = |build| of(build).map(|proxy| Summary::of(&proxy.cpu_us).median).collect::<Vec<_>>();
        let added = |build| of(build).map(|proxy| Summary::of(&differences(&proxy.cpu_us, none)).median).collect();
        let (ours_added_us, theirs_added_us): (Vec<f64>, Vec<f64>) = (added(Variant::Ours), added(Variant::Theirs));
        Self {
            cpu_ratio: Ratio::of(&cpu(Variant::Ours), &cpu(Variant::Theirs)),
            added_ratio: Ratio::of(&ours_added_us, &theirs_added_us),
            ours_added_us,
            theirs_added_us,
        }
    }
}

impl Builds {
    /// Prints them as a table.
    pub fn print(&self) {
        println!(
            "\nCPU time of the proxy for a request with this build, in multiples of that with the other; ± is half of the 95 % interval"
        );
        if self.quick {
            println!("    quick: shows that everything works, no figures");
        }
        println!("    {:<14}{:>18}{:>18}    added by each proxy, µs", "", "CPU", "added");
        for body in bodies::all() {
            let Some(found) = self.bodies.get(body.name) else { continue };
            let ratio = |of: Ratio| format!("{:.3} ± {:.3}", of.ratio, of.plus_minus);
            let each = |of: &[f64]| of.iter().map(|one| format!("{one:.0}")).collect::<Vec<_>>().join(" ");
            println!(
                "    {:<14}{:>18}{:>18}    ours {}, theirs {}",
                body.name,
                ratio(found.cpu_ratio),
                ratio(found.added_ratio),
                each(&found.ours_added_us),
                each(&found.theirs_added_us)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_as_sure_as_proxies_of_one_build_agree() {
        let sure = Ratio::of(&[110.0, 110.0, 110.0, 110.0], &[100.0, 100.0, 100.0, 100.0]);
        assert!((sure.ratio - 1.1).abs() < 1e-9 && sure.plus_minus == 0.0, "{sure:?}");
        let unsure = Ratio::of(&[100.0, 120.0, 100.0, 120.0], &[90.0, 110.0, 90.0, 110.0]);
        // Standard errors of 11.547 / 2 on 110 and on 100.
        let expected = 2.447 * 1.1 * (5.7735_f64 / 110.0).hypot(5.7735 / 100.0);
        assert!((unsure.plus_minus - expected).abs() < 1e-4, "{unsure:?}, {expected}");
    }

    #[test]
    fn what_is_added_is_above_a_proxy_without_a_filter() {
        let samples = |cost: f64| Samples { cpu_us: vec![cost, cost + 10.0, cost + 1.0], ..Samples::default() };
        let ours = (0..PROXIES).map(|number| (Variant::Ours(number), samples(130.0)));
        let theirs = (0..PROXIES).map(|number| (Variant::Theirs(number), samples(120.0)));
        let found = OfBuilds::new(&ours.chain(theirs).chain([(Variant::None, samples(100.0))]).collect());
        assert_eq!(found.added_ratio, Ratio { ratio: 1.5, plus_minus: 0.0 });
        assert_eq!((found.ours_added_us, found.theirs_added_us), (vec![30.0; 4], vec![20.0; 4]));
    }
}
