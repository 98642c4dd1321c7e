//! A body that is held behind headers which have gone on: the filter keeps it, and the proxy has nothing of it.

use std::cell::Cell;

use super::{Phase, Stream, Taking};
use crate::effect::Effect;
use crate::shared::Shared;

/// Most bytes that a VM keeps of all bodies, of the 1 GiB of memory that the proxy lets it have.
const ROOM: usize = 256 << 20;

/// Bytes beyond [`ROOM`] for short bodies, so that long ones which never end do not take the room of most requests.
const ROOM_OF_SHORT: usize = 64 << 20;

const SHORT_BODY: usize = 64 << 10;

/// Pieces shorter than this grow by those that follow, so that bytes sent one by one take at most twice the memory of others.
const SHORT_PIECE: usize = 16 << 10;

thread_local! {
    /// Bytes that this VM keeps.
    static ALL: Cell<usize> = const { Cell::new(0) };
}

/// Pieces of a body that were taken out of the proxy, in front of those that it holds.
// Why: a proxy that cannot reach the worker it has chosen for the headers tries another one and sends that all it holds of the body,
// decided or not, and the same once more when the body goes on. What is behind the body's end then is the worker's next request.
// Why in pieces: one that grows is copied to where there is room for twice of it.
#[derive(Default)]
pub(super) struct Kept {
    pieces: Vec<Vec<u8>>,
    bytes: usize,
}

impl Kept {
    /// Has the proxy hold these bytes again.
    // Why it works in root callbacks: the proxy has a buffer for a body that is paused, also when all was taken out of it.
    pub(super) fn put_back(&mut self, shared: &mut Shared<'_>) {
        self.forget();
        // Each goes in front of those that follow it.
        for bytes in std::mem::take(&mut self.pieces).into_iter().rev() {
            shared.push(Effect::ReplaceBody { held: 0, bytes });
        }
    }

    fn has_room(&self, more: usize) -> bool {
        let room = if self.bytes + more <= SHORT_BODY { ROOM + ROOM_OF_SHORT } else { ROOM };
        ALL.get() + more <= room
    }

    fn add(&mut self, bytes: Vec<u8>) {
        ALL.set(ALL.get() + bytes.len());
        self.bytes += bytes.len();
        match self.pieces.last_mut() {
            Some(last) if last.len() < SHORT_PIECE => last.extend(bytes),
            _ => self.pieces.push(bytes),
        }
    }

    /// Counts its bytes no more.
    fn forget(&mut self) {
        ALL.set(ALL.get() - std::mem::take(&mut self.bytes));
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Taking {
    /// Says whether what is held of the body is kept here. A worker that has begun to answer is the last one that is tried.
    pub(super) fn keeps_body(&self, answered: bool) -> bool {
        !self.headers_open && !answered
    }

    /// Has the request decided with these bytes, the last that have come, if they cannot be kept.
    pub(super) fn find_room(&mut self, bytes: &[u8], answered: bool) {
        if self.keeps_body(answered) && !self.kept.has_room(bytes.len()) {
            self.intake.hold_no_more();
        }
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
