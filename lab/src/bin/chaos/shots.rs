//! The requests that are sent, and which of their callers leave.

use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};

use super::policy::TENANTS;
use testkit::parts::MODEL;

/// Requests a second, of which each stretch of the load draws one.
const RATES: [f64; 5] = [4.0, 15.0, 25.0, 40.0, 110.0];

const LANES: [Option<&str>; 5] = [None, Some("interactive"), Some("standard"), Some("batch"), Some("urgent")];

/// Workers count a token for four bytes.
const WORD: &str = "ask ";

/// One request to come.
#[derive(Clone, Debug, PartialEq)]
pub struct Shot {
    /// Since the start.
    pub at: Duration,
    pub tenant: String,
    pub lane: Option<&'static str>,
    pub api: Api,
    pub stream: bool,
    pub prompt_bytes: usize,
    pub max_tokens: u32,
    pub leaves: Option<Leaves>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Chat,
    Completions,
    Messages,
    Responses,
    Embeddings,
}

/// When a caller hangs up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// So long after sending, if there is no answer by then.
    Unanswered(Duration),
    /// So long after the answer's beginning.
    AmidAnswer(Duration),
}

/// The whole load, in order.
pub fn shots(seed: u64, length: Duration) -> Vec<Shot> {
    // Other numbers than the script's.
    let mut random = Rng::with_seed(seed ^ 0x5eed_0f10_ad00);
    let (mut shots, mut at) = (Vec::new(), 0.0);
    while at < length.as_secs_f64() {
        let rate = random.choice(RATES).unwrap_or(RATES[0]);
        // Bursts are short.
        let end = (at + random.f64() * 3.0 * (RATES[1] / rate).clamp(0.4, 1.0)).min(length.as_secs_f64());
        while at < end {
            shots.push(shot(Duration::from_secs_f64(at), &mut random));
            at += -(1.0 - random.f64()).ln() / rate;
        }
    }
    shots
}

fn shot(at: Duration, random: &mut Rng) -> Shot {
    let tenant = match random.u8(..10) {
        0..4 => TENANTS[0].to_owned(),
        4..6 => TENANTS[1].to_owned(),
        6 => TENANTS[2].to_owned(),
        7 => format!("stranger-{}", random.u32(..8)),
        _ => format!("stranger-{}", random.u32(..)),
    };
    let apis = [Api::Chat, Api::Chat, Api::Completions, Api::Messages, Api::Responses, Api::Embeddings];
    let prompt_bytes = if random.u8(..50) == 0 { random.usize(20_000..200_000) } else { random.usize(16..3_000) };
    let leaves = match random.u8(..10) {
        0 => Some(Leaves::Unanswered(Duration::from_millis(random.u64(..1_500)))),
        1 => Some(Leaves::AmidAnswer(Duration::from_millis(random.u64(..800)))),
        _ => None,
    };
    Shot {
        at,
        tenant,
        lane: random.choice(LANES).unwrap_or_default(),
        api: random.choice(apis).unwrap_or(Api::Chat),
        stream: random.bool(),
        prompt_bytes,
        max_tokens: random.u32(2..60),
        leaves,
    }
}

impl Shot {
    pub fn path(&self) -> &'static str {
        match self.api {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
            Api::Messages => "/v1/messages",
            Api::Responses => "/v1/responses",
            Api::Embeddings => "/v1/embeddings",
        }
    }

    pub fn body(&self) -> String {
        let prompt: String = WORD.chars().cycle().take(self.prompt_bytes).collect();
        let mut body: Value = match self.api {
            Api::Chat | Api::Messages => json!({"messages": [{"role": "user", "content": prompt}]}),
            Api::Completions => json!({"prompt": prompt}),
            Api::Responses | Api::Embeddings => json!({"input": prompt}),
        };
        body["model"] = MODEL.into();
        if self.api != Api::Embeddings {
            let limit = if self.api == Api::Responses { "max_output_tokens" } else { "max_tokens" };
            body[limit] = self.max_tokens.into();
            body["stream"] = self.stream.into();
        }
        body.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_sends_the_same_requests_in_order() {
        let length = Duration::from_secs(60);
        let load = shots(3, length);
        assert_eq!(load, shots(3, length));
        assert!(load.is_sorted_by_key(|shot| shot.at) && load.iter().all(|shot| shot.at < length));
        assert!(load.iter().any(|shot| shot.leaves.is_some()) && load.len() > 300, "{}", load.len());
    }
}
