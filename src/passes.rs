//! Passes of one request through filters of ours: a redirect within the proxy makes a second one, and so does a second filter.
//!
//! The filter leaves two values in the stream's filter state, which no caller can write. One lasts as long as the request and is there after a
//! redirect: the headers of ours that the request then has are from the former pass. The other lasts as long as the stream, and says which
//! namespace has judged it already.

use admission_core::attributes::RequestAttributes;

use crate::host::{self, State};

/// Name of the value that lasts as long as the request.
const TAGGED: &str = "sluice.tagged";

/// Begin of the names of those that last as long as the stream.
const JUDGED: &str = "sluice.judged.";

/// Makes values of [`TAGGED`] outlast a redirect, in the root that is being configured.
pub fn declare() {
    host::declare_state(TAGGED, State::OfRequest);
}

/// Says whether a filter of ours has already put its own headers on a request.
pub fn is_tagged(attributes: &dyn RequestAttributes) -> bool {
    attributes.filter_state(TAGGED).is_some()
}

/// Says whether a filter of the namespace has already judged a request.
pub fn is_judged(namespace: &str, attributes: &dyn RequestAttributes) -> bool {
    attributes.filter_state(&format!("{JUDGED}{namespace}")).is_some()
}

/// Leaves both values in the current stream, for filters and passes that follow.
pub fn mark(namespace: &str) {
    host::set_filter_state(TAGGED, b"1");
    host::set_filter_state(&format!("{JUDGED}{namespace}"), b"1");
}
