//! A worker that listens: starting it, asking it, and stopping it at once.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::api::{App, router};
use crate::{Arrivals, Config, ConfigError, Fault, Stats};

/// Rest after a failed accept, so that a lack of descriptors does not keep a core busy.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Why a worker does not start.
#[derive(Debug)]
pub enum StartError {
    /// A setting that no worker can run with.
    Config(ConfigError),
    /// The address cannot be listened on.
    Io(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Io(error) => Some(error),
        }
    }
}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A worker that serves. Dropping it stops it as well, without waiting until it has.
pub struct Worker {
    app: Arc<App>,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Worker {
    /// Starts a worker on the configured host and port; it serves when this returns.
    ///
    /// # Errors
    /// [`StartError`]: a bad setting, or an address that cannot be had.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let listener = TcpListener::bind((config.host, config.port)).await?;
        Self::serve(listener, config).await
    }

    /// Starts a worker on a listener at hand, leaving the configured host and port aside.
    ///
    /// # Errors
    /// [`StartError`]: a bad setting, or a listener without an address.
    pub async fn serve(listener: TcpListener, config: Config) -> Result<Self, StartError> {
        config.validate()?;
        let address = listener.local_addr()?;
        let app = Arc::new(App::new(config));
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(run(listener, Arc::clone(&app), stopped));
        Ok(Self { app, address, stop, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address as a URL, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it has seen and does; the same as `GET /sim/stats`.
    pub fn stats(&self) -> Stats {
        self.app.stats()
    }

    /// The latest requests in the order in which they came; the same as `GET /sim/arrivals`.
    pub fn arrivals(&self) -> Arrivals {
        self.app.arrivals()
    }

    /// Begins the list of arrivals anew; the same as `DELETE /sim/arrivals`.
    pub fn forget_arrivals(&self) {
        self.app.forget_arrivals();
    }

    /// Replaces its faults, for requests that come from now on; the same as `POST /sim/faults`.
    pub fn set_faults(&self, faults: impl IntoIterator<Item = Fault>) {
        self.app.set_faults(faults);
    }

    /// Stops it at once, as a crash would: the port and all connections are closed when this returns, with the latest
    /// requests, none of which is inside any more.
    pub async fn stop(self) -> Arrivals {
        // Either may fail only because the task has ended by itself.
        let _ = self.stop.send(());
        let _ = self.task.await;
        self.app.arrivals()
    }
}

async fn run(listener: TcpListener, app: Arc<App>, mut stopped: oneshot::Receiver<()>) {
    let mut engines = JoinSet::new();
    for rank in 0..app.config.data_parallel_size as usize {
        engines.spawn(Arc::clone(&app.hub).drive(rank));
    }
    let service = TowerToHyperService::new(router(app));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(stream, service.clone()));
                }
                // A connection that went before it was accepted, or no descriptor left: neither ends the worker.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    connections.shutdown().await;
    engines.shutdown().await;
}

async fn converse(stream: TcpStream, service: TowerToHyperService<axum::Router>) {
    // Tokens are small; without this they would wait for each other's acknowledgement.
    let _ = stream.set_nodelay(true);
    // An error here is a client that left or does not speak HTTP; either way the connection is over.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
