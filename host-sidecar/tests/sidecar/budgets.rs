//! A dispatch budget that a Prometheus is asked for: believed while it is told, and taken back when it is not.

use std::sync::{Arc, Mutex};

use crate::common::{FakeProxy, FakeWorker, Page, Server, TOKEN, until, until_answered};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use host_sidecar::{Config, Sidecar};
use serde_json::json;

const QUERY: &str = "1 - avg(vllm:kv_cache_usage_perc{model_name=\"m\"})";
const ESCAPED: &str = "query=1+-+avg%28vllm%3Akv_cache_usage_perc%7Bmodel_name%3D%22m%22%7D%29";

/// Values of the samples, or a status without an answer.
type Outcome = Arc<Mutex<Result<Vec<&'static str>, u16>>>;

/// Answers one query, to whom shows the token.
struct Prometheus {
    server: Server,
    outcome: Outcome,
}

impl Prometheus {
    fn start(value: &'static str) -> Self {
        let outcome = Arc::new(Mutex::new(Ok(vec![value])));
        let router = Router::new().route("/prom/api/v1/query", get(answer)).with_state(Arc::clone(&outcome));
        Self { server: Server::start(router), outcome }
    }

    fn set(&self, outcome: Result<Vec<&'static str>, u16>) {
        *self.outcome.lock().unwrap() = outcome;
    }
}

async fn answer(State(outcome): State<Outcome>, uri: Uri, headers: HeaderMap) -> Response {
    let is_asked = uri.query() == Some(ESCAPED);
    let is_known = headers.get("authorization").is_some_and(|value| value == "Bearer ask-me");
    if !is_asked || !is_known {
        return StatusCode::FORBIDDEN.into_response();
    }
    match &*outcome.lock().unwrap() {
        Ok(values) => {
            let series = values.iter().map(|value| json!({"metric": {}, "value": [1, value]})).collect::<Vec<_>>();
            let data = json!({"resultType": "vector", "result": series});
            axum::Json(json!({"status": "success", "data": data})).into_response()
        }
        Err(status) => {
            let error = json!({"status": "error", "errorType": "bad_data", "error": "parse error"});
            (StatusCode::from_u16(*status).unwrap(), axum::Json(error)).into_response()
        }
    }
}

async fn sidecar(proxy: &FakeProxy, worker: &FakeWorker, prometheus: &Prometheus) -> Sidecar {
    let config = json!({
        "listen": "127.0.0.1:0",
        "scrape": {"interval": "20ms", "timeout": "5s", "down_after": "1h"},
        "push": {"heartbeat": "100ms"},
        "proxies": [{"url": format!("http://{}", proxy.server.address), "token": TOKEN}],
        "pools": [{"name": "p", "workers": [worker.address()], "dispatch_budget": {
            "sources": ["prometheus", "running"], "max_concurrency": 10,
            "prometheus": {"url": format!("http://{}/prom", prometheus.server.address), "query": QUERY,
                           "interval": "30ms", "timeout": "5s", "token": "ask-me"},
        }}],
    });
    Sidecar::start(Config::from_value(config).unwrap()).await.unwrap()
}

#[tokio::test]
async fn a_number_is_believed_until_it_stays_out() {
    let (worker, proxy) = (FakeWorker::start(Page::Steady { used: 10 }), FakeProxy::start());
    let prometheus = Prometheus::start("0.25");
    let sidecar = sidecar(&proxy, &worker, &prometheus).await;
    let told = || proxy.with(|control| control.taken.last()?.pools.get("p")?.dispatch_budget);
    let is_told = |budget: f64| told().filter(|told| (told - budget).abs() < 1e-9);
    until("its number is told", || is_told(0.25)).await;
    prometheus.set(Ok(vec!["0.5"]));
    until("the next one too", || is_told(0.5)).await;
    prometheus.set(Ok(vec!["7"]));
    until("a budget is at most all of the pool", || is_told(1.0)).await;

    for bad in [Err(400), Ok(vec!["0.1", "0.2"]), Ok(vec![]), Ok(vec!["NaN"])] {
        prometheus.set(bad.clone());
        until(&format!("the next source is asked after {bad:?}"), || is_told(0.9)).await;
        prometheus.set(Ok(vec!["0.25"]));
        until("it is believed again", || is_told(0.25)).await;
    }
    let page = async || reqwest::get(format!("http://{}/metrics", sidecar.address())).await.ok()?.text().await.ok();
    let count = async |result: &str| -> Option<u64> {
        let name = format!("sluice_sidecar_budget_queries_total{{pool=\"p\",result=\"{result}\"}} ");
        page().await?.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
    };
    until_answered("all questions are counted", async || {
        (count("ok").await? >= 7 && count("failed").await? >= 8).then_some(())
    })
    .await;
    let available = "pool_dispatch_budget_source_available{pool=\"p\",source=\"prometheus\"} 1.0";
    assert!(page().await.unwrap().contains(available));
}
