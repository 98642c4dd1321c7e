//! Proxies that fail, restart, refuse and obey others, as the sidecar deals with them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{FakeProxy, FakeWorker, Mood, Page, TOKEN, sidecar, until};
use admission_core::view::{ViewDocument, WorkerReport};
use host_sidecar::{Config, Sidecar};
use serde_json::json;

const STEADY: Page = Page::Steady { used: 10 };

fn assert_generations_rise(proxy: &FakeProxy) {
    let stamps = proxy
        .with(|control| control.seen.iter().map(|document| (document.epoch, document.generation)).collect::<Vec<_>>());
    for pair in stamps.windows(2) {
        assert!(pair[1].0 == pair[0].0 && pair[1].1 > pair[0].1, "{stamps:?}");
    }
}

async fn two_more(what: &str, count: impl Fn() -> usize) {
    let before = count();
    until(what, || (count() >= before + 2).then_some(())).await;
}

#[tokio::test]
async fn generations_rise_across_failures_and_restarts() {
    let worker = FakeWorker::start(STEADY);
    let mut proxy = FakeProxy::start();
    let _sidecar = sidecar(&proxy, &[&worker], "").await;
    two_more("views are taken", || proxy.taken()).await;
    for mood in [Mood::Status(500), Mood::Hang, Mood::Status(429)] {
        proxy.set(mood);
        two_more("it is tried on", || proxy.seen()).await;
        proxy.set(Mood::Taking);
        two_more("views are taken again", || proxy.taken()).await;
    }
    proxy.die();
    proxy.server.revive();
    two_more("the restarted proxy has views", || proxy.taken()).await;
    assert_generations_rise(&proxy);
}

#[tokio::test]
async fn a_proxy_that_holds_a_higher_generation_of_the_same_epoch_is_outrun() {
    let worker = FakeWorker::start(STEADY);
    let proxy = FakeProxy::start();
    let _sidecar = sidecar(&proxy, &[&worker], "").await;
    two_more("views are taken", || proxy.taken()).await;
    let jumped = proxy.with(|control| {
        let (epoch, generation) = control.standing.unwrap();
        control.standing = Some((epoch, generation + 1_000));
        generation + 1_000
    });
    two_more("views are taken again", || proxy.taken()).await;
    assert!(proxy.with(|control| control.taken.last().unwrap().generation) > jumped);
    assert_generations_rise(&proxy);
}

/// Requests held by the last view that was taken.
fn held(proxy: &FakeProxy) -> Option<u64> {
    proxy.with(|control| control.taken.last().and_then(|view| view.pools.get("p")?.held))
}

#[tokio::test]
async fn a_proxy_may_run_an_older_module_and_a_newer_one_in_turn() {
    let worker = FakeWorker::start(STEADY);
    let proxy = FakeProxy::start();
    proxy.set(Mood::First);
    let _sidecar = sidecar(&proxy, &[&worker], "").await;
    two_more("an older module takes views", || proxy.taken()).await;
    assert_eq!((held(&proxy), proxy.seen() - proxy.taken()), (None, 0), "and was never sent what it refuses");
    for _ in 0..2 {
        proxy.set(Mood::Taking);
        until("a newer module gets more", || held(&proxy)).await;
        proxy.set(Mood::First);
        two_more("an older module takes views again", || proxy.taken()).await;
        until("it gets no more than it reads", || held(&proxy).is_none().then_some(())).await;
    }
    assert_generations_rise(&proxy);
}

#[tokio::test]
async fn a_later_sidecar_is_given_way_until_it_is_gone() {
    let worker = FakeWorker::start(STEADY);
    let proxy = FakeProxy::start();
    let _sidecar = sidecar(&proxy, &[&worker], "").await;
    two_more("views are taken", || proxy.taken()).await;
    proxy.set(Mood::Obeying { epoch: u64::MAX });
    two_more("it is tried on", || proxy.seen()).await;
    proxy.set(Mood::Taking);
    two_more("views are taken again", || proxy.taken()).await;
    assert_generations_rise(&proxy);
}

#[tokio::test]
async fn one_bad_proxy_delays_no_other() {
    let worker = FakeWorker::start(STEADY);
    let (good, hanging) = (FakeProxy::start(), FakeProxy::start());
    hanging.set(Mood::Hang);
    let more = format!(
        "{{listen: '127.0.0.1:0', scrape: {{interval: 20ms}}, push: {{heartbeat: 50ms, timeout: 5s}}, \
         proxies: [{{url: 'http://{}', token: {TOKEN}}}, {{url: 'http://{}', token: {TOKEN}}}], \
         pools: [{{name: p, workers: ['{}']}}]}}",
        hanging.server.address,
        good.server.address,
        worker.address()
    );
    let _sidecar = Sidecar::start(Config::parse(&more).unwrap()).await.unwrap();
    until("the hanging proxy has its first view", || (hanging.seen() == 1).then_some(())).await;
    let before = good.taken();
    until("the other has many", || (good.taken() >= before + 10).then_some(())).await;
    assert_eq!(hanging.seen(), 1, "its one push still hangs");
}

#[tokio::test]
async fn a_rotated_token_is_found() {
    let worker = FakeWorker::start(STEADY);
    let proxy = FakeProxy::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let text = format!(
        "{{listen: '127.0.0.1:0', push: {{heartbeat: 50ms}}, pools: [{{name: p, workers: ['{}']}}], \
         proxies: [{{url: 'http://{}', token_file: '{}'}}]}}",
        worker.address(),
        proxy.server.address,
        file.display()
    );
    let _sidecar = Sidecar::start(Config::parse(&text).unwrap()).await.unwrap();
    two_more("views are taken", || proxy.taken()).await;
    proxy.with(|control| control.token = "another".into());
    until("the old token is refused", || proxy.with(|control| (control.strangers > 0).then_some(()))).await;
    std::fs::write(&file, "another\n").unwrap();
    two_more("views are taken again", || proxy.taken()).await;
}

#[tokio::test]
async fn a_token_file_that_is_not_there_stops_the_start() {
    let text = "{proxies: [{url: 'http://p:1', token_file: /nowhere/token}], pools: [{name: p, workers: ['w:1']}]}";
    let error = Sidecar::start(Config::parse(text).unwrap()).await.unwrap_err();
    assert!(error.to_string().starts_with("proxies[0].token_file: cannot read /nowhere/token"), "{error}");
}

/// `running` of each worker numbers its pages, and for each page is noted what had been answered when it was asked for.
#[tokio::test]
async fn no_credit_is_newer_than_the_oldest_scrape() {
    let proxy = FakeProxy::start();
    let known = Arc::new(Mutex::new(BTreeMap::new()));
    let worker = |name: &'static str, used: u64, after: Duration| {
        let (known, control) = (Arc::clone(&known), proxy.control());
        FakeWorker::watched(Page::Counting { used, after }, move |number| {
            let admitted = control.lock().unwrap().admitted;
            known.lock().unwrap().insert((name, number), admitted);
        })
    };
    let (fast, slow) = (worker("fast", 1, Duration::ZERO), worker("slow", 2, Duration::from_millis(70)));
    let _sidecar = sidecar(&proxy, &[&fast, &slow], "").await;
    until("there are many views", || (proxy.taken() >= 40).then_some(())).await;

    let documents = proxy.with(|control| control.taken.clone());
    let known = known.lock().unwrap();
    for document in &documents {
        let pool = &document.pools["p"];
        let ranks = || pool.workers.iter().map(|worker| &worker.ranks[0]);
        let page = |used| ranks().find(|rank| rank.kv_used_blocks == Some(used)).unwrap().running.unwrap();
        let oldest = known[&("fast", page(1))].min(known[&("slow", page(2))]);
        assert!(pool.admitted.requests <= oldest, "{document:?} names more than {oldest}");
        assert_eq!(pool.admitted.blocks, pool.admitted.requests * 10);
    }
    let last = documents.last().unwrap().pools["p"].admitted.requests;
    assert!(last > 0, "the credit follows the answers");
}

#[tokio::test]
async fn a_restarted_proxy_is_not_told_the_credit_of_the_one_before() {
    let worker = FakeWorker::start(STEADY);
    let mut proxy = FakeProxy::start();
    proxy.with(|control| control.admitted = 1_000);
    // Many pushes a scrape: what is named after the restart is the credit of a scrape before it.
    let slow = "scrape: {interval: 700ms, timeout: 5s, down_after: 1h}\npush: {heartbeat: 20ms, timeout: 1s}";
    let _sidecar = sidecar(&proxy, &[&worker], slow).await;
    let credit = || proxy.with(|control| Some(control.taken.last()?.pools["p"].admitted.requests));
    until("the credit is known", || credit().filter(|credit| *credit > 1_000)).await;
    proxy.die();
    proxy.server.revive();
    until("the restarted proxy has views", || (proxy.taken() >= 3).then_some(())).await;
    let credits = proxy
        .with(|control| control.taken.iter().map(|document| document.pools["p"].admitted.requests).collect::<Vec<_>>());
    assert!(credits[1..].iter().all(|credit| *credit < 1_000), "only the first may be old: {credits:?}");
}

/// Three documents tell the numbers of so many, a state is told in one of its own.
#[tokio::test]
async fn a_pool_of_hundreds_is_told_in_parts_that_add_up() {
    const WORKERS: usize = 300;
    let (steady, busy) = (FakeWorker::start(STEADY), FakeWorker::start(STEADY));
    let proxy = FakeProxy::start();
    let page = |worker: usize| if worker == 7 { busy.address() } else { steady.address() };
    let address = |worker: usize| format!("10.0.0.1:{}", 1_000 + worker);
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| json!({"address": address(worker), "metrics_url": format!("http://{}/metrics", page(worker))}))
        .collect();
    let config = json!({
        "listen": "127.0.0.1:0",
        "scrape": {"interval": "100ms", "timeout": "5s", "down_after": "1h"},
        "proxies": [{"url": format!("http://{}", proxy.server.address), "token": TOKEN}],
        "pools": [{"name": "p", "busy": {"active_decode_blocks_threshold": 0.85}, "workers": workers}],
    });
    let _sidecar = Sidecar::start(Config::from_value(config).unwrap()).await.unwrap();
    let told = |used: u64| {
        let seen = proxy.with(|control| control.taken.last().map(|document| document.pools["p"].workers.clone()))?;
        let has = |worker: &WorkerReport| worker.ranks.first().is_some_and(|rank| rank.kv_used_blocks == Some(used));
        Some(seen.iter().filter(|worker| has(worker)).count())
    };
    let is_newest = || proxy.with(|control| Some(control.taken.last()?.pools["p"].full_blocks.is_some()));
    let all = || told(10).filter(|count| *count == WORKERS && is_newest() == Some(true));
    until("all are there, in the newest form", all).await;

    let before = proxy.seen();
    steady.set(Page::Steady { used: 20 });
    until("the numbers of all but one are others", || told(20).filter(|count| *count == WORKERS - 1)).await;
    let documents = proxy.with(|control| control.seen[before..].to_vec());
    let counts = documents.iter().filter_map(|document| Some(document.pools.get("p")?.workers.len()));
    let counts: Vec<_> = counts.filter(|count| *count > 0).collect();
    assert!(counts.len() >= 3 && counts.iter().all(|count| *count <= 100), "in parts of at most a third: {counts:?}");

    busy.set(Page::Steady { used: 99 });
    until("one is busy", || proxy.worker(&address(7)).filter(|worker| worker.busy)).await;
    let first = proxy.with(|control| {
        let tells = |document: &&ViewDocument| {
            let mut workers = document.pools.get("p").into_iter().flat_map(|pool| &pool.workers);
            workers.any(|worker| worker.busy)
        };
        control.seen.iter().find(tells).cloned().unwrap()
    });
    assert!(first.base.is_some() && first.pools["p"].workers.len() <= 100, "{first:?}");
    assert_eq!(told(20), Some(WORKERS - 1), "what is not named stands as it was");
}
