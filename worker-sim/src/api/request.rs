//! From a request's body to the sequences it asks for.

use serde::Deserialize;
use serde_json::Value;

use super::refusal::Refusal;
use crate::Config;
use crate::hub::{Ending, Wish};

/// Output tokens when the request names no number.
const DEFAULT_OUTPUT_TOKENS: u64 = 128;
/// Bytes of text that count as one token.
const BYTES_PER_TOKEN: usize = 4;
/// Most sequences of one request.
const MAX_SEQUENCES: usize = 128;

/// Which of the inference endpoints was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Completions,
    /// Anthropic's.
    Messages,
    Responses,
    Embeddings,
}

impl Api {
    /// The first API that takes the fields of a body.
    pub(crate) fn of_body(body: &[u8]) -> Self {
        let fields: Value = serde_json::from_slice(body).unwrap_or_default();
        match ["messages", "prompt"].map(|field| !fields[field].is_null()) {
            [false, true] => Self::Completions,
            [false, false] if !fields["input"].is_null() => Self::Embeddings,
            _ => Self::Chat,
        }
    }
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) wishes: Vec<Wish>,
    /// Tokens of all prompts, each counted once however many choices it has.
    pub(crate) prompt_tokens: u64,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

#[derive(Deserialize)]
struct Body {
    model: Option<String>,
    messages: Option<Vec<Message>>,
    system: Option<Content>,
    prompt: Option<Prompt>,
    input: Option<Input>,
    instructions: Option<String>,
    max_output_tokens: Option<u64>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    n: Option<usize>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Deserialize)]
struct Message {
    content: Option<Content>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    text: Option<String>,
}

/// Of responses and of embeddings.
#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Prompt(Prompt),
    Items(Vec<Message>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    IdLists(Vec<Vec<u32>>),
}

impl Job {
    /// Reads a body and holds it against what the worker can do. The model ends answers after `natural` tokens.
    ///
    /// # Errors
    /// The first reason to refuse it, in the order in which vLLM looks: shape, model, values, lengths.
    pub(crate) fn parse(api: Api, body: &[u8], config: &Config, natural: Option<u32>) -> Result<Self, Refusal> {
        let body: Body = serde_json::from_slice(body).map_err(|error| Refusal::Malformed(error.to_string()))?;
        if let Some(model) = body.model.as_ref().filter(|model| **model != config.model) {
            return Err(Refusal::UnknownModel(model.clone()));
        }
        let prompts = prompts(api, &body)?;
        let choices = match api {
            Api::Chat | Api::Completions => choices(&body, prompts.len())?,
            Api::Messages | Api::Responses | Api::Embeddings => 1,
        };
        // An engine yields a token for every prompt that it has computed; an embedding is made of that one.
        let max_tokens = if api == Api::Embeddings { Some(1) } else { max_tokens(&body, config)? };
        if api == Api::Messages && max_tokens.is_none() {
            return Err(missing("max_tokens"));
        }
        let wish = |prompt| wish(prompt, max_tokens, natural, config);
        let of_each = prompts.iter().map(|prompt| wish(*prompt)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            prompt_tokens: of_each.iter().map(|wish| u64::from(wish.prompt)).sum(),
            wishes: of_each.into_iter().flat_map(|wish| std::iter::repeat_n(wish, choices)).collect(),
            stream: body.stream.unwrap_or(false) && api != Api::Embeddings,
            include_usage: body.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
        })
    }
}

/// The tokens of each prompt.
fn prompts(api: Api, body: &Body) -> Result<Vec<usize>, Refusal> {
    let prompts = match api {
        Api::Chat | Api::Messages => {
            let messages = body.messages.as_ref().filter(|messages| !messages.is_empty());
            let messages = messages.ok_or_else(|| missing("messages"))?.iter().flat_map(|message| &message.content);
            let system = body.system.as_ref().filter(|_| api == Api::Messages);
            vec![tokens_of_text(messages.chain(system).map(Content::bytes).sum())]
        }
        Api::Completions => body.prompt.as_ref().ok_or_else(|| missing("prompt"))?.tokens(),
        Api::Embeddings => match body.input.as_ref().ok_or_else(|| missing("input"))? {
            Input::Prompt(prompt) => prompt.tokens(),
            Input::Items(_) => return Err(missing("input")),
        },
        Api::Responses => {
            let said = match body.input.as_ref().ok_or_else(|| missing("input"))? {
                Input::Prompt(Prompt::Text(text)) => text.len(),
                Input::Items(items) => items.iter().flat_map(|item| &item.content).map(Content::bytes).sum(),
                Input::Prompt(_) => return Err(missing("input")),
            };
            vec![tokens_of_text(said + body.instructions.as_ref().map_or(0, String::len))]
        }
    };
    if prompts.is_empty() || prompts.contains(&0) {
        return Err(Refusal::Invalid { param: "prompt", message: "`prompt` is empty.".to_owned() });
    }
    Ok(prompts)
}

fn missing(param: &'static str) -> Refusal {
    Refusal::Invalid { param, message: format!("`{param}` is required.") }
}

/// A text of any kind: its bytes by four, rounded up; an empty one is one token, as if it began with a marker.
fn tokens_of_text(bytes: usize) -> usize {
    bytes.div_ceil(BYTES_PER_TOKEN).max(1)
}

fn choices(body: &Body, prompts: usize) -> Result<usize, Refusal> {
    let choices = body.n.unwrap_or(1);
    if choices == 0 || choices.saturating_mul(prompts) > MAX_SEQUENCES {
        let message = format!("`n` must be at least 1, and `n` times the prompts at most {MAX_SEQUENCES}.");
        return Err(Refusal::Invalid { param: "n", message });
    }
    Ok(choices)
}

fn max_tokens(body: &Body, config: &Config) -> Result<Option<u64>, Refusal> {
    let max_tokens = body.max_completion_tokens.or(body.max_tokens).or(body.max_output_tokens);
    match max_tokens {
        Some(0) => Err(Refusal::Invalid {
            param: "max_tokens",
            message: "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)".to_owned(),
        }),
        Some(max_tokens) if max_tokens > u64::from(config.max_model_len) => {
            Err(Refusal::TooManyOut { max_tokens, max_model_len: config.max_model_len })
        }
        other => Ok(other),
    }
}

fn wish(prompt: usize, max_tokens: Option<u64>, natural: Option<u32>, config: &Config) -> Result<Wish, Refusal> {
    let prompt = u32::try_from(prompt).unwrap_or(u32::MAX);
    let room = config.max_model_len.saturating_sub(prompt);
    if room == 0 {
        return Err(Refusal::TooLong { prompt, max_model_len: config.max_model_len });
    }
    let unlimited = if natural.is_some() { u64::from(room) } else { DEFAULT_OUTPUT_TOKENS };
    let limit = u32::try_from(max_tokens.unwrap_or(unlimited)).unwrap_or(room).min(room);
    Ok(match natural.filter(|natural| *natural < limit) {
        Some(output) => Wish { prompt, output, ending: Ending::Model },
        None => Wish { prompt, output: limit, ending: Ending::Limit },
    })
}

impl Prompt {
    /// Of each prompt.
    fn tokens(&self) -> Vec<usize> {
        match self {
            Self::Text(text) => vec![tokens_of_text(text.len())],
            Self::Ids(ids) => vec![ids.len()],
            Self::Texts(texts) => texts.iter().map(|text| tokens_of_text(text.len())).collect(),
            Self::IdLists(lists) => lists.iter().map(Vec::len).collect(),
        }
    }
}

impl Content {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Parts(parts) => parts.iter().flat_map(|part| &part.text).map(String::len).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(api: Api, body: &str) -> Result<Job, Refusal> {
        Job::parse(api, body.as_bytes(), &Config { max_model_len: 200, ..Config::default() }, None)
    }

    fn wishes(api: Api, body: &str) -> Vec<(u32, u32)> {
        parse(api, body).unwrap().wishes.iter().map(|wish| (wish.prompt, wish.output)).collect()
    }

    #[test]
    fn text_counts_four_bytes_a_token_and_ids_count_one_each() {
        let chat = r#"{"messages":[{"content":"12345678"},{"content":[{"text":"9"},{"type":"image"}]},{}]}"#;
        assert_eq!(wishes(Api::Chat, chat), [(3, 128)]);
        assert_eq!(wishes(Api::Completions, r#"{"prompt":""}"#), [(1, 128)]);
        assert_eq!(wishes(Api::Completions, r#"{"prompt":[7,8,9]}"#), [(3, 128)]);
        assert_eq!(wishes(Api::Completions, r#"{"prompt":["12345","1"]}"#), [(2, 128), (1, 128)]);
        assert_eq!(
            wishes(Api::Completions, r#"{"prompt":[[1],[1,2]],"n":2}"#),
            [(1, 128), (1, 128), (2, 128), (2, 128)]
        );
    }

    #[test]
    fn output_is_what_was_asked_and_what_there_is_room_for() {
        let output = |fields: &str| wishes(Api::Completions, &format!(r#"{{"prompt":[1,2,3],{fields}}}"#))[0].1;
        assert_eq!(output(r#""max_tokens":5"#), 5);
        assert_eq!(output(r#""max_tokens":5,"max_completion_tokens":6"#), 6);
        assert_eq!(output(r#""max_tokens":200"#), 197);
        assert_eq!(output(r#""max_tokens":null"#), 128);
    }

    #[test]
    fn the_model_ends_an_answer_that_its_limit_does_not() {
        let ends = |fields: &str| {
            let body = format!(r#"{{"prompt":[1,2,3]{fields}}}"#);
            let config = Config { max_model_len: 200, ..Config::default() };
            let wish = Job::parse(Api::Completions, body.as_bytes(), &config, Some(150)).unwrap().wishes[0];
            (wish.output, wish.ending)
        };
        assert_eq!(ends(""), (150, Ending::Model));
        assert_eq!(ends(r#","max_tokens":151"#), (150, Ending::Model));
        assert_eq!(ends(r#","max_tokens":150"#), (150, Ending::Limit));
        assert_eq!(ends(r#","max_tokens":5"#), (5, Ending::Limit));
    }

    #[test]
    fn a_message_counts_what_the_system_says_and_asks_for_its_output() {
        let message = r#"{"system":[{"text":"1234"}],"messages":[{"content":"56789"}],"max_tokens":7,"n":9}"#;
        assert_eq!(wishes(Api::Messages, message), [(3, 7)]);
        assert_eq!(wishes(Api::Chat, message)[0].0, 2);
        let silent = parse(Api::Messages, r#"{"messages":[{"content":"x"}]}"#).unwrap_err();
        assert!(matches!(silent, Refusal::Invalid { param: "max_tokens", .. }));
    }

    #[test]
    fn the_input_of_a_response_and_of_embeddings_is_counted() {
        let response = r#"{"instructions":"1234","input":"56789","max_output_tokens":7,"n":9}"#;
        assert_eq!(wishes(Api::Responses, response), [(3, 7)]);
        let items = r#"{"input":[{"role":"user","content":"1234"},{"content":[{"type":"input_text","text":"5"}]}]}"#;
        assert_eq!(wishes(Api::Responses, items), [(2, 128)]);
        assert_eq!(wishes(Api::Embeddings, r#"{"input":["12345","1"],"stream":true}"#), [(2, 1), (1, 1)]);
        assert_eq!(wishes(Api::Embeddings, r#"{"input":[1,2,3]}"#), [(3, 1)]);
        for (api, body) in [(Api::Responses, "{}"), (Api::Embeddings, "{}"), (Api::Responses, r#"{"input":[1]}"#)] {
            assert!(matches!(parse(api, body), Err(Refusal::Invalid { param: "input", .. })), "{body}");
        }
    }

    #[test]
    fn a_prompt_is_counted_once_in_the_usage() {
        assert_eq!(parse(Api::Completions, r#"{"prompt":[1,2,3],"n":4}"#).unwrap().prompt_tokens, 3);
    }

    #[test]
    fn what_cannot_be_served_is_refused() {
        let refused = |api, body: &str| parse(api, body).unwrap_err();
        assert!(matches!(refused(Api::Chat, "{"), Refusal::Malformed(_)));
        assert!(matches!(refused(Api::Chat, r#"{"messages":[{}],"max_tokens":-1}"#), Refusal::Malformed(_)));
        for body in [r#"{}"#, r#"{"prompt":"x"}"#, r#"{"messages":[]}"#] {
            assert!(matches!(refused(Api::Chat, body), Refusal::Invalid { param: "messages", .. }), "{body}");
        }
        for body in [r#"{}"#, r#"{"prompt":[]}"#, r#"{"prompt":[[1],[]]}"#] {
            assert!(matches!(refused(Api::Completions, body), Refusal::Invalid { param: "prompt", .. }), "{body}");
        }
        for body in [r#"{"prompt":"x","n":0}"#, r#"{"prompt":["x","y"],"n":65}"#] {
            assert!(matches!(refused(Api::Completions, body), Refusal::Invalid { param: "n", .. }), "{body}");
        }
        let no_output = refused(Api::Completions, r#"{"prompt":"x","max_tokens":0}"#);
        assert!(matches!(no_output, Refusal::Invalid { param: "max_tokens", .. }));
        let other = refused(Api::Completions, r#"{"prompt":"x","model":"other"}"#);
        assert_eq!(other, Refusal::UnknownModel("other".to_owned()));
        let full = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(800));
        assert_eq!(refused(Api::Completions, &full), Refusal::TooLong { prompt: 200, max_model_len: 200 });
    }
}
