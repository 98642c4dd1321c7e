//! One request, from its headers to the end of its answer.

use std::rc::Rc;
use std::sync::Arc;

use admission_core::answer;
use admission_core::decide::{Ask, Rules};
use admission_core::intake::{Intake, Next, Wait};
use admission_core::outcome::Refusal;
use admission_core::policy::{Policy, Pool};
use admission_core::usage::UsageReader;
use admission_core::vm::{Admission, Budgets, LeaseId, Request, Usage};
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

use crate::instance::Instance;
use crate::metrics::{ADMITTED, NONE};
use crate::store::SharedData;
use crate::{arrival, host};

/// A stream of the filter. It keeps the policy it began under, whatever configuration comes later.
pub struct Exchange {
    policy: Rc<Policy>,
    instance: Rc<Instance>,
    phase: Phase,
    lease: Option<LeaseId>,
    /// Pool and lane of an admission that its body may still prove wrong, and that is not yet counted.
    uncounted: Option<(Arc<Pool>, String)>,
    budgets: Budgets,
    /// Only where a budget of tokens is to be settled.
    usage: Option<UsageReader>,
    answered: bool,
    /// The worker's answer is an error.
    failed: bool,
}

enum Phase {
    /// Nothing to decide: it has no body or is an upgrade, so it starts no sequence; or all is decided and read.
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
    pub fn new(policy: Rc<Policy>, instance: Rc<Instance>) -> Self {
        Self {
            policy,
            instance,
            phase: Phase::Passing,
            lease: None,
            uncounted: None,
            budgets: Budgets::default(),
            usage: None,
            answered: false,
            failed: false,
        }
    }

    /// Carries out what follows from the part of the request that has just come.
    fn follow(&mut self, mut taking: Box<Taking>, next: Next) -> Action {
        match next {
            Next::GoOn => {}
            Next::Hold => {
                self.phase = Phase::Taking(taking);
                return Action::Pause;
            }
            Next::Decide(ask, pool) => match self.admit(&taking, ask, &pool) {
                Ok(Admission { lease, budgets }) => {
                    self.lease = Some(lease);
                    let lane = taking.intake.arrival().lane(&self.policy).name.clone();
                    self.uncounted = Some((Arc::clone(&pool), lane));
                    self.budgets = budgets;
                    self.usage = budgets.tokens.map(|_| UsageReader::default());
                    taking.intake.admitted();
                    if taking.headers_open {
                        arrival::tag_pool(&pool);
                        arrival::tag_prompt(ask.prompt);
                    }
                    taking.headers_open = false;
                }
                Err(refused) => return self.refuse(&taking, &refused),
            },
            Next::Correct(ask) => {
                if let Err(refused) = self.correct(&taking, &ask)
                    && !self.answered
                {
                    return self.refuse(&taking, &refused);
                }
            }
            // A worker that already answers has decided for itself; an answer cannot be taken back.
            Next::Refuse(_) if self.answered => {}
            Next::Refuse(refused) => return self.refuse(&taking, &refused),
        }
        // What goes on is no longer held, so the next callback begins with new bytes.
        taking.held = 0;
        self.phase = if taking.intake.ended() {
            self.count_admission();
            Phase::Passing
        } else {
            Phase::Taking(taking)
        };
        Action::Continue
    }

    fn admit(&self, taking: &Taking, ask: Ask, pool: &Pool) -> Result<Admission, Refusal> {
        let arrival = taking.intake.arrival();
        let tenant = self.policy.limits(&arrival.tenant);
        let lane = arrival.lane(&self.policy);
        let request = Request {
            ask,
            rules: Rules { tenant, pool },
            tenant_key: &self.policy.tenant_key(&arrival.tenant),
            lane: lane.key,
        };
        self.instance.vm.borrow_mut().admit(&SharedData, &request, host::now())
    }

    fn correct(&self, taking: &Taking, ask: &Ask) -> Result<(), Refusal> {
        let (Some(lease), Some(pool)) = (self.lease, taking.intake.pool()) else { return Ok(()) };
        let tenant = self.policy.limits(&taking.intake.arrival().tenant);
        self.instance.vm.borrow_mut().correct(&SharedData, lease, ask, Rules { tenant, pool }, host::now())
    }

    fn refuse(&mut self, taking: &Taking, refused: &Refusal) -> Action {
        let arrival = taking.intake.arrival();
        self.uncounted = None;
        let pool = taking.intake.pool().map_or(NONE, |pool| &pool.name);
        self.instance.metrics.count(pool, &arrival.lane(&self.policy).name, refused.reason.label());
        let answer = answer::refusal(refused, arrival.api, &self.policy.reject, host::dice());
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
        if let Some((pool, lane)) = self.uncounted.take() {
            self.instance.metrics.count(&pool.name, &lane, ADMITTED);
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
        if self.answered && self.lease.is_none() {
            // The worker has answered what was never decided. Nothing more of the request goes on.
            self.phase = Phase::Taking(taking);
            return Action::Pause;
        }
        let bytes = host::request_body(taking.held, size.saturating_sub(taking.held));
        taking.held = size;
        let next = taking.intake.body(&bytes, end, &self.policy);
        self.follow(taking, next)
    }
}

impl Context for Exchange {}

impl HttpContext for Exchange {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        #[cfg(feature = "test-trap")]
        crate::trap::if_commanded();
        let arrival = arrival::read(&self.policy);
        arrival::strip_spoofed();
        if end_of_stream || arrival::is_upgrade() {
            return Action::Continue;
        }
        arrival::tag_sender(&arrival.tenant, arrival.lane(&self.policy));
        let intake = Intake::new(arrival, &self.policy);
        let (wait, next) = (intake.wait(), intake.headers(&self.policy));
        if wait == Wait::BodyHeld
            && let Some(pool) = intake.pool()
        {
            arrival::tag_pool(pool);
        }
        let headers_open = wait != Wait::BodyHeld;
        let action = self.follow(Box::new(Taking { intake, held: 0, headers_open }), next);
        if wait == Wait::BodyHeld { Action::Continue } else { action }
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
        self.failed |= host::response_header_text(":status").is_none_or(|status| status.as_str() >= "400");
        if self.lease.is_some() {
            for (name, value) in answer::rate_limits(&self.budgets) {
                host::set_response_header(&name, &value);
            }
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
