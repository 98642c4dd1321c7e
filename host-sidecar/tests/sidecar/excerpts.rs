//! Workers are asked for what is read of their pages alone, wherever that is enough.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{FakeProxy, Server, TOKEN, until, until_answered};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use host_sidecar::{Config, Sidecar};
use worker_sim::fleet::Fleet;

/// A page with a long histogram, as vLLM's.
const VLLM: &str = include_str!("../pages/vllm-0.32-small-kv-busy.prom");
const SGLANG: &str = include_str!("../pages/sglang-0.5.11-two-ranks.prom");

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

fn config(proxy: &FakeProxy, worker: std::net::SocketAddr, timeout: &str, pool: &str) -> Config {
    let text = format!(
        "{{listen: '127.0.0.1:0', scrape: {{interval: 20ms, timeout: {timeout}, down_after: 1h}}, push: {{heartbeat: 100ms}}, \
         proxies: [{{url: 'http://{}', token: {TOKEN}}}], pools: [{{name: p, workers: ['{worker}'] {pool}}}]}}",
        proxy.server.address,
    );
    Config::parse(&text).unwrap()
}

/// Gives a page all the time that a busy machine takes.
async fn sidecar(proxy: &FakeProxy, worker: std::net::SocketAddr) -> Sidecar {
    Sidecar::start(config(proxy, worker, "20s", "")).await.unwrap()
}

/// The values of counters of the pool, all at one moment.
async fn counted<const N: usize>(sidecar: &Sidecar, series: [&str; N]) -> [u64; N] {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{}/metrics", sidecar.address());
    let page = client.get(url).send().await.unwrap().text().await.unwrap();
    series.map(|series| {
        let line = page.lines().find(|line| line.starts_with(series)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    })
}

const OK: &str = "sluice_sidecar_scrapes_total{pool=\"p\",result=\"ok\"}";
const BYTES: &str = "sluice_sidecar_scraped_bytes_total{pool=\"p\"}";

/// Every scrape was one that could be read.
async fn none_has_failed(sidecar: &Sidecar) {
    for result in ["timeout", "connection", "too_large", "status", "page"] {
        let series = format!("sluice_sidecar_scrapes_total{{pool=\"p\",result=\"{result}\"}}");
        assert_eq!(counted(sidecar, [&series]).await, [0], "{result}");
    }
}

fn is_excerpt(path: &str) -> bool {
    path.contains('?')
}

#[tokio::test]
async fn of_vllm_a_few_lines_are_asked_for_after_the_first_page() {
    let (fleet, proxy) = (Fleet::start(1).unwrap(), FakeProxy::start());
    let worker = &fleet.workers()[0];
    let sidecar = sidecar(&proxy, worker.address()).await;
    let scraped = async |at_least: u64| {
        until_answered("scrapes", || async {
            let [scrapes, bytes] = counted(&sidecar, [OK, BYTES]).await;
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
    assert!(after.1 - before.1 > 8 * 45_000, "a page that is whole although little was asked for is read too");
    none_has_failed(&sidecar).await;
}

/// Starts a sidecar before a worker whose whole page is `whole` until it was asked for an excerpt, which is `excerpt`; from then on
/// nothing but errors. What is told of it in the end is what its first page said.
async fn is_not_believed(whole: &'static str, excerpt: String) -> usize {
    let is_over = Arc::new(AtomicBool::new(false));
    let worker = Scripted::start(move |path| match path.contains('?') {
        true => {
            is_over.store(true, Ordering::Relaxed);
            excerpt.clone().into_response()
        }
        false if is_over.load(Ordering::Relaxed) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        false => whole.into_response(),
    });
    let proxy = FakeProxy::start();
    let _sidecar = sidecar(&proxy, worker.server.address).await;
    let address = worker.server.address.to_string();
    let told = until("its errors are told", || proxy.worker(&address).filter(|worker| worker.cause.is_some())).await;
    let asked = worker.asked(4).await;
    assert!(asked[1].starts_with("/metrics/?name%5B%5D="), "{asked:?}");
    assert!(asked[2..].iter().all(|path| path == "/metrics"), "{asked:?}");
    assert!(told.ranks.iter().all(|rank| rank.kv_used_blocks.is_some()), "{told:?}");
    told.ranks.len()
}

#[tokio::test]
async fn an_excerpt_that_lacks_what_the_page_has_is_not_believed() {
    let without_cache = "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_waiting{engine=\"0\"} 1\n";
    assert_eq!(is_not_believed(VLLM, without_cache.to_owned()).await, 1);
    let of_one_rank = SGLANG.split_inclusive('\n').filter(|line| !line.contains("dp_rank=\"1\"")).collect();
    assert_eq!(is_not_believed(SGLANG, of_one_rank).await, 2);
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
    assert_eq!(asked.iter().filter(|path| is_excerpt(path)).count(), 1, "{asked:?}");
    none_has_failed(&sidecar).await;
}

#[tokio::test]
async fn a_worker_that_breaks_off_or_hangs_there_loses_no_scrape() {
    let broken = || Body::from_stream(stream::once(async { Err::<Bytes, _>(std::io::Error::other("gone")) }));
    let hanging = || Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
    for (body, timeout) in [(broken as fn() -> Body, "20s"), (hanging, "4s")] {
        let worker = Scripted::start(move |path| match path {
            "/metrics" => VLLM.into_response(),
            _ => body().into_response(),
        });
        let proxy = FakeProxy::start();
        let config = config(&proxy, worker.server.address, timeout, "");
        let sidecar = Sidecar::start(config).await.unwrap();
        let asked = worker.asked(6).await;
        // A connection that breaks before there is an answer is tried anew, as one that was closed meanwhile.
        let tried = asked.iter().filter(|path| is_excerpt(path)).count();
        assert!((1..=2).contains(&tried) && !asked[3..].iter().any(|path| is_excerpt(path)), "{asked:?}");
        none_has_failed(&sidecar).await;
    }
}

#[tokio::test]
async fn a_worker_as_slow_as_half_of_the_time_is_read_whole_and_loses_no_scrape() {
    let page = async |_: Request| {
        tokio::time::sleep(std::time::Duration::from_millis(2_200)).await;
        VLLM
    };
    let (server, proxy) = (Server::start(Router::new().fallback(page)), FakeProxy::start());
    let sidecar = Sidecar::start(config(&proxy, server.address, "4s", "")).await.unwrap();
    let timeout = "sluice_sidecar_scrapes_total{pool=\"p\",result=\"timeout\"}";
    let two = async || (counted(&sidecar, [OK, timeout]).await.iter().sum::<u64>() >= 2).then_some(());
    until_answered("two scrapes", two).await;
    none_has_failed(&sidecar).await;
}

#[tokio::test]
async fn after_one_bad_answer_excerpts_are_asked_for_again() {
    let excerpts = Arc::new(AtomicU64::new(0));
    let worker = Scripted::start(move |path| match path.contains('?') {
        true if excerpts.fetch_add(1, Ordering::Relaxed) == 3 => StatusCode::BAD_GATEWAY.into_response(),
        _ => VLLM.into_response(),
    });
    let proxy = FakeProxy::start();
    let sidecar = sidecar(&proxy, worker.server.address).await;
    let asked = worker.asked(9).await;
    let is_asked: Vec<_> = asked.iter().take(9).map(|path| is_excerpt(path)).collect();
    assert_eq!(is_asked, [false, true, true, true, true, false, true, true, true], "the fifth was an error");
    none_has_failed(&sidecar).await;
}

#[tokio::test]
async fn excerpts_that_begin_to_hang_cost_two_scrapes() {
    let excerpts = Arc::new(AtomicU64::new(0));
    let worker = Scripted::start(move |path| match path.contains('?') {
        true if excerpts.fetch_add(1, Ordering::Relaxed) >= 3 => {
            Body::from_stream(stream::pending::<Result<Bytes, Infallible>>()).into_response()
        }
        _ => VLLM.into_response(),
    });
    let proxy = FakeProxy::start();
    let sidecar = Sidecar::start(config(&proxy, worker.server.address, "2s", "")).await.unwrap();
    let asked = worker.asked(12).await;
    let is_asked: Vec<_> = asked.iter().take(12).map(|path| is_excerpt(path)).collect();
    // A page, three excerpts, two that hang, a page, a trial that hangs, and pages from then on.
    let expected = [false, true, true, true, true, true, false, true, false, false, false, false];
    assert_eq!(is_asked, expected, "{asked:?}");
    let timeouts = "sluice_sidecar_scrapes_total{pool=\"p\",result=\"timeout\"}";
    assert_eq!(counted(&sidecar, [timeouts]).await, [2]);
}

#[tokio::test]
async fn another_configuration_begins_with_the_whole_page() {
    let worker = Scripted::start(|path| match path.contains('?') {
        true => {
            "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_waiting{engine=\"0\"} 1\n".into_response()
        }
        false => "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_waiting{engine=\"0\"} 1\n\
                  own:blocks 7\n"
            .into_response(),
    });
    let (proxy, address) = (FakeProxy::start(), worker.server.address);
    let sidecar = sidecar(&proxy, address).await;
    until("excerpts are good", || worker.asked.lock().unwrap().get(3).filter(|path| is_excerpt(path)).map(|_| ()))
        .await;
    let mapping =
        ", engine: {custom: {running: {metric: 'vllm:num_requests_running'}, kv_used_blocks: {metric: 'own:blocks'}}}";
    sidecar.configure(config(&proxy, address, "20s", mapping)).unwrap();
    let has_blocks = || proxy.worker(&address.to_string())?.ranks.first()?.kv_used_blocks.filter(|used| *used == 7);
    until("the mapping is read from the whole page", has_blocks).await;
    none_has_failed(&sidecar).await;
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
