//! Workers are asked for what is read of their pages alone, wherever that is enough.

mod common;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use admission_core::view::WorkerState::Up;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use common::{FakeProxy, Server, TOKEN, until, until_answered};
use futures_util::stream;
use host_sidecar::{Config, Sidecar};
use worker_sim::fleet::Fleet;

/// A page with a long histogram, as vLLM's.
const VLLM: &str = include_str!("pages/vllm-0.32-small-kv-busy.prom");
const SGLANG: &str = include_str!("pages/sglang-0.5.11-two-ranks.prom");

/// A worker that answers by a function of path and query, and remembers these.
struct Scripted {
    server: Server,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    fn start(answer: impl Fn(&str) -> Response + Clone + Send + Sync + 'static) -> Self {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&asked);
        let answer = move |request: Request| {
            let path = request.uri().to_string();
            let response = answer(&path);
            seen.lock().unwrap().push(path);
            async move { response }
        };
        Self { server: Server::start(Router::new().fallback(answer)), asked }
    }

    /// What it was asked for, in order, after at least so many times.
    async fn asked(&self, times: usize) -> Vec<String> {
        until("it was asked often enough", || {
            let asked = self.asked.lock().unwrap();
            (asked.len() >= times).then(|| asked.clone())
        })
        .await
    }
}

async fn sidecar(proxy: &FakeProxy, worker: std::net::SocketAddr) -> Sidecar {
    let text = format!(
        "{{listen: '127.0.0.1:0', scrape: {{interval: 20ms, timeout: 2s}}, push: {{heartbeat: 100ms}}, \
         proxies: [{{url: 'http://{}', token: {TOKEN}}}], pools: [{{name: p, workers: ['{worker}']}}]}}",
        proxy.server.address,
    );
    Sidecar::start(Config::parse(&text).unwrap()).await.unwrap()
}

/// The value of a counter of the pool on the sidecar's own page.
async fn counted(sidecar: &Sidecar, series: &str) -> u64 {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{}/metrics", sidecar.address());
    let page = client.get(url).send().await.unwrap().text().await.unwrap();
    let line = page.lines().find(|line| line.starts_with(series)).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

const OK: &str = "sluice_sidecar_scrapes_total{pool=\"p\",result=\"ok\"}";
const BYTES: &str = "sluice_sidecar_scraped_bytes_total{pool=\"p\"}";

/// Every scrape was one that could be read.
async fn none_has_failed(sidecar: &Sidecar) {
    for result in ["timeout", "connection", "too_large", "status", "page"] {
        let series = format!("sluice_sidecar_scrapes_total{{pool=\"p\",result=\"{result}\"}}");
        assert_eq!(counted(sidecar, &series).await, 0, "{result}");
    }
}

#[tokio::test]
async fn of_vllm_a_few_lines_are_asked_for_after_the_first_page() {
    let (fleet, proxy) = (Fleet::start(1).unwrap(), FakeProxy::start());
    let worker = &fleet.workers()[0];
    let sidecar = sidecar(&proxy, worker.address()).await;
    let scraped = async |at_least: u64| {
        until_answered("scrapes", || async {
            let (scrapes, bytes) = (counted(&sidecar, OK).await, counted(&sidecar, BYTES).await);
            (scrapes >= at_least).then_some((scrapes, bytes))
        })
        .await
    };
    let (scrapes, bytes) = scraped(20).await;
    assert!(bytes > 45_000, "the first page is whole, and an excerpt must not lack what that has");
    assert!(bytes < 50_000 + scrapes * 3_000, "{bytes} bytes in {scrapes} scrapes");
    worker.set_kv_usage(0.5);
    let is_half =
        || proxy.worker(&worker.address().to_string())?.ranks.first()?.kv_used_blocks.filter(|used| *used == 20);
    until("20 of 40 blocks are used", is_half).await;

    fleet.ignore_names();
    let before = scraped(0).await;
    let after = scraped(before.0 + 10).await;
    assert!(after.1 - before.1 > 9 * 45_000, "a page that is whole although little was asked for is read too");
    none_has_failed(&sidecar).await;
}

#[tokio::test]
async fn a_worker_that_leaves_out_what_it_has_is_asked_for_whole_pages() {
    let worker = Scripted::start(|path| match path.contains('?') {
        false => VLLM.into_response(),
        // Readable, but the KV cache is missing.
        true => {
            "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_waiting{engine=\"0\"} 1\n".into_response()
        }
    });
    let proxy = FakeProxy::start();
    let sidecar = sidecar(&proxy, worker.server.address).await;
    let asked = worker.asked(6).await;
    assert_eq!(asked.iter().filter(|path| path.contains('?')).count(), 1, "{asked:?}");
    assert!(asked[1].starts_with("/metrics/?name%5B%5D=vllm:num_requests_running&"), "{asked:?}");
    let address = worker.server.address.to_string();
    let told = until("it is told", || proxy.worker(&address)).await;
    assert_eq!((told.state, told.ranks[0].kv_used_blocks), (Up, Some(37)));
    let never = |document: &admission_core::view::ViewDocument| {
        document.pools.values().flat_map(|pool| &pool.workers).all(|worker| worker.ranks[0].kv_used_blocks == Some(37))
    };
    assert!(proxy.with(|control| control.taken.iter().all(never)), "the poorer page was never believed");
    none_has_failed(&sidecar).await;
}

#[tokio::test]
async fn a_worker_that_has_nothing_there_loses_no_scrape() {
    let worker = Scripted::start(|path| match path {
        "/metrics" => VLLM.into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    });
    let proxy = FakeProxy::start();
    let sidecar = sidecar(&proxy, worker.server.address).await;
    let asked = worker.asked(6).await;
    assert_eq!(asked.iter().filter(|path| *path != "/metrics").count(), 1, "{asked:?}");
    none_has_failed(&sidecar).await;
}

#[tokio::test]
async fn a_worker_that_breaks_off_or_hangs_there_loses_no_scrape() {
    let broken = || Body::from_stream(stream::once(async { Err::<Bytes, _>(std::io::Error::other("gone")) }));
    let hanging = || Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
    let bodies: [fn() -> Body; 2] = [broken, hanging];
    for body in bodies {
        let worker = Scripted::start(move |path| match path {
            "/metrics" => VLLM.into_response(),
            _ => body().into_response(),
        });
        let proxy = FakeProxy::start();
        let sidecar = sidecar(&proxy, worker.server.address).await;
        let asked = worker.asked(6).await;
        // A connection that breaks before there is an answer is tried anew, as one that was closed meanwhile.
        let tried = asked.iter().filter(|path| *path != "/metrics").count();
        assert!((1..=2).contains(&tried) && asked[3..].iter().all(|path| path == "/metrics"), "{asked:?}");
        none_has_failed(&sidecar).await;
    }
}

#[tokio::test]
async fn another_engine_at_the_same_address_is_read_with_the_next_scrape() {
    let is_replaced = Arc::new(Mutex::new(false));
    let replaced = Arc::clone(&is_replaced);
    let worker = Scripted::start(move |path| match (path.contains('?'), *replaced.lock().unwrap()) {
        (_, false) => VLLM.into_response(),
        (false, true) => SGLANG.into_response(),
        // It has no series of vLLM.
        (true, true) => "".into_response(),
    });
    let proxy = FakeProxy::start();
    let sidecar = sidecar(&proxy, worker.server.address).await;
    let asked = worker.asked(4).await;
    assert!(asked[2].contains('?') && asked[3].contains('?'), "{asked:?}");
    *is_replaced.lock().unwrap() = true;
    let address = worker.server.address.to_string();
    until("its two ranks are told", || proxy.worker(&address).filter(|worker| worker.ranks.len() == 2)).await;
    none_has_failed(&sidecar).await;
}
