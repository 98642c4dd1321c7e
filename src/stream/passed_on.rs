//! The things that workers are sent besides what the caller has sent.

use std::rc::Rc;
use std::sync::Arc;

use admission_core::arrival::has_picker;
use admission_core::intake::Intake;
use admission_core::outcome::{Detail, Reason, Refusal, Retry};
use admission_core::policy::{Lane, Policy, Pool};
use admission_core::tags::Tags;

use super::Taking;
use crate::effect::Rewrite;

/// Tags of a request as far as its intake knows them.
pub(super) fn tags(policy: &Policy, intake: &Intake, lane: Option<&Arc<Lane>>, pool: Option<&Arc<Pool>>) -> Tags {
    Tags {
        tenant: Rc::clone(&intake.terms().tenant),
        lane: lane.cloned(),
        pool: pool.cloned(),
        estimate: None,
        endpoint: None,
        would_reject: None,
        for_picker: has_picker(policy),
    }
}

/// Changes to a body that is held as a whole, where the policy wants workers to read something there. A body of which more is to come goes on
/// as it is.
pub(super) fn rewrite(taking: &Taking, policy: &Policy) -> Result<Option<Box<Rewrite>>, Refusal> {
    let Some((changes, slots)) = taking.intake.rewriting(policy) else { return Ok(None) };
    if slots.too_many() {
        let detail = Detail::Fixed("it names `priority` or `stream_options` too often");
        return Err(Refusal { reason: Reason::Malformed, limit: None, detail, retry: Retry::Never, place: None });
    }
    let says_length = taking.intake.arrival().body_bytes.is_some();
    Ok(Some(Box::new(Rewrite { changes, slots: slots.clone(), held: taking.held, says_length })))
}
