//! One request, from its headers to the end of its answer.

use std::rc::Rc;
use std::sync::Arc;

use admission_core::arrival::{self, Arrival};
use admission_core::attributes::{AnswerAttributes, RequestAttributes};
use admission_core::config::Upgrades;
use admission_core::estimate::Estimator;
use admission_core::headers::Headers;
use admission_core::intake::{Asked, Intake, Next, Read, Wait};
use admission_core::metrics::{ADMITTED, Labels};
use admission_core::platform;
use admission_core::policy::{Lane, Policy, Pool, Route};
use admission_core::request::{Api, Scanner};
use admission_core::routes::{Location, ROUTE_METADATA, Routes};
use admission_core::stream::StreamId;
use admission_core::terms::Terms;
use admission_core::units::Millis;
use admission_core::vm::{LeaseId, Spending, Usage};
use proxy_wasm::types::Action;

use crate::effect::Effect;
use crate::passes;
use crate::shared::Shared;

mod answer;
mod decision;
mod entry;
mod kept;
mod passed_on;
mod refuse;
mod turn;

use answer::Answer;
use decision::Verdict;
pub use decision::decisions_of;
use entry::Entry;
use kept::Kept;
use passed_on::tags;
use refuse::what_is_left;
use turn::Turn;

/// A request and its answer. It keeps the policy it began under, whatever configuration comes later, unless it waits.
pub struct Stream {
    id: StreamId,
    /// Number of the root that the stream belongs to.
    root: u32,
    policy: Rc<Policy>,
    routes: Rc<Routes>,
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
    tenant: Rc<str>,
    in_shadow: bool,
    /// The end that it has come to other than admission.
    verdict: Option<Box<Verdict>>,
    /// Access logs have been left the decision.
    is_logged: bool,
    /// Facts of the body, once all of it has been read.
    asked: Option<Asked>,
    /// Key of the tenant's record.
    tenant_key: Rc<str>,
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

struct Taking {
    intake: Box<Intake>,
    location: Location,
    /// Bytes that earlier callbacks saw and the proxy still holds.
    held: usize,
    headers_open: bool,
    kept: Kept,
}

impl Stream {
    /// A stream that begins under a policy.
    pub fn new(id: StreamId, root: u32, policy: Rc<Policy>, routes: Rc<Routes>) -> Self {
        Self {
            id,
            root,
            policy,
            routes,
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
            tenant: Rc::default(),
            in_shadow: false,
            verdict: None,
            is_logged: false,
            asked: None,
            tenant_key: Rc::default(),
        }
    }

    /// Carries out what follows from the part of the request that has just come.
    fn follow(&mut self, mut taking: Taking, read: Read, shared: &mut Shared<'_>) -> Action {
        let next = match read {
            Read::Weigh(pool) => {
                let estimator = estimator(&taking.intake, &pool, shared);
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
            Next::Decide(ask, pool) => match self.admit(&mut taking, ask, pool, shared) {
                Ok(Entry::Admitted) => None,
                Ok(Entry::Waits(turn)) => {
                    self.phase = Phase::Waiting(taking, turn);
                    return Action::Pause;
                }
                Err(refused) => Some(refused),
            },
            Next::Correct(ask) => self.correct(&taking, &ask, shared).err(),
            Next::Refuse(refused) => Some(refused),
        };
        match refused {
            // A worker that already answers has decided for itself; an answer cannot be taken back.
            Some(refused) if !self.answered => return self.refuse(&mut taking, &refused, shared),
            Some(refused) => self.note_answered_before(&taking, &refused),
            None => {}
        }
        self.go_on(taking, shared);
        Action::Continue
    }

    /// Lets go on what has come so far.
    fn go_on(&mut self, mut taking: Taking, shared: &mut Shared<'_>) {
        // What goes on is no longer held, so the next callback begins with new bytes.
        taking.held = 0;
        taking.kept.put_back(shared);
        self.phase = if taking.intake.ended() {
            self.asked = taking.intake.asked();
            let is_whole = self.asked.as_ref().is_none_or(|asked| !asked.streams || asked.sequences > 1);
            if let Some(lease) = self.lease {
                shared.vm.body_sent(shared.env.store(), lease, is_whole, shared.env.now());
            }
            if let (Some(pool), Some(labels)) = (&self.pool, &mut self.admitted_as) {
                pool.model_label(taking.intake.model()).clone_into(&mut labels.model);
            }
            self.count_admission(shared);
            Phase::Passing
        } else {
            Phase::Taking(taking)
        };
    }

    /// Gives back what the request holds. Whatever ends it comes here at least once, and only the first time counts.
    fn release(&mut self, shared: &mut Shared<'_>) {
        self.release_as(self.usage(), shared);
    }

    fn count_admission(&mut self, shared: &mut Shared<'_>) {
        if let (true, Some(labels)) = (std::mem::take(&mut self.uncounted), &self.admitted_as) {
            shared.metrics.count(labels, ADMITTED);
        }
    }

    fn release_as(&mut self, usage: Usage, shared: &mut Shared<'_>) {
        self.count_admission(shared);
        if let Some(lease) = self.lease.take() {
            shared.vm.release(shared.env.store(), lease, usage, shared.env.now());
        }
    }

    /// Offset in what the proxy holds of the body from which bytes are read; `None` where none are.
    pub fn body_read_from(&self) -> Option<usize> {
        match &self.phase {
            Phase::Taking(taking) if !self.was_answered_undecided(taking) => Some(taking.held),
            _ => None,
        }
    }

    /// Says whether the worker has answered a request that was never decided. Nothing more of that goes on.
    fn was_answered_undecided(&self, taking: &Taking) -> bool {
        self.answered && self.lease.is_none() && !taking.intake.terms().in_shadow()
    }

    /// New bytes of the body have come, with which the proxy holds `size` of it; `end` with the last.
    pub fn request_body(&mut self, bytes: Vec<u8>, size: usize, end: bool, shared: &mut Shared<'_>) -> Action {
        let action = match std::mem::replace(&mut self.phase, Phase::Passing) {
            Phase::Taking(mut taking) if !self.was_answered_undecided(&taking) => {
                taking.held = size;
                taking.find_room(&bytes, self.answered);
                let read = taking.intake.body(&bytes, end, &self.policy);
                self.follow(taking, read, shared)
            }
            Phase::Passing => Action::Continue,
            Phase::Waiting(mut taking, turn) => {
                taking.held = size;
                self.phase = Phase::Waiting(taking, turn);
                Action::Pause
            }
            stays @ (Phase::Taking(_) | Phase::Refused) => {
                self.phase = stays;
                Action::Pause
            }
        };
        if action == Action::Pause {
            self.keep_body(bytes, shared);
        }
        action
    }

    /// Says whether another filter of the same namespace has judged the request; two that do would have it wait for itself.
    fn is_judged_already(&self, attributes: &dyn RequestAttributes, shared: &mut Shared<'_>) -> bool {
        let namespace = &self.policy.namespace;
        let is_judged = passes::is_judged(namespace, attributes);
        if is_judged && shared.metrics.count_judged_twice() {
            shared.push(Effect::LogError(format!(
                "another filter of the namespace {namespace:?} comes before this one in its chain and has judged the request: this one \
                 lets such requests pass; give it a `namespace` of its own, or take it out"
            )));
        }
        is_judged
    }
}

impl Stream {
    /// The request's headers have come.
    pub fn request_headers(
        &mut self,
        headers: &Headers,
        attributes: &dyn RequestAttributes,
        end_of_stream: bool,
        shared: &mut Shared<'_>,
    ) -> Action {
        self.answer.arrive(shared.env.now());
        let spoofed = arrival::spoofed(&self.policy, headers);
        let mut arrival = Arrival::read(&self.policy, headers, attributes, &spoofed);
        let is_tagged = passes::is_tagged(attributes);
        if is_tagged && self.is_judged_already(attributes, shared) {
            return Action::Continue;
        }
        // What a former pass of ours has put on is no caller's.
        let is_platforms = is_tagged || arrival::comes_from_trusted(&self.policy, attributes);
        arrival.spoofed &= !is_platforms;
        if is_platforms && arrival::has_picker(&self.policy) {
            (arrival.objectives, arrival.sub) = (Vec::new(), None);
        }
        let location = self.routes.locate(&self.policy, attributes);
        let route = self.route(&arrival, &location, shared);
        let (is_tunnel, has_body_too) = (arrival::is_tunnel(headers), arrival::has_body_too(headers));
        if !spoofed.is_empty() {
            shared.push(Effect::RemoveHeaders(spoofed));
        }
        let passes = is_tunnel && route.upgrades == Some(Upgrades::Pass);
        if end_of_stream && !is_tunnel || passes || route.enabled == Some(false) {
            return Action::Continue;
        }
        let arrival = arrival.on(&route);
        let mut terms = Terms::of(&self.policy, &arrival, &route);
        terms.upgrades &= !(is_tunnel && has_body_too);
        let lane_needs_model = terms.lane_needs_model(&self.policy);
        self.is_tunnel = is_tunnel;
        shared.push(Effect::MarkJudged);
        let intake = if is_tunnel {
            Intake::of_tunnel(arrival, terms, &self.policy)
        } else {
            Intake::new(arrival, terms, &self.policy, Scanner::sampling(shared.seeds.next(shared.env)))
        };
        let (wait, read) = (intake.wait(), intake.headers());
        let headers_open = wait != Wait::BodyHeld;
        if !headers_open {
            let lane = (!lane_needs_model).then(|| intake.lane(&self.policy));
            shared.push(Effect::Tag(tags(&self.policy, &intake, lane, intake.pool())));
        }
        let action =
            self.follow(Taking { intake, location, held: 0, headers_open, kept: Kept::default() }, read, shared);
        if headers_open { action } else { Action::Continue }
    }

    /// Rules of the request's route. Mistakes in the route's own metadata are logged, once for each content.
    fn route(&self, arrival: &Arrival, location: &Location, shared: &mut Shared<'_>) -> Route {
        let found = self.routes.find(&self.policy, arrival, location);
        if found.is_unread {
            shared.metrics.count_bad_route();
        }
        for problem in found.problems {
            shared
                .push(Effect::LogError(format!("the metadata `{ROUTE_METADATA}` of a route is left aside: {problem}")));
        }
        found.route
    }

    /// The request's trailers have come, which end its body.
    pub fn request_trailers(&mut self, shared: &mut Shared<'_>) -> Action {
        match &self.phase {
            Phase::Taking(taking) => self.request_body(Vec::new(), taking.held, true, shared),
            Phase::Passing => Action::Continue,
            Phase::Waiting(..) | Phase::Refused => Action::Pause,
        }
    }

    /// The answer's headers have come. Says whether they are to be read and changed, by [`Stream::response_headers`].
    pub fn begin_answer(&mut self) -> bool {
        self.answered = true;
        self.lease.is_some() || self.would_reject().is_some()
    }

    /// Reads the answer's headers and changes them.
    pub fn response_headers(
        &mut self,
        headers: &mut Headers,
        attributes: &dyn AnswerAttributes,
        shared: &mut Shared<'_>,
    ) {
        let status = headers.text(":status").unwrap_or_default().into_owned();
        if status.is_empty() || status.as_str() >= "400" {
            self.failed = Some(Usage::of_error(&attributes.detail()));
        }
        if let Some(lease) = self.lease {
            shared.vm.first_byte(shared.env.store(), lease);
            self.note_status(lease, &status, attributes, shared);
            for (name, value) in what_is_left(&self.spending.at(shared.env.now()), self.api, shared.env) {
                headers.set(name, value);
            }
            self.answer_begins(headers, shared);
        }
        if let Some(reason) = self.would_reject() {
            headers.set(platform::WOULD_REJECT, reason.label().to_owned());
        }
    }

    /// The stream has ended, however it did.
    pub fn end(&mut self, shared: &mut Shared<'_>) {
        match std::mem::replace(&mut self.phase, Phase::Passing) {
            Phase::Waiting(taking, turn) => self.leaves(&taking, &turn, shared),
            Phase::Taking(taking) => self.note_undecided(&taking),
            Phase::Passing | Phase::Refused => {}
        }
        self.answer_ends(shared);
        self.release(shared);
    }
}

/// Estimator of a request to a pool, by what is known of the request.
fn estimator(intake: &Intake, pool: &Pool, shared: &mut Shared<'_>) -> Estimator {
    let tenant_key = &intake.terms().tenant_key;
    shared.vm.estimator(shared.env.store(), pool, intake.model(), tenant_key, shared.env.now())
}

fn labels(intake: &Intake, pool: Option<&Arc<Pool>>, lane: &Arc<Lane>) -> Labels {
    Labels::of(pool, lane, intake.model(), intake.arrival().api)
}
