//! A worker that answers with the body that it was sent, so that every byte can be compared.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Paths on the listener under test that lead to it.
pub const PREFIX: &str = "/echo";

/// Answers every request with status 200 and its own body, as JSON.
pub struct Echo {
    address: SocketAddr,
    whole: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Echo {
    /// Starts on a free port.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("an address");
        let whole = Arc::<AtomicU64>::default();
        let router = Router::new().fallback(answer).layer(DefaultBodyLimit::disable()).with_state(Arc::clone(&whole));
        let task = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self { address, whole, task }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Requests that have come whole.
    #[must_use]
    pub fn whole(&self) -> u64 {
        self.whole.load(Ordering::Relaxed)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(whole): State<Arc<AtomicU64>>, body: Bytes) -> impl IntoResponse {
    whole.fetch_add(1, Ordering::Relaxed);
    ([(CONTENT_TYPE, "application/json")], body)
}
