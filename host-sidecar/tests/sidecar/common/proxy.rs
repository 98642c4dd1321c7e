//! A proxy's control listener that keeps the filter's rules and remembers every document.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use admission_core::view::{Admitted, FIRST_FORM, FORM, ViewAnswer, ViewDocument, ViewRefusal, WorkerReport};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};

use serde_json::Value;

use super::{Server, TOKEN, first_form};

/// How a proxy treats views.
#[derive(Clone, Copy, PartialEq)]
pub enum Mood {
    /// Takes what is newer than what stands.
    Taking,
    /// Answers with an error.
    Status(u16),
    /// Never answers.
    Hang,
    /// Takes documents of the first form alone, and names no form.
    First,
    /// Says that a view of another epoch stands.
    Obeying { epoch: u64 },
}

pub struct FakeProxy {
    pub server: Server,
    state: Arc<Mutex<Control>>,
}

pub struct Control {
    pub mood: Mood,
    pub token: String,
    /// Every document that came with the right token, taken or not.
    pub seen: Vec<ViewDocument>,
    /// What those were, or made of what was held, that were taken since the proxy started.
    pub taken: Vec<ViewDocument>,
    /// Documents with another token.
    pub strangers: usize,
    /// What stands.
    pub standing: Option<(u64, u64)>,
    /// Told in the next answer; one more with each.
    pub admitted: u64,
}

impl FakeProxy {
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(Control {
            mood: Mood::Taking,
            token: TOKEN.into(),
            seen: Vec::new(),
            taken: Vec::new(),
            strangers: 0,
            standing: None,
            admitted: 0,
        }));
        let router = Router::new().route("/sluice/v1/view", post(view)).with_state(Arc::clone(&state));
        Self { server: Server::start(router), state }
    }

    pub fn with<T>(&self, look: impl FnOnce(&mut Control) -> T) -> T {
        look(&mut self.state.lock().unwrap())
    }

    pub fn control(&self) -> Arc<Mutex<Control>> {
        Arc::clone(&self.state)
    }

    pub fn set(&self, mood: Mood) {
        self.with(|control| control.mood = mood);
    }

    /// Dies; [`Server::revive`] brings a proxy that knows nothing.
    pub fn die(&mut self) {
        self.server.die();
        self.with(|control| {
            control.standing = None;
            control.admitted = 0;
            control.taken.clear();
        });
    }

    pub fn taken(&self) -> usize {
        self.with(|control| control.taken.len())
    }

    pub fn seen(&self) -> usize {
        self.with(|control| control.seen.len())
    }

    /// The worker in the last document taken, in the pool `p`.
    pub fn worker(&self, address: &str) -> Option<WorkerReport> {
        self.with(|control| {
            let workers = &control.taken.last()?.pools.get("p")?.workers;
            workers.iter().find(|worker| worker.address == address).cloned()
        })
    }
}

async fn view(State(state): State<Arc<Mutex<Control>>>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let document: ViewDocument = serde_json::from_value(body.clone()).unwrap();
    let mood = {
        let mut control = state.lock().unwrap();
        if headers.get("authorization").is_none_or(|value| *value != format!("Bearer {}", control.token)) {
            control.strangers += 1;
            return (StatusCode::UNAUTHORIZED, Json(ViewRefusal::default())).into_response();
        }
        control.seen.push(document.clone());
        control.mood
    };
    match mood {
        Mood::Taking => state.lock().unwrap().take(document, FORM),
        Mood::First if first_form::reads(&body) => state.lock().unwrap().take(document, FIRST_FORM),
        Mood::First => (StatusCode::BAD_REQUEST, Json(ViewRefusal::default())).into_response(),
        Mood::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Mood::Hang => std::future::pending().await,
        Mood::Obeying { epoch } => conflict((epoch, 1)),
    }
}

impl Control {
    fn take(&mut self, document: ViewDocument, form: u32) -> Response {
        let offered = (document.epoch, document.generation);
        let last = self.taken.last().filter(|last| Some(last.generation) == document.base);
        let document = match (document.base, last.cloned()) {
            (None, _) => document,
            (Some(_), Some(mut whole)) => {
                whole.apply(document);
                whole
            }
            (Some(_), None) => {
                let refusal = ViewRefusal { needs_whole: true, ..ViewRefusal::default() };
                return (StatusCode::CONFLICT, Json(refusal)).into_response();
            }
        };
        if let Some(standing) = self.standing
            && standing >= offered
        {
            return conflict(standing);
        }
        self.standing = Some(offered);
        self.admitted += 1;
        let admitted = Admitted { requests: self.admitted, blocks: self.admitted * 10 };
        let admitted: BTreeMap<_, _> = document.pools.keys().map(|pool| (pool.clone(), admitted)).collect();
        let held = document.pools.keys().map(|pool| (pool.clone(), self.admitted / 2)).collect();
        self.taken.push(document);
        let (epoch, generation, queued) = (offered.0, offered.1, BTreeMap::new());
        let answer =
            ViewAnswer { epoch, generation, admitted, held, queued, demand: None, needs: BTreeSet::new(), form };
        Json(answer).into_response()
    }
}

fn conflict((epoch, generation): (u64, u64)) -> Response {
    let (epoch, generation) = (Some(epoch), Some(generation));
    let refusal = ViewRefusal { error: "an older view".into(), epoch, generation, needs_whole: false };
    (StatusCode::CONFLICT, Json(refusal)).into_response()
}
