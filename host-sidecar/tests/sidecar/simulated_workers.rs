//! Simulated GPU workers under real load, as a proxy is told of them.

use std::net::SocketAddr;

use crate::common::{FakeProxy, TOKEN, until};
use admission_core::view::{WorkerReport, WorkerState};
use host_sidecar::{Config, Sidecar};
use serde_json::json;
use worker_sim::{Fault, Worker};

/// A worker whose 40 usable blocks one request of 600 tokens fills to 95 %, slowly enough to be seen.
async fn worker(ranks: u32) -> Worker {
    let config = worker_sim::Config {
        num_gpu_blocks: 41,
        base_ms: 100.0,
        data_parallel_size: ranks,
        ..worker_sim::Config::default()
    };
    Worker::start(config).await.expect("a worker")
}

async fn sidecar(proxy: &FakeProxy, workers: &[SocketAddr]) -> Sidecar {
    let config = json!({
        "listen": "127.0.0.1:0",
        "scrape": {"interval": "20ms", "timeout": "1s", "down_after": "3s"},
        "push": {"heartbeat": "100ms", "timeout": "1s"},
        "proxies": [{"url": format!("http://{}", proxy.server.address), "token": TOKEN}],
        "pools": [{"name": "p", "busy": {"active_decode_blocks_threshold": 0.5}, "workers": workers}],
    });
    Sidecar::start(Config::parse(&config.to_string()).expect("a configuration")).await.expect("a sidecar")
}

/// A request that takes blocks until it is dropped.
fn long_request(worker: &Worker) -> tokio::task::JoinHandle<()> {
    let body = json!({"prompt": vec![1; 560], "max_tokens": 60, "stream": true});
    let request = reqwest::Client::new().post(format!("{}/v1/completions", worker.url())).json(&body);
    tokio::spawn(async move {
        let mut answer = request.send().await.expect("an answer");
        while answer.chunk().await.expect("a chunk").is_some() {}
    })
}

async fn report(
    proxy: &FakeProxy,
    worker: &Worker,
    what: &str,
    wanted: impl Fn(&WorkerReport) -> bool,
) -> WorkerReport {
    let address = worker.address().to_string();
    until(what, || proxy.worker(&address).filter(|report| wanted(report))).await
}

#[tokio::test]
async fn a_worker_under_load_is_busy_until_the_load_ends() {
    let (loaded, idle) = (worker(1).await, worker(1).await);
    let proxy = FakeProxy::start();
    let _sidecar = sidecar(&proxy, &[loaded.address(), idle.address()]).await;
    report(&proxy, &loaded, "it is up and free", |report| report.state == WorkerState::Up && !report.busy).await;
    let request = long_request(&loaded);
    let busy = report(&proxy, &loaded, "it is busy", |report| report.busy).await;
    let rank = &busy.ranks[0];
    assert_eq!((rank.running, rank.kv_total_blocks), (Some(1), Some(41)));
    assert!(rank.kv_used_blocks > Some(20), "{rank:?}");
    let other = report(&proxy, &idle, "the other is told of", |_| true).await;
    assert!(!other.busy && other.state == WorkerState::Up);
    request.abort();
    report(&proxy, &loaded, "it is free again", |report| !report.busy && report.ranks[0].running == Some(0)).await;
}

#[tokio::test]
async fn with_two_ranks_one_busy_rank_leaves_the_worker_free() {
    let worker = worker(2).await;
    let proxy = FakeProxy::start();
    let _sidecar = sidecar(&proxy, &[worker.address()]).await;
    let first = long_request(&worker);
    let one = report(&proxy, &worker, "one rank is full", |report| {
        report.ranks.len() == 2 && report.ranks.iter().any(|rank| rank.kv_used_blocks > Some(20))
    })
    .await;
    assert!(!one.busy, "{one:?}");
    let second = long_request(&worker);
    report(&proxy, &worker, "both ranks are full", |report| report.busy).await;
    first.abort();
    second.abort();
}

#[tokio::test]
async fn faults_cost_only_the_worker_that_has_them() {
    let (faulty, sound) = (worker(1).await, worker(1).await);
    let proxy = FakeProxy::start();
    let _sidecar = sidecar(&proxy, &[faulty.address(), sound.address()]).await;
    for (fault, state) in [(Fault::GarbageMetrics, WorkerState::Up), (Fault::HangMetrics, WorkerState::Down)] {
        let is_read = |report: &WorkerReport| report.state == WorkerState::Up && !report.ranks.is_empty();
        report(&proxy, &faulty, "it is read", is_read).await;
        faulty.set_faults([fault]);
        let has_come = |report: &WorkerReport| report.state == state && !is_read(report);
        report(&proxy, &faulty, "its numbers are known no more", has_come).await;
        let other = report(&proxy, &sound, "the other is told of", |_| true).await;
        assert_eq!(other.state, WorkerState::Up, "{fault:?}");
        faulty.set_faults([]);
    }
    report(&proxy, &faulty, "it is up again", |report| report.state == WorkerState::Up).await;
    let address = faulty.address().to_string();
    faulty.stop().await;
    until("it is down for good", || proxy.worker(&address).filter(|report| report.state == WorkerState::Down)).await;
    report(&proxy, &sound, "the other is up", |report| report.state == WorkerState::Up).await;
}
