//! Decisions as access logs print them.
//!
//! A proxy prints an object of its filter state within its own JSON when that is a `google.protobuf.Struct`.
//!
//! Its bytes are written straight: a tree of such a message costs half as much as all else that is done for a request. As protobuf has it, a
//! field is a byte of number and wire type, a length where the wire type asks for one, and the value.

use crate::ask::Ask;
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
        let mut fields = Fields::default();
        fields.text("outcome", self.outcome.label());
        fields.text("tenant", self.tenant);
        fields.text("pool", self.pool);
        fields.text("lane", self.lane);
        fields.text("model", self.model);
        fields.text("endpoint", self.endpoint);
        fields.text("policy", self.policy);
        if self.in_shadow {
            fields.flag("shadow", true);
        }
        if let Some(refusal) = self.refusal {
            fields.text("reason", refusal.reason.label());
            fields.limit(refusal);
            if let Detail::KeptBy(bound) = &refusal.detail {
                let mut of_bound = Fields::default();
                of_bound.text("reason", bound.reason.label());
                of_bound.limit(bound);
                fields.object("bound", &of_bound);
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
            fields.flag("complete", complete);
        }
        fields.0
    }
}

/// Bytes of all entries for a usual decision.
const ROOM: usize = 512;

/// An entry of `Struct.fields`, its key and its value: the first two are fields 1 of a length, the third is field 2.
const ENTRY: u8 = 0x0a;
const KEY: u8 = 0x0a;
const VALUE: u8 = 0x12;

/// Kinds of a `Value`: fields 2 of eight bytes, 3 of a length, 4 of a number, 5 of a length.
const NUMBER: u8 = 0x11;
const TEXT: u8 = 0x1a;
const FLAG: u8 = 0x20;
const OBJECT: u8 = 0x2a;

/// The entries of a `Struct`.
struct Fields(Vec<u8>);

impl Default for Fields {
    fn default() -> Self {
        Self(Vec::with_capacity(ROOM))
    }
}

impl Fields {
    /// An entry whose value is of a kind; with `has_length` the kind's bytes are preceded by their number.
    #[inline(always)]
    fn put(&mut self, name: &str, kind: u8, has_length: bool, bytes: &[u8]) {
        let length = if has_length { length_of(bytes.len()) } else { 0 };
        let value = 1 + length + bytes.len();
        let key = 1 + length_of(name.len()) + name.len();
        self.begin(ENTRY, key + 1 + length_of(value) + value);
        self.begin(KEY, name.len());
        self.0.extend_from_slice(name.as_bytes());
        self.begin(VALUE, value);
        if has_length {
            self.begin(kind, bytes.len());
        } else {
            self.0.push(kind);
        }
        self.0.extend_from_slice(bytes);
    }

    /// The begin of a field of a length: its number and wire type, and the length in groups of seven bits, the lowest first; all but the last
    /// have the highest bit set.
    #[inline(always)]
    fn begin(&mut self, field: u8, length: usize) {
        if length < 0x80 {
            return self.0.extend_from_slice(&[field, length as u8]);
        }
        self.0.push(field);
        let mut left = length;
        while left >= 0x80 {
            self.0.push(left as u8 | 0x80);
            left >>= 7;
        }
        self.0.push(left as u8);
    }

    fn text(&mut self, name: &str, text: &str) {
        self.put(name, TEXT, true, text.as_bytes());
    }

    fn number(&mut self, name: &str, number: Option<u64>) {
        if let Some(number) = number {
            self.put(name, NUMBER, false, &(number as f64).to_le_bytes());
        }
    }

    fn flag(&mut self, name: &str, flag: bool) {
        self.put(name, FLAG, false, &[u8::from(flag)]);
    }

    fn object(&mut self, name: &str, fields: &Self) {
        self.put(name, OBJECT, true, &fields.0);
    }

    fn limit(&mut self, refusal: &Refusal) {
        let Some(limit) = &refusal.limit else { return };
        let mut of_limit = Fields::default();
        of_limit.text("knob", &limit.knob);
        of_limit.number("measured", Some(limit.measured));
        of_limit.number("allowed", Some(limit.allowed));
        of_limit.text("unit", limit.unit);
        self.object("limit", &of_limit);
    }
}

/// Bytes that a length takes.
fn length_of(length: usize) -> usize {
    if length < 0x80 {
        return 1;
    }
    let bits = usize::BITS.saturating_sub(length.leading_zeros()).max(1);
    bits.div_ceil(7) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost::Message;
    use prost_types::Struct;
    use prost_types::value::Kind;

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

    #[test]
    fn texts_of_every_length_are_read_back() {
        for length in [0, 1, 100, 114, 120, 127, 128, 129, 16_300, 16_383, 16_384, 2_100_000] {
            let mut fields = Fields::default();
            let value = "x".repeat(length);
            let mut inner = Fields::default();
            inner.text(&value, &value);
            fields.object("inner", &inner);
            fields.number("most", Some(u64::MAX));
            let read = Struct::decode(&*fields.0).unwrap();
            assert_eq!(text(&object(&read, "inner"), &value).as_deref(), Some(&*value), "{length}");
            assert_eq!(text(&read, "most"), Some((u64::MAX as f64).to_string()));
        }
    }
}
