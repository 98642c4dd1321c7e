//! A request that waits for its turn, and what its turn, another policy or a more urgent request makes of it.

use std::rc::Rc;
use std::sync::Arc;

use admission_core::ask::Ask;
use admission_core::log::Outcome;
use admission_core::metrics::{ADMITTED, LEFT};
use admission_core::outcome::{Detail, Reason, Refusal, Retry};
use admission_core::policy::{Policy, Pool};
use admission_core::queue::{Ticket, Waiter};
use admission_core::routes::Routes;
use admission_core::terms::Terms;
use admission_core::units::{Millis, Time};
use admission_core::vm::{Admission, Joined, Usage};
use proxy_wasm::types::Action;

use super::{Entry, Phase, Stream, Taking, estimator, labels};
use crate::effect::Effect;
use crate::shared::Shared;

/// A place in line.
pub(super) struct Turn {
    pub(super) ticket: Ticket,
    pub(super) ask: Ask,
    pub(super) pool: Arc<Pool>,
    pub(super) since: Time,
}

impl Stream {
    /// Lets a request wait that was refused for something that passes.
    pub(super) fn wait(
        &mut self,
        taking: &mut Taking,
        ask: Ask,
        pool: Arc<Pool>,
        refused: Refusal,
        shared: &mut Shared<'_>,
    ) -> Result<Entry, Refusal> {
        if taking.intake.terms().in_shadow() || !taking.intake.could_wait() {
            return Err(refused);
        }
        let now = shared.env.now();
        let waiter = self.waiter(taking, ask, &pool, now);
        let reason = refused.reason;
        match shared.vm.enqueue(shared.env.store(), waiter, refused, now)? {
            Joined::Started(admission) => {
                self.admitted(taking, ask, Arc::clone(&pool), pool, admission, shared)?;
                Ok(Entry::Admitted)
            }
            Joined::Waiting(ticket) => {
                let labels = labels(&taking.intake, Some(&pool), taking.intake.lane(&self.policy));
                shared.metrics.count_waiting(&labels, reason);
                shared.has_waiter(self.root);
                Ok(Entry::Waits(Turn { ticket, ask, pool, since: now }))
            }
        }
    }

    fn waiter(&self, taking: &Taking, ask: Ask, pool: &Arc<Pool>, arrived: Time) -> Waiter {
        let terms = taking.intake.terms();
        Waiter {
            owner: self.id,
            ask,
            limits: Arc::clone(&terms.limits),
            pool: Arc::clone(pool),
            classes: taking.intake.classes(pool, &ask),
            lane: Arc::clone(taking.intake.lane(&self.policy)),
            lanes: Arc::clone(self.policy.line_up()),
            tenant_key: Rc::clone(&terms.tenant_key),
            can_be_steered: taking.headers_open,
            bytes: taking.intake.bytes(),
            kept_bytes: taking.intake.kept_bytes(),
            deadline: taking.intake.arrival().ttft_deadline,
            sub: taking.intake.arrival().sub,
            arrived,
        }
    }

    /// The caller has left while it waited.
    pub(super) fn leaves(&mut self, taking: &Taking, turn: &Turn, shared: &mut Shared<'_>) {
        let now = shared.env.now();
        shared.vm.leave(shared.env.store(), turn.ticket, now);
        let labels = labels(&taking.intake, Some(&turn.pool), taking.intake.lane(&self.policy));
        shared.metrics.count(&labels, LEFT);
        shared.metrics.record_wait(&labels, LEFT, now.since(turn.since));
        self.waited = Some(now.since(turn.since));
        self.note_terms(taking);
        self.note_verdict(Outcome::Left, labels, None);
    }

    /// Takes a request that waits out of its phase. Another phase stays as it is.
    // Why: a new policy is offered to every stream, and most of these do not wait.
    fn take_waiting(&mut self) -> Option<(Taking, Turn)> {
        match std::mem::replace(&mut self.phase, Phase::Passing) {
            Phase::Waiting(taking, turn) => Some((taking, turn)),
            other => {
                self.phase = other;
                None
            }
        }
    }
}

/// Acts of root callbacks on a stream, which is the one that the proxy acts on meanwhile; but for [`Stream::renew`].
impl Stream {
    /// Its turn has come.
    pub fn start(&mut self, admission: Admission, waited: Millis, shared: &mut Shared<'_>) {
        let Some((mut taking, turn)) = self.take_waiting() else {
            // It has ended in the meantime, so what it was given goes back.
            return shared.vm.release(shared.env.store(), admission.lease, Usage::Refused, shared.env.now());
        };
        self.waited = Some(waited);
        let Turn { ask, pool, .. } = turn;
        if let Err(refused) = self.admitted(&mut taking, ask, Arc::clone(&pool), pool, admission, shared) {
            self.refuse(&mut taking, &refused, shared);
            return;
        }
        if let Some(labels) = &self.admitted_as {
            shared.metrics.record_wait(labels, ADMITTED, waited);
        }
        self.go_on(taking, shared);
        shared.push(Effect::Resume);
    }

    /// It has waited for nothing.
    pub fn give_up(&mut self, refused: &Refusal, shared: &mut Shared<'_>) {
        if let Some((mut taking, turn)) = self.take_waiting() {
            let waited = shared.env.now().since(turn.since);
            self.waited = Some(waited);
            let labels = labels(&taking.intake, Some(&turn.pool), taking.intake.lane(&self.policy));
            shared.metrics.record_wait(&labels, refused.reason.label(), waited);
            // A worker that already answers a request whose body is held back has decided for itself.
            if self.answered {
                self.note_answered_before(&taking, refused);
                self.go_on(taking, shared);
                return shared.push(Effect::Resume);
            }
            // A policy that has come meanwhile may have put it into shadow, where nothing is refused.
            if self.refuse(&mut taking, refused, shared) == Action::Continue {
                shared.push(Effect::Resume);
            }
        }
    }

    /// It gives way to a request of a higher lane.
    pub fn evict(&mut self, shared: &mut Shared<'_>) {
        let Some(lease) = self.lease.filter(|_| !self.answered) else { return };
        self.count_admission(shared);
        let refused = shared.vm.evicted(shared.env.store(), lease, shared.env.now());
        if let Some(labels) = self.admitted_as.take() {
            shared.metrics.count_evicted(&labels);
            self.note_verdict(Outcome::Evicted, labels, Some(&refused));
        }
        self.release_as(Usage::Refused, shared);
        self.respond(&refused, self.api, &self.tenant_key, self.spending.rates(), shared);
        self.phase = Phase::Refused;
    }

    /// Another policy has come while it waits: it is held to that one from now on.
    pub fn renew(
        &mut self,
        policy: &Rc<Policy>,
        routes: &Rc<Routes>,
        shared: &mut Shared<'_>,
    ) -> Option<(Ticket, Result<Box<Waiter>, Refusal>)> {
        let (mut taking, mut turn) = self.take_waiting()?;
        (self.policy, self.routes) = (Rc::clone(policy), Rc::clone(routes));
        let arrival = taking.intake.arrival();
        let terms = Terms::of(policy, arrival, &self.route(arrival, &taking.location, shared));
        let ticket = turn.ticket;
        let renewed = match taking.intake.renew(terms, policy) {
            Some(pool) => {
                let ask = taking.intake.ask(&pool, &estimator(&taking.intake, &pool, shared));
                let waiter = self.waiter(&taking, ask, &pool, turn.since);
                (turn.ask, turn.pool) = (ask, pool);
                self.answer.estimate = Some(ask);
                Ok(Box::new(waiter))
            }
            None => {
                let detail = Detail::Fixed("the configuration has changed while it waited");
                Err(Refusal { reason: Reason::UnknownModel, limit: None, detail, retry: Retry::Never, place: None })
            }
        };
        self.phase = Phase::Waiting(taking, turn);
        Some((ticket, renewed))
    }
}
