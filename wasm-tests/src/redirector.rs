//! A worker that sends every request elsewhere.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Bytes;
use axum::response::Redirect;
use tokio::task::JoinHandle;

/// Answers 307 to whatever it is asked, once it has read the body.
pub struct Redirector {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Redirector {
    /// Starts on a free port, and sends requests to this address.
    pub async fn start(to: &str) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let to = to.to_owned();
        let router = Router::new().fallback(move |_: Bytes| async move { Redirect::temporary(&to) });
        let task = tokio::spawn(async move { axum::serve(listener, router).await.expect("serve") });
        Self { address, task }
    }

    /// The place where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Redirector {
    fn drop(&mut self) {
        self.task.abort();
    }
}
