//! The things that workers are sent besides what the caller has sent.

use std::sync::Arc;

use admission_core::intake::Intake;
use admission_core::outcome::{Detail, Reason, Refusal, Retry};
use admission_core::policy::{Lane, Policy, Pool};
use admission_core::request::rewritten;

use super::Taking;
use crate::{arrival, host};

/// Tells the worker, and the proxy's routes, all that is known of a request.
pub(super) fn tag(policy: &Policy, intake: &Intake, lane: &Lane, pool: Option<&Arc<Pool>>) {
    arrival::tag_tenant(policy, &intake.terms().tenant);
    arrival::tag_lane(policy, lane);
    if let Some(pool) = pool {
        arrival::tag_pool(pool);
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
