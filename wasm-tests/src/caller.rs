//! Callers: some well behaved, some that hang up in the middle.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Path of the API most tests use.
pub const CHAT: &str = "/v1/chat/completions";

/// A chat request of a few words.
#[must_use]
pub fn chat(model: &str, max_tokens: u32, stream: bool) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Say something, please."}],
        "max_tokens": max_tokens, "stream": stream, "model": model,
    })
}

/// The bytes of an HTTP/1.1 request. Without a size its body is one chunk; the last chunk is left off.
#[must_use]
pub fn request_bytes(path: &str, headers: &[(&str, &[u8])], body: &[u8], sized: bool) -> Vec<u8> {
    let mut bytes = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n").into_bytes();
    for (name, value) in headers {
        bytes.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    if sized {
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(body);
    } else {
        bytes.extend_from_slice(format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(b"\r\n0\r\n\r\n");
    }
    bytes
}

/// A caller on a connection of its own, byte by byte. Dropping it hangs up.
pub struct RawCaller {
    stream: TcpStream,
}

impl RawCaller {
    /// Connects and sends these bytes, which may be any part of a request.
    pub async fn send(address: SocketAddr, bytes: &[u8]) -> Self {
        let mut stream = TcpStream::connect(address).await.expect("connect to Envoy");
        stream.set_nodelay(true).expect("set nodelay");
        // Envoy may answer and close before it has read all; what it answered is what counts then.
        let _ = stream.write_all(bytes).await;
        Self { stream }
    }

    /// Sends more of the request.
    pub async fn send_more(&mut self, bytes: &[u8]) {
        // As in `send`: an answer may already be there, and the connection closed behind it.
        let _ = self.stream.write_all(bytes).await;
    }

    /// Reads until these bytes have come, or the connection ends; all that was read.
    pub async fn read_until(&mut self, wanted: &str) -> String {
        let mut read = Vec::new();
        let mut chunk = [0; 16_384];
        while !String::from_utf8_lossy(&read).contains(wanted) {
            match self.stream.read(&mut chunk).await {
                Ok(0) | Err(_) => break,
                Ok(count) => read.extend_from_slice(&chunk[..count]),
            }
        }
        String::from_utf8_lossy(&read).into_owned()
    }

    /// The status of the answer; `None` when the connection ends without one.
    pub async fn status(&mut self) -> Option<u16> {
        self.read_until("\r\n\r\n").await.split_whitespace().nth(1)?.parse().ok()
    }
}
