//! The configuration: what is written, with its defaults filled in and its mistakes found.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use admission_core::saturation::{BusyThresholds, SaturationRule};
use serde::Deserialize;

use crate::engines::Engine;

mod checks;
pub mod discover;
mod engine;
mod file;
mod hardware;
mod raw;
mod saturation;
mod tls;

pub use saturation::{DispatchBudget, PrometheusQuery};
pub use tls::{ClientCertificate, Tls};

/// Names the workers that the configuration itself lists; goes before any name of a [`Source`].
pub const LISTED: &str = "";

/// What the URL of a Unix socket begins with.
const UNIX: &str = "unix:";

pub use discover::{Role, Source};

pub use file::ConfigFile;
pub use hardware::Hardware;

/// A configuration without a mistake.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the sidecar serves its own HTTP; port 0 takes a free one.
    pub listen: SocketAddr,
    /// How workers are read.
    pub scrape: Scrape,
    /// How proxies are told.
    pub push: Push,
    /// What the sidecar's own HTTP asks of who changes thresholds or reads views; without one both are refused.
    pub api_token: Option<TokenSource>,
    /// File that keeps the thresholds set by HTTP; without one they are lost at a restart.
    pub thresholds_file: Option<PathBuf>,
    /// How GPUs are looked at.
    pub hardware: Hardware,
    /// Whom to tell.
    pub proxies: Vec<Proxy>,
    /// Whom to read.
    pub pools: Vec<Pool>,
}

/// How workers are read. No duration is zero or longer than a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scrape {
    /// From the begin of one scrape of a worker to the begin of its next.
    pub interval: Duration,
    /// Longest one scrape may take, connecting and reading included.
    pub timeout: Duration,
    /// How long after its last good scrape began a worker's numbers are measured by without a doubt.
    pub stale_after: Duration,
    /// How long after its last good scrape began a worker counts as up.
    pub down_after: Duration,
}

/// How long a worker's last numbers are believed, from the begin of the scrape that saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Then they are stale.
    pub stale_after: Duration,
    /// Then the worker is down.
    pub down_after: Duration,
    /// Longest time from the end of a try to the end of the next. Beyond it nobody has looked, as after a pause of the whole
    /// process, and time that nobody looked makes no worker older.
    pub next_try: Duration,
}

/// What a worker with stale numbers counts for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenStale {
    /// Its last numbers, as long as it is up.
    #[default]
    Hold,
    /// Busy and full.
    Full,
}

/// State of a worker that answers with a metrics page which cannot be read, as after an upgrade of its engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenUnreadable {
    /// Up, with nothing known of its load: the proxies' own caps bound it.
    #[default]
    Caps,
    /// Down, as one that does not answer.
    Down,
}

/// How proxies are told. No duration is zero or longer than a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Push {
    /// Longest time between two pushes to a proxy that takes them.
    pub heartbeat: Duration,
    /// Longest one push may take.
    pub timeout: Duration,
}

/// One proxy's control listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Scheme, host and port without a slash at the end, or `unix:` and the path of a socket; names the proxy in logs and
    /// metrics.
    pub url: String,
    /// How the two know each other, if the URL begins with `https://`.
    pub tls: Tls,
    /// What proves to the proxy that the view is ours.
    pub token: TokenSource,
}

/// Where a bearer token comes from.
#[derive(Clone, PartialEq, Eq)]
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
    /// Names of its models for `/busy_threshold`, beside those that its workers' pages name; never empty.
    pub models: Vec<String>,
    /// Whose metrics page its workers show; `None` when that shows on the page itself.
    pub engine: Option<Engine>,
    /// When a worker counts as busy.
    pub busy: BusyThresholds,
    /// Share of a threshold by which a busy worker must fall below it to be free again, 0 to 1.
    pub busy_hysteresis: f64,
    /// What a worker counts for whose numbers are stale.
    pub when_stale: WhenStale,
    /// State of a worker whose metrics page cannot be read.
    pub when_unreadable: WhenUnreadable,
    /// When the pool counts as full.
    pub saturation: SaturationRule,
    /// How its dispatch budget is measured; without it none is told, and the filter takes what saturation leaves of 1.
    pub dispatch_budget: Option<DispatchBudget>,
    /// Most tokens a worker batches in one step.
    pub max_num_batched_tokens: Option<u64>,
    /// How workers are known whose metrics page is at an `https://` URL.
    pub tls: Tls,
    /// Those that are always there; none where all are found.
    pub workers: Vec<Worker>,
    /// Where more are found; empty where all are listed.
    pub discover: Vec<Source>,
}

/// One worker.
#[derive(Clone, Debug)]
pub struct Worker {
    /// `host:port` where it serves requests; no other worker has it.
    pub address: String,
    /// Its metrics page.
    pub metrics_url: String,
    /// The page of the DCGM exporter that tells of its GPUs.
    pub hardware_url: Option<String>,
    /// It finishes what it has and takes nothing new.
    pub draining: bool,
    /// What it does.
    pub role: Role,
}

/// A URL without a user, a password and a query, any of which may be a secret.
pub fn without_secrets(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
            let host = authority.rsplit('@').next().unwrap_or_default();
            let path = path.map(|path| format!("/{path}")).unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => url.rsplit('@').next().unwrap_or_default().to_owned(),
    }
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
        let Scrape { interval, timeout, stale_after, down_after } = self.scrape;
        let mut warnings = Vec::new();
        if interval > stale_after && interval <= down_after {
            warnings.push(format!(
                "scrape.interval ({interval:?}) is longer than scrape.stale_after ({stale_after:?}): every worker's \
                 numbers are stale between two scrapes"
            ));
        }
        if interval > down_after {
            warnings.push(format!(
                "scrape.interval ({interval:?}) is longer than scrape.down_after ({down_after:?}): every worker will \
                 count as down between two scrapes"
            ));
        }
        if timeout >= down_after {
            warnings.push(format!(
                "scrape.timeout ({timeout:?}) is not below scrape.down_after ({down_after:?}): a worker whose page takes \
                 so long counts as down before it has come"
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
            if pool.engine.as_ref().is_some_and(Engine::never_reports_blocks) {
                warnings.push(format!(
                    "pools {:?}: its engine reports no KV blocks, so `kv` of the proxy's pool measures nothing here",
                    pool.name
                ));
            }
        }
        warnings
    }
}

impl Proxy {
    /// The socket, if that is how it is reached.
    pub fn unix_socket(&self) -> Option<&Path> {
        self.url.strip_prefix(UNIX).map(Path::new)
    }

    /// What the paths of its control listener are added to.
    pub fn base(&self) -> &str {
        match self.unix_socket() {
            Some(_) => "http://localhost",
            None => &self.url,
        }
    }
}

impl Scrape {
    /// How long what it saw is believed.
    pub fn patience(&self) -> Patience {
        let Self { interval, timeout, stale_after, down_after } = *self;
        Patience { stale_after, down_after, next_try: interval + timeout }
    }
}

impl Pool {
    /// Names of all that say which workers it has: [`LISTED`], and those of [`Source::name`].
    pub fn source_names(&self) -> impl Iterator<Item = String> {
        std::iter::once(LISTED.to_owned()).chain(self.discover.iter().map(Source::name))
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
