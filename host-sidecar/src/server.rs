//! The sidecar's own HTTP.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Json, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::fetch::token;
use crate::pull::{self, Pulls};
use crate::shared::Shared;
use crate::table::{ProxyRow, Snapshot, ThresholdError, Way};
use crate::thresholds::{ModelThresholds, ThresholdRequest};

/// Longest body anybody may post, in bytes.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Longest question of a proxy, in bytes: it tells two counts of each pool, of which a view may have 1,024 with names of 128.
const MAX_QUESTION_BYTES: usize = 1 << 20;

/// Most connections at once: of proxies that ask, and of who else reads. Others wait until one is closed.
const MOST_CONNECTIONS: usize = 1_024;

/// Longest time for the head of a request to come, and for a connection to rest between two.
const LONGEST_HEAD: Duration = Duration::from_secs(60);

/// Before the next connection is taken after one could not be.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// A proxy is told often enough when it took a view within so many heartbeats.
const READY_HEARTBEATS: u32 = 3;

/// Serves until `stop` ends.
pub async fn run(shared: Arc<Shared>, listener: TcpListener, stop: impl Future<Output = ()> + Send + 'static) {
    let pulls = Arc::new(Pulls::new(Arc::clone(&shared)));
    let router = Router::new()
        .route("/busy_threshold", get(read_thresholds).post(request_thresholds))
        .route("/v1/view", get(view))
        .route("/v1/view", post(pull::answer).layer(DefaultBodyLimit::max(MAX_QUESTION_BYTES)).with_state(pulls))
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(shared);
    let (graceful, room) = (GracefulShutdown::new(), Arc::new(Semaphore::new(MOST_CONNECTIONS)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(LONGEST_HEAD);
    let mut stop = pin!(stop);
    loop {
        let next = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            next = next => next,
            () = &mut stop => break,
        };
        let Ok((stream, _)) = accepted else {
            // There are no descriptors left, or the caller has gone already.
            tokio::time::sleep(AFTER_FAILURE).await;
            continue;
        };
        let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // A caller that breaks HTTP, or is too slow, has ended its connection.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Whether the request shows the token of `api`.
///
/// # Errors
/// The answer to one that does not. Without a configured token nobody can.
pub async fn authorize(shared: &Shared, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(source) = shared.config().api_token.clone() else {
        let error = "this needs a token, and the sidecar is configured with none: set api.token_file";
        return Err(Refusal(StatusCode::FORBIDDEN, error.into()));
    };
    let token = token(&source).await.map_err(|error| Refusal(StatusCode::INTERNAL_SERVER_ERROR, error))?;
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    let is_ours = shown.is_some_and(|shown| shown.ct_eq(token.as_bytes()).into());
    if shared.meets_stranger(!is_ours) {
        tracing::warn!("somebody asks without the token of `api`, or with another");
    }
    if is_ours {
        return Ok(());
    }
    shared.counters.unauthorized();
    Err(Refusal(StatusCode::UNAUTHORIZED, "the bearer token is missing or wrong".into()))
}

async fn read_thresholds(State(shared): State<Arc<Shared>>) -> Response {
    Json(json!({ "thresholds": shared.read(|table| table.thresholds()) })).into_response()
}

async fn request_thresholds(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Result<Json<ThresholdRequest>, JsonRejection>,
) -> Result<Json<ModelThresholds>, Refusal> {
    let Json(request) = body.map_err(|rejection| Refusal(rejection.status(), rejection.body_text()))?;
    if !request.is_read() {
        authorize(&shared, &headers).await?;
    }
    let now = shared.now();
    let thresholds = shared.update(|table| table.request_thresholds(&request, now)).map_err(|error| match error {
        ThresholdError::UnknownModel(model) => {
            Refusal(StatusCode::NOT_FOUND, format!("no pool serves the model {model:?}"))
        }
        ThresholdError::OutOfRange(sentence) => Refusal(StatusCode::BAD_REQUEST, sentence),
    })?;
    if !request.is_read() {
        tracing::info!(model = thresholds.model, thresholds = ?thresholds.thresholds, "busy thresholds set");
    }
    Ok(Json(thresholds))
}

/// An answer that says what was wrong and what to do.
#[derive(Debug)]
pub struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, error) = self;
        let mut answer = (status, Json(json!({ "error": error }))).into_response();
        if status == StatusCode::UNAUTHORIZED {
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        answer
    }
}

/// What is known now, as proxies are told it; of what each of them admitted nothing.
async fn view(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Result<Response, Refusal> {
    authorize(&shared, &headers).await?;
    let now = shared.now();
    let Snapshot { pools, proxies, .. } = shared.read(|table| table.snapshot(now));
    let pools = pools.into_iter().map(|row| {
        let mut report = json!(row.report);
        if let Some(report) = report.as_object_mut() {
            report.remove("admitted");
        }
        (row.name.to_string(), report)
    });
    let proxies = proxies.into_iter().map(|ProxyRow { name, taken_at, holds, .. }| {
        let age = taken_at.map(|taken| now.saturating_sub(taken).as_millis() as u64);
        let holds: Vec<&str> = holds.iter().map(|pool| &**pool).collect();
        json!({ "name": &*name, "took_view_ms_ago": age, "pools": holds })
    });
    let (pools, proxies) = (pools.collect::<serde_json::Map<_, _>>(), proxies.collect::<Vec<_>>());
    Ok(Json(json!({ "epoch": shared.epoch, "pools": pools, "proxies": proxies })).into_response())
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let (now, gpus) = (shared.now(), shared.local_gpus());
    let snapshot = shared.read(|table| table.snapshot(now));
    match shared.counters.page(&snapshot, &gpus, now) {
        Ok(page) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], page).into_response()
        }
        Err(error) => Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let missing = missing(&shared);
    let status = if missing.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": missing.is_empty(), "missing": missing }))).into_response()
}

/// Sentences that say what is not as it must be. Proxies that ask are not waited for: what is in front of this may send them here
/// only when it is ready.
fn missing(shared: &Shared) -> Vec<String> {
    let patience = shared.config().push.heartbeat * READY_HEARTBEATS;
    let now = shared.now();
    shared.read(|table| {
        let lacks = |row: &ProxyRow| match row.taken_at {
            None => Some("has not taken a view yet".into()),
            Some(at) if now.saturating_sub(at) > patience => Some(format!("has not taken a view for {patience:?}")),
            Some(_) => {
                let pool = table.told_pools().find(|pool| !row.holds.contains(pool))?;
                Some(format!("has not taken a view of pool {pool} yet"))
            }
        };
        let pushed = table.proxies().filter(|row| row.way == Way::Pushed);
        let late = pushed.filter_map(|row| Some(format!("proxy {} {}", row.name, lacks(&row)?)));
        let unattended = (!table.is_attended(now)).then(|| "no scrape of a worker has ended for long".to_owned());
        table.unsettled().chain(late).chain(unattended).collect()
    })
}
