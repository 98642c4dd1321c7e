//! A refusal as an HTTP answer, in the error shape of the API that was called.

use serde::Serialize;

use crate::config::RetryAfterConfig;
use crate::outcome::{self, Detail, Reason, Refusal, Retry};
use crate::policy::Reject;
use crate::request::Api;
use crate::units::Millis;

mod rate_limits;

pub use rate_limits::{push_number, rate_limits};

/// An HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Headers in the order they are sent.
    pub headers: Vec<(&'static str, String)>,
    /// JSON.
    pub body: Vec<u8>,
}

/// What a refused caller is answered. `dice` is random; it spreads the advice so that callers who were refused together
/// do not come back together.
#[must_use]
pub fn refusal(refusal: &Refusal, api: Api, reject: &Reject, dice: u32) -> Answer {
    let wait = match refusal.retry {
        Retry::After(wait) => Some(spread(wait, reject, dice)),
        Retry::Never => None,
    };
    let status = reject.status(refusal.reason);
    let batch_url = reject.batch_url.as_deref().filter(|_| refusal.reason == Reason::Oversize);
    let message = message(refusal, wait, batch_url);
    let body = match api {
        Api::Messages => serde_json::to_vec(&AnthropicBody::of(status, refusal, &message, batch_url)),
        _ => serde_json::to_vec(&OpenAiBody::of(status, refusal, &message, batch_url)),
    };
    let mut headers =
        vec![("content-type", "application/json".to_owned()), ("x-sluice-reason", refusal.reason.label().to_owned())];
    if matches!(refusal.detail, Detail::KeptBy(_)) {
        headers.push(("x-sluice-bound", refusal.bound().reason.label().to_owned()));
    }
    if let Some(place) = refusal.place {
        headers.push(("x-sluice-queue-position", place.position.to_string()));
        headers.extend(place.wait.map(|wait| ("x-sluice-predicted-wait-ms", wait.0.to_string())));
    }
    match wait {
        Some(wait) => {
            headers.push(("retry-after", wait.0.div_ceil(1_000).to_string()));
            headers.push(("retry-after-ms", wait.0.to_string()));
        }
        None => headers.push(("x-should-retry", "false".to_owned())),
    }
    if status == 401 {
        headers.push(("www-authenticate", "Bearer".to_owned()));
    }
    Answer { status, headers, body: body.unwrap_or_default() }
}

/// The wait, lengthened by a random part of up to `jitter`, within the bounds. A wait of `max` or more is spread below it: callers of a
/// long overload are not to come back in one moment.
fn spread(wait: Millis, reject: &Reject, dice: u32) -> Millis {
    let RetryAfterConfig { min, max, jitter } = reject.retry_after;
    let max = max.max(min);
    let longest = |wait: u64| wait.saturating_add((wait as f64 * jitter) as u64);
    let (least, most) = match wait.0 < max.0 {
        true => (wait.0, longest(wait.0).min(max.0)),
        false => ((max.0 as f64 / (1.0 + jitter)) as u64, max.0),
    };
    let part = (most.saturating_sub(least) as f64 * f64::from(dice) / f64::from(u32::MAX)) as u64;
    Millis(least.saturating_add(part).max(min.0))
}

fn message(refusal: &Refusal, wait: Option<Millis>, batch_url: Option<&str>) -> String {
    let mut message = refusal.to_string();
    if let Some(wait) = wait {
        message.push_str(&format!("; retry in {}s", wait.0.div_ceil(1_000)));
    }
    if let Some(url) = batch_url {
        message.push_str(&format!("; send it to {url} instead"));
    }
    message
}

#[derive(Serialize)]
struct OpenAiBody<'a> {
    error: OpenAiError<'a>,
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'static str>,
    code: &'static str,
    #[serde(flatten)]
    details: Details<'a>,
}

#[derive(Serialize)]
struct AnthropicBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicError<'a>,
}

#[derive(Serialize)]
struct AnthropicError<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: &'a str,
    #[serde(flatten)]
    details: Details<'a>,
}

/// What both shapes carry beside what clients of those APIs read.
#[derive(Serialize)]
struct Details<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Limit<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<Bound<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_url: Option<&'a str>,
}

/// The limit that kept a request from starting which was to wait, or has waited.
#[derive(Serialize)]
struct Bound<'a> {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Limit<'a>>,
}

#[derive(Serialize)]
struct Limit<'a> {
    knob: &'a str,
    measured: u64,
    allowed: u64,
    unit: &'a str,
}

impl<'a> OpenAiBody<'a> {
    fn of(status: u16, refusal: &'a Refusal, message: &'a str, batch_url: Option<&'a str>) -> Self {
        let kind = match status {
            401 => "authentication_error",
            429 => "rate_limit_error",
            500.. => "service_unavailable_error",
            _ => "invalid_request_error",
        };
        let details = Details::of(refusal, batch_url);
        Self { error: OpenAiError { message, kind, param: None, code: refusal.reason.label(), details } }
    }
}

impl<'a> AnthropicBody<'a> {
    fn of(status: u16, refusal: &'a Refusal, message: &'a str, batch_url: Option<&'a str>) -> Self {
        let kind = match status {
            401 => "authentication_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            500.. => "overloaded_error",
            _ => "invalid_request_error",
        };
        Self { kind: "error", error: AnthropicError { kind, message, details: Details::of(refusal, batch_url) } }
    }
}

impl<'a> Limit<'a> {
    fn of(refusal: &'a Refusal) -> Option<Self> {
        let outcome::Limit { knob, measured, allowed, unit } = refusal.limit.as_ref()?;
        Some(Self { knob, measured: *measured, allowed: *allowed, unit })
    }
}

impl<'a> Details<'a> {
    fn of(refusal: &'a Refusal, batch_url: Option<&'a str>) -> Self {
        let bound = match &refusal.detail {
            Detail::KeptBy(bound) => Some(Bound { code: bound.reason.label(), limit: Limit::of(bound) }),
            _ => None,
        };
        Self { limit: Limit::of(refusal), bound, batch_url }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::outcome::Limit;
    use crate::policy::{Plugin, Policy};

    fn policy(reject: &Value) -> Policy {
        let json = json!({"pools": [{"name": "p", "max_in_flight": 1}], "reject": reject}).to_string();
        let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
        *policy
    }

    fn refused(reason: Reason, retry: Retry) -> Refusal {
        let limit = Some(Limit { knob: "tiers.free.max_in_flight".into(), measured: 5, allowed: 4, unit: "requests" });
        Refusal { reason, limit, detail: Detail::None, retry, place: None }
    }

    fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
        answer.headers.iter().find(|(header, _)| *header == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn both_apis_get_their_own_shape() {
        let policy = policy(&json!({}));
        let limited = refused(Reason::TenantRequests, Retry::After(Millis(1_200)));
        let openai = refusal(&limited, Api::Chat, &policy.reject, 0);
        let body: Value = serde_json::from_slice(&openai.body).unwrap();
        assert_eq!(
            (&body["error"]["type"], &body["error"]["code"]),
            (&json!("rate_limit_error"), &json!("tenant_requests"))
        );
        assert_eq!(body["error"]["limit"]["measured"], 5);
        let anthropic = refusal(&limited, Api::Messages, &policy.reject, 0);
        let body: Value = serde_json::from_slice(&anthropic.body).unwrap();
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("rate_limit_error")));
        assert_eq!(body["error"]["message"].as_str().unwrap().matches("retry in 2s").count(), 1);
        let large = refusal(&refused(Reason::Oversize, Retry::Never), Api::Messages, &policy.reject, 0);
        assert!(String::from_utf8(large.body).unwrap().contains("request_too_large"));
    }

    #[test]
    fn a_refusal_out_of_a_queue_names_the_wait_and_what_kept_it() {
        let bound = refused(Reason::TenantRequests, Retry::After(Millis(0)));
        let limit =
            Limit { knob: "lanes[chat].queue.max_wait".into(), measured: 3_000, allowed: 2_000, unit: "ms of waiting" };
        let detail = Detail::KeptBy(Box::new(bound));
        let retry = Retry::After(Millis(3_000));
        let waited = Refusal { reason: Reason::WaitTooLong, limit: Some(limit), detail, retry, place: None };
        let answer = refusal(&waited, Api::Chat, &policy(&json!({})).reject, 0);
        assert_eq!(header(&answer, "x-sluice-bound"), Some("tenant_requests"));
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["error"]["code"], "wait_too_long");
        assert_eq!(body["error"]["limit"]["knob"], "lanes[chat].queue.max_wait");
        assert_eq!(body["error"]["bound"]["code"], "tenant_requests");
        assert_eq!(body["error"]["bound"]["limit"]["knob"], "tiers.free.max_in_flight");
        assert_eq!(
            body["error"]["message"].as_str().unwrap(),
            "the wait in the queue would be too long (3000 ms of waiting; lanes[chat].queue.max_wait allows 2000); what kept it from \
             starting: too many requests of this tenant in flight (5 requests; tiers.free.max_in_flight allows 4); retry in 3s"
        );
    }

    #[test]
    fn advice_is_spread_upwards_within_its_bounds() {
        let policy = policy(&json!({"retry_after": {"min": "1s", "max": "10s", "jitter": 0.5}}));
        let ms = |wait, dice| {
            let answer =
                refusal(&refused(Reason::AllBusy, Retry::After(Millis(wait))), Api::Chat, &policy.reject, dice);
            (header(&answer, "retry-after").unwrap().to_owned(), header(&answer, "retry-after-ms").unwrap().to_owned())
        };
        assert_eq!(ms(2_000, 0), ("2".into(), "2000".into()));
        assert_eq!(ms(2_000, u32::MAX), ("3".into(), "3000".into()));
        assert_eq!(ms(9_000, u32::MAX), ("10".into(), "10000".into()));
        assert_eq!(ms(9_000, 0), ("9".into(), "9000".into()));
        let at_the_ceiling = [0, u32::MAX / 2, u32::MAX].map(|dice| ms(60_000, dice).1);
        assert_eq!(at_the_ceiling, ["6666", "8332", "10000"]);
        assert_eq!(ms(0, 0), ("1".into(), "1000".into()));
    }

    #[test]
    fn what_cannot_be_helped_says_so_and_where_to_go() {
        let policy = policy(&json!({"batch_url": "https://batch.example/v1", "status": {"oversize": 422}}));
        let answer = refusal(&refused(Reason::Oversize, Retry::Never), Api::Completions, &policy.reject, 7);
        assert_eq!(
            (answer.status, header(&answer, "x-should-retry"), header(&answer, "retry-after")),
            (422, Some("false"), None)
        );
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["error"]["batch_url"], "https://batch.example/v1");
        let other = refusal(&refused(Reason::AllBusy, Retry::After(Millis(1))), Api::Completions, &policy.reject, 7);
        assert!(!String::from_utf8(other.body).unwrap().contains("batch.example"), "only where it helps");
    }

    #[test]
    fn a_wrong_key_is_answered_as_apis_do() {
        let refused = refused(Reason::UnknownKey, Retry::Never);
        for api in [Api::Chat, Api::Messages] {
            let answer = refusal(&refused, api, &policy(&json!({})).reject, 0);
            let body: Value = serde_json::from_slice(&answer.body).unwrap();
            assert_eq!((answer.status, body["error"]["type"].as_str()), (401, Some("authentication_error")));
            assert_eq!(
                (header(&answer, "www-authenticate"), header(&answer, "x-should-retry")),
                (Some("Bearer"), Some("false"))
            );
        }
    }

    #[test]
    fn every_reason_can_have_another_status() {
        for reason in Reason::ALL {
            let changed = policy(&json!({"status": {reason.label(): 529}}));
            assert_eq!(changed.reject.status(reason), 529);
            assert_eq!(policy(&json!({})).reject.status(reason), reason.status());
        }
    }
}
