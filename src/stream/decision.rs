//! The decision on a request, as the proxy's access logs print it.

use std::rc::Rc;

use admission_core::log::{Decision, Outcome};
use admission_core::metrics::Labels;
use admission_core::outcome::{Reason, Refusal};
use admission_core::usage::{AnswerReader, Form, Served};

use super::{Stream, Taking, labels};
use crate::effect::Effect;
use crate::shared::Shared;

/// Name of the filter state in which access logs find the decisions of a plugin of this name, behind the proxy's own `wasm.`. Each value of
/// filter state costs more than writing all of it into one.
pub fn decisions_of(plugin: &str) -> String {
    format!("{}.decision", if plugin.is_empty() { "sluice" } else { plugin })
}

/// An end other than admission.
pub(super) struct Verdict {
    outcome: Outcome,
    refusal: Option<Refusal>,
    labels: Labels,
}

impl Stream {
    /// Notes whose request it is, and whether the decision binds.
    pub(super) fn note_terms(&mut self, taking: &Taking) {
        let terms = taking.intake.terms();
        self.tenant = Rc::clone(&terms.tenant);
        self.in_shadow = terms.in_shadow();
    }

    /// Notes that it has not come to be admitted, or has not remained so.
    pub(super) fn note_verdict(&mut self, outcome: Outcome, labels: Labels, refusal: Option<&Refusal>) {
        self.verdict = Some(Box::new(Verdict { outcome, refusal: refusal.cloned(), labels }));
    }

    /// Notes of a request that has ended before it could be decided what is known of it by then.
    pub(super) fn note_undecided(&mut self, taking: &Taking) {
        if self.admitted_as.is_none() && self.verdict.is_none() {
            self.note_terms(taking);
            let labels = labels(&taking.intake, taking.intake.pool(), taking.intake.lane(&self.policy));
            self.note_verdict(Outcome::Undecided, labels, None);
        }
    }

    /// Notes of a request that its worker has answered before it was to be refused, what for.
    pub(super) fn note_answered_before(&mut self, taking: &Taking, refused: &Refusal) {
        self.note_undecided(taking);
        if let Some(verdict) = &mut self.verdict {
            verdict.refusal.get_or_insert_with(|| refused.clone());
        }
    }

    /// Why it would have been refused, were it not in shadow.
    pub(super) fn would_reject(&self) -> Option<Reason> {
        let verdict = self.verdict.as_ref().filter(|verdict| verdict.outcome == Outcome::WouldReject)?;
        verdict.refusal.as_ref().map(|refusal| refusal.reason)
    }

    /// Leaves the decision for access logs, which run after the filter; nothing for a request that was not judged.
    pub(super) fn leave_decision(&mut self, served: Option<&Served>, shared: &mut Shared<'_>) {
        if std::mem::replace(&mut self.is_logged, true) {
            return;
        }
        let (outcome, labels, refusal) = match (&self.verdict, &self.admitted_as) {
            (Some(verdict), _) => (verdict.outcome, &verdict.labels, verdict.refusal.as_ref()),
            (None, Some(labels)) => (Outcome::Admitted, labels, None),
            (None, None) => return,
        };
        let reader = self.answer.reader.as_ref().filter(|reader| reader.form() != Form::Encoded);
        let decision = Decision {
            outcome,
            tenant: &self.tenant,
            in_shadow: self.in_shadow,
            pool: labels.pool(),
            lane: labels.lane(),
            model: &labels.model,
            endpoint: labels.endpoint.label(),
            policy: &self.policy.fingerprint,
            refusal,
            estimate: self.answer.estimate,
            prompt: served.and_then(|served| served.prompt),
            cached: served.filter(|served| served.prompt.is_some()).map(|served| served.cached),
            output: served.and_then(|served| served.output),
            complete: reader.map(AnswerReader::ended),
            waited: self.waited,
            ttft: self.answer.ttft(),
        };
        shared.push(Effect::LeaveDecision(decision.encode()));
    }
}
