//! Workers by objects of Kubernetes: listed once, then watched.
//!
//! [`slices`] and [`pods`] are the pure parts: which workers EndpointSlices name, and the pods of an InferencePool. Whatever breaks a watch,
//! the objects are listed again, so nothing that was missed meanwhile stays missed.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use self::pods::Pods;
use self::slices::Slices;
use super::{Found, LookError, Member, Teller};
use crate::backoff;
use crate::config::TokenSource;
use crate::config::discover::{Kubernetes, Objects, Role, Source};

mod inference_pool;
mod pods;
mod slices;

/// The label that says what workers do, of a pod or of a slice, which has the labels of its Service.
const ROLE: &str = "llm-d.ai/role";

/// Names of the variables by which a pod finds its own cluster's API server.
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";
/// What a pod is given to prove who it is, and to know the API server.
const TOKEN_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
const CA_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// The API server no longer knows what was last seen.
const GONE: u16 = 410;

/// How long to wait for what.
struct Pace {
    /// To connect, and for an answer.
    answer: Duration,
    /// After which the API server ends a watch; so long a connection may be dead unnoticed, and a little longer.
    watch: Duration,
    /// Before a watch that ended goes on where it was.
    resume: Duration,
    /// The pauses after failures: the first, and up to which it doubles.
    retry: (Duration, Duration),
}

const PACE: Pace = Pace {
    answer: Duration::from_secs(10),
    watch: Duration::from_secs(60),
    resume: Duration::from_millis(100),
    retry: (Duration::from_secs(1), Duration::from_secs(30)),
};

/// All objects of one kind that name workers.
trait Named: Send {
    /// One such object.
    type Object: k8s_openapi::Resource<Scope = NamespaceResourceScope>
        + k8s_openapi::Metadata<Ty = ObjectMeta>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug
        + Send
        + 'static;

    /// Asks for what says which objects are meant; true when that has changed, and all must be listed again.
    fn look_up(
        &mut self,
        client: &Client,
        namespace: &str,
        pace: &Pace,
    ) -> impl Future<Output = Result<bool, LookError>> + Send;

    /// The labels of objects that are meant, as the API takes them.
    fn selector(&self) -> String;

    /// Takes these for all there are.
    fn replace(&mut self, objects: Vec<Self::Object>);

    /// Takes in an object that is new or has changed. Its version, if it says one.
    fn set(&mut self, object: Self::Object) -> Option<String>;

    /// Takes out an object. Its version, if it says one.
    fn remove(&mut self, object: Self::Object) -> Option<String>;

    /// The workers of all objects, and what is wrong with one that names some but not where they serve.
    fn members(&self) -> (Vec<Member>, Option<LookError>);
}

/// Watches without end.
pub async fn run<P: FnMut(Found) + Send>(kubernetes: &Kubernetes, source: &Source, teller: Teller<P>) {
    watch(kubernetes, source, teller, &PACE).await;
}

async fn watch<P: FnMut(Found) + Send>(kubernetes: &Kubernetes, source: &Source, teller: Teller<P>, pace: &Pace) {
    match &kubernetes.objects {
        Objects::Slices(select, port) => {
            Watcher::new(kubernetes, Slices::new(source, select, port), teller, pace).run().await;
        }
        Objects::InferencePool(name) => {
            Watcher::new(kubernetes, Pods::new(source, name), teller, pace).run().await;
        }
    }
}

struct Watcher<'a, P, N> {
    kubernetes: &'a Kubernetes,
    teller: Teller<P>,
    pace: &'a Pace,
    named: N,
    /// What ended the last watch, until the next begins.
    trouble: Option<LookError>,
    /// Ends of that kind since a watch last said something.
    failures: u32,
}

impl<'a, P: FnMut(Found) + Send, N: Named> Watcher<'a, P, N> {
    fn new(kubernetes: &'a Kubernetes, named: N, teller: Teller<P>, pace: &'a Pace) -> Self {
        Self { kubernetes, teller, pace, named, trouble: None, failures: 0 }
    }

    async fn run(mut self) {
        loop {
            if let Err(error) = self.list_and_watch().await {
                self.failures = self.failures.saturating_add(1);
                self.trouble = Some(error.clone());
                self.teller.tell(Found::failed(error));
            }
            let (first, longest) = self.pace.retry;
            sleep(backoff::pause(first, longest, self.failures, fastrand::f64())).await;
        }
    }

    /// Ends when the objects must be listed again: after a failure, when the API server no longer knows what was last seen, or when other
    /// objects are meant.
    async fn list_and_watch(&mut self) -> Result<(), LookError> {
        let namespace = &self.kubernetes.namespace;
        let mut client = connect(self.kubernetes, self.pace).await?;
        self.named.look_up(&client, namespace, self.pace).await?;
        let mut version = self.list(&Api::namespaced(client.clone(), namespace)).await?;
        while self.watch(&Api::namespaced(client, namespace), &mut version).await? {
            sleep(self.pace.resume).await;
            // With the token that the file has now: a pod's own is replaced within the hour.
            client = connect(self.kubernetes, self.pace).await?;
            if self.named.look_up(&client, namespace, self.pace).await? {
                break;
            }
        }
        Ok(())
    }

    /// The version of the list, from which a watch goes on.
    async fn list(&mut self, objects: &Api<N::Object>) -> Result<String, LookError> {
        let wanted = ListParams::default().labels(&self.named.selector());
        let list = answer(self.pace, objects.list(&wanted)).await?.map_err(|error| failure(&error))?;
        let version = list.metadata.resource_version.filter(|version| !version.is_empty());
        let version = version.ok_or_else(|| LookError::Unreadable("the list of objects has no version".into()))?;
        self.named.replace(list.items);
        self.tell();
        Ok(version)
    }

    /// Watches from `version`; true when a watch can go on from there.
    async fn watch(&mut self, objects: &Api<N::Object>, version: &mut String) -> Result<bool, LookError> {
        let seconds = u32::try_from(self.pace.watch.as_secs()).unwrap_or(u32::MAX).max(1);
        let wanted = WatchParams::default().labels(&self.named.selector()).timeout(seconds);
        let mut events = match answer(self.pace, objects.watch(&wanted, version)).await? {
            Ok(events) => events.boxed(),
            Err(kube::Error::Api(status)) if status.code == GONE => return Ok(false),
            Err(error) => return Err(failure(&error)),
        };
        if self.trouble.take().is_some() {
            self.tell();
        }
        loop {
            let event = timeout(self.pace.watch + self.pace.answer, events.next()).await;
            let event = event.map_err(|_| LookError::Timeout)?.transpose().map_err(|error| failure(&error))?;
            self.failures = 0;
            let seen = match event {
                None => return Ok(true),
                Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => self.named.set(object),
                Some(WatchEvent::Deleted(object)) => self.named.remove(object),
                Some(WatchEvent::Bookmark(mark)) => {
                    *version = mark.metadata.resource_version;
                    continue;
                }
                Some(WatchEvent::Error(status)) if status.code == GONE => return Ok(false),
                Some(WatchEvent::Error(status)) => return Err(refused(&status)),
            };
            *version = seen.unwrap_or_else(|| version.clone());
            self.tell();
        }
    }

    fn tell(&mut self) {
        let (members, problem) = self.named.members();
        // Workers whose port is not known are not the same as no workers.
        let members = Some(members).filter(|members| !members.is_empty() || problem.is_none());
        self.teller.tell(Found { members, error: self.trouble.clone().or(problem) });
    }
}

/// The role of workers, by the labels of their pod or slice, else by their source.
fn role_of(metadata: &ObjectMeta, source: &Source) -> Role {
    let label = metadata.labels.as_ref().and_then(|labels| labels.get(ROLE));
    match label.map(String::as_str) {
        Some("prefill") => Role::Prefill,
        Some("decode") => Role::Decode,
        Some("both") => Role::Both,
        _ => source.role,
    }
}

fn name_of(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}

async fn answer<T>(pace: &Pace, request: impl Future<Output = kube::Result<T>>) -> Result<kube::Result<T>, LookError> {
    timeout(pace.answer, request).await.map_err(|_| LookError::Timeout)
}

/// Where the API server is, and the files with the token for it and its authorities. `environment` is asked only where the
/// configuration names no server.
fn reach(
    kubernetes: &Kubernetes,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<(String, Option<PathBuf>, Option<PathBuf>), LookError> {
    let Kubernetes { api_server, token_file, ca_file, .. } = kubernetes;
    if let Some(url) = api_server {
        return Ok((url.clone(), token_file.clone(), ca_file.clone()));
    }
    let own = |file: &Option<PathBuf>, own: &str| Some(file.clone().unwrap_or_else(|| own.into()));
    let url = own_api_server(environment)
        .ok_or_else(|| LookError::Connection(format!("{HOST} is not set, so this is no pod; set api_server")))?;
    Ok((url, own(token_file, TOKEN_FILE), own(ca_file, CA_FILE)))
}

async fn connect(kubernetes: &Kubernetes, pace: &Pace) -> Result<Client, LookError> {
    let (own, answer) = (kubernetes.clone(), pace.answer);
    // It reads files, and a file system may hang.
    let connected = timeout(answer, tokio::task::spawn_blocking(move || client(&own, answer))).await;
    let connected = connected.map_err(|_| LookError::Timeout)?;
    connected.map_err(|error| LookError::Connection(error.to_string()))?
}

fn client(kubernetes: &Kubernetes, answer: Duration) -> Result<Client, LookError> {
    let config = client_config(kubernetes, answer)?;
    let authorities = config.root_cert_file.as_deref().unwrap_or(Path::new("the system's authorities")).to_owned();
    Client::try_from(config)
        .map_err(|error| LookError::Unreadable(format!("{}: {}", authorities.display(), cause(&error))))
}

fn client_config(kubernetes: &Kubernetes, answer: Duration) -> Result<kube::Config, LookError> {
    let (url, token_file, ca_file) = reach(kubernetes, |name| std::env::var(name).ok())?;
    let url = url.parse().map_err(|error| LookError::Connection(format!("{url:?} is not a URL: {error}")))?;
    let mut config = kube::Config::new(url);
    config.connect_timeout = Some(answer);
    // Failures are told and tried again by the watcher.
    config.default_retry = false;
    if let Some(file) = token_file {
        config.auth_info.token = Some(TokenSource::File(file).read().map_err(LookError::Unreadable)?.into());
    }
    // An empty list keeps the system's authorities out.
    config.root_cert = ca_file.is_some().then(Vec::new);
    config.root_cert_file = ca_file;
    Ok(config)
}

fn own_api_server(environment: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (host, port) = environment(HOST).zip(environment(PORT))?;
    Some(if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") })
}

fn failure(error: &kube::Error) -> LookError {
    match error {
        kube::Error::Api(status) => refused(status),
        kube::Error::SerdeError(error) => LookError::Unreadable(format!("the API server's answer: {error}")),
        error => LookError::Connection(format!("the API server: {}", cause(error))),
    }
}

/// The end of the chain: outer errors only say that there was one.
fn cause(mut error: &dyn Error) -> &dyn Error {
    while let Some(deeper) = error.source() {
        error = deeper;
    }
    error
}

fn refused(status: &kube::core::Status) -> LookError {
    // Whatever is an object reads as a status without a code.
    if status.code == 0 {
        return LookError::Unreadable("the API server's answer is none of Kubernetes".into());
    }
    LookError::Refused(format!("the API server answers {} {}: {}", status.code, status.reason, status.message))
}

#[cfg(test)]
mod tests;
