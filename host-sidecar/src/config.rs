//! The configuration: what is written, with its defaults filled in and its mistakes found.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use admission_core::saturation::{BusyThresholds, UtilizationThresholds};

mod checks;
mod raw;

/// A configuration without a mistake.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the sidecar serves its own HTTP; port 0 takes a free one.
    pub listen: SocketAddr,
    /// How workers are read.
    pub scrape: Scrape,
    /// How proxies are told.
    pub push: Push,
    /// Whom to tell.
    pub proxies: Vec<Proxy>,
    /// Whom to read.
    pub pools: Vec<Pool>,
}

/// How workers are read. No duration is zero or longer than a day.
#[derive(Clone, Copy, Debug)]
pub struct Scrape {
    /// From the begin of one scrape of a worker to the begin of its next.
    pub interval: Duration,
    /// Longest one scrape may take, connecting and reading included.
    pub timeout: Duration,
    /// How long after its last good scrape began a worker counts as up.
    pub down_after: Duration,
}

/// How proxies are told. No duration is zero or longer than a day.
#[derive(Clone, Copy, Debug)]
pub struct Push {
    /// Longest time between two pushes to a proxy that takes them.
    pub heartbeat: Duration,
    /// Longest one push may take.
    pub timeout: Duration,
}

/// One proxy's control listener.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Scheme, host and port, without a slash at the end; names the proxy in logs and metrics.
    pub url: String,
    /// What proves to the proxy that the view is ours.
    pub token: TokenSource,
}

/// Where a bearer token comes from.
#[derive(Clone)]
pub enum TokenSource {
    /// Written in the configuration.
    Inline(String),
    /// Read from a file at the start and again when a proxy refuses it, so that a rotated token is found.
    File(PathBuf),
}

/// Workers that serve the same model.
#[derive(Clone, Debug)]
pub struct Pool {
    /// As the filter's policy names it.
    pub name: String,
    /// As `/busy_threshold` names it.
    pub model: String,
    /// When a worker counts as busy.
    pub busy: BusyThresholds,
    /// When the pool counts as full.
    pub saturation: UtilizationThresholds,
    /// Most tokens a worker batches in one step.
    pub max_num_batched_tokens: Option<u64>,
    /// At least one.
    pub workers: Vec<Worker>,
}

/// One worker.
#[derive(Clone, Debug)]
pub struct Worker {
    /// `host:port` where it serves requests; no other worker has it.
    pub address: String,
    /// Its metrics page.
    pub metrics_url: String,
    /// It finishes what it has and takes nothing new.
    pub draining: bool,
}

/// One mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where it stands, such as `pools[0].workers[1]`; empty for the whole file.
    pub path: String,
    /// What is wrong there.
    pub message: String,
}

impl Config {
    /// Reads YAML, or JSON, which is YAML too.
    ///
    /// ```
    /// let wrong = "{proxies: [{url: 'http://127.0.0.1:15010', token: t}], pools: [{name: p, workers: ['127.0.0.1']}]}";
    /// let errors = host_sidecar::Config::parse(wrong).unwrap_err();
    /// assert_eq!(errors[0].to_string(), "pools[0].workers[0]: \"127.0.0.1\" is not host:port");
    /// ```
    ///
    /// # Errors
    /// Every mistake there is, each with its path. Text that is not YAML has one, which names the line.
    pub fn parse(text: &str) -> Result<Self, Vec<ConfigError>> {
        let raw = serde_norway::from_str(text).map_err(|error| vec![ConfigError::new("", error.to_string())])?;
        checks::check(raw)
    }

    /// Reads what has been read from YAML or JSON already.
    ///
    /// # Errors
    /// Every mistake there is, each with its path.
    pub fn from_value(value: serde_json::Value) -> Result<Self, Vec<ConfigError>> {
        let raw = serde_json::from_value(value).map_err(|error| vec![ConfigError::new("", error.to_string())])?;
        checks::check(raw)
    }

    /// What is allowed but hardly meant.
    pub fn warnings(&self) -> Vec<String> {
        let Scrape { interval, timeout, down_after } = self.scrape;
        let mut warnings = Vec::new();
        if interval > down_after {
            warnings.push(format!(
                "scrape.interval ({interval:?}) is longer than scrape.down_after ({down_after:?}): every worker will \
                 count as down between two scrapes"
            ));
        }
        if timeout > interval {
            warnings.push(format!(
                "scrape.timeout ({timeout:?}) is longer than scrape.interval ({interval:?}): a slow worker is scraped \
                 less often than configured"
            ));
        }
        for pool in &self.pools {
            let named = pool.workers.iter().find(|worker| worker.address.parse::<SocketAddr>().is_err());
            if let Some(worker) = named {
                warnings.push(format!(
                    "pools {:?}: {:?} is not ip:port, as proxies name workers: it cannot be chosen by `pick_endpoint`, nor be \
                     left alone when it refuses",
                    pool.name, worker.address
                ));
            }
        }
        warnings
    }
}

impl TokenSource {
    /// The token now.
    ///
    /// # Errors
    /// The file cannot be read, or what it holds cannot be a bearer token.
    pub fn read(&self) -> Result<String, String> {
        let token = match self {
            Self::Inline(token) => token.clone(),
            Self::File(path) => std::fs::read_to_string(path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?
                .trim()
                .to_owned(),
        };
        if token.is_empty() {
            return Err("the token is empty".into());
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the token holds characters that no bearer token may have".into());
        }
        Ok(token)
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inline(_) => write!(out, "Inline(…)"),
            Self::File(path) => write!(out, "File({})", path.display()),
        }
    }
}

impl ConfigError {
    fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(out, "{}", self.message),
            path => write!(out, "{path}: {}", self.message),
        }
    }
}

impl std::error::Error for ConfigError {}
