//! What is looked at every few seconds.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use testkit::process;

use super::scenario;
use testkit::parts::Parts;
use testkit::state_page;

/// Between two looks.
pub const PACE: Duration = Duration::from_secs(10);

/// Requests for models that nobody has heard of, at each look.
const MADE_UP: u64 = 5;

const MIB: f64 = 1024.0 * 1024.0;

/// One look.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    /// Since the phase began.
    pub at_s: f64,
    pub envoy_mib: f64,
    pub sidecar_mib: f64,
    /// Linear memory of the filter's VMs together, as they say.
    pub vm_mib: f64,
    /// VMs that said so.
    pub vms: usize,
    /// Records in shared data.
    pub records: u64,
    pub held: u64,
    pub waiting: u64,
    /// Programs of the whole machine that ran or wanted to, in the mean of a minute.
    pub machine_load: f64,
}

/// Looks until it is dropped, and says each time what it sees.
///
/// # Errors
/// When something does not answer.
pub async fn watch(parts: &Parts, phase: &str, samples: &mut Vec<Sample>) -> Result<()> {
    let begin = Instant::now();
    let mut looks = tokio::time::interval(PACE);
    for number in 0.. {
        looks.tick().await;
        ask_for_made_up_models(parts, number).await?;
        let sample = look(parts, begin).await?;
        println!("    {phase} {}", sample.line());
        samples.push(sample);
    }
    Ok(())
}

/// Looks once.
///
/// # Errors
/// When something does not answer.
pub async fn look(parts: &Parts, begin: Instant) -> Result<Sample> {
    let page = state_page::fetch(&parts.client, parts.control).await?;
    let (held, waiting) = state_page::held_and_waiting(&page);
    let metrics = parts.envoy.prometheus().await?;
    let memory: Vec<u64> = metrics
        .lines()
        .filter(|line| line.starts_with("sluice_vm_memory_bytes{"))
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    let load = std::fs::read_to_string("/proc/loadavg").context("the system does not say how busy it is")?;
    Ok(Sample {
        at_s: begin.elapsed().as_secs_f64(),
        envoy_mib: parts.envoy.resident_bytes()? as f64 / MIB,
        sidecar_mib: process::resident_bytes(parts.sidecar.id()?)? as f64 / MIB,
        vm_mib: memory.iter().sum::<u64>() as f64 / MIB,
        vms: memory.len(),
        records: page["records"].as_u64().context("the state page does not say how many records there are")?,
        held,
        waiting,
        machine_load: load.split(' ').next().and_then(|mean| mean.parse().ok()).unwrap_or_default(),
    })
}

async fn ask_for_made_up_models(parts: &Parts, look: u64) -> Result<()> {
    for number in look * MADE_UP..(look + 1) * MADE_UP {
        let request = parts.client.post(format!("http://{}/v1/chat/completions", parts.with));
        let answer =
            request.json(&scenario::made_up(number)).send().await.context("a made-up model broke something")?;
        answer.bytes().await?;
    }
    Ok(())
}

impl Sample {
    fn line(&self) -> String {
        let Self { at_s, envoy_mib, sidecar_mib, vm_mib, vms, records, held, waiting, machine_load } = self;
        format!(
            "{at_s:>6.0} s  Envoy {envoy_mib:.1} MiB, {vms} VMs with {vm_mib:.1} MiB, sidecar {sidecar_mib:.1} MiB, \
             {records} records, {held} held, {waiting} waiting, machine {machine_load:.1}"
        )
    }
}
