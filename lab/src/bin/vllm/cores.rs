//! One core for the engine, the others for everything else: on the same ones the client would starve.

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The core of the engine.
pub const OF_ENGINE: usize = 0;

/// Takes this thread off the engine's core.
///
/// # Errors
/// When there is no other, or the system does not let it.
pub fn leave_the_first_to_the_engine() -> Result<()> {
    let mut cores = sched_getaffinity(None).context("cannot learn which cores there are")?;
    ensure!(cores.is_set(OF_ENGINE), "core {OF_ENGINE} may not be used here: run this where it may");
    ensure!(cores.count() > 1, "two cores are needed, one for the engine and one for everything else");
    cores.unset(OF_ENGINE);
    sched_setaffinity(None, &cores).context("cannot choose cores")
}

/// Takes the engine's core again, for what is spawned next.
///
/// # Errors
/// When the system does not let it.
pub fn only_that_of_the_engine() -> Result<()> {
    let mut core = CpuSet::new();
    core.set(OF_ENGINE);
    sched_setaffinity(None, &core).context("cannot choose cores")
}
