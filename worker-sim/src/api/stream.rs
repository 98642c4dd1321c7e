//! An answer as server-sent events, one for every token as it comes.

use std::collections::VecDeque;
use std::convert::Infallible;

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
}

/// Answers at once with headers, as vLLM does, and with events as tokens come.
pub(super) fn respond(envelope: Envelope, job: Job, ticket: Ticket, seat: Seat) -> Response {
    let end = envelope.end(&job).into();
    let events = Events { envelope, job, ticket, ready: VecDeque::new(), end, seat: Some(seat) };
    let body = stream::unfold(events, |mut events| async move {
        let event = events.next().await?;
        Some((Ok::<_, Infallible>(event), events))
    });
    ([(CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(body)).into_response()
}

impl Events {
    async fn next(&mut self) -> Option<Bytes> {
        if self.ready.is_empty()
            && let Some(token) = self.ticket.next().await
        {
            self.ready.extend(self.envelope.token(&self.job, token));
        }
        if let Some(event) = self.ready.pop_front() {
            return Some(event);
        }
        let event = self.end.pop_front()?;
        if self.end.is_empty() {
            // Who sees the end may send the next request at once; it must not meet this one inside.
            self.seat = None;
        }
        Some(event)
    }
}
