//! Fake workers and proxies on loopback, and waiting for what they see.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use host_sidecar::{Config, Sidecar};
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Runtime};

mod first_form;
pub mod proxy;
pub mod worker;

pub use proxy::{FakeProxy, Mood};
pub use worker::{FakeWorker, Page};

pub const TOKEN: &str = "open-sesame";
/// What the sidecar's own HTTP asks for.
pub const API_TOKEN: &str = "let-me-in";

/// A server on a runtime of its own, so that it can die with every connection it has.
pub struct Server {
    pub address: SocketAddr,
    router: Router,
    runtime: Option<Runtime>,
    /// The port of a dead server, bound but not listening.
    ///
    /// Why: a port that no socket has is soon given to a server of another test, which then answers for the dead one.
    port: Option<TcpSocket>,
}

impl Server {
    pub fn start(router: Router) -> Self {
        let port = bound(([127, 0, 0, 1], 0).into()).unwrap();
        let mut server = Self { address: port.local_addr().unwrap(), router, runtime: None, port: Some(port) };
        server.revive();
        server
    }

    /// Serves again, where it served before.
    pub fn revive(&mut self) {
        let Some(port) = self.port.take() else { return };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = {
            let _inside = runtime.enter();
            port.listen(1024).unwrap()
        };
        let router = self.router.clone();
        runtime.spawn(async move { axum::serve(listener, router).await });
        self.runtime = Some(runtime);
    }

    /// Drops the listener and every connection, and keeps the port.
    pub fn die(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        runtime.shutdown_background();
        let deadline = Instant::now() + PATIENCE;
        // Why: the runtime drops the listener a moment after its shutdown begins, and its port is taken until then.
        while self.port.is_none() {
            match bound(self.address) {
                Ok(port) => self.port = Some(port),
                Err(error) => assert!(Instant::now() < deadline, "{}: {error}", self.address),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A socket that has the port and does not listen: a connection to it is refused.
fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // Why: connections of a dead server may hold its port for a minute.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Far beyond what anything takes: only a test that fails waits so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `look` finds something.
pub async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// Waits until `look` finds something over HTTP.
pub async fn until_answered<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// A sidecar with one proxy and one pool `p`, busy above 0.85, on fast timings. `more` overrides top-level fields.
pub async fn sidecar(proxy: &FakeProxy, workers: &[&FakeWorker], more: &str) -> Sidecar {
    let workers: Vec<_> = workers.iter().map(|worker| format!("\"{}\"", worker.server.address)).collect();
    let mut text = format!(
        "listen: 127.0.0.1:0\n\
         api: {{token: {API_TOKEN}}}\n\
         proxies: [{{url: \"http://{}\", token: {TOKEN}}}]\n\
         pools: [{{name: p, model: m, busy: {{active_decode_blocks_threshold: 0.85}}, workers: [{}]}}]\n",
        proxy.server.address,
        workers.join(", ")
    );
    for (field, fast) in
        [("scrape", "{interval: 20ms, timeout: 5s, down_after: 500ms}"), ("push", "{heartbeat: 100ms, timeout: 200ms}")]
    {
        if !more.contains(&format!("{field}:")) {
            text += &format!("{field}: {fast}\n");
        }
    }
    Sidecar::start(Config::parse(&(text + more)).unwrap()).await.unwrap()
}
