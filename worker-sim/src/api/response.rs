//! The bodies of answers to `/v1/responses`, in OpenAI's words.

use bytes::Bytes;
use serde_json::{Value, json};

use super::reply::{Envelope, word};
use super::request::Job;
use super::usage::{Bill, Told};

/// Events before the first delta.
const BEFORE: u32 = 4;

/// The whole answer in one body.
pub(super) fn plain(envelope: &Envelope, text: &str, bill: &Bill) -> Vec<u8> {
    whole(envelope, text, envelope.tell(bill.response())).to_string().into_bytes()
}

/// What opens a stream, before its first token.
pub(super) fn begin(envelope: &Envelope) -> Vec<Bytes> {
    let begun = response(envelope, "in_progress", &json!([]), Some(Told::Null));
    let item = json!({"id": item_id(envelope), "type": "message", "status": "in_progress", "role": "assistant", "content": []});
    vec![
        event("response.created", 0, json!({"response": begun})),
        event("response.in_progress", 1, json!({"response": begun})),
        event("response.output_item.added", 2, json!({"output_index": 0, "item": item})),
        event("response.content_part.added", 3, placed(envelope, "part", part(""))),
    ]
}

/// The token at this place of the output.
pub(super) fn token(envelope: &Envelope, index: u32) -> Bytes {
    event("response.output_text.delta", BEFORE + index, placed(envelope, "delta", json!(word(index))))
}

/// What closes a stream.
pub(super) fn end(envelope: &Envelope, job: &Job, bill: &Bill) -> Vec<Bytes> {
    let output = job.wishes.first().map_or(0, |wish| wish.output);
    let text: String = (0..output).map(word).collect();
    let next = BEFORE + output;
    let whole = whole(envelope, &text, envelope.tell(bill.response()));
    let item = json!({"output_index": 0, "item": whole["output"][0]});
    let last = event("response.completed", next + 3, json!({"response": whole}));
    let mut events = vec![
        event("response.output_text.done", next, placed(envelope, "text", json!(text))),
        event("response.content_part.done", next + 1, placed(envelope, "part", part(&text))),
        event("response.output_item.done", next + 2, item),
        last.clone(),
    ];
    events.extend(envelope.telling.repeated.then_some(last));
    events
}

fn whole(envelope: &Envelope, text: &str, usage: Option<Told>) -> Value {
    let item = json!({
        "id": item_id(envelope), "type": "message", "status": "completed", "role": "assistant", "content": [part(text)],
    });
    response(envelope, "completed", &json!([item]), usage)
}

fn response(envelope: &Envelope, status: &str, output: &Value, usage: Option<Told>) -> Value {
    let mut response = json!({
        "id": envelope.id, "object": "response", "created_at": envelope.created, "status": status, "error": null,
        "incomplete_details": null, "model": envelope.model, "output": output, "parallel_tool_calls": true,
    });
    if let Some(usage) = usage {
        response["usage"] = json!(usage);
    }
    response
}

fn item_id(envelope: &Envelope) -> String {
    envelope.id.replace("resp", "msg")
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": []})
}

/// Something about the only part of the only item.
fn placed(envelope: &Envelope, name: &str, what: Value) -> Value {
    json!({"item_id": item_id(envelope), "output_index": 0, "content_index": 0, name: what})
}

fn event(kind: &str, number: u32, mut data: Value) -> Bytes {
    data["type"] = json!(kind);
    data["sequence_number"] = json!(number);
    Bytes::from(format!("event: {kind}\ndata: {data}\n\n"))
}
