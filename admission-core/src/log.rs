//! Decisions as access logs print them.
//!
//! A proxy prints an object of its filter state within its own JSON when that is a `google.protobuf.Struct`.

use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use crate::decide::Ask;
use crate::outcome::{Detail, Refusal};
use crate::units::{Millis, Tokens};

/// An end that the decision on a request may have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request was let in.
    Admitted,
    /// The request was answered with a refusal.
    Refused,
    /// The request was let in, and gave way to a request of a higher lane before its answer began.
    Evicted,
    /// The caller left while it waited for its turn.
    Left,
    /// The request ended before it could be decided.
    Undecided,
    /// The request would have been refused, were it not in shadow.
    WouldReject,
    /// The request would have waited, were it not in shadow.
    WouldWait,
}

impl Outcome {
    const fn label(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::Evicted => "evicted",
            Self::Left => "left",
            Self::Undecided => "undecided",
            Self::WouldReject => "would_reject",
            Self::WouldWait => "would_wait",
        }
    }
}

/// A decision, and what has come of the request. What is not known, and numbers that do not exist, are left out.
#[derive(Clone, Copy, Debug)]
pub struct Decision<'a> {
    /// The end of the decision.
    pub outcome: Outcome,
    /// Name of the tenant.
    pub tenant: &'a str,
    /// True where the decision does not bind.
    pub in_shadow: bool,
    /// Name of the pool.
    pub pool: &'a str,
    /// Name of the lane.
    pub lane: &'a str,
    /// The model, by the pattern of the pool that it fits.
    pub model: &'a str,
    /// The API, as metrics label it.
    pub endpoint: &'a str,
    /// Fingerprint of the policy that decided.
    pub policy: &'a str,
    /// The refusal, where there was one, or would have been.
    pub refusal: Option<&'a Refusal>,
    /// Tokens that the request was taken for.
    pub estimate: Option<Ask>,
    /// Tokens of the prompt as the worker reported.
    pub prompt: Option<Tokens>,
    /// Prompt tokens that the worker had in its cache.
    pub cached: Option<Tokens>,
    /// Tokens of the answer as the worker reported, or of a stream as counted.
    pub output: Option<Tokens>,
    /// The answer came to the end that its API gives it.
    pub complete: Option<bool>,
    /// Time that the request waited for its turn; `None` where its lane has no queue.
    pub waited: Option<Millis>,
    /// Time from the request's headers to the first output of a stream.
    pub ttft: Option<Millis>,
}

impl Decision<'_> {
    /// The object that is printed, as bytes of a `google.protobuf.Struct`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.object().encode_to_vec()
    }

    fn object(&self) -> Struct {
        let mut fields = Fields::default();
        fields.text("outcome", self.outcome.label());
        fields.text("tenant", self.tenant);
        fields.text("pool", self.pool);
        fields.text("lane", self.lane);
        fields.text("model", self.model);
        fields.text("endpoint", self.endpoint);
        fields.text("policy", self.policy);
        if self.in_shadow {
            fields.put("shadow", Kind::BoolValue(true));
        }
        if let Some(refusal) = self.refusal {
            fields.text("reason", refusal.reason.label());
            fields.limit(refusal);
            if let Detail::KeptBy(bound) = &refusal.detail {
                let mut of_bound = Fields::default();
                of_bound.text("reason", bound.reason.label());
                of_bound.limit(bound);
                fields.put("bound", Kind::StructValue(of_bound.0));
            }
        }
        let estimated = |of: fn(&Ask) -> Tokens| self.estimate.as_ref().map(|ask| of(ask).0);
        fields.number("estimated_prompt_tokens", estimated(|ask| ask.prompt));
        fields.number("estimated_output_tokens", estimated(|ask| ask.output));
        fields.number("prompt_tokens", self.prompt.map(|tokens| tokens.0));
        fields.number("cached_tokens", self.cached.map(|tokens| tokens.0));
        fields.number("output_tokens", self.output.map(|tokens| tokens.0));
        fields.number("queue_wait_ms", self.waited.map(|wait| wait.0));
        fields.number("ttft_ms", self.ttft.map(|ttft| ttft.0));
        if let Some(complete) = self.complete {
            fields.put("complete", Kind::BoolValue(complete));
        }
        fields.0
    }
}

#[derive(Default)]
struct Fields(Struct);

impl Fields {
    fn put(&mut self, name: &str, kind: Kind) {
        self.0.fields.insert(name.to_owned(), Value { kind: Some(kind) });
    }

    fn text(&mut self, name: &str, text: &str) {
        self.put(name, Kind::StringValue(text.to_owned()));
    }

    fn number(&mut self, name: &str, number: Option<u64>) {
        if let Some(number) = number {
            self.put(name, Kind::NumberValue(number as f64));
        }
    }

    fn limit(&mut self, refusal: &Refusal) {
        let Some(limit) = &refusal.limit else { return };
        let mut of_limit = Fields::default();
        of_limit.text("knob", &limit.knob);
        of_limit.number("measured", Some(limit.measured));
        of_limit.number("allowed", Some(limit.allowed));
        of_limit.text("unit", limit.unit);
        self.put("limit", Kind::StructValue(of_limit.0));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::outcome::{Limit, Reason, Retry};

    fn text(value: &Struct, field: &str) -> Option<String> {
        match value.fields.get(field)?.kind.as_ref()? {
            Kind::StringValue(text) => Some(text.clone()),
            Kind::NumberValue(number) => Some(number.to_string()),
            Kind::BoolValue(value) => Some(value.to_string()),
            _ => None,
        }
    }

    fn object(value: &Struct, field: &str) -> Struct {
        match value.fields.get(field).and_then(|value| value.kind.as_ref()) {
            Some(Kind::StructValue(object)) => object.clone(),
            other => panic!("{field}: {other:?}"),
        }
    }

    fn refusal(reason: Reason, measured: u64, detail: Detail) -> Refusal {
        let limit = Some(Limit { knob: "knob".into(), measured, allowed: 1, unit: "requests" });
        Refusal { reason, limit, detail, retry: Retry::Never, place: None }
    }

    #[test]
    fn it_is_a_message_with_what_is_known() {
        let bound = refusal(Reason::TenantRequests, 3, Detail::None);
        let refused = refusal(Reason::QueueTimeout, 2, Detail::KeptBy(Box::new(bound)));
        let decision = Decision {
            outcome: Outcome::Refused,
            tenant: "acme",
            in_shadow: false,
            pool: "llama",
            lane: "chat",
            model: "any",
            endpoint: "messages",
            policy: "0123",
            refusal: Some(&refused),
            estimate: None,
            prompt: None,
            cached: None,
            output: Some(Tokens(7)),
            complete: Some(false),
            waited: Some(Millis(2_000)),
            ttft: None,
        };
        let read = Struct::decode(&*decision.encode()).unwrap();
        let mut said: BTreeMap<String, String> =
            read.fields.keys().map(|field| (field.clone(), String::new())).collect();
        for (field, said) in &mut said {
            *said = text(&read, field).unwrap_or_default();
        }
        let expected = [
            ("bound", ""),
            ("complete", "false"),
            ("endpoint", "messages"),
            ("lane", "chat"),
            ("limit", ""),
            ("model", "any"),
            ("outcome", "refused"),
            ("output_tokens", "7"),
            ("policy", "0123"),
            ("pool", "llama"),
            ("queue_wait_ms", "2000"),
            ("reason", "queue_timeout"),
            ("tenant", "acme"),
        ];
        assert_eq!(said, expected.map(|(field, text)| (field.to_owned(), text.to_owned())).into());
        let bound = object(&read, "bound");
        assert_eq!(text(&bound, "reason").as_deref(), Some("tenant_requests"));
        assert_eq!(text(&object(&bound, "limit"), "measured").as_deref(), Some("3"));
        assert_eq!(text(&object(&read, "limit"), "measured").as_deref(), Some("2"));
    }
}
