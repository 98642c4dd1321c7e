//! What the sidecar benchmark found, beside its goals.

use std::time::Duration;

use serde::Serialize;
use testkit::statistics::Times;

use super::effect::Effects;

/// All figures.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// CPU time of the sidecar over time passed.
    pub cores: f64,
    /// The most memory it has held.
    pub rss_mib: f64,
    /// From a worker's page that shows a change to a request that is answered by it.
    pub effect_p99_ms: Option<f64>,
    /// What they were taken from.
    pub details: Details,
}

/// What the figures were taken from.
#[derive(Clone, Debug, Serialize)]
pub struct Details {
    pub workers: usize,
    pub window_s: f64,
    pub scrapes_per_s: f64,
    pub cpu_us_a_scrape: f64,
    pub bytes_a_scrape: f64,
    /// Of engines that do not leave out what is not asked for.
    pub whole_pages: WholePages,
    /// Since the start.
    pub connections: u64,
    pub new_connections_in_window: u64,
    pub failed_scrapes_a_slow_worker_apart: u64,
    pub views_taken: u64,
    pub effects: Effects,
    pub gaps: Gaps,
    pub gaps_beside_slow_workers: Gaps,
    pub quick: bool,
}

/// The cost while every scrape brings a whole page.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WholePages {
    pub cores: f64,
    pub scrapes_per_s: f64,
    pub cpu_us_a_scrape: f64,
    pub bytes_a_scrape: f64,
}

/// Time between two scrapes of the same worker, over all that are not slow.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Gaps {
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub max_ms: Option<f64>,
}

impl Gaps {
    pub fn of(gaps: Vec<Duration>) -> Self {
        let gaps: Times = gaps.into_iter().collect();
        Self { p50_ms: gaps.millis(0.5), p99_ms: gaps.millis(0.99), max_ms: gaps.millis(1.0) }
    }

    fn text(&self) -> String {
        format!("{}, {}, {}", ms(self.p50_ms), ms(self.p99_ms), ms(self.max_ms))
    }
}

impl Figures {
    /// Prints them as a table.
    pub fn print(&self) {
        let (details, effects) = (&self.details, &self.details.effects);
        let row = |name: &str, value: String, goal: &str| println!("    {name:<62}{value:>22}{goal:>12}");
        println!("\nsidecar: {} workers every 100 ms for {:.0} s", details.workers, details.window_s);
        row("", String::new(), "goal");
        row("CPU of the sidecar, cores", format!("{:.2}", self.cores), "<= 0.5");
        row("most memory of the sidecar, MiB", format!("{:.1}", self.rss_mib), "<= 100");
        row("from the page to the filter, p99 ms", ms(self.effect_p99_ms), "<= 20");
        let spread = [effects.p50_ms, effects.p90_ms, effects.max_ms].map(ms).join(", ");
        row("the same: p50, p90, max ms", spread, "");
        row(
            "changes timed, and left out because this process was starved",
            format!("{}, {}", effects.samples, effects.discarded),
            "",
        );
        row("scrapes a second", format!("{:.0}", details.scrapes_per_s), "");
        row("CPU of the sidecar for a scrape, µs", format!("{:.1}", details.cpu_us_a_scrape), "");
        row("bytes of a scrape", format!("{:.0}", details.bytes_a_scrape), "");
        row(
            "connections since the start, and new ones in the window",
            format!("{}, {}", details.connections, details.new_connections_in_window),
            "",
        );
        row("scrapes that failed, timeouts apart", details.failed_scrapes_a_slow_worker_apart.to_string(), "");
        row("views that the proxy took", details.views_taken.to_string(), "");
        row("between two scrapes of a worker: p50, p99, max ms", details.gaps.text(), "");
        row("the same while three others are slow", details.gaps_beside_slow_workers.text(), "");
        let whole = &details.whole_pages;
        row(
            "cores, scrapes a second while all send whole pages",
            format!("{:.2}, {:.0}", whole.cores, whole.scrapes_per_s),
            "",
        );
        let each = format!("{:.1}, {:.0}", whole.cpu_us_a_scrape, whole.bytes_a_scrape);
        row("CPU in µs, bytes of such a scrape", each, "");
    }
}

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}
