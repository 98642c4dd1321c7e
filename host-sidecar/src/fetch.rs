//! HTTP that a bad peer cannot hold up or fill up.

use std::fmt;
use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response, StatusCode, redirect};

/// Why an exchange gave no body.
#[derive(Debug)]
pub enum FetchError {
    /// The deadline passed.
    Timeout,
    /// No connection, or it broke.
    Connection(reqwest::Error),
    /// The body is longer than allowed.
    TooLarge(usize),
}

/// A client for peers on the same machine or network: connections are kept, no environment proxy is asked, and a redirect
/// is an answer like any other, so that nobody sends a token elsewhere.
pub fn client() -> Result<Client, reqwest::Error> {
    Client::builder().no_proxy().redirect(redirect::Policy::none()).tcp_nodelay(true).build()
}

/// Status and body of one exchange that takes at most `deadline` and `limit` bytes.
pub async fn exchange(
    request: RequestBuilder,
    deadline: Duration,
    limit: usize,
) -> Result<(StatusCode, Vec<u8>), FetchError> {
    let whole = async {
        let response = request.send().await.map_err(FetchError::Connection)?;
        Ok((response.status(), body(response, limit).await?))
    };
    tokio::time::timeout(deadline, whole).await.unwrap_or(Err(FetchError::Timeout))
}

async fn body(mut response: Response, limit: usize) -> Result<Vec<u8>, FetchError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(FetchError::Connection)? {
        if body.len() + chunk.len() > limit {
            return Err(FetchError::TooLarge(limit));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

impl fmt::Display for FetchError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => write!(out, "no answer in time"),
            Self::Connection(error) => {
                // The outer error only says that there was one; what happened stands at the end of the chain.
                let mut cause: &dyn std::error::Error = error;
                while let Some(deeper) = cause.source() {
                    cause = deeper;
                }
                write!(out, "{cause}")
            }
            Self::TooLarge(limit) => write!(out, "more than {limit} bytes"),
        }
    }
}

impl std::error::Error for FetchError {}
