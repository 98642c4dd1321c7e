//! The sidecar's own HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequest, Json, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::de::DeserializeOwned;
use serde_json::json;
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;

use crate::connections;
use crate::fetch::token;
use crate::pull::{self, Pulls};
use crate::shared::{SetError, Shared};
use crate::table::{ProxyRow, Snapshot, ThresholdError, Way};
use crate::thresholds::{ModelThresholds, ThresholdRequest};

/// Longest body anybody may post, in bytes.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Longest question of a proxy, in bytes: it tells two counts of each pool, of which a view may have 1,024 with names of 128.
const MAX_QUESTION_BYTES: usize = 1 << 20;

/// Most connections together: of proxies that ask, and of who else reads.
const MOST_CONNECTIONS: usize = 1_024;

/// Longest time for the body of a request to come.
const LONGEST_BODY: Duration = Duration::from_secs(10);

/// Connections beyond [`MOST_CONNECTIONS`] that are answered what probes ask, and no more: a caller who keeps all others open
/// does not make the sidecar look dead.
const MOST_PROBES: usize = 32;

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
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .merge(probes())
        .with_state(Arc::clone(&shared));
    let probes = probes().fallback(async || Refusal(StatusCode::SERVICE_UNAVAILABLE, FULL.into())).with_state(shared);
    connections::serve(listener, [router, probes], [MOST_CONNECTIONS, MOST_PROBES], stop).await;
}

/// Answer to what is no probe, on a connection beyond the most.
const FULL: &str = "as many connections are open as the sidecar serves; come back later";

fn probes() -> Router<Arc<Shared>> {
    Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(ready))
}

/// Reads a body of JSON that has to come in time.
///
/// # Errors
/// The status and the sentence of the answer to one that does not, or cannot be read.
pub async fn read_body<T: DeserializeOwned>(request: Request) -> Result<T, (StatusCode, String)> {
    read_within(LONGEST_BODY, request).await
}

async fn read_within<T: DeserializeOwned>(longest: Duration, request: Request) -> Result<T, (StatusCode, String)> {
    match tokio::time::timeout(longest, Json::from_request(request, &())).await {
        Ok(Ok(Json(body))) => Ok(body),
        Ok(Err(rejection)) => Err((rejection.status(), rejection.body_text())),
        Err(_) => Err((StatusCode::REQUEST_TIMEOUT, format!("the body has not come in {longest:?}"))),
    }
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
    request: Request,
) -> Result<Json<ModelThresholds>, Refusal> {
    // Why before the token: what only reads is for all.
    let request: ThresholdRequest = read_body(request).await.map_err(|(status, error)| Refusal(status, error))?;
    if !request.is_read() {
        authorize(&shared, &headers).await?;
    }
    let thresholds = shared.request_thresholds(&request).await.map_err(|error| match error {
        SetError::Request(ThresholdError::UnknownModel(model)) => {
            let error = format!(
                "no pool serves the model {model:?}: neither `pools[].model` and `models` nor a worker's page name it"
            );
            Refusal(StatusCode::NOT_FOUND, error)
        }
        SetError::Request(ThresholdError::OutOfRange(sentence)) => Refusal(StatusCode::BAD_REQUEST, sentence),
        SetError::File(error) => {
            let error = format!("nothing was changed, since `api.thresholds_file` cannot be written: {error}");
            Refusal(StatusCode::INTERNAL_SERVER_ERROR, error)
        }
        SetError::Task(error) => Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
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
        // Why not those of proxies that ask: they could no longer ask for the others.
        let unknown = table.proxies().filter(|row| row.way == Way::Pushed).flat_map(|row| {
            let sentence = |pool| format!("proxy {} needs views of pool {pool}, which `pools` lacks", row.name);
            row.unknown.into_iter().map(sentence).collect::<Vec<_>>()
        });
        let unattended = (!table.is_attended(now)).then(|| "no scrape of a worker has ended for long".to_owned());
        table.unsettled().chain(late).chain(unknown).chain(unattended).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use axum::body::Body;

    #[tokio::test]
    async fn a_body_that_does_not_come_is_not_waited_for() {
        let request = |body| Request::post("/").header("content-type", "application/json").body(body).unwrap();
        let answer: Result<ThresholdRequest, _> =
            read_within(Duration::from_millis(5), request(Body::new(Never))).await;
        let (status, sentence) = answer.unwrap_err();
        assert_eq!((status, &*sentence), (StatusCode::REQUEST_TIMEOUT, "the body has not come in 5ms"));
        assert!(read_body::<ThresholdRequest>(request(Body::from(r#"{"model":"m"}"#))).await.is_ok());
    }

    struct Never;

    impl axum::body::HttpBody for Never {
        type Data = axum::body::Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, Self::Error>>> {
            std::task::Poll::Pending
        }
    }
}
