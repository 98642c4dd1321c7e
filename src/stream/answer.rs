//! The answer to a request that was admitted: what it costs, how long it takes, and who is told.

use std::borrow::Cow;

use admission_core::decide::Ask;
use admission_core::estimate::Observed;
use admission_core::units::{Millis, Time, Tokens};
use admission_core::usage::{AnswerReader, Form, Served, UsageChunkFilter};
use admission_core::vm::{Lesson, Usage};

use super::Stream;
use crate::headers::Headers;
use crate::host;
use crate::metrics::Histogram;
use crate::store::SharedData;

/// What access logs find behind the proxy's own `wasm.`, of requests that were admitted; what is not known is not set.
const ESTIMATED_PROMPT: &str = "sluice.estimated_prompt_tokens";
const ESTIMATED_OUTPUT: &str = "sluice.estimated_output_tokens";
const PROMPT: &str = "sluice.prompt_tokens";
const OUTPUT: &str = "sluice.output_tokens";
const CACHED: &str = "sluice.cached_tokens";
const TTFT: &str = "sluice.ttft_ms";
const COMPLETE: &str = "sluice.complete";

/// Of one stream of the proxy, from its request's headers to the end of its answer.
pub(super) struct Answer {
    /// The request's headers.
    arrived: Time,
    /// When it was admitted, and as what; its body may have corrected that.
    admitted: Time,
    estimate: Option<Ask>,
    reader: Option<AnswerReader>,
    /// Takes out what was asked for on the client's behalf.
    strip: Option<UsageChunkFilter>,
    first_output: Option<Time>,
    last_byte: Option<Time>,
    /// What the lease holds for the answer, as far as that has been asked.
    reserved: Tokens,
}

impl Answer {
    pub(super) fn new(arrived: Time) -> Self {
        Self {
            arrived,
            admitted: arrived,
            estimate: None,
            reader: None,
            strip: None,
            first_output: None,
            last_byte: None,
            reserved: Tokens(0),
        }
    }

    /// The request has been admitted as this.
    pub(super) fn admit(&mut self, ask: Ask, now: Time) {
        self.admitted = now;
        self.estimate = Some(ask);
    }

    /// Its body has shown it to be this.
    pub(super) fn correct(&mut self, ask: &Ask) {
        self.estimate = Some(*ask);
        self.reserved = Tokens(0);
    }

    fn ttft(&self) -> Option<Millis> {
        self.first_output.map(|first| first.since(self.arrived))
    }
}

impl Stream {
    /// The headers of an answer that its worker gives to an admitted request. One that is an error costs nothing, so it is not
    /// read, and one of no API that is known only where a budget hangs on it.
    pub(super) fn answer_begins(&mut self, headers: &mut Headers, now: Time) {
        let worker = format!("worker;dur={}", now.since(self.answer.admitted).0);
        let timing = match self.waited {
            Some(waited) => format!("queue;dur={}, {worker}", waited.0),
            None => worker,
        };
        headers.add("server-timing", timing);
        if self.failed || !(self.api.is_known() || self.spending.counts_tokens()) {
            return;
        }
        let (kind, encoding) = (headers.text("content-type"), headers.text("content-encoding"));
        let form = Form::of(kind.as_deref(), encoding.as_deref());
        if self.asked_for_usage && form == Form::Stream {
            // It will be shorter than it says, if it says.
            headers.remove("content-length");
            self.answer.strip = Some(UsageChunkFilter::default());
        }
        self.answer.reader = Some(AnswerReader::new(form));
    }

    /// A part of the answer has come; `end` with the last.
    pub(super) fn answer_goes_on(&mut self, size: usize, end: bool) {
        let Some(reader) = self.answer.reader.as_mut().filter(|reader| reader.form() != Form::Encoded) else { return };
        let bytes = host::response_body(size);
        reader.feed(&bytes);
        let (has_output, output) = (reader.has_output(), reader.output());
        if has_output && self.answer.first_output.is_none() {
            self.answer.first_output = Some(host::now());
        }
        if output > self.answer.reserved && reader.form() == Form::Stream {
            self.overdraw(output);
        }
        if end {
            self.answer.last_byte = Some(host::now());
        }
        if let Some(strip) = &mut self.answer.strip {
            let mut passed = strip.feed(&bytes);
            if end {
                let rest = strip.finish();
                if !rest.is_empty() {
                    passed.to_mut().extend(rest);
                }
            }
            if let Cow::Owned(passed) = passed {
                host::replace_response_body(size, &passed);
            }
        }
    }

    /// The lease holds what the answer has proved to need.
    fn overdraw(&mut self, output: Tokens) {
        let Some(lease) = self.lease else { return };
        let overdraft = self.instance.vm(|vm| vm.overdraw(&SharedData, lease, output, host::now()));
        let Some(overdraft) = overdraft else { return };
        self.answer.reserved = overdraft.reserved;
        if let Some(labels) = &self.admitted_as {
            self.instance.metrics.count_overdraft(labels, overdraft.grown);
        }
    }

    /// What the request has cost, by what has come of its answer.
    pub(super) fn usage(&self) -> Usage {
        match &self.answer.reader {
            Some(reader) => Usage::Served(reader.served()),
            None if self.failed => Usage::Nothing,
            None => Usage::AsEstimated,
        }
    }

    /// The stream has ended, before its lease is given back: says what came of it.
    pub(super) fn answer_ends(&self) {
        let Some(estimate) = self.answer.estimate.filter(|_| self.lease.is_some()) else { return };
        let say = |name: &str, value: u64| host::set_filter_state(name, &value.to_string());
        say(ESTIMATED_PROMPT, estimate.prompt.0);
        say(ESTIMATED_OUTPUT, estimate.output.0);
        let Some(reader) = &self.answer.reader else { return };
        let Served { prompt, cached, output } = reader.served();
        if let Some(prompt) = prompt {
            say(PROMPT, prompt.0);
            say(CACHED, cached.0);
        }
        if let Some(output) = output {
            say(OUTPUT, output.0);
        }
        if let Some(ttft) = self.answer.ttft() {
            say(TTFT, ttft.0);
        }
        if reader.form() != Form::Encoded {
            host::set_filter_state(COMPLETE, if reader.ended() { "true" } else { "false" });
        }
        self.measure(&estimate, prompt, output);
        self.teach(estimate.output, prompt, output.filter(|_| reader.ended()));
    }

    /// Tells what the worker has made of the request, for estimates to come; of the answer only where it came to its end.
    fn teach(&self, expected: Tokens, prompt: Option<Tokens>, output: Option<Tokens>) {
        let (Some(pool), Some(asked)) = (&self.pool, &self.asked) else { return };
        let observed = Observed {
            inputs: asked.inputs,
            prompt: prompt.and_then(|prompt| asked.prompt_seen(prompt)),
            output: output.and_then(|output| asked.output_seen(output, expected)),
            tenant: 0,
        };
        let lesson = Lesson { model: asked.model.as_deref(), tenant_key: &self.tenant_key, observed };
        self.instance.vm(|vm| vm.learn(&SharedData, pool, lesson, host::now()));
    }

    fn measure(&self, estimate: &Ask, prompt: Option<Tokens>, output: Option<Tokens>) {
        let Some(labels) = &self.admitted_as else { return };
        let metrics = &self.instance.metrics;
        metrics.record_of_answer(labels, Histogram::PromptTokens, prompt.unwrap_or(estimate.prompt).0);
        if let Some(output) = output {
            metrics.record_of_answer(labels, Histogram::OutputTokens, output.0);
        }
        if let Some(prompt) = prompt.filter(|prompt| prompt.0 > 0) {
            metrics.record_estimate(labels, estimate.prompt, prompt);
        }
        let (Some(first), Some(ttft)) = (self.answer.first_output, self.answer.ttft()) else { return };
        metrics.record_of_answer(labels, Histogram::Ttft, ttft.0);
        let decode = self.answer.last_byte.unwrap_or_else(host::now).since(first).0;
        metrics.record_of_answer(labels, Histogram::Decode, decode);
        // The first token was there when decoding began.
        let decoded = output.map_or(0, |output| output.0.saturating_sub(1));
        if let Some(speed) = decoded.saturating_mul(1_000).checked_div(decode).filter(|_| decoded > 0) {
            metrics.record_of_answer(labels, Histogram::TokensPerSecond, speed);
        }
    }
}
