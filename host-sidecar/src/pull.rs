//! Answers proxies that ask for their view, where there is no listener to push it to.
//!
//! A proxy that asks is told like one that is pushed to, by the same [`Courier`]: its question says what it has taken, and
//! the answer is kept back until there is something to tell.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use admission_core::view::{Have, VIEW_VERSION, ViewAnswer, ViewDocument, ViewQuestion, ViewRefusal};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use tracing::info;

use crate::courier::{Courier, Extent, Outcome, Stamp};
use crate::push::log_change;
use crate::server::{authorize, read_body};
use crate::shared::Shared;
use crate::table::{ProxyId, Revision, Way};
use crate::told::{Sent, Told};

/// What stands for all of them in metrics: their names are drawn by chance, and come and go.
pub const LABEL: &str = "(pulling)";

/// Most proxies that ask. Each is told by itself, and has a view of its own remembered.
const MOST: usize = 256;

/// A proxy that has not asked for so long is gone.
const FORGOTTEN: Duration = Duration::from_secs(300);

/// Longest wait that a question may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The proxies that ask.
pub struct Pulls {
    shared: Arc<Shared>,
    askers: Mutex<BTreeMap<String, Asker>>,
}

/// One proxy.
struct Asker {
    id: ProxyId,
    courier: Courier,
    told: Told,
    /// The last answer, which the proxy may have taken.
    sent: Option<Sent>,
    /// Of its last question.
    number: u64,
    heard: Duration,
}

/// Why a question has no view for an answer.
type Refused = (StatusCode, String);

/// Answers a question, if it may be asked.
pub async fn answer(State(pulls): State<Arc<Pulls>>, headers: HeaderMap, request: Request) -> Response {
    if let Err(refused) = authorize(&pulls.shared, &headers).await {
        pulls.shared.counters.pushed(LABEL, Outcome::Unauthorized.label());
        return refused.into_response();
    }
    // Why only then: a caller without the token has nothing read.
    let question = read_body(request).await.and_then(checked);
    let answer = match question {
        Ok(question) => pulls.answer(question).await,
        Err(refused) => Err(refused),
    };
    match answer {
        Ok(document) => Json(document).into_response(),
        Err((status, error)) => (status, Json(ViewRefusal { error, ..ViewRefusal::default() })).into_response(),
    }
}

fn checked(question: ViewQuestion) -> Result<ViewQuestion, Refused> {
    if question.version != VIEW_VERSION {
        let error = format!("version {} is not {VIEW_VERSION}, the only one understood", question.version);
        return Err((StatusCode::BAD_REQUEST, error));
    }
    if question.proxy.len() != 32 || !question.proxy.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err((StatusCode::BAD_REQUEST, "proxy: must be 32 hexadecimal digits".into()));
    }
    Ok(question)
}

impl Pulls {
    /// Nobody has asked.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, askers: Mutex::default() }
    }

    /// Waits until there is something to tell, or for as long as the question says.
    async fn answer(&self, question: ViewQuestion) -> Result<ViewDocument, Refused> {
        let wait = Duration::from_millis(question.wait_ms).min(LONGEST_WAIT);
        if tokio::time::timeout(wait, self.shared.settled()).await.is_err() {
            return Err((StatusCode::SERVICE_UNAVAILABLE, "of no pool is enough known yet".into()));
        }
        let until = self.shared.now() + wait;
        let number = self.heard(&question)?;
        let mut revisions = self.shared.revisions();
        let look = self.with(&question.proxy, number, |asker| asker.courier.look())?;
        loop {
            let revision = *revisions.borrow_and_update();
            let now = self.shared.now();
            let is_attended = self.shared.read(|table| table.is_attended(now));
            let left = self.due(&question.proxy, number, revision)?.min(until).saturating_sub(now);
            if left.is_zero() && is_attended {
                return self.document(&question.proxy, number, now);
            }
            if now >= until {
                return Err((StatusCode::SERVICE_UNAVAILABLE, "no scrape of a worker has ended for long".into()));
            }
            let left = if is_attended { left } else { look };
            tokio::select! {
                () = tokio::time::sleep(left.min(look)) => {}
                // Fails only when the sender is gone, and `shared` holds it.
                _ = revisions.changed() => {}
            }
        }
    }

    /// Takes note of what a question says; its number among those of its proxy.
    fn heard(&self, question: &ViewQuestion) -> Result<u64, Refused> {
        let now = self.shared.now();
        let mut askers = lock(&self.askers);
        self.forget_the_silent(&mut askers, now);
        if askers.len() >= MOST && !askers.contains_key(&question.proxy) {
            return Err((StatusCode::SERVICE_UNAVAILABLE, format!("{MOST} proxies ask here already")));
        }
        let asker = askers.entry(question.proxy.clone()).or_insert_with(|| self.newcomer(&question.proxy, now));
        let config = self.shared.config();
        asker.courier.pace(config.push.heartbeat, config.scrape.interval);
        asker.heard = now;
        asker.number += 1;
        let mut took = None;
        if let Some((outcome, extent)) = asker.outcome(question, self.shared.epoch) {
            took = matches!(outcome, Outcome::Taken(_)).then(|| asker.told.pools());
            self.shared.counters.pushed(LABEL, outcome.label());
            if let Some(transition) = asker.courier.end(&outcome, extent, now, fastrand::f64()) {
                log_change(&question.proxy, &transition);
            }
        }
        // What it has admitted is as true as in an answer to a push, whatever it made of the last view.
        let have = question.have.unwrap_or(Have { epoch: 0, generation: 0 });
        let said = ViewAnswer {
            epoch: have.epoch,
            generation: have.generation,
            admitted: question.admitted.clone(),
            held: question.held.clone(),
            queued: question.queued.clone(),
            demand: question.demand.clone(),
            needs: question.needs.clone(),
            form: question.form,
        };
        asker.told.speak(question.form);
        self.shared.said(asker.id, &said, now, took);
        Ok(asker.number)
    }

    fn newcomer(&self, proxy: &str, now: Duration) -> Asker {
        info!(proxy, "proxy asks for its view");
        let config = self.shared.config();
        Asker {
            id: self.shared.update(|table| table.register(proxy, Way::Pulled)),
            courier: Courier::new(self.shared.epoch, config.push.heartbeat, config.scrape.interval),
            told: Told::default(),
            sent: None,
            number: 0,
            heard: now,
        }
    }

    fn forget_the_silent(&self, askers: &mut BTreeMap<String, Asker>, now: Duration) {
        askers.retain(|proxy, asker| {
            let stays = now.saturating_sub(asker.heard) < FORGOTTEN;
            if !stays {
                info!(proxy, "proxy has not asked for long and is forgotten");
                self.shared.update(|table| table.forget(asker.id));
            }
            stays
        });
    }

    fn due(&self, proxy: &str, number: u64, revision: Revision) -> Result<Duration, Refused> {
        self.with(proxy, number, |asker| asker.courier.due(revision))
    }

    fn document(&self, proxy: &str, number: u64, now: Duration) -> Result<ViewDocument, Refused> {
        self.with(proxy, number, |asker| {
            let (begun, told) = (asker.courier.begin(now), &mut asker.told);
            let sent = self.shared.read(|table| told.document(begun, table.revision(), &table.told_to(asker.id, now)));
            asker.sent.insert(sent).document.clone()
        })
    }

    /// Looks at the proxy of a question, if that is still its last.
    fn with<T>(&self, proxy: &str, number: u64, look: impl FnOnce(&mut Asker) -> T) -> Result<T, Refused> {
        match lock(&self.askers).get_mut(proxy).filter(|asker| asker.number == number) {
            Some(asker) => Ok(look(asker)),
            None => Err((StatusCode::CONFLICT, "a later question of this proxy is under way".into())),
        }
    }
}

impl Asker {
    /// What has become of the last answer, as a question tells, and what that answer told; `None` where there is nothing to
    /// tell of.
    fn outcome(&mut self, question: &ViewQuestion, epoch: u64) -> Option<(Outcome, Extent)> {
        let have = question.have.map(|Have { epoch, generation }| Stamp { epoch, generation });
        let sent = self.sent.take();
        let outcome = match (sent, have) {
            (Some(sent), Some(have)) if have == sent.stamp() => {
                let extent = sent.extent;
                self.told.taken(sent);
                let Stamp { epoch, generation } = have;
                Some((Outcome::Taken(ViewAnswer { epoch, generation, ..ViewAnswer::default() }), extent))
            }
            (sent, Some(have)) if have.epoch >= epoch && !self.told.is_of(have) => {
                let (epoch, generation) = (Some(have.epoch), Some(have.generation));
                let error = "another view stands".to_owned();
                let refusal = ViewRefusal { error, epoch, generation, needs_whole: false };
                Some((Outcome::Refused(refusal), sent.map_or_else(Extent::default, |sent| sent.extent)))
            }
            (Some(sent), _) => Some((Outcome::Failed("it did not take the last answer".into()), sent.extent)),
            (None, _) => None,
        };
        if question.needs_whole || !have.is_some_and(|have| self.told.is_of(have)) {
            self.told.forget();
        }
        outcome
    }
}

/// A task that panicked under the lock leaves what is whole: every change is a plain assignment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Config;
    use crate::engines::{self, Engine};

    const SECOND: u64 = 1_000;

    #[tokio::test]
    async fn nothing_is_told_while_nobody_looks_at_workers() {
        let config = "{api: {token: t}, scrape: {interval: 10ms, timeout: 10ms}, pools: [{name: p, workers: ['w:1']}]}";
        let shared = Arc::new(Shared::new(Config::parse(config).unwrap(), 1).unwrap());
        let pulls = Pulls::new(Arc::clone(&shared));
        let worker = shared.read(|table| table.targets().next()).unwrap().worker;
        let scrape = || {
            let reading = engines::read(&Engine::Vllm, "vllm:num_requests_running 1\n").unwrap();
            let now = shared.now();
            assert!(shared.update(|table| table.end_scrape(table.begin_scrape(&worker, now), Ok(reading), now)));
        };
        let ask = |wait_ms: u64| {
            let question =
                json!({"version": VIEW_VERSION, "proxy": "a".repeat(32), "wait_ms": wait_ms, "admitted": {}});
            pulls.answer(serde_json::from_value(question).unwrap())
        };
        scrape();
        assert_eq!(ask(60 * SECOND).await.unwrap().pools["p"].workers.len(), 1);
        while shared.read(|table| table.is_attended(shared.now())) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (status, error) = ask(20).await.unwrap_err();
        assert_eq!(
            (status, error.as_str()),
            (StatusCode::SERVICE_UNAVAILABLE, "no scrape of a worker has ended for long")
        );
        let later = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            scrape();
        };
        let (answer, ()) = tokio::join!(ask(60 * SECOND), later);
        let report = &answer.unwrap().pools["p"].workers[0];
        assert!(report.scraped_ms_ago < SECOND, "it waited for the next scrape: {report:?}");
    }
}
