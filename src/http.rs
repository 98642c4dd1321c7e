//! One request, from its headers to the end of its answer.

use std::rc::Rc;
use std::sync::Arc;

use admission_core::answer;
use admission_core::decide::{Ask, Rules};
use admission_core::intake::{Intake, Next, Wait};
use admission_core::outcome::{Detail, Reason, Refusal, Retry};
use admission_core::policy::{Class, Lane, Policy, Pool};
use admission_core::request::with_priority;
use admission_core::terms::Terms;
use admission_core::usage::UsageReader;
use admission_core::vm::{Admission, LeaseId, Request, Spending, Usage};
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

use crate::instance::Instance;
use crate::metrics::{ADMITTED, Labels};
use crate::routes::Routes;
use crate::store::SharedData;
use crate::{arrival, host};

/// A stream of the filter. It keeps the policy it began under, whatever configuration comes later.
pub struct Exchange {
    policy: Rc<Policy>,
    routes: Rc<Routes>,
    instance: Rc<Instance>,
    phase: Phase,
    lease: Option<LeaseId>,
    /// That it was admitted to.
    pool: Option<Arc<Pool>>,
    /// Of an admission that its body may still prove wrong, and that is not yet counted.
    uncounted: Option<Labels>,
    spending: Spending,
    /// Only where a budget of tokens is to be settled.
    usage: Option<UsageReader>,
    answered: bool,
    /// The worker's answer is an error.
    failed: bool,
    /// Why it would have been refused, were it not in shadow.
    would_reject: Option<Reason>,
}

enum Phase {
    /// Nothing to decide: it has no body or is an upgrade, so it starts no sequence; its route is not judged; or all is
    /// decided and read.
    Passing,
    /// Its body is on the way.
    Taking(Box<Taking>),
    /// Answered by us.
    Refused,
}

struct Taking {
    intake: Intake,
    /// Bytes that earlier callbacks saw and the proxy still holds.
    held: usize,
    headers_open: bool,
}

impl Exchange {
    /// A stream that begins under a policy.
    pub fn new(policy: Rc<Policy>, routes: Rc<Routes>, instance: Rc<Instance>) -> Self {
        Self {
            policy,
            routes,
            instance,
            phase: Phase::Passing,
            lease: None,
            pool: None,
            uncounted: None,
            spending: Spending::default(),
            usage: None,
            answered: false,
            failed: false,
            would_reject: None,
        }
    }

    /// Carries out what follows from the part of the request that has just come.
    fn follow(&mut self, mut taking: Box<Taking>, next: Next) -> Action {
        let refused = match next {
            Next::GoOn => None,
            Next::Hold => {
                self.phase = Phase::Taking(taking);
                return Action::Pause;
            }
            Next::Decide(ask, pool) => self.admit(&mut taking, ask, pool).err(),
            Next::Correct(ask) => self.correct(&taking, &ask).err(),
            Next::Refuse(refused) => Some(refused),
        };
        match refused {
            // A worker that already answers has decided for itself; an answer cannot be taken back.
            Some(refused) if !self.answered => return self.refuse(&taking, &refused),
            _ => {}
        }
        // What goes on is no longer held, so the next callback begins with new bytes.
        taking.held = 0;
        self.phase = if taking.intake.ended() {
            if let (Some(labels), Some(pool)) = (&mut self.uncounted, &self.pool) {
                labels.model = pool.model_label(taking.intake.model());
            }
            self.count_admission();
            Phase::Passing
        } else {
            Phase::Taking(taking)
        };
        Action::Continue
    }

    /// Admits to a pool, or to the one that takes what it refuses. That one can only be told as long as the headers can.
    fn admit(&mut self, taking: &mut Taking, ask: Ask, pool: Arc<Pool>) -> Result<(), Refusal> {
        let first = match self.try_pool(taking, ask, &pool) {
            Ok(admission) => return self.admitted(taking, ask, (Arc::clone(&pool), pool), admission),
            Err(refused) => refused,
        };
        let in_shadow = taking.intake.terms().in_shadow();
        let (mut refusing, mut reason) = (Arc::clone(&pool), first.reason);
        while taking.headers_open
            && let Some((ask, other)) = taking.intake.instead_of(&refusing, reason, &self.policy)
        {
            match self.try_pool(taking, ask, &other) {
                Ok(admission) => {
                    let refusing = labels(&taking.intake, Some(&pool), taking.intake.lane(&self.policy));
                    self.instance.metrics.count_fallback(&refusing, first.reason);
                    // Trying a policy moves no traffic, so in shadow the worker is told the pool it came for.
                    let told = if in_shadow { pool } else { Arc::clone(&other) };
                    return self.admitted(taking, ask, (other, told), admission);
                }
                Err(refused) => (refusing, reason) = (other, refused.reason),
            }
        }
        Err(first)
    }

    fn try_pool(&self, taking: &Taking, ask: Ask, pool: &Pool) -> Result<Admission, Refusal> {
        let classes = taking.intake.classes(pool, &ask);
        let rules = self.rules(taking, pool, &classes);
        let terms = taking.intake.terms();
        let can_be_steered = taking.headers_open && !terms.in_shadow();
        let request = Request { ask, rules, tenant_key: &terms.tenant_key, can_be_steered };
        self.instance.vm.borrow_mut().admit(&SharedData, &request, host::now())
    }

    fn rules<'a>(&'a self, taking: &'a Taking, pool: &'a Pool, classes: &'a [Arc<Class>]) -> Rules<'a> {
        Rules { tenant: &taking.intake.terms().limits, pool, lane: taking.intake.lane(&self.policy), classes }
    }

    /// Under the first of two pools it counts, the second is told to the worker and to the proxy's routes.
    fn admitted(
        &mut self,
        taking: &mut Taking,
        ask: Ask,
        (pool, told): (Arc<Pool>, Arc<Pool>),
        admission: Admission,
    ) -> Result<(), Refusal> {
        let Admission { lease, endpoint, spending } = admission;
        self.lease = Some(lease);
        let lane = Arc::clone(taking.intake.lane(&self.policy));
        self.uncounted = Some(labels(&taking.intake, Some(&pool), &lane));
        self.usage = spending.counts_tokens().then(UsageReader::default);
        self.spending = spending;
        self.pool = Some(Arc::clone(&pool));
        taking.intake.admitted(pool);
        if taking.headers_open {
            tag(&taking.intake, &lane, Some(&told));
            arrival::tag_prompt(ask.prompt);
            if let Some(endpoint) = endpoint {
                arrival::tag_endpoint(&endpoint);
            }
            if self.policy.tag_body && !taking.intake.terms().in_shadow() {
                tag_body(taking, &lane)?;
            }
        }
        taking.headers_open = false;
        Ok(())
    }

    fn correct(&self, taking: &Taking, ask: &Ask) -> Result<(), Refusal> {
        let (Some(lease), Some(pool)) = (self.lease, taking.intake.pool()) else { return Ok(()) };
        let classes = taking.intake.classes(pool, ask);
        let rules = self.rules(taking, pool, &classes);
        self.instance.vm.borrow_mut().correct(&SharedData, lease, ask, rules, host::now())
    }

    /// Refuses, or in shadow only says so.
    fn refuse(&mut self, taking: &Taking, refused: &Refusal) -> Action {
        self.uncounted = None;
        let intake = &taking.intake;
        let lane = intake.lane(&self.policy);
        let labels = labels(intake, intake.pool(), lane);
        if intake.terms().in_shadow() {
            self.instance.metrics.count_would_reject(&labels, refused.reason);
            if taking.headers_open {
                tag(intake, lane, intake.pool());
                arrival::tag_would_reject(refused.reason.label());
            }
            self.would_reject = Some(refused.reason);
            self.release_as(Usage::Refused);
            self.phase = Phase::Passing;
            return Action::Continue;
        }
        self.instance.metrics.count(&labels, refused.reason.label());
        let answer = answer::refusal(refused, intake.arrival().api, &self.policy.reject, host::dice());
        host::respond(&answer);
        self.release_as(Usage::Refused);
        self.phase = Phase::Refused;
        Action::Pause
    }

    /// Gives back what the request holds. Whatever ends it comes here at least once, and only the first time counts.
    fn release(&mut self) {
        let usage = match (self.usage.as_ref().and_then(UsageReader::usage), self.failed) {
            (Some(usage), _) => Usage::Reported(usage.total()),
            (None, true) => Usage::Nothing,
            (None, false) => Usage::AsEstimated,
        };
        self.release_as(usage);
    }

    fn count_admission(&mut self) {
        if let Some(labels) = self.uncounted.take() {
            self.instance.metrics.count(&labels, ADMITTED);
        }
    }

    fn release_as(&mut self, usage: Usage) {
        self.count_admission();
        if let Some(lease) = self.lease.take() {
            self.instance.vm.borrow_mut().release(&SharedData, lease, usage, host::now());
        }
    }

    fn body(&mut self, size: usize, end: bool) -> Action {
        let mut taking = match std::mem::replace(&mut self.phase, Phase::Passing) {
            Phase::Taking(taking) => taking,
            Phase::Passing => return Action::Continue,
            Phase::Refused => {
                self.phase = Phase::Refused;
                return Action::Pause;
            }
        };
        if self.answered && self.lease.is_none() && !taking.intake.terms().in_shadow() {
            // The worker has answered what was never decided. Nothing more of the request goes on.
            self.phase = Phase::Taking(taking);
            return Action::Pause;
        }
        let bytes = host::request_body(taking.held, size.saturating_sub(taking.held));
        taking.held = size;
        let next = taking.intake.body(&bytes, end, &self.policy);
        self.follow(taking, next)
    }

    /// A worker that refuses what it was sent counts as busy until a view knows better.
    fn note_refusal(&self, status: &str) {
        if let Some(pool) = &self.pool
            && matches!(status, "429" | "503")
            && let Some(worker) = host::answering_worker()
        {
            self.instance.vm.borrow_mut().mark(&SharedData, pool, &worker, host::now());
        }
    }
}

/// Tells the worker, and the proxy's routes, all that is known of a request.
fn tag(intake: &Intake, lane: &Lane, pool: Option<&Arc<Pool>>) {
    arrival::tag_tenant(&intake.terms().tenant);
    arrival::tag_lane(lane);
    if let Some(pool) = pool {
        arrival::tag_pool(pool);
    }
}

/// Writes the priority into a body that is held as a whole; workers serve a lower number first. A body of which more is to
/// come goes on as it is.
fn tag_body(taking: &mut Taking, lane: &Lane) -> Result<(), Refusal> {
    let Some(slots) = taking.intake.slots() else { return Ok(()) };
    let body = host::request_body(0, taking.held);
    let Some(tagged) = with_priority(&body, slots, lane.priority.saturating_neg()) else {
        let detail = Detail::Fixed("it names `priority` too often");
        return Err(Refusal { reason: Reason::Malformed, limit: None, detail, retry: Retry::Never });
    };
    host::replace_request_body(taking.held, &tagged);
    if taking.intake.arrival().body_bytes.is_some() {
        host::set_request_header("content-length", &tagged.len().to_string());
    }
    Ok(())
}

fn labels(intake: &Intake, pool: Option<&Arc<Pool>>, lane: &Lane) -> Labels {
    Labels::of(pool.map(Arc::as_ref), lane, intake.model(), intake.arrival().api)
}

impl Context for Exchange {}

impl HttpContext for Exchange {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        #[cfg(feature = "test-trap")]
        crate::trap::if_commanded();
        let spoofed = arrival::spoofed();
        let arrival = arrival::read(&self.policy, &spoofed);
        let route = self.routes.of(&self.policy, &arrival, &self.instance.metrics);
        let is_upgrade = arrival::is_upgrade();
        arrival::strip(&spoofed);
        if end_of_stream || is_upgrade || route.enabled == Some(false) {
            return Action::Continue;
        }
        let terms = Terms::of(&self.policy, &arrival, &route);
        let lane_needs_model = terms.lane_needs_model(&self.policy);
        let intake = Intake::new(arrival, terms, &self.policy);
        let (wait, next) = (intake.wait(), intake.headers());
        let headers_open = wait != Wait::BodyHeld;
        if !headers_open {
            arrival::tag_tenant(&intake.terms().tenant);
            if !lane_needs_model {
                arrival::tag_lane(intake.lane(&self.policy));
            }
            if let Some(pool) = intake.pool() {
                arrival::tag_pool(pool);
            }
        }
        let action = self.follow(Box::new(Taking { intake, held: 0, headers_open }), next);
        if headers_open { action } else { Action::Continue }
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        self.body(size, end_of_stream)
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        match &self.phase {
            Phase::Taking(taking) => self.body(taking.held, true),
            Phase::Passing => Action::Continue,
            Phase::Refused => Action::Pause,
        }
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        self.answered = true;
        let status = host::response_header_text(":status").unwrap_or_default();
        self.failed |= status.is_empty() || status.as_str() >= "400";
        if self.lease.is_some() {
            self.note_refusal(&status);
            for (name, value) in answer::rate_limits(&self.spending.at(host::now())) {
                host::set_response_header(&name, &value);
            }
        }
        if let Some(reason) = self.would_reject {
            host::set_response_header(arrival::WOULD_REJECT, reason.label());
        }
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, _: bool) -> Action {
        if let Some(usage) = &mut self.usage {
            usage.feed(&host::response_body(size));
        }
        Action::Continue
    }

    fn on_log(&mut self) {
        self.release();
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.release();
    }
}
