//! In which order requests reached a worker, whose they were, and when each came and left.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};

/// Arrivals kept; older ones are forgotten.
const KEPT: usize = 10_000;

/// The latest requests in the order in which they came: the body of `GET /sim/arrivals`. All times are milliseconds since
/// the worker was started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arrivals {
    /// When this was asked for.
    pub now_ms: f64,
    /// Requests that came earlier and are no longer listed.
    pub forgotten: u64,
    /// The first one came first.
    pub requests: Vec<Arrival>,
}

/// A request to an inference path whose whole body has been read, whatever the answer was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arrival {
    /// When its whole body had been read.
    pub came_ms: f64,
    /// When it was no longer inside (see [`Stats::in_server`](crate::Stats::in_server)); nothing while it is.
    pub left_ms: Option<f64>,
    /// Its `x-sluice-tenant`.
    pub tenant: Option<String>,
    /// Its `x-sluice-lane`.
    pub lane: Option<String>,
    /// Its `x-sluice-prompt-tokens` and `x-sluice-output-tokens` together.
    pub tokens: Option<u64>,
    /// Its `x-client-request-id`, which the caller chooses.
    pub id: Option<String>,
}

/// Writes arrivals down.
#[derive(Debug)]
pub(crate) struct Log {
    started: Instant,
    pages: Mutex<Pages>,
}

/// Which arrival a request was, counted from 0 since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number(u64);

#[derive(Debug, Default)]
struct Pages {
    /// Number of the first of `kept`.
    first: u64,
    kept: VecDeque<Arrival>,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), pages: Mutex::default() }
    }

    pub(crate) fn came(&self, headers: &HeaderMap) -> Number {
        let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let number = |name| text(name).and_then(|text| text.parse::<u64>().ok());
        let (prompt, output) = (number("x-sluice-prompt-tokens"), number("x-sluice-output-tokens"));
        let mut arrival = Arrival {
            tenant: text("x-sluice-tenant"),
            lane: text("x-sluice-lane"),
            tokens: prompt.zip(output).map(|(prompt, output)| prompt.saturating_add(output)),
            id: text("x-client-request-id"),
            ..Arrival::default()
        };
        let mut pages = self.lock();
        // Read under the lock, so that times rise along the list.
        arrival.came_ms = self.now_ms();
        if pages.kept.len() == KEPT {
            pages.kept.pop_front();
            pages.first += 1;
        }
        pages.kept.push_back(arrival);
        Number(pages.first + pages.kept.len() as u64 - 1)
    }

    pub(crate) fn left(&self, number: Number) {
        let now = self.now_ms();
        let mut pages = self.lock();
        let place = number.0.checked_sub(pages.first).and_then(|place| usize::try_from(place).ok());
        if let Some(arrival) = place.and_then(|place| pages.kept.get_mut(place)) {
            arrival.left_ms = Some(now);
        }
    }

    pub(crate) fn read(&self) -> Arrivals {
        let pages = self.lock();
        Arrivals { now_ms: self.now_ms(), forgotten: pages.first, requests: pages.kept.iter().cloned().collect() }
    }

    pub(crate) fn forget(&self) {
        let mut pages = self.lock();
        pages.first += pages.kept.len() as u64;
        pages.kept.clear();
    }

    fn now_ms(&self) -> f64 {
        self.started.elapsed().as_secs_f64() * 1_000.0
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(id: usize) -> HeaderMap {
        let pairs = [("x-client-request-id", id.to_string()), ("x-sluice-lane", "batch".to_owned())];
        pairs.into_iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn ids(log: &Log) -> Vec<String> {
        log.read().requests.into_iter().filter_map(|arrival| arrival.id).collect()
    }

    #[test]
    fn arrivals_are_listed_in_their_order_with_when_they_left() {
        let log = Log::new();
        let numbers = [7, 3, 5].map(|id| log.came(&headers(id)));
        log.left(numbers[1]);
        assert_eq!(ids(&log), ["7", "3", "5"]);
        let Arrivals { now_ms, forgotten, requests } = log.read();
        assert!(requests.is_sorted_by_key(|arrival| arrival.came_ms) && requests[2].came_ms <= now_ms);
        assert!(requests[1].left_ms.is_some_and(|left| left >= requests[1].came_ms && left <= now_ms));
        assert_eq!((requests[0].left_ms, requests[2].left_ms, forgotten), (None, None, 0));
        assert_eq!((requests[0].lane.as_deref(), requests[0].tenant.as_deref()), (Some("batch"), None));
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let log = Log::new();
        let first = log.came(&headers(0));
        let second = log.came(&headers(1));
        for id in 2..=KEPT {
            log.came(&headers(id));
        }
        log.left(first);
        log.left(second);
        let Arrivals { forgotten, requests, .. } = log.read();
        assert_eq!((forgotten, requests.len(), requests[0].id.as_deref()), (1, KEPT, Some("1")));
        assert!(requests[0].left_ms.is_some() && requests[1].left_ms.is_none(), "the second left, and no other");
    }

    #[test]
    fn what_was_inside_when_all_was_forgotten_leaves_no_trace() {
        let log = Log::new();
        let inside = log.came(&headers(1));
        log.forget();
        log.came(&headers(2));
        log.left(inside);
        assert_eq!((ids(&log), log.read().forgotten, log.read().requests[0].left_ms), (vec!["2".to_owned()], 1, None));
    }
}
