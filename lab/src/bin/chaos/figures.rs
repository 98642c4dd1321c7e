//! What a run of chaos comes to.

use std::fmt::Write as _;

use serde::Serialize;

use super::balance::Balance;
use super::caps::Overshoot;
use super::gates::Starts;
use super::stage::Rest;

/// By which the proxy's memory may have grown, in MiB: compiled code of two other builds, some 25 MiB each, which the proxy keeps
/// when it no longer runs them, and buffers of its busiest second.
const GROWTH_MIB: f64 = 64.0;

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub seed: u64,
    pub minutes: f64,
    /// Things that happened.
    pub events: usize,
    /// Requests held when all was over, by what the state page says.
    pub held: u64,
    /// Requests that waited then.
    pub waiting: u64,
    /// The most by which a cap was exceeded, as the workers counted.
    pub overshoot: u64,
    /// Caps that were reached, each counted for each proxy.
    pub caps_reached: usize,
    /// The most requests beyond what a dispatch budget leaves, at a start of its lane.
    pub budget_exceeded: u64,
    /// Starts of the last request that a budget left room for.
    pub budget_reached: usize,
    /// The most requests beyond what a ceiling lets through, at a start of its lane.
    pub ceiling_exceeded: u64,
    /// Starts of the last request that a ceiling lets through.
    pub ceiling_reached: usize,
    /// The most requests beyond what is kept for the highest lane, at a start of another.
    pub reserve_exceeded: u64,
    /// Starts of the last request that a reserve leaves to other lanes.
    pub reserve_reached: usize,
    /// Times that a VM may have been taken for dead because the machine did not let it run; caps are not looked at then.
    pub fences: usize,
    /// By which the last proxy's memory has grown since its first seconds.
    pub rss_growth_mib: f64,
    pub rss_mib: f64,
    /// The most that the client was late, in milliseconds.
    pub client_late_ms: f64,
    #[serde(flatten)]
    pub balance: Balance,
    /// What does not hold; nothing when all is well.
    pub broken: Vec<String>,
}

/// How it was played.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub seed: u64,
    pub minutes: f64,
    pub events: usize,
    pub fences: usize,
    pub client_late_ms: f64,
}

impl Figures {
    pub fn new(
        run: Run,
        rest: Rest,
        (overshoot, [budget, ceiling, reserve]): (&Overshoot, [&Starts; 3]),
        balance: Balance,
    ) -> Self {
        let growth = rest.rss_mib.1 - rest.rss_mib.0;
        let mut broken = Vec::new();
        if rest.held > 0 {
            broken.push(format!("{} requests are still held", rest.held));
        }
        if rest.waiting > 0 {
            broken.push(format!("{} requests still wait", rest.waiting));
        }
        if rest.in_hand > 0 {
            broken.push(format!("the proxy still has {} requests in hand", rest.in_hand));
        }
        if rest.more_vms > 0 {
            broken.push(format!("the proxy has {} VMs more than it needs", rest.more_vms));
        }
        if overshoot.by > 0 {
            broken.push(format!("a cap was exceeded by {}: {}", overshoot.by, overshoot.what));
        }
        for (name, starts) in [("dispatch budget", budget), ("ceiling", ceiling), ("reserve", reserve)] {
            if starts.by > 0 {
                broken.push(format!("a {name} was exceeded by {}: {}", starts.by, starts.what));
            }
        }
        if overshoot.reached == 0 {
            broken.push("no cap was ever reached, so none was checked".into());
        }
        if growth > GROWTH_MIB {
            broken.push(format!("the proxy's memory has grown by {growth:.0} MiB, more than {GROWTH_MIB} MiB"));
        }
        broken.extend(balance.faults.iter().cloned());
        let Run { seed, minutes, events, fences, client_late_ms } = run;
        Self {
            seed,
            minutes,
            events,
            held: rest.held,
            waiting: rest.waiting,
            overshoot: overshoot.by,
            caps_reached: overshoot.reached,
            budget_exceeded: budget.by,
            budget_reached: budget.reached,
            ceiling_exceeded: ceiling.by,
            ceiling_reached: ceiling.reached,
            reserve_exceeded: reserve.by,
            reserve_reached: reserve.reached,
            fences,
            rss_growth_mib: growth,
            rss_mib: rest.rss_mib.1,
            client_late_ms,
            balance,
            broken,
        }
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let Balance {
            sent,
            admitted,
            answered,
            refused,
            left,
            lost,
            unanswered,
            by_reason,
            by_loss,
            failed_elsewhere,
            ..
        } = &self.balance;
        let mut table = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(table, "    {name:<44}{value:>10}");
        };
        line("events", self.events.to_string());
        line("requests sent", sent.to_string());
        line("admitted", admitted.to_string());
        line("  answered to the end", answered.to_string());
        line("refused", refused.to_string());
        for (reason, count) in by_reason {
            line(&format!("  {reason}"), count.to_string());
        }
        line("left before a decision", left.to_string());
        line("lost to an incident before a decision", lost.to_string());
        line("unanswered", unanswered.to_string());
        for (loss, count) in by_loss {
            line(&format!("broken off: {loss}"), count.to_string());
        }
        line("failed, though no worker in trouble had them", failed_elsewhere.to_string());
        line("held at the end", self.held.to_string());
        line("waiting at the end", self.waiting.to_string());
        line("most beyond a cap", self.overshoot.to_string());
        line("caps reached", self.caps_reached.to_string());
        line("most beyond a dispatch budget", self.budget_exceeded.to_string());
        line("dispatch budgets reached", self.budget_reached.to_string());
        line("most beyond a ceiling", self.ceiling_exceeded.to_string());
        line("ceilings reached", self.ceiling_reached.to_string());
        line("most beyond what a reserve leaves", self.reserve_exceeded.to_string());
        line("reserves reached", self.reserve_reached.to_string());
        line("VMs taken for dead while they lived", self.fences.to_string());
        line("the last proxy's memory has grown by", format!("{:.1} MiB", self.rss_growth_mib));
        line("  to", format!("{:.1} MiB", self.rss_mib));
        line("client late by at most", format!("{:.0} ms", self.client_late_ms));
        table
    }
}
