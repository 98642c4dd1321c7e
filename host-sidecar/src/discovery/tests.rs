use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

/// Far beyond what anything takes: only a test that fails waits so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a source tells, as it tells it; the source ends with it.
pub struct News {
    told: UnboundedReceiver<Found>,
    task: JoinHandle<()>,
}

impl News {
    /// Follows a source: `follow` is given whom it tells.
    pub fn of<F: Future<Output = ()> + Send + 'static>(
        follow: impl FnOnce(Teller<Box<dyn FnMut(Found) + Send>>) -> F,
    ) -> Self {
        let (tell, told) = unbounded_channel();
        let publish: Box<dyn FnMut(Found) + Send> = Box::new(move |found| drop(tell.send(found)));
        Self { told, task: tokio::spawn(follow(Teller::new("test".into(), publish))) }
    }

    pub async fn next(&mut self) -> Found {
        timeout(PATIENCE, self.told.recv()).await.expect("nothing is told").expect("the source ended")
    }

    /// The addresses that are told next, whatever looks find meanwhile that everything is as it was.
    pub async fn members(&mut self) -> Vec<Member> {
        loop {
            let found = self.next().await;
            if let Some(members) = found.members {
                return members;
            }
            assert_eq!(found.error, None, "instead of members");
        }
    }

    pub async fn addresses(&mut self) -> Vec<String> {
        self.members().await.into_iter().map(|member| member.address).collect()
    }

    /// The addresses that are told next, whatever goes wrong meanwhile.
    pub async fn addresses_despite_errors(&mut self) -> Vec<String> {
        loop {
            if let Some(members) = self.next().await.members {
                return members.into_iter().map(|member| member.address).collect();
            }
        }
    }

    /// The failure that is told next; that nothing else changes until then is checked.
    pub async fn error(&mut self) -> LookError {
        loop {
            let found = self.next().await;
            assert_eq!(found.members, None, "instead of a failure");
            if let Some(error) = found.error {
                return error;
            }
        }
    }

    /// Nothing is told for so long.
    pub async fn silence(&mut self, long: Duration) {
        let told = timeout(long, self.told.recv()).await;
        assert!(told.is_err(), "{told:?}");
    }

    /// The first look without a failure; until then no members are told.
    pub async fn recovery(&mut self) {
        loop {
            let found = self.next().await;
            assert_eq!(found.members, None, "they are as they were");
            if found.error.is_none() {
                return;
            }
        }
    }
}

impl Drop for News {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn ready(address: &str) -> Member {
    Member {
        hardware_url: None,
        address: address.into(),
        condition: Condition::Ready,
        metrics_url: format!("http://{address}/metrics"),
        role: Role::Both,
    }
}

/// What a teller passes on of each of `looks`.
fn told(looks: impl IntoIterator<Item = Found>) -> Vec<Found> {
    let mut told = VecDeque::new();
    let mut teller = Teller::new("test".into(), |found| told.push_back(found));
    looks.into_iter().for_each(|found| teller.tell(found));
    drop(teller);
    told.into()
}

#[test]
fn every_look_is_told_and_members_only_when_they_change() {
    let all = |addresses: &[&str]| Found::all(addresses.iter().map(|address| ready(address)).collect());
    let same = Found { members: None, error: None };
    let failed = Found::failed(LookError::Timeout);
    let looks = [all(&["a:1"]), all(&["a:1"]), failed.clone(), all(&["a:1"]), all(&[]), all(&[])];
    let expected = [all(&["a:1"]), same.clone(), failed, same.clone(), all(&[]), same];
    assert_eq!(told(looks), expected);
}

#[tokio::test]
async fn a_source_of_each_kind_is_followed() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("workers.yaml");
    std::fs::write(&file, "['w:1']").unwrap();
    let origin = |text: &str| {
        let pool = format!("{{name: p, discover: [{{{text}, role: decode}}]}}");
        let text = format!("{{proxies: [{{url: 'http://p:1', token: t}}], pools: [{pool}]}}");
        crate::Config::parse(&text).unwrap().pools.remove(0).discover.remove(0)
    };
    let mut sources = vec![
        (origin(&format!("file: {{path: {}}}", file.display())), "ok"),
        (origin("dns: {name: localhost., port: 1, servers: ['127.0.0.1:1']}"), "ok"),
    ];
    if cfg!(feature = "kubernetes") {
        let kubernetes = "kubernetes: {namespace: n, service: s, port: 1, api_server: 'http://127.0.0.1:1'}";
        sources.push((origin(kubernetes), "connection"));
    }
    for (source, expected) in sources {
        let (tell, mut told) = unbounded_channel();
        let task = tokio::spawn(run(source.clone(), move |found| drop(tell.send(found))));
        let found = timeout(PATIENCE, told.recv()).await.unwrap().unwrap();
        assert_eq!(found.label(), expected, "{source:?}: {found:?}");
        task.abort();
        for member in found.members.into_iter().flatten() {
            assert_eq!(member.role, Role::Decode, "{source:?}");
        }
    }
}

#[test]
fn what_changes_is_logged_once() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let file = Arc::new(log.reopen().unwrap());
    let subscriber = tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(file).finish();
    let all = || Found::all(vec![ready("a:1")]);
    let failed = |why: &str| Found::failed(LookError::Refused(why.into()));
    tracing::subscriber::with_default(subscriber, || {
        told([all(), all(), failed("no"), failed("no"), failed("never"), all(), all()]);
    });
    let log = std::fs::read_to_string(log.path()).unwrap();
    let lines: Vec<_> = log.lines().map(|line| line.split_once(": ").unwrap().1).collect();
    let expected = [
        "workers found source=\"test\" members=1 ready=1",
        "discovery fails, the last word stands source=\"test\" error=no",
        "discovery fails, the last word stands source=\"test\" error=never",
        "discovery works again source=\"test\"",
    ];
    assert_eq!(lines, expected, "{log}");
}

#[test]
fn that_there_is_nobody_is_news_at_first() {
    assert_eq!(told([Found::all(Vec::new())]), [Found::all(Vec::new())]);
}

#[test]
fn members_are_sorted_and_an_address_has_the_better_of_two_conditions() {
    let with = |address: &str, condition| Member { condition, ..ready(address) };
    let looks = [Found::all(vec![
        with("b:1", Condition::NotReady),
        with("a:1", Condition::Draining),
        with("b:1", Condition::Draining),
        with("a:1", Condition::Ready),
    ])];
    let expected = vec![with("a:1", Condition::Ready), with("b:1", Condition::Draining)];
    assert_eq!(told(looks), [Found::all(expected)]);
}

#[test]
fn a_change_of_condition_or_role_is_a_change() {
    let draining = Member { condition: Condition::Draining, ..ready("a:1") };
    let prefill = Member { role: Role::Prefill, ..ready("a:1") };
    let looks = [ready("a:1"), draining, prefill].map(|member| Found::all(vec![member]));
    assert_eq!(told(looks.clone()), looks);
}

#[test]
fn every_error_has_a_label_of_the_list() {
    let text = String::new;
    let errors = [
        LookError::Timeout,
        LookError::Connection(text()),
        LookError::Refused(text()),
        LookError::Unreadable(text()),
        LookError::Empty(text()),
    ];
    let labels: Vec<_> = errors.map(|error| Found::failed(error).label()).into();
    assert_eq!(labels, Found::LABELS[1..]);
    assert_eq!(Found::all(Vec::new()).label(), Found::LABELS[0]);
}
