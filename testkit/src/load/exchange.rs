//! One request and its answer.

use std::ops::Range;
use std::time::Duration;

use futures_util::StreamExt;
use reqwest::{Client, Response};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::Flow;
use super::schedule::Shot;
use super::sse::{Event, Events};
use crate::watch::Reading;

/// A word, its space included: workers count a token for four bytes or so.
const WORD: &str = "ask ";

/// What all requests of a run share.
pub struct Caller {
    pub client: Client,
    pub url: String,
    pub model: String,
    pub start: Instant,
    /// Tokens that come before or later are no goodput, and requests before it no samples.
    pub window: Range<Instant>,
    /// Answers that come later are not waited for.
    pub cut_off: Instant,
    pub lag: Reading,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Answered to the end.
    Completed,
    /// Its caller left.
    Left,
    /// Refused, for this reason.
    Refused(String),
    /// Neither answered nor refused.
    Failed(String),
    /// Still unanswered, in whole or in part, when the run ended.
    Unfinished,
}

/// What was measured of a request.
#[derive(Clone, Debug)]
pub struct Record {
    /// Index in the plan.
    pub flow: usize,
    /// When it was due, since the start.
    pub at: Duration,
    /// How late the client was, in sending it or in seeing its first token.
    pub lag: Duration,
    /// It was due in the warm-up.
    pub warm_up: bool,
    /// From the scheduled arrival to the first text; for an unfinished request without any, the time it had waited.
    pub ttft: Option<Duration>,
    /// Pieces of text that came while the plan was being sent, after the warm-up.
    pub tokens_in_window: u64,
    /// What became of it.
    pub ending: Ending,
}

impl Caller {
    /// Sends the request now and follows its answer.
    pub async fn call(&self, flow: &Flow, shot: &Shot) -> Record {
        let scheduled = self.start + shot.at;
        let lag = scheduled.elapsed();
        let mut record = Record {
            flow: shot.flow,
            at: shot.at,
            lag,
            warm_up: scheduled < self.window.start,
            ttft: None,
            tokens_in_window: 0,
            ending: Ending::Unfinished,
        };
        let leaves = shot.leaves.map(|after| scheduled + after).filter(|leaves| *leaves < self.cut_off);
        let until = leaves.unwrap_or(self.cut_off);
        let followed = timeout_at(until, self.follow(flow, shot, scheduled, &mut record)).await;
        if let Ok(ending) = followed {
            record.ending = ending;
        } else if leaves.is_some() {
            record.ending = Ending::Left;
        } else if record.ttft.is_none() {
            record.ttft = Some(scheduled.elapsed());
        }
        record
    }

    async fn follow(&self, flow: &Flow, shot: &Shot, scheduled: Instant, record: &mut Record) -> Ending {
        let response = match self.send(flow, shot).await {
            Ok(response) => response,
            Err(error) => return Ending::Failed(kind(&error).into()),
        };
        if !response.status().is_success() {
            return refused(&response);
        }
        let (mut events, mut body) = (Events::default(), response.bytes_stream());
        while let Some(part) = body.next().await {
            let part = match part {
                Ok(part) => part,
                Err(error) => return Ending::Failed(kind(&error).into()),
            };
            let now = Instant::now();
            for event in events.feed(&part) {
                match event {
                    Event::Done => return Ending::Completed,
                    Event::Content => {
                        if record.ttft.is_none() {
                            record.ttft = Some(now - scheduled);
                            record.lag = record.lag.max(self.lag.now());
                        }
                        record.tokens_in_window += u64::from(self.window.contains(&now));
                    }
                }
            }
        }
        Ending::Failed("cut short".into())
    }

    async fn send(&self, flow: &Flow, shot: &Shot) -> reqwest::Result<Response> {
        let prompt: String = WORD.chars().cycle().take(shot.prompt_bytes as usize).collect();
        let body = json!({
            "model": self.model, "stream": true, "max_tokens": shot.max_tokens,
            "messages": [{"role": "user", "content": prompt}],
        });
        let tenant = flow.tenants.get(shot.number % flow.tenants.len().max(1));
        let mut request = self.client.post(&self.url).json(&body);
        if let Some(tenant) = tenant {
            request = request.header("x-tenant-id", tenant);
        }
        if let Some((name, value)) = &flow.lane {
            request = request.header(name, value);
        }
        request.send().await
    }
}

fn refused(response: &Response) -> Ending {
    let reason = response.headers().get("x-sluice-reason").and_then(|reason| reason.to_str().ok());
    match reason {
        Some(reason) => Ending::Refused(reason.to_owned()),
        None => Ending::Failed(format!("status {}", response.status().as_u16())),
    }
}

fn kind(error: &reqwest::Error) -> &'static str {
    if error.is_connect() { "no connection" } else { "connection broken" }
}
