//! A body of several pieces, sent at once or with pauses.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Sleep;

pub struct Pieces {
    pieces: std::vec::IntoIter<Bytes>,
    left: u64,
    /// Before each piece.
    pause: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Pieces {
    pub fn at_once(pieces: Vec<Bytes>) -> Self {
        let left = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self { pieces: pieces.into_iter(), left, pause: Duration::ZERO, sleep: None }
    }

    /// So many pieces of the same length, the last when `whole` has passed.
    pub fn slowly(pieces: Vec<Bytes>, count: u32, whole: Duration) -> Self {
        let all = Bytes::from(pieces.concat());
        let each = all.len().div_ceil(count as usize).max(1);
        let cut = (0..all.len()).step_by(each).map(|from| all.slice(from..all.len().min(from + each)));
        Self { pause: whole / count, ..Self::at_once(cut.collect()) }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.pause.is_zero() {
            let pause = self.pause;
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)));
            ready!(sleep.as_mut().poll(context));
            self.sleep = None;
        }
        let piece = self.pieces.next();
        self.left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
