//! The things that workers are sent besides what the caller has sent.

use std::sync::Arc;

use admission_core::arrival::has_picker;
use admission_core::intake::Intake;
use admission_core::outcome::{Detail, Reason, Refusal, Retry};
use admission_core::policy::{Lane, Policy, Pool};
use admission_core::request::rewritten;
use admission_core::tags::Tags;

use super::Taking;
use crate::host;

/// Tags of a request as far as its intake knows them.
pub(super) fn tags<'a>(
    policy: &Policy,
    intake: &'a Intake,
    lane: Option<&'a Arc<Lane>>,
    pool: Option<&'a Arc<Pool>>,
) -> Tags<'a> {
    Tags {
        tenant: &intake.terms().tenant,
        lane: lane.map(|lane| &**lane),
        pool: pool.map(|pool| &**pool),
        estimate: None,
        endpoint: None,
        would_reject: None,
        for_picker: has_picker(policy),
    }
}

/// Writes into a body that is held as a whole what the policy wants workers to read there. A body of which more is to come
/// goes on as it is. Returns whether usage is asked for that the caller has not asked for.
pub(super) fn rewrite_body(taking: &Taking, policy: &Policy) -> Result<bool, Refusal> {
    let Some((changes, slots)) = taking.intake.rewriting(policy) else { return Ok(false) };
    let body = host::request_body(0, taking.held);
    let Some(written) = rewritten(&body, slots, changes) else {
        let detail = Detail::Fixed("it names `priority` or `stream_options` too often");
        return Err(Refusal { reason: Reason::Malformed, limit: None, detail, retry: Retry::Never, place: None });
    };
    host::replace_request_body(taking.held, &written);
    if taking.intake.arrival().body_bytes.is_some() {
        host::set_request_header("content-length", &written.len().to_string());
    }
    if changes.include_usage {
        // What is compressed could be neither read nor taken out again.
        host::remove_request_header("accept-encoding");
    }
    Ok(changes.include_usage)
}
