//! The load client against real workers.

use std::time::Duration;

use bench::load::{Plan, Report, Tenant, run};
use worker_sim::{Config, Fault, Worker};

fn plan(rate_per_s: f64, drain: Duration) -> Plan {
    let tenant = Tenant { name: "acme".into(), rate_per_s, prompt_bytes: 16..=64, max_tokens: 4, lane: None };
    Plan {
        seed: 1,
        duration: Duration::from_secs(1),
        drain,
        max_requests: 100,
        model: "sim".into(),
        tenants: vec![tenant],
    }
}

async fn measure(config: Config, plan: &Plan) -> Report {
    let worker = Worker::start(config).await.unwrap();
    let report = run(&format!("{}/v1/chat/completions", worker.url()), plan).await.unwrap();
    worker.stop().await;
    report
}

#[tokio::test]
async fn every_request_of_an_idle_worker_is_answered_and_timed() {
    let report = measure(Config::default(), &plan(20.0, Duration::from_secs(10))).await;
    let acme = &report.tenants["acme"];
    assert!(acme.sent > 5 && acme.completed == acme.sent, "{report:?}");
    assert!(acme.ttft_p50_ms.is_some_and(|ttft| ttft >= 8.0), "a step takes 8 ms: {report:?}");
    assert!(report.goodput_tokens_per_s > 0.0 && report.goodput_tokens_per_s <= (acme.sent * 4) as f64);
}

#[tokio::test]
async fn a_refusal_of_somebody_else_is_a_failure() {
    let faults = vec![Fault::Refuse503];
    let report = measure(Config { faults, ..Config::default() }, &plan(20.0, Duration::from_secs(10))).await;
    let acme = &report.tenants["acme"];
    assert_eq!(acme.failed.get("status 503"), Some(&acme.sent), "{report:?}");
    assert!(report.refused.is_empty() && acme.ttft_p50_ms.is_none());
}

#[tokio::test]
async fn what_is_never_answered_counts_with_the_time_it_waited() {
    let faults = vec![Fault::Hang];
    let report = measure(Config { faults, ..Config::default() }, &plan(20.0, Duration::from_millis(200))).await;
    let acme = &report.tenants["acme"];
    assert_eq!(acme.unfinished, acme.sent);
    assert!(acme.discarded > 0 || acme.ttft_p95_ms.is_some_and(|waited| waited > 200.0), "{report:?}");
    assert_eq!(report.goodput_tokens_per_s, 0.0);
}
