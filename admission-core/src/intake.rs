//! From the bytes of a request to the moment it is decided.
//!
//! A request waits in one of three places, the first that applies:
//! 1. [`Wait::Unread`]: at the headers, its body unread, when the pool is fixed and the size is known, or nothing but the
//!    size could be read. The content length is the estimate; the body is read as it streams through and the lease
//!    corrected at its end.
//! 2. [`Wait::AtHeaders`]: at the headers while the body is read, where the proxy allows that (`header_pause`).
//! 3. [`Wait::BodyHeld`]: its headers have gone on and its body waits.

use std::sync::Arc;

use crate::decide::{Ask, fits_ever};
use crate::estimate;
use crate::outcome::{Detail, Reason, Refusal, Retry};
use crate::policy::{Lane, Limits, Policy, Pool};
use crate::request::{Api, Scanner};
use crate::units::Tokens;

#[cfg(test)]
mod tests;

/// A request as its headers describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Name of its tenant.
    pub tenant: String,
    /// Name of the lane it asks for.
    pub asked_lane: Option<String>,
    /// By its path.
    pub api: Api,
    /// Size of its body in bytes, if the headers tell.
    pub body_bytes: Option<u64>,
    /// Its headers say that its body is encoded, so perhaps nothing in it can be read.
    pub encoded: bool,
}

impl Arrival {
    /// The lane it gets; see [`Policy::lane`].
    #[must_use]
    pub fn lane<'a>(&self, policy: &'a Policy) -> &'a Lane {
        policy.lane(self.asked_lane.as_deref(), policy.limits(&self.tenant))
    }
}

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

/// What to do with a request after a part of it has come.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Let the part go on.
    GoOn,
    /// Hold it and wait for more.
    Hold,
    /// Decide now: charge this to that pool, then say [`Intake::admitted`].
    Decide(Ask, Arc<Pool>),
    /// Let it go on; the lease holds this from now on.
    Correct(Ask),
    /// Refuse it.
    Refuse(Refusal),
}

/// Follows one request.
#[derive(Debug)]
pub struct Intake {
    arrival: Arrival,
    wait: Wait,
    scanner: Scanner,
    pool: Option<Arc<Pool>>,
    admitted: bool,
    ended: bool,
    first_byte: Option<u8>,
    hold_limit: u64,
}

impl Intake {
    /// A request whose headers have come and whose body has not.
    #[must_use]
    pub fn new(arrival: Arrival, policy: &Policy) -> Self {
        let pool = policy.only_pool().cloned();
        let tells_more = matches!(arrival.api, Api::Chat | Api::Completions);
        let wait = match &pool {
            Some(_) if arrival.body_bytes.is_some() || !tells_more => Wait::Unread,
            _ if policy.header_pause => Wait::AtHeaders,
            _ => Wait::BodyHeld,
        };
        Self {
            arrival,
            wait,
            scanner: Scanner::default(),
            pool,
            admitted: false,
            ended: false,
            first_byte: None,
            hold_limit: policy.hold_limit,
        }
    }

    /// As read from its headers.
    #[must_use]
    pub fn arrival(&self) -> &Arrival {
        &self.arrival
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
    pub fn headers(&self, policy: &Policy) -> Next {
        match (self.wait, &self.pool) {
            (Wait::Unread, Some(pool)) => {
                let size = self.arrival.body_bytes.unwrap_or(0);
                self.decide(estimate::from_size(size, self.arrival.api, pool), pool, policy)
            }
            _ => Next::Hold,
        }
    }

    fn decide(&self, ask: Ask, pool: &Arc<Pool>, policy: &Policy) -> Next {
        Next::Decide(ask.at_most_what_fits(self.limits(policy), pool), Arc::clone(pool))
    }

    fn limits<'a>(&self, policy: &'a Policy) -> &'a Limits {
        policy.limits(&self.arrival.tenant)
    }

    /// The request was admitted as [`Next::Decide`] said.
    pub fn admitted(&mut self) {
        self.admitted = true;
    }

    /// All of the body has come.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// After the next bytes of the body; `end` with the last of them, which may be none.
    ///
    /// A body is also at its end when all the bytes are there that its headers promised: a worker that has them begins,
    /// whether the proxy has noticed the end or not.
    pub fn body(&mut self, bytes: &[u8], end: bool, policy: &Policy) -> Next {
        if self.ended {
            return Next::GoOn;
        }
        self.first_byte = self.first_byte.or(bytes.first().copied());
        self.scanner.feed(bytes);
        let end = end || self.arrival.body_bytes.is_some_and(|size| self.scanner.bytes() >= size);
        self.ended = end;
        if let Some(refusal) = self.malformed() {
            return Next::Refuse(refusal);
        }
        if self.admitted { self.after_admission(policy) } else { self.before_decision(policy) }
    }

    /// Whether the body is to be read as the request that its path says. Encodings are told by headers, which workers may
    /// ignore: only what begins as gzip or zstd does is taken for compressed, since no worker could take that for JSON.
    fn readable(&self) -> bool {
        let compressed = self.arrival.encoded && matches!(self.first_byte, Some(0x1f | 0x28));
        matches!(self.arrival.api, Api::Chat | Api::Completions) && !compressed
    }

    fn malformed(&mut self) -> Option<Refusal> {
        let broken = if self.ended { self.scanner.finish().err() } else { self.scanner.broken() };
        let broken = broken.filter(|_| self.readable())?;
        Some(refuse(Reason::Malformed, Detail::Text(broken.to_string())))
    }

    fn before_decision(&mut self, policy: &Policy) -> Next {
        if !self.ended && self.scanner.bytes() < self.hold_limit {
            return Next::Hold;
        }
        let pool = match self.pool_by_model(policy) {
            Ok(pool) => pool,
            Err(refusal) => return Next::Refuse(refusal),
        };
        self.pool = Some(Arc::clone(&pool));
        let ask = if self.ended { self.whole(&pool) } else { self.part(&pool) };
        self.decide(ask, &pool, policy)
    }

    fn after_admission(&mut self, policy: &Policy) -> Next {
        let Some(pool) = self.pool.clone() else { return Next::GoOn };
        let ask = self.whole(&pool);
        // Until the end only the prompt seen so far is certain: a limit on the output may still come.
        let certain = if self.ended { ask } else { Ask { output: Tokens(0), output_limit: None, ..ask } };
        if let Err(refusal) = fits_ever(&certain, self.limits(policy), &pool) {
            return Next::Refuse(refusal);
        }
        if !self.ended {
            return Next::GoOn;
        }
        match self.pool_by_model(policy) {
            Ok(_) => Next::Correct(ask),
            Err(refusal) => Next::Refuse(refusal),
        }
    }

    /// The ask of a body that ends here.
    fn whole(&self, pool: &Pool) -> Ask {
        let facts = self.scanner.facts();
        if self.readable() {
            estimate::from_body(&facts, self.arrival.api, pool)
        } else {
            estimate::from_size(facts.bytes, self.arrival.api, pool)
        }
    }

    /// The ask of a body of which more is to come.
    fn part(&self, pool: &Pool) -> Ask {
        let facts = self.scanner.facts();
        let whole = self.arrival.body_bytes.unwrap_or(facts.bytes);
        if self.readable() {
            estimate::from_part(&facts, whole, self.arrival.api, pool)
        } else {
            estimate::from_size(whole, self.arrival.api, pool)
        }
    }

    fn pool_by_model(&self, policy: &Policy) -> Result<Arc<Pool>, Refusal> {
        let model = self.scanner.facts().model;
        if let Some(pool) = &self.pool
            && (!self.readable() || pool.serves(model.as_deref().unwrap_or_default()))
        {
            return Ok(Arc::clone(pool));
        }
        if self.pool.is_none()
            && let Some(pool) = policy.pool_for(model.as_deref().unwrap_or_default())
        {
            return Ok(Arc::clone(pool));
        }
        let detail = match model {
            Some(name) => Detail::Text(format!("{name:?}")),
            None if self.arrival.encoded => Detail::Fixed("the body is encoded, so its `model` cannot be read"),
            None if !self.ended => {
                Detail::Fixed("no `model` in the part of the body that is held back (body.hold_limit); name it first")
            }
            None => Detail::Fixed("the body names no `model`"),
        };
        Err(refuse(Reason::UnknownModel, detail))
    }
}

fn refuse(reason: Reason, detail: Detail) -> Refusal {
    Refusal { reason, limit: None, detail, retry: Retry::Never }
}
