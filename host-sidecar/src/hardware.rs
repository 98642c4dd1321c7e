//! Looks at GPUs: those beside each worker through its exporter, and those of this machine through NVIDIA's library.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tracing::{info, warn};

use crate::config;
use crate::engines::dcgm;
use crate::nvml;
use crate::scrape::{ScrapeError, page};
use crate::shared::Shared;
use crate::table::Target;

/// Longest look at an exporter's page. Nothing waits for it.
const LONGEST_LOOK: Duration = Duration::from_secs(2);

/// Longest look at the GPUs of this machine after which what they said last is no longer shown: a driver that keeps nothing in
/// memory takes seconds to wake them.
const LONGEST_LOCAL_LOOK: Duration = Duration::from_secs(10);

/// Looks in a row without an answer after which what an exporter said last is no longer shown.
const FORGOTTEN_AFTER: u32 = 3;

/// Reads a worker's `hardware_url` for ever, or until its pool is gone. What it said last stands over a look or two that fail: it
/// is shown, and nothing is decided by it.
pub async fn follow_exporter(shared: Arc<Shared>, target: Target) {
    let Some(url) = target.hardware_url.as_deref() else { return };
    let (pool, worker) = (&*target.worker.pool, &*target.worker.address);
    let (mut was_good, mut failures) = (None, 0_u32);
    let mut configured = shared.configured();
    while let Some((config, _, peer)) = shared.pool(pool) {
        let looked = page(&peer, url, LONGEST_LOOK.min(config.hardware.interval)).await;
        let gpus = looked.and_then(|page| dcgm::read(page).map_err(ScrapeError::Page));
        if was_good.replace(gpus.is_ok()) != Some(gpus.is_ok()) {
            match &gpus {
                Ok(gpus) => info!(pool, worker, gpus = gpus.len(), "exporter answers"),
                Err(error) => {
                    warn!(pool, worker, url = config::without_secrets(url), %error, "exporter cannot be read");
                }
            }
        }
        failures = if gpus.is_ok() { 0 } else { failures.saturating_add(1) };
        let shown = if failures == FORGOTTEN_AFTER { Some(Vec::new()) } else { gpus.ok() };
        if let Some(gpus) = shown {
            shared.update(|table| table.saw_gpus(&target.worker, gpus));
        }
        let looked_at = Instant::now();
        let next = || looked_at + shared.config().hardware.interval;
        while Instant::now() < next() {
            tokio::select! {
                () = sleep_until(next()) => {}
                () = configured.changed() => {}
            }
        }
    }
}

/// Reads the GPUs of this machine for ever; without the library there is nothing to do.
pub async fn follow_local(shared: Arc<Shared>, hardware: config::Hardware) {
    let Ok(Some(library)) = tokio::task::spawn_blocking(nvml::open).await else {
        return std::future::pending().await;
    };
    let library = Arc::new(library);
    let mut ticks = interval(hardware.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let library = Arc::clone(&library);
        // A driver that hangs keeps one thread, and what was read last is not shown as if it were new.
        let mut look = tokio::task::spawn_blocking(move || library.read());
        let gpus = match timeout(LONGEST_LOCAL_LOOK, &mut look).await {
            Ok(gpus) => gpus,
            Err(_) => {
                warn!(
                    "the NVIDIA driver has not answered for {LONGEST_LOCAL_LOOK:?}; its GPUs are not shown until it does"
                );
                shared.set_local_gpus(Vec::new());
                let gpus = look.await;
                info!("the NVIDIA driver answers again");
                gpus
            }
        };
        shared.set_local_gpus(gpus.unwrap_or_default());
    }
}
