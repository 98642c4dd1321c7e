//! The load client against real workers.

use std::time::Duration;

use testkit::load::{Flow, Leaves, Plan, Report, run, run_in_parts, saturate};
use worker_sim::{Config, Fault, Worker};

fn plan(rate_per_s: f64, drain: Duration) -> Plan {
    let flow = Flow {
        name: "chat".into(),
        tenants: vec!["acme".into(), "beta".into()],
        rate_per_s,
        burst: 1,
        prompt_bytes: (16..=64).into(),
        max_tokens: (4..=4).into(),
        lane: Some(("x-sluice-lane".into(), "fast".into())),
        in_time: None,
        leaves: None,
    };
    Plan {
        seed: 1,
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(1),
        drain,
        max_requests: 100,
        model: "sim".into(),
        flows: vec![flow],
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
    let chat = &report.flows["chat"];
    assert!(chat.sent > 5 && chat.completed == chat.sent, "{report:?}");
    assert!(chat.ttft_p50_ms.is_some_and(|ttft| ttft >= 8.0), "a step takes 8 ms: {report:?}");
    assert!(report.goodput_tokens_per_s > 0.0 && report.goodput_tokens_per_s <= (chat.sent * 4) as f64);
}

#[tokio::test]
async fn a_refusal_of_somebody_else_is_a_failure() {
    let faults = vec![Fault::Refuse503];
    let report = measure(Config { faults, ..Config::default() }, &plan(20.0, Duration::from_secs(10))).await;
    let chat = &report.flows["chat"];
    assert_eq!(chat.failed.get("status 503"), Some(&chat.sent), "{report:?}");
    assert!(report.refused.is_empty() && chat.ttft_p50_ms.is_none());
}

#[tokio::test]
async fn what_is_never_answered_counts_with_the_time_it_waited() {
    let faults = vec![Fault::Hang];
    let report = measure(Config { faults, ..Config::default() }, &plan(20.0, Duration::from_millis(200))).await;
    let chat = &report.flows["chat"];
    assert_eq!(chat.unfinished, chat.sent);
    assert!(chat.discarded > 0 || chat.ttft_p95_ms.is_some_and(|waited| waited > 200.0), "{report:?}");
    assert_eq!(report.goodput_tokens_per_s, 0.0);
}

#[tokio::test]
async fn a_flow_asks_for_its_lane_as_one_of_its_tenants() {
    let worker = Worker::start(Config::default()).await.unwrap();
    let sent = plan(20.0, Duration::from_secs(10));
    let report = run(&format!("{}/v1/chat/completions", worker.url()), &sent).await.unwrap();
    let headers = worker.stats().last_headers;
    let arrivals = worker.arrivals().requests;
    assert_eq!(arrivals.len() as u64, report.flows["chat"].sent);
    assert!(arrivals.iter().all(|arrival| arrival.lane.as_deref() == Some("fast")));
    assert!(["acme", "beta"].contains(&headers["x-tenant-id"].as_str()), "{headers:?}");
}

#[tokio::test]
async fn saturation_keeps_so_many_under_way_and_no_more() {
    let worker = Worker::start(Config::default()).await.unwrap();
    let plan = Plan { max_requests: 100_000, ..plan(10_000.0, Duration::from_secs(10)) };
    let report = saturate(&format!("{}/v1/chat/completions", worker.url()), &plan, 3).await.unwrap();
    let chat = &report.flows["chat"];
    assert_eq!((worker.stats().peak_in_server, chat.completed), (3, chat.sent));
    assert!(chat.sent > 3, "others follow: {report:?}");
    let none_left = Plan { max_requests: 2, ..plan };
    assert!(saturate(&format!("{}/v1/chat/completions", worker.url()), &none_left, 3).await.is_err());
}

#[tokio::test]
async fn those_who_leave_are_counted_and_are_gone_from_the_worker() {
    let worker = Worker::start(Config { faults: vec![Fault::Hang], ..Config::default() }).await.unwrap();
    let mut plan = plan(40.0, Duration::from_secs(10));
    let after = Duration::from_millis(1)..=Duration::from_millis(50);
    plan.flows[0].leaves = Some(Leaves { share: 1.0, after });
    let report = run(&format!("{}/v1/chat/completions", worker.url()), &plan).await.unwrap();
    let chat = &report.flows["chat"];
    assert_eq!((chat.left, chat.unfinished), (chat.sent, 0), "{report:?}");
    assert!(worker.stop().await.requests.iter().all(|request| request.left_ms.is_some()));
}

#[tokio::test]
async fn parts_are_by_when_requests_were_due_and_add_up() {
    let worker = Worker::start(Config::default()).await.unwrap();
    let url = format!("{}/v1/chat/completions", worker.url());
    let plan = plan(40.0, Duration::from_secs(10));
    let sent = |report: &Report| report.flows["chat"].sent;
    let (whole, parts) = (run(&url, &plan).await.unwrap(), run_in_parts(&url, &plan, 4).await.unwrap());
    assert_eq!((parts.len(), parts.iter().map(sent).sum::<u64>()), (4, sent(&whole)));
    assert!(parts.iter().all(|part| sent(part) > 0 && sent(part) < sent(&whole)), "{parts:?}");
}
