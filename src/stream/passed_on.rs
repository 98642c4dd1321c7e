//! The things that workers are sent besides what the caller has sent.

use std::rc::Rc;
use std::sync::Arc;

use admission_core::arrival::has_picker;
use admission_core::intake::Intake;
use admission_core::outcome::{Detail, Reason, Refusal, Retry};
use admission_core::policy::{Lane, Policy, Pool};
use admission_core::request::rewritten;
use admission_core::tags::Tags;

use super::Taking;
use crate::effect::Effect;
use crate::shared::Shared;

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

/// Writes into a body that is held as a whole what the policy wants workers to read there. A body of which more is to come
/// goes on as it is. Returns whether usage is asked for that the caller has not asked for.
pub(super) fn rewrite_body(taking: &Taking, policy: &Policy, shared: &mut Shared<'_>) -> Result<bool, Refusal> {
    let Some((changes, slots)) = taking.intake.rewriting(policy) else { return Ok(false) };
    let held = taking.held;
    let Some(bytes) = rewritten(&shared.env.request_body(held), slots, changes) else {
        let detail = Detail::Fixed("it names `priority` or `stream_options` too often");
        return Err(Refusal { reason: Reason::Malformed, limit: None, detail, retry: Retry::Never, place: None });
    };
    let length = taking.intake.arrival().body_bytes.map(|_| bytes.len().to_string());
    shared.push(Effect::ReplaceBody { held, bytes });
    if let Some(length) = length {
        shared.push(Effect::SetHeader("content-length", length));
    }
    if changes.include_usage {
        // What is compressed could be neither read nor taken out again.
        shared.push(Effect::RemoveHeaders(vec!["accept-encoding".to_owned()]));
    }
    Ok(changes.include_usage)
}
