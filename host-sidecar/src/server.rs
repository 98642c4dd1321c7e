//! The sidecar's own HTTP.

use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Json, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, serve};
use serde_json::json;
use tokio::net::TcpListener;

use crate::shared::Shared;
use crate::table::ThresholdError;
use crate::thresholds::{ModelThresholds, ThresholdRequest};

/// Longest body anybody may post, in bytes.
const MAX_BODY_BYTES: usize = 64 << 10;

/// A proxy is told often enough when it took a view within so many heartbeats.
const READY_HEARTBEATS: u32 = 3;

/// Serves until `stop` ends.
pub async fn run(shared: Arc<Shared>, listener: TcpListener, stop: impl Future<Output = ()> + Send + 'static) {
    let router = Router::new()
        .route("/busy_threshold", get(read_thresholds).post(request_thresholds))
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(shared);
    // The server retries what fails on its listener and itself never ends with an error.
    let _ = serve(listener, router).with_graceful_shutdown(stop).await;
}

async fn read_thresholds(State(shared): State<Arc<Shared>>) -> Response {
    Json(json!({ "thresholds": shared.read(|table| table.thresholds()) })).into_response()
}

async fn request_thresholds(
    State(shared): State<Arc<Shared>>,
    body: Result<Json<ThresholdRequest>, JsonRejection>,
) -> Result<Json<ModelThresholds>, Response> {
    let Json(request) = body.map_err(|rejection| refusal(rejection.status(), rejection.body_text()))?;
    let now = shared.now();
    let thresholds = shared.update(|table| table.request_thresholds(&request, now)).map_err(|error| match error {
        ThresholdError::UnknownModel(model) => {
            refusal(StatusCode::NOT_FOUND, format!("no pool serves the model {model:?}"))
        }
        ThresholdError::OutOfRange(sentence) => refusal(StatusCode::BAD_REQUEST, sentence),
    })?;
    if !request.is_read() {
        tracing::info!(model = thresholds.model, thresholds = ?thresholds.thresholds, "busy thresholds set");
    }
    Ok(Json(thresholds))
}

fn refusal(status: StatusCode, error: String) -> Response {
    (status, Json(json!({ "error": error }))).into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let now = shared.now();
    match shared.read(|table| shared.counters.page(&shared.config, table, now)) {
        Ok(page) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], page).into_response()
        }
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let missing = missing(&shared);
    let status = if missing.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": missing.is_empty(), "missing": missing }))).into_response()
}

/// Sentences that say what is not as it must be.
fn missing(shared: &Shared) -> Vec<String> {
    let patience = shared.config.push.heartbeat * READY_HEARTBEATS;
    let now = shared.now();
    shared.read(|table| {
        let workers = table.untried().map(|worker| format!("worker {worker} has not been scraped yet"));
        let late = shared.config.proxies.iter().enumerate().filter_map(|(at, proxy)| match table.taken_at(at) {
            None => Some(format!("proxy {} has not taken a view yet", proxy.url)),
            Some(taken) => (now.saturating_sub(taken) > patience)
                .then(|| format!("proxy {} has not taken a view for {patience:?}", proxy.url)),
        });
        workers.chain(late).collect()
    })
}
