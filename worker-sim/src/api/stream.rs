//! An answer as server-sent events, one for every token as it comes.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;

use super::reply::{Envelope, Usage};
use super::request::{Api, Job};
use crate::hub::Ticket;
use crate::stats::Seat;

const DONE: &[u8] = b"data: [DONE]\n\n";

/// A streamed answer under way. Dropping it, as the connection does when the client is gone, aborts its sequences.
struct Events {
    envelope: Envelope,
    ticket: Ticket,
    ready: VecDeque<Bytes>,
    usage: Option<Usage>,
    /// Given up just before the last event.
    seat: Option<Seat>,
}

/// Answers at once with headers, as vLLM does, and with events as tokens come.
pub(super) fn respond(envelope: Envelope, job: &Job, ticket: Ticket, seat: Seat) -> Response {
    let usage = job.include_usage.then(|| Usage::of(job));
    let events = Events { envelope, ticket, ready: VecDeque::new(), usage, seat: Some(seat) };
    let body = stream::unfold(events, |mut events| async move {
        let event = events.next().await?;
        Some((Ok::<_, Infallible>(event), events))
    });
    ([(CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(body)).into_response()
}

impl Events {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(event) = self.ready.pop_front() {
            return Some(event);
        }
        if let Some(token) = self.ticket.next().await {
            let chunk = self.envelope.token_chunk(token.choice, token.index, token.last);
            if self.envelope.api == Api::Chat && token.index == 0 {
                self.ready.push_back(chunk);
                return Some(self.envelope.role_chunk(token.choice));
            }
            return Some(chunk);
        }
        if let Some(usage) = self.usage.take() {
            return Some(self.envelope.usage_chunk(usage));
        }
        // Who sees the end may send the next request at once; it must not meet this one inside.
        self.seat.take()?;
        Some(Bytes::from_static(DONE))
    }
}
