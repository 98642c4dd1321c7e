//! A whole sidecar in this process.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::warn;

use crate::courier::Courier;
use crate::push::{Pusher, epoch};
use crate::scrape::Target;
use crate::shared::Shared;
use crate::{Config, ConfigError, fetch, scrape, server};

/// How long connections to the sidecar's own HTTP may take to finish when it stops.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// A running sidecar. Dropping it ends it at once; [`Self::stop`] lets open requests finish.
#[derive(Debug)]
pub struct Sidecar {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    server: JoinSet<()>,
    tasks: JoinSet<()>,
}

/// Why a sidecar does not start.
#[derive(Debug)]
pub enum StartError {
    /// Tokens that cannot be read, each with its path in the configuration.
    Tokens(Vec<ConfigError>),
    /// The address to listen on cannot be had.
    Listen(SocketAddr, io::Error),
    /// The HTTP client cannot be set up.
    Client(reqwest::Error),
}

impl Sidecar {
    /// Serves, scrapes and pushes, on tasks of its own, from now on.
    ///
    /// # Errors
    /// A token file cannot be read, or the address to listen on cannot be had.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let tokens = tokens(&config).map_err(StartError::Tokens)?;
        let client = fetch::client().map_err(StartError::Client)?;
        let listen = config.listen;
        let failed = |error| StartError::Listen(listen, error);
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        for warning in config.warnings() {
            warn!("{warning}");
        }

        let shared = Arc::new(Shared::new(config));
        let mut tasks = JoinSet::new();
        for target in targets(&shared.config) {
            tasks.spawn(scrape::run(Arc::clone(&shared), client.clone(), target));
        }
        let epoch = epoch();
        for (index, (proxy, token)) in shared.config.proxies.clone().into_iter().zip(tokens).enumerate() {
            let courier = Courier::new(epoch, shared.config.push.heartbeat, shared.config.scrape.interval);
            let shared = Arc::clone(&shared);
            tasks.spawn(Pusher { shared, client: client.clone(), index, proxy, token, courier }.run());
        }

        let stop = watch::Sender::new(false);
        let mut stopped = stop.subscribe();
        let mut server = JoinSet::new();
        server.spawn(server::run(shared, listener, async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        }));
        Ok(Self { address, stop, server, tasks })
    }

    /// Where its own HTTP is served.
    pub fn address(&self) -> SocketAddr {
        self.address
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

fn tokens(config: &Config) -> Result<Vec<String>, Vec<ConfigError>> {
    let (mut tokens, mut errors) = (Vec::new(), Vec::new());
    for (at, proxy) in config.proxies.iter().enumerate() {
        match proxy.token.read() {
            Ok(token) => tokens.push(token),
            Err(message) => errors.push(ConfigError { path: format!("proxies[{at}].token_file"), message }),
        }
    }
    if errors.is_empty() { Ok(tokens) } else { Err(errors) }
}

fn targets(config: &Config) -> impl Iterator<Item = Target> {
    let workers = config.pools.iter().flat_map(|pool| pool.workers.iter().map(move |worker| (pool, worker)));
    workers.enumerate().map(|(index, (pool, worker))| Target {
        index,
        pool: pool.name.clone(),
        address: worker.address.clone(),
        url: worker.metrics_url.clone(),
    })
}

impl fmt::Display for StartError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(errors) => {
                let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
                write!(out, "{}", lines.join("\n"))
            }
            Self::Listen(address, error) => write!(out, "cannot listen on {address}: {error}"),
            Self::Client(error) => write!(out, "cannot set up HTTP: {error}"),
        }
    }
}

impl std::error::Error for StartError {}
