//! Taking a report out of a stream that is on its way, and leaving with the proxy what is not yet decided.

use std::borrow::Cow;

use admission_core::usage::UsageChunkFilter;
use proxy_wasm::types::Action;

use crate::host;

/// Most bytes that are left with the proxy, which breaks a stream off when it is to hold more than its buffer may.
const MOST_LEFT: usize = 16_384;

/// The filter of one stream, and what the proxy holds of it.
///
/// Where a chunk ends amid an event that may have to go, the chunk stays with the proxy until more has come: a stream may end
/// by trailers, when nothing can be added to it any more, while what the proxy holds goes on before them.
#[derive(Default)]
pub(super) struct Strip {
    filter: UsageChunkFilter,
    /// What is to go on of the bytes that the proxy holds; behind it stands what is not decided.
    decided: Vec<u8>,
    /// Bytes that the proxy holds.
    left: usize,
}

impl Strip {
    /// Bytes that the proxy holds of what has been taken already; new ones follow.
    pub(super) const fn left(&self) -> usize {
        self.left
    }

    /// Takes new bytes, with which a callback brings `size`; `end` with the last. Says whether they go on.
    pub(super) fn take(&mut self, bytes: &[u8], size: usize, end: bool) -> Action {
        let mut passed = self.filter.feed(bytes);
        if end {
            let rest = self.filter.finish();
            if !rest.is_empty() {
                passed.to_mut().extend(rest);
            }
        }
        let held = self.filter.held();
        let length = self.decided.len().saturating_add(passed.len()).saturating_add(held.len());
        if !held.is_empty() && length <= MOST_LEFT {
            self.decided.extend_from_slice(&passed);
            // Where nothing was taken out it is what the proxy has.
            if length != size {
                host::replace_response_body(size, &[&self.decided, held].concat());
            }
            self.left = length;
            return Action::Pause;
        }
        let before = std::mem::take(&mut self.decided);
        match passed {
            Cow::Borrowed(_) if self.left == 0 => {}
            passed => host::replace_response_body(size, &[&before, &*passed].concat()),
        }
        self.left = 0;
        Action::Continue
    }

    /// Trailers have come, which end the stream: lets go what the proxy holds, less a report.
    pub(super) fn end(&mut self) {
        let is_report = self.filter.finish().is_empty();
        if is_report && self.left > self.decided.len() {
            host::replace_response_body(self.left, &self.decided);
        }
    }
}
