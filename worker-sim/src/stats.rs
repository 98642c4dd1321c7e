//! What tests ask a worker: how many requests came, how many are inside, and what the last one looked like.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};

use crate::arrivals::{Log, Number};

/// What a worker has seen and does, over all its engines: the body of `GET /sim/stats`.
///
/// Requests are HTTP requests to an inference path; sequences are what engines run, one for each prompt and choice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Requests whose headers have arrived.
    pub received: u64,
    /// Requests whose whole body has been read, whatever the answer was.
    pub requests: u64,
    /// Requests inside now: from the whole body read until just before the last part of the answer is handed to the
    /// connection, or until the client is gone. One whose body is still on its way is not inside.
    pub in_server: u64,
    /// The most that were inside at once.
    pub peak_in_server: u64,
    /// Sequences in the engines' batches.
    pub running: u64,
    /// Sequences in the engines' queues.
    pub waiting: u64,
    /// The most sequences that ran at once.
    pub peak_running: u64,
    /// Times that a sequence was put back for want of KV blocks.
    pub preemptions: u64,
    /// Sequences whose client left before their end; a request that a `hang` swallowed counts as one.
    pub aborted: u64,
    /// Sequences that ended with all their tokens.
    pub finished: u64,
    /// The headers of the most recent request; values of a repeated one are joined with a comma.
    pub last_headers: BTreeMap<String, String>,
    /// The body of the most recent request that was read as a whole, as it came.
    pub last_body: String,
}

/// Counts requests as they come and go, and writes down their order.
#[derive(Debug)]
pub(crate) struct Door {
    seen: Mutex<Stats>,
    pub(crate) log: Log,
}

/// A request inside the server, until dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    door: Arc<Door>,
    number: Number,
}

/// A request that is never answered; counts as aborted when its client gives up.
#[derive(Debug)]
pub(crate) struct Swallowed {
    door: Arc<Door>,
}

impl Door {
    pub(crate) fn new() -> Self {
        Self { seen: Mutex::default(), log: Log::new() }
    }

    pub(crate) fn receive(&self, headers: &HeaderMap) {
        let mut last_headers: BTreeMap<String, String> = BTreeMap::new();
        for (name, value) in headers {
            let value = String::from_utf8_lossy(value.as_bytes());
            let joined = last_headers.entry(name.to_string()).or_default();
            if !joined.is_empty() {
                joined.push_str(", ");
            }
            joined.push_str(&value);
        }
        let mut seen = self.lock();
        seen.received += 1;
        seen.last_headers = last_headers;
    }

    pub(crate) fn enter(self: &Arc<Self>, headers: &HeaderMap, body: &[u8]) -> Seat {
        let last_body = String::from_utf8_lossy(body).into_owned();
        let mut seen = self.lock();
        let number = self.log.came(headers);
        seen.last_body = last_body;
        seen.requests += 1;
        seen.in_server += 1;
        seen.peak_in_server = seen.peak_in_server.max(seen.in_server);
        Seat { door: Arc::clone(self), number }
    }

    /// What was counted here; the engines' part is zero.
    pub(crate) fn seen(&self) -> Stats {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Stats> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    pub(crate) fn swallow(&self) -> Swallowed {
        Swallowed { door: Arc::clone(&self.door) }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seen = self.door.lock();
        seen.in_server -= 1;
        self.door.log.left(self.number);
    }
}

impl Drop for Swallowed {
    fn drop(&mut self) {
        self.door.lock().aborted += 1;
    }
}
