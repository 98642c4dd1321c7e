//! The answer to a request that was admitted: what it costs, how long it takes, and who is told.

use admission_core::answer::push_number;
use admission_core::ask::Ask;
use admission_core::attributes::AnswerAttributes;
use admission_core::estimate::Observed;
use admission_core::headers::Headers;
use admission_core::metrics::Measured;
use admission_core::policy::Pool;
use admission_core::strip::Strip;
use admission_core::units::{Millis, Time, Tokens};
use admission_core::usage::{AnswerReader, Form, Served};
use admission_core::vm::{LeaseId, Lesson, Sent, Unserved, Usage};

use proxy_wasm::types::Action;

use super::Stream;
use crate::effect::Effect;
use crate::shared::Shared;

/// The answer of one stream of the proxy, from the request's headers to the end.
#[derive(Default)]
pub(super) struct Answer {
    /// Time at which the request's headers came.
    arrived: Time,
    /// Time at which the request was admitted.
    admitted: Time,
    /// The request as it was taken for when it was last decided; its body may have corrected that.
    pub(super) estimate: Option<Ask>,
    pub(super) reader: Option<AnswerReader>,
    /// Takes out what was asked for on the client's behalf.
    strip: Option<Strip>,
    first_output: Option<Time>,
    /// True once its output has begun, or what is not read does.
    has_begun: bool,
    last_byte: Option<Time>,
    /// What the lease holds for the answer, as far as that has been asked.
    reserved: Tokens,
}

impl Answer {
    /// The request's headers have come.
    pub(super) fn arrive(&mut self, now: Time) {
        self.arrived = now;
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

    pub(super) fn ttft(&self) -> Option<Millis> {
        self.first_output.map(|first| first.since(self.arrived))
    }
}

impl Stream {
    /// The headers of an answer that its worker gives to an admitted request. One that is an error costs nothing, so it is not
    /// read, and one to a body that could not be read only where a budget hangs on it.
    pub(super) fn answer_begins(&mut self, headers: &mut Headers, shared: &mut Shared<'_>) {
        let mut timing = String::with_capacity(48);
        if let Some(waited) = self.waited {
            timing.push_str("queue;dur=");
            push_number(&mut timing, waited.0);
            timing.push_str(", ");
        }
        timing.push_str("worker;dur=");
        push_number(&mut timing, shared.env.now().since(self.answer.admitted).0);
        headers.add("server-timing", timing);
        let is_read = self.api.is_json() || self.asked.is_some() || self.spending.counts_tokens();
        if self.failed.is_some() || self.is_tunnel || !is_read {
            return;
        }
        let (kind, encoding) = (headers.text("content-type"), headers.text("content-encoding"));
        let form = Form::of(kind.as_deref(), encoding.as_deref());
        if let Some(lease) = self.lease.filter(|_| form != Form::Stream) {
            shared.vm.answers_whole(shared.env.store(), lease);
        }
        if self.asked_for_usage && form == Form::Stream {
            // It will be shorter than it says, if it says.
            headers.remove("content-length");
            self.answer.strip = Some(Strip::default());
        }
        let has_several = self.asked.as_ref().is_some_and(|asked| asked.sequences > 1);
        self.answer.reader = Some(if has_several { AnswerReader::of_several(form) } else { AnswerReader::new(form) });
    }

    /// Notes what the status of an answer says of the worker that was to give it.
    pub(super) fn note_status(
        &self,
        lease: LeaseId,
        status: &str,
        attributes: &dyn AnswerAttributes,
        shared: &mut Shared<'_>,
    ) {
        let Some(pool) = &self.pool else { return };
        let now = shared.env.now();
        let asked = self.asked.as_ref();
        let sent =
            Sent { api: self.api, model: asked.and_then(|asked| asked.model.as_deref()), tenant_key: &self.tenant_key };
        let status = status.parse().unwrap_or(0);
        if (200..300).contains(&status) {
            if shared.vm.served(lease, &sent, now)
                && let Some(worker) = attributes.worker()
            {
                shared.vm.served_by(pool, &worker, &sent, now);
            }
        } else if let Some(how) = unserved(status, pool, attributes)
            && let Some(worker) = attributes.worker()
        {
            shared.vm.unserved(shared.env.store(), pool, &worker, how, &sent, now);
        }
    }

    /// Offset in what the proxy holds of the answer from which bytes are read; `None` where none are.
    pub fn answer_read_from(&self) -> Option<usize> {
        self.answer.reader.as_ref().filter(|reader| reader.form() != Form::Encoded)?;
        Some(self.answer.strip.as_ref().map_or(0, Strip::left))
    }

    /// New bytes of the answer have come, with which the proxy holds `size` of it; `end` with the last. Says whether they go on.
    pub fn answer_goes_on(&mut self, bytes: &[u8], size: usize, end: bool, shared: &mut Shared<'_>) -> Action {
        let Some(reader) = self.answer.reader.as_mut().filter(|reader| reader.form() != Form::Encoded) else {
            // What is not read begins with its first byte.
            self.first_token(shared);
            return Action::Continue;
        };
        reader.feed(bytes);
        let (has_output, output, form) = (reader.has_output(), reader.output(), reader.form());
        if has_output && self.answer.first_output.is_none() {
            self.answer.first_output = Some(shared.env.now());
            self.first_token(shared);
        }
        if output > self.answer.reserved && form == Form::Stream {
            self.overdraw(output, shared);
        }
        if end && self.answer.first_output.is_some() {
            self.answer.last_byte = Some(shared.env.now());
        }
        let Some(strip) = &mut self.answer.strip else { return Action::Continue };
        let edit = strip.take(bytes, size, end);
        if let Some(bytes) = edit.replace {
            shared.push(Effect::ReplaceAnswer { held: size, bytes });
        }
        if edit.goes_on { Action::Continue } else { Action::Pause }
    }

    /// The answer has begun, so its worker has read the prompt.
    fn first_token(&mut self, shared: &mut Shared<'_>) {
        // Why not a stream of several answers: the others' prompts may not be read yet.
        let is_stream = self.answer.reader.as_ref().is_some_and(|reader| reader.form() == Form::Stream);
        if is_stream && self.asked.as_ref().is_some_and(|asked| asked.sequences > 1) {
            return;
        }
        // Why not an error: its worker has read nothing.
        if let (None, false, Some(lease)) =
            (self.failed, std::mem::replace(&mut self.answer.has_begun, true), self.lease)
        {
            shared.vm.first_token(shared.env.store(), lease, shared.env.now());
        }
    }

    /// The answer's trailers have come, which end its body.
    pub fn answer_has_trailers(&mut self, shared: &mut Shared<'_>) {
        self.answer.last_byte = Some(shared.env.now());
        if let Some(strip) = &mut self.answer.strip
            && let Some(bytes) = strip.end()
        {
            shared.push(Effect::ReplaceAnswer { held: strip.left(), bytes });
        }
    }

    /// The lease holds what the answer has proved to need.
    fn overdraw(&mut self, output: Tokens, shared: &mut Shared<'_>) {
        let Some(lease) = self.lease else { return };
        let overdraft = shared.vm.overdraw(shared.env.store(), lease, output, shared.env.now());
        let Some(overdraft) = overdraft else { return };
        self.answer.reserved = overdraft.reserved;
        if let Some(labels) = &self.admitted_as {
            shared.metrics.count_overdraft(labels, overdraft.grown);
        }
    }

    /// What the request has cost, by what has come of its answer.
    pub(super) fn usage(&self) -> Usage {
        match &self.answer.reader {
            Some(reader) if reader.failed() => Usage::Nothing,
            Some(reader) => Usage::Served(reader.served()),
            None => self.failed.unwrap_or(Usage::AsEstimated),
        }
    }

    /// The stream has ended, before its lease is given back: says what came of it.
    pub(super) fn answer_ends(&mut self, shared: &mut Shared<'_>) {
        let served = self.whole_answer().map(AnswerReader::served);
        self.leave_decision(served.as_ref(), shared);
        let Some(estimate) = self.answer.estimate.filter(|_| self.lease.is_some()) else { return };
        let (Some(reader), Some(Served { prompt, output, .. })) = (self.whole_answer(), served) else { return };
        self.measure(&estimate, prompt, output, shared);
        self.teach(estimate.output, prompt, output.filter(|_| reader.ended()), shared);
    }

    /// The answer as far as it was read, unless it says that it failed.
    fn whole_answer(&self) -> Option<&AnswerReader> {
        self.answer.reader.as_ref().filter(|reader| !reader.failed())
    }

    /// Tells what the worker has made of the request, for estimates to come; of the answer only where it came to its end.
    fn teach(&self, expected: Tokens, prompt: Option<Tokens>, output: Option<Tokens>, shared: &mut Shared<'_>) {
        let (Some(pool), Some(asked)) = (&self.pool, &self.asked) else { return };
        let observed = Observed {
            inputs: asked.inputs,
            prompt: prompt.and_then(|prompt| asked.prompt_seen(prompt)),
            output: output.and_then(|output| asked.output_seen(output, expected)),
            tenant: 0,
        };
        let lesson = Lesson { model: asked.model.as_deref(), tenant_key: &self.tenant_key, observed };
        shared.vm.learn(shared.env.store(), pool, lesson, shared.env.now());
    }

    fn measure(&self, estimate: &Ask, prompt: Option<Tokens>, output: Option<Tokens>, shared: &mut Shared<'_>) {
        let Some(labels) = &self.admitted_as else { return };
        let since_first = |first: Time| self.answer.last_byte.unwrap_or_else(|| shared.env.now()).since(first);
        let times = self.answer.ttft().zip(self.answer.first_output.map(since_first));
        let measured = Measured { estimate: estimate.prompt, prompt, output, times };
        shared.metrics.record_answer(labels, &measured);
    }
}

/// News of its worker in an answer with this status, if any.
fn unserved(status: u16, pool: &Pool, attributes: &dyn AnswerAttributes) -> Option<Unserved> {
    // Why not the detail of every answer: it costs a host call.
    let is_told = status == 503 || pool.busy_statuses.contains(&status);
    let detail = is_told.then(|| attributes.detail())?;
    if detail == "via_upstream" {
        return pool.busy_statuses.contains(&status).then_some(Unserved::Refused);
    }
    let reset = detail.strip_prefix("upstream_reset_before_response_started{")?;
    let could_not_connect = reset.starts_with("remote_connection_failure") || reset.starts_with("connection_timeout");
    could_not_connect.then_some(Unserved::Unreachable)
}
