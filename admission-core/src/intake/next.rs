//! Actions that a request needs, part by part.

use std::sync::Arc;

use crate::ask::Ask;
use crate::outcome::Refusal;
use crate::policy::Pool;

/// Result of reading a part of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Read {
    /// The estimator of this pool is needed: [`super::Intake::weigh`] says with it what to do.
    Weigh(Arc<Pool>),
    /// Action that needs no estimator.
    Known(Next),
}

impl From<Next> for Read {
    fn from(next: Next) -> Self {
        Self::Known(next)
    }
}

/// Action that a request needs after a part of it has come.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Let the part go on.
    GoOn,
    /// Hold it and wait for more.
    Hold,
    /// Decide now: charge this to that pool, then say [`super::Intake::admitted`].
    Decide(Ask, Arc<Pool>),
    /// Let it go on; the lease holds this from now on.
    Correct(Ask),
    /// Refuse it.
    Refuse(Refusal),
}
