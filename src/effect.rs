//! Acts that an event of a stream asks of the proxy, carried out once the event has been handled.

use admission_core::answer::Answer;
use admission_core::request::{Changes, Slots, rewritten};
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
    /// Writes into the body that the proxy holds.
    RewriteBody(Box<Rewrite>),
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

/// Changes to a request's body that the proxy holds as a whole.
pub struct Rewrite {
    /// Values to be written.
    pub changes: Changes,
    /// Places in the body.
    pub slots: Slots,
    /// Number of bytes of the body.
    pub held: usize,
    /// True where a header says the length of the body.
    pub says_length: bool,
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
            Self::RewriteBody(rewrite) => rewrite.carry_out(),
            Self::Resume => host::resume_request(),
            Self::Respond(answer) => host::respond(&answer),
            Self::ReplaceAnswer { held, bytes } => host::replace_response_body(held, &bytes),
            Self::LeaveDecision(decision) => host::set_filter_state(&names.decisions, &decision),
            Self::TickEvery(period) => host::set_tick_period(period),
            Self::LogError(line) => log::error!("{line}"),
        }
    }
}

impl Rewrite {
    fn carry_out(&self) {
        let body = host::request_body(0, self.held);
        let Some(written) = rewritten(&body, &self.slots, self.changes) else {
            return log::error!("a body goes on as it is: the proxy holds other bytes than those that it has shown");
        };
        host::replace_request_body(self.held, &written);
        if self.says_length {
            host::set_request_header("content-length", &written.len().to_string());
        }
        if self.changes.include_usage {
            // What is compressed could be neither read nor taken out again.
            host::remove_request_header("accept-encoding");
        }
    }
}
