//! A sidecar that a test plays: it answers the questions of proxies.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::rig::TOKEN;

/// A sidecar that answers questions as a test says, and remembers them.
pub struct Played {
    address: SocketAddr,
    state: Arc<Mutex<Play>>,
    task: JoinHandle<()>,
}

/// What it plays.
pub struct Play {
    /// Questions under way, and the most that ever were at once of one proxy.
    under_way: BTreeMap<String, usize>,
    /// The most questions of one proxy that were under way at once.
    pub most_at_once: usize,
    /// Every question with the right token.
    pub questions: Vec<Value>,
    /// How many came with another.
    pub strangers: usize,
    /// How long answers are kept back.
    pub wait: Duration,
    /// The workers of the pool `main`.
    pub workers: Vec<Value>,
    /// What it accepts.
    pub token: String,
    generation: u64,
}

impl Played {
    /// Answers every question with a whole view without workers, after 50 ms.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(Play {
            under_way: BTreeMap::new(),
            most_at_once: 0,
            questions: Vec::new(),
            strangers: 0,
            wait: Duration::from_millis(50),
            workers: Vec::new(),
            token: "to-be-pulled".into(),
            generation: 0,
        }));
        let router = Router::new().route("/v1/view", post(answer)).with_state(Arc::clone(&state));
        let task = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self { address, state, task }
    }

    /// Where it answers.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it plays, to look at and to change.
    ///
    /// # Panics
    /// After a panic of whoever looked before.
    pub fn play(&self) -> MutexGuard<'_, Play> {
        self.state.lock().expect("nobody panicked")
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Counts a question as under way until it is dropped, with its connection or with its answer.
struct UnderWay(Arc<Mutex<Play>>, String);

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(count) = self.0.lock().expect("nobody panicked").under_way.get_mut(&self.1) {
            *count -= 1;
        }
    }
}

async fn answer(State(state): State<Arc<Mutex<Play>>>, headers: HeaderMap, Json(question): Json<Value>) -> Response {
    let (wait, _under_way) = {
        let mut play = state.lock().expect("nobody panicked");
        let expected = format!("Bearer {}", play.token);
        if headers.get("authorization").is_none_or(|shown| shown.as_bytes() != expected.as_bytes()) {
            play.strangers += 1;
            return StatusCode::UNAUTHORIZED.into_response();
        }
        let proxy = question["proxy"].as_str().unwrap_or_default().to_owned();
        let count = play.under_way.entry(proxy.clone()).or_default();
        *count += 1;
        let count = *count;
        play.most_at_once = play.most_at_once.max(count);
        play.questions.push(question);
        (play.wait, UnderWay(Arc::clone(&state), proxy))
    };
    tokio::time::sleep(wait).await;
    let mut play = state.lock().expect("nobody panicked");
    play.generation += 1;
    let view = json!({
        "version": 1, "epoch": 7, "generation": play.generation, "pools": {"main": {"workers": play.workers}},
    });
    Json(view).into_response()
}

impl Play {
    /// The token of the real rig's control listener is another one.
    #[must_use]
    pub fn policy(&self) -> Value {
        assert_ne!(self.token, TOKEN);
        json!({"pull": {"cluster": "sidecar", "token": self.token, "wait": "1s", "timeout": "1s"}})
    }
}
