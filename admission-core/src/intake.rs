//! From the bytes of a request to the moment it is decided.
//!
//! A request waits in one of three places, the first that applies:
//! 1. [`Wait::Unread`]: at the headers, its body unread, when pool and lane are fixed and the size is known, or nothing but
//!    the size could be read. The content length is the estimate; the body is read as it streams through and the lease
//!    corrected at its end.
//! 2. [`Wait::AtHeaders`]: at the headers while the body is read, where the proxy allows that (`header_pause`).
//! 3. [`Wait::BodyHeld`]: its headers have gone on and its body waits.

use std::sync::Arc;

use crate::arrival::Arrival;
use crate::ask::Ask;
use crate::decide::fits_ever;
use crate::estimate::Estimator;
use crate::outcome::{Detail, Reason, Refusal, Retry};
use crate::policy::{Class, Lane, Policy, Pool};
use crate::request::{Api, Broken, Changes, Scanner, Slots};
use crate::terms::Terms;
use crate::units::Tokens;

mod asked;
mod beginning;
mod next;
mod part;
#[cfg(test)]
mod tests;

pub use asked::Asked;
use beginning::Beginning;
pub use next::{Next, Read};
use part::not_in_part;

/// Whatever is asked of it hangs on what it says, which workers may find out and this proxy cannot.
const OTHER_UNICODE: &str = "it is text in UTF-16, in UTF-32 or behind a byte order mark; write it in plain UTF-8";

const IN_BACKGROUND: &str =
    "it asks for `background`, so its worker would go on after it has answered, where no limit sees it; leave that out";

const NO_POOL: &str = "an upgrade names none; its route needs a `pool`";

/// Where a request waits until it is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nowhere: it is decided at once, its body unread.
    Unread,
    /// Headers and body are held.
    AtHeaders,
    /// The body is held.
    BodyHeld,
}

/// Follows one request.
pub struct Intake {
    arrival: Arrival,
    terms: Terms,
    wait: Wait,
    scanner: Scanner,
    pool: Option<Arc<Pool>>,
    /// The pool takes it whatever model it names.
    any_model: bool,
    admitted: bool,
    ended: bool,
    is_tunnel: bool,
    /// Bytes that had come when it was last looked whether they prove it too large.
    looked_at: u64,
    beginning: Beginning,
    /// Most bytes of the body that are held; none where there is no room for them.
    hold_limit: u64,
}

impl Intake {
    /// A request whose headers have come and whose body has not. A long body is counted by samples: `scanner` says where they are taken.
    // Why in a box: the scanner is some thousand bytes long, which would be copied wherever the request is handed on.
    #[must_use]
    pub fn new(arrival: Arrival, terms: Terms, policy: &Policy, scanner: Scanner) -> Box<Self> {
        let pool = terms.pool.as_ref().or(policy.only_pool()).cloned();
        let wait = match &pool {
            Some(pool) if !depends_on_body(pool, &terms, &arrival, policy) => Wait::Unread,
            _ if policy.header_pause => Wait::AtHeaders,
            _ => Wait::BodyHeld,
        };
        Box::new(Self {
            any_model: terms.pool.is_some(),
            arrival,
            terms,
            wait,
            scanner,
            pool,
            admitted: false,
            ended: false,
            is_tunnel: false,
            looked_at: 0,
            beginning: Beginning::default(),
            hold_limit: policy.hold_limit,
        })
    }

    /// A request for another protocol, which has no body: all that its limits can hold it to is that there is one more. It goes to the pool of its
    /// route, or to one that takes any model.
    #[must_use]
    pub fn of_tunnel(arrival: Arrival, terms: Terms, policy: &Policy) -> Box<Self> {
        let mut intake = Self::new(arrival, terms, policy, Scanner::default());
        (intake.arrival.api, intake.arrival.body_bytes) = (Api::Other, None);
        (intake.is_tunnel, intake.any_model, intake.ended) = (true, true, true);
        intake.wait = Wait::Unread;
        intake.pool = intake.pool.take().or_else(|| policy.pool_for("").cloned());
        intake
    }

    /// As read from its headers.
    #[must_use]
    pub fn arrival(&self) -> &Arrival {
        &self.arrival
    }

    /// What it is held to.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The model it names, as far as it has been read.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.scanner.model()
    }

    /// Its lane, as far as its body has been read.
    #[must_use]
    pub fn lane<'a>(&self, policy: &'a Policy) -> &'a Arc<Lane> {
        self.terms.lane(policy, self.model())
    }

    /// The classes of a pool that it belongs to, by what is known of it.
    #[must_use]
    pub fn classes(&self, pool: &Pool, ask: &Ask) -> Vec<Arc<Class>> {
        pool.classes_of(self.model(), ask.longest_prompt)
    }

    /// What the policy wants written into its body, once all of that has been read as JSON, and where. Bodies of other APIs are
    /// given no priority, but what their callers wrote there is replaced: workers may read it.
    #[must_use]
    pub fn rewriting(&self, policy: &Policy) -> Option<(Changes, &Slots)> {
        let whole = self.ended && self.scanner.finish().is_ok();
        if !whole || self.terms.in_shadow() {
            return None;
        }
        let in_openai_form = self.readable() && has_openai_options(self.arrival.api);
        let tagged = policy.tag_body && (in_openai_form || self.names_priority());
        let facts = self.scanner.facts();
        let silent = facts.stream == Some(true) && facts.include_usage != Some(true);
        let changes = Changes {
            priority: tagged.then(|| self.lane(policy).priority.saturating_neg()),
            include_usage: policy.force_usage && in_openai_form && silent,
        };
        (!changes.none()).then(|| (changes, self.scanner.slots()))
    }

    fn names_priority(&self) -> bool {
        self.scanner.slots().names_priority()
    }

    /// Where it waits.
    #[must_use]
    pub fn wait(&self) -> Wait {
        self.wait
    }

    /// The pool it goes to, as soon as that is known.
    #[must_use]
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        self.pool.as_ref()
    }

    /// After the headers.
    #[must_use]
    pub fn headers(&self) -> Read {
        if self.arrival.wrong_key {
            return Next::Refuse(refuse(Reason::UnknownKey, Detail::None)).into();
        }
        if self.is_tunnel && !self.terms.upgrades {
            return Next::Refuse(refuse(Reason::UpgradeRefused, Detail::None)).into();
        }
        match (self.wait, &self.pool) {
            (Wait::Unread, Some(pool)) => Read::Weigh(Arc::clone(pool)),
            (Wait::Unread, None) => Next::Refuse(refuse(Reason::UnknownModel, Detail::Fixed(NO_POOL))).into(),
            _ => Next::Hold.into(),
        }
    }

    /// Says what to do, given the estimator of the pool that [`Read::Weigh`] names.
    pub fn weigh(&mut self, estimator: &Estimator, policy: &Policy) -> Next {
        let Some(pool) = self.pool.clone() else { return Next::GoOn };
        if self.admitted {
            return self.weigh_admitted(&pool, estimator, policy);
        }
        if !self.is_unread() && !self.ended {
            // What was seen may prove too large already; then it must not be let in by a guess.
            let certain = self.certain(&pool, estimator);
            if self.may_fit(&certain, &pool).is_err() {
                return Next::Decide(certain.at_most_what_fits(&self.terms.limits, &pool), pool);
            }
        }
        Next::Decide(self.ask(&pool, estimator), pool)
    }

    /// What the request asks of a pool, by the pool's estimator and what has come of the request.
    #[must_use]
    pub fn ask(&self, pool: &Pool, estimator: &Estimator) -> Ask {
        let ask = if self.is_unread() {
            estimator.from_size(self.bytes(), self.arrival.api, pool)
        } else if self.ended {
            self.whole(pool, estimator)
        } else {
            self.part(pool, estimator)
        };
        ask.at_most_what_fits(&self.terms.limits, pool)
    }

    /// True while the size of the body is all that is known of it.
    fn is_unread(&self) -> bool {
        self.wait == Wait::Unread && self.scanner.bytes() == 0
    }

    /// The pool that takes what `pool` refuses for such a reason.
    #[must_use]
    pub fn instead_of<'a>(&self, pool: &Pool, reason: Reason, policy: &'a Policy) -> Option<&'a Arc<Pool>> {
        policy.pool(pool.fallback_for(reason)?)
    }

    /// The request was admitted, to the pool of [`Next::Decide`] or one instead of it.
    pub fn admitted(&mut self, pool: Arc<Pool>) {
        self.goes_to(pool);
        self.admitted = true;
    }

    /// The request waits for a pool, or is refused by it: that of [`Next::Decide`] or one instead of it.
    pub fn goes_to(&mut self, pool: Arc<Pool>) {
        self.any_model |= self.pool.as_ref().is_some_and(|before| before.name != pool.name);
        self.pool = Some(pool);
    }

    /// All of the body has come.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Whether it could wait for its turn: its caller would, and its body stays with the caller or is held as a whole. A part
    /// of a body that is too long to hold cannot be kept back any longer. In shadow nothing waits all the same.
    #[must_use]
    pub fn could_wait(&self) -> bool {
        !self.arrival.no_queue && (self.wait == Wait::Unread || self.ended && self.hold_limit > 0)
    }

    /// There is no room to hold its body: it is decided by what has come of that, and waits for nothing.
    pub fn hold_no_more(&mut self) {
        self.hold_limit = 0;
    }

    /// Size of its body, as far as it is known.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.arrival.body_bytes.unwrap_or_else(|| self.scanner.bytes())
    }

    /// Bytes of its body that the proxy may hold while it waits: what has come of one that is held as a whole, else at most as much as is
    /// ever held.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        match (self.ended, self.arrival.body_bytes) {
            (true, _) => self.scanner.bytes(),
            (false, size) => size.unwrap_or(u64::MAX).min(self.hold_limit),
        }
    }

    /// Holds a request that waits to the terms of another policy. Returns the pool of that policy that it goes to, which has the name of its own
    /// or is the one that the terms name; `None` when there is neither.
    pub fn renew(&mut self, terms: Terms, policy: &Policy) -> Option<Arc<Pool>> {
        let name = self.pool.as_ref().map(|pool| pool.name.as_str());
        let same = name.and_then(|name| policy.pool(name));
        let pool = terms.pool.as_ref().or(same).or(policy.only_pool()).cloned()?;
        self.terms = terms;
        self.pool = Some(Arc::clone(&pool));
        Some(pool)
    }

    /// After the next bytes of the body; `end` with the last of them, which may be none.
    ///
    /// A body is also at its end when all the bytes are there that its headers promised: a worker that has them begins,
    /// whether the proxy has noticed the end or not.
    pub fn body(&mut self, bytes: &[u8], end: bool, policy: &Policy) -> Read {
        if self.ended {
            return Next::GoOn.into();
        }
        self.beginning.add(bytes);
        self.scanner.feed(bytes);
        let end = end || self.arrival.body_bytes.is_some_and(|size| self.scanner.bytes() >= size);
        self.ended = end;
        if let Some(refusal) = self.malformed().or_else(|| self.in_background()) {
            return Next::Refuse(refusal).into();
        }
        if self.admitted { self.after_admission(policy) } else { self.before_decision(policy) }
    }

    /// Whether the body can be read as the request that its path says, or that its shape says where the path says nothing.
    fn readable(&self) -> bool {
        let shaped = self.arrival.api != Api::Other || self.scanner.holds_prompt();
        shaped && self.in_its_form() && self.broken().is_none()
    }

    /// Whether the body is to be read so. Encodings are told by headers, which workers may ignore: what begins as JSON does is
    /// read as such whatever they say.
    fn in_its_form(&self) -> bool {
        if self.arrival.api.is_json() {
            return !self.arrival.encoded || self.beginning.may_be_json();
        }
        // Why by the content type: what is no JSON may begin with any two bytes, and the samples of a recording often with zeros.
        self.beginning.opens() || self.arrival.says_json && self.beginning.may_be_json()
    }

    fn broken(&self) -> Option<Broken> {
        if self.ended { self.scanner.finish().err() } else { self.scanner.broken() }
    }

    /// A body that cannot be read here while workers may read it: nobody knows what it asks for. What no worker could read
    /// either asks for nothing, and is let through by its size: they say best what is wrong with it.
    fn malformed(&self) -> Option<Refusal> {
        let broken = self.broken().filter(|_| self.in_its_form())?;
        if self.beginning.in_other_unicode() {
            return Some(refuse(Reason::Malformed, Detail::Fixed(OTHER_UNICODE)));
        }
        // On other paths something may well follow: tensors in bytes, or one object for each line.
        let is_odd = if self.arrival.api.is_json() { broken.others_may_read() } else { broken.is_too_deep() };
        is_odd.then(|| refuse(Reason::Malformed, Detail::Text(broken.to_string())))
    }

    /// A request that would hold nothing while its worker goes on with it, where its route does not allow that.
    fn in_background(&self) -> Option<Refusal> {
        let refused = self.scanner.in_background() && !self.terms.background && self.readable();
        refused.then(|| refuse(Reason::Malformed, Detail::Fixed(IN_BACKGROUND)))
    }

    fn before_decision(&mut self, policy: &Policy) -> Read {
        let more = !self.ended && self.scanner.bytes() < self.hold_limit;
        // What is no JSON says no more, however much of it comes.
        if more && self.broken().is_none() {
            return Next::Hold.into();
        }
        let pool = match self.pool_by_model(policy) {
            Ok(_) if more => return Next::Hold.into(),
            Ok(pool) => pool,
            Err(refusal) => return Next::Refuse(refusal).into(),
        };
        self.pool = Some(Arc::clone(&pool));
        let may_name_one = !self.ended && self.model().is_none() && self.broken().is_none();
        if may_name_one && self.terms.lane_needs_model(policy) {
            return Next::Refuse(not_in_part(self.hold_limit)).into();
        }
        Read::Weigh(pool)
    }

    /// What is certain of a body: until its end only the prompt seen so far, since a limit on the output may still come.
    fn certain(&self, pool: &Pool, estimator: &Estimator) -> Ask {
        let ask = self.whole(pool, estimator);
        if self.ended { ask } else { Ask { output: Tokens(0), output_limit: None, sequences: 0, ..ask } }
    }

    fn may_fit(&self, ask: &Ask, pool: &Pool) -> Result<(), Refusal> {
        fits_ever(ask, &self.terms.limits, pool, &self.classes(pool, ask))
    }

    fn after_admission(&mut self, policy: &Policy) -> Read {
        let Some(pool) = self.pool.clone() else { return Next::GoOn.into() };
        if self.says_its_own_priority(policy) {
            let detail =
                "it names `priority`, which cannot be replaced in a body that is too long to hold (body.hold_limit)";
            return Next::Refuse(refuse(Reason::Malformed, Detail::Fixed(detail))).into();
        }
        // Looked at now and then: that costs more than to read a chunk.
        let seen = self.scanner.bytes();
        if !self.ended && seen < self.looked_at.saturating_add(self.looked_at / 2) {
            return Next::GoOn.into();
        }
        self.looked_at = seen;
        Read::Weigh(pool)
    }

    fn weigh_admitted(&self, pool: &Arc<Pool>, estimator: &Estimator, policy: &Policy) -> Next {
        let ask = self.certain(pool, estimator);
        if let Err(refusal) = self.may_fit(&ask, pool) {
            return Next::Refuse(refusal);
        }
        if !self.ended {
            return Next::GoOn;
        }
        match self.pool_by_model(policy) {
            Ok(_) => Next::Correct(ask.at_most_what_fits(&self.terms.limits, pool)),
            Err(refusal) => Next::Refuse(refusal),
        }
    }

    /// Whether a caller says what the lane alone may say, in a body of which a part has gone on already.
    fn says_its_own_priority(&self, policy: &Policy) -> bool {
        policy.tag_body && !self.terms.in_shadow() && self.broken().is_none() && self.names_priority()
    }

    /// What its prompt was made of, once all of that has been read.
    #[must_use]
    pub fn asked(&self) -> Option<Asked> {
        if !self.ended || !self.readable() {
            return None;
        }
        Some(Asked::of(self.scanner.facts(), self.arrival.api))
    }

    /// The ask of a body that ends here.
    fn whole(&self, pool: &Pool, estimator: &Estimator) -> Ask {
        let facts = self.scanner.facts();
        if self.readable() {
            estimator.from_body(&facts, self.arrival.api, pool)
        } else {
            estimator.from_size(facts.bytes, self.arrival.api, pool)
        }
    }

    /// The ask of a body of which more is to come.
    fn part(&self, pool: &Pool, estimator: &Estimator) -> Ask {
        let facts = self.scanner.facts();
        let whole = self.arrival.body_bytes.unwrap_or(facts.bytes);
        if self.readable() {
            estimator.from_part(&facts, whole, self.arrival.api, pool)
        } else {
            estimator.from_size(whole, self.arrival.api, pool)
        }
    }

    /// Says whether it may leave its model out: on other paths engines serve the one they have, and many have no field for it.
    fn needs_no_model(&self) -> bool {
        self.arrival.api == Api::Other && self.model().is_none()
    }

    fn pool_by_model(&self, policy: &Policy) -> Result<Arc<Pool>, Refusal> {
        let model = self.model();
        if let Some(pool) = &self.pool
            && (self.any_model || !self.readable() || self.needs_no_model() || pool.serves(model.unwrap_or_default()))
        {
            return Ok(Arc::clone(pool));
        }
        if self.pool.is_none()
            && let Some(pool) = policy.pool_for(model.unwrap_or_default())
        {
            return Ok(Arc::clone(pool));
        }
        if let Some(broken) = self.broken().filter(|_| model.is_none() && self.in_its_form()) {
            let detail = format!("{broken}, so its `model` cannot be read");
            return Err(refuse(Reason::Malformed, Detail::Text(detail)));
        }
        let detail = match model {
            Some(name) => Detail::Text(format!("{name:?}")),
            None if self.arrival.encoded => Detail::Fixed("the body is encoded, so its `model` cannot be read"),
            None if !self.ended && self.broken().is_none() => return Err(not_in_part(self.hold_limit)),
            None => Detail::Fixed("the body names no `model`"),
        };
        Err(refuse(Reason::UnknownModel, detail))
    }
}

/// Whether a decision takes more than headers, once the pool is known.
fn depends_on_body(pool: &Pool, terms: &Terms, arrival: &Arrival, policy: &Policy) -> bool {
    // What comes as something else is seldom JSON, and is corrected once it has proved to be: an upload is not held for that.
    let tells_more = arrival.api.is_json() || arrival.says_json;
    // A worker can be chosen only while the headers wait; so a request that does not say how long it is, and may not be read
    // there, is decided by a guess of nothing rather than sent wherever it likes.
    let on_its_length = arrival.body_bytes.is_none() && (policy.header_pause || !pool.pick_endpoint);
    let on_its_size = policy.header_pause && pool.fallback_for(Reason::Oversize).is_some();
    let on_its_model = pool.classes_need_model() || terms.lane_needs_model(policy);
    let rewritten = policy.tag_body || policy.force_usage && has_openai_options(arrival.api);
    on_its_model || rewritten || tells_more && (on_its_length || on_its_size)
}

/// Whether workers read `priority` and `stream_options` in bodies of this API.
const fn has_openai_options(api: Api) -> bool {
    matches!(api, Api::Chat | Api::Completions)
}

fn refuse(reason: Reason, detail: Detail) -> Refusal {
    Refusal { reason, limit: None, detail, retry: Retry::Never, place: None }
}
