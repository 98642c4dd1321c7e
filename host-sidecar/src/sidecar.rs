//! A whole sidecar in this process.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::conductor::Conductor;
use crate::fetch::Peer;
use crate::push::epoch;
use crate::shared::{BadTls, Shared};
use crate::{Config, ConfigError, server};

/// How long connections to the sidecar's own HTTP may take to finish when it stops.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// A running sidecar. Dropping it ends it at once; [`Self::stop`] lets open requests finish.
pub struct Sidecar {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Why the last configuration was not taken over; empty when it was.
    refused: Mutex<Vec<ConfigError>>,
    stop: watch::Sender<bool>,
    server: JoinSet<()>,
    tasks: JoinSet<()>,
    /// A thread of its own for pushes. Held until the sidecar is dropped.
    tellers: Option<Runtime>,
}

/// Why a sidecar does not start.
#[derive(Debug)]
pub enum StartError {
    /// What the configuration names cannot be used: a token or a certificate, each with its path.
    Config(Vec<ConfigError>),
    /// The address to listen on cannot be had.
    Listen(SocketAddr, io::Error),
    /// The thread for pushes cannot be had.
    Thread(io::Error),
}

impl Sidecar {
    /// Serves, looks for workers, scrapes and pushes, on tasks of its own, from now on.
    ///
    /// # Errors
    /// A token or a certificate cannot be read, or the address to listen on cannot be had.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        readable(&config).map_err(StartError::Config)?;
        let listen = config.listen;
        let failed = |error| StartError::Listen(listen, error);
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        log_all(&config.warnings());

        let mut shared = Shared::new(config, epoch()).map_err(|bad| StartError::Config(vec![bad.into()]))?;
        shared.restore_thresholds().map_err(|error| {
            let (path, message) = ("api.thresholds_file".into(), error.to_string());
            StartError::Config(vec![ConfigError { path, message }])
        })?;
        let shared = Arc::new(shared);
        let mut tasks = JoinSet::new();
        let tellers = Builder::new_multi_thread().worker_threads(1).thread_name("pushes").enable_all().build();
        let tellers = tellers.map_err(StartError::Thread)?;
        tasks.spawn(Conductor::new(Arc::clone(&shared), tellers.handle().clone()).run());

        let stop = watch::Sender::new(false);
        let mut stopped = stop.subscribe();
        let mut server = JoinSet::new();
        server.spawn(server::run(Arc::clone(&shared), listener, async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        }));
        Ok(Self { address, shared, refused: Mutex::default(), stop, server, tasks, tellers: Some(tellers) })
    }

    /// Where its own HTTP is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes over another configuration, whole or not at all: what stays the same goes on undisturbed.
    ///
    /// # Errors
    /// A token or a certificate cannot be read, or `listen` has changed, which takes a restart. Everything stays as it was.
    pub fn configure(&self, config: Config) -> Result<(), Vec<ConfigError>> {
        let result = self.try_configure(config);
        let errors = result.as_ref().err().cloned().unwrap_or_default();
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is tried again for the same secret to come is counted once.
        if std::mem::replace(&mut *refused, errors) != *refused || result.is_ok() {
            self.shared.counters.configured(result.is_ok());
        }
        result
    }

    /// Takes note that a configuration was not even read.
    pub fn refused_configuration(&self) {
        self.shared.counters.configured(false);
    }

    fn try_configure(&self, config: Config) -> Result<(), Vec<ConfigError>> {
        if config.listen != self.shared.config().listen {
            let message = format!("cannot become {} without a restart", config.listen);
            return Err(vec![ConfigError { path: "listen".into(), message }]);
        }
        readable(&config)?;
        let warnings = config.warnings();
        self.shared.configure(config).map_err(|bad| vec![bad.into()])?;
        info!("configuration taken over");
        log_all(&warnings);
        Ok(())
    }

    /// Waits until one of its tasks has ended, which none does unless it is broken.
    pub async fn broken(&mut self) {
        tokio::select! {
            _ = self.tasks.join_next() => {}
            _ = self.server.join_next() => {}
        }
    }

    /// Ends scrapes and pushes at once, and the server when open requests are answered or have had a second.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
        self.stop.send_replace(true);
        if tokio::time::timeout(LAST_ANSWERS, self.server.join_next()).await.is_err() {
            self.server.shutdown().await;
        }
    }
}

fn log_all(warnings: &[String]) {
    for warning in warnings {
        warn!("{warning}");
    }
}

/// Whether all tokens, and the certificates for proxies and Prometheus, can be read now.
fn readable(config: &Config) -> Result<(), Vec<ConfigError>> {
    let mut errors = Vec::new();
    let mut note = |path: String, message: String| errors.push(ConfigError { path, message });
    if let Some(Err(message)) = config.api_token.as_ref().map(|token| token.read()) {
        note("api.token_file".into(), message);
    }
    for (at, proxy) in config.proxies.iter().enumerate() {
        if let Err(message) = proxy.token.read() {
            note(format!("proxies[{at}].token_file"), message);
        }
        if let Err(error) = Peer::new(&proxy.tls, proxy.unix_socket()) {
            note(format!("proxies[{at}].tls"), error.to_string());
        }
    }
    for (at, pool) in config.pools.iter().enumerate() {
        let query = pool.dispatch_budget.as_ref().and_then(|budget| budget.prometheus.as_ref());
        if let Some(Err(error)) = query.map(|query| Peer::new(&query.tls, None)) {
            note(format!("pools[{at}].dispatch_budget.prometheus.tls"), error.to_string());
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

impl Drop for Sidecar {
    /// A runtime may not be waited for from within another.
    fn drop(&mut self) {
        if let Some(tellers) = self.tellers.take() {
            tellers.shutdown_background();
        }
    }
}

impl From<BadTls> for ConfigError {
    fn from(bad: BadTls) -> Self {
        Self { path: format!("pools[{}].tls", bad.at), message: bad.error.to_string() }
    }
}

impl fmt::Debug for Sidecar {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Sidecar").field("address", &self.address).finish_non_exhaustive()
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(errors) => {
                let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
                write!(out, "{}", lines.join("\n"))
            }
            Self::Listen(address, error) => write!(out, "cannot listen on {address}: {error}"),
            Self::Thread(error) => write!(out, "cannot start the thread for pushes: {error}"),
        }
    }
}

impl std::error::Error for StartError {}
