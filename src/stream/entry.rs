//! Entry of a request that can be decided: to its pool, to the one that takes what that refuses, or into a queue.

use std::rc::Rc;
use std::sync::Arc;

use admission_core::ask::Ask;
use admission_core::decide::Rules;
use admission_core::outcome::{Reason, Refusal};
use admission_core::policy::{Class, Pool};
use admission_core::tags::Tags;
use admission_core::units::Millis;
use admission_core::vm::{Admission, Request};

use super::passed_on::{rewrite_body, tags};
use super::turn::Turn;
use super::{Stream, Taking, estimator, labels};
use crate::effect::Effect;
use crate::shared::Shared;

/// Outcome of a request that could be decided, unless it is refused.
pub(super) enum Entry {
    /// The request has been let in.
    Admitted,
    /// The request waits in line.
    Waits(Turn),
}

impl Stream {
    /// Admits to a pool, or to the one that takes what it refuses, or lets it wait for the one that time may open. Another pool can be taken only
    /// while the headers can still name it.
    pub(super) fn admit(
        &mut self,
        taking: &mut Taking,
        ask: Ask,
        pool: Arc<Pool>,
        shared: &mut Shared<'_>,
    ) -> Result<Entry, Refusal> {
        self.answer.estimate = Some(ask);
        let first = match self.try_pool(taking, ask, &pool, shared) {
            Ok(admission) => {
                self.admitted(taking, ask, Arc::clone(&pool), pool, admission, shared)?;
                return Ok(Entry::Admitted);
            }
            Err(refused) => refused,
        };
        let in_shadow = taking.intake.terms().in_shadow();
        let (first_reason, mut refusing, mut reason) = (first.reason, Arc::clone(&pool), first.reason);
        let mut best = (ask, Arc::clone(&pool), first);
        while taking.headers_open
            && let Some(other) = taking.intake.instead_of(&refusing, reason, &self.policy).cloned()
        {
            let ask = taking.intake.ask(&other, &estimator(&taking.intake, &other, shared));
            match self.try_pool(taking, ask, &other, shared) {
                Ok(admission) => {
                    self.count_fallback(taking, &pool, first_reason, shared);
                    // Trying a policy moves no traffic, so in shadow the tags name the pool that the request came for.
                    let named = if in_shadow { pool } else { Arc::clone(&other) };
                    self.admitted(taking, ask, other, named, admission, shared)?;
                    return Ok(Entry::Admitted);
                }
                Err(refused) => {
                    (refusing, reason) = (Arc::clone(&other), refused.reason);
                    if best.1.is_worse(&best.2, &other, &refused) {
                        best = (ask, other, refused);
                    }
                }
            }
        }
        let (ask, for_pool, refused) = best;
        self.answer.estimate = Some(ask);
        if !Arc::ptr_eq(&for_pool, &pool) && !in_shadow {
            self.count_fallback(taking, &pool, first_reason, shared);
            taking.intake.goes_to(Arc::clone(&for_pool));
        }
        self.wait(taking, ask, for_pool, refused, shared)
    }

    fn count_fallback(&self, taking: &Taking, refusing: &Arc<Pool>, reason: Reason, shared: &mut Shared<'_>) {
        let refusing = labels(&taking.intake, Some(refusing), taking.intake.lane(&self.policy));
        shared.metrics.count_fallback(&refusing, reason);
    }

    fn try_pool(
        &self,
        taking: &Taking,
        ask: Ask,
        pool: &Arc<Pool>,
        shared: &mut Shared<'_>,
    ) -> Result<Admission, Refusal> {
        let classes = taking.intake.classes(pool, &ask);
        let rules = self.rules(taking, pool, &classes);
        let terms = taking.intake.terms();
        let can_be_steered = taking.headers_open && !terms.in_shadow();
        let (bytes, arrival) = (taking.intake.bytes(), taking.intake.arrival());
        let (tenant_key, deadline, sub) = (&*terms.tenant_key, arrival.ttft_deadline, arrival.sub);
        let request = Request { owner: self.id, ask, rules, tenant_key, can_be_steered, bytes, deadline, sub };
        shared.vm.admit(shared.env.store(), &request, shared.env.now())
    }

    fn rules<'a>(&'a self, taking: &'a Taking, pool: &'a Arc<Pool>, classes: &'a [Arc<Class>]) -> Rules<'a> {
        let (lane, lanes) = (taking.intake.lane(&self.policy), self.policy.line_up());
        Rules { tenant: &taking.intake.terms().limits, pool, lane, lanes, classes }
    }

    /// Notes an admission: to the first of two pools, while worker and routes get the name of the second.
    pub(super) fn admitted(
        &mut self,
        taking: &mut Taking,
        ask: Ask,
        pool: Arc<Pool>,
        named: Arc<Pool>,
        admission: Admission,
        shared: &mut Shared<'_>,
    ) -> Result<(), Refusal> {
        let Admission { lease, endpoint, spending } = admission;
        self.lease = Some(lease);
        let lane = Arc::clone(taking.intake.lane(&self.policy));
        // Why: a worker may answer a request whose body still waits here, and nothing is evicted in shadow.
        if self.answered || taking.intake.terms().in_shadow() {
            shared.vm.first_byte(shared.env.store(), lease);
        }
        self.waited = self.waited.or(lane.queue.is_some().then_some(Millis(0)));
        self.admitted_as = Some(labels(&taking.intake, Some(&pool), &lane));
        self.note_terms(taking);
        (self.uncounted, self.api) = (true, taking.intake.arrival().api);
        self.answer.admit(ask, shared.env.now());
        self.spending = spending;
        self.tenant_key = Rc::clone(&taking.intake.terms().tenant_key);
        self.pool = Some(Arc::clone(&pool));
        taking.intake.admitted(pool);
        if taking.headers_open {
            let known = tags(&self.policy, &taking.intake, Some(&lane), Some(&named));
            let endpoint = endpoint.map(|endpoint| endpoint.header);
            shared.push(Effect::Tag(Tags { estimate: Some(ask), endpoint, ..known }));
            self.asked_for_usage = rewrite_body(taking, &self.policy, shared)?;
        }
        taking.headers_open = false;
        Ok(())
    }

    /// Corrects what the request holds to what its body has shown.
    pub(super) fn correct(&mut self, taking: &Taking, ask: &Ask, shared: &mut Shared<'_>) -> Result<(), Refusal> {
        let (Some(lease), Some(pool)) = (self.lease, taking.intake.pool()) else { return Ok(()) };
        let classes = taking.intake.classes(pool, ask);
        let rules = self.rules(taking, pool, &classes);
        let corrected = shared.vm.correct(shared.env.store(), lease, ask, rules, shared.env.now())?;
        if let Some(spending) = corrected {
            self.spending = spending;
        }
        self.answer.correct(ask);
        Ok(())
    }
}
