//! The simulation: many VMs over one memory, workers with a price for every step, clients, and all that can go wrong between
//! them, in virtual time. The same seed gives the same run, to the byte.
//!
//! A [`Scenario`] is data. [`run`] plays it and asks the reference after every step whether the invariants still hold;
//! [`page`] shows what came out. The decision, the records and the queues are the core's own, called as a proxy calls them.
#![allow(clippy::indexing_slicing, reason = "a simulation that loses count of its own parts may as well stop there")]

use std::fmt;

use serde_json::Value;

mod clients;
mod clock;
mod faults;
mod figures;
mod lies;
mod mortal;
mod proxy;
mod reference;
pub mod scenarios;
mod sidecar;
mod table;
#[cfg(test)]
mod tests;
mod workers;
mod world;

pub use clients::{Load, Returns, Stream};
pub use faults::{Luck, Trouble};
pub use figures::{Figures, StreamFigures, quantile};
pub use sidecar::Eyes;
pub use table::page;
pub use workers::Make;

/// A proxy, its workers and its clients, and what befalls them. Times are in milliseconds since the beginning.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// In kebab case.
    pub name: String,
    /// What it shows, in a sentence.
    pub about: String,
    /// The filter's configuration; of one pool.
    pub policy: Value,
    /// The one that VMs get with [`Trouble::Reload`]: of the same lanes, tenants and pool, under other limits.
    pub next_policy: Option<Value>,
    /// Threads of the proxy.
    pub vms: usize,
    /// Workers of the pool.
    pub workers: Vec<Make>,
    /// How the sidecar sees them.
    pub eyes: Eyes,
    /// Who asks.
    pub streams: Vec<Stream>,
    /// When the last request comes.
    pub lasts: u64,
    /// What is planned to go wrong.
    pub troubles: Vec<(u64, Trouble)>,
    /// What goes wrong by chance.
    pub luck: Luck,
}

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Name of the scenario.
    pub scenario: String,
    /// Its seed.
    pub seed: u64,
    /// Milliseconds since the beginning.
    pub at: u64,
    /// Which, and how.
    pub what: String,
    /// The last things that happened, oldest first.
    pub last: Vec<String>,
}

impl fmt::Display for Broken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.last {
            writeln!(out, "  {line}")?;
        }
        writeln!(out, "after {} ms: {}", self.at, self.what)?;
        write!(out, "replay: cargo xtask sim --scenario {} --seed {}", self.scenario, self.seed)
    }
}

impl std::error::Error for Broken {}

/// Plays a scenario to its end, and on until every request has ended.
///
/// # Errors
/// The first invariant that does not hold, with the line that replays it.
pub fn run(scenario: &Scenario, seed: u64) -> Result<Figures, Box<Broken>> {
    world::World::new(scenario, seed).and_then(world::World::play)
}
