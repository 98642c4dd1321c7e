//! Tells one proxy for ever.

use std::sync::Arc;
use std::time::Duration;

use admission_core::view::{VIEW_VERSION, ViewDocument, ViewRefusal};
use reqwest::{Client, StatusCode};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::config::{Proxy, Push};
use crate::courier::{Courier, Outcome, Stamp, Transition};
use crate::fetch::exchange;
use crate::shared::Shared;
use crate::table::Revision;

/// Longest answer to a view, in bytes: some 100 a pool.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The pushes to one proxy.
pub struct Pusher {
    /// What all tasks share.
    pub shared: Arc<Shared>,
    /// Keeps its connection to the proxy.
    pub client: Client,
    /// Position in the configuration.
    pub index: usize,
    /// Whom to tell.
    pub proxy: Proxy,
    /// As last read.
    pub token: String,
    /// When, and under which generation.
    pub courier: Courier,
}

impl Pusher {
    /// Pushes whenever it is due, from the first try of every worker on.
    pub async fn run(mut self) {
        let mut revisions = self.shared.revisions();
        self.shared.all_tried().await;
        loop {
            self.until_due(&mut revisions).await;
            self.push().await;
        }
    }

    async fn until_due(&self, revisions: &mut watch::Receiver<Revision>) {
        loop {
            let current = *revisions.borrow_and_update();
            let left = self.courier.due(current).saturating_sub(self.shared.now());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left) => return,
                // Fails only when the sender is gone, and `shared` holds it.
                _ = revisions.changed() => {}
            }
        }
    }

    async fn push(&mut self) {
        let now = self.shared.now();
        let stamp = self.courier.begin(now);
        let (told, pools) = self.shared.read(|table| (table.revision(), table.reports(self.index, now)));
        let document = ViewDocument { version: VIEW_VERSION, epoch: stamp.epoch, generation: stamp.generation, pools };
        let outcome = self.send(&document, stamp).await;
        let now = self.shared.now();
        let transition = self.courier.end(&outcome, told, now, fastrand::f64());
        self.shared.counters.pushed(&self.proxy.url, outcome.label());
        if let Outcome::Taken(answer) = &outcome {
            self.shared.update(|table| table.taken(self.index, answer, now));
        }
        if let Some(transition) = transition {
            self.log(&transition);
        }
    }

    async fn send(&mut self, document: &ViewDocument, stamp: Stamp) -> Outcome {
        let Push { timeout, .. } = self.shared.config.push;
        let url = format!("{}/sluice/v1/view", self.proxy.url);
        let request = self.client.post(url).bearer_auth(&self.token).json(document);
        match exchange(request, timeout, MAX_ANSWER_BYTES).await {
            Ok((StatusCode::OK, body)) => {
                parsed(&body).map_or_else(Outcome::Failed, |answer| Outcome::of_answer(answer, stamp))
            }
            Ok((StatusCode::CONFLICT, body)) => parsed(&body).map_or_else(Outcome::Failed, Outcome::Refused),
            Ok((StatusCode::UNAUTHORIZED, _)) => {
                self.read_token_again();
                Outcome::Failed("it does not accept the token".into())
            }
            Ok((status, body)) => Outcome::Failed(refusal(status, &body)),
            Err(error) => Outcome::Failed(error.to_string()),
        }
    }

    fn read_token_again(&mut self) {
        match self.proxy.token.read() {
            Ok(token) => self.token = token,
            Err(error) => warn!(proxy = self.proxy.url, error, "the old token stays in use"),
        }
    }

    fn log(&self, transition: &Transition) {
        let proxy = &self.proxy.url;
        match transition {
            Transition::Taken => info!(proxy, "proxy takes views"),
            Transition::Failing(reason) => warn!(proxy, reason, "proxy takes no views; trying on"),
            Transition::Superseded { by } => {
                warn!(proxy, epoch = by, "proxy obeys a sidecar that started later; trying on at every heartbeat");
            }
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

/// Milliseconds since 1970; a clock before that names epoch 0.
pub fn epoch() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
