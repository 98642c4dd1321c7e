//! Tells one proxy for ever.

use std::sync::Arc;
use std::time::Duration;

use admission_core::control::VIEW_PATH;
use admission_core::view::{FIRST_FORM, ViewDocument, ViewRefusal};
use hyper::StatusCode;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::config::Proxy;
use crate::courier::{Courier, Outcome, Stamp, Transition};
use crate::fetch::{Peer, exchange, token};
use crate::shared::Shared;
use crate::table::{ProxyId, Revision};
use crate::told::Told;

/// Longest answer to a view, in bytes: some 100 a pool.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The pushes to one proxy.
pub struct Pusher {
    /// What all tasks share.
    pub shared: Arc<Shared>,
    /// Keeps its connection to the proxy.
    pub peer: Peer,
    /// In the table.
    pub id: ProxyId,
    /// Whom to tell.
    pub proxy: Proxy,
    /// Longest one push may take.
    pub timeout: Duration,
    /// As last read.
    pub token: String,
    /// When, and under which generation.
    pub courier: Courier,
    /// What it holds.
    pub told: Told,
}

impl Pusher {
    /// Pushes whenever it is due, from when a pool is known on.
    pub async fn run(mut self) {
        let mut revisions = self.shared.revisions();
        self.shared.settled().await;
        loop {
            self.until_due(&mut revisions).await;
            self.push().await;
        }
    }

    /// Nothing is due while nobody looks at workers: a proxy knows better what to do without a view than with one that is none.
    async fn until_due(&self, revisions: &mut watch::Receiver<Revision>) {
        let mut was_attended = true;
        loop {
            let current = *revisions.borrow_and_update();
            let now = self.shared.now();
            let is_attended = self.shared.read(|table| table.is_attended(now));
            if was_attended && !is_attended {
                warn!(proxy = self.proxy.url, "no scrape has ended for long: the proxy is told nothing until one does");
            }
            was_attended = is_attended;
            let left = if is_attended { self.courier.due(current).saturating_sub(now) } else { self.courier.look() };
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left.min(self.courier.look())) => {}
                // Fails only when the sender is gone, and `shared` holds it.
                _ = revisions.changed() => {}
            }
        }
    }

    /// A proxy that does not hold what a document changes, since it has restarted, gets the whole without delay; so does one that
    /// takes another form of documents than this one had.
    async fn push(&mut self) {
        if !self.tell().await {
            self.tell().await;
        }
    }

    /// Says what is new; false where the whole must follow.
    async fn tell(&mut self) -> bool {
        let now = self.shared.now();
        let begun = self.courier.begin(now);
        let told = &mut self.told;
        let sent = self.shared.read(|table| told.document(begun, table.revision(), &table.told_to(self.id, now)));
        let outcome = self.send(&sent.document, begun.stamp).await;
        let now = self.shared.now();
        let transition = self.courier.end(&outcome, sent.extent, now, fastrand::f64());
        self.shared.counters.pushed(&self.proxy.url, outcome.label());
        let is_incomplete = match &outcome {
            Outcome::Taken(answer) => {
                self.told.taken(sent);
                let holds = self.told.pools();
                self.shared.said(self.id, answer, now, Some(holds));
                self.told.speak(answer.form)
            }
            Outcome::Unread => self.told.speak(FIRST_FORM),
            _ => {
                self.told.forget();
                outcome == Outcome::Baseless
            }
        };
        if let Some(transition) = transition {
            log_change(&self.proxy.url, &transition);
        }
        !is_incomplete
    }

    async fn send(&mut self, document: &ViewDocument, stamp: Stamp) -> Outcome {
        let url = format!("{}{VIEW_PATH}", self.proxy.base());
        let request = self.peer.client().post(&url).bearer_auth(&self.token).json(document);
        match exchange(request, self.timeout, MAX_ANSWER_BYTES).await {
            Ok((StatusCode::OK, body)) => {
                parsed(&body).map_or_else(Outcome::Failed, |answer| Outcome::of_answer(answer, stamp))
            }
            Ok((StatusCode::CONFLICT, body)) => match parsed::<ViewRefusal>(&body) {
                Ok(refusal) if refusal.needs_whole && document.base.is_some() => Outcome::Baseless,
                Ok(refusal) => Outcome::Refused(refusal),
                Err(problem) => Outcome::Failed(problem),
            },
            Ok((StatusCode::BAD_REQUEST, _)) if self.told.form() > FIRST_FORM => Outcome::Unread,
            Ok((StatusCode::UNAUTHORIZED, _)) => {
                self.read_token_again().await;
                Outcome::Unauthorized
            }
            Ok((status, body)) => Outcome::Failed(refusal(status, &body)),
            Err(error) => Outcome::Failed(error.to_string()),
        }
    }

    async fn read_token_again(&mut self) {
        match token(&self.proxy.token).await {
            Ok(token) => self.token = token,
            Err(error) => warn!(proxy = self.proxy.url, error, "the old token stays in use"),
        }
    }
}

/// One line for each change of what becomes of the views for a proxy.
pub fn log_change(proxy: &str, transition: &Transition) {
    match transition {
        Transition::Taken => info!(proxy, "proxy takes views"),
        Transition::Failing(reason) => warn!(proxy, reason, "proxy takes no views; trying on"),
        Transition::Superseded { by } => {
            warn!(proxy, epoch = by, "proxy obeys a sidecar that started later; trying on at every heartbeat");
        }
    }
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("its answer is none to a view: {error}"))
}

/// The proxy's own words when it has some.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    match parsed::<ViewRefusal>(body) {
        Ok(refusal) => format!("status {status}: {}", refusal.error),
        Err(_) => format!("status {status}"),
    }
}

/// Microseconds since 1970; a clock before that names epoch 0. So fine that two sidecars of a rollout hardly start in the same
/// one, and still exact as a number in JSON.
pub fn epoch() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
