//! Finds the workers of a pool and follows them as they come and go.
//!
//! [`run`] asks one [`Source`] for ever. Each kind of source has a pure part, which turns an answer into [`Member`]s, and a
//! part that asks; a `Teller` turns what they say into news. Whatever goes wrong, the last word of a source stands: a worker
//! that has gone is noticed by its scrapes, a worker that was forgotten is not.

use std::fmt;

use tracing::{info, warn};

pub use crate::config::Role;
use crate::config::Worker;
use crate::config::discover::{Origin, Source};

mod dns;
mod file;
#[cfg(feature = "kubernetes")]
mod kubernetes;

/// A worker that a source has found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// `host:port` where it serves requests; `ip:port` but for what a file names otherwise.
    pub address: String,
    /// Whether it may be given work, as its source says.
    pub condition: Condition,
    /// Its metrics page.
    pub metrics_url: String,
    /// The page of the exporter that tells of its GPUs.
    pub hardware_url: Option<String>,
    /// What it does.
    pub role: Role,
}

/// Whether a worker may be given work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// It may.
    Ready,
    /// It finishes what it has and takes nothing new.
    Draining,
    /// It does not serve: not yet, or no longer.
    NotReady,
}

/// How one look at a source went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// All workers there are, sorted by address, each once; `None` where the last word stands.
    pub members: Option<Vec<Member>>,
    /// What went wrong. A source may know its members and still miss something.
    pub error: Option<LookError>,
}

/// Why a source cannot say all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookError {
    /// No answer in time.
    Timeout,
    /// Nobody could be asked.
    Connection(String),
    /// Who was asked refuses to say.
    Refused(String),
    /// What was said makes no sense.
    Unreadable(String),
    /// There is nobody, which is believed when it is said again.
    Empty(String),
}

impl LookError {
    /// Names the kind, for a metric.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Connection(_) => "connection",
            Self::Refused(_) => "refused",
            Self::Unreadable(_) => "unreadable",
            Self::Empty(_) => "empty",
        }
    }
}

impl fmt::Display for LookError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => write!(out, "no answer in time"),
            Self::Connection(what) | Self::Refused(what) | Self::Unreadable(what) | Self::Empty(what) => {
                write!(out, "{what}")
            }
        }
    }
}

impl std::error::Error for LookError {}

impl Found {
    /// Every value of [`Self::label`].
    pub const LABELS: [&str; 6] = ["ok", "timeout", "connection", "refused", "unreadable", "empty"];

    /// How the look went, for a metric.
    pub fn label(&self) -> &'static str {
        self.error.as_ref().map_or("ok", LookError::label)
    }

    fn all(members: Vec<Member>) -> Self {
        Self { members: Some(members), error: None }
    }

    fn failed(error: LookError) -> Self {
        Self { members: None, error: Some(error) }
    }
}

impl Member {
    /// Whether `other` is read where this one is.
    pub fn same_pages(&self, other: &Self) -> bool {
        (&self.metrics_url, &self.hardware_url) == (&other.metrics_url, &other.hardware_url)
    }
}

impl From<Worker> for Member {
    fn from(worker: Worker) -> Self {
        let Worker { address, metrics_url, hardware_url, draining, role } = worker;
        let condition = if draining { Condition::Draining } else { Condition::Ready };
        Self { address, condition, metrics_url, hardware_url, role }
    }
}

/// Asks `source` for ever and tells of every look, with the members only where they have changed since the look before.
/// Drop it to end it.
pub async fn run(source: Source, publish: impl FnMut(Found) + Send) {
    let teller = Teller::new(source.name(), publish);
    match &source.origin {
        Origin::Dns(dns) => dns::run(dns, &source, teller).await,
        Origin::File(path) => file::run(path, &source, teller).await,
        #[cfg(feature = "kubernetes")]
        Origin::Kubernetes(kubernetes) => kubernetes::run(kubernetes, &source, teller).await,
        #[cfg(not(feature = "kubernetes"))]
        Origin::Kubernetes(_) => {
            let mut teller = teller;
            teller.tell(Found::failed(LookError::Refused("this sidecar was built without Kubernetes".into())));
            std::future::pending().await
        }
    }
}

/// Passes on what has changed, and logs it once.
struct Teller<P> {
    source: String,
    last: Option<Vec<Member>>,
    trouble: Option<LookError>,
    publish: P,
}

impl<P: FnMut(Found)> Teller<P> {
    fn new(source: String, publish: P) -> Self {
        Self { source, last: None, trouble: None, publish }
    }

    fn tell(&mut self, found: Found) {
        let members = found.members.map(tidy).filter(|members| self.last.as_ref() != Some(members));
        if let Some(members) = &members {
            let ready = members.iter().filter(|member| member.condition == Condition::Ready).count();
            info!(source = self.source, members = members.len(), ready, "workers found");
            self.last = Some(members.clone());
        }
        match (&found.error, &self.trouble) {
            (Some(error), last) if last.as_ref() != Some(error) => {
                warn!(source = self.source, %error, "discovery fails, the last word stands");
            }
            (None, Some(_)) => info!(source = self.source, "discovery works again"),
            _ => {}
        }
        self.trouble.clone_from(&found.error);
        (self.publish)(Found { members, error: found.error });
    }
}

/// Sorted by address, each once. Of two words on one address the one that lets it work stands: slices of a Service overlap
/// while it is moved from one to the other.
fn tidy(mut members: Vec<Member>) -> Vec<Member> {
    members.sort();
    members.dedup_by(|later, first| later.address == first.address);
    members
}

#[cfg(test)]
mod tests;
