//! One request, from its headers to the end of its answer.

use std::rc::Rc;
use std::sync::Arc;

use admission_core::arrival::{self, Arrival};
use admission_core::config::Upgrades;
use admission_core::decide::{Ask, Rules};
use admission_core::estimate::Estimator;
use admission_core::intake::{Asked, Intake, Next, Read, Wait};
use admission_core::metrics::{ADMITTED, Labels, Metrics};
use admission_core::outcome::{Reason, Refusal};
use admission_core::platform;
use admission_core::policy::{Class, Lane, Policy, Pool, Route};
use admission_core::request::{Api, Scanner};
use admission_core::routes::{Location, ROUTE_METADATA, Routes};
use admission_core::tags::Tags;
use admission_core::terms::Terms;
use admission_core::units::Millis;
use admission_core::vm::{Admission, LeaseId, Request, Spending, StreamId, Usage};
use proxy_wasm::types::Action;

use crate::instance::Instance;
use crate::store::SharedData;
use crate::{host, passes};

mod answer;
mod decision;
mod passed_on;
mod refuse;
mod turn;

use answer::Answer;
use decision::Verdict;
pub use decision::decisions_of;
use passed_on::{rewrite_body, tags};
use refuse::what_is_left;
use turn::Turn;

/// A request and its answer. It keeps the policy it began under, whatever configuration comes later, unless it waits.
pub struct Stream {
    id: StreamId,
    /// Number of the root that the stream belongs to.
    root: u32,
    policy: Rc<Policy>,
    routes: Rc<Routes>,
    instance: Rc<Instance>,
    phase: Phase,
    lease: Option<LeaseId>,
    /// How long it waited for its turn; `None` where nobody waits.
    waited: Option<Millis>,
    /// Pool that the request was admitted to.
    pool: Option<Arc<Pool>>,
    /// Its body may still prove its admission wrong, so that is not yet counted.
    uncounted: bool,
    spending: Spending,
    answer: Answer,
    /// The worker was asked to report usage that the client has not asked for.
    asked_for_usage: bool,
    answered: bool,
    /// True where the bytes, both ways, are another protocol's.
    is_tunnel: bool,
    /// Usage of a request whose answer is an error.
    failed: Option<Usage>,
    /// Labels under which the request was admitted.
    admitted_as: Option<Labels>,
    api: Api,
    /// Name of its tenant.
    tenant: String,
    in_shadow: bool,
    /// The end that it has come to other than admission.
    verdict: Option<Box<Verdict>>,
    /// Access logs have been left the decision.
    is_logged: bool,
    /// Facts of the body, once all of it has been read.
    asked: Option<Asked>,
    /// Key of the tenant's record.
    tenant_key: String,
}

enum Phase {
    /// Nothing to decide: it has no body, so it starts no sequence; its route is not judged; or all is decided and read.
    Passing,
    /// Its body is on the way.
    Taking(Taking),
    /// It waits for its turn.
    Waiting(Taking, Turn),
    /// Answered by us.
    Refused,
}

/// How a request that could be decided has come out.
enum Entry {
    Admitted,
    Waits(Turn),
}

struct Taking {
    intake: Box<Intake>,
    location: Location,
    /// Bytes that earlier callbacks saw and the proxy still holds.
    held: usize,
    headers_open: bool,
}

impl Stream {
    /// A stream that begins under a policy.
    pub fn new((id, root): (StreamId, u32), policy: Rc<Policy>, routes: Rc<Routes>, instance: Rc<Instance>) -> Self {
        Self {
            id,
            root,
            policy,
            routes,
            instance,
            phase: Phase::Passing,
            lease: None,
            waited: None,
            pool: None,
            uncounted: false,
            spending: Spending::default(),
            answer: Answer::default(),
            asked_for_usage: false,
            answered: false,
            is_tunnel: false,
            failed: None,
            admitted_as: None,
            api: Api::Other,
            tenant: String::new(),
            in_shadow: false,
            verdict: None,
            is_logged: false,
            asked: None,
            tenant_key: String::new(),
        }
    }

    /// Carries out what follows from the part of the request that has just come.
    fn follow(&mut self, mut taking: Taking, read: Read) -> Action {
        let next = match read {
            Read::Weigh(pool) => {
                let estimator = self.estimator(&taking.intake, &pool);
                taking.intake.weigh(&estimator, &self.policy)
            }
            Read::Known(next) => next,
        };
        let refused = match next {
            Next::GoOn => None,
            Next::Hold => {
                self.phase = Phase::Taking(taking);
                return Action::Pause;
            }
            Next::Decide(ask, pool) => match self.admit(&mut taking, ask, pool) {
                Ok(Entry::Admitted) => None,
                Ok(Entry::Waits(turn)) => {
                    self.phase = Phase::Waiting(taking, turn);
                    return Action::Pause;
                }
                Err(refused) => Some(refused),
            },
            Next::Correct(ask) => self.correct(&taking, &ask).err(),
            Next::Refuse(refused) => Some(refused),
        };
        match refused {
            // A worker that already answers has decided for itself; an answer cannot be taken back.
            Some(refused) if !self.answered => return self.refuse(&taking, &refused),
            Some(refused) => self.note_answered_before(&taking, &refused),
            None => {}
        }
        self.go_on(taking);
        Action::Continue
    }

    fn estimator(&self, intake: &Intake, pool: &Pool) -> Estimator {
        self.instance.estimator(pool, intake.model(), &intake.terms().tenant_key)
    }

    /// Lets go on what has come so far.
    fn go_on(&mut self, mut taking: Taking) {
        // What goes on is no longer held, so the next callback begins with new bytes.
        taking.held = 0;
        self.phase = if taking.intake.ended() {
            self.asked = taking.intake.asked();
            let is_whole = self.asked.as_ref().is_none_or(|asked| !asked.streams || asked.sequences > 1);
            if let Some(lease) = self.lease {
                self.instance.vm(|vm| vm.body_sent(&SharedData, lease, is_whole, host::now()));
            }
            if let (Some(pool), Some(labels)) = (&self.pool, &mut self.admitted_as) {
                pool.model_label(taking.intake.model()).clone_into(&mut labels.model);
            }
            self.count_admission();
            Phase::Passing
        } else {
            Phase::Taking(taking)
        };
    }

    /// Admits to a pool, or to the one that takes what it refuses, or lets it wait for the one that time may open. Another pool can only be
    /// told as long as the headers can.
    fn admit(&mut self, taking: &mut Taking, ask: Ask, pool: Arc<Pool>) -> Result<Entry, Refusal> {
        self.answer.estimate = Some(ask);
        let first = match self.try_pool(taking, ask, &pool) {
            Ok(admission) => {
                self.admitted(taking, ask, (Arc::clone(&pool), pool), admission)?;
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
            let ask = taking.intake.ask(&other, &self.estimator(&taking.intake, &other));
            match self.try_pool(taking, ask, &other) {
                Ok(admission) => {
                    self.count_fallback(taking, &pool, first_reason);
                    // Trying a policy moves no traffic, so in shadow the worker is told the pool it came for.
                    let told = if in_shadow { pool } else { Arc::clone(&other) };
                    self.admitted(taking, ask, (other, told), admission)?;
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
            self.count_fallback(taking, &pool, first_reason);
            taking.intake.goes_to(Arc::clone(&for_pool));
        }
        self.wait(taking, ask, for_pool, refused)
    }

    fn count_fallback(&self, taking: &Taking, refusing: &Arc<Pool>, reason: Reason) {
        let refusing = labels(&taking.intake, Some(refusing), taking.intake.lane(&self.policy));
        self.instance.metrics.with(|metrics| metrics.count_fallback(&refusing, reason));
    }

    fn try_pool(&self, taking: &Taking, ask: Ask, pool: &Arc<Pool>) -> Result<Admission, Refusal> {
        let classes = taking.intake.classes(pool, &ask);
        let rules = self.rules(taking, pool, &classes);
        let terms = taking.intake.terms();
        let can_be_steered = taking.headers_open && !terms.in_shadow();
        let (bytes, arrival) = (taking.intake.bytes(), taking.intake.arrival());
        let (tenant_key, deadline, sub) = (&*terms.tenant_key, arrival.ttft_deadline, arrival.sub);
        let request = Request { owner: self.id, ask, rules, tenant_key, can_be_steered, bytes, deadline, sub };
        self.instance.vm(|vm| vm.admit(&SharedData, &request, host::now()))
    }

    fn rules<'a>(&'a self, taking: &'a Taking, pool: &'a Arc<Pool>, classes: &'a [Arc<Class>]) -> Rules<'a> {
        let (lane, lanes) = (taking.intake.lane(&self.policy), self.policy.line_up());
        Rules { tenant: &taking.intake.terms().limits, pool, lane, lanes, classes }
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
        // Why: a worker may answer a request whose body still waits here, and nothing is evicted in shadow.
        if self.answered || taking.intake.terms().in_shadow() {
            self.instance.vm(|vm| vm.first_byte(&SharedData, lease));
        }
        self.waited = self.waited.or(lane.queue.is_some().then_some(Millis(0)));
        self.admitted_as = Some(labels(&taking.intake, Some(&pool), &lane));
        self.note_terms(taking);
        (self.uncounted, self.api) = (true, taking.intake.arrival().api);
        self.answer.admit(ask, host::now());
        self.spending = spending;
        self.tenant_key.clone_from(&taking.intake.terms().tenant_key);
        self.pool = Some(Arc::clone(&pool));
        taking.intake.admitted(pool);
        if taking.headers_open {
            let known = tags(&self.policy, &taking.intake, Some(&lane), Some(&told));
            host::tag(&Tags { estimate: Some(&ask), endpoint: endpoint.as_ref(), ..known });
            self.asked_for_usage = rewrite_body(taking, &self.policy)?;
        }
        taking.headers_open = false;
        Ok(())
    }

    fn correct(&mut self, taking: &Taking, ask: &Ask) -> Result<(), Refusal> {
        let (Some(lease), Some(pool)) = (self.lease, taking.intake.pool()) else { return Ok(()) };
        let classes = taking.intake.classes(pool, ask);
        let rules = self.rules(taking, pool, &classes);
        let corrected = self.instance.vm(|vm| vm.correct(&SharedData, lease, ask, rules, host::now()))?;
        if let Some(spending) = corrected {
            self.spending = spending;
        }
        self.answer.correct(ask);
        Ok(())
    }

    /// Gives back what the request holds. Whatever ends it comes here at least once, and only the first time counts.
    fn release(&mut self) {
        self.release_as(self.usage());
    }

    fn count_admission(&mut self) {
        if let (true, Some(labels)) = (std::mem::take(&mut self.uncounted), &self.admitted_as) {
            self.instance.metrics.with(|metrics| metrics.count(labels, ADMITTED));
        }
    }

    fn release_as(&mut self, usage: Usage) {
        self.count_admission();
        if let Some(lease) = self.lease.take() {
            self.instance.vm(|vm| vm.release(&SharedData, lease, usage, host::now()));
        }
    }

    /// A part of the body has come.
    pub fn request_body(&mut self, size: usize, end: bool) -> Action {
        let mut taking = match std::mem::replace(&mut self.phase, Phase::Passing) {
            Phase::Taking(taking) => taking,
            Phase::Waiting(mut taking, turn) => {
                taking.held = size;
                self.phase = Phase::Waiting(taking, turn);
                return Action::Pause;
            }
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
        let read = taking.intake.body(&bytes, end, &self.policy);
        self.follow(taking, read)
    }

    /// Says whether another filter of the same namespace has judged the request; two that do would have it wait for itself.
    fn is_judged_already(&self) -> bool {
        let namespace = &self.policy.namespace;
        let is_judged = passes::is_judged(namespace);
        if is_judged && self.instance.metrics.with(Metrics::count_judged_twice) {
            log::error!(
                "another filter of the namespace {namespace:?} comes before this one in its chain and has judged the request: this one \
                 lets such requests pass; give it a `namespace` of its own, or take it out"
            );
        }
        is_judged
    }
}

impl Stream {
    /// The request's headers have come.
    pub fn request_headers(&mut self, end_of_stream: bool) -> Action {
        self.answer.expect(host::now());
        let headers = host::request_headers();
        let spoofed = arrival::spoofed(&self.policy, &headers);
        let mut arrival = Arrival::read(&self.policy, &headers, &host::Attributes, &spoofed);
        let is_tagged = passes::is_tagged();
        if is_tagged && self.is_judged_already() {
            return Action::Continue;
        }
        // What a former pass of ours has put on is no caller's.
        let is_platforms = is_tagged || arrival::comes_from_trusted(&self.policy, &host::Attributes);
        arrival.spoofed &= !is_platforms;
        if is_platforms && arrival::has_picker(&self.policy) {
            (arrival.objectives, arrival.sub) = (Vec::new(), None);
        }
        let location = self.routes.locate(&self.policy, &host::Attributes);
        let route = self.route(&arrival, &location);
        let (is_tunnel, has_body_too) = (arrival::is_tunnel(&headers), arrival::has_body_too(&headers));
        spoofed.iter().for_each(|name| host::remove_request_header(name));
        let passes = is_tunnel && route.upgrades == Some(Upgrades::Pass);
        if end_of_stream && !is_tunnel || passes || route.enabled == Some(false) {
            return Action::Continue;
        }
        let arrival = arrival.on(&route);
        let mut terms = Terms::of(&self.policy, &arrival, &route);
        terms.upgrades &= !(is_tunnel && has_body_too);
        let lane_needs_model = terms.lane_needs_model(&self.policy);
        self.is_tunnel = is_tunnel;
        passes::mark(&self.policy.namespace);
        let intake = if is_tunnel {
            Intake::of_tunnel(arrival, terms, &self.policy)
        } else {
            Intake::new(arrival, terms, &self.policy, Scanner::sampling(self.instance.next_seed()))
        };
        let (wait, read) = (intake.wait(), intake.headers());
        let headers_open = wait != Wait::BodyHeld;
        if !headers_open {
            let lane = (!lane_needs_model).then(|| intake.lane(&self.policy));
            host::tag(&tags(&self.policy, &intake, lane, intake.pool()));
        }
        let action = self.follow(Taking { intake, location, held: 0, headers_open }, read);
        if headers_open { action } else { Action::Continue }
    }

    /// Rules of the request's route. Mistakes in the route's own metadata are logged, once for each content.
    fn route(&self, arrival: &Arrival, location: &Location) -> Route {
        let found = self.routes.find(&self.policy, arrival, location);
        if found.is_unread {
            self.instance.metrics.with(Metrics::count_bad_route);
        }
        for problem in found.problems {
            log::error!("the metadata `{ROUTE_METADATA}` of a route is left aside: {problem}");
        }
        found.route
    }

    /// The request's trailers have come, which end its body.
    pub fn request_trailers(&mut self) -> Action {
        match &self.phase {
            Phase::Taking(taking) => self.request_body(taking.held, true),
            Phase::Passing => Action::Continue,
            Phase::Waiting(..) | Phase::Refused => Action::Pause,
        }
    }

    /// The answer's headers have come.
    pub fn response_headers(&mut self) {
        self.answered = true;
        if self.lease.is_none() && self.would_reject().is_none() {
            return;
        }
        let mut headers = host::response_headers();
        let status = headers.text(":status").unwrap_or_default().into_owned();
        if status.is_empty() || status.as_str() >= "400" {
            self.failed = Some(Usage::of_error(&host::answer_detail()));
        }
        if let Some(lease) = self.lease {
            self.instance.vm(|vm| vm.first_byte(&SharedData, lease));
            let now = host::now();
            self.note_status(lease, &status, now);
            for (name, value) in what_is_left(&self.spending.at(now), self.api) {
                headers.set(name, value);
            }
            self.answer_begins(&mut headers, now);
        }
        if let Some(reason) = self.would_reject() {
            headers.set(platform::WOULD_REJECT, reason.label().to_owned());
        }
        host::set_response_headers(&headers);
    }

    /// A part of the answer has come.
    pub fn response_body(&mut self, size: usize, end: bool) -> Action {
        self.answer_goes_on(size, end)
    }

    /// The answer's trailers have come, which end its body.
    pub fn response_trailers(&mut self) {
        self.answer_has_trailers();
    }

    /// The stream has ended, however it did.
    pub fn end(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Passing) {
            Phase::Waiting(taking, turn) => self.leaves(&taking, &turn),
            Phase::Taking(taking) => self.note_undecided(&taking),
            Phase::Passing | Phase::Refused => {}
        }
        self.answer_ends();
        self.release();
    }
}

fn labels(intake: &Intake, pool: Option<&Arc<Pool>>, lane: &Arc<Lane>) -> Labels {
    Labels::of(pool, lane, intake.model(), intake.arrival().api)
}
