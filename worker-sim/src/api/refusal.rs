//! Requests that get no tokens, in vLLM's words and shape.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use super::request::Api;
use crate::engine::NeverFits;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The body cannot be read as a request.
    Malformed(String),
    /// A field has a value that no request may have.
    Invalid { param: &'static str, message: String },
    /// Another model than the one served.
    UnknownModel(String),
    /// The prompt leaves no room for output.
    TooLong { prompt: u32, max_model_len: u32 },
    /// More output asked for than the model can ever give.
    TooManyOut { max_tokens: u64, max_model_len: u32 },
    /// More KV blocks needed than there are.
    NeverFits(NeverFits),
    /// The server takes nothing now.
    Unavailable,
    /// A limit in front of the server, such as that of a router.
    TooMany,
    /// All workers behind the server are busy.
    Overloaded,
}

/// Status of [`Refusal::Overloaded`], which has no name.
const OVERLOADED: u16 = 529;

#[derive(Serialize)]
struct Error {
    message: String,
    r#type: &'static str,
    param: Option<&'static str>,
    code: u16,
}

impl Refusal {
    fn status(&self) -> (StatusCode, &'static str) {
        match self {
            Self::UnknownModel(_) => (StatusCode::NOT_FOUND, "NotFoundError"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError"),
            Self::TooMany => (StatusCode::TOO_MANY_REQUESTS, "RateLimitError"),
            Self::Overloaded => {
                (StatusCode::from_u16(OVERLOADED).unwrap_or(StatusCode::SERVICE_UNAVAILABLE), "Overloaded")
            }
            Self::Malformed(_)
            | Self::Invalid { .. }
            | Self::TooLong { .. }
            | Self::TooManyOut { .. }
            | Self::NeverFits(_) => (StatusCode::BAD_REQUEST, "BadRequestError"),
        }
    }

    fn param(&self) -> Option<&'static str> {
        match self {
            Self::Malformed(_) | Self::Unavailable | Self::TooMany | Self::Overloaded => None,
            Self::Invalid { param, .. } => Some(param),
            Self::UnknownModel(_) => Some("model"),
            Self::TooLong { .. } | Self::NeverFits(_) => Some("input_tokens"),
            Self::TooManyOut { .. } => Some("max_tokens"),
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Malformed(problem) => format!("The request body cannot be read: {problem}"),
            Self::Invalid { message, .. } => message.clone(),
            Self::UnknownModel(model) => format!("The model `{model}` does not exist."),
            Self::TooLong { prompt, max_model_len } => format!(
                "This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least \
                 {prompt} input tokens, which exceeds this limit even without any output tokens. Please reduce the \
                 length of the input prompt. (parameter=input_tokens, value={prompt})"
            ),
            Self::TooManyOut { max_tokens, max_model_len } => format!(
                "max_tokens={max_tokens} cannot be greater than max_model_len={max_model_len}. Please request fewer \
                 output tokens. (parameter=max_tokens, value={max_tokens})"
            ),
            Self::NeverFits(NeverFits { needed, total }) => {
                format!("The request needs {needed} KV cache blocks at its end, but the worker has only {total}.")
            }
            Self::Unavailable => "The server is overloaded. Please try again later.".to_owned(),
            Self::TooMany => "Too many requests. Please try again later.".to_owned(),
            Self::Overloaded => "Service temporarily overloaded".to_owned(),
        }
    }

    /// The answer to a request, in its API's shape.
    pub(super) fn answer(self, api: Api) -> Response {
        if api != Api::Messages {
            return self.into_response();
        }
        (self.status().0, Json(self.body(api))).into_response()
    }

    /// The same as a stream that has begun well: of what fails once the headers have gone out.
    pub(super) fn in_stream(&self, api: Api) -> Response {
        let error = self.body(api);
        let events = match api {
            Api::Messages | Api::Responses => format!("event: error\ndata: {error}\n\n"),
            Api::Chat | Api::Completions | Api::Embeddings => format!("data: {error}\n\ndata: [DONE]\n\n"),
        };
        ([(CONTENT_TYPE, "text/event-stream; charset=utf-8")], events).into_response()
    }

    fn body(&self, api: Api) -> Value {
        let (status, kind) = self.status();
        match api {
            Api::Messages => json!({"type": "error", "error": {"type": kind, "message": self.message()}}),
            _ => {
                let error = Error { message: self.message(), r#type: kind, param: self.param(), code: status.as_u16() };
                json!({"error": error})
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status().0, Json(self.body(Api::Chat))).into_response()
    }
}
