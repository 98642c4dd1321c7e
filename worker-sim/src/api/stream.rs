//! An answer as server-sent events, one for every token as it comes.

use std::collections::VecDeque;
use std::io;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;

use super::reply::Envelope;
use super::request::Job;
use crate::hub::Ticket;
use crate::stats::Seat;

/// A streamed answer under way. Dropping it, as the connection does when the client is gone, aborts its sequences.
struct Events {
    envelope: Envelope,
    job: Job,
    ticket: Ticket,
    ready: VecDeque<Bytes>,
    /// What is left of the events after the last token.
    end: VecDeque<Bytes>,
    /// Given up just before the last event.
    seat: Option<Seat>,
    /// Tokens that have come.
    tokens: u64,
    /// Of which the connection breaks at the next.
    breaks_after: Option<u64>,
}

/// Answers at once with headers, as vLLM does, and with events as tokens come.
pub(super) fn respond(envelope: Envelope, job: Job, ticket: Ticket, seat: Seat, truncated: bool) -> Response {
    let end = envelope.end(&job).into();
    let breaks_after = truncated.then(|| job.wishes.iter().map(|wish| u64::from(wish.output)).sum::<u64>() / 2);
    let (ready, seat) = (VecDeque::new(), Some(seat));
    let events = Events { envelope, job, ticket, ready, end, seat, tokens: 0, breaks_after };
    let body = stream::unfold(events, |mut events| async move {
        let event = events.next().await?;
        Some((event, events))
    });
    ([(CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(body)).into_response()
}

impl Events {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.ready.is_empty()
            && let Some(token) = self.ticket.next().await
        {
            if self.breaks_after == Some(self.tokens) {
                // What has come is sent before the connection breaks.
                tokio::task::yield_now().await;
                return Some(Err(io::ErrorKind::ConnectionReset.into()));
            }
            self.tokens += 1;
            self.ready.extend(self.envelope.token(&self.job, token));
        }
        if let Some(event) = self.ready.pop_front() {
            return Some(Ok(event));
        }
        let event = self.end.pop_front()?;
        if self.end.is_empty() {
            // Who sees the end may send the next request at once; it must not meet this one inside.
            self.seat = None;
        }
        Some(Ok(event))
    }
}
