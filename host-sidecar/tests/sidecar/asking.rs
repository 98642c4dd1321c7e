//! Proxies that ask for their view, as the sidecar answers them.

use std::time::Duration;

use crate::common::{FakeWorker, Page, TOKEN};
use admission_core::view::{Have, ViewDocument};
use host_sidecar::{Config, Sidecar};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};

/// Far beyond what any test takes: an answer that comes before has not waited for it.
const LONG: u64 = 50_000;

fn name(number: u32) -> String {
    format!("{number:032x}")
}

fn question(proxy: &str, have: Option<Have>, wait_ms: u64) -> Value {
    json!({
        "version": 1, "proxy": proxy, "wait_ms": wait_ms, "have": have,
        "admitted": {"p": {"requests": 3, "blocks": 30}}, "queued": {"p": 0},
    })
}

/// A sidecar without proxies to push to, whose heartbeat no test lives to see.
async fn sidecar(workers: &[&FakeWorker]) -> Sidecar {
    let workers: Vec<_> = workers.iter().map(|worker| worker.address().to_string()).collect();
    let config = json!({
        "listen": "127.0.0.1:0", "api": {"token": TOKEN}, "push": {"heartbeat": "1h"},
        "scrape": {"interval": "20ms", "timeout": "5s", "down_after": "1h"},
        "pools": [{"name": "p", "busy": {"active_decode_blocks_threshold": 0.85}, "workers": workers}],
    });
    Sidecar::start(Config::from_value(config).unwrap()).await.unwrap()
}

async fn ask(sidecar: &Sidecar, token: &str, question: Value) -> (StatusCode, Value) {
    let client = Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{}/v1/view", sidecar.address());
    let answer = client.post(url).bearer_auth(token).json(&question).send().await.unwrap();
    (answer.status(), answer.json().await.unwrap_or_default())
}

async fn view(sidecar: &Sidecar, question: Value) -> ViewDocument {
    let (status, answer) = ask(sidecar, TOKEN, question).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    serde_json::from_value(answer).unwrap()
}

fn have(document: &ViewDocument) -> Option<Have> {
    Some(Have { epoch: document.epoch, generation: document.generation })
}

/// Asks on until there is no news: what was admitted comes back as credit once.
async fn until_quiet(sidecar: &Sidecar, mut last: ViewDocument) -> ViewDocument {
    for _ in 0..20 {
        last = view(sidecar, question(&name(1), have(&last), 200)).await;
        if last.base.is_some() && last.pools.is_empty() {
            return last;
        }
    }
    panic!("there is always news: {last:?}");
}

/// Asks on until there is news of a worker; what is known of the pool may change by itself.
async fn until_news(sidecar: &Sidecar, mut last: ViewDocument) -> ViewDocument {
    for _ in 0..20 {
        last = view(sidecar, question(&name(1), have(&last), LONG)).await;
        if last.pools.get("p").is_some_and(|pool| !pool.workers.is_empty()) {
            return last;
        }
    }
    panic!("no worker has changed: {last:?}");
}

#[tokio::test]
async fn an_answer_waits_for_news_and_says_only_that() {
    let workers: Vec<_> = (0..4).map(|_| FakeWorker::start(Page::Steady { used: 10 })).collect();
    let sidecar = sidecar(&workers.iter().collect::<Vec<_>>()).await;
    let first = view(&sidecar, question(&name(1), None, LONG)).await;
    assert_eq!((first.base, first.pools["p"].workers.len()), (None, 4), "a newcomer is told at once, and all of it");

    let quiet = until_quiet(&sidecar, first).await;
    let changes = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        workers[2].set(Page::Steady { used: 99 });
    };
    let (busy, ()) = tokio::join!(until_news(&sidecar, quiet), changes);
    let news: Vec<_> = busy.pools["p"].workers.iter().map(|worker| (&worker.address, worker.busy)).collect();
    assert_eq!(news, [(&workers[2].address().to_string(), true)], "of one of four");
    assert!(busy.base.is_some());
}

#[tokio::test]
async fn what_was_not_taken_or_is_not_held_is_told_whole() {
    let workers: Vec<_> = (0..3).map(|_| FakeWorker::start(Page::Steady { used: 10 })).collect();
    let sidecar = sidecar(&workers.iter().collect::<Vec<_>>()).await;
    let first = view(&sidecar, question(&name(1), None, LONG)).await;
    let again = view(&sidecar, question(&name(1), None, LONG)).await;
    assert_eq!(again.base, None, "the first answer was lost");
    assert!(again.generation > first.generation);
    let mut moved = question(&name(1), have(&again), 0);
    moved["needs_whole"] = json!(true);
    let moved = view(&sidecar, moved).await;
    assert_eq!((moved.base, moved.pools["p"].workers.len()), (None, 3), "another VM asks");
    let ahead = Have { epoch: moved.epoch, generation: moved.generation + 100 };
    let outrun = view(&sidecar, question(&name(1), Some(ahead), LONG)).await;
    assert!(outrun.generation > ahead.generation, "as after a sidecar that forgot the proxy");
}

#[tokio::test]
async fn each_proxy_has_a_view_of_its_own() {
    let worker = FakeWorker::start(Page::Steady { used: 10 });
    let sidecar = sidecar(&[&worker]).await;
    let one = view(&sidecar, question(&name(1), None, LONG)).await;
    let other = view(&sidecar, question(&name(2), have(&one), LONG)).await;
    assert_eq!(other.base, None, "what one has taken another does not hold");
    let (status, refusal) = ask(&sidecar, TOKEN, question("../x", None, 0)).await;
    assert_eq!(
        (status, refusal["error"].as_str()),
        (StatusCode::BAD_REQUEST, Some("proxy: must be 32 hexadecimal digits"))
    );
}

#[tokio::test]
async fn a_later_question_ends_the_one_before() {
    let worker = FakeWorker::start(Page::Steady { used: 10 });
    let sidecar = sidecar(&[&worker]).await;
    let first = view(&sidecar, question(&name(1), None, LONG)).await;
    let settled = until_quiet(&sidecar, first).await;
    let waits = ask(&sidecar, TOKEN, question(&name(1), have(&settled), 300));
    let later = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        view(&sidecar, question(&name(1), have(&settled), 0)).await
    };
    let ((status, refusal), later) = tokio::join!(waits, later);
    assert_eq!(status, StatusCode::CONFLICT, "{refusal}");
    assert_eq!(later.base, Some(settled.generation));
}

#[tokio::test]
async fn a_view_needs_the_token() {
    let worker = FakeWorker::start(Page::Steady { used: 10 });
    let sidecar = sidecar(&[&worker]).await;
    for token in ["", "wrong", "open-sesam", "open-sesame2"] {
        let (status, answer) = ask(&sidecar, token, question(&name(1), None, 0)).await;
        assert_eq!((status, answer.get("pools")), (StatusCode::UNAUTHORIZED, None), "{token:?}");
    }
    let page = reqwest::Client::builder().no_proxy().build().unwrap();
    let page = page.get(format!("http://{}/metrics", sidecar.address())).send().await.unwrap().text().await.unwrap();
    let counted = "sluice_sidecar_pushes_total{proxy=\"(pulling)\",result=\"unauthorized\"} 4";
    assert!(page.contains(counted), "{page}");
}

#[tokio::test]
async fn those_who_ask_are_bounded() {
    let worker = FakeWorker::start(Page::Steady { used: 10 });
    let sidecar = sidecar(&[&worker]).await;
    for number in 0..256 {
        view(&sidecar, question(&name(number), None, LONG)).await;
    }
    let (status, refusal) = ask(&sidecar, TOKEN, question(&name(999), None, LONG)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{refusal}");
    view(&sidecar, question(&name(7), None, LONG)).await;
}

#[tokio::test]
async fn a_question_of_the_first_form_is_answered_in_it() {
    let worker = FakeWorker::start(Page::Steady { used: 10 });
    let sidecar = sidecar(&[&worker]).await;
    let first = view(&sidecar, question(&name(1), None, LONG)).await;
    assert_eq!((first.pools["p"].held, first.pools["p"].full_blocks), (None, None));
    let mut later = question(&name(2), None, LONG);
    (later["form"], later["held"], later["not yet known"]) = (json!(2), json!({"p": 2}), json!(1));
    let second = view(&sidecar, later).await;
    assert!(second.pools["p"].full_blocks.is_some(), "{second:?}");
}
