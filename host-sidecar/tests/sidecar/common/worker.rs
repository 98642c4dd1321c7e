//! A worker that serves a metrics page, well or badly.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;

use super::Server;

/// What a worker answers.
#[derive(Clone)]
pub enum Page {
    /// So many of 100 blocks used; `running` counts the pages served, so that a document tells which it holds.
    Counting { used: u64, after: Duration },
    /// The same page every time.
    Steady { used: u64 },
    /// Any text.
    Text(&'static str),
    /// Nothing until the page changes.
    Hang,
    /// Bytes without end.
    Endless,
    /// An error.
    Status(u16),
}

pub struct FakeWorker {
    pub server: Server,
    state: Arc<Served>,
}

struct Served {
    page: Mutex<Page>,
    asked: Mutex<u64>,
    on_asked: Box<dyn Fn(u64) + Send + Sync>,
}

impl FakeWorker {
    pub fn start(page: Page) -> Self {
        Self::watched(page, |_| {})
    }

    /// `on_asked` is called with the number of the request before it is answered.
    pub fn watched(page: Page, on_asked: impl Fn(u64) + Send + Sync + 'static) -> Self {
        let served = Served { page: Mutex::new(page), asked: Mutex::new(0), on_asked: Box::new(on_asked) };
        let state = Arc::new(served);
        let router = Router::new().route("/metrics", get(answer)).with_state(Arc::clone(&state));
        Self { server: Server::start(router), state }
    }

    pub fn set(&self, page: Page) {
        *self.state.page.lock().unwrap() = page;
    }

    pub fn asked(&self) -> u64 {
        *self.state.asked.lock().unwrap()
    }

    pub fn address(&self) -> String {
        self.server.address.to_string()
    }
}

async fn answer(State(state): State<Arc<Served>>) -> Response {
    let number = {
        let mut asked = state.asked.lock().unwrap();
        *asked += 1;
        *asked
    };
    (state.on_asked)(number);
    loop {
        let page = state.page.lock().unwrap().clone();
        if !matches!(page, Page::Hang) {
            return served(page, number).await;
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

async fn served(page: Page, number: u64) -> Response {
    match page {
        Page::Counting { used, after } => {
            tokio::time::sleep(after).await;
            vllm(used, number).into_response()
        }
        Page::Steady { used } => vllm(used, 1).into_response(),
        Page::Text(text) => text.into_response(),
        Page::Hang => unreachable!("waited for another page"),
        Page::Endless => {
            let garbage = Bytes::from_static(&[b'#'; 1 << 16]);
            Body::from_stream(stream::repeat_with(move || Ok::<_, Infallible>(garbage.clone()))).into_response()
        }
        Page::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
    }
}

fn vllm(used: u64, running: u64) -> String {
    format!(
        "# TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} {running}.0\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} 0.0\n\
         vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} {}\n\
         vllm:cache_config_info{{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"}} 1.0\n",
        used as f64 / 100.0
    )
}
