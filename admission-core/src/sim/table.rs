//! A run as a page of text, so that a change of policy shows as a difference that a person can read.

use std::fmt::Write as _;

use super::Scenario;
use super::figures::{Figures, StreamFigures, quantile};

const HEAD: [&str; 15] = [
    "stream", "lane", "tenant", "offered", "served", "refused", "evicted", "left", "lost", "wait p50", "p95",
    "ttft p50", "p95", "tokens", "share",
];

/// The page of a run.
#[must_use]
pub fn page(scenario: &Scenario, seed: u64, figures: &Figures) -> String {
    let mut text = format!(
        "{}: {}\nseed {seed}, {} VMs, {} workers, {} s\n\n",
        scenario.name,
        scenario.about,
        scenario.vms,
        scenario.workers.len(),
        scenario.lasts / 1_000
    );
    let all: u64 = figures.streams.iter().map(|stream| stream.tokens).sum();
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    for (stream, figures) in scenario.streams.iter().zip(&figures.streams) {
        let mut row = vec![stream.name.to_owned(), stream.lane.to_owned(), stream.tenant.to_owned()];
        row.extend(numbers(figures, all));
        rows.push(row);
    }
    text.push_str(&aligned(&rows));
    text.push('\n');
    for (stream, figures) in scenario.streams.iter().zip(&figures.streams) {
        details(&mut text, stream.name, figures);
    }
    contest(&mut text, scenario, figures);
    ends(&mut text, figures);
    text
}

/// What is counted over all streams.
fn ends(text: &mut String, figures: &Figures) {
    let Figures { worker_preemptions, wakes, wakes_lost, conflicts, deaths, fencings, longest_queue, .. } = figures;
    let ((told, polled), overtakings) = (figures.started, figures.overtakings);
    let _ = writeln!(
        text,
        "queue: {longest_queue} at most; started when woken: {told}, by polling: {polled}, before an older one of their kind: {overtakings}"
    );
    let _ = writeln!(
        text,
        "workers: {worker_preemptions} preemptions · wake-ups: {wakes} sent, {wakes_lost} lost · writes: {conflicts} conflicts · VMs: {deaths} died, {fencings} fenced"
    );
}

fn numbers(figures: &StreamFigures, all_tokens: u64) -> Vec<String> {
    let refused: u64 = figures.refused.values().sum();
    let share = if all_tokens > 0 { figures.tokens as f64 * 100.0 / all_tokens as f64 } else { 0.0 };
    let mut row: Vec<String> = [figures.offered, figures.served, refused, figures.evicted, figures.left, figures.lost]
        .iter()
        .map(u64::to_string)
        .collect();
    for values in [&figures.waits, &figures.ttft] {
        row.extend([50, 95].map(|hundredths| format!("{} ms", quantile(values, hundredths))));
    }
    row.extend([figures.tokens.to_string(), format!("{share:.1} %")]);
    row
}

fn details(text: &mut String, name: &str, figures: &StreamFigures) {
    if !figures.refused.is_empty() {
        let reasons = figures.refused.iter().map(|(reason, count)| format!("{count} {reason}"));
        let _ = writeln!(text, "{name} refused: {}", reasons.collect::<Vec<_>>().join(", "));
    }
    if let Some(share) = (figures.honoured * 100).checked_div(figures.came_back) {
        let StreamFigures { came_back, honoured, .. } = figures;
        let _ = writeln!(text, "{name} came back when told to: {came_back}, served then: {honoured} ({share} %)");
    }
}

/// How those that always wait share what there is.
fn contest(text: &mut String, scenario: &Scenario, figures: &Figures) {
    let all: u64 = figures.streams.iter().map(|stream| stream.contested.1).sum();
    if all > 0 {
        let shares = scenario.streams.iter().zip(&figures.streams).map(|(stream, StreamFigures { contested, .. })| {
            let (requests, tokens) = contested;
            format!("{} {requests} requests, {:.1} % of the tokens", stream.name, *tokens as f64 * 100.0 / all as f64)
        });
        let _ = writeln!(text, "started while all waited: {}", shares.collect::<Vec<_>>().join("; "));
    }
}

/// Words to the left, numbers to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(text, "{cell:<width$}"),
                1 | 2 => write!(text, "  {cell:<width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}
