//! A body that is held behind headers which have gone on: the filter keeps it, and the proxy has nothing of it.

use super::{Phase, Stream, Taking};
use crate::effect::Effect;
use crate::shared::Shared;

/// Bytes of a body that were taken out of the proxy, in front of those that it holds.
// Why: a proxy that cannot reach the worker it has chosen for the headers tries another one and sends that all it holds of the body,
// decided or not, and the same once more when the body goes on. What is behind the body's end then is the worker's next request.
#[derive(Default)]
pub(super) struct Kept(Vec<u8>);

impl Kept {
    /// Has the proxy hold these bytes again.
    pub(super) fn put_back(&mut self, shared: &mut Shared<'_>) {
        if !self.0.is_empty() {
            shared.push(Effect::ReplaceBody { held: 0, bytes: std::mem::take(&mut self.0) });
        }
    }

    fn add(&mut self, bytes: Vec<u8>) {
        if self.0.is_empty() {
            self.0 = bytes;
        } else {
            self.0.extend(bytes);
        }
    }
}

impl Taking {
    /// Says whether what is held of the body is kept here. A worker that has begun to answer is the last one that is tried.
    pub(super) fn keeps_body(&self, answered: bool) -> bool {
        !self.headers_open && !answered
    }
}

impl Stream {
    /// Takes the last bytes of a body that does not go on out of the proxy, where they are kept here.
    pub(super) fn keep_body(&mut self, bytes: Vec<u8>, shared: &mut Shared<'_>) {
        let (Phase::Taking(taking) | Phase::Waiting(taking, _)) = &mut self.phase else { return };
        // Why the number: what could not be read is better off where it is.
        if taking.keeps_body(self.answered) && taking.held > 0 && bytes.len() == taking.held {
            shared.push(Effect::ReplaceBody { held: std::mem::take(&mut taking.held), bytes: Vec::new() });
            taking.kept.add(bytes);
        }
    }
}
