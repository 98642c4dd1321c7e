//! Asks a sidecar for the view, where the proxy has no listener to be told on.
//!
//! One question is under way at a time, in one VM of the proxy. The sidecar keeps its answer back until there is news, so a
//! change comes as soon as by a push.

use std::cell::{Cell, RefCell};

use admission_core::config::PullConfig;
use admission_core::control::Receiver;
use admission_core::control::pull::{Asking, may_ask, process, question};
use admission_core::policy::Policy;
use admission_core::store::StoreError;
use admission_core::units::{Millis, Time};
use admission_core::vm::TICK;

use crate::host;
use crate::instance::Instance;
use crate::store::SharedData;
use crate::views::{self, Views};

/// Longest answer that is read, in bytes; that of a control listener by default.
const MAX_VIEW: usize = 4 << 20;

/// Longest pause after questions that failed; the first is a tick, and each doubles.
const LONGEST_PAUSE: Millis = Millis(1_000);

/// An answer that came sooner was not kept back, and its sender may do so for ever: the next question waits for a tick.
const SOON: Millis = Millis(2);

/// The questions of one root.
pub struct Puller {
    receiver: RefCell<Receiver>,
    views: Views,
    asked: Cell<Option<Asked>>,
    /// When it was last looked whether a question is due.
    looked: Cell<Time>,
    /// No question before this.
    not_before: Cell<Time>,
    /// Questions in a row that failed.
    failures: Cell<u32>,
    asking: Cell<Asking>,
    /// Time of the last refusal of a question for its form.
    refused: Cell<Time>,
}

/// A question under way.
#[derive(Clone, Copy)]
struct Asked {
    call: u32,
    at: Time,
}

impl Puller {
    /// Nothing asked yet.
    pub fn new(policy: &Policy, pull: &PullConfig) -> Self {
        Self {
            receiver: RefCell::new(Receiver::new(policy.keys.clone(), pull.hold)),
            views: Views::default(),
            asked: Cell::new(None),
            looked: Cell::default(),
            not_before: Cell::default(),
            failures: Cell::new(0),
            asking: Cell::default(),
            refused: Cell::default(),
        }
    }

    /// Asks if it is due and for this VM to do. The root must be the current one.
    pub fn tick(&self, policy: &Policy, pull: &PullConfig, instance: &Instance) {
        let now = host::now();
        if now.since(self.looked.get()).0 < TICK.0 / 2 {
            return;
        }
        self.looked.set(now);
        match may_ask(&SharedData, &policy.keys, instance.id, now) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.failed(views::FAILED, &error.to_string(), now),
        }
        #[cfg(feature = "test-faults")]
        crate::faults::asker_if_commanded();
        match self.asked.get() {
            // The proxy says when a question has had no answer in time, but not for a root that it has taken down.
            Some(asked)
                if now.since(asked.at).0 > pull.wait.0.saturating_add(pull.timeout.0).saturating_add(TICK.0) =>
            {
                self.asked.set(None);
                self.failed(views::FAILED, "no answer in time", now);
            }
            Some(_) => {}
            None if now >= self.not_before.get() => self.ask(policy, pull, now),
            None => {}
        }
    }

    /// The answer to a question has come, or it is known that none will.
    pub fn answered(&self, call: u32, size: usize, policy: &Policy, pull: &PullConfig, instance: &Instance) {
        let now = host::now();
        let Some(asked) = self.asked.get().filter(|asked| asked.call == call) else { return };
        self.asked.set(None);
        match host::call_status() {
            Some(200) if size > MAX_VIEW => {
                self.failed(views::TOO_LARGE, &format!("the answer has {size} bytes, more than {MAX_VIEW}"), now);
            }
            Some(200) => {
                if self.take(&host::call_body(size), instance, now) && now.since(asked.at) >= SOON {
                    self.ask(policy, pull, now);
                }
            }
            Some(401) => {
                self.failed(views::UNAUTHORIZED, "the sidecar does not accept the token (view.pull.token)", now)
            }
            Some(400 | 422) if self.asking.get() == Asking::Newest => {
                self.asking.set(Asking::First);
                self.refused.set(now);
                self.ask(policy, pull, now);
            }
            Some(status) => self.failed(views::FAILED, &format!("the answer has status {status}"), now),
            None => self.failed(views::FAILED, "no answer", now),
        }
    }

    /// Takes the view; true when the next question may follow at once.
    fn take(&self, body: &[u8], instance: &Instance, now: Time) -> bool {
        match self.receiver.borrow_mut().take(&SharedData, body, now) {
            Ok(taken) => {
                self.views.taken();
                self.asking.set(self.asking.get().taken(taken.answer.epoch));
                if self.failures.replace(0) > 0 {
                    log::info!("views are taken again");
                }
                instance.wake(&taken.wakes);
                true
            }
            Err(not_taken) => {
                let (outcome, why) = views::outcome_of(&not_taken);
                self.failed(outcome, &why, now);
                false
            }
        }
    }

    fn ask(&self, policy: &Policy, pull: &PullConfig, now: Time) {
        match self.send(policy, pull, now) {
            Ok(call) => self.asked.set(Some(Asked { call, at: now })),
            Err(error) => self.failed(views::FAILED, &error, now),
        }
    }

    fn send(&self, policy: &Policy, pull: &PullConfig, now: Time) -> Result<u32, String> {
        let text = |error: StoreError| error.to_string();
        let draw = || (host::random(), host::random());
        let proxy = process(&SharedData, &policy.keys, draw).map_err(text)?;
        let pools = policy.pools().map(|pool| pool.name.as_str());
        let question = question(&SharedData, &self.receiver.borrow(), proxy, pools, pull.wait, now).map_err(text)?;
        self.asking.set(self.asking.get().after(now.since(self.refused.get())));
        let question = self.asking.get().in_form(question);
        let body = serde_json::to_vec(&question).map_err(|error| error.to_string())?;
        let authorization = format!("Bearer {}", pull.token.reveal());
        let headers = vec![
            (":method", "POST"),
            (":path", pull.path.as_str()),
            (":authority", pull.authority.as_deref().unwrap_or(&pull.cluster)),
            ("content-type", "application/json"),
            ("authorization", &authorization),
        ];
        host::call(&pull.cluster, headers, &body, Millis(pull.wait.0.saturating_add(pull.timeout.0)))
    }

    fn failed(&self, outcome: &'static str, why: &str, now: Time) {
        self.views.not_taken(outcome, why, now);
        let doublings = self.failures.get().min(8);
        self.failures.set(self.failures.get().saturating_add(1));
        let pause = LONGEST_PAUSE.0.min(TICK.0 << doublings);
        self.not_before.set(Time(now.0.saturating_add(pause)));
    }
}
