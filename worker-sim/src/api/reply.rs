//! The bodies of answers, field by field in vLLM's order.
//!
//! Fields that vLLM sends as null are units here; one that it sends in some chunks only is an `Option` of a unit.

use bytes::Bytes;
use serde::Serialize;

use super::request::{Api, Job};
use super::usage::{Bill, Telling, Told};
use super::{message, response};
use crate::hub::{Delivery, Ending};

/// Words of the made-up output: the token at place `i` is word `i` modulo their number.
const WORDS: [&str; 16] = [
    " the", " slow", " water", " finds", " its", " own", " level", " behind", " a", " gate", " that", " opens",
    " when", " there", " is", " room",
];
const FINGERPRINT: &str = "worker-sim";
const DONE: &[u8] = b"data: [DONE]\n\n";

/// The text of the token at this place of an output.
pub(super) fn word(index: u32) -> &'static str {
    WORDS[index as usize % WORDS.len()]
}

/// What all chunks of an answer have in common.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    pub(super) api: Api,
    pub(super) id: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) model: String,
    /// How it tells what it has cost.
    pub(super) telling: Telling,
    /// Of every prompt, that is said to have been in the cache.
    pub(super) cached_share: f64,
}

#[derive(Serialize)]
struct Reply<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Told>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_fingerprint: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_text: Option<()>,
}

#[derive(Serialize)]
struct ChatDelta {
    index: usize,
    delta: Delta,
    logprobs: (),
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<()>,
}

#[derive(Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    content: &'static str,
}

#[derive(Serialize)]
struct TextDelta {
    index: usize,
    text: &'static str,
    logprobs: (),
    finish_reason: Option<&'static str>,
    stop_reason: (),
    prompt_token_ids: (),
    token_ids: (),
}

#[derive(Serialize)]
struct PlainChat<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChatChoice>,
    service_tier: (),
    system_fingerprint: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Told>,
    prompt_logprobs: (),
    prompt_token_ids: (),
    prompt_text: (),
    kv_transfer_params: (),
    ec_transfer_params: (),
    metrics: (),
}

#[derive(Serialize)]
struct ChatChoice {
    index: usize,
    message: ChatMessage,
    logprobs: (),
    finish_reason: &'static str,
    stop_reason: (),
    token_ids: (),
    routed_experts: (),
}

#[derive(Serialize)]
struct ChatMessage {
    role: &'static str,
    content: String,
    refusal: (),
    annotations: (),
    audio: (),
    function_call: (),
    reasoning: (),
}

#[derive(Serialize)]
struct PlainText<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<TextChoice>,
    service_tier: (),
    system_fingerprint: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Told>,
    kv_transfer_params: (),
}

#[derive(Serialize)]
struct TextChoice {
    index: usize,
    text: String,
    logprobs: (),
    finish_reason: &'static str,
    stop_reason: (),
    token_ids: (),
    prompt_logprobs: (),
    prompt_token_ids: (),
}

#[derive(Serialize)]
struct Embeddings<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    data: Vec<Embedding>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Told>,
}

#[derive(Serialize)]
struct Embedding {
    index: usize,
    object: &'static str,
    embedding: [f32; 4],
}

impl Envelope {
    fn bill(&self, job: &Job) -> Bill {
        Bill::of(job, self.cached_share)
    }

    /// The events of one token; the first one opens its choice.
    pub(super) fn token(&self, job: &Job, token: Delivery) -> Vec<Bytes> {
        let Delivery { choice, index, last } = token;
        let end = job.wishes.get(choice).filter(|_| last).map(|wish| wish.ending);
        let first = index == 0;
        let usage = self.between(job, u64::from(index) + 1);
        match self.api {
            Api::Chat => {
                let role = first.then(|| self.role_chunk(choice, usage));
                role.into_iter().chain([self.chat_chunk(choice, index, end, usage)]).collect()
            }
            Api::Completions => vec![self.text_chunk(choice, index, end, usage)],
            Api::Messages => {
                let begin = first.then(|| message::begin(self, &self.bill(job)));
                begin.into_iter().flatten().chain([message::token(index)]).collect()
            }
            Api::Responses => {
                let begin = first.then(|| response::begin(self));
                begin.into_iter().flatten().chain([response::token(self, index)]).collect()
            }
            Api::Embeddings => Vec::new(),
        }
    }

    /// What a chunk says of the usage that does not have to, when its choice has so many tokens. Like vLLM it tells of no other.
    fn between(&self, job: &Job, of_choice: u64) -> Option<Told> {
        if self.telling.repeated {
            return self.tell(self.bill(job).after(of_choice).chunk());
        }
        (self.telling.nulls && job.include_usage).then_some(Told::Null)
    }

    /// The events after the last token.
    pub(super) fn end(&self, job: &Job) -> Vec<Bytes> {
        let bill = self.bill(job);
        match self.api {
            Api::Messages => message::end(self, ending_of(job), &bill),
            Api::Responses => response::end(self, job, &bill),
            Api::Chat | Api::Completions | Api::Embeddings => {
                let times = if self.telling.repeated { 2 } else { 1 };
                let chunk = self.tell(bill.chunk()).filter(|_| job.include_usage);
                let chunks = chunk.map(|usage| self.usage_chunk(usage)).into_iter();
                let chunks = chunks.flat_map(|chunk| std::iter::repeat_n(chunk, times));
                chunks.chain([Bytes::from_static(DONE)]).collect()
            }
        }
    }

    /// The chunk that opens a choice of a chat, without content.
    fn role_chunk(&self, choice: usize, usage: Option<Told>) -> Bytes {
        let delta = Delta { role: Some("assistant"), content: "" };
        let chat =
            ChatDelta { index: choice, delta, logprobs: (), finish_reason: None, stop_reason: None, token_ids: None };
        event(&Reply { prompt_token_ids: Some(()), prompt_text: Some(()), ..self.chunk(vec![chat], usage) })
    }

    /// The chunk of one token; the last one carries the reason of the end.
    fn chat_chunk(&self, choice: usize, index: u32, end: Option<Ending>, usage: Option<Told>) -> Bytes {
        let chat = ChatDelta {
            index: choice,
            delta: Delta { role: None, content: word(index) },
            logprobs: (),
            finish_reason: end.map(finish_reason),
            stop_reason: end.map(drop),
            token_ids: Some(()),
        };
        event(&self.chunk(vec![chat], usage))
    }

    fn text_chunk(&self, choice: usize, index: u32, end: Option<Ending>, usage: Option<Told>) -> Bytes {
        let text = TextDelta {
            index: choice,
            text: word(index),
            logprobs: (),
            finish_reason: end.map(finish_reason),
            stop_reason: (),
            prompt_token_ids: (),
            token_ids: (),
        };
        event(&self.chunk(vec![text], usage))
    }

    /// The chunk without choices that tells the usage.
    fn usage_chunk(&self, usage: Told) -> Bytes {
        let chunk = self.chunk(Vec::<()>::new(), Some(usage));
        event(&Reply { system_fingerprint: Some(FINGERPRINT), ..chunk })
    }

    /// The whole answer in one body.
    pub(super) fn plain(&self, job: &Job) -> Vec<u8> {
        let bill = self.bill(job);
        let usage = self.tell(bill.plain());
        let answers = job.wishes.iter().map(|wish| ((0..wish.output).map(word).collect::<String>(), wish.ending));
        let mut answers = answers.enumerate();
        let mut only = || answers.next().map(|(_, answer)| answer).unwrap_or((String::new(), Ending::Limit));
        match self.api {
            Api::Chat => json(&PlainChat {
                id: &self.id,
                object: "chat.completion",
                created: self.created,
                model: &self.model,
                choices: answers.map(|(index, answer)| ChatChoice::new(index, answer)).collect(),
                service_tier: (),
                system_fingerprint: FINGERPRINT,
                usage,
                prompt_logprobs: (),
                prompt_token_ids: (),
                prompt_text: (),
                kv_transfer_params: (),
                ec_transfer_params: (),
                metrics: (),
            }),
            Api::Completions => json(&PlainText {
                id: &self.id,
                object: "text_completion",
                created: self.created,
                model: &self.model,
                choices: answers.map(|(index, answer)| TextChoice::new(index, answer)).collect(),
                service_tier: (),
                system_fingerprint: FINGERPRINT,
                usage,
                kv_transfer_params: (),
            }),
            Api::Messages => message::plain(self, only(), &bill),
            Api::Responses => response::plain(self, &only().0, &bill),
            Api::Embeddings => json(&Embeddings {
                id: &self.id,
                object: "list",
                created: self.created,
                model: &self.model,
                data: (0..job.wishes.len()).map(Embedding::new).collect(),
                usage: self.tell(bill.embedded()),
            }),
        }
    }

    fn chunk<C>(&self, choices: Vec<C>, usage: Option<Told>) -> Reply<'_, C> {
        let object = if self.api == Api::Chat { "chat.completion.chunk" } else { "text_completion" };
        Reply {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices,
            usage,
            system_fingerprint: None,
            prompt_token_ids: None,
            prompt_text: None,
        }
    }
}

impl Embedding {
    /// The same vector for every input.
    fn new(index: usize) -> Self {
        Self { index, object: "embedding", embedding: [0.5, -0.5, 0.5, -0.5] }
    }
}

impl ChatChoice {
    fn new(index: usize, (content, ending): (String, Ending)) -> Self {
        let message = ChatMessage {
            role: "assistant",
            content,
            refusal: (),
            annotations: (),
            audio: (),
            function_call: (),
            reasoning: (),
        };
        let finish_reason = finish_reason(ending);
        Self { index, message, logprobs: (), finish_reason, stop_reason: (), token_ids: (), routed_experts: () }
    }
}

impl TextChoice {
    fn new(index: usize, (text, ending): (String, Ending)) -> Self {
        Self {
            index,
            text,
            logprobs: (),
            finish_reason: finish_reason(ending),
            stop_reason: (),
            token_ids: (),
            prompt_logprobs: (),
            prompt_token_ids: (),
        }
    }
}

/// End of the only output of a job.
fn ending_of(job: &Job) -> Ending {
    job.wishes.first().map_or(Ending::Limit, |wish| wish.ending)
}

/// The name that OpenAI's APIs have for the end of an output.
fn finish_reason(ending: Ending) -> &'static str {
    match ending {
        Ending::Limit => "length",
        Ending::Model => "stop",
    }
}

fn event(chunk: &impl Serialize) -> Bytes {
    let mut event = b"data: ".to_vec();
    event.extend(json(chunk));
    event.extend(b"\n\n");
    Bytes::from(event)
}

pub(super) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
