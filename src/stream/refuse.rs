//! Refusals: how they are counted, and what the caller is answered.

use admission_core::answer::{rate_limits, refusal};
use admission_core::budget::{Budgets, Rates};
use admission_core::log::Outcome;
use admission_core::outcome::{Detail, Refusal};
use admission_core::request::Api;
use admission_core::tags::Tags;
use admission_core::vm::Usage;
use proxy_wasm::types::Action;

use super::passed_on::tags;
use super::{Phase, Stream, Taking, labels};
use crate::effect::Effect;
use crate::env::Env;
use crate::shared::Shared;

impl Stream {
    /// Refuses, or in shadow only says so.
    pub(super) fn refuse(&mut self, taking: &mut Taking, refused: &Refusal, shared: &mut Shared<'_>) -> Action {
        self.uncounted = false;
        self.note_terms(taking);
        let intake = &taking.intake;
        let lane = intake.lane(&self.policy);
        let labels = labels(intake, intake.pool(), lane);
        if intake.terms().in_shadow() {
            let pool = intake.pool();
            let limits = &intake.terms().limits;
            let passes = limits.may_be_waited_for(refused.reason)
                || pool.is_some_and(|pool| pool.may_be_waited_for(refused.reason));
            let outcome = if lane.queue.is_some() && intake.could_wait() && passes {
                shared.metrics.count_would_wait(&labels, refused.reason);
                Outcome::WouldWait
            } else {
                shared.metrics.count_would_reject(&labels, refused.reason);
                Outcome::WouldReject
            };
            if taking.headers_open {
                let would_reject = (outcome == Outcome::WouldReject).then_some(refused.reason);
                shared.push(Effect::Tag(Tags { would_reject, ..tags(&self.policy, intake, Some(lane), pool) }));
            }
            self.note_verdict(outcome, labels, Some(refused));
            self.release_as(Usage::Refused, shared);
            taking.kept.put_back(shared);
            self.phase = Phase::Passing;
            return Action::Continue;
        }
        shared.metrics.count(&labels, refused.reason.label());
        if let Detail::KeptBy(bound) = &refused.detail {
            shared.metrics.count_queue_refusal(&labels, refused.reason, bound.reason);
        }
        self.note_verdict(Outcome::Refused, labels, Some(refused));
        let terms = intake.terms();
        // Before the answer, which says what is left.
        self.release_as(Usage::Refused, shared);
        self.respond(refused, intake.arrival().api, &terms.tenant_key, &terms.limits.rates, shared);
        self.phase = Phase::Refused;
        Action::Pause
    }

    /// Answers with a refusal, and with what is left of the budgets of the request's tenant.
    pub(super) fn respond(
        &self,
        refused: &Refusal,
        api: Api,
        tenant_key: &str,
        rates: &Rates,
        shared: &mut Shared<'_>,
    ) {
        let mut answer = refusal(refused, api, &self.policy.reject, shared.env.random() as u32);
        let budgets = shared.vm.budgets(shared.env.store(), tenant_key, rates, shared.env.now());
        answer.headers.extend(what_is_left(&budgets, api, shared.env));
        shared.push(Effect::Respond(answer));
    }
}

/// Headers that say what is left of budgets to a caller of this API.
pub(super) fn what_is_left(budgets: &Budgets, api: Api, env: &Env) -> Vec<(&'static str, String)> {
    rate_limits(budgets, (api == Api::Messages).then(|| env.time_of_day()))
}
