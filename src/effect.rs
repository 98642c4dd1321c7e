//! Acts that an event of a stream asks of the proxy, carried out once the event has been handled.

use admission_core::answer::Answer;
use admission_core::tags::Tags;
use admission_core::units::Millis;

use crate::{host, passes};

/// One act of the proxy on the stream whose event it is, or whose turn has come.
pub enum Effect {
    /// Removes every copy of these request headers.
    RemoveHeaders(Vec<String>),
    /// Marks the request as judged, for filters and passes that follow.
    MarkJudged,
    /// Puts tags on the request.
    Tag(Tags),
    /// Puts bytes in place of the first `held` that the proxy holds of the request's body.
    ReplaceBody {
        /// Number of bytes that go: all that the proxy holds, or none.
        held: usize,
        /// Bytes in their place.
        bytes: Vec<u8>,
    },
    /// Sets a request header.
    SetHeader(&'static str, String),
    /// Lets the request go on. The headers can no longer be changed after it.
    Resume,
    /// Ends the request with an answer of the filter's own.
    Respond(Answer),
    /// Puts other bytes in place of all the `held` bytes that the proxy holds of the answer.
    ReplaceAnswer {
        /// Number of bytes that the proxy holds.
        held: usize,
        /// Bytes in their place.
        bytes: Vec<u8>,
    },
    /// Leaves the decision for access logs, which run after the filter.
    LeaveDecision(Vec<u8>),
    /// Has the root of the stream called so often from now on.
    TickEvery(Millis),
    /// Writes an error into the proxy's log.
    LogError(String),
}

/// Names that the effects of one plugin need.
pub struct Names {
    /// Namespace that the plugin counts in.
    pub namespace: String,
    /// Name of the filter state in which access logs find its decisions.
    pub decisions: String,
}

impl Effect {
    /// Has the proxy do it, for the stream that it acts on.
    pub fn carry_out(self, names: &Names) {
        match self {
            Self::RemoveHeaders(headers) => headers.iter().for_each(|name| host::remove_request_header(name)),
            Self::MarkJudged => passes::mark(&names.namespace),
            Self::Tag(tags) => tags.each(host::set_request_header),
            Self::ReplaceBody { held, bytes } => host::replace_request_body(held, &bytes),
            Self::SetHeader(name, value) => host::set_request_header(name, &value),
            Self::Resume => host::resume_request(),
            Self::Respond(answer) => host::respond(&answer),
            Self::ReplaceAnswer { held, bytes } => host::replace_response_body(held, &bytes),
            Self::LeaveDecision(decision) => host::set_filter_state(&names.decisions, &decision),
            Self::TickEvery(period) => host::set_tick_period(period),
            Self::LogError(line) => log::error!("{line}"),
        }
    }
}
