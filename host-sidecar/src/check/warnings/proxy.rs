//! Of how the proxy holds, ends and restarts what the filter works on.

use std::time::Duration;

use admission_core::config::Config;

use crate::check::Notes;
use crate::check::envoy::Filter;
use crate::check::node::Node;

/// What a listener buffers of a connection unless told otherwise.
const DEFAULT_BUFFER: u64 = 1 << 20;

/// How long Envoy lets nothing move on a stream unless told otherwise.
const DEFAULT_IDLE: Duration = Duration::from_secs(300);

/// A wait may end this much later than it should before a timeout takes its place.
const MARGIN: Duration = Duration::from_secs(15);

/// What a listener buffers of a connection.
pub fn buffer_of(listener: Option<&Node<'_>>) -> u64 {
    listener.and_then(|listener| listener.number("per_connection_buffer_limit_bytes")).unwrap_or(DEFAULT_BUFFER)
}

/// A filter that traps must be loaded again.
pub fn failure_policy(filter: &Filter<'_>, notes: &mut Notes) {
    reloads(&filter.plugin, "failure_policy", "FAIL_CLOSED", notes);
}

/// The same in a WasmPlugin.
pub fn fail_strategy(spec: &Node<'_>, notes: &mut Notes) {
    reloads(spec, "failStrategy", "FAIL_CLOSE", notes);
}

fn reloads(node: &Node<'_>, field: &str, default: &str, notes: &mut Notes) {
    let said = node.text(field).unwrap_or(default);
    if said != "FAIL_RELOAD" {
        let what = if said == "FAIL_OPEN" { "lets every request by" } else { "answers 503 to every request" };
        let origin = if node.get(field).is_some() { "" } else { " (the default)" };
        let message =
            format!("{said}{origin}: after one trap a worker thread {what} until the proxy restarts; set FAIL_RELOAD");
        notes.warn(node.place(field), message);
    }
}

/// The proxy must be able to hold what the filter may hold and one read more.
pub fn buffers(config: &Config, filter: &Filter<'_>, notes: &mut Notes) {
    let read = buffer_of(filter.listener.as_ref());
    for route in filter.routes() {
        let holder = [&route.node, &route.host].into_iter().find(|node| node.get(BODY_BUFFER).is_some());
        match holder {
            Some(holder) => patched_buffer_of(holder, config.body.hold_limit, read, notes),
            None => {
                let message = format!(
                    "is not set, so the connection's {read} bytes hold: {}",
                    need(config.body.hold_limit, read)
                );
                notes.warn(route.node.place(BODY_BUFFER), message);
            }
        }
    }
}

const BODY_BUFFER: &str = "request_body_buffer_limit";

/// The same for a route that is patched by itself: of its listener nothing is known but the default.
pub fn patched_buffer(route: &Node<'_>, hold: u64, notes: &mut Notes) {
    patched_buffer_of(route, hold, DEFAULT_BUFFER, notes);
}

fn patched_buffer_of(holder: &Node<'_>, hold: u64, read: u64, notes: &mut Notes) {
    if let Some(limit) = holder.number(BODY_BUFFER)
        && limit < hold.saturating_add(read)
    {
        notes.warn(holder.place(BODY_BUFFER), format!("{limit} is too little: {}", need(hold, read)));
    }
}

fn need(hold: u64, read: u64) -> String {
    format!(
        "a body that the filter holds would get 413 from the proxy itself; at least {} are needed, `body.hold_limit` \
         ({hold}) + one read of the connection (`per_connection_buffer_limit_bytes`, {read})",
        hold.saturating_add(read)
    )
}

/// Streams must end when nothing moves, but not while a request may still wait.
pub fn idle_timeouts(filter: &Filter<'_>, longest_wait: Duration, notes: &mut Notes) {
    let Some(manager) = &filter.manager else { return };
    let routes = filter.routes();
    if routes.is_empty() || routes.iter().any(|route| route.action.get("idle_timeout").is_none()) {
        judge(manager, "stream_idle_timeout", Some(DEFAULT_IDLE), longest_wait, notes);
    }
    for route in routes {
        idle_timeout(&route.action, "idle_timeout", longest_wait, notes);
    }
}

/// The same for one timeout, if it is set.
pub fn idle_timeout(node: &Node<'_>, field: &str, longest_wait: Duration, notes: &mut Notes) {
    judge(node, field, None, longest_wait, notes);
}

fn judge(node: &Node<'_>, field: &str, default: Option<Duration>, longest_wait: Duration, notes: &mut Notes) {
    // What is set but is no duration is for the proxy to refuse.
    let set = node.get(field).is_some();
    let timeout = if set { node.duration(field) } else { default };
    let Some(timeout) = timeout else { return };
    let least = longest_wait.saturating_add(MARGIN);
    if timeout.is_zero() {
        let message = "0 means never: a held request whose VM has died would hang for ever; set it above the longest wait, \
                       for example 300s";
        notes.warn(node.place(field), message);
    } else if timeout <= least {
        let origin = if set { "" } else { " (the default)" };
        let message = format!(
            "{timeout:?}{origin} is too short: the proxy would end requests that may still wait; set it above {least:?}, \
             the longest wait ({longest_wait:?}) + {MARGIN:?}"
        );
        notes.warn(node.place(field), message);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_idle_timeout_must_outlast_the_longest_wait() {
        let warnings = |timeout: &str| {
            let mut notes = Notes::default();
            let manager = json!({"stream_idle_timeout": timeout});
            idle_timeout(&Node::root(&manager), "stream_idle_timeout", Duration::from_secs(240), &mut notes);
            notes.0
        };
        let said = warnings("255s");
        assert!(said[0].2.contains("set it above 255s, the longest wait (240s) + 15s"), "{said:?}");
        assert_eq!(warnings("256s"), []);
    }
}
