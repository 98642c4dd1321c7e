//! A refusal as an HTTP answer.

use admission_core::outcome::{Refusal, Retry};
use serde::Serialize;

use crate::host;

/// The error body of the OpenAI API, with the limit that bound beside what clients of that API read.
#[derive(Serialize)]
struct Body<'a> {
    error: Error<'a>,
}

#[derive(Serialize)]
struct Error<'a> {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'static str>,
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Limit<'a>>,
}

#[derive(Serialize)]
struct Limit<'a> {
    knob: &'a str,
    measured: u64,
    allowed: u64,
    unit: &'a str,
}

/// Answers the request of the current callback with the refusal.
pub fn send(refusal: &Refusal) {
    let reason = refusal.reason.label();
    let limit = refusal.limit.as_ref().map(|limit| Limit {
        knob: &limit.knob,
        measured: limit.measured,
        allowed: limit.allowed,
        unit: limit.unit,
    });
    let kind = refusal.reason.error_type();
    let body = Body { error: Error { message: refusal.to_string(), kind, param: None, code: reason, limit } };
    let seconds = match refusal.retry {
        Retry::After(wait) => Some(wait.0.div_ceil(1_000).to_string()),
        Retry::Never => None,
    };
    let mut headers = vec![("content-type", "application/json"), ("x-sluice-reason", reason)];
    headers.extend(seconds.as_deref().map(|seconds| ("retry-after", seconds)));
    host::respond(refusal.reason.status(), &headers, &serde_json::to_vec(&body).unwrap_or_default());
}
