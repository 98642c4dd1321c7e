//! The HTTP face of a worker.

mod message;
mod refusal;
mod reply;
mod request;
mod response;
mod stream;
mod usage;

use std::collections::BTreeSet;
use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream::unfold;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::arrivals::Arrivals;
use crate::hub::Hub;
use crate::stats::{Door, Seat};
use crate::{Config, Fault, Stats, excerpt, page};
use refusal::Refusal;
use reply::Envelope;
use request::{Api, Job};
use usage::{Telling, What};

/// Largest request body, in bytes.
const BODY_LIMIT: usize = 256 << 20;

/// Everything the handlers share.
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) hub: Arc<Hub>,
    door: Arc<Door>,
    faults: Mutex<BTreeSet<Fault>>,
    next_reply: AtomicU64,
    /// Requests whose answers were given a length of [`Config::answer_tokens`].
    lengths_given: AtomicUsize,
    /// Seconds since 1970.
    started: f64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Faults {
    faults: BTreeSet<Fault>,
}

impl App {
    pub(crate) fn new(config: Config) -> Self {
        let app = Self {
            hub: Arc::new(Hub::new(&config)),
            door: Arc::new(Door::new()),
            faults: Mutex::default(),
            next_reply: AtomicU64::new(0),
            lengths_given: AtomicUsize::new(0),
            started: wall_seconds(),
            config,
        };
        app.set_faults(app.config.faults.iter().copied());
        app
    }

    pub(crate) fn set_faults(&self, faults: impl IntoIterator<Item = Fault>) {
        let mut standing = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        *standing = faults.into_iter().collect();
        self.hub.set_slow(standing.contains(&Fault::Slow));
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats { peak_running: self.hub.peak_running(), ..self.door.seen() };
        for rank in self.hub.snapshots() {
            stats.running += rank.running;
            stats.waiting += rank.waiting;
            stats.preemptions += rank.preemptions;
            stats.aborted += rank.record.aborted;
            stats.finished += rank.record.finished;
        }
        stats
    }

    pub(crate) fn arrivals(&self) -> Arrivals {
        self.door.log.read()
    }

    pub(crate) fn forget_arrivals(&self) {
        self.door.log.forget();
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).contains(&fault)
    }

    fn envelope(&self, api: Api) -> Envelope {
        let number = self.next_reply.fetch_add(1, Ordering::Relaxed);
        let prefix = match api {
            // vLLM makes a chat of a message and keeps its name.
            Api::Chat | Api::Messages => "chatcmpl",
            Api::Completions => "cmpl",
            Api::Responses => "resp",
            Api::Embeddings => "embd",
        };
        let (id, created) = (format!("{prefix}-{number:016x}"), wall_seconds() as u64);
        let (model, cached_share) = (self.config.model.clone(), self.config.cached_share);
        Envelope { api, id, created, model, telling: self.telling(), cached_share }
    }

    /// Tokens after which the model ends the answer to the request that comes next.
    fn natural_length(&self) -> Option<u32> {
        let given = self.lengths_given.fetch_add(1, Ordering::Relaxed);
        self.config.answer_tokens.get(given.checked_rem(self.config.answer_tokens.len())?).copied()
    }

    fn telling(&self) -> Telling {
        let wrong =
            [(Fault::NoUsage, What::Nothing), (Fault::NullUsage, What::Null), (Fault::AbsurdUsage, What::Absurd)];
        let what = wrong.into_iter().find(|(fault, _)| self.has(*fault)).map_or(What::Right, |(_, what)| what);
        Telling { what, repeated: self.has(Fault::RepeatedUsage), nulls: self.has(Fault::NullsBetween) }
    }
}

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(|app, request| infer(app, request, Some(Api::Chat))))
        .route("/v1/completions", post(|app, request| infer(app, request, Some(Api::Completions))))
        .route("/v1/messages", post(|app, request| infer(app, request, Some(Api::Messages))))
        .route("/v1/responses", post(|app, request| infer(app, request, Some(Api::Responses))))
        .route("/v1/embeddings", post(|app, request| infer(app, request, Some(Api::Embeddings))))
        .route("/invocations", post(|app, request| infer(app, request, None)))
        .route("/v1/models", get(models))
        .route("/health", get(|| async {}))
        .route("/metrics", get(metrics))
        .route("/metrics/", get(metrics))
        .route("/sim/stats", get(|State(app): State<Arc<App>>| async move { Json(app.stats()) }))
        .route("/sim/arrivals", get(arrivals).delete(forget_arrivals))
        .route("/sim/faults", post(faults))
        .with_state(app)
}

/// Answers a request of an API, or of the one that the fields of its body tell, as vLLM does for `/invocations`.
async fn infer(State(app): State<Arc<App>>, request: Request, api: Option<Api>) -> Response {
    let (head, body) = request.into_parts();
    app.door.receive(&head.headers);
    let body = match to_bytes(body, BODY_LIMIT).await {
        Ok(body) => body,
        Err(error) => return Refusal::Malformed(error.to_string()).answer(api.unwrap_or(Api::Chat)),
    };
    let api = api.unwrap_or_else(|| Api::of_body(&body));
    // From here on the request is inside; dropping the handler, as a lost connection does, takes it out again.
    let seat = app.door.enter(&head.headers, &body);
    if app.has(Fault::Hang) {
        let _swallowed = seat.swallow();
        pending::<()>().await;
    }
    match answer(&app, api, &body, seat).await {
        Ok(response) => response,
        Err(refusal) => refusal.answer(api),
    }
}

async fn answer(app: &App, api: Api, body: &Bytes, seat: Seat) -> Result<Response, Refusal> {
    if app.has(Fault::Refuse503) {
        return Err(Refusal::Unavailable);
    }
    if app.has(Fault::Refuse429) {
        return Err(Refusal::TooMany);
    }
    if app.has(Fault::Refuse529) {
        return Err(Refusal::Overloaded);
    }
    if app.has(Fault::SwitchedOff) && (api == Api::Embeddings || asks_for_logprobs(body)) {
        return Err(Refusal::Unavailable);
    }
    let job = Job::parse(api, body, &app.config, app.natural_length())?;
    if job.stream && app.has(Fault::ErrorInStream) {
        return Ok(Refusal::Unavailable.in_stream(api));
    }
    let mut ticket = app.hub.submit(&job.wishes).map_err(Refusal::NeverFits)?;
    let envelope = app.envelope(api);
    if job.stream {
        return Ok(stream::respond(envelope, job, ticket, seat, app.has(Fault::Truncate)));
    }
    while ticket.next().await.is_some() {}
    let body = Bytes::from(envelope.plain(&job));
    drop(seat);
    let body = if app.has(Fault::Truncate) { broken_off(body.slice(..body.len() / 2)) } else { Body::from(body) };
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

fn asks_for_logprobs(body: &[u8]) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|body| body["logprobs"] == true)
}

/// A body whose connection breaks behind these bytes.
fn broken_off(bytes: Bytes) -> Body {
    Body::from_stream(unfold(Some(bytes), |bytes| async {
        match bytes {
            Some(bytes) => Some((Ok(bytes), None)),
            None => {
                // What has come is sent before the connection breaks.
                tokio::task::yield_now().await;
                Some((Err(io::Error::from(io::ErrorKind::ConnectionReset)), None))
            }
        }
    }))
}

async fn models(State(app): State<Arc<App>>) -> Response {
    let model = json!({
        "id": app.config.model,
        "object": "model",
        "created": app.started as u64,
        "owned_by": "vllm",
        "root": app.config.model,
        "parent": null,
        "max_model_len": app.config.max_model_len,
        "permission": [],
    });
    Json(json!({"object": "list", "data": [model]})).into_response()
}

async fn metrics(State(app): State<Arc<App>>, uri: Uri) -> Response {
    if app.has(Fault::HangMetrics) {
        pending::<()>().await;
    }
    let page = if app.has(Fault::GarbageMetrics) {
        Body::from(page::garbage())
    } else {
        let mut page = page::render(&app.config, app.started, &app.hub.snapshots());
        if app.has(Fault::NoCacheSize) {
            page = page.split_inclusive('\n').filter(|line| !line.starts_with("vllm:cache_config_info")).collect();
        }
        Body::from(match excerpt::names(&uri) {
            Some(names) => excerpt::of(&page, &names),
            None => page,
        })
    };
    ([(CONTENT_TYPE, "text/plain; version=1.0.0; charset=utf-8")], page).into_response()
}

async fn arrivals(State(app): State<Arc<App>>) -> Json<Arrivals> {
    Json(app.arrivals())
}

async fn forget_arrivals(State(app): State<Arc<App>>) {
    app.forget_arrivals();
}

async fn faults(State(app): State<Arc<App>>, body: Bytes) -> Response {
    match serde_json::from_slice::<Faults>(&body) {
        Ok(wanted) => {
            app.set_faults(wanted.faults.iter().copied());
            Json(wanted).into_response()
        }
        Err(error) => Refusal::Malformed(error.to_string()).into_response(),
    }
}

fn wall_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
