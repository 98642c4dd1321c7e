//! What stands now. Built for every page, so that no gauge is older than the page and none lingers.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use admission_core::view::{RankReport, WorkerReport, WorkerState, kv_used_share};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Labels, PREFIX, with};
use crate::discovery::Condition;
use crate::pull;
use crate::reading::{Gpu, Limits};
use crate::table::{PoolRow, ProxyRow, Snapshot, Way};

/// Workers of a pool that have series of their own; the pool's sums count all.
const MAX_WORKERS: usize = 1_000;

type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;

/// Every gauge of the page.
pub fn gauges(snapshot: &Snapshot, local_gpus: &[Gpu], now: Duration) -> Registry {
    let mut registry = Registry::with_prefix(PREFIX);
    let rows = &snapshot.pools;
    worker_gauges(&mut registry, rows);
    trouble_gauges(&mut registry, rows);
    pool_gauges(&mut registry, rows);
    limit_gauges(&mut registry, rows);
    load_gauges(&mut registry, rows);
    budget_gauges(&mut registry, rows);
    gpu_gauges(&mut registry, rows, local_gpus);
    proxy_gauges(&mut registry, &snapshot.proxies, now);
    let help = "Time since a scrape of any worker last ended; absent before the first";
    if let Some(time) = snapshot.silence {
        let silence = Gauge::<f64, AtomicU64>::default();
        silence.set(time.as_secs_f64());
        registry.register("scrape_silence_seconds", help, silence);
    }
    registry
}

fn proxy_gauges(registry: &mut Registry, proxies: &[ProxyRow], now: Duration) {
    let help = "1 for each pool that a proxy needs views of and that is none of `pools`; absent while there is none";
    let unknown = registered(registry, "unknown_pool", help);
    for pool in proxies.iter().flat_map(|proxy| &proxy.unknown) {
        unknown.get_or_create(&vec![("pool", pool.clone())]).set(1.0);
    }
    let help = "Time since the proxy last took a view, or since the start while it has taken none";
    let ages = registered(registry, "proxy_view_age_seconds", help);
    let of = |way| proxies.iter().filter(move |proxy| proxy.way == way);
    // Names of proxies that ask are drawn by chance, and come and go: the one that took a view last stands for all.
    let pulled = of(Way::Pulled).max_by_key(|proxy| proxy.taken_at).map(|proxy| (pull::LABEL, proxy.taken_at));
    for (name, taken_at) in of(Way::Pushed).map(|proxy| (&*proxy.name, proxy.taken_at)).chain(pulled) {
        let age = now.saturating_sub(taken_at.unwrap_or_default());
        ages.get_or_create(&vec![("proxy", name.to_owned())]).set(age.as_secs_f64());
    }
}

fn worker_gauges(registry: &mut Registry, rows: &[PoolRow]) {
    let up = registered(
        registry,
        "worker_up",
        "1 while the worker answers, draining or not; 0 too where its source calls it not ready",
    );
    let draining =
        registered(registry, "worker_draining", "1 while the worker finishes what it has and takes nothing new");
    let busy = registered(registry, "worker_busy", "1 while the worker is to be given nothing: busy, stale or crowded");
    let kv = registered(registry, "worker_kv_used_ratio", "KV blocks in use over all ranks; absent while unknown");
    let help = "Sequences in the running batches of all ranks; absent while unknown";
    let running = registered(registry, "worker_running", help);
    let help = "Requests waiting inside the engines of all ranks; absent while unknown";
    let waiting = registered(registry, "worker_waiting", help);
    let help = "Prompt tokens waiting for or in prefill over all ranks, as the page says; absent while unknown";
    let prefill = registered(registry, "worker_prefill_tokens", help);
    let help = "KV blocks that a router in front of the engine believes to be in use; absent while unknown";
    let decode = registered(registry, "worker_active_decode_blocks", help);
    let help = "Time since the last good scrape began, or since the start while there was none";
    let age = registered(registry, "worker_scrape_age_seconds", help);
    for row in rows {
        for report in row.report.workers.iter().take(MAX_WORKERS) {
            let labels = with(("pool", &row.name), "worker", &report.address);
            let set = |gauges: &Gauges, value: f64| {
                gauges.get_or_create(&labels).set(value);
            };
            set(&up, f64::from(report.state != WorkerState::Down));
            set(&draining, f64::from(report.state == WorkerState::Draining));
            set(&busy, f64::from(report.busy));
            kv_used_share(&report.ranks).into_iter().for_each(|share| set(&kv, share));
            sum(report, |rank| rank.running).into_iter().for_each(|count| set(&running, count));
            sum(report, |rank| rank.waiting).into_iter().for_each(|count| set(&waiting, count));
            sum(report, |rank| rank.prefill_tokens).into_iter().for_each(|count| set(&prefill, count));
            sum(report, |rank| rank.active_decode_blocks).into_iter().for_each(|count| set(&decode, count));
            set(&age, report.scraped_ms_ago as f64 / 1_000.0);
        }
    }
}

/// What is wrong with workers; a worker that is well has none of these.
fn trouble_gauges(registry: &mut Registry, rows: &[PoolRow]) {
    let help = "1 while the last scrape of the worker gave no numbers, by why";
    let failing = registered(registry, "worker_failing", help);
    let help = "1 while the worker's page tells a number that cannot be believed and counts as unknown, by which";
    let doubtful = registered(registry, "worker_doubtful", help);
    let help = "1 while the worker is busy, by what: a threshold of `busy`, its headroom, or numbers that are stale";
    let busy_by = registered(registry, "worker_busy_by", help);
    let not_ready = registered(registry, "worker_not_ready", "1 while its source calls the worker not ready");
    for row in rows {
        let set = |gauges: &Gauges, worker: &str, more: Option<(&'static str, &str)>| {
            let mut labels = with(("pool", &row.name), "worker", worker);
            labels.extend(more.map(|(label, value)| (label, value.to_owned())));
            gauges.get_or_create(&labels).set(1.0);
        };
        for report in row.report.workers.iter().take(MAX_WORKERS) {
            if let Some(cause) = &report.cause {
                set(&failing, &report.address, Some(("cause", cause)));
            }
        }
        for worker in row.workers.iter().take(MAX_WORKERS) {
            for number in &worker.doubts {
                set(&doubtful, &worker.address, Some(("number", number)));
            }
            for what in &worker.busy_by {
                set(&busy_by, &worker.address, Some(("threshold", what)));
            }
            if worker.condition == Condition::NotReady {
                set(&not_ready, &worker.address, None);
            }
        }
    }
}

fn limit_gauges(registry: &mut Registry, rows: &[PoolRow]) {
    let help = "What the worker's page says of its own limits; absent while it does not say";
    let limits = registered(registry, "worker_limit", help);
    for row in rows {
        for worker in row.workers.iter().take(MAX_WORKERS) {
            let Limits { block_size, max_num_seqs, max_num_batched_tokens, max_model_len } = worker.limits;
            for (name, value) in [
                ("block_size", block_size),
                ("max_num_seqs", max_num_seqs),
                ("max_num_batched_tokens", max_num_batched_tokens),
                ("max_model_len", max_model_len),
            ] {
                if let Some(value) = value {
                    let mut labels = with(("pool", &row.name), "worker", &worker.address);
                    labels.push(("limit", name.to_owned()));
                    limits.get_or_create(&labels).set(value as f64);
                }
            }
        }
    }
}

/// Over all ranks; `None` when there is none, or one does not say.
fn sum(report: &WorkerReport, count: impl Fn(&RankReport) -> Option<u64>) -> Option<f64> {
    let sum = report.ranks.iter().try_fold(0.0, |sum, rank| Some(sum + count(rank)? as f64))?;
    (!report.ranks.is_empty()).then_some(sum)
}

fn pool_gauges(registry: &mut Registry, rows: &[PoolRow]) {
    let all = registered(registry, "pool_workers", "Workers there are");
    let live = registered(registry, "pool_live_workers", "Workers that can be given work");
    let free = registered(registry, "pool_free_workers", "Workers that can be given work and are not busy");
    let stale = registered(registry, "pool_failing_workers", "Workers whose last scrape gave no numbers");
    let help = "How full the live workers are by the pool's detector; 1 is full, and it may be more";
    let saturation = registered(registry, "pool_saturation_ratio", help);
    let help = "Workers that can be given work, do not tell what the detector measures, and so count as exactly full";
    let unmeasured = registered(registry, "pool_unmeasured_workers", help);
    for row in rows {
        let labels = vec![("pool", row.name.to_string())];
        let set = |gauges: &Gauges, value: f64| {
            gauges.get_or_create(&labels).set(value);
        };
        let count = |keep: fn(&&WorkerReport) -> bool| row.report.workers.iter().filter(keep).count() as f64;
        set(&all, count(|_| true));
        set(&live, count(|report| report.state == WorkerState::Up));
        set(&free, count(|report| report.state == WorkerState::Up && !report.busy));
        set(&stale, count(|report| report.cause.is_some()));
        set(&unmeasured, row.unmeasured as f64);
        row.report.saturation.into_iter().for_each(|share| set(&saturation, share));
    }
}

/// What an autoscaler needs.
fn load_gauges(registry: &mut Registry, rows: &[PoolRow]) {
    let help = "Sequences running in the workers that can be given work; of those that tell";
    let running = registered(registry, "pool_running", help);
    let help = "Requests waiting inside the engines of workers that can be given work; of those that tell";
    let waiting = registered(registry, "pool_waiting", help);
    let help = "Requests that wait in the proxies heard of late; absent while there is none";
    let queued = registered(registry, "pool_proxy_queue", help);
    let help = "Proxies heard within ten seconds that serve the pool; each counts its caps and budgets by itself";
    let proxies = registered(registry, "pool_proxies", help);
    let help = "Mean share of KV blocks in use in the workers that can be given work; of those that tell";
    let kv = registered(registry, "pool_kv_used_ratio", help);
    for row in rows {
        let labels = vec![("pool", row.name.to_string())];
        let set = |gauges: &Gauges, value: f64| {
            gauges.get_or_create(&labels).set(value);
        };
        set(&proxies, row.proxies as f64);
        let told = |count: fn(&RankReport) -> Option<u64>| -> Vec<f64> {
            row.report.live().filter_map(|report| sum(report, count)).collect()
        };
        for (gauges, told) in [(&running, told(|rank| rank.running)), (&waiting, told(|rank| rank.waiting))] {
            if !told.is_empty() {
                set(gauges, told.iter().sum());
            }
        }
        row.queued.into_iter().for_each(|count| set(&queued, count as f64));
        let shares: Vec<_> = row.report.live().filter_map(|report| kv_used_share(&report.ranks)).collect();
        if !shares.is_empty() {
            set(&kv, shares.iter().sum::<f64>() / shares.len() as f64);
        }
    }
}

fn budget_gauges(registry: &mut Registry, rows: &[PoolRow]) {
    let help = "Share of the pool that lanes with a dispatch budget may still fill; absent where none is configured";
    let budget = registered(registry, "pool_dispatch_budget_ratio", help);
    let help = "1 while the source of the dispatch budget has a sample; the first that has one is believed";
    let available = registered(registry, "pool_dispatch_budget_source_available", help);
    for row in rows {
        if let Some(share) = row.report.dispatch_budget {
            budget.get_or_create(&vec![("pool", row.name.to_string())]).set(share);
        }
        for (source, value) in &row.budget {
            let labels = with(("pool", &row.name), "source", source.name());
            available.get_or_create(&labels).set(f64::from(value.is_some()));
        }
    }
}

fn gpu_gauges(registry: &mut Registry, rows: &[PoolRow], local: &[Gpu]) {
    let help = "Memory of a GPU in use; worker and pool are empty for the GPUs of the sidecar's own machine";
    let used = registered(registry, "gpu_memory_used_bytes", help);
    let total = registered(registry, "gpu_memory_total_bytes", "Memory of a GPU");
    let help = "Share of the last sample period in which the GPU computed";
    let utilization = registered(registry, "gpu_utilization_ratio", help);
    let behind = rows.iter().flat_map(|row| {
        let workers = row.workers.iter().take(MAX_WORKERS);
        workers.flat_map(|worker| worker.gpus.iter().map(|gpu| (&*row.name, &*worker.address, gpu)))
    });
    for (pool, worker, gpu) in behind.chain(local.iter().map(|gpu| ("", "", gpu))) {
        let mut labels = with(("pool", pool), "worker", worker);
        labels.push(("gpu", name(gpu)));
        let set = |gauges: &Gauges, value: f64| {
            gauges.get_or_create(&labels).set(value);
        };
        gpu.memory_used_bytes.into_iter().for_each(|bytes| set(&used, bytes as f64));
        gpu.memory_total_bytes.into_iter().for_each(|bytes| set(&total, bytes as f64));
        gpu.utilization.into_iter().for_each(|share| set(&utilization, share));
    }
}

/// Its number in its machine, and its part where it is divided; else its name all over the world.
fn name(gpu: &Gpu) -> String {
    match (gpu.index, gpu.mig_instance) {
        (Some(index), None) => index.to_string(),
        (Some(index), Some(part)) => format!("{index}/{part}"),
        (None, _) => gpu.uuid.clone().unwrap_or_default(),
    }
}

fn registered(registry: &mut Registry, name: &str, help: &str) -> Gauges {
    let gauges = Gauges::default();
    registry.register(name, help, gauges.clone());
    gauges
}
