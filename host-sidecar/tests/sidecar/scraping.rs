//! Workers that come, go, hang and lie, as a proxy sees them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{FakeProxy, FakeWorker, Page, Server, sidecar, until, until_answered};
use admission_core::view::WorkerState::{Down, Up};
use host_sidecar::{Config, Sidecar};

const GOOD: Page = Page::Counting { used: 10, after: Duration::ZERO };

#[tokio::test]
async fn a_bad_worker_costs_only_itself() {
    let good = FakeWorker::start(GOOD);
    let bad = [Page::Endless, Page::Status(500), Page::Text("<html>"), Page::Text("up 1\n")].map(FakeWorker::start);
    let mut dead = FakeWorker::start(GOOD);
    dead.server.die();
    // How many pages the good worker had served whenever the hanging one was asked.
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let proxy = FakeProxy::start();
    let hanging = {
        let (arrivals, control) = (Arc::clone(&arrivals), proxy.control());
        let good = good.address();
        FakeWorker::watched(Page::Hang, move |_| {
            let control = control.lock().unwrap();
            let told = control.taken.last().and_then(|document| {
                document.pools["p"].workers.iter().find(|worker| worker.address == good)?.ranks.first().cloned()
            });
            arrivals.lock().unwrap().push(told.map_or(0, |rank| rank.running.unwrap_or(0)));
        })
    };
    let mut all = vec![&good, &hanging, &dead];
    all.extend(&bad);
    let sidecar = sidecar(&proxy, &all, "scrape: {interval: 20ms, timeout: 400ms}").await;

    let arrivals = until("the hanging worker is asked for the fifth time", || {
        let arrivals = arrivals.lock().unwrap();
        (arrivals.len() >= 5).then(|| arrivals.clone())
    })
    .await;
    for pair in arrivals[1..].windows(2) {
        assert!(pair[1] > pair[0] + 1, "while one scrape hung, the other worker's pages went on: {arrivals:?}");
    }
    until("the good worker is up", || proxy.worker(&good.address()).filter(|worker| worker.state == Up)).await;
    // Who answers with a page that cannot be read is up all the same, with nothing known of its load.
    let states = [Up, Down, Up, Up, Down, Down];
    for (bad, state) in bad.iter().chain([&hanging, &dead]).zip(states) {
        let report = proxy.worker(&bad.address()).unwrap();
        assert_eq!((report.state, report.ranks.len()), (state, 0), "{:?}", report.cause);
    }
    let metrics = format!("http://{}/metrics", sidecar.address());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let metrics = client.get(metrics).send().await.unwrap().text().await.unwrap();
    for result in ["ok", "timeout", "connection", "too_large", "server_error", "page"] {
        let never = format!("sluice_sidecar_scrapes_total{{pool=\"p\",result=\"{result}\"}} 0");
        assert!(!metrics.lines().any(|line| line == never), "{never}");
    }
}

#[tokio::test]
async fn gpus_are_shown_as_long_as_their_exporter_answers() {
    let (worker, proxy) = (FakeWorker::start(GOOD), FakeProxy::start());
    let page = axum::routing::get(async || include_str!("../pages/dcgm-3.3.prom"));
    let mut exporter = Server::start(axum::Router::new().route("/metrics", page));
    let text = format!(
        "{{listen: '127.0.0.1:0', hardware: {{interval: 20ms}}, proxies: [{{url: 'http://{}', token: t}}], \
         pools: [{{name: p, workers: [{{address: '{}', hardware_url: 'http://{}/metrics'}}]}}]}}",
        proxy.server.address,
        worker.address(),
        exporter.address
    );
    let sidecar = Sidecar::start(Config::parse(&text).unwrap()).await.unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{}/metrics", sidecar.address());
    let gpu = format!("gpu_memory_used_bytes{{pool=\"p\",worker=\"{}\",gpu=", worker.address());
    let is_shown = async |wanted: bool| {
        let page = client.get(&url).send().await.unwrap().text().await.unwrap();
        (page.contains(&gpu) == wanted).then_some(())
    };
    until_answered("the GPU is shown", || is_shown(true)).await;
    exporter.die();
    until_answered("the GPU is gone", || is_shown(false)).await;
    exporter.revive();
    until_answered("the GPU is back", || is_shown(true)).await;
}

#[tokio::test]
async fn a_worker_that_dies_keeps_its_numbers_for_a_while_and_comes_back() {
    let mut mortal = FakeWorker::start(Page::Steady { used: 42 });
    let proxy = FakeProxy::start();
    let _sidecar = sidecar(&proxy, &[&mortal], "").await;
    let address = mortal.address();
    until("it is up", || proxy.worker(&address).filter(|worker| worker.state == Up)).await;

    mortal.server.die();
    until("it is down", || proxy.worker(&address).filter(|worker| worker.state == Down)).await;
    let documents = proxy.with(|control| control.taken.clone());
    let mut before = 0;
    let mut ages = 0;
    for worker in documents.iter().map(|document| &document.pools["p"].workers[0]) {
        assert_eq!(worker.ranks[0].kv_used_blocks, Some(42), "the last good numbers stay");
        if worker.state == Up && worker.scraped_ms_ago > before {
            ages += 1;
        }
        before = worker.scraped_ms_ago;
    }
    assert!(ages > 0, "they grow old while the worker still counts as up");

    mortal.set(Page::Steady { used: 7 });
    mortal.server.revive();
    let back = until("it is up again", || proxy.worker(&address).filter(|worker| worker.state == Up)).await;
    assert_eq!(back.ranks[0].kv_used_blocks, Some(7));
}

#[tokio::test]
async fn changes_are_pushed_without_waiting_for_the_heartbeat() {
    let worker = FakeWorker::start(Page::Steady { used: 10 });
    let proxy = FakeProxy::start();
    let _sidecar = sidecar(&proxy, &[&worker], "push: {heartbeat: 1h, timeout: 1s}").await;
    let address = worker.address();
    let seen = |used: u64, busy: bool| {
        let report = proxy.worker(&address)?;
        (report.busy == busy && report.ranks.first()?.kv_used_blocks == Some(used)).then_some(())
    };
    until("the first view", || seen(10, false)).await;
    worker.set(Page::Steady { used: 86 });
    until("the worker is busy", || seen(86, true)).await;
    worker.set(Page::Steady { used: 85 });
    until("at its threshold a busy worker stays busy", || seen(85, true)).await;
    worker.set(Page::Steady { used: 80 });
    until("clearly below it is free", || seen(80, false)).await;
    worker.set(Page::Steady { used: 84 });
    until("other numbers come too", || seen(84, false)).await;
}

#[tokio::test]
async fn the_first_view_waits_until_every_worker_was_tried() {
    let good = FakeWorker::start(GOOD);
    let slow = FakeWorker::start(Page::Counting { used: 1, after: Duration::from_millis(150) });
    let proxy = FakeProxy::start();
    let _sidecar = sidecar(&proxy, &[&good, &slow], "").await;
    until("a view", || (proxy.taken() > 0).then_some(())).await;
    let first = proxy.with(|control| control.taken[0].clone());
    assert!(first.pools["p"].workers.iter().all(|worker| worker.state == Up), "{first:?}");
}
