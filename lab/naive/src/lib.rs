//! The filter that anybody would write first: the whole body is buffered and parsed into a tree, its texts are taken for tokens
//! at four bytes each, and one counter in shared data holds the requests in flight.
//!
//! It holds the headers while the body comes, so the proxy has to be configured with `allow_on_headers_stop_iteration`.
#![allow(missing_docs, reason = "the module exports the host's callbacks, not an API")]

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};
use serde_json::Value;

/// Requests in flight, in all worker threads; eight bytes with the lowest first.
const IN_FLIGHT: &str = "naive/in-flight";

/// Most requests in flight, which the benchmark never reaches.
const MOST: i64 = 100_000;

/// Times that a change is tried before the request is refused.
const ATTEMPTS: usize = 32;

/// The header that tells the worker how many tokens the request is taken for. The benchmark's worker counts requests that have it.
const MARK: &str = "x-bench-mark";

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root));
}}

struct Root;

impl Context for Root {}

impl RootContext for Root {
    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Naive { counted: false }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Naive {
    counted: bool,
}

impl Context for Naive {}

impl HttpContext for Naive {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        if end_of_stream { Action::Continue } else { Action::Pause }
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        if !end_of_stream {
            return Action::Pause;
        }
        let body = self.get_http_request_body(0, size).unwrap_or_default();
        let Some(tokens) = serde_json::from_slice(&body).ok().as_ref().and_then(tokens) else {
            return self.refuse(400);
        };
        self.counted = change(1);
        if !self.counted {
            return self.refuse(429);
        }
        self.set_http_request_header(MARK, Some(&tokens.to_string()));
        Action::Continue
    }

    fn on_log(&mut self) {
        if self.counted {
            change(-1);
        }
    }
}

impl Naive {
    fn refuse(&self, status: u32) -> Action {
        self.send_http_response(status, Vec::new(), None);
        Action::Pause
    }
}

/// Tokens of a chat: those of its texts, and those that its answer may have. `None` of what is no chat.
fn tokens(body: &Value) -> Option<u64> {
    let messages = body.get("messages")?.as_array()?;
    let text: usize = messages.iter().filter_map(|message| message.get("content")?.as_str()).map(str::len).sum();
    let answer = body.get("max_tokens").and_then(Value::as_u64).unwrap_or_default();
    Some((text as u64 / 4).saturating_add(answer))
}

/// Changes the counter by compare-and-swap; false when there is no room, or when others were always faster.
fn change(by: i64) -> bool {
    for _ in 0..ATTEMPTS {
        let (bytes, version) = hostcalls::get_shared_data(IN_FLIGHT).unwrap_or_default();
        let held = bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, i64::from_le_bytes);
        let changed = held.saturating_add(by);
        if by > 0 && changed > MOST {
            return false;
        }
        // Why: a proxy ignores the version of a key that is absent, and takes 0 for "overwrite any".
        let version = version.unwrap_or(u32::MAX);
        if hostcalls::set_shared_data(IN_FLIGHT, Some(&changed.to_le_bytes()), Some(version)).is_ok() {
            return true;
        }
    }
    false
}
